//! A block of rows of every query head that shares one key head, against all its keys.
//!
//! Rows are processed in strips: those of some heads at a few positions, position by position.

use std::ops::Range;

use crate::dispatch::{TileOp, with_tile};
use crate::kernel::Kernel;
use crate::online_softmax::{BOUND, FinishedStrip, Logits, OnlineSoftmax, STRIP_ROWS, Strip};
use crate::panels::{Layout, Packing};
use crate::simd::{Simd, tanh};
use crate::simd_op::{SimdOp, run};
use crate::statistics::{AttentionShape, LogitRules};
use crate::steps::{BlockStep, BlockSteps};
use crate::tile::{MAX_CHUNK_KEYS, TILE_KEYS, Tile};
use crate::transpose::Transpose;
use crate::window::{
    MAX_STRIP_HEADS, PART_ROWS, WindowInput, block_rows, sets_of_heads, strip_heads,
};
use crate::words::AlignedWords;

/// Returns the number of rows of each of `heads` heads to gather at once: those of a strip, which stay in a cache until
/// they are packed, or as many as the source prefers, up to a block.
fn rows_at_once(window: &WindowInput<'_>, heads: usize) -> usize {
    let rows = window.source.rows_at_once().clamp(1, window.block_rows());
    rows.next_multiple_of(STRIP_ROWS / heads)
}

/// Returns the maximum rows that are gathered at a time, counting all heads of a strip.
fn gathered_rows(window: &WindowInput<'_>) -> usize {
    let rows = |heads: Range<usize>| heads.len() * rows_at_once(window, heads.len());
    sets_of_heads(window.shape.group()).map(rows).max().unwrap_or(0)
}

/// Sets of heads of different sizes.
const SIZES: usize = MAX_STRIP_HEADS.ilog2() as usize + 1;

/// Returns the index of the size of a set of heads.
fn size_of_set(heads: &Range<usize>) -> usize {
    heads.len().ilog2() as usize
}

#[derive(Clone, Copy)]
pub(crate) struct PackedKeys<'a> {
    /// `[⌈tokens/width⌉, depth, width]`
    pub(crate) panels: &'a [u32],
    /// `[⌈tokens/TILE_KEYS⌉]`: largest norm of a tile's keys.
    pub(crate) norms: &'a [f32],
}

/// Sums of one part of a block: rows are added up by lane, lanes in halves, heads in ascending order.
pub(crate) struct PartSums {
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

/// Attention of one part's rows by segments of keys, summed over the group's heads in the same order.
pub(crate) struct SegmentSums {
    /// The segment of the part's first row.
    pub(crate) first: usize,
    /// `[segments of the rows, segments]`
    pub(crate) masses: Vec<f64>,
}

/// Buffers of one thread, reused from block to block.
pub(crate) struct BlockScratch {
    /// `[gathered rows, heads of a strip, head_dim]`
    gathered: AlignedWords,
    /// `[STRIP_ROWS, Layout::buffer]`
    buffer: Vec<u32>,
    /// `[strips, STRIP_ROWS, depth]`: queries in panels, strip after strip of the group's first heads, then of the next.
    queries: AlignedWords,
    /// `[strips]`: the largest norm of a strip's queries.
    norms: Vec<f32>,
    /// Two chunks of a strip's logits, each `[MAX_CHUNK_KEYS, STRIP_ROWS]`.
    logits: [AlignedWords; 2],
    /// Strips of the sets of heads of each size, indexed by [`size_of_set`].
    strips: [Vec<Strip>; SIZES],
    /// `[strips]`
    softmax: OnlineSoftmax,
}

/// Words of a chunk of a strip's logits.
const CHUNK_WORDS: usize = MAX_CHUNK_KEYS * STRIP_ROWS;

impl BlockScratch {
    pub(crate) fn new(window: &WindowInput<'_>) -> Self {
        let (group, head_dim) = (window.shape.group(), window.shape.head_dim);
        let layout = window.kernel.layout();
        let depth = layout.depth(head_dim);
        let rows = window.block_rows();
        Self {
            gathered: AlignedWords::new(gathered_rows(window) * head_dim),
            buffer: vec![0; STRIP_ROWS * layout.buffer(head_dim)],
            queries: AlignedWords::new(group * rows * depth),
            norms: vec![0.0; group * rows / STRIP_ROWS],
            logits: [AlignedWords::new(CHUNK_WORDS), AlignedWords::new(CHUNK_WORDS)],
            strips: std::array::from_fn(|size| Vec::with_capacity((rows << size) / STRIP_ROWS)),
            softmax: OnlineSoftmax::new(group * rows / STRIP_ROWS, window.segments.count()),
        }
    }

    /// Returns the heap bytes of one thread's buffers, including those for the sums of a finished block.
    pub(crate) fn bytes(kernel: Kernel, shape: &AttentionShape, segments: usize) -> u64 {
        let (group, layout) = (shape.group(), kernel.layout());
        let (depth, buffer) = (layout.depth(shape.head_dim), layout.buffer(shape.head_dim));
        let rows = block_rows(shape, shape.tokens);
        let strips = group * rows / STRIP_ROWS;
        // For a source that prefers whole blocks.
        let gathered = rows * strip_heads(0, group).len() * shape.head_dim;
        let of_sets: usize = (0..SIZES).map(|size| (rows << size) / STRIP_ROWS).sum();
        let words = STRIP_ROWS * buffer + strips;
        let of_segment = size_of::<Option<usize>>() + size_of::<LaneSums>();
        (words * size_of::<u32>() + of_sets * size_of::<Strip>() + segments * of_segment) as u64
            + AlignedWords::bytes(gathered)
            + AlignedWords::bytes(group * rows * depth)
            + 2 * AlignedWords::bytes(CHUNK_WORDS)
            + OnlineSoftmax::bytes(strips, segments)
    }
}

/// Returns the sums of each part for `rows` (at most one block) of the query heads of `key_head`.
pub(crate) fn block_sums(
    window: &WindowInput<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: PackedKeys<'_>,
    scratch: &mut BlockScratch,
) -> Vec<PartSums> {
    let block = RowBlock::new(window, key_head, rows, keys);
    block.process(scratch);
    run(CollectRows { block: &block, softmax: &scratch.softmax })
}

/// Sums the attention of rows `rows`, at most a block, of the query heads of `key_head`, part by part. Keys are summed
/// by segment, and so are rows; segments end before the keys `ends`.
pub(crate) fn segment_sums(
    window: &WindowInput<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: PackedKeys<'_>,
    ends: &[usize],
    scratch: &mut BlockScratch,
) -> Vec<SegmentSums> {
    let block = RowBlock::new(window, key_head, rows, keys);
    block.process(scratch);
    block.parts().map(|rows| block.collect_segments(rows, &scratch.softmax, ends)).collect()
}

/// One block's part of a window.
struct RowBlock<'a> {
    window: &'a WindowInput<'a>,
    key_head: usize,
    rows: Range<usize>,
    keys: PackedKeys<'a>,
    /// Rows of each query head in a whole block, which determine the index of a strip.
    height: usize,
}

impl<'a> RowBlock<'a> {
    fn new(
        window: &'a WindowInput<'a>,
        key_head: usize,
        rows: Range<usize>,
        keys: PackedKeys<'a>,
    ) -> Self {
        Self { window, key_head, rows, keys, height: window.block_rows() }
    }

    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        pieces(&self.rows, PART_ROWS)
    }

    /// Returns the group's heads, in sets whose rows share strips.
    fn sets_of_heads(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        sets_of_heads(self.window.shape.group())
    }

    /// Returns the index of the softmax of a strip of some heads of the group.
    fn state(&self, heads: &Range<usize>, strip: usize) -> usize {
        heads.start * (self.height / STRIP_ROWS) + strip
    }

    /// Returns the heads of the group, as indices of the window's heads.
    fn window_heads(&self, heads: &Range<usize>) -> Range<usize> {
        let first = self.key_head * self.window.shape.group();
        first + heads.start..first + heads.end
    }

    /// Processes all keys of the block's rows; `scratch` then holds their softmax.
    fn process(&self, scratch: &mut BlockScratch) {
        with_tile(self.window.kernel, BlockLoop { block: self, scratch });
    }

    /// Runs the pipelined main loop: computes the products of a step while it sums the softmax of the previous one, so
    /// that units which do only one of the two stay busy.
    #[inline(always)]
    fn main_loop<T: Tile>(&self, tile: T, scratch: &mut BlockScratch) {
        // Queries are loaded before the session starts, because a source may run other work on this thread.
        run(LoadQueries { block: self, layout: tile.layout(), scratch: &mut *scratch });
        let mut session = tile.begin();
        let BlockScratch { queries, norms, logits: [logits, ahead], strips, softmax, .. } = scratch;
        let (mut logits, mut ahead) =
            (logits.floats_mut().as_chunks_mut().0, ahead.floats_mut().as_chunks_mut().0);
        let mut steps = BlockSteps::new(self.window, &self.rows, T::CHUNK_KEYS);
        let (mut next, mut current) = (steps.next(), None);
        loop {
            if let Some(step) = &next {
                self.multiply(tile, &mut session, step, queries, ahead);
            }
            if let Some(step) = &current {
                self.sum(tile, step, strips, norms, logits, softmax);
            }
            (logits, ahead) = (ahead, logits);
            current = next;
            if current.is_none() {
                return;
            }
            next = steps.next();
        }
    }

    /// Computes the products of a step's keys with its queries.
    #[inline(always)]
    fn multiply<T: Tile>(
        &self,
        tile: T,
        session: &mut T::Session,
        step: &BlockStep,
        queries: &[u32],
        logits: &mut Logits,
    ) {
        let layout = tile.layout();
        let (depth, width) = (layout.depth(self.window.shape.head_dim), layout.keys);
        let first = self.state(&step.heads(), step.strip) * STRIP_ROWS * depth;
        let queries = &queries[first..][..STRIP_ROWS * depth];
        for panel in step.panels(width) {
            let keys = &self.keys.panels[panel * width * depth..][..width * depth];
            let logits = &mut logits[panel * width - step.first..];
            tile.multiply(session, keys, queries, step.rows, logits);
        }
    }

    /// Sums a step whose products have been computed.
    #[inline(always)]
    fn sum<T: Tile>(
        &self,
        tile: T,
        step: &BlockStep,
        strips: &[Vec<Strip>; SIZES],
        norms: &[f32],
        logits: &mut Logits,
        softmax: &mut OnlineSoftmax,
    ) {
        let WindowInput { rules, segments, .. } = self.window;
        let (simd, strip, keys) =
            (tile.simd(), &strips[size_of_set(&step.heads())][step.strip], step.keys());
        if step.is_first() {
            let state = self.state(&step.heads(), step.strip);
            let bounded = self.is_bounded(step, norms[state], softmax);
            softmax.open(state, strip, keys.start, bounded, T::GROUP_ROWS, segments);
        }
        if rules.softcap.is_some() || rules.alibi_slopes.is_some() {
            let logits = &mut logits[keys.start - step.first..keys.end - step.first];
            apply_softcap_and_alibi(
                simd,
                rules,
                &self.window_heads(&step.heads()),
                strip,
                keys.start,
                logits,
            );
        }
        softmax.absorb(simd, strip, &keys, step.first, logits, T::GROUP_ROWS, segments);
        if step.is_last() {
            softmax.close(simd, strip, T::GROUP_ROWS);
        }
    }

    /// Whether the logits of a strip's tile are certainly so small that they need no offset: `|q·k| <= ‖q‖·‖k‖`.
    #[inline(always)]
    fn is_bounded(&self, step: &BlockStep, norm: f32, softmax: &OnlineSoftmax) -> bool {
        let rules = self.window.rules;
        rules.softcap.is_none()
            && rules.alibi_slopes.is_none()
            && norm * self.keys.norms[step.tile / TILE_KEYS] <= BOUND
            && softmax.are_at_zero(self.state(&step.heads(), step.strip), step.rows)
    }

    /// Gathers the block's queries and packs them.
    #[inline(always)]
    fn load_queries(&self, transpose: impl Transpose, layout: Layout, scratch: &mut BlockScratch) {
        let WindowInput { shape, .. } = self.window;
        let (head_dim, depth) = (shape.head_dim, layout.depth(shape.head_dim));
        let BlockScratch { gathered, buffer, queries, norms, strips, softmax, .. } = scratch;
        for heads in self.sets_of_heads() {
            let strip_rows = STRIP_ROWS / heads.len();
            for rows in pieces(&self.rows, rows_at_once(self.window, heads.len())) {
                let gathered = &mut gathered.floats_mut()[..heads.len() * rows.len() * head_dim];
                self.window.gather(
                    self.window_heads(&heads),
                    rows.clone(),
                    self.rows.end,
                    gathered,
                );
                self.scale(rows.clone(), heads.len(), gathered);
                let first = (rows.start - self.rows.start) / strip_rows;
                for (strip, rows) in gathered.chunks(STRIP_ROWS * head_dim).enumerate() {
                    let state = self.state(&heads, first + strip);
                    let (width, together) = (layout.queries, 1);
                    let panels = &mut queries[state * STRIP_ROWS * depth..];
                    let panels = &mut panels[..STRIP_ROWS * depth];
                    let packing =
                        Packing { layout, width, together, rows, head_dim, buffer, panels };
                    norms[state] = packing.run(transpose);
                }
            }
        }
        strips.iter_mut().for_each(Vec::clear);
        for heads in self.sets_of_heads() {
            let strips = &mut strips[size_of_set(&heads)];
            if strips.is_empty() {
                let rows = pieces(&self.rows, STRIP_ROWS / heads.len());
                strips.extend(rows.map(|rows| Strip::new(self.window, &rows, heads.len())));
            }
        }
        softmax.clear();
    }

    /// Scales queries, `[rows, heads, head_dim]`, by the [factor of all queries](WindowInput::scales) and the model's factor of each
    /// position.
    #[inline(always)]
    fn scale(&self, rows: Range<usize>, heads: usize, queries: &mut [f32]) {
        let WindowInput { rules, shape, .. } = self.window;
        let (of_all, _) = self.window.scales();
        for (row, queries) in rows.zip(queries.chunks_exact_mut(heads * shape.head_dim)) {
            let of_position = rules.query_scale.as_ref();
            let of_position = of_position.map_or(1.0, |scale| scale[self.window.position(row)]);
            scale(queries, of_all * f64::from(of_position));
        }
    }

    /// Returns the sink logit of each row of a strip, which joins the softmax's denominator, in units of log2.
    fn sinks(&self, heads: &Range<usize>) -> Option<[f64; STRIP_ROWS]> {
        let sinks = &self.window.rules.sinks.as_ref()?[self.window_heads(heads)];
        let of_lane = |lane: usize| f64::from(sinks[lane % heads.len()]);
        Some(std::array::from_fn(|lane| of_lane(lane) * std::f64::consts::LOG2_E))
    }

    /// Iterates over the finished strips of a set of heads in a range of measured rows. Each has its rows and, by lane,
    /// the number of rows of the window that a sampled row represents.
    #[inline(always)]
    fn finished<'s>(
        &self,
        heads: &Range<usize>,
        rows: &Range<usize>,
        softmax: &'s OnlineSoftmax,
    ) -> impl Iterator<Item = (Range<usize>, [f64; STRIP_ROWS], FinishedStrip<'s>)> {
        let sinks = self.sinks(heads);
        let strip_rows = STRIP_ROWS / heads.len();
        pieces(rows, strip_rows).map(move |rows| {
            let state = self.state(heads, (rows.start - self.rows.start) / strip_rows);
            let finished = softmax.finish(state, sinks.as_ref(), &self.window.segments);
            let mut weights = [0.0; STRIP_ROWS];
            for (weights, row) in weights.chunks_exact_mut(heads.len()).zip(rows.clone()) {
                weights.fill(self.window.weight(row));
            }
            (rows, weights, finished)
        })
    }

    /// Sums finished rows by segments of queries and keys.
    fn collect_segments(
        &self,
        rows: Range<usize>,
        softmax: &OnlineSoftmax,
        ends: &[usize],
    ) -> SegmentSums {
        let segment_of = |row: usize| {
            let position = self.window.position(row);
            ends.partition_point(|end| *end <= position)
        };
        let first = segment_of(rows.start);
        let last = segment_of(rows.end - 1);
        let mut masses = vec![0.0; (last - first + 1) * ends.len()];
        for heads in self.sets_of_heads() {
            for (rows, weights, finished) in self.finished(&heads, &rows, softmax) {
                let scales = products(&weights, &finished.scales);
                let mut from = rows.start;
                while from < rows.end {
                    let segment = segment_of(from);
                    let to = (from + 1..rows.end).find(|row| segment_of(*row) != segment);
                    let to = to.unwrap_or(rows.end);
                    let lanes = heads.len() * (from - rows.start)..heads.len() * (to - rows.start);
                    let sums = &mut masses[(segment - first) * ends.len()..];
                    for (sum, masses) in sums.iter_mut().zip(finished.masses) {
                        let mut by_lane = LaneSums::default();
                        add_products(&mut by_lane, &scales, masses, &lanes);
                        *sum += folded(by_lane, 1)[0];
                    }
                    from = to;
                }
            }
        }
        SegmentSums { first, masses }
    }

    #[inline(always)]
    fn collect(&self, rows: Range<usize>, softmax: &OnlineSoftmax) -> PartSums {
        let WindowInput { shape, segments, bins, .. } = self.window;
        let group = shape.group();
        let bins_of_segments: Vec<_> =
            (0..segments.count()).map(|segment| segments.bin(segment)).collect();
        let mut sums = PartSums {
            far_mass: vec![0.0; group],
            far_square: vec![0.0; group],
            histogram: vec![0.0; *bins],
            rows: vec![0.0; rows.len()],
            row_squares: vec![0.0; rows.len()],
        };
        let mut of_segments = vec![LaneSums::default(); segments.count()];
        for heads in self.sets_of_heads() {
            let (mut of_masses, mut of_squares) = (LaneSums::default(), LaneSums::default());
            for (of_strip, weights, finished) in self.finished(&heads, &rows, softmax) {
                let FinishedStrip { far_masses, far_squares, masses, scales } = finished;
                let lanes = 0..of_strip.len() * heads.len();
                add_products(&mut of_masses, &weights, &far_masses, &lanes);
                add_products(&mut of_squares, &weights, &far_squares, &lanes);
                let first = of_strip.start - rows.start;
                let of_rows = |values| sums_of_neighbours(values, heads.len());
                add(&mut sums.rows[first..][..of_strip.len()], &of_rows(&far_masses));
                add(&mut sums.row_squares[first..][..of_strip.len()], &of_rows(&far_squares));
                let scales = products(&weights, &scales);
                for (sums, masses) in of_segments.iter_mut().zip(masses) {
                    add_products(sums, &scales, masses, &lanes);
                }
            }
            add(&mut sums.far_mass[heads.clone()], &folded(of_masses, heads.len()));
            add(&mut sums.far_square[heads.clone()], &folded(of_squares, heads.len()));
        }
        for (by_lane, bin) in of_segments.into_iter().zip(&bins_of_segments) {
            if let Some(bin) = *bin {
                sums.histogram[bin] += folded(by_lane, 1)[0];
            }
        }
        sums
    }
}

/// Returns the rows, `length` at a time.
fn pieces(rows: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = rows.end;
    rows.clone().step_by(length).map(move |first| first..end.min(first + length))
}

/// Multiplies numbers, rounding once.
#[inline(always)]
pub(crate) fn scale(values: &mut [f32], factor: f64) {
    #[expect(clippy::float_cmp, reason = "a factor of exactly 1 is skipped")]
    if factor == 1.0 {
        return;
    }
    for value in values {
        *value = (f64::from(*value) * factor) as f32;
    }
}

/// Adds values to the first elements of `to`.
#[inline(always)]
pub(crate) fn add(to: &mut [f64], values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
}

#[inline(always)]
fn products(a: &[f64; STRIP_ROWS], b: &[f64; STRIP_ROWS]) -> [f64; STRIP_ROWS] {
    std::array::from_fn(|lane| a[lane] * b[lane])
}

/// Sums of every eighth lane of a strip; eight is a multiple of the heads of every set.
type LaneSums = [f64; 8];

/// Adds `a·b` of some lanes. The other lanes are ignored and need not be numbers.
#[inline(always)]
fn add_products(
    sums: &mut LaneSums,
    a: &[f64; STRIP_ROWS],
    b: &[f64; STRIP_ROWS],
    lanes: &Range<usize>,
) {
    if lanes.len() == STRIP_ROWS {
        return add_lanes(sums, products(a, b));
    }
    let mut terms = products(a, b);
    terms[..lanes.start].fill(0.0);
    terms[lanes.end..].fill(0.0);
    add_lanes(sums, terms);
}

#[inline(always)]
fn add_lanes(sums: &mut LaneSums, terms: [f64; STRIP_ROWS]) {
    let mut added = *sums;
    for terms in terms.as_chunks::<8>().0 {
        for (sum, term) in added.iter_mut().zip(terms) {
            *sum += term;
        }
    }
    *sums = added;
}

/// Sums every `count`-th lane into the first `count` lanes, in halves.
#[inline(always)]
fn folded(mut sums: LaneSums, count: usize) -> LaneSums {
    let mut lanes = sums.len();
    while lanes > count {
        lanes /= 2;
        for lane in 0..lanes {
            sums[lane] += sums[lane + lanes];
        }
    }
    sums
}

/// Sums each `count` neighbouring lanes (one, two or four) into the first lanes.
#[inline(always)]
fn sums_of_neighbours(values: &[f64; STRIP_ROWS], count: usize) -> [f64; STRIP_ROWS] {
    let mut sums = *values;
    let mut added = 1;
    while added < count {
        for lane in 0..STRIP_ROWS / 2 {
            sums[lane] = sums[2 * lane] + sums[2 * lane + 1];
        }
        added *= 2;
    }
    sums
}

/// Sums of a block's finished rows.
struct CollectRows<'a, 'b> {
    block: &'a RowBlock<'b>,
    softmax: &'a OnlineSoftmax,
}

impl SimdOp for CollectRows<'_, '_> {
    type Result = Vec<PartSums>;

    #[inline(always)]
    fn run(self, _: impl Transpose) -> Vec<PartSums> {
        let mut parts = Vec::with_capacity(self.block.rows.len().div_ceil(PART_ROWS));
        for rows in self.block.parts() {
            parts.push(self.block.collect(rows, self.softmax));
        }
        parts
    }
}

struct BlockLoop<'a, 'b> {
    block: &'a RowBlock<'b>,
    scratch: &'a mut BlockScratch,
}

impl TileOp for BlockLoop<'_, '_> {
    type Result = ();

    #[inline(always)]
    fn run<T: Tile>(self, tile: T) {
        self.block.main_loop(tile, self.scratch);
    }
}

/// Loads a block's queries, outside the main loop, whose registers it would use.
struct LoadQueries<'a, 'b> {
    block: &'a RowBlock<'b>,
    layout: Layout,
    scratch: &'a mut BlockScratch,
}

impl SimdOp for LoadQueries<'_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(self, transpose: impl Transpose) {
        self.block.load_queries(transpose, self.layout, self.scratch);
    }
}

/// Turns products into logits for models that do more than scale: softcap, then `ALiBi`. `logits` begin with those of
/// key `first`; `heads` are the strip's.
#[inline(always)]
fn apply_softcap_and_alibi<S: Simd>(
    simd: S,
    rules: &LogitRules,
    heads: &Range<usize>,
    strip: &Strip,
    first: usize,
    logits: &mut Logits,
) {
    if let Some(cap) = rules.softcap {
        let cap = simd.splat((f64::from(cap) * std::f64::consts::LOG2_E) as f32);
        for logits in logits.as_flattened_mut().chunks_exact_mut(S::LANES) {
            simd.store(simd.mul(cap, tanh(simd, simd.load(logits))), logits);
        }
    }
    if let Some(slopes) = &rules.alibi_slopes {
        let slopes = &slopes[heads.clone()];
        let of_lane =
            |lane: usize| f64::from(slopes[lane % slopes.len()]) * std::f64::consts::LOG2_E;
        let slopes: [f32; STRIP_ROWS] = std::array::from_fn(|lane| of_lane(lane) as f32);
        let positions = strip.positions_from(first);
        for (key, logits) in logits.iter_mut().enumerate() {
            let key = simd.splat(key as f32);
            let of_lanes = positions.chunks_exact(S::LANES).zip(slopes.chunks_exact(S::LANES));
            for (logits, (positions, slopes)) in logits.chunks_exact_mut(S::LANES).zip(of_lanes) {
                let distance = simd.sub(key, simd.load(positions));
                let logit = simd.mul_add(simd.load(slopes), distance, simd.load(logits));
                simd.store(logit, logits);
            }
        }
    }
}
