//! The state that all blocks of a window share.

use std::ops::Range;

use crate::kernel::Kernel;
use crate::masks::Segments;
use crate::panels::ElementType;
use crate::statistics::{AttentionShape, LogitRules, QueryKeySource, RowSample};

/// Rows of a part: their sums are added up before those of different parts are, in order, so it affects bits. A multiple of every
/// strip's height.
pub(crate) const PART_ROWS: usize = 96;
/// Minimum rows of a block, of all query heads of its key head: each key that is fetched from memory serves them all.
const MIN_BLOCK_ROWS: usize = 384;
/// Minimum blocks of a head, which takes precedence: a short window's keys stay in a cache anyway, and threads share it evenly.
const MIN_BLOCKS: usize = 32;
/// Returns the number of rows of each query head in a block, whole parts, if `rows` rows are measured.
pub(crate) fn block_rows(shape: &AttentionShape, rows: usize) -> usize {
    let parts = MIN_BLOCK_ROWS.div_ceil(PART_ROWS * shape.group());
    PART_ROWS * parts.min(rows / (MIN_BLOCKS * PART_ROWS)).max(1)
}

/// Maximum query heads that share a strip. Rows of one position see the same keys, and their segments end at the same keys, so a
/// strip of fewer positions has fewer keys that need masks.
pub(crate) const MAX_STRIP_HEADS: usize = 4;

/// Returns the largest set of heads of a group, from `first` on, that may share a strip; empty after the last head.
pub(crate) fn strip_heads(first: usize, group: usize) -> Range<usize> {
    let max = MAX_STRIP_HEADS.min(group - first);
    first..first + max.checked_ilog2().map_or(0, |power| 1 << power)
}

/// Returns all heads of a group, in sets that share strips.
pub(crate) fn sets_of_heads(group: usize) -> impl Iterator<Item = Range<usize>> {
    let set = move |first: usize| Some(strip_heads(first, group)).filter(|set| !set.is_empty());
    std::iter::successors(set(0), move |last| set(last.end))
}

/// A window, its rules and its source.
pub(crate) struct WindowInput<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) shape: &'a AttentionShape,
    pub(crate) rules: &'a LogitRules,
    pub(crate) segments: Segments,
    pub(crate) source: &'a dyn QueryKeySource,
    pub(crate) bins: usize,
    /// Measured rows; `None` for all rows.
    pub(crate) sample: Option<&'a RowSample>,
}

impl WindowInput<'_> {
    pub(crate) fn rows(&self) -> usize {
        self.sample.map_or(self.shape.tokens, |sample| sample.positions.len())
    }

    /// Returns the number of rows of each query head in a block.
    pub(crate) fn block_rows(&self) -> usize {
        block_rows(self.shape, self.rows())
    }

    /// Returns the position of a measured row in the window.
    #[inline(always)]
    pub(crate) fn position(&self, row: usize) -> usize {
        self.sample.map_or(row, |sample| sample.positions[row])
    }

    /// Returns the number of rows of the window that a measured row stands for.
    pub(crate) fn weight(&self, row: usize) -> f64 {
        self.sample.map_or(1.0, |sample| sample.weights[row])
    }

    /// Gathers the queries of measured rows of a range of heads: `[rows, heads, head_dim]`. Rows up to `end` will be requested
    /// next.
    pub(crate) fn gather(
        &self,
        heads: Range<usize>,
        rows: Range<usize>,
        end: usize,
        out: &mut [f32],
    ) {
        let Some(sample) = self.sample else {
            return self.source.queries_of_heads(heads, rows, end, out);
        };
        let of_row = heads.len() * self.shape.head_dim;
        for (position, out) in sample.positions[rows].iter().zip(out.chunks_exact_mut(of_row)) {
            self.source.queries_of_heads(heads.clone(), *position..position + 1, 0, out);
        }
    }

    /// Factors of queries and of keys that make their products logits in units of log2 or, with a softcap, the argument of its
    /// tanh. Keys are scaled, because there are fewer of them; for bf16 queries are, so that keys of a bf16 table without a
    /// rotation keep their values.
    pub(crate) fn scales(&self) -> (f64, f64) {
        let unit = match self.rules.softcap {
            Some(cap) => 1.0 / f64::from(cap),
            None => std::f64::consts::LOG2_E,
        };
        let scale = unit * f64::from(self.rules.scale);
        match self.kernel.element_type() {
            ElementType::Bf16 => (scale, 1.0),
            ElementType::F32 | ElementType::Int16 => (1.0, scale),
        }
    }
}
