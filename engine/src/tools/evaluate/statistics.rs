//! Statistics of the windows of an evaluation: every number of every measure, the pipeline's score, and the verdicts of its
//! guards.

use std::collections::BTreeMap;

use longsift_stages::contract::{Column, Kind, Orientation, StatisticValues};
use longsift_stages::filter::guards::{Guard, Verdict};
use longsift_stages::score::terms::{Scale, Scorer, Term};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::constructions::KINDS;
use super::measure::MeasuredValues;
use super::sample::SampledDocument;
use super::windows::WindowOrigin;
use crate::base::random::random_score;
use crate::plan::Plan;

/// Share of copied tokens above which `copy_cap` never takes a window.
const COPY_CAP: f64 = 0.4;

/// A statistic, oriented so that larger values indicate more long-range dependence.
#[derive(Clone, Debug)]
pub(crate) struct OrientedStatistic {
    /// Column name, with the suffix `_negated` if lower values indicate more.
    pub(crate) name: String,
    pub(crate) doc: String,
    /// Values by window. Scores are scaled by the windows that pass the guards.
    pub(crate) values: Vec<Option<f64>>,
    /// Scores by window, scaled by all windows, for selections without guards; `None` if they are equal to `values`.
    pub(crate) unguarded: Option<Vec<Option<f64>>>,
}

/// Returns a name that no statistic has: `name`, or `<prefix>:<name>`.
pub(crate) fn free_name(statistics: &[OrientedStatistic], prefix: &str, name: &str) -> String {
    let is_taken = statistics.iter().any(|statistic| statistic.name == name);
    if is_taken { format!("{prefix}:{name}") } else { name.to_owned() }
}

impl OrientedStatistic {
    pub(crate) fn new(name: String, doc: String, values: Vec<Option<f64>>) -> Self {
        Self { name, doc, values, unguarded: None }
    }

    /// Returns the values by which a selection without guards ranks.
    pub(crate) fn without_guards(&self) -> &[Option<f64>] {
        self.unguarded.as_ref().unwrap_or(&self.values)
    }
}

/// Dependency strengths of all heads of one measure, by head and window.
pub(crate) type HeadValues = Vec<Vec<Option<f64>>>;

/// Windows of one length with their values, accumulated category by category.
#[derive(Debug, Default)]
pub(crate) struct MeasuredWindows {
    pub(crate) tokens: usize,
    pub(crate) origins: Vec<WindowOrigin>,
    pub(crate) categories: Vec<String>,
    /// Documents by category.
    pub(crate) documents: Vec<Vec<SampledDocument>>,
    /// Document scores by column of the input, category and document.
    pub(crate) scores: Vec<Vec<Vec<Option<f64>>>>,
    /// Values of heads, by measure that reports heads.
    pub(crate) heads: Vec<HeadValues>,
    /// Number of windows of each kind, and the hash of their ids.
    pub(crate) kinds: Vec<(u64, Sha256)>,
    /// Scaling group by window.
    groups: Vec<usize>,
    /// Values by window and index in [`MeasuredWindows::columns`]; `NaN` if missing.
    values: Vec<Vec<f64>>,
    columns: Vec<Column>,
}

impl MeasuredWindows {
    /// `score_columns`: number of columns of the input with document scores.
    pub(crate) fn new(
        plan: &Plan,
        tokens: usize,
        score_columns: usize,
        heads: Vec<HeadValues>,
    ) -> Self {
        let numbers = plan.measures.columns.iter().flat_map(|of| of.columns.iter());
        let columns = numbers.filter(|column| column.kind != Kind::Numbers).cloned().collect();
        let (scores, kinds) =
            (vec![Vec::new(); score_columns], vec![(0, Sha256::new()); KINDS.len()]);
        Self { tokens, scores, heads, kinds, columns, ..Self::default() }
    }

    /// Returns the number of documents by category.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.documents.iter().map(Vec::len).collect()
    }

    pub(crate) fn document(&self, window: usize) -> &SampledDocument {
        let WindowOrigin { category, document, .. } = self.origins[window];
        &self.documents[category][document]
    }

    pub(crate) fn push(
        &mut self,
        plan: &Plan,
        origin: WindowOrigin,
        group: usize,
        ids: &[u32],
        values: &MeasuredValues,
    ) {
        let (windows, hash) = &mut self.kinds[origin.kind];
        *windows += 1;
        for id in ids {
            hash.update(id.to_le_bytes());
        }
        let mut numbers = Vec::with_capacity(self.columns.len());
        for (of, values) in plan.measures.columns.iter().zip(values) {
            for (index, column) in of.columns.iter().enumerate() {
                if column.kind != Kind::Numbers {
                    let value =
                        values.as_ref().and_then(|StatisticValues(values)| values[index].finite());
                    numbers.push(value.unwrap_or(f64::NAN));
                }
            }
        }
        self.origins.push(origin);
        self.groups.push(group);
        self.values.push(numbers);
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Returns the measured values of a column by window; `NaN` if missing.
    pub(crate) fn raw(&self, name: &str) -> Option<Vec<f64>> {
        let index = self.column(name)?;
        Some(self.values.iter().map(|numbers| numbers[index]).collect())
    }

    /// Returns the windows of each group, and the whole ones among them.
    fn by_group(&self) -> Vec<(Vec<usize>, Vec<usize>)> {
        let groups = self.groups.iter().max().map_or(0, |last| last + 1);
        let mut windows = vec![(Vec::new(), Vec::new()); groups];
        for (window, (origin, group)) in self.origins.iter().zip(&self.groups).enumerate() {
            windows[*group].0.push(window);
            if origin.is_whole() {
                windows[*group].1.push(window);
            }
        }
        windows
    }

    /// Returns the columns whose values differ between windows, and the score. `passes`: by window, whether guards admit it.
    pub(crate) fn statistics(
        &self,
        plan: &Plan,
        passes: Option<&[bool]>,
    ) -> Vec<OrientedStatistic> {
        let mut all = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            let negated = column.orientation == Orientation::Lower;
            let values = self.values.iter().map(|numbers| {
                let value = if negated { -numbers[index] } else { numbers[index] };
                Some(value).filter(|value| value.is_finite())
            });
            let values: Vec<Option<f64>> = values.collect();
            let mut known = values.iter().flatten();
            let first = known.next();
            // Some columns, such as a distance in tokens, are constant for a window length and separate nothing.
            if known.any(|value| Some(value) != first) {
                let suffix = if negated { "_negated" } else { "" };
                let name = format!("{}{suffix}", column.name);
                all.push(OrientedStatistic::new(name, column.doc.to_string(), values));
            }
        }
        all.extend(self.score(plan, passes));
        all
    }

    /// Returns random scores, which depend on document id, window number and kind.
    pub(crate) fn random(&self, seed: u64) -> Vec<Option<f64>> {
        let score = |(index, origin): (usize, &WindowOrigin)| {
            let id = &self.document(index).id;
            let window = (origin.start / self.tokens).to_string();
            let kind = (!origin.is_whole()).then(|| origin.kind().name);
            let sample: Vec<&str> = [id.as_str(), &window].into_iter().chain(kind).collect();
            Some(random_score(seed, &sample))
        };
        self.origins.iter().enumerate().map(score).collect()
    }

    /// Computes the pipeline's score; `None` if a term has no values.
    fn score(&self, plan: &Plan, passes: Option<&[bool]>) -> Option<OrientedStatistic> {
        let settings = plan.spec.score();
        if let Some(seed) = settings.random_seed() {
            let doc = format!(
                "The pipeline's score: a random number by document and window, seed {seed}."
            );
            return Some(OrientedStatistic::new("score".into(), doc, self.random(seed)));
        }
        let (terms, combine) = settings.terms(&plan.measures.statistics());
        let values = self.scores(plan, |window| passes.is_none_or(|passes| passes[window]))?;
        let unguarded = passes.and_then(|_| self.scores(plan, |_| true));
        let doc = format!("The pipeline's score: {}.", combine.formula(&terms));
        let any = values.iter().any(Option::is_some);
        any.then(|| OrientedStatistic { name: "score".into(), doc, values, unguarded })
    }

    /// Computes the pipeline's score by window, scaled by the whole windows of its group that `is_counted` admits.
    fn scores(&self, plan: &Plan, is_counted: impl Fn(usize) -> bool) -> Option<Vec<Option<f64>>> {
        let settings = plan.spec.score();
        let (terms, combine) = settings.terms(&plan.measures.statistics());
        let columns: Option<Vec<usize>> =
            terms.iter().map(|term| self.column(&term.statistic)).collect();
        let columns = columns?;
        let mut values = vec![None; self.origins.len()];
        for (windows, mut counted) in self.by_group() {
            counted.retain(|window| is_counted(*window));
            if counted.is_empty() {
                continue;
            }
            let scale = |(term, column): (&Term, &usize)| {
                let of: Vec<f64> =
                    counted.iter().map(|window| self.values[*window][*column]).collect();
                let is_known = term.optional || of.iter().any(|value| value.is_finite());
                is_known.then(|| Scale::new(&of, term.standardise.unwrap_or(settings.standardise)))
            };
            // As in a run, a group has no scores if all its windows lack the statistic of a term.
            let Some(scales) = terms.iter().zip(&columns).map(scale).collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            let scorer = Scorer::new(&terms, combine, settings.standardise, &scales)?;
            for window in windows {
                let of: Vec<f64> =
                    columns.iter().map(|column| self.values[window][*column]).collect();
                values[window] = Some(scorer.score(&of)).filter(|score| score.is_finite());
            }
        }
        Some(values)
    }

    /// Returns by window whether at most 40 % of its tokens are copied; `None` without `copy_share`.
    pub(crate) fn below_copy_cap(&self) -> Option<Vec<bool>> {
        Some(self.raw("copy_share")?.into_iter().map(|share| share <= COPY_CAP).collect())
    }

    /// Returns the verdicts of the pipeline's guards; quantiles are taken over the whole windows of a group.
    pub(crate) fn rejections(&self, plan: &Plan) -> Rejections {
        let by_group = self.by_group();
        let of_guard = |guard: &Guard| {
            let values = self.raw(&guard.statistic)?;
            let mut verdicts = vec![Verdict::Missing; values.len()];
            for (windows, whole) in &by_group {
                let of_whole: Vec<f64> = whole.iter().map(|window| values[*window]).collect();
                let tokens = vec![self.tokens as u64; of_whole.len()];
                let bounds = guard.bounds_of(&of_whole, &tokens);
                for window in windows {
                    verdicts[*window] = bounds.judge(values[*window]);
                }
            }
            Some(verdicts)
        };
        let guards = plan.spec.filter().guards.iter();
        Rejections(guards.map(|guard| (guard.statistic.clone(), of_guard(guard))).collect())
    }
}

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
