//! One window from source to sums: keys packed head by head, blocks of rows in parallel, sums in a fixed order.

use std::ops::Range;

use rayon::prelude::*;

use crate::block::{BlockScratch, PackedKeys, PartSums, add, block_sums, scale};
use crate::kernel::Kernel;
use crate::masks::Segments;
use crate::panels::Packing;
use crate::simd_op::{SimdOp, run};
use crate::statistics::{
    AttentionShape, HeadSums, LogitRules, QueryKeySource, RowSample, WindowSums, histogram_bins,
};
use crate::tile::TILE_KEYS;
use crate::transpose::Transpose;
use crate::window::{PART_ROWS, WindowInput, block_rows};
use crate::words::AlignedWords;

/// Blocks in progress at once: enough to keep many threads busy to the end. Key heads are packed together until a round has this
/// many.
const ROUND_BLOCKS: usize = 256;

/// Computes far mass, far sum of squares and distance histogram of every head of one window, and the far mass of each row, in one
/// pass over the keys. Key `j` is far from row `i` iff `i - j >= distance`.
///
/// A row's far keys `j <= i - k` come first, so the running sums of its softmax, cut at that key, give both far sums
/// exactly; no S×S matrix exists (`LongAttn`, Findings of ACL 2025, equations 5 and 6: DST and DUT).
/// Products and exponentials are float32, sums float64. Rows are summed in parts and parts in order, so the result
/// has the same bits for any number of threads.
///
/// Work runs in the current rayon pool. Cost: `S²/2 · query_heads` products of width `head_dim` (causal); memory: see
/// [`window_bytes`]. `NaN` or infinite products give `NaN` sums, never a plausible number.
///
/// # Panics
/// If the processor lacks `kernel`, or a list of `rules` does not have the shape's length.
///
/// ```
/// use longsift_kernels::*;
/// /// Every query and key is the same vector: attention is uniform.
/// struct Uniform;
/// impl QueryKeySource for Uniform {
///     fn queries(&self, _: usize, _: std::ops::Range<usize>, out: &mut [f32]) { out.fill(0.5) }
///     fn keys(&self, _: usize, _: std::ops::Range<usize>, out: &mut [f32]) { out.fill(0.5) }
/// }
/// let shape = AttentionShape { tokens: 4, query_heads: 2, key_heads: 1, head_dim: 8 };
/// let sums = attention_statistics(Kernel::detect(ElementType::F32), &shape, &LogitRules::causal(8), 2, &Uniform);
/// // Row 2 gives 1/3 to key 0, row 3 gives 1/4 to keys 0 and 1.
/// assert!((sums.dependency_strength(4)[0] - (1.0 / 3.0 + 2.0 / 4.0) / 4.0).abs() < 1e-6);
/// ```
pub fn attention_statistics(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
) -> WindowSums {
    let heads = 0..shape.key_heads;
    let segments = Segments::new(shape, distance);
    let (sums, rows) = sums_of_heads(kernel, shape, rules, segments, source, heads, None);
    WindowSums { row_far_mass: rows, ..sums.window_sums(shape.tokens) }
}

/// Computes [`attention_statistics`] for the query heads of a range of key heads. Parts of a window that are appended in the order
/// of its heads have the same bits as the whole. With a `sample`, only its rows are measured, and its weights turn the sums into
/// estimates over all rows.
///
/// # Panics
/// Also if the shape has no such key heads, or the sample's rows are not ascending rows of the window.
pub fn head_statistics(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
    key_heads: Range<usize>,
    sample: Option<&RowSample>,
) -> HeadSums {
    let segments = Segments::new(shape, distance);
    sums_of_heads(kernel, shape, rules, segments, source, key_heads, sample).0
}

/// Computes [`head_statistics`] over all rows, leaving the first `sink_keys` keys of the window out of the far sums and the
/// histogram; they stay in the softmax. With 0 the bits are those of [`head_statistics`].
///
/// # Panics
/// Like [`head_statistics`].
pub fn statistics_without_sinks(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    (distance, sink_keys): (usize, usize),
    source: &dyn QueryKeySource,
    key_heads: Range<usize>,
) -> HeadSums {
    let segments = Segments::new(shape, distance).without_first_keys(sink_keys);
    sums_of_heads(kernel, shape, rules, segments, source, key_heads, None).0
}

/// Computes the sums of some key heads, and their share of the far mass of each row, averaged over all heads of the window.
fn sums_of_heads(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    segments: Segments,
    source: &dyn QueryKeySource,
    key_heads: Range<usize>,
    sample: Option<&RowSample>,
) -> (HeadSums, Vec<f64>) {
    kernel.assert_supported();
    shape.assert_valid();
    rules.assert_matches(shape);
    if let Some(sample) = sample {
        sample.assert_matches(shape);
    }
    assert!(key_heads.end <= shape.key_heads, "key heads {key_heads:?} of {shape:?}");
    let bins = histogram_bins(shape.tokens);
    let window = WindowInput { kernel, shape, rules, segments, source, bins, sample };
    let mut sums = WindowTotals::new(&window, key_heads.clone());
    process_heads(
        &window,
        key_heads,
        |head, rows, keys, scratch| block_sums(&window, head, rows, keys, scratch),
        |head, part, done| sums.add(head, part, done),
    );
    sums.finish()
}

/// Processes every block of rows of some key heads: calls `of_block` on many threads at once, then `add` with the results of each
/// part, in ascending order of key head, then part.
pub(crate) fn process_heads<T: Send>(
    window: &WindowInput<'_>,
    key_heads: Range<usize>,
    of_block: impl Fn(usize, Range<usize>, PackedKeys<'_>, &mut BlockScratch) -> Vec<T> + Sync,
    mut add: impl FnMut(usize, usize, &T),
) {
    let WindowInput { shape, .. } = window;
    let rows = window.rows();
    let heads_at_once = heads_at_once(shape).min(key_heads.len());
    let layout = window.kernel.layout();
    let head_words = shape.tokens.next_multiple_of(layout.keys) * layout.depth(shape.head_dim);
    let height = window.block_rows();
    let (blocks, tiles) = (rows.div_ceil(height), shape.tokens.div_ceil(TILE_KEYS));
    let mut packed = AlignedWords::new(heads_at_once * head_words);
    let mut norms = vec![0.0; heads_at_once * tiles];
    for first in key_heads.clone().step_by(heads_at_once.max(1)) {
        let heads = heads_at_once.min(key_heads.end - first);
        let panels = packed.chunks_exact_mut(head_words.max(1)).take(heads);
        for (head, (panels, norms)) in panels.zip(norms.chunks_exact_mut(tiles.max(1))).enumerate()
        {
            pack_keys(window, first + head, panels, norms);
        }
        // The last blocks of a causal window take longest, so they start first.
        let done: Vec<Vec<T>> = (0..heads * blocks)
            .into_par_iter()
            .map_init(
                || BlockScratch::new(window),
                |scratch, task| {
                    let (block, head) = (blocks - 1 - task / heads, task % heads);
                    let rows = block * height..rows.min((block + 1) * height);
                    let keys = PackedKeys {
                        panels: &packed[head * head_words..][..head_words],
                        norms: &norms[head * tiles..][..tiles],
                    };
                    of_block(first + head, rows, keys, scratch)
                },
            )
            .collect();
        for head in 0..heads {
            let of_head = (0..blocks).flat_map(|block| &done[(blocks - 1 - block) * heads + head]);
            of_head.enumerate().for_each(|(part, sums)| add(first + head, part, sums));
        }
    }
}

/// Returns the peak heap memory of one call of [`attention_statistics`] on `threads` threads, in bytes: packed keys of
/// the heads in progress, running sums, buffers of each thread. It does not include the source.
pub fn window_bytes(kernel: Kernel, shape: &AttentionShape, threads: usize) -> u64 {
    let parts = shape.tokens.div_ceil(PART_ROWS) as u64;
    let bins = histogram_bins(shape.tokens) as u64;
    let sums_per_part =
        (2 * (shape.group() + PART_ROWS) as u64 + bins) * 8 + size_of::<PartSums>() as u64;
    let sums_in_all = (2 * shape.query_heads as u64 + shape.key_heads as u64 * bins) * 8;
    // The far distance may add one segment to those of the bins, and the keys after the row are one more.
    process_bytes(kernel, shape, bins as usize + 2, threads)
        + heads_at_once(shape) as u64 * parts * sums_per_part
        + sums_in_all
        + 2 * shape.tokens as u64 * 8
}

/// Returns the heap bytes of [`process_heads`] without the results of blocks: packed keys of the heads in progress and
/// buffers of each thread.
pub(crate) fn process_bytes(
    kernel: Kernel,
    shape: &AttentionShape,
    segments: usize,
    threads: usize,
) -> u64 {
    let (tiles, heads) = (shape.tokens.div_ceil(TILE_KEYS), heads_at_once(shape));
    let layout = kernel.layout();
    let depth = layout.depth(shape.head_dim);
    let block = BlockScratch::bytes(kernel, shape, segments);
    let packing = (TILE_KEYS * shape.head_dim + layout.keys * layout.buffer(shape.head_dim))
        * size_of::<f32>();
    let blocks = shape.tokens.div_ceil(block_rows(shape, shape.tokens));
    AlignedWords::bytes(heads * shape.tokens.next_multiple_of(layout.keys) * depth)
        + (heads * tiles * size_of::<f32>() + segments * size_of::<usize>()) as u64
        + (heads * blocks * size_of::<Vec<PartSums>>()) as u64
        + threads as u64 * block.max(packing as u64)
}

/// Returns the number of key heads whose keys are packed together: one for long windows, more if one would leave
/// threads idle.
pub(crate) fn heads_at_once(shape: &AttentionShape) -> usize {
    let blocks = shape.tokens.div_ceil(block_rows(shape, shape.tokens)).max(1);
    ROUND_BLOCKS.div_ceil(blocks).min(shape.key_heads)
}

/// Packs the keys of one head into panels, a tile at a time, and stores the largest norm of each tile's keys.
fn pack_keys(window: &WindowInput<'_>, head: usize, panels: &mut [u32], norms: &mut [f32]) {
    let (tokens, head_dim) = (window.shape.tokens, window.shape.head_dim);
    let layout = window.kernel.layout();
    let depth = layout.depth(head_dim);
    let tiles = panels.par_chunks_mut(TILE_KEYS * depth).zip(norms).enumerate();
    tiles.for_each_init(
        || (vec![0.0; TILE_KEYS * head_dim], vec![0; layout.keys * layout.buffer(head_dim)]),
        |(gathered, buffer), (tile, (panels, largest))| {
            let rows = tile * TILE_KEYS..tokens.min((tile + 1) * TILE_KEYS);
            let gathered = &mut gathered[..rows.len() * head_dim];
            window.source.keys(head, rows, gathered);
            run(ScalePass { values: gathered, factor: window.scales().1 });
            let (rows, width, together) = (&*gathered, layout.keys, layout.key_words);
            *largest = run(Packing { layout, width, together, rows, head_dim, buffer, panels });
        },
    );
}

/// Multiplication of values by a factor.
struct ScalePass<'a> {
    values: &'a mut [f32],
    factor: f64,
}

impl SimdOp for ScalePass<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self, _: impl Transpose) {
        scale(self.values, self.factor);
    }
}

/// Running sums of all heads.
struct WindowTotals<'a> {
    window: &'a WindowInput<'a>,
    sums: HeadSums,
    rows: Vec<f64>,
    /// First key head.
    first: usize,
}

impl<'a> WindowTotals<'a> {
    fn new(window: &'a WindowInput<'a>, key_heads: Range<usize>) -> Self {
        let (heads, query_heads) = (key_heads.len(), key_heads.len() * window.shape.group());
        let sampled = window.sample.map_or(0, |sample| sample.positions.len());
        let sums = HeadSums {
            far_mass: vec![0.0; query_heads],
            far_square: vec![0.0; query_heads],
            histograms: vec![0.0; heads * window.bins],
            row_far_mass: vec![0.0; heads * sampled],
            row_far_square: vec![0.0; heads * sampled],
        };
        Self { window, sums, rows: vec![0.0; window.rows()], first: key_heads.start }
    }

    /// Adds one part; called in ascending order of key head, then part.
    fn add(&mut self, key_head: usize, part: usize, done: &PartSums) {
        let (head, group, bins) =
            (key_head - self.first, self.window.shape.group(), self.window.bins);
        let heads = head * group..(head + 1) * group;
        add(&mut self.sums.far_mass[heads.clone()], &done.far_mass);
        add(&mut self.sums.far_square[heads], &done.far_square);
        add(&mut self.sums.histograms[head * bins..][..bins], &done.histogram);
        if let Some(sample) = self.window.sample {
            let rows = head * sample.positions.len() + part * PART_ROWS..;
            self.sums.row_far_mass[rows.clone()][..done.rows.len()].copy_from_slice(&done.rows);
            self.sums.row_far_square[rows][..done.rows.len()].copy_from_slice(&done.row_squares);
        }
        add(&mut self.rows[part * PART_ROWS..][..done.rows.len()], &done.rows);
    }

    fn finish(mut self) -> (HeadSums, Vec<f64>) {
        for mass in &mut self.rows {
            *mass /= self.window.shape.query_heads as f64;
        }
        (self.sums, self.rows)
    }
}
