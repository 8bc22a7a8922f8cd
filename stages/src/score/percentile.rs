//! Percentiles within a group, by 4,096 bins between its minimum and its maximum. Counts are integers, so a percentile is
//! the same for any order and partition of the samples.

use std::fmt;
use std::fmt::Write;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const BINS: usize = 4096;

const MAP_WORDS: usize = BINS / 64;

/// Words with the number of non-empty bins before each word of the bitmap, four to a word.
const RANK_WORDS: usize = MAP_WORDS / 4;

/// Histogram of a group under construction.
#[derive(Clone, Debug)]
pub struct HistogramBuilder {
    lowest: f64,
    highest: f64,
    /// Counts by bin; empty if all values are equal.
    counts: Vec<u64>,
}

impl HistogramBuilder {
    /// Creates an empty histogram for values between two finite bounds; if these are equal, all percentiles are ½.
    pub fn between(lowest: f64, highest: f64) -> Self {
        let counts = if lowest < highest { vec![0; BINS] } else { Vec::new() };
        Self { lowest, highest, counts }
    }

    pub fn add(&mut self, value: f64) {
        if let Some(count) = self.counts.get_mut(bin(self.lowest, self.highest, value)) {
            *count += 1;
        }
    }

    pub fn finish(&self) -> Histogram {
        let mut words = Vec::new();
        if !self.counts.is_empty() {
            let held = |counts: &[u64]| {
                let bits = (0..).zip(counts).filter(|(_, count)| **count > 0);
                bits.fold(0_u64, |map, (bit, _)| map | 1 << bit)
            };
            words.extend(self.counts.chunks(64).map(held));
            let ranks: Vec<u64> = words
                .iter()
                .scan(0, |before, map| {
                    let rank = *before;
                    *before += u64::from(map.count_ones());
                    Some(rank)
                })
                .collect();
            let packed = |ranks: &[u64]| ranks.iter().rev().fold(0, |word, rank| word << 16 | rank);
            words.extend(ranks.chunks(4).map(packed));
            let held = self.counts.iter().filter(|count| **count > 0);
            words.extend(held.scan(0, |sum, count| {
                *sum += count;
                Some(*sum)
            }));
        }
        Histogram::over(self.lowest, self.highest, Arc::new(words))
    }
}

/// Words of a histogram: in memory, or in a mapped file.
pub type Words = Arc<dyn AsRef<[u64]> + Send + Sync>;

/// Histogram of a group, which gives the percentile of any value. Memory: one bit per empty bin, 8 bytes per other
/// bin. Clones share the words.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "SerializedHistogram", into = "SerializedHistogram")]
#[schemars(description = "Number of values of a group in each bin.")]
pub struct Histogram {
    lowest: f64,
    /// Maximum of the group.
    highest: f64,
    /// Bitmap of non-empty bins; number of these before every 64 bins; for each non-empty bin its count and the count
    /// of all bins before it. Empty if all values are equal.
    words: Words,
}

/// Number of values of a group in each bin.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SerializedHistogram {
    /// Minimum of the group.
    lowest: f64,
    /// Maximum of the group.
    highest: f64,
    /// `bin:values` of every non-empty bin, ascending, separated by spaces. Of 4,096 bins between minimum and
    /// maximum; empty if both are equal.
    bins: String,
}

impl Histogram {
    /// Creates a histogram over existing words. `lowest` and `highest`: from [`Histogram::range`].
    pub fn over(lowest: f64, highest: f64, words: Words) -> Self {
        Self { lowest, highest, words }
    }

    /// Returns minimum and maximum of the group.
    pub fn range(&self) -> (f64, f64) {
        (self.lowest, self.highest)
    }

    /// Returns the number of values; `None` if all are equal, since equal values are not counted.
    pub fn values(&self) -> Option<u64> {
        self.words().last().copied()
    }

    pub fn words(&self) -> &[u64] {
        (*self.words).as_ref()
    }

    /// Returns (values in lower bins + half of those in the same bin) ÷ values: 0 below the minimum of the group, 1
    /// above the maximum. ½ for every value if all values of the group are equal: they carry no information.
    pub fn percentile(&self, value: f64) -> f64 {
        let words = self.words();
        if words.is_empty() {
            0.5
        } else if value < self.lowest {
            0.0
        } else if value > self.highest {
            1.0
        } else {
            let (below, own) = count(words, bin(self.lowest, self.highest, value));
            let total = words[words.len() - 1];
            (below as f64 + own as f64 / 2.0) / total as f64
        }
    }

    fn bins(&self) -> impl Iterator<Item = (usize, u64)> {
        let words = self.words();
        let all = if words.is_empty() { 0 } else { BINS };
        (0..all).map(|bin| (bin, count(words, bin).1)).filter(|(_, values)| *values > 0)
    }
}

/// Returns the count of all bins before this one, and of this one.
fn count(words: &[u64], bin: usize) -> (u64, u64) {
    let (head, up_to) = words.split_at(MAP_WORDS + RANK_WORDS);
    let (map, bit) = (head[bin / 64], 1_u64 << (bin % 64));
    let rank = head[MAP_WORDS + bin / 64 / 4] >> (bin / 64 % 4 * 16) & 0xffff;
    let before = rank as usize + (map & (bit - 1)).count_ones() as usize;
    let below = before.checked_sub(1).map_or(0, |last| up_to[last]);
    (below, if map & bit == 0 { 0 } else { up_to[before] - below })
}

/// Returns `min(4095, ⌊(value - lowest) / (highest - lowest) · 4096⌋)`, in this order: divide, then multiply.
fn bin(lowest: f64, highest: f64, value: f64) -> usize {
    ((share_of_range(lowest, highest, value) * BINS as f64) as usize).min(BINS - 1)
}

/// Returns `(value - lowest) / (highest - lowest)`, also for ranges beyond the largest float.
pub fn share_of_range(lowest: f64, highest: f64, value: f64) -> f64 {
    let range = highest - lowest;
    if range.is_finite() {
        (value - lowest) / range
    } else {
        (value / 2.0 - lowest / 2.0) / (highest / 2.0 - lowest / 2.0)
    }
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.range() == other.range() && self.words() == other.words()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bins: Vec<_> = self.bins().collect();
        let mut shown = formatter.debug_struct("Histogram");
        shown.field("range", &self.range()).field("bins", &bins).finish()
    }
}

impl From<Histogram> for SerializedHistogram {
    fn from(histogram: Histogram) -> Self {
        let mut bins = String::new();
        for (bin, values) in histogram.bins() {
            let space = if bins.is_empty() { "" } else { " " };
            write!(bins, "{space}{bin}:{values}").expect("writing to a string never fails");
        }
        Self { lowest: histogram.lowest, highest: histogram.highest, bins }
    }
}

impl TryFrom<SerializedHistogram> for Histogram {
    type Error = String;

    fn try_from(written: SerializedHistogram) -> Result<Self, String> {
        let SerializedHistogram { lowest, highest, bins } = written;
        if !(lowest.is_finite() && highest.is_finite() && lowest <= highest) {
            return Err(format!("a histogram from {lowest} to {highest} has no bins"));
        }
        if bins.is_empty() && lowest < highest {
            return Err(format!("the histogram from {lowest} to {highest} has no values"));
        }
        let mut counting = HistogramBuilder::between(lowest, highest);
        let (mut total, mut min) = (0_u64, 0);
        for text in bins.split(' ').filter(|_| !bins.is_empty()) {
            let wrong = || format!("expected `bin:values`, got `{text}`");
            let (bin, values) = text.split_once(':').ok_or_else(wrong)?;
            let bin: usize = bin.parse().map_err(|_| wrong())?;
            let values: u64 = values.parse().map_err(|_| wrong())?;
            if bin < min {
                return Err(format!("bin {bin} is out of order or repeated"));
            }
            min = bin + 1;
            let slot = counting.counts.get_mut(bin);
            let slot = slot.ok_or_else(|| format!("the histogram has no bin {bin}"))?;
            let sum = total.checked_add(values).filter(|_| values > 0);
            total = sum.ok_or_else(|| format!("bin {bin} cannot hold {values} values"))?;
            *slot = values;
        }
        Ok(counting.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(values: &[f64]) -> Histogram {
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut counting = HistogramBuilder::between(lowest, highest);
        for value in values {
            counting.add(*value);
        }
        counting.finish()
    }

    fn assert_close(got: f64, expected: f64) {
        assert_eq!(got.to_bits(), expected.to_bits(), "{got} {expected}");
    }

    #[test]
    fn percentiles_count_lower_bins_and_half_of_the_same_bin() {
        let group = histogram(&[0.0, 1.0, 1.0, 2.0, 4.0]);
        assert_close(group.percentile(0.0), 0.1);
        assert_close(group.percentile(1.0), 0.4);
        assert_close(group.percentile(2.0), 0.7);
        assert_close(group.percentile(4.0), 0.9);
        assert_close(group.percentile(3.0), 0.8);
        assert_close(group.percentile(-0.1), 0.0);
        assert_close(group.percentile(4.1), 1.0);
    }

    #[test]
    fn values_in_the_same_bin_have_the_same_percentile() {
        // Bins have width 1.
        let group = histogram(&[0.0, 7.0, 7.9, 8.0, 4096.0]);
        assert_close(group.percentile(7.0), 2.0 / 5.0);
        assert_close(group.percentile(7.999), 2.0 / 5.0);
        assert_close(group.percentile(8.0), 3.5 / 5.0);
        assert_eq!(bin(0.0, 4096.0, 4096.0), 4095, "the largest value is in the last bin");
    }

    #[test]
    fn equal_values_carry_no_information() {
        let group = histogram(&[3.0; 5]);
        for value in [3.0, -7.0, 1e300] {
            assert_close(group.percentile(value), 0.5);
        }
    }

    #[test]
    fn a_spread_beyond_the_largest_number_still_has_bins() {
        let group = histogram(&[f64::MIN, 0.0, f64::MAX]);
        assert_close(group.percentile(f64::MIN), 0.5 / 3.0);
        assert_close(group.percentile(0.0), 1.5 / 3.0);
        assert_close(group.percentile(f64::MAX), 2.5 / 3.0);
    }

    #[test]
    fn a_damaged_histogram_is_refused() {
        let read = |lowest: f64, highest: f64, bins: &str| {
            let text = serde_json::json!({ "lowest": lowest, "highest": highest, "bins": bins });
            serde_json::from_value::<Histogram>(text)
        };
        assert!(read(0.0, 1.0, "0:3 4095:1").is_ok());
        assert!(read(2.0, 2.0, "").is_ok());
        for bins in [
            "4096:1",
            "7:0",
            "7:1 7:1",
            "1:18446744073709551615 2:1",
            "",
            "7",
            "7:x",
            "x:1",
            "5:1 3:1",
            "0:256 ",
            " 0:1",
            "0:1  1:1",
        ] {
            assert!(read(0.0, 1.0, bins).is_err(), "{bins}");
        }
        assert!(read(2.0, 1.0, "").is_err());
        assert!(read(2.0, 2.0, "0:1").is_err());
    }

    #[test]
    fn the_size_of_a_histogram_depends_on_its_non_empty_bins() {
        let one_in_seven: Vec<f64> = (0..=4095_i32).step_by(7).map(f64::from).collect();
        let group = histogram(&one_in_seven);
        assert_eq!(group.words().len(), MAP_WORDS + RANK_WORDS + one_in_seven.len());
        let total = one_in_seven.len() as f64;
        for (below, value) in one_in_seven.iter().enumerate() {
            assert_close(group.percentile(*value), (below as f64 + 0.5) / total);
        }
        let copy = Histogram::over(0.0, one_in_seven[585], Arc::new(group.words().to_vec()));
        assert_eq!(copy, group);
    }

    proptest! {
        #[test]
        fn percentiles_increase_from_0_to_1_and_average_a_half(values in prop::collection::vec(-1e3_f64..1e3, 2..300)) {
            let group = histogram(&values);
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            let percentiles: Vec<f64> = sorted.iter().map(|value| group.percentile(*value)).collect();
            prop_assert!(percentiles.windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert!(percentiles.iter().all(|percentile| (0.0..=1.0).contains(percentile)));
            prop_assert!((percentiles.iter().sum::<f64>() / percentiles.len() as f64 - 0.5).abs() < 1e-9);
        }

        #[test]
        fn the_order_of_the_samples_changes_nothing(values in prop::collection::vec(-1e3_f64..1e3, 2..100)) {
            let whole = histogram(&values);
            let backwards: Vec<f64> = values.iter().rev().copied().collect();
            prop_assert_eq!(&histogram(&backwards), &whole);
            let text = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), whole);
        }

        #[test]
        fn percentiles_match_counting(
            values in prop::collection::vec(0_u32..3000, 2..300), other in -1.0_f64..3001.0,
        ) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let group = histogram(&values);
            let (lowest, highest) = group.range();
            prop_assume!(lowest < highest && (lowest..=highest).contains(&other));
            let bin_of = |value: f64| bin(lowest, highest, value);
            let below = values.iter().filter(|value| bin_of(**value) < bin_of(other)).count();
            let same = values.iter().filter(|value| bin_of(**value) == bin_of(other)).count();
            let expected = (below as f64 + same as f64 / 2.0) / values.len() as f64;
            prop_assert_eq!(group.percentile(other).to_bits(), expected.to_bits());
        }
    }
}
