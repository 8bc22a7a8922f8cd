//! Measures of how well a statistic separates windows, as functions of the windows' values and of the documents'
//! counts.
//!
//! Counts are integers, so that the sample and its resampled replicates use the same code, and sums do not depend on
//! their order.

pub(crate) mod agreement;
pub(crate) mod bootstrap;
pub(crate) mod ladder;
pub(crate) mod paired;
pub(crate) mod top_fifth;

use std::cmp::Ordering;

use schemars::JsonSchema;
use serde::Serialize;

use super::windows::WindowOrigin;

/// Values of a statistic by window; `None` if missing or not finite. Such windows are left out of this statistic's
/// results.
pub(crate) type Values = [Option<f64>];

/// A value with its 95 % bootstrap interval: `[value, low, high]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(with = "Option<[Option<f64>; 3]>", rename = "Figure")]
#[serde(into = "Option<[Option<f64>; 3]>")]
pub(crate) struct IntervalEstimate {
    /// Value; `None` without a pair of windows.
    pub(crate) value: Option<f64>,
    /// Interval; `None` if no replicate had a pair.
    pub(crate) interval: Option<[f64; 2]>,
}

impl From<IntervalEstimate> for Option<[Option<f64>; 3]> {
    fn from(figure: IntervalEstimate) -> Self {
        let [low, high] = figure.interval.map_or([None; 2], |interval| interval.map(Some));
        figure.value.map(|value| [Some(value), low, high])
    }
}

/// Count of each document, by category and document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentCounts(pub(crate) Vec<Vec<u32>>);

impl DocumentCounts {
    pub(crate) fn count(&self, origin: &WindowOrigin) -> u64 {
        u64::from(self.0[origin.category][origin.document])
    }
}

/// Returns whether two values have the same rank; 0 and -0 do.
pub(crate) fn same_rank(a: f64, b: f64) -> bool {
    a.partial_cmp(&b).is_some_and(Ordering::is_eq)
}

/// Returns twice the wins of `a` over `b`: 2 if it is larger, 1 if they are equal.
pub(crate) fn wins_doubled(a: f64, b: f64) -> u64 {
    u64::from(a >= b) + u64::from(a > b)
}
