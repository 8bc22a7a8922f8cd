//! Percentiles inside a group, by 4,096 bins between its least and its greatest value.
//!
//! Whole numbers decide, so a percentile is the same for any order and partition of the samples, and takes the memory of
//! the bins whatever their number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bins of a group.
pub const BINS: usize = 4096;

/// How many values of a group lie in each bin. In a calibration only the bins that hold any are written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
#[schemars(with = "Written")]
pub struct Histogram {
    /// The least value of the group.
    lowest: f64,
    /// The greatest.
    highest: f64,
    /// By bin; empty where all values are equal.
    counts: Vec<u64>,
}

/// A histogram as it stands in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Written {
    /// The least value of the group.
    lowest: f64,
    /// The greatest.
    highest: f64,
    /// `[bin, values in it]`, the bins ascending; none where all values are equal.
    bins: Vec<(u16, u64)>,
}

/// The percentile of any value in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Percentiles {
    lowest: f64,
    highest: f64,
    /// Percentiles; empty where all values are equal.
    by_bin: Vec<f64>,
}

impl Histogram {
    /// No values yet, of a group that lies between these. Both are finite; equal ones make all percentiles ½.
    pub fn between(lowest: f64, highest: f64) -> Self {
        let counts = if lowest < highest { vec![0; BINS] } else { Vec::new() };
        Self { lowest, highest, counts }
    }

    /// Counts a value of the group.
    pub fn add(&mut self, value: f64) {
        if let Some(count) = self.counts.get_mut(bin(self.lowest, self.highest, value)) {
            *count += 1;
        }
    }

    /// Counts all values of another part of the same group, between the same values.
    pub fn append(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
    }

    /// The percentiles of the values counted so far.
    pub fn percentiles(&self) -> Percentiles {
        let total = self.counts.iter().sum::<u64>() as f64;
        let percentile = |below: &mut u64, own: &u64| {
            let rank = *below as f64 + *own as f64 / 2.0;
            *below += own;
            Some(rank / total)
        };
        let by_bin = self.counts.iter().scan(0, percentile).collect();
        Percentiles { lowest: self.lowest, highest: self.highest, by_bin }
    }
}

impl Percentiles {
    /// (values in lower bins + half of those in the own bin) ÷ values: 0 below the least value of the group, 1 above the
    /// greatest. ½ for every value where the group has no two different ones: they carry no information.
    pub fn of(&self, value: f64) -> f64 {
        if self.by_bin.is_empty() {
            0.5
        } else if value < self.lowest {
            0.0
        } else if value > self.highest {
            1.0
        } else {
            self.by_bin[bin(self.lowest, self.highest, value)]
        }
    }
}

/// `min(4095, ⌊(value - lowest) / (highest - lowest) · 4096⌋)` in this order: divide, then multiply.
fn bin(lowest: f64, highest: f64, value: f64) -> usize {
    let share = (value - lowest) / (highest - lowest);
    ((share * BINS as f64) as usize).min(BINS - 1)
}

impl From<Histogram> for Written {
    fn from(histogram: Histogram) -> Self {
        let Histogram { lowest, highest, counts } = histogram;
        let bins = (0..).zip(counts).filter(|(_, count)| *count > 0).collect();
        Self { lowest, highest, bins }
    }
}

impl TryFrom<Written> for Histogram {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { lowest, highest, bins } = written;
        if !(lowest.is_finite() && highest.is_finite() && lowest <= highest) {
            return Err(format!("a histogram from {lowest} to {highest} has no bins"));
        }
        let mut histogram = Self::between(lowest, highest);
        let mut values = 0_u64;
        for (index, count) in bins {
            let slot = histogram.counts.get_mut(usize::from(index));
            let slot = slot.ok_or_else(|| format!("the histogram has no bin {index}"))?;
            let total = values.checked_add(count).filter(|_| *slot == 0 && count > 0);
            values = total.ok_or_else(|| format!("bin {index} cannot hold {count} values"))?;
            *slot = count;
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(values: &[f64]) -> Histogram {
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut histogram = Histogram::between(lowest, highest);
        for value in values {
            histogram.add(*value);
        }
        histogram
    }

    fn is(got: f64, expected: f64) {
        assert_eq!(got.to_bits(), expected.to_bits(), "{got} {expected}");
    }

    #[test]
    fn a_percentile_counts_lower_bins_and_half_the_own() {
        let percentiles = histogram(&[0.0, 1.0, 1.0, 2.0, 4.0]).percentiles();
        is(percentiles.of(0.0), 0.1);
        is(percentiles.of(1.0), 0.4);
        is(percentiles.of(2.0), 0.7);
        is(percentiles.of(4.0), 0.9);
        is(percentiles.of(3.0), 0.8);
        is(percentiles.of(-0.1), 0.0);
        is(percentiles.of(4.1), 1.0);
    }

    #[test]
    fn values_of_one_bin_have_one_percentile() {
        // A bin is 1 wide.
        let percentiles = histogram(&[0.0, 7.0, 7.9, 8.0, 4096.0]).percentiles();
        is(percentiles.of(7.0), 2.0 / 5.0);
        is(percentiles.of(7.999), 2.0 / 5.0);
        is(percentiles.of(8.0), 3.5 / 5.0);
        assert_eq!(bin(0.0, 4096.0, 4096.0), 4095, "the greatest value is in the last bin");
    }

    #[test]
    fn equal_values_carry_no_information() {
        let percentiles = histogram(&[3.0; 5]).percentiles();
        for value in [3.0, -7.0, 1e300] {
            is(percentiles.of(value), 0.5);
        }
    }

    #[test]
    fn a_spread_beyond_the_largest_number_still_has_bins() {
        let percentiles = histogram(&[f64::MIN, 0.0, f64::MAX]).percentiles();
        for value in [f64::MIN, 0.0, f64::MAX] {
            assert!((0.0..=1.0).contains(&percentiles.of(value)));
        }
    }

    #[test]
    fn a_damaged_histogram_is_refused() {
        let read = |text: &str| serde_json::from_str::<Histogram>(text);
        assert!(read(r#"{"lowest": 0, "highest": 1, "bins": [[0, 3], [4095, 1]]}"#).is_ok());
        assert!(read(r#"{"lowest": 2, "highest": 2, "bins": []}"#).is_ok());
        for bins in
            ["[[4096, 1]]", "[[7, 0]]", "[[7, 1], [7, 1]]", "[[1, 18446744073709551615], [2, 1]]"]
        {
            assert!(
                read(&format!(r#"{{"lowest": 0, "highest": 1, "bins": {bins}}}"#)).is_err(),
                "{bins}"
            );
        }
        assert!(read(r#"{"lowest": 2, "highest": 1, "bins": []}"#).is_err());
        assert!(read(r#"{"lowest": 2, "highest": 2, "bins": [[0, 1]]}"#).is_err());
    }

    proptest! {
        #[test]
        fn percentiles_rise_from_0_to_1_and_average_a_half(values in prop::collection::vec(-1e3_f64..1e3, 2..300)) {
            let percentiles = histogram(&values).percentiles();
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            let of: Vec<f64> = sorted.iter().map(|value| percentiles.of(*value)).collect();
            prop_assert!(of.windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert!(of.iter().all(|percentile| (0.0..=1.0).contains(percentile)));
            prop_assert!((of.iter().sum::<f64>() / of.len() as f64 - 0.5).abs() < 1e-9);
        }

        #[test]
        fn the_order_and_the_partition_of_the_samples_change_nothing(
            values in prop::collection::vec(-1e3_f64..1e3, 2..100), cut in any::<prop::sample::Index>(),
        ) {
            let whole = histogram(&values);
            let mut parts = [whole.lowest, whole.highest].map(|_| Histogram::between(whole.lowest, whole.highest));
            for (index, value) in values.iter().enumerate().rev() {
                parts[usize::from(index < cut.index(values.len()))].add(*value);
            }
            let [mut one, other] = parts;
            one.append(&other);
            prop_assert_eq!(&one, &whole);
            let text = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), whole);
        }
    }
}
