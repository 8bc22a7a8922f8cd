//! Percentile ranks of scores in their group, by 65,536 bins between the lowest and the highest, in a file.

use std::ops::Range;

use longsift_stages::score::percentile::share_of_range;

use super::mapped_words::{MappedWords, WordsWriter};
use crate::base::error::Result;

const BINS: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreRange {
    lowest: f64,
    highest: f64,
}

impl Default for ScoreRange {
    fn default() -> Self {
        Self { lowest: f64::INFINITY, highest: f64::NEG_INFINITY }
    }
}

impl ScoreRange {
    /// Adds a score; ignores `NaN`.
    pub(super) fn add(&mut self, score: f64) {
        self.lowest = self.lowest.min(score);
        self.highest = self.highest.max(score);
    }

    fn bin(self, score: f64) -> u64 {
        let share = share_of_range(self.lowest, self.highest, score);
        // Without spread, all scores are in one bin.
        ((share * BINS as f64) as u64).min(BINS as u64 - 1)
    }
}

#[derive(Debug)]
pub(super) struct ScoreBins {
    range: ScoreRange,
    /// Non-empty bins with their counts, descending.
    counts: Vec<(u64, u64)>,
}

impl ScoreBins {
    pub(super) fn between(range: ScoreRange) -> Self {
        Self { range, counts: Vec::new() }
    }

    pub(super) fn add(&mut self, score: f64) {
        let bin = self.range.bin(score);
        match self.counts.last_mut() {
            Some((last, count)) if *last == bin => *count += 1,
            _ => self.counts.push((bin, 1)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct GroupPercentiles {
    range: ScoreRange,
    /// Non-empty bins in the file, ascending: number of the bin, and bits of the percentile rank of its scores.
    bins: Range<usize>,
}

impl GroupPercentiles {
    /// Writes the percentiles of a group whose scores are all counted.
    pub(super) fn write(bins: &ScoreBins, file: &WordsWriter) -> Result<Self> {
        let total = bins.counts.iter().map(|(_, own)| own).sum::<u64>() as f64;
        let mut below = 0_u64;
        let mut words = Vec::with_capacity(2 * bins.counts.len());
        for (bin, own) in bins.counts.iter().rev() {
            let percentile = (below as f64 + *own as f64 / 2.0) / total;
            words.extend([*bin, percentile.to_bits()]);
            below += own;
        }
        Ok(Self { range: bins.range, bins: file.append(&words)? })
    }

    /// Returns (scores in lower bins + half of those in the same bin) ÷ scores of the group; `None` for `NaN`.
    pub(super) fn percentile(&self, file: &MappedWords, score: f64) -> Option<f64> {
        let wanted = (!score.is_nan()).then(|| self.range.bin(score))?;
        let bins = file.get(&self.bins).as_chunks::<2>().0;
        let found = bins.binary_search_by_key(&wanted, |[bin, _]| *bin).ok()?;
        Some(f64::from_bits(bins[found][1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_directory::layout::RunDirectory;

    fn percentiles(groups: &[&[f64]]) -> Vec<Vec<Option<f64>>> {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let all = WordsWriter::new(&directory).unwrap();
        let add = |scores: &&[f64]| {
            let mut range = ScoreRange::default();
            scores.iter().for_each(|score| range.add(*score));
            let mut bins = ScoreBins::between(range);
            let mut descending: Vec<f64> =
                scores.iter().copied().filter(|score| !score.is_nan()).collect();
            descending.sort_by(|one, other| other.total_cmp(one));
            for score in descending {
                bins.add(score);
            }
            GroupPercentiles::write(&bins, &all).unwrap()
        };
        let locations: Vec<GroupPercentiles> = groups.iter().map(add).collect();
        let all = all.finish().unwrap();
        let of = |(scores, location): (&&[f64], &GroupPercentiles)| {
            scores.iter().map(|score| location.percentile(&all, *score)).collect()
        };
        groups.iter().zip(&locations).map(of).collect()
    }

    #[test]
    fn a_percentile_is_the_share_below_and_half_of_the_equals() {
        let found =
            percentiles(&[&[3.0, -1.0, f64::NAN, 3.0, 7.0], &[0.5, 0.5], &[f64::NAN], &[2.0]]);
        assert_eq!(found[0], [Some(0.5), Some(0.125), None, Some(0.5), Some(0.875)]);
        assert_eq!(found[1], [Some(0.5), Some(0.5)]);
        assert_eq!(found[2], [None]);
        assert_eq!(found[3], [Some(0.5)]);
    }

    #[test]
    fn many_scores_are_ranked_to_a_bin() {
        let scores: Vec<f64> = (0..100_000).map(|i| f64::from(i * 7919 % 100_000)).collect();
        let found = percentiles(&[&[1.0], &scores]);
        for (score, percentile) in scores.iter().zip(&found[1]) {
            let exact = (score + 0.5) / 100_000.0;
            assert!((percentile.unwrap() - exact).abs() < 1.0 / BINS as f64, "{score}");
        }
    }
}
