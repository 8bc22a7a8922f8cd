//! A window as the blocks of its rows see it.

use std::ops::Range;

use crate::kernel::Kernel;
use crate::masks::Segments;
use crate::statistics::{AttentionShape, LogitRules, QueryKeySource, RowSample};

/// Rows whose sums are added up before those of different parts are, in their order: it decides about bits. A multiple of
/// every strip's height.
pub(crate) const PART_ROWS: usize = 96;
/// A block has at least so many rows, those of the query heads of its key head together: each key that is fetched from memory
/// serves them all.
const LEAST_BLOCK_ROWS: usize = 384;
/// But a head has at least so many blocks: a short window's keys stay in a cache anyway, and threads share it evenly.
const LEAST_BLOCKS: usize = 32;
/// Rows of each query head that a block has, whole parts, where `rows` rows are measured.
pub(crate) fn block_rows(shape: &AttentionShape, rows: usize) -> usize {
    let parts = LEAST_BLOCK_ROWS.div_ceil(PART_ROWS * shape.group());
    PART_ROWS * parts.min(rows / (LEAST_BLOCKS * PART_ROWS)).max(1)
}

/// What all blocks of a window have in common.
pub(crate) struct Window<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) shape: &'a AttentionShape,
    pub(crate) rules: &'a LogitRules,
    pub(crate) segments: Segments,
    pub(crate) source: &'a dyn QueryKeySource,
    pub(crate) bins: usize,
    /// The rows that are measured; all of them without it.
    pub(crate) sample: Option<&'a RowSample>,
}

impl Window<'_> {
    /// How many rows are measured.
    pub(crate) fn rows(&self) -> usize {
        self.sample.map_or(self.shape.tokens, |sample| sample.positions.len())
    }

    /// How many rows of each query head a block has.
    pub(crate) fn block_rows(&self) -> usize {
        block_rows(self.shape, self.rows())
    }

    /// The position in the window of a measured row.
    #[inline(always)]
    pub(crate) fn position(&self, row: usize) -> usize {
        self.sample.map_or(row, |sample| sample.positions[row])
    }

    /// How many rows of the window a measured row stands for.
    pub(crate) fn weight(&self, row: usize) -> f64 {
        self.sample.map_or(1.0, |sample| sample.weights[row])
    }

    /// Gathers the queries of measured rows of some heads: `[heads, rows, head_dim]`.
    pub(crate) fn gather(&self, heads: Range<usize>, rows: Range<usize>, out: &mut [f32]) {
        let Some(sample) = self.sample else {
            return self.source.queries_of_heads(heads, rows, out);
        };
        let positions = heads.flat_map(|head| {
            sample.positions[rows.clone()].iter().map(move |position| (head, *position))
        });
        for ((head, position), out) in positions.zip(out.chunks_exact_mut(self.shape.head_dim)) {
            self.source.queries(head, position..position + 1, out);
        }
    }
}
