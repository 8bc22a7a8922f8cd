//! A window as the blocks of its rows see it.

use std::ops::Range;

use crate::kernel::{ElementType, Kernel};
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

/// The most query heads whose rows lie side by side in a strip. Rows of one position see the same keys, and their segments end at
/// the same ones, so a strip of fewer positions has fewer keys that lanes disagree about.
pub(crate) const MOST_STRIP_HEADS: usize = 4;

/// The heads of a group, from `first` on, whose rows lie side by side in a strip: as many as there may be. Empty behind the last.
pub(crate) fn strip_heads(first: usize, group: usize) -> Range<usize> {
    let most = MOST_STRIP_HEADS.min(group - first);
    first..first + most.checked_ilog2().map_or(0, |power| 1 << power)
}

/// All of a group's heads, those together whose rows lie side by side in a strip.
pub(crate) fn sets_of_heads(group: usize) -> impl Iterator<Item = Range<usize>> {
    let set = move |first: usize| Some(strip_heads(first, group)).filter(|set| !set.is_empty());
    std::iter::successors(set(0), move |last| set(last.end))
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

    /// Gathers the queries of measured rows of some heads: `[rows, heads, head_dim]`. Those behind them, up to `end`,
    /// will be asked for next.
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

    /// What queries and keys are multiplied with, so that their products are logits in units of log2 or, with a softcap, the argument
    /// of its tanh. Keys bear it, since there are fewest of them; but in bf16 queries: keys of a table of bf16 that nothing
    /// turns then stay what they are.
    pub(crate) fn scales(&self) -> (f64, f64) {
        let unit = match self.rules.softcap {
            Some(cap) => 1.0 / f64::from(cap),
            None => std::f64::consts::LOG2_E,
        };
        let scale = unit * f64::from(self.rules.scale);
        match self.kernel.element_type() {
            ElementType::Bf16 => (scale, 1.0),
            ElementType::F32 | ElementType::Bf16x3 | ElementType::Int16 => (1.0, scale),
        }
    }
}
