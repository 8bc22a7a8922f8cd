//! Windows that the pipeline's guards reject.

use std::collections::BTreeMap;

use longsift_stages::filter::guards::Verdict;
use schemars::JsonSchema;
use serde::Serialize;

/// Verdicts of a pipeline's guards on the windows of one length: by guard, the name of its statistic and its verdicts by
/// window; `None` if the statistic is not measured.
pub(crate) struct Rejections(pub(crate) Vec<(String, Option<Vec<Verdict>>)>);

/// Windows that a guard rejects, by kind or class.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct GuardRejections {
    /// Statistic of the guard; `any guard` for all of them combined.
    pub(crate) guard: String,
    pub(crate) kinds: BTreeMap<String, Rejected>,
}

#[expect(clippy::struct_field_names, reason = "the count of what is rejected")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Rejected {
    pub(crate) windows: u64,
    /// Windows whose statistic is out of bounds.
    pub(crate) rejected: u64,
    /// Windows without the statistic, which do not pass either.
    pub(crate) missing: u64,
}

impl Rejected {
    /// Returns the share of windows that do not pass.
    pub(crate) fn share(&self) -> f64 {
        (self.rejected + self.missing) as f64 / self.windows.max(1) as f64
    }
}

impl Rejections {
    /// Returns by window whether it passes all guards; `None` without guards.
    pub(crate) fn passes(&self) -> Option<Vec<bool>> {
        let verdicts: Vec<&Vec<Verdict>> =
            self.0.iter().filter_map(|(_, verdicts)| verdicts.as_ref()).collect();
        let windows = verdicts.first()?.len();
        let passes = |window: usize| verdicts.iter().all(|of| of[window] == Verdict::Passes);
        Some((0..windows).map(passes).collect())
    }

    /// Returns notes about guards whose statistic is not measured or missing from every window.
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |(name, verdicts): &(String, Option<Vec<Verdict>>)| match verdicts {
            None => {
                Some(format!("the guard on `{name}` is left out: its statistic is not measured"))
            }
            Some(verdicts) if verdicts.iter().all(|verdict| *verdict == Verdict::Missing) => {
                Some(format!(
                    "no window of this length passes the guard on `{name}`: none has the statistic"
                ))
            }
            Some(_) => None,
        };
        self.0.iter().filter_map(note).collect()
    }

    /// Returns counts by kind of window; `kind` names the kind of a window.
    pub(crate) fn counted<'a>(&self, kind: impl Fn(usize) -> &'a str) -> Vec<GuardRejections> {
        let of = |guard: &str, verdicts: &[Verdict]| {
            let mut kinds: BTreeMap<String, Rejected> = BTreeMap::new();
            for (window, verdict) in verdicts.iter().enumerate() {
                let count = kinds.entry(kind(window).to_owned()).or_default();
                count.windows += 1;
                count.rejected += u64::from(*verdict == Verdict::Refused);
                count.missing += u64::from(*verdict == Verdict::Missing);
            }
            GuardRejections { guard: guard.to_owned(), kinds }
        };
        let known = self.0.iter().filter_map(|(name, of)| Some((name, of.as_ref()?)));
        let mut counted: Vec<_> = known.map(|(name, verdicts)| of(name, verdicts)).collect();
        if let Some(passes) = self.passes().filter(|_| counted.len() > 1) {
            let verdict = |passes: &bool| if *passes { Verdict::Passes } else { Verdict::Refused };
            let any: Vec<Verdict> = passes.iter().map(verdict).collect();
            counted.push(of("any guard", &any));
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_without_a_statistic_do_not_pass() {
        use Verdict::{Missing, Passes, Refused};
        let rejections = Rejections(vec![
            ("digit_share".to_owned(), Some(vec![Passes, Refused, Passes])),
            ("copy_share".to_owned(), Some(vec![Passes, Passes, Missing])),
            ("absent".to_owned(), None),
        ]);
        assert_eq!(rejections.passes(), Some(vec![true, false, false]));
        assert_eq!(rejections.notes().len(), 1);
        let lacking = Rejections(vec![("copy_share".to_owned(), Some(vec![Missing, Missing]))]);
        assert_eq!(lacking.passes(), Some(vec![false, false]));
        assert!(lacking.notes()[0].contains("none has the statistic"), "{:?}", lacking.notes());
        let kinds = ["a", "a", "b"];
        let counted = rejections.counted(|window| kinds[window]);
        let names: Vec<&str> = counted.iter().map(|of| of.guard.as_str()).collect();
        assert_eq!(names, ["digit_share", "copy_share", "any guard"]);
        assert_eq!(counted[0].kinds["a"], Rejected { windows: 2, rejected: 1, missing: 0 });
        assert_eq!(counted[1].kinds["b"], Rejected { windows: 1, rejected: 0, missing: 1 });
        assert!((counted[2].kinds["a"].share() - 0.5).abs() < 1e-15);
        assert_eq!(Rejections(Vec::new()).passes(), None);
    }
}
