//! The figures of a group that scores are made comparable with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a calibration knows of one group: enough to score and filter another corpus as this one was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupFigures {
    /// Samples in the group.
    pub count: u64,
    /// Figures of the dependency strength.
    pub dependency_strength: ColumnFigures,
    /// Figures of the far variance, as measured (not negated).
    pub far_variance: ColumnFigures,
    /// The lowest score that was kept; null where nothing was, or before the filter.
    pub threshold: Option<f64>,
}

/// Figures of one statistic over a group. All 0 for an empty group, all finite otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColumnFigures {
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation (divisor `n - 1`); 0 for one sample.
    pub standard_deviation: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
}

impl ColumnFigures {
    /// Two passes over finite `values`: the mean, then the deviations from it, corrected for the mean's own rounding.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        if count == 0.0 {
            return Self::default();
        }
        let mean = compensated_sum(values.clone()) / count;
        let deviations = values.clone().map(|value| value - mean);
        let squares = compensated_sum(deviations.clone().map(|deviation| deviation * deviation));
        let residue = compensated_sum(deviations);
        let variance =
            if count > 1.0 { (squares - residue * residue / count) / (count - 1.0) } else { 0.0 };
        Self {
            mean,
            standard_deviation: variance.max(0.0).sqrt(),
            min: values.clone().fold(f64::INFINITY, f64::min),
            max: values.fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The sum of `values` with the rounding error of every addition carried along (Neumaier 1974).
pub(super) fn compensated_sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0_f64);
    for value in values {
        let total = sum + value;
        lost +=
            if sum.abs() >= value.abs() { (sum - total) + value } else { (value - total) + sum };
        sum = total;
    }
    sum + lost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_the_textbook_ones() {
        let figures = ColumnFigures::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter());
        let expected = ColumnFigures {
            mean: 5.0,
            standard_deviation: (32.0_f64 / 7.0).sqrt(),
            min: 2.0,
            max: 9.0,
        };
        assert_eq!(figures, expected);
        let one = ColumnFigures { mean: 3.0, standard_deviation: 0.0, min: 3.0, max: 3.0 };
        assert_eq!(ColumnFigures::of([3.0].into_iter()), one);
    }

    #[test]
    fn a_sum_keeps_what_single_additions_lose() {
        assert!((compensated_sum([1.0, 1e100, 1.0, -1e100].into_iter()) - 2.0).abs() < 1e-15);
        assert!((compensated_sum(std::iter::repeat_n(0.1, 10)) - 1.0).abs() < f64::EPSILON / 2.0);
    }

    #[test]
    fn a_small_spread_on_a_large_mean_keeps_its_digits() {
        let values: Vec<f64> = (0..1000_i32).map(|i| 1.0 + f64::from(i % 2) * 1e-9).collect();
        let figures = ColumnFigures::of(values.iter().copied());
        let expected = 0.5e-9 * (1000.0_f64 / 999.0).sqrt();
        assert!((figures.standard_deviation / expected - 1.0).abs() < 1e-6, "{figures:?}");
    }
}
