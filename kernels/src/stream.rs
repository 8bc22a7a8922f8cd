//! One window from source to sums: keys packed head by head, blocks of rows in parallel, sums in a fixed order.

use rayon::prelude::*;

use crate::block::{BLOCK_ROWS, BlockSums, Keys, Scratch, Window, block_sums};
use crate::kernel::Kernel;
use crate::masks::Segments;
use crate::panels::{norm, regroup};
use crate::statistics::{
    AttentionShape, LogitRules, Measure, QueryKeySource, WindowSums, histogram_bins, normalise,
};
use crate::tile::TILE_KEYS;
use crate::words::Words;

/// Blocks that should be under way at once: enough to keep many threads busy to the end. Key heads are packed together
/// until a round has as many.
const ROUND_BLOCKS: usize = 256;

/// Far mass, far sum of squares and distance histogram of every head of one window, in one pass over the keys.
///
/// A row's far keys `j <= i - k` come first, so the running sums of its softmax, cut at that key, give both far sums
/// exactly; no S×S matrix exists (`LongAttn`, Findings of ACL 2025, equations 5 and 6: DST and DUT).
/// Products and exponentials are float32, sums float64. Rows are summed in blocks and blocks in order, so the result
/// has the same bits for any number of threads.
///
/// Work runs in the current rayon pool. Cost: `S²/2 · query_heads` products of width `head_dim` (causal); memory: see
/// [`window_bytes`]. `NaN` or infinite products give `NaN` sums, never a plausible number.
///
/// # Panics
/// If the processor lacks `kernel`, or a list of `rules` does not have the shape's length: bugs of the caller.
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
/// let measure = Measure { distance: 2, rows: true };
/// let sums = attention_statistics(Kernel::detect(Numbers::F32), &shape, &LogitRules::causal(8), &measure, &Uniform);
/// // Row 2 gives 1/3 to key 0, row 3 gives 1/4 to keys 0 and 1.
/// assert!((sums.dependency_strength(4)[0] - (1.0 / 3.0 + 2.0 / 4.0) / 4.0).abs() < 1e-6);
/// ```
pub fn attention_statistics(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    measure: &Measure,
    source: &dyn QueryKeySource,
) -> WindowSums {
    kernel.assert_supported();
    shape.assert_valid();
    rules.assert_matches(shape);
    let bins = histogram_bins(shape.tokens);
    let window =
        Window { kernel, shape, rules, segments: Segments::new(shape, measure), source, bins };
    let mut sums = Totals::new(shape, bins, measure.rows);

    let heads_at_once = heads_at_once(shape);
    let layout = kernel.layout();
    let head_words = shape.tokens.next_multiple_of(layout.keys) * layout.depth(shape.head_dim);
    let (blocks, tiles) = (shape.tokens.div_ceil(BLOCK_ROWS), shape.tokens.div_ceil(TILE_KEYS));
    let mut packed = Words::new(heads_at_once * head_words);
    let mut norms = vec![0.0; heads_at_once * tiles];
    for first in (0..shape.key_heads).step_by(heads_at_once) {
        let heads = heads_at_once.min(shape.key_heads - first);
        let panels = packed.chunks_exact_mut(head_words.max(1)).take(heads);
        for (head, (panels, norms)) in panels.zip(norms.chunks_exact_mut(tiles.max(1))).enumerate()
        {
            pack_keys(&window, first + head, panels, norms);
        }
        // The last blocks of a causal window are the long ones: they start first.
        let done: Vec<BlockSums> = (0..heads * blocks)
            .into_par_iter()
            .map_init(
                || Scratch::new(&window),
                |scratch, task| {
                    let (block, head) = (blocks - 1 - task / heads, task % heads);
                    let rows = block * BLOCK_ROWS..shape.tokens.min((block + 1) * BLOCK_ROWS);
                    let keys = Keys {
                        panels: &packed[head * head_words..][..head_words],
                        norms: &norms[head * tiles..][..tiles],
                    };
                    block_sums(&window, first + head, rows, keys, scratch)
                },
            )
            .collect();
        for head in 0..heads {
            for block in 0..blocks {
                sums.add(first + head, block, &done[(blocks - 1 - block) * heads + head]);
            }
        }
    }
    sums.finish()
}

/// The most heap memory that one call of [`attention_statistics`] holds at a time on `threads` threads, in bytes:
/// packed keys of the heads in work, running sums, buffers of each thread. What the source holds comes on top.
pub fn window_bytes(kernel: Kernel, shape: &AttentionShape, threads: usize) -> u64 {
    let blocks = shape.tokens.div_ceil(BLOCK_ROWS) as u64;
    let tiles = shape.tokens.div_ceil(TILE_KEYS);
    let (heads, layout) = (heads_at_once(shape), kernel.layout());
    let depth = layout.depth(shape.head_dim);
    let bins = histogram_bins(shape.tokens) as u64;
    // The far distance may add one segment to those of the bins, and the keys after the row are one more.
    let block = Scratch::bytes(kernel, shape, bins as usize + 2);
    let packing = (TILE_KEYS * (shape.head_dim + depth) * size_of::<f32>()) as u64;
    let sums_per_block =
        (2 * shape.group() as u64 + bins + BLOCK_ROWS as u64) * 8 + size_of::<BlockSums>() as u64;
    let keys = Words::bytes(heads * shape.tokens.next_multiple_of(layout.keys) * depth)
        + (heads * tiles * size_of::<f32>()) as u64;
    keys + heads as u64 * blocks * sums_per_block
        + 2 * shape.tokens as u64 * 8
        + threads as u64 * block.max(packing)
}

/// Key heads whose keys are packed together: one for long windows, more where one alone would leave threads idle.
fn heads_at_once(shape: &AttentionShape) -> usize {
    let blocks = shape.tokens.div_ceil(BLOCK_ROWS).max(1);
    ROUND_BLOCKS.div_ceil(blocks).min(shape.key_heads)
}

/// Packs the keys of one head into panels, a tile at a time, and notes the largest norm of each tile's keys.
fn pack_keys(window: &Window<'_>, head: usize, panels: &mut [u32], norms: &mut [f32]) {
    let (tokens, head_dim) = (window.shape.tokens, window.shape.head_dim);
    let layout = window.kernel.layout();
    let depth = layout.depth(head_dim);
    let tiles = panels.par_chunks_mut(TILE_KEYS * depth).zip(norms).enumerate();
    tiles.for_each_init(
        || (vec![0.0; TILE_KEYS * head_dim], vec![0; TILE_KEYS * depth]),
        |(gathered, converted), (tile, (panels, largest))| {
            let rows = tile * TILE_KEYS..tokens.min((tile + 1) * TILE_KEYS);
            let gathered = &mut gathered[..rows.len() * head_dim];
            let converted = &mut converted[..rows.len() * depth];
            window.source.keys(head, rows, gathered);
            *largest = 0.0;
            let rows = gathered.chunks_exact_mut(head_dim).zip(converted.chunks_exact_mut(depth));
            for (gathered, converted) in rows {
                layout.convert(gathered, None, converted);
                *largest = largest.max(norm(gathered));
            }
            regroup(converted, depth, layout.keys, panels);
        },
    );
}

/// The window's sums so far.
struct Totals {
    sums: WindowSums,
    group: usize,
    query_heads: usize,
}

impl Totals {
    fn new(shape: &AttentionShape, bins: usize, rows: bool) -> Self {
        let sums = WindowSums {
            far_mass: vec![0.0; shape.query_heads],
            far_square: vec![0.0; shape.query_heads],
            histogram: vec![0.0; bins],
            row_far_mass: rows.then(|| vec![0.0; shape.tokens]),
        };
        Self { sums, group: shape.group(), query_heads: shape.query_heads }
    }

    /// Adds one block; called in ascending order of key head, then block.
    fn add(&mut self, key_head: usize, block: usize, done: &BlockSums) {
        let heads = key_head * self.group..(key_head + 1) * self.group;
        add(&mut self.sums.far_mass[heads.clone()], &done.far_mass);
        add(&mut self.sums.far_square[heads], &done.far_square);
        add(&mut self.sums.histogram, &done.histogram);
        if let Some(rows) = &mut self.sums.row_far_mass {
            add(&mut rows[block * BLOCK_ROWS..][..done.rows.len()], &done.rows);
        }
    }

    fn finish(mut self) -> WindowSums {
        normalise(&mut self.sums.histogram);
        if let Some(rows) = &mut self.sums.row_far_mass {
            for mass in rows {
                *mass /= self.query_heads as f64;
            }
        }
        self.sums
    }
}

fn add(to: &mut [f64], values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
}
