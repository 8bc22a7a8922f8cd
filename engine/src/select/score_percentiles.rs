//! Percentile ranks of scores in their group, by 65,536 bins between the lowest and the highest: counted in memory group by
//! group and kept in a file, so that memory hardly depends on the number of groups.

use std::sync::{Arc, Mutex, PoisonError};

use longsift_stages::score::percentile::share_of_range;

use crate::base::error::Result;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

/// Bins per group.
const BINS: usize = 1 << 16;

/// Bytes per bin in the file: its number, and the percentile rank of its scores.
const BYTES: usize = size_of::<u32>() + size_of::<f64>();

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

    fn bin(self, score: f64) -> u32 {
        let share = share_of_range(self.lowest, self.highest, score);
        // Without spread, all scores are in one bin.
        ((share * BINS as f64) as u32).min(BINS as u32 - 1)
    }
}

/// Number of scores of a group in each bin.
#[derive(Debug)]
pub(super) struct ScoreBins {
    range: ScoreRange,
    /// Non-empty bins with their counts, descending.
    counts: Vec<(u32, u64)>,
}

impl ScoreBins {
    /// Starts counting the scores of a group with this range.
    pub(super) fn between(range: ScoreRange) -> Self {
        Self { range, counts: Vec::new() }
    }

    /// Counts the next score of the group, in descending order.
    pub(super) fn add(&mut self, score: f64) {
        let bin = self.range.bin(score);
        match self.counts.last_mut() {
            Some((last, count)) if *last == bin => *count += 1,
            _ => self.counts.push((bin, 1)),
        }
    }
}

/// Bins per block, the unit of reads.
const BLOCK: usize = 128;

/// Percentiles of groups that are being collected, from several threads.
#[derive(Debug)]
pub(super) struct PercentilesOfGroups(Mutex<AnonymousFile>);

#[derive(Clone, Debug)]
pub(super) struct GroupPercentiles {
    range: ScoreRange,
    /// Offset of its first bin in the file.
    start: u64,
    bins: usize,
    /// First bin of each block, so that one read finds a percentile.
    blocks: Arc<[u16]>,
}

impl PercentilesOfGroups {
    pub(super) fn new(directory: &RunDirectory) -> Result<Self> {
        AnonymousFile::create(directory).map(|file| Self(Mutex::new(file)))
    }

    /// Adds the percentiles of a group whose scores are all counted; stores only bins that are not empty.
    pub(super) fn add(&self, bins: &ScoreBins) -> Result<GroupPercentiles> {
        let total = bins.counts.iter().map(|(_, own)| own).sum::<u64>() as f64;
        let mut below = 0_u64;
        let (mut bytes, mut blocks) = (Vec::new(), Vec::new());
        for (index, (bin, own)) in bins.counts.iter().rev().enumerate() {
            if index % BLOCK == 0 {
                blocks.push(*bin as u16);
            }
            let percentile = (below as f64 + *own as f64 / 2.0) / total;
            bytes.extend(bin.to_le_bytes());
            bytes.extend(percentile.to_le_bytes());
            below += own;
        }
        let start = self.0.lock().unwrap_or_else(PoisonError::into_inner).append(&bytes)?;
        let (range, bins, blocks) = (bins.range, bins.counts.len(), blocks.into());
        Ok(GroupPercentiles { range, start, bins, blocks })
    }

    pub(super) fn finish(self) -> Result<ScorePercentiles> {
        let mut file = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        file.flush()?;
        Ok(ScorePercentiles(file))
    }
}

#[derive(Debug)]
pub(super) struct ScorePercentiles(AnonymousFile);

impl ScorePercentiles {
    /// Computes (scores in lower bins + half of those in the same bin) ÷ scores of the group; `None` for `NaN`. Cost: one read
    /// of the file.
    pub(super) fn percentile(&self, group: &GroupPercentiles, score: f64) -> Result<Option<f64>> {
        if score.is_nan() {
            return Ok(None);
        }
        let wanted = group.range.bin(score);
        let block = group.blocks.partition_point(|bin| u32::from(*bin) <= wanted).checked_sub(1);
        let Some(first) = block.map(|block| block * BLOCK) else { return Ok(None) };
        let mut bytes = [0; BLOCK * BYTES];
        let bytes = &mut bytes[..(group.bins - first).min(BLOCK) * BYTES];
        self.0.read(bytes, group.start + (first * BYTES) as u64)?;
        let bins = bytes.as_chunks::<BYTES>().0;
        let bin_of = |entry: &[u8; BYTES]| {
            u32::from_le_bytes(*entry.first_chunk().expect("four bytes and eight"))
        };
        let found = bins.binary_search_by_key(&wanted, bin_of).ok();
        let percentile = |index: usize| bins[index].last_chunk().expect("four bytes and eight");
        Ok(found.map(|index| f64::from_le_bytes(*percentile(index))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentiles(groups: &[&[f64]]) -> Vec<Vec<Option<f64>>> {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let all = PercentilesOfGroups::new(&directory).unwrap();
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
            all.add(&bins).unwrap()
        };
        let locations: Vec<GroupPercentiles> = groups.iter().map(add).collect();
        let all = all.finish().unwrap();
        let of = |(scores, location): (&&[f64], &GroupPercentiles)| {
            scores.iter().map(|score| all.percentile(location, *score).unwrap()).collect()
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
