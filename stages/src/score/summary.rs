//! Summary statistics of a group. Sums that would overflow or underflow although the result does not are taken over values
//! scaled by a power of two, which changes no digit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Summary of one statistic over a group. All 0 for an empty group. All finite, except for a deviation beyond the
/// largest float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ColumnFigures")]
pub struct SummaryStatistics {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (divisor `n - 1`); 0 for one sample.
    pub standard_deviation: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
}

/// Ranges from 2⁻⁴⁰⁰ to 2⁴⁰⁰ have squares that can be summed without scaling.
const MAX_UNSCALED: f64 = power_of_two(400);
const MIN_UNSCALED: f64 = power_of_two(-400);

/// Exponent that brings other ranges between these bounds.
const SCALE_EXPONENT: i64 = 600;

const fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl SummaryStatistics {
    /// Returns whether all values are equal, or the standard deviation is finite and not 0.
    pub fn supports_z_scores(&self) -> bool {
        self.max <= self.min
            || (self.standard_deviation.is_finite() && self.standard_deviation > 0.0)
    }

    /// Computes the summary of finite `values` in two passes: [`Sums`], then [`Deviations`].
    pub(super) fn from_values(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut sums = Sums::default();
        values.clone().for_each(|value| sums.add(value));
        let mut deviations = Deviations::from(sums);
        values.for_each(|value| deviations.add(value));
        deviations.summary()
    }
}

/// First of two passes over the finite values of a group, in input order: mean and range.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    pub count: u64,
    /// Minimum; infinity without values.
    pub min: f64,
    /// Maximum; minus infinity without values.
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
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum.add(value);
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum.mean(self.count) }
    }
}

/// Second pass: deviations from the mean, corrected for the rounding of the mean.
#[derive(Clone, Copy, Debug)]
pub struct Deviations {
    sums: Sums,
    mean: f64,
    /// Power of two by which values are multiplied.
    scale: f64,
    squares: CompensatedSum,
    residue: CompensatedSum,
}

impl From<Sums> for Deviations {
    fn from(sums: Sums) -> Self {
        let (squares, residue) = <(CompensatedSum, CompensatedSum)>::default();
        let range = sums.max - sums.min;
        let scale = if range > MAX_UNSCALED {
            power_of_two(-SCALE_EXPONENT)
        } else if range > 0.0 && range < MIN_UNSCALED {
            power_of_two(SCALE_EXPONENT)
        } else {
            1.0
        };
        Self { sums, mean: sums.mean(), scale, squares, residue }
    }
}

impl Deviations {
    /// Adds a value of the first pass, in the same order.
    pub fn add(&mut self, value: f64) {
        let deviation = value * self.scale - self.mean * self.scale;
        self.squares.add(deviation * deviation);
        self.residue.add(deviation);
    }

    pub fn summary(&self) -> SummaryStatistics {
        let Sums { count, min, max, sum: _ } = self.sums;
        if count == 0 {
            return SummaryStatistics::default();
        }
        let (count, residue) = (count as f64, self.residue.total());
        let variance = if count > 1.0 {
            (self.squares.total() - residue * residue / count) / (count - 1.0)
        } else {
            0.0
        };
        let standard_deviation = variance.max(0.0).sqrt() / self.scale;
        SummaryStatistics { mean: self.mean, standard_deviation, min, max }
    }
}

/// Sum that accumulates the rounding error of every addition (Neumaier 1974).
#[derive(Clone, Copy, Debug)]
struct CompensatedSum {
    sum: f64,
    lost: f64,
    /// Power of two by which the sum and all values are multiplied: 1 until the sum comes near the largest float.
    scale: f64,
}

impl Default for CompensatedSum {
    fn default() -> Self {
        Self { sum: 0.0, lost: 0.0, scale: 1.0 }
    }
}

impl CompensatedSum {
    /// A sum and a value of at most this magnitude do not overflow.
    const MAX_SUMMAND: f64 = power_of_two(1022);
    /// Leaves room for 2^64 values.
    const SUM_SCALE: f64 = power_of_two(-64 - 2);

    fn add(&mut self, value: f64) {
        if self.scale >= 1.0 && self.sum.abs().max(value.abs()) > Self::MAX_SUMMAND {
            self.scale = Self::SUM_SCALE;
            self.sum *= self.scale;
            self.lost *= self.scale;
        }
        let value = value * self.scale;
        let total = self.sum + value;
        self.lost += if self.sum.abs() >= value.abs() {
            (self.sum - total) + value
        } else {
            (value - total) + self.sum
        };
        self.sum = total;
    }

    fn total(&self) -> f64 {
        (self.sum + self.lost) / self.scale
    }

    /// Returns the mean of `count` values, which is finite if they are.
    fn mean(&self, count: u64) -> f64 {
        let total = self.sum + self.lost;
        let mean = total / count as f64 / self.scale;
        if total.is_finite() { mean.clamp(f64::MIN, f64::MAX) } else { mean }
    }
}

/// Returns the mean of `values`; `NaN` if empty.
pub(super) fn mean(values: &[f64]) -> f64 {
    let mut sum = CompensatedSum::default();
    for value in values {
        sum.add(*value);
    }
    sum.mean(values.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_match_the_textbook() {
        let summary =
            SummaryStatistics::from_values([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter());
        let expected = SummaryStatistics {
            mean: 5.0,
            standard_deviation: (32.0_f64 / 7.0).sqrt(),
            min: 2.0,
            max: 9.0,
        };
        assert_eq!(summary, expected);
        let one = SummaryStatistics { mean: 3.0, standard_deviation: 0.0, min: 3.0, max: 3.0 };
        assert_eq!(SummaryStatistics::from_values([3.0].into_iter()), one);
    }

    #[test]
    fn compensated_sums_keep_lost_digits() {
        assert!((mean(&[1.0, 1e100, 1.0, -1e100]) - 0.5).abs() < 1e-15);
        assert!((mean(&[0.1; 10]) - 0.1).abs() < f64::EPSILON / 20.0);
    }

    #[test]
    fn a_small_spread_on_a_large_mean_keeps_its_digits() {
        let values: Vec<f64> = (0..1000_i32).map(|i| 1.0 + f64::from(i % 2) * 1e-9).collect();
        let summary = SummaryStatistics::from_values(values.iter().copied());
        let expected = 0.5e-9 * (1000.0_f64 / 999.0).sqrt();
        assert!((summary.standard_deviation / expected - 1.0).abs() < 1e-6, "{summary:?}");
    }

    /// Returns the summary and its bits.
    fn both(values: &[f64]) -> (SummaryStatistics, [u64; 4]) {
        let summary = SummaryStatistics::from_values(values.iter().copied());
        let SummaryStatistics { mean, standard_deviation, min, max } = summary;
        (summary, [mean, standard_deviation, min, max].map(f64::to_bits))
    }

    #[test]
    fn scaling_by_a_power_of_two_is_exact() {
        let values: Vec<f64> =
            (0..999_i32).map(|i| f64::from(i * 7919 % 1009) / 1009.0 - 0.3).collect();
        let (plain, _) = both(&values);
        for exponent in [-1000, -700, -450, -350, 3, 350, 450, 700, 1023] {
            let factor = power_of_two(exponent);
            let scaled: Vec<f64> = values.iter().map(|value| value * factor).collect();
            let expected = [plain.mean, plain.standard_deviation, plain.min, plain.max];
            let expected = expected.map(|value| (value * factor).to_bits());
            assert_eq!(both(&scaled).1, expected, "2^{exponent}");
        }
    }

    #[test]
    fn summaries_near_the_largest_float_match_the_definition() {
        let (of_equals, _) = both(&[f64::MAX; 5]);
        assert!(of_equals.mean <= f64::MAX && of_equals.mean / f64::MAX > 1.0 - 1e-15);
        assert!(
            of_equals.standard_deviation.abs() < f64::MIN_POSITIVE && of_equals.supports_z_scores()
        );
        let (summary, _) = both(&[1e308, 1e308, -1e308, -1e308, 0.0, 1e308]);
        assert!((summary.mean / (1e308 / 6.0) - 1.0).abs() < 1e-15, "{summary:?}");
        // Σ(x - mean)² = 5 - 1/6 in units of 1e308².
        let expected = ((5.0 - 1.0 / 6.0) / 5.0_f64).sqrt() * 1e308;
        assert!((summary.standard_deviation / expected - 1.0).abs() < 1e-15, "{summary:?}");
        assert!(summary.supports_z_scores());
        let (beyond, _) = both(&[f64::MIN, f64::MAX]);
        assert!(beyond.standard_deviation.is_infinite() && !beyond.supports_z_scores());
        assert!((mean(&[f64::MAX, f64::MAX, f64::MIN]) / (f64::MAX / 3.0) - 1.0).abs() < 1e-15);
        assert!(!mean(&[f64::INFINITY, 1.0]).is_finite() && mean(&[f64::NAN, 1e308]).is_nan());
    }
}
