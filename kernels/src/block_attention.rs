//! Attention between blocks of consecutive tokens: the share of a block's attention that goes to each block, without the S×S
//! matrix.
//!
//! The rows of a window are processed as for its statistics, except that a row's running sums are cut at the ends of the blocks
//! instead of at distances. So the cost is that of the statistics, and memory grows with the number of blocks.

use std::ops::Range;

use crate::block::segment_sums;
use crate::kernel::Kernel;
use crate::masks::{Segments, visible_keys};
use crate::statistics::{AttentionShape, LogitRules, QueryKeySource, RowSample};
use crate::stream::{heads_at_once, process_bytes, process_heads};
use crate::window::{PART_ROWS, WindowInput};

/// Maximum number of blocks of a window: a map then has a million cells.
pub const MAX_BLOCKS: usize = 1024;

/// Attention between the blocks of a window, summed over the query heads that were added.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockAttention {
    /// One past the last token of each block, ascending; the last is the window's end.
    ends: Vec<usize>,
    sample: Option<RowSample>,
    /// `[blocks, blocks]`: `Σ p` over the rows of the one block and the keys of the other, and over query heads.
    masses: Vec<f64>,
    query_heads: usize,
}

impl BlockAttention {
    /// Starts with blocks that end before the tokens `ends`. With a `sample`, only its rows are measured, and its weights turn
    /// the shares into estimates over all rows.
    ///
    /// # Panics
    /// Without a block, with more than [`MAX_BLOCKS`], or if a block has no token.
    pub fn new(ends: &[usize], sample: Option<RowSample>) -> Self {
        assert!(
            ends.first().is_some_and(|end| *end > 0)
                && ends.is_sorted_by(|a, b| a < b)
                && ends.len() <= MAX_BLOCKS,
            "expected the ends of 1 to {MAX_BLOCKS} blocks, each with a token, got {ends:?}"
        );
        let masses = vec![0.0; ends.len() * ends.len()];
        Self { ends: ends.to_vec(), sample, masses, query_heads: 0 }
    }

    /// Adds the query heads of a range of key heads. Heads that are added a few at a time, in order, have the same bits as all
    /// of them at once, on any number of threads.
    ///
    /// Work runs in the current rayon pool. Cost: that of [`attention_statistics`](crate::attention_statistics); memory: see
    /// [`BlockAttention::bytes`]. `NaN` or infinite products give `NaN` shares, never a plausible number.
    ///
    /// # Panics
    /// If the processor lacks `kernel`, the last block does not end with the window, or rules, heads or sample do not fit the
    /// shape.
    pub fn add_heads(
        &mut self,
        kernel: Kernel,
        shape: &AttentionShape,
        rules: &LogitRules,
        source: &dyn QueryKeySource,
        key_heads: Range<usize>,
    ) {
        kernel.assert_supported();
        shape.assert_valid();
        rules.assert_matches(shape);
        assert_eq!(self.ends.last(), Some(&shape.tokens), "the last block ends with the window");
        assert!(key_heads.end <= shape.key_heads, "key heads {key_heads:?} of {shape:?}");
        let Self { ends, sample, masses, query_heads } = self;
        if let Some(sample) = sample {
            sample.assert_matches(shape);
        }
        *query_heads += key_heads.len() * shape.group();
        let segments = Segments::ending_at(ends);
        let window = WindowInput {
            kernel,
            shape,
            rules,
            segments,
            source,
            bins: 0,
            sample: sample.as_ref(),
        };
        process_heads(
            &window,
            key_heads,
            |head, rows, keys, scratch| segment_sums(&window, head, rows, keys, ends, scratch),
            |_, _, done| {
                let sums = &mut masses[done.first * ends.len()..][..done.masses.len()];
                sums.iter_mut().zip(&done.masses).for_each(|(sum, mass)| *sum += mass);
            },
        );
    }

    /// Returns `[blocks, blocks]`: the mean attention of a row of one block to the keys of the other, averaged over the
    /// heads that were added. A row of shares sums to 1 minus the share of sinks. `None` for a block without a sampled
    /// row.
    pub fn shares(&self) -> Vec<Option<f64>> {
        self.divided(&self.masses, self.query_heads)
    }

    /// Returns the shares of uniform attention, which each row spreads evenly over its visible keys. Cost: `tokens ·
    /// blocks` operations.
    pub fn uniform_shares(&self, rules: &LogitRules) -> Vec<Option<f64>> {
        let blocks = self.ends.len();
        let tokens = self.ends.last().copied().unwrap_or(0);
        let mut masses = vec![0.0; blocks * blocks];
        for (position, weight) in self.measured() {
            let seen = visible_keys(rules, tokens, position);
            let seen = seen.start..seen.end.min(tokens);
            let even = weight / seen.len().max(1) as f64;
            let row = self.block_of(position) * blocks;
            for block in self.block_of(seen.start)..blocks {
                let keys = self.start(block).max(seen.start)..self.ends[block].min(seen.end);
                if keys.is_empty() {
                    break;
                }
                masses[row + block] += even * keys.len() as f64;
            }
        }
        self.divided(&masses, 1)
    }

    /// Divides sums over the rows of a block and over `heads` heads by their number.
    fn divided(&self, masses: &[f64], heads: usize) -> Vec<Option<f64>> {
        let rows = self.rows();
        let share = |(cell, mass): (usize, &f64)| {
            let rows = rows[cell / self.ends.len()];
            (rows > 0.0).then(|| mass / (rows * heads as f64))
        };
        masses.iter().enumerate().map(share).collect()
    }

    /// Returns the peak heap memory of [`BlockAttention::add_heads`] on `threads` threads, in bytes, including the sums
    /// but not the source.
    pub fn bytes(kernel: Kernel, shape: &AttentionShape, blocks: usize, threads: usize) -> u64 {
        let parts = shape.tokens.div_ceil(PART_ROWS);
        // Each part of the rows returns the segments that it touches; neighbours share one.
        let touched = (blocks + parts) * heads_at_once(shape);
        let sums = (touched + blocks) * blocks * size_of::<f64>();
        process_bytes(kernel, shape, blocks, threads) + sums as u64
    }

    /// Returns the number of rows of the window that the measured rows of each block stand for.
    fn rows(&self) -> Vec<f64> {
        let mut rows = vec![0.0; self.ends.len()];
        for (position, weight) in self.measured() {
            rows[self.block_of(position)] += weight;
        }
        rows
    }

    /// Returns the positions of the measured rows, and the number of rows that each stands for.
    fn measured(&self) -> Box<dyn Iterator<Item = (usize, f64)> + '_> {
        match &self.sample {
            Some(RowSample { positions, weights }) => {
                Box::new(positions.iter().copied().zip(weights.iter().copied()))
            }
            None => Box::new((0..self.ends.last().copied().unwrap_or(0)).map(|row| (row, 1.0))),
        }
    }

    fn block_of(&self, token: usize) -> usize {
        self.ends.partition_point(|end| *end <= token)
    }

    fn start(&self, block: usize) -> usize {
        block.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// Attention between the blocks of a window: `[blocks, blocks]`, the block of the queries first.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockShares {
    /// See [`BlockAttention::shares`].
    pub shares: Vec<Option<f64>>,
    /// See [`BlockAttention::uniform_shares`].
    pub uniform: Vec<Option<f64>>,
}

impl BlockShares {
    /// Measures all heads of a window, or one query head. `blocks` are those of the window, with nothing added yet.
    ///
    /// Cost, memory and panics: see [`BlockAttention::add_heads`]; the heads of a window are processed one after another.
    pub fn for_window(
        kernel: Kernel,
        shape: &AttentionShape,
        rules: &LogitRules,
        source: &dyn QueryKeySource,
        mut blocks: BlockAttention,
        head: Option<usize>,
    ) -> Self {
        match head {
            None => blocks.add_heads(kernel, shape, rules, source, 0..shape.key_heads),
            Some(head) => {
                let (shape, rules, source) = OneHead::new(shape, rules, source, head);
                blocks.add_heads(kernel, &shape, &rules, &source, 0..1);
            }
        }
        Self { shares: blocks.shares(), uniform: blocks.uniform_shares(rules) }
    }
}

/// Source of one query head, as a separate window.
pub struct OneHead<'a> {
    source: &'a dyn QueryKeySource,
    query_head: usize,
    key_head: usize,
}

impl<'a> OneHead<'a> {
    /// Selects a head, with its shape and rules.
    ///
    /// # Panics
    /// If the shape has no such query head.
    pub fn new(
        shape: &AttentionShape,
        rules: &LogitRules,
        source: &'a dyn QueryKeySource,
        query_head: usize,
    ) -> (AttentionShape, LogitRules, Self) {
        assert!(query_head < shape.query_heads, "query head {query_head} of {shape:?}");
        let of_head = |values: &Option<Vec<f32>>| values.as_ref().map(|all| vec![all[query_head]]);
        let rules = LogitRules {
            alibi_slopes: of_head(&rules.alibi_slopes),
            sinks: of_head(&rules.sinks),
            ..rules.clone()
        };
        let key_head = query_head / shape.group();
        let shape = AttentionShape { query_heads: 1, key_heads: 1, ..shape.clone() };
        (shape, rules, Self { source, query_head, key_head })
    }
}

impl QueryKeySource for OneHead<'_> {
    fn queries(&self, _: usize, rows: Range<usize>, out: &mut [f32]) {
        self.source.queries(self.query_head, rows, out);
    }

    fn keys(&self, _: usize, rows: Range<usize>, out: &mut [f32]) {
        self.source.keys(self.key_head, rows, out);
    }

    fn rows_at_once(&self) -> usize {
        self.source.rows_at_once()
    }
}
