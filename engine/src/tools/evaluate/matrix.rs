//! Matrix of scores and kinds of windows: which kinds a score ranks below real text.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::estimates::IntervalEstimate;

/// Minimum number of documents of a cell.
pub(crate) const MIN_DOCUMENTS: usize = 8;

/// Outcome of a result compared with chance, ½.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The interval lies above ½: real windows win.
    Pass,
    /// The interval contains ½.
    Weak,
    /// The interval lies below ½: the other windows win.
    Fail,
}

/// A result and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Cell {
    pub(crate) outcome: Outcome,
    /// Value and interval.
    #[serde(rename = "figure")]
    pub(crate) estimate: IntervalEstimate,
}

/// Cells by score, then kind of window. Kinds with fewer than eight documents are left out.
pub(crate) type Matrix = BTreeMap<String, BTreeMap<String, Cell>>;

impl Cell {
    /// Judges a result; `None` without an interval.
    pub(crate) fn new(estimate: IntervalEstimate) -> Option<Self> {
        let [low, high] = estimate.interval?;
        let outcome = match (low > 0.5, high < 0.5) {
            (true, _) => Outcome::Pass,
            (_, true) => Outcome::Fail,
            _ => Outcome::Weak,
        };
        Some(Self { outcome, estimate })
    }
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Weak => "weak",
            Self::Fail => "fail",
        }
    }
}

/// Lists the kinds that do not pass: `weak: header, rep; fails: pieces_2`; empty if all pass.
pub(crate) fn shortcomings(cells: &BTreeMap<String, Cell>) -> String {
    let of = |outcome: Outcome| {
        let names = cells.iter().filter(|(_, cell)| cell.outcome == outcome);
        names.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let parts = [("weak", of(Outcome::Weak)), ("fails", of(Outcome::Fail))];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts.map(|(what, names)| format!("; {what}: {names}")).collect();
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_that_contains_chance_is_weak() {
        let outcome = |low, high| {
            let estimate = IntervalEstimate { value: Some(0.5), interval: Some([low, high]) };
            Cell::new(estimate).map(|cell| cell.outcome)
        };
        assert_eq!(outcome(0.44, 0.62), Some(Outcome::Weak));
        assert_eq!(outcome(0.5, 0.7), Some(Outcome::Weak), "its end equals chance");
        assert_eq!(outcome(0.51, 0.7), Some(Outcome::Pass));
        assert_eq!(outcome(0.3, 0.49), Some(Outcome::Fail));
        assert_eq!(Cell::new(IntervalEstimate::default()), None);
    }
}
