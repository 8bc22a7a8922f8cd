//! Histograms with bins of equal width for values of unknown range.
//!
//! The width is the smallest power of two for which all values fit into the maximum number of bins. It depends only on
//! the values, not on their order or their distribution over threads. Memory: the bins.

use serde::Serialize;

pub(super) const MAX_BINS: i64 = 64;

/// Counts by bin and by kind. Bin `i` holds the values from `i · 2^exponent` to `(i + 1) · 2^exponent`. It is stored at its number
/// modulo the maximum number of bins, so that no two bins collide.
#[derive(Clone, Debug)]
pub(super) struct BinSums<const KINDS: usize> {
    exponent: i32,
    /// Lowest and highest bin; `None` before the first value.
    range: Option<(i64, i64)>,
    max_bins: i64,
    /// Empty before the first value.
    sums: Vec<[u64; KINDS]>,
}

/// Returns the exponent of the largest power of two that is not above the magnitude of a number other than 0.
fn exponent(value: f64) -> i32 {
    // For subnormal numbers any exponent below −1000 works.
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

impl<const KINDS: usize> BinSums<KINDS> {
    pub(super) fn new(max_bins: i64) -> Self {
        Self { exponent: -1000, range: None, max_bins, sums: Vec::new() }
    }

    fn slot(&self, bin: i64) -> usize {
        bin.rem_euclid(self.max_bins) as usize
    }

    /// Adds to the bin of a value if it is finite.
    pub(super) fn add(&mut self, value: f64, more: [u64; KINDS]) {
        if !value.is_finite() {
            return;
        }
        // Values have at most 53 significant bits, so the bin number is an integer without rounding.
        let own = if value == 0.0 { i32::MIN } else { exponent(value) - 52 };
        self.widen_to(own);
        let scaled = (value * 2.0_f64.powi(-self.exponent)).floor();
        // Negative values that round to 0 belong to the bin below 0.
        let bin = if value < 0.0 && scaled == 0.0 { -1 } else { scaled as i64 };
        self.add_to_bin(bin, self.exponent, more);
    }

    pub(super) fn append(&mut self, other: &Self) {
        if other.range.is_some() {
            self.widen_to(other.exponent);
        }
        other.bins().for_each(|(bin, more)| self.add_to_bin(bin, other.exponent, more));
    }

    /// Adds to a bin of a scale that is not wider than this one.
    fn add_to_bin(&mut self, bin: i64, exponent: i32, more: [u64; KINDS]) {
        let shifted = |bins: &Self| bin >> (bins.exponent - exponent).min(63);
        let bin = shifted(self);
        let (low, high) = self.range.unwrap_or((bin, bin));
        let (mut low, mut high, mut wide) = (low.min(bin), high.max(bin), self.exponent);
        while high - low >= self.max_bins {
            (low, high, wide) = (low >> 1, high >> 1, wide + 1);
        }
        self.widen_to(wide);
        self.sums.resize(self.max_bins as usize, [0; KINDS]);
        self.range = Some((low, high));
        let slot = self.slot(shifted(self));
        self.sums[slot].iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }

    /// Moves the sums to bins of at least this width.
    fn widen_to(&mut self, exponent: i32) {
        if exponent <= self.exponent {
            return;
        }
        let mut wider = Self { exponent, ..Self::new(self.max_bins) };
        self.bins().for_each(|(bin, sums)| wider.add_to_bin(bin, self.exponent, sums));
        *self = wider;
    }

    fn width(&self) -> f64 {
        2.0_f64.powi(self.exponent)
    }

    /// Returns the sums of the bins from the highest to the lowest, including empty ones, each with its lower bound.
    pub(super) fn descending(&self) -> impl Iterator<Item = (f64, [u64; KINDS])> {
        self.bins().rev().map(|(bin, sums)| (bin as f64 * self.width(), sums))
    }

    /// Returns the bins from the lowest to the highest, including empty ones.
    fn bins(&self) -> impl DoubleEndedIterator<Item = (i64, [u64; KINDS])> {
        let range = self.range.map(|(low, high)| low..=high);
        range.into_iter().flatten().map(|bin| (bin, self.sums[self.slot(bin)]))
    }

    pub(super) fn histogram(&self) -> Option<ReportHistogram> {
        let (low, _) = self.range?;
        Some(ReportHistogram {
            from: low as f64 * self.width(),
            width: self.width(),
            counts: self.bins().map(|(_, counts)| counts.to_vec()).collect(),
        })
    }
}

/// A histogram, as serialized in `report.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ReportHistogram {
    /// Lower bound of the first bin.
    pub(crate) from: f64,
    pub(crate) width: f64,
    /// Counts by bin and kind, in the order of `kinds` of the report.
    pub(crate) counts: Vec<Vec<u64>>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bins(values: &[f64]) -> BinSums<1> {
        let mut bins = BinSums::new(MAX_BINS);
        for value in values {
            bins.add(*value, [1]);
        }
        bins
    }

    proptest! {
        #[test]
        fn histogram_is_independent_of_order_and_split(
            values in prop::collection::vec(
                prop_oneof![-1.0..1.0, -1e6..1e6, any::<f64>(), Just(0.0), Just(f64::MIN_POSITIVE / 4.0)], 0..60),
            cut in 0_usize..60,
        ) {
            let expected = bins(&values).histogram();
            let (one, other) = values.split_at(cut.min(values.len()));
            let mut joined = bins(one);
            joined.append(&bins(other));
            prop_assert_eq!(&joined.histogram(), &expected);
            let backwards: Vec<f64> = values.iter().rev().copied().collect();
            prop_assert_eq!(&bins(&backwards).histogram(), &expected);
            let Some(histogram) = expected else { return Ok(()) };
            let finite: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
            prop_assert_eq!(histogram.counts.iter().map(|kinds| kinds[0]).sum::<u64>(), finite.len() as u64);
            prop_assert!(histogram.counts.len() as i64 <= MAX_BINS);
            for (bin, kinds) in histogram.counts.iter().enumerate() {
                let from = histogram.from + bin as f64 * histogram.width;
                let inside = finite.iter().filter(|value| (from..from + histogram.width).contains(*value));
                // Near the largest finite number the upper bound of a bin overflows.
                if (from + histogram.width).is_finite() && from.abs() < 1e300 {
                    prop_assert_eq!(inside.count() as u64, kinds[0]);
                }
            }
        }
    }

    #[test]
    fn equal_values_are_in_one_bin() {
        let histogram = bins(&[0.3, 0.3, f64::NAN]).histogram().unwrap();
        assert_eq!(histogram.counts, [[2]]);
        assert!(histogram.from <= 0.3 && bins(&[]).histogram().is_none());
    }
}
