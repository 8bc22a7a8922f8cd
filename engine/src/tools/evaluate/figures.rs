//! What a statistic separates, as figures: each a function of the windows' values and of how often each document counts.
//!
//! Counts are whole numbers, so that the figures of all documents once and those of a resampled replicate are made by the
//! same lines, and no order of summation shows.

pub(crate) mod agreement;
pub(crate) mod bootstrap;
pub(crate) mod ladder;
pub(crate) mod paired;
pub(crate) mod top_fifth;

use std::cmp::Ordering;

use schemars::JsonSchema;
use serde::Serialize;

use super::windows::Place;

/// The value of a statistic for each window; none where it has none, or none that is finite. Such a window enters no figure of
/// this statistic.
pub(crate) type Values = [Option<f64>];

/// A figure, and where its value lies in nineteen of twenty resamplings of the documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(with = "Option<[Option<f64>; 3]>")]
#[serde(into = "Option<[Option<f64>; 3]>")]
pub(crate) struct Figure {
    /// None without a single pair of windows.
    pub(crate) value: Option<f64>,
    /// From, to; none where no replicate had a pair.
    pub(crate) interval: Option<[f64; 2]>,
}

impl From<Figure> for Option<[Option<f64>; 3]> {
    fn from(figure: Figure) -> Self {
        let [low, high] = figure.interval.map_or([None; 2], |interval| interval.map(Some));
        figure.value.map(|value| [Some(value), low, high])
    }
}

/// How often each document counts: by category, then document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) Vec<Vec<u32>>);

impl Counts {
    /// How often the document of a window counts.
    pub(crate) fn of(&self, place: &Place) -> u64 {
        u64::from(self.0[place.category][place.document])
    }
}

/// Whether two values are one rank; 0 and -0 are.
pub(crate) fn same_rank(a: f64, b: f64) -> bool {
    a.partial_cmp(&b).is_some_and(Ordering::is_eq)
}

/// Twice the wins of `a` over `b`: 2 where it is larger, 1 where they are equal.
pub(crate) fn wins_doubled(a: f64, b: f64) -> u64 {
    u64::from(a >= b) + u64::from(a > b)
}
