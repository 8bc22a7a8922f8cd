//! Checks of a pipeline on its own result: `checks`.

use std::fmt::Write;

use longsift_stages::contract::BrokenRule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::text::quoted;

/// Check of a run before its output replaces the previous one: bounds for a `figure` of the run (a count or share), or for a
/// `statistic` of its samples. If a check fails, the run ends with exit code 6 and the previous output stays. Scores are kept,
/// so that another selection takes seconds. A finished run repeats its checks when it is run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Count or share of the run, such as `rows_kept_share`. Required, unless `statistic` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<Figure>,
    /// With `figure: rows_dropped` or `windows_dropped`, the only reason to count, such as `guard_copy_share`; the summary
    /// lists them. The count is 0 if nothing was dropped for it. Default: all reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Statistic of samples, instead of a `figure`: `score`, or a statistic that a term or a guard uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistic: Option<String>,
    /// Aggregate of the statistic over the samples: `mean` (default), `min`, `max`, or `missing_share`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<Take>,
    /// Samples that the statistic is aggregated over: those `kept` (default), or `all` measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Of>,
    /// Group to check: only samples with this value of `score.within`. Only for a `statistic` and for the figures `samples`,
    /// `samples_kept` and `samples_kept_share`. Default: all groups together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Lowest accepted value. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Highest accepted value. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Effect of a failing check: `error` (default) ends the run, `warn` prints a warning.
    #[serde(default, skip_serializing_if = "is_default")]
    pub severity: CheckSeverity,
}

/// Count or share of a run. A share is 0 if its total is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Rows read.
    RowsIn,
    /// Rows with at least one sample in the output.
    RowsKept,
    /// Rows with at least one sample in the output, as a share of the rows read.
    RowsKeptShare,
    /// Rows that are not in the output and not quarantined.
    RowsDropped,
    /// Rows that could not be scored.
    Quarantined,
    /// Rows that could not be scored, as a share of the rows read.
    QuarantinedShare,
    /// Files that could not be opened.
    FilesQuarantined,
    /// Windows of all documents.
    WindowsTotal,
    /// Windows in the output.
    WindowsKept,
    /// Windows in the output, as a share of all windows.
    WindowsKeptShare,
    /// Windows that are not in the output.
    WindowsDropped,
    /// Tokens of all documents.
    TokensTotal,
    /// Measured samples: windows, or documents with `output.samples: documents`.
    Samples,
    /// Kept samples.
    SamplesKept,
    /// Kept samples, as a share of the measured samples.
    SamplesKeptShare,
}

/// Aggregate of a statistic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Take {
    /// Mean over the samples that have the statistic.
    #[default]
    Mean,
    /// Smallest value.
    Min,
    /// Largest value.
    Max,
    /// Share of the samples without the statistic.
    MissingShare,
}

/// Samples that a statistic is aggregated over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// Kept samples.
    #[default]
    Kept,
    /// All measured samples.
    All,
}

/// Effect of a failing check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckSeverity {
    /// The run ends with exit code 6.
    #[default]
    Error,
    /// The run prints a warning.
    Warn,
}

/// Whether a setting has its default, which is not written.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Formats the name of a setting's value as a pipeline has it.
pub(crate) fn written(value: &impl Serialize) -> String {
    let name = serde_json::to_value(value).expect("a name");
    name.as_str().unwrap_or_default().to_owned()
}

impl Figure {
    /// Whether it is counted over samples, which have groups.
    pub fn is_of_samples(self) -> bool {
        matches!(self, Self::Samples | Self::SamplesKept | Self::SamplesKeptShare)
    }
}

impl Check {
    /// Describes the checked value: `mean copy_share of kept samples in group books`.
    pub fn subject(&self) -> String {
        let mut words = match (&self.figure, &self.statistic) {
            (Some(figure), _) => written(figure),
            (None, statistic) => {
                let take = match self.take.unwrap_or_default() {
                    Take::Mean => "mean",
                    Take::Min => "smallest",
                    Take::Max => "largest",
                    Take::MissingShare => "share without",
                };
                let of = match self.of.unwrap_or_default() {
                    Of::Kept => "kept",
                    Of::All => "all",
                };
                format!("{take} {} of {of} samples", statistic.as_deref().unwrap_or_default())
            }
        };
        if let Some(reason) = &self.reason {
            let _ = write!(words, " for {reason}");
        }
        if let Some(group) = &self.group {
            let _ = write!(words, " in group {group}");
        }
        words
    }

    /// Lists the rules that the check breaks, with their keys. `used`: statistics of terms and guards; `has_groups`: whether
    /// `score.within` is set; `programs`: names of `external` stages.
    pub fn broken_rules(
        &self,
        used: &[String],
        has_groups: bool,
        programs: &[&str],
    ) -> Vec<BrokenRule> {
        let Self { figure, reason, statistic, take, of, group, min, max, severity: _ } = self;
        let mut broken = Vec::new();
        let mut rule = |key: &str, message: &str, hint: &str| {
            broken.push(BrokenRule::new(key, message, hint));
        };
        match (figure, statistic) {
            (None, None) => {
                rule("", "the check has no figure and no statistic", "set `figure` or `statistic`");
            }
            (Some(_), Some(_)) => {
                let message = "`figure` and `statistic` exclude each other";
                rule("statistic", message, "split it into two checks");
            }
            (None, Some(name)) if name != "score" && !used.contains(name) => {
                let used = used.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
                let hint = format!(
                    "a check can use `score`, {}; add a guard on another statistic to check it",
                    used.join(", ")
                );
                rule("statistic", &format!("no term and no guard uses `{name}`"), &hint);
            }
            _ => {}
        }
        for (key, given) in [("take", take.is_some()), ("of", of.is_some())] {
            if given && figure.is_some() {
                let message = format!("`{key}` does not apply to a figure");
                rule(key, &message, "remove it, or name a `statistic`");
            }
        }
        let has_reasons = matches!(figure, Some(Figure::RowsDropped | Figure::WindowsDropped));
        let known = reasons(used, programs);
        match reason {
            Some(_) if !has_reasons => {
                let message = "`reason` applies only to `rows_dropped` and `windows_dropped`";
                rule("reason", message, "remove it");
            }
            Some(reason) if !known.contains(reason) => {
                let message = format!("nothing is dropped for {}", quoted(reason));
                let hint = format!("reasons of this pipeline: {}", known.join(", "));
                rule("reason", &message, &hint);
            }
            _ => {}
        }
        if group.is_some() && figure.is_some_and(|figure| !figure.is_of_samples()) {
            let hint = "use `samples`, `samples_kept` or `samples_kept_share`";
            rule("group", "rows, windows and tokens are not counted by group", hint);
        } else if group.is_some() && !has_groups {
            let hint = "remove it, or name a column with `score.within`";
            rule("group", "the score has no groups", hint);
        }
        match (min, max) {
            (None, None) => {
                let message = format!("the check of {} has no bounds", self.subject());
                rule("", &message, "add `min` or `max`");
            }
            (Some(min), Some(max)) if min > max => {
                let message = format!("`min` {min} is above `max` {max}: no value is accepted");
                rule("min", &message, "swap them, or remove one");
            }
            _ => {}
        }
        broken
    }
}

/// Lists the reasons for which a pipeline with these statistics in terms and guards, and these programs, drops rows or windows.
fn reasons(used: &[String], programs: &[&str]) -> Vec<String> {
    let fixed = ["short_document", "too_short", "not_selected", "not_measured"].map(str::to_owned);
    let dropped = programs.iter().map(|name| format!("dropped_by_{name}"));
    let statistics = used.iter().flat_map(|name| [format!("guard_{name}"), format!("no_{name}")]);
    fixed.into_iter().chain(dropped).chain(statistics).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Check {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn contradictory_checks_are_refused_at_their_key() {
        for (text, has_groups, keys) in [
            (r#"{"min": 1}"#, false, &[""][..]),
            (r#"{"figure": "rows_in"}"#, false, &[""]),
            (r#"{"figure": "rows_in", "min": 2, "max": 1}"#, false, &["min"]),
            (r#"{"figure": "rows_in", "statistic": "score", "min": 2}"#, false, &["statistic"]),
            (r#"{"statistic": "nothing", "min": 2}"#, false, &["statistic"]),
            (
                r#"{"figure": "rows_in", "take": "max", "of": "all", "min": 2}"#,
                false,
                &["take", "of"],
            ),
            (r#"{"figure": "rows_in", "reason": "x", "min": 2}"#, false, &["reason"]),
            (r#"{"figure": "rows_in", "group": "x", "min": 2}"#, true, &["group"]),
            (r#"{"figure": "samples", "group": "x", "min": 2}"#, false, &["group"]),
            (r#"{"figure": "samples", "group": "x", "min": 2}"#, true, &[]),
            (r#"{"figure": "rows_dropped", "reason": "x", "max": 2}"#, false, &["reason"]),
            (r#"{"figure": "rows_dropped", "reason": "dropped_by_prose", "max": 2}"#, false, &[]),
            (r#"{"figure": "windows_dropped", "reason": "no_copy_share", "max": 2}"#, false, &[]),
            (r#"{"statistic": "score", "take": "min", "of": "all", "min": 0}"#, false, &[]),
            (r#"{"statistic": "copy_share", "max": 0.4}"#, false, &[]),
        ] {
            let rules =
                check(text).broken_rules(&["copy_share".to_owned()], has_groups, &["prose"]);
            let found: Vec<&str> = rules.iter().map(|rule| rule.setting.as_str()).collect();
            assert_eq!(found, keys, "{text}");
        }
    }

    #[test]
    fn checks_are_described_in_words() {
        let text = r#"{"statistic": "score", "take": "missing_share", "of": "all", "group": "a"}"#;
        assert_eq!(check(text).subject(), "share without score of all samples in group a");
        let text = r#"{"figure": "rows_dropped", "reason": "short_document"}"#;
        assert_eq!(check(text).subject(), "rows_dropped for short_document");
    }
}
