//! Attention with values, as a layer of a whole model computes it, without the S×S matrix.
//!
//! A layer's keys and values are packed once ([`KeyValues`]). Blocks of rows then process them independently, so a
//! block has the same bits in any order and on any number of threads. The softmax follows the row's largest logit from
//! tile to tile, as in the kernels for statistics; products, exponentials and sums are float32.

mod lanes;

use std::ops::Range;

use rayon::prelude::*;

use crate::dispatch::{FloatOp, with_floats};
use crate::kernel::Kernel;
use crate::simd::Simd;
use crate::statistics::{AttentionShape, LogitRules};
use crate::words::AlignedWords;

/// Keys per tile. With their values they take half of a second-level cache at a head width of 128. A multiple of every
/// register tile's rows.
const TILE_KEYS: usize = 192;

/// The keys and values of one layer of one window, packed for one kernel.
pub struct KeyValues {
    kernel: Kernel,
    shape: AttentionShape,
    /// `[tiles, key_heads, tile]`: see [`PackedTile`].
    packed: AlignedWords,
}

/// One packed tile of one key head.
#[derive(Clone, Copy)]
struct PackedTile<'a> {
    /// `[TILE_KEYS / height, head_dim, height]`
    keys: &'a [f32],
    /// `[⌈head_dim / height⌉, TILE_KEYS, height]`
    values: &'a [f32],
}

/// Buffers of one thread, reused from block to block.
#[derive(Debug, Default)]
pub struct AttendScratch {
    /// Packed queries of every row of a block and query head of a key head; `sums` holds their running sums.
    queries: Vec<f32>,
    sums: Vec<f32>,
    /// `[TILE_KEYS, lanes]`
    logits: Vec<f32>,
}

/// Query rows to process.
#[derive(Clone, Debug)]
pub struct QueryBlock<'a> {
    pub rows: Range<usize>,
    /// `[rows, query_heads · head_dim]`, after the rotary embedding, before any scale.
    pub queries: &'a [f32],
}

impl KeyValues {
    /// Allocates the keys and values of a window of `shape`; [`Self::fill`] writes them.
    ///
    /// # Panics
    /// If the processor lacks the kernel.
    pub fn new(kernel: Kernel, shape: &AttentionShape) -> Self {
        kernel.assert_supported();
        shape.assert_valid();
        let tiles = shape.tokens.div_ceil(TILE_KEYS);
        let packed =
            AlignedWords::new(tiles * shape.key_heads * tile_words(kernel, shape.head_dim));
        Self { kernel, shape: shape.clone(), packed }
    }

    /// Returns the heap bytes of the keys and values of a window, and of one thread's buffers while they are filled or
    /// read.
    pub fn bytes(kernel: Kernel, shape: &AttentionShape, rows: usize) -> (u64, u64) {
        let (height, lanes) = register_tile(kernel);
        let tiles = shape.tokens.div_ceil(TILE_KEYS);
        let packed =
            AlignedWords::bytes(tiles * shape.key_heads * tile_words(kernel, shape.head_dim));
        let filling = 2 * TILE_KEYS * shape.key_heads * shape.head_dim;
        let states = shape.group() * rows.div_ceil(lanes);
        let width = shape.head_dim.next_multiple_of(height);
        let reading = states * lanes * (shape.head_dim + width + 2) + TILE_KEYS * lanes;
        (packed, (filling.max(reading) * size_of::<f32>()) as u64)
    }

    /// Packs keys and values: `project` writes those of a range of rows, each `[rows, key_heads · head_dim]`, keys after the
    /// rotary embedding. Parallel over blocks of rows in the current rayon pool.
    pub fn fill(&mut self, project: impl Fn(Range<usize>, &mut [f32], &mut [f32]) + Sync) {
        let (tokens, heads, head_dim) =
            (self.shape.tokens, self.shape.key_heads, self.shape.head_dim);
        let (height, _) = register_tile(self.kernel);
        let (words, width) = (tile_words(self.kernel, head_dim), heads * head_dim);
        let packed = self.packed.floats_mut();
        packed.par_chunks_mut(heads * words).enumerate().for_each_init(
            || (vec![0.0; TILE_KEYS * width], vec![0.0; TILE_KEYS * width]),
            |(keys, values), (tile, packed)| {
                let rows = tile * TILE_KEYS..tokens.min((tile + 1) * TILE_KEYS);
                let numbers = rows.len() * width;
                keys[numbers..].fill(0.0);
                values[numbers..].fill(0.0);
                project(rows, &mut keys[..numbers], &mut values[..numbers]);
                for (head, packed) in packed.chunks_exact_mut(words).enumerate() {
                    let (to_keys, to_values) = packed.split_at_mut(TILE_KEYS * head_dim);
                    for key in 0..TILE_KEYS {
                        let at = key * width + head * head_dim;
                        let panel = &mut to_keys[key / height * height * head_dim..];
                        for (d, value) in keys[at..at + head_dim].iter().enumerate() {
                            panel[d * height + key % height] = *value;
                        }
                        for (d, value) in values[at..at + head_dim].iter().enumerate() {
                            to_values[(d / height * TILE_KEYS + key) * height + d % height] =
                                *value;
                        }
                    }
                }
            },
        );
    }

    /// Computes attention of a block of rows: `out`, `[rows, query_heads · head_dim]`, receives the mean of the values of each
    /// row's visible keys, weighted by the softmax of its logits. The caller applies sinks and factors of rows itself.
    ///
    /// Runs on the calling thread. A row's bits depend only on its query, the keys and the values.
    ///
    /// # Panics
    /// If lengths do not fit, or `rules` has sinks or factors of rows.
    pub fn attend(
        &self,
        rules: &LogitRules,
        block: &QueryBlock<'_>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) {
        rules.assert_matches(&self.shape);
        assert!(rules.sinks.is_none() && rules.query_scale.is_none(), "the caller applies these");
        let width = self.shape.query_heads * self.shape.head_dim;
        assert!(block.rows.end <= self.shape.tokens, "rows of the window");
        assert_eq!(block.queries.len(), block.rows.len() * width, "queries of these rows");
        assert_eq!(out.len(), block.queries.len(), "as many results as queries");
        let kernel = self.kernel.for_values();
        with_floats(kernel, AttendBlock { key_values: self, rules, block, scratch, out });
    }

    fn tile(&self, tile: usize, head: usize) -> PackedTile<'_> {
        let words = tile_words(self.kernel, self.shape.head_dim);
        let packed = &self.packed[(tile * self.shape.key_heads + head) * words..][..words];
        let (keys, values) = bytemuck::cast_slice(packed).split_at(TILE_KEYS * self.shape.head_dim);
        PackedTile { keys, values }
    }
}

/// Attention of one block of queries.
struct AttendBlock<'a> {
    key_values: &'a KeyValues,
    rules: &'a LogitRules,
    block: &'a QueryBlock<'a>,
    scratch: &'a mut AttendScratch,
    out: &'a mut [f32],
}

impl FloatOp for AttendBlock<'_> {
    type Result = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const VECTORS: usize>(self, simd: S) {
        let Self { key_values, rules, block, scratch, out } = self;
        key_values.walk::<S, ROWS, VECTORS>(simd, rules, block, scratch, out);
    }
}

/// Keys and queries of a kernel's register tile.
fn register_tile(kernel: Kernel) -> (usize, usize) {
    let layout = kernel.for_values().layout();
    (layout.keys, layout.queries)
}

/// Returns the number of words that one head's keys and values in a tile.
fn tile_words(kernel: Kernel, head_dim: usize) -> usize {
    let (height, _) = register_tile(kernel);
    TILE_KEYS * (head_dim + head_dim.next_multiple_of(height))
}
