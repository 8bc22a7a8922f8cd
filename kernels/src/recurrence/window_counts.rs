//! Counts over a whole window: periods, repeated passages, frequent ids and the spacing of rare ones. Whole numbers,
//! from which every share is one division.
//!
//! The first two come from a scan's trigram and 8-gram passes. Ids are counted in another pass, with an exact hash
//! table.

use super::scan::RecurrenceScan;
use crate::simd_op::{SimdOp, run};
#[cfg(test)]
use crate::transpose::FourRows;
use crate::transpose::Transpose;

/// An id is frequent if it occurs at least once per this many tokens.
const FREQUENT_TOKENS: u64 = 128;
/// Minimum pairs of `midrange_share`.
const MIN_PAIRS: u64 = 30;

/// Counts over a whole window, in tokens or in pairs of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// Tokens of the window, S.
    pub tokens: u64,
    /// Maximum number of trigrams that have the same distance, at least 2, to their last earlier occurrence.
    pub periodic: u64,
    /// Tokens in passages of at least 16 tokens in which all 8-grams occur earlier in the window.
    pub repeated: u64,
    /// Tokens whose id occurs at least `max(2, ⌊S/128⌋)` times.
    pub frequent: u64,
    /// Pairs of positions of the ids that occur 2 to 6 times.
    pub midrange_pairs: u64,
    /// Pairs at a distance g with `32·g ≥ S` and `8·g < S`.
    pub midrange_hits: u64,
}

impl WindowCounts {
    /// Returns `count / tokens`; `None` in an empty window.
    pub fn share(&self, count: u64) -> Option<f64> {
        (self.tokens > 0).then(|| count as f64 / self.tokens as f64)
    }

    /// Returns `midrange_hits / midrange_pairs`; `None` with fewer than 30 pairs.
    pub fn midrange_share(&self) -> Option<f64> {
        (self.midrange_pairs >= MIN_PAIRS)
            .then(|| self.midrange_hits as f64 / self.midrange_pairs as f64)
    }

    /// Completes the counts of a scan of the same window.
    pub(super) fn new(ids: &[u32], scan: &mut RecurrenceScan) -> Self {
        run(CountIdsPass { ids, scan })
    }

    /// Like [`Self::new`], without processor-specific instructions.
    #[cfg(test)]
    pub(super) fn new_portable(ids: &[u32], scan: &mut RecurrenceScan) -> Self {
        CountIdsPass { ids, scan }.run(FourRows)
    }
}

/// Pass that counts the ids of a scanned window.
struct CountIdsPass<'a> {
    ids: &'a [u32],
    scan: &'a mut RecurrenceScan,
}

impl SimdOp for CountIdsPass<'_> {
    type Result = WindowCounts;

    #[inline(always)]
    fn run(self, _: impl Transpose) -> WindowCounts {
        let Self { ids, scan } = self;
        let tokens = ids.len() as u64;
        let frequent = (tokens / FREQUENT_TOKENS).max(2) as usize;
        // The scan's slots and chains are no longer needed.
        let of_ids = scan.ids.count(ids, frequent, &mut scan.slots, &mut scan.chains);
        WindowCounts {
            tokens,
            periodic: scan.periods.max_count(),
            repeated: scan.repeated,
            frequent: of_ids.frequent,
            midrange_pairs: of_ids.pairs,
            midrange_hits: of_ids.hits,
        }
    }
}
