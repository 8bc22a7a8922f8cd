//! Attention with values: what a layer of a whole model adds to each row, without the S×S matrix.
//!
//! A layer's keys and values are packed once ([`KeyValues`]); then every block of rows walks over them by itself, so blocks
//! may run in any order on any number of threads and give the same bits. The softmax follows the row's largest logit from
//! tile to tile, as in the statistics' kernels; products, exponentials and sums are float32.

mod lanes;

use std::ops::Range;

use rayon::prelude::*;

use crate::kernel::Kernel;
use crate::simd::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Degree5};
use crate::statistics::{AttentionShape, LogitRules};
use crate::words::Words;

/// Keys of a tile, with their values half a second-level cache at a head width of 128. A multiple of every register
/// tile's rows.
const TILE_KEYS: usize = 192;

/// The keys and values of one layer of one window, packed for one kernel.
pub struct KeyValues {
    kernel: Kernel,
    shape: AttentionShape,
    /// `[tiles, key_heads, tile]`: see [`Tile`].
    packed: Words,
    /// `[query_heads, tokens]`: added to each logit of a key, natural units.
    offsets: Option<Vec<f32>>,
}

impl std::fmt::Debug for KeyValues {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "KeyValues({}, {:?})", self.kernel.name(), self.shape)
    }
}

/// One tile of one key head, as a kernel reads it.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// `[TILE_KEYS / height, head_dim, height]`
    keys: &'a [f32],
    /// `[⌈head_dim / height⌉, TILE_KEYS, height]`
    values: &'a [f32],
}

/// Buffers of one thread, reused from block to block.
#[derive(Debug, Default)]
pub struct AttendScratch {
    /// Packed queries, then running sums, of every row of a block and query head of a key head.
    queries: Vec<f32>,
    sums: Vec<f32>,
    /// `[TILE_KEYS, lanes]`
    logits: Vec<f32>,
}

/// Which rows of a window attend, and what they ask.
#[derive(Clone, Debug)]
pub struct Asking<'a> {
    /// The rows.
    pub rows: Range<usize>,
    /// `[rows, query_heads · head_dim]`, after the rotary embedding, before any scale.
    pub queries: &'a [f32],
}

impl KeyValues {
    /// Room for the keys and values of a window of `shape`; [`Self::fill`] writes them.
    ///
    /// # Panics
    /// If the processor lacks the kernel.
    pub fn new(kernel: Kernel, shape: &AttentionShape) -> Self {
        kernel.assert_supported();
        shape.assert_valid();
        let tiles = shape.tokens.div_ceil(TILE_KEYS);
        let packed = Words::new(tiles * shape.key_heads * tile_words(kernel, shape.head_dim));
        Self { kernel, shape: shape.clone(), packed, offsets: None }
    }

    /// Heap bytes of the keys and values of a window, and of each thread's buffers while they are filled or read.
    pub fn bytes(kernel: Kernel, shape: &AttentionShape, rows: usize) -> (u64, u64) {
        let (height, lanes) = register_tile(kernel);
        let tiles = shape.tokens.div_ceil(TILE_KEYS);
        let packed = Words::bytes(tiles * shape.key_heads * tile_words(kernel, shape.head_dim));
        let filling = 2 * TILE_KEYS * shape.key_heads * shape.head_dim;
        let states = shape.group() * rows.div_ceil(lanes);
        let width = shape.head_dim.next_multiple_of(height);
        let reading = states * lanes * (shape.head_dim + width + 2) + TILE_KEYS * lanes;
        (packed, (filling.max(reading) * size_of::<f32>()) as u64)
    }

    /// What is added to each logit of a key, `[query_heads, tokens]`: linear biases that a model rounds in its own way.
    ///
    /// # Panics
    /// If the length does not fit.
    pub fn set_offsets(&mut self, offsets: Vec<f32>) {
        assert_eq!(
            offsets.len(),
            self.shape.query_heads * self.shape.tokens,
            "one per head and key"
        );
        self.offsets = Some(offsets);
    }

    /// Packs keys and values: `project` writes those of some rows, each `[rows, key_heads · head_dim]`, keys after the
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

    /// Attention of some rows: `out`, `[rows, query_heads · head_dim]`, is the mean of the values of the keys that each row
    /// sees, weighted by the softmax of its logits. `rules` are those of the statistics but for sinks and factors of
    /// rows, which are the caller's.
    ///
    /// Runs on the calling thread. A row's bits depend on nothing but its query, the keys and the values.
    ///
    /// # Panics
    /// If lengths do not fit, or `rules` has sinks or factors of rows.
    pub fn attend(
        &self,
        rules: &LogitRules,
        asking: &Asking<'_>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) {
        rules.assert_matches(&self.shape);
        assert!(rules.sinks.is_none() && rules.query_scale.is_none(), "left to the caller");
        let width = self.shape.query_heads * self.shape.head_dim;
        assert!(asking.rows.end <= self.shape.tokens, "rows of the window");
        assert_eq!(asking.queries.len(), asking.rows.len() * width, "queries of these rows");
        assert_eq!(out.len(), asking.queries.len(), "as many results as queries");
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` saw that the kernel is supported: AVX2 and FMA are there.
            Kernel::Avx2F32 => unsafe { self.walk_avx2(rules, asking, scratch, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` saw that the kernel is supported: AVX-512 F and DQ are there.
            Kernel::Avx512F32 => unsafe { self.walk_avx512(rules, asking, scratch, out) },
            // Other processors' own vectors have no walk here yet.
            _ => self.walk::<_, 4, 1>(Portable, rules, asking, scratch, out),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn walk_avx2(
        &self,
        rules: &LogitRules,
        asking: &Asking<'_>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) {
        self.walk::<_, 6, 2>(Avx2::new(), rules, asking, scratch, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn walk_avx512(
        &self,
        rules: &LogitRules,
        asking: &Asking<'_>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) {
        self.walk::<_, 12, 2>(Avx512::<Degree5>::new(), rules, asking, scratch, out);
    }

    fn tile(&self, tile: usize, head: usize) -> Tile<'_> {
        let words = tile_words(self.kernel, self.shape.head_dim);
        let packed = &self.packed[(tile * self.shape.key_heads + head) * words..][..words];
        let (keys, values) = bytemuck::cast_slice(packed).split_at(TILE_KEYS * self.shape.head_dim);
        Tile { keys, values }
    }
}

/// Keys that a kernel's register tile holds, and the rows that it multiplies them with.
fn register_tile(kernel: Kernel) -> (usize, usize) {
    match kernel {
        Kernel::Avx2F32 => (6, 16),
        Kernel::Avx512F32 => (12, 32),
        _ => (4, 8),
    }
}

/// Words of one head's keys and values in a tile.
fn tile_words(kernel: Kernel, head_dim: usize) -> usize {
    let (height, _) = register_tile(kernel);
    TILE_KEYS * (head_dim + head_dim.next_multiple_of(height))
}
