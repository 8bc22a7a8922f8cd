//! Counts recurrence in a window: whole numbers, from which every share is one division.

use super::bits::{self, WORD};
use super::scan::RecurrenceScan;
use super::window_counts::WindowCounts;
use crate::simd_op::{SimdOp, run};
#[cfg(test)]
use crate::transpose::FourRows;
use crate::transpose::Transpose;

/// Number of chunks of a window between which pairs are counted.
const CHUNKS: u64 = 32;
/// Number of leading positions in a run of matches at one distance that `far_first4` counts.
const FIRST_OF_RUN: usize = 4;

/// Counts over the second half of a window, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecurrenceCounts {
    /// Tokens of the window, S.
    pub tokens: u64,
    /// Tokens of the second half, `⌊S/2⌋`, which are counted; the others are context.
    pub scored: u64,
    /// Minimum distance of a far recurrence: k.
    pub min_distance: u64,
    /// `⌈S/16⌉`: minimum distance at which a recurring 8-gram is a copy; recurrences below it are near.
    pub copy_distance: u64,
    /// Far and not copied.
    pub far: u64,
    /// Far, copied or not.
    pub far_with_copies: u64,
    /// Far, and among the first four tokens of a match.
    pub far_first4: u64,
    /// Part of a copied 8-gram.
    pub copied: u64,
    /// Near and not copied.
    pub near: u64,
    /// Tokens by distance: bin 0 does not recur, bin b is `[2^(b-1), 2^b)`. Sums to `scored`.
    pub bins: Vec<u64>,
    /// `bins` without copied tokens.
    pub bins_new: Vec<u64>,
    /// `bins` of the first four tokens of each match, and of tokens that do not recur.
    pub bins_first4: Vec<u64>,
    /// Distinct pairs of chunks (32 per window) that the tokens of `far` link.
    pub linked_pairs: u64,
    /// Pairs of chunks that a far recurrence could link.
    pub possible_pairs: u64,
}

impl RecurrenceCounts {
    /// Counts recurrence in a window of any length. Recurrences at `min_distance` or more are far.
    ///
    /// Cost: linear in the number of tokens. Reuses the memory of `scan`.
    pub fn new(ids: &[u32], min_distance: u64, scan: &mut RecurrenceScan) -> Self {
        let mut counts = Self::none(ids.len(), min_distance);
        scan.window(ids, counts.copy_distance as usize, counts.first());
        run(CountPass { counts: &mut counts, scan });
        counts
    }

    /// Like [`Self::new`], with counts over the whole window in addition.
    pub fn with_window(
        ids: &[u32],
        min_distance: u64,
        scan: &mut RecurrenceScan,
    ) -> (Self, WindowCounts) {
        let mut counts = Self::none(ids.len(), min_distance);
        scan.whole_window(ids, counts.copy_distance as usize);
        run(CountPass { counts: &mut counts, scan });
        (counts, WindowCounts::new(ids, scan))
    }

    /// Like [`Self::with_window`], without processor-specific instructions.
    #[cfg(test)]
    pub(super) fn with_window_portable(
        ids: &[u32],
        min_distance: u64,
        scan: &mut RecurrenceScan,
    ) -> (Self, WindowCounts) {
        let mut counts = Self::none(ids.len(), min_distance);
        scan.whole_window_portable(ids, counts.copy_distance as usize);
        CountPass { counts: &mut counts, scan }.run(FourRows);
        (counts, WindowCounts::new_portable(ids, scan))
    }

    /// Returns the counts of a window of `tokens` tokens before anything is counted.
    fn none(tokens: usize, min_distance: u64) -> Self {
        let tokens = tokens as u64;
        let mut counts = Self {
            tokens,
            scored: tokens / 2,
            min_distance,
            copy_distance: tokens.div_ceil(16),
            ..Self::default()
        };
        counts.possible_pairs = counts.possible_pairs();
        counts
    }

    /// Returns the first token that is counted.
    #[inline(always)]
    fn first(&self) -> usize {
        (self.tokens - self.scored) as usize
    }

    /// Returns `count / scored`; `None` if no token is scored.
    pub fn share(&self, count: u64) -> Option<f64> {
        (self.scored > 0).then(|| count as f64 / self.scored as f64)
    }

    /// Returns `linked_pairs / possible_pairs`; `None` if no two chunks are far apart.
    pub fn link_coverage(&self) -> Option<f64> {
        (self.possible_pairs > 0).then(|| self.linked_pairs as f64 / self.possible_pairs as f64)
    }

    #[inline(always)]
    fn count(&mut self, scan: &RecurrenceScan) {
        let first = self.first();
        // Recurring tokens by bin, then by whether they are copied and whether they are among the first of their run.
        let mut cells = [[0_u64; 4]; 33];
        let mut links = [0_u32; CHUNKS as usize];
        let mut copied_only = 0;
        let count = |bits: u64| u64::from(bits.count_ones());
        for (word, distances) in scan.distances_in_words().iter().enumerate().skip(first / WORD) {
            let scored = bits::mask_from(first, word);
            let (copied, recurring) =
                (scan.copied()[word] & scored, scan.recurring()[word] & scored);
            let before = word.checked_sub(1).map_or(0, |before| scan.repeating()[before]);
            let early = !bits::nth_of_run::<FIRST_OF_RUN>(before, scan.repeating()[word]);
            let far = recurring & bits::at_least(distances, self.min_distance as usize);
            let near = recurring & !bits::at_least(distances, self.copy_distance as usize);
            self.copied += count(copied);
            copied_only += count(copied & !recurring);
            self.far += count(far & !copied);
            self.far_with_copies += count(far);
            self.far_first4 += count(far & early);
            self.near += count(near & !copied);
            for bit in bits::ones(recurring) {
                let bin = u32::BITS - distances[bit].leading_zeros();
                let is = |bits: u64| usize::from(bits::is_set(bits, bit));
                cells[bin as usize][2 * is(copied) + is(early)] += 1;
            }
            for bit in bits::ones(far & !copied) {
                let token = word * WORD + bit;
                let earlier = self.chunk(token - distances[bit] as usize);
                links[self.chunk(token)] |= 1 << earlier;
            }
        }
        self.linked_pairs = links.iter().map(|earlier| u64::from(earlier.count_ones())).sum();
        let once = self.scored - cells.iter().flatten().sum::<u64>();
        let bins = |not_recurring: u64, count: fn(&[u64; 4]) -> u64| {
            let number = 1 + u64::BITS - self.tokens.saturating_sub(1).leading_zeros();
            let recurring = cells[1..number as usize].iter().map(count);
            std::iter::once(not_recurring).chain(recurring).collect()
        };
        self.bins = bins(once, |cell| cell.iter().sum());
        self.bins_new =
            bins(once - copied_only, |[new_later, new_first, ..]| new_later + new_first);
        self.bins_first4 = bins(once, |[_, new_first, _, copied_first]| new_first + copied_first);
    }

    #[inline(always)]
    fn chunk(&self, position: usize) -> usize {
        (CHUNKS * position as u64 / self.tokens) as usize
    }

    /// Counts pairs of chunks in which the later chunk's last position is scored and far from the earlier chunk's first
    /// position.
    fn possible_pairs(&self) -> u64 {
        let edge = |chunk: u64| (chunk * self.tokens).div_ceil(CHUNKS);
        let chunks =
            (0..CHUNKS).map(|chunk| edge(chunk)..edge(chunk + 1)).filter(|chunk| !chunk.is_empty());
        let scored = chunks.clone().filter(|later| 2 * (later.end - 1) >= self.tokens);
        let far = |later: std::ops::Range<u64>| {
            let reach = (later.end - 1).checked_sub(self.min_distance);
            chunks
                .clone()
                .filter(move |earlier| reach.is_some_and(|last| earlier.start <= last))
                .count() as u64
        };
        scored.map(far).sum()
    }
}

/// Pass that counts the results of a scan.
struct CountPass<'a> {
    counts: &'a mut RecurrenceCounts,
    scan: &'a RecurrenceScan,
}

impl SimdOp for CountPass<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self, _: impl Transpose) {
        self.counts.count(self.scan);
    }
}
