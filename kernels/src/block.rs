//! A block of rows of every query head that shares one key head, against all its keys.

use std::ops::Range;

use crate::exponential::tanh;
use crate::kernel::Kernel;
use crate::masks::{Segments, visible_keys};
use crate::panels::pack_scaled;
use crate::rows::Rows;
use crate::statistics::{AttentionShape, LogitRules, QueryKeySource, RowSample};
#[cfg(target_arch = "x86_64")]
use crate::tile::{AVX2_COLUMNS, AVX2_ROWS, Fused};
use crate::tile::{Arithmetic, PORTABLE_COLUMNS, PORTABLE_ROWS, Plain, multiply};

/// Rows of a block; each key that is fetched from memory serves them all. A multiple of [`STRIP_ROWS`].
pub(crate) const BLOCK_ROWS: usize = 48;
/// Rows whose logits are held at once: their tile stays in the first-level cache. A multiple of every tile's height.
const STRIP_ROWS: usize = 24;
/// Keys of a tile, which stays in the second-level cache. A multiple of every panel's width.
pub(crate) const TILE_KEYS: usize = 256;
/// Floats from one row of logits to the next; the pad keeps rows out of each other's cache sets.
const LOGIT_STRIDE: usize = TILE_KEYS + 16;

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

/// Sums of one block, rows added in ascending order.
pub(crate) struct BlockSums {
    /// `[group]`
    pub(crate) far_mass: Vec<f64>,
    /// `[group]`
    pub(crate) far_square: Vec<f64>,
    /// `[bins]`: attention by distance, summed over rows and heads.
    pub(crate) histogram: Vec<f64>,
    /// `[rows]`: far mass of each row, summed over the group's heads.
    pub(crate) rows: Vec<f64>,
    /// `[rows]`: far sum of squares of each row, summed over the group's heads.
    pub(crate) row_squares: Vec<f64>,
}

/// Buffers of one thread, reused from block to block.
pub(crate) struct Scratch {
    /// `[BLOCK_ROWS, head_dim]`
    gathered: Vec<f32>,
    /// `[group, BLOCK_ROWS / height, head_dim, height]`: scaled queries in panels.
    queries: Vec<f32>,
    /// `[STRIP_ROWS, LOGIT_STRIDE]`
    logits: Vec<f32>,
    /// `[group · BLOCK_ROWS]`
    rows: Rows,
}

impl Scratch {
    pub(crate) fn new(window: &Window<'_>) -> Self {
        let (group, head_dim) = (window.shape.group(), window.shape.head_dim);
        Self {
            gathered: vec![0.0; BLOCK_ROWS * head_dim],
            queries: vec![0.0; group * BLOCK_ROWS * head_dim],
            logits: vec![0.0; STRIP_ROWS * LOGIT_STRIDE],
            rows: Rows::new(group * BLOCK_ROWS, window.segments.count()),
        }
    }

    /// Heap bytes of one thread's buffers.
    pub(crate) fn bytes(shape: &AttentionShape, segments: usize) -> u64 {
        let floats = (shape.group() + 1) * BLOCK_ROWS * shape.head_dim + STRIP_ROWS * LOGIT_STRIDE;
        (floats * size_of::<f32>()) as u64 + Rows::bytes(shape.group() * BLOCK_ROWS, segments)
    }
}

/// The sums of rows `rows` (at most [`BLOCK_ROWS`]) of the query heads of `key_head`.
///
/// `keys`: that head's keys in panels, `[⌈tokens/width⌉, head_dim, width]`.
pub(crate) fn block_sums(
    window: &Window<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: &[f32],
    scratch: &mut Scratch,
) -> BlockSums {
    window.load_queries(key_head, rows.clone(), scratch);
    match window.kernel {
        Kernel::PortableF32 => {
            walk::<Plain, PORTABLE_ROWS, PORTABLE_COLUMNS>(
                window,
                key_head,
                rows.clone(),
                keys,
                scratch,
            );
        }
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2F32 => {
            window.kernel.assert_supported();
            // SAFETY: the line above stops on a processor without AVX2 and FMA.
            unsafe { walk_avx2(window, key_head, rows.clone(), keys, scratch) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Kernel::Avx2F32 => window.kernel.assert_supported(),
    }
    window.collect(key_head, rows, &scratch.rows)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn walk_avx2(
    window: &Window<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: &[f32],
    scratch: &mut Scratch,
) {
    walk::<Fused, AVX2_ROWS, AVX2_COLUMNS>(window, key_head, rows, keys, scratch);
}

impl Window<'_> {
    /// How many rows are measured.
    pub(crate) fn rows(&self) -> usize {
        self.sample.map_or(self.shape.tokens, |sample| sample.positions.len())
    }

    /// The position in the window of a measured row.
    #[inline(always)]
    fn position(&self, row: usize) -> usize {
        self.sample.map_or(row, |sample| sample.positions[row])
    }

    /// How many rows of the window a measured row stands for.
    fn weight(&self, row: usize) -> f64 {
        self.sample.map_or(1.0, |sample| sample.weights[row])
    }

    /// Gathers the queries of measured rows: `[rows, head_dim]`.
    fn gather(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        let Some(sample) = self.sample else {
            return self.source.queries(head, rows, out);
        };
        let positions = sample.positions[rows].iter();
        for (position, out) in positions.zip(out.chunks_exact_mut(self.shape.head_dim)) {
            self.source.queries(head, *position..position + 1, out);
        }
    }

    /// Gathers the block's queries and packs them, scaled so that their products with keys are final logits in units
    /// of log2 (or, with a softcap, the argument of its tanh).
    fn load_queries(&self, key_head: usize, rows: Range<usize>, scratch: &mut Scratch) {
        let (group, head_dim) = (self.shape.group(), self.shape.head_dim);
        let unit = match self.rules.softcap {
            Some(cap) => 1.0 / f64::from(cap),
            None => std::f64::consts::LOG2_E,
        };
        let factor = |row: usize| {
            let position = self
                .rules
                .query_scale
                .as_ref()
                .map_or(1.0, |scale| f64::from(scale[self.position(rows.start + row)]));
            unit * f64::from(self.rules.scale) * position
        };
        let gathered = &mut scratch.gathered[..rows.len() * head_dim];
        for (index, panels) in scratch.queries.chunks_exact_mut(BLOCK_ROWS * head_dim).enumerate() {
            self.gather(key_head * group + index, rows.clone(), gathered);
            pack_scaled(gathered, head_dim, self.kernel.panel_height(), factor, panels);
        }
        scratch.rows.clear();
    }

    /// Adds up the finished rows.
    fn collect(&self, key_head: usize, rows: Range<usize>, states: &Rows) -> BlockSums {
        let group = self.shape.group();
        let mut sums = BlockSums {
            far_mass: vec![0.0; group],
            far_square: vec![0.0; group],
            histogram: vec![0.0; self.bins],
            rows: vec![0.0; rows.len()],
            row_squares: vec![0.0; rows.len()],
        };
        for head in 0..group {
            let sink =
                self.rules.sinks.as_ref().map(|sinks| f64::from(sinks[key_head * group + head]));
            let sink = sink.map(|logit| logit * std::f64::consts::LOG2_E);
            for row in 0..rows.len() {
                let finished = states.finish(head * BLOCK_ROWS + row, sink, &self.segments);
                let weight = self.weight(rows.start + row);
                sums.far_mass[head] += weight * finished.far_mass;
                sums.far_square[head] += weight * finished.far_square;
                sums.rows[row] += finished.far_mass;
                sums.row_squares[row] += finished.far_square;
                for (segment, mass) in finished.masses.iter().enumerate() {
                    if let Some(bin) = self.segments.bin(segment) {
                        sums.histogram[bin] += weight * mass * finished.scale;
                    }
                }
            }
        }
        sums
    }
}

/// Walks the key tiles from far to near: one product of queries and keys, then the rows' sums.
#[inline(always)]
fn walk<A: Arithmetic, const HEIGHT: usize, const WIDTH: usize>(
    window: &Window<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: &[f32],
    scratch: &mut Scratch,
) {
    let (tokens, head_dim) = (window.shape.tokens, window.shape.head_dim);
    let visible = visible_rows(window, &rows);
    let mut tile = visible.start / TILE_KEYS * TILE_KEYS;
    while tile < visible.end {
        let tile_end = tokens.min(tile + TILE_KEYS);
        for (head, queries) in scratch.queries.chunks_exact(BLOCK_ROWS * head_dim).enumerate() {
            for (strip, queries) in queries.chunks_exact(STRIP_ROWS * head_dim).enumerate() {
                let first = rows.start + strip * STRIP_ROWS;
                let strip_rows = first..rows.end.min(first + STRIP_ROWS);
                let seen = if first < rows.end { visible_rows(window, &strip_rows) } else { 0..0 };
                let seen = seen.start.max(tile)..seen.end.min(tile_end);
                if seen.is_empty() {
                    continue;
                }
                let logits = &mut scratch.logits[..];
                multiply_strip::<A, HEIGHT, WIDTH>(
                    queries,
                    keys,
                    head_dim,
                    strip_rows.len(),
                    tile,
                    &seen,
                    logits,
                );
                for row in strip_rows.clone() {
                    let position = window.position(row);
                    let seen = visible_keys(window.rules, tokens, position);
                    let seen = seen.start.max(tile)..seen.end.min(tile_end);
                    if seen.is_empty() {
                        continue;
                    }
                    let logits = &mut logits[(row - first) * LOGIT_STRIDE..][..LOGIT_STRIDE];
                    let logits = &mut logits[seen.start - tile..];
                    let query_head = key_head * window.shape.group() + head;
                    bend::<A>(window.rules, query_head, position, seen.clone(), logits);
                    let state = head * BLOCK_ROWS + row - rows.start;
                    scratch.rows.absorb::<A>(state, position, seen, logits, &window.segments);
                }
            }
        }
        tile += TILE_KEYS;
    }
}

/// The keys that some row of `rows` (not empty) sees, or that lie between such keys.
fn visible_rows(window: &Window<'_>, rows: &Range<usize>) -> Range<usize> {
    let first = visible_keys(window.rules, window.shape.tokens, window.position(rows.start));
    let last = visible_keys(window.rules, window.shape.tokens, window.position(rows.end - 1));
    first.start..last.end.min(window.shape.tokens)
}

/// Products of a strip's queries with the panels that hold the keys `seen`.
/// `logits`: `[STRIP_ROWS, LOGIT_STRIDE]`, column 0 is key `tile`.
#[inline(always)]
fn multiply_strip<A: Arithmetic, const HEIGHT: usize, const WIDTH: usize>(
    queries: &[f32],
    keys: &[f32],
    head_dim: usize,
    rows: usize,
    tile: usize,
    seen: &Range<usize>,
    logits: &mut [f32],
) {
    for panel in seen.start / WIDTH..seen.end.div_ceil(WIDTH) {
        let column = panel * WIDTH - tile;
        let keys = &keys[panel * WIDTH * head_dim..][..WIDTH * head_dim];
        for (index, queries) in
            queries.chunks_exact(HEIGHT * head_dim).take(rows.div_ceil(HEIGHT)).enumerate()
        {
            let products = multiply::<A, HEIGHT, WIDTH>(queries, keys);
            for (row, products) in products.iter().enumerate() {
                logits[(index * HEIGHT + row) * LOGIT_STRIDE + column..][..WIDTH]
                    .copy_from_slice(products);
            }
        }
    }
}

/// Turns products into logits where the model does more than scale: softcap, then `ALiBi`. `logits[0]` is that of key
/// `keys.start`.
#[inline(always)]
fn bend<A: Arithmetic>(
    rules: &LogitRules,
    head: usize,
    row: usize,
    keys: Range<usize>,
    logits: &mut [f32],
) {
    let logits = &mut logits[..keys.len()];
    if let Some(cap) = rules.softcap {
        let cap = (f64::from(cap) * std::f64::consts::LOG2_E) as f32;
        for logit in logits.iter_mut() {
            *logit = cap * tanh::<A>(*logit);
        }
    }
    if let Some(slopes) = &rules.alibi_slopes {
        let slope = (f64::from(slopes[head]) * std::f64::consts::LOG2_E) as f32;
        let start = keys.start as f32 - row as f32;
        for (column, logit) in logits.iter_mut().enumerate() {
            *logit = A::mul_add(slope, start + column as f32, *logit);
        }
    }
}
