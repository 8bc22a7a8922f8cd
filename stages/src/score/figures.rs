//! The figures of a group that scores are made comparable with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Two passes over finite `values`: [`Sums`], then [`Deviations`].
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut sums = Sums::default();
        values.clone().for_each(|value| sums.add(value));
        let mut deviations = Deviations::from(sums);
        values.for_each(|value| deviations.add(value));
        deviations.figures()
    }
}

/// The first of two passes over the finite values of a group, in input order: their mean and their range.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// How many they are.
    pub count: u64,
    /// The lowest; infinity without any.
    pub min: f64,
    /// The highest; minus infinity without any.
    pub max: f64,
    sum: CompensatedSum,
}

impl Default for Sums {
    fn default() -> Self {
        let sum = CompensatedSum::default();
        Self { count: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, sum }
    }
}

impl Sums {
    /// Takes in the next value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum.add(value);
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum.total() / self.count as f64 }
    }
}

/// The second pass: the deviations from the mean, corrected for the mean's own rounding.
#[derive(Clone, Copy, Debug)]
pub struct Deviations {
    sums: Sums,
    mean: f64,
    squares: CompensatedSum,
    residue: CompensatedSum,
}

impl From<Sums> for Deviations {
    fn from(sums: Sums) -> Self {
        let (squares, residue) = <(CompensatedSum, CompensatedSum)>::default();
        Self { sums, mean: sums.mean(), squares, residue }
    }
}

impl Deviations {
    /// Takes in a value of the first pass, in the same order.
    pub fn add(&mut self, value: f64) {
        let deviation = value - self.mean;
        self.squares.add(deviation * deviation);
        self.residue.add(deviation);
    }

    /// The figures of the values.
    pub fn figures(&self) -> ColumnFigures {
        let Sums { count, min, max, sum: _ } = self.sums;
        if count == 0 {
            return ColumnFigures::default();
        }
        let (count, residue) = (count as f64, self.residue.total());
        let variance = if count > 1.0 {
            (self.squares.total() - residue * residue / count) / (count - 1.0)
        } else {
            0.0
        };
        let standard_deviation = variance.max(0.0).sqrt();
        ColumnFigures { mean: self.mean, standard_deviation, min, max }
    }
}

/// A sum with the rounding error of every addition carried along (Neumaier 1974).
#[derive(Clone, Copy, Debug, Default)]
struct CompensatedSum {
    sum: f64,
    lost: f64,
}

impl CompensatedSum {
    fn add(&mut self, value: f64) {
        let total = self.sum + value;
        self.lost += if self.sum.abs() >= value.abs() {
            (self.sum - total) + value
        } else {
            (value - total) + self.sum
        };
        self.sum = total;
    }

    fn total(&self) -> f64 {
        self.sum + self.lost
    }
}

/// The compensated sum of `values`.
pub(super) fn compensated_sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut sum = CompensatedSum::default();
    values.for_each(|value| sum.add(value));
    sum.total()
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
