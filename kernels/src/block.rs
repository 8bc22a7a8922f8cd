//! A block of rows of every query head that shares one key head, against all its keys.

use std::ops::Range;

use crate::kernel::Kernel;
use crate::masks::visible_keys;
use crate::online_softmax::{BOUND, Logits, OnlineSoftmax};
use crate::panels::{Layout, Packing};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{LANE_INDICES, Portable, Simd, tanh};
#[cfg(target_arch = "aarch64")]
use crate::simd::{Neon, Twice};
use crate::statistics::{AttentionShape, LogitRules};
use crate::steps::{Step, Steps};
use crate::tile::int16::PortableInt16Tile;
#[cfg(target_arch = "x86_64")]
use crate::tile::{
    Avx2Tile, Avx512Tile, amx::AmxTile, bf16_dot::Bf16DotTile, int16::avx2::Avx2Int16Tile,
    int16::avx512::Avx512Int16Tile,
};
use crate::tile::{LOGIT_STRIDE, PortableTile, TILE_KEYS, Tile};
#[cfg(target_arch = "aarch64")]
use crate::tile::{NeonTile, int16::neon::NeonInt16Tile};
use crate::window::{PART_ROWS, Window, block_rows};
use crate::words::Words;
use crate::work::{Work, run};

/// Strips are at least this high.
const LEAST_STRIP_ROWS: usize = 24;
/// Strips are at most this high.
const MOST_STRIP_ROWS: usize = 32;

/// The keys of one head.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// `[⌈tokens/width⌉, depth, width]`
    pub(crate) panels: &'a [u32],
    /// `[⌈tokens/TILE_KEYS⌉]`: the largest norm of a tile's keys.
    pub(crate) norms: &'a [f32],
}

/// Sums of one part of a block, rows added in ascending order.
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

/// Attention of one part's rows by segments of keys, summed over the group's heads, rows added in ascending order.
pub(crate) struct SegmentSums {
    /// The segment of the part's first row.
    pub(crate) first: usize,
    /// `[segments of the rows, segments]`
    pub(crate) masses: Vec<f64>,
}

/// Buffers of one thread, reused from block to block.
pub(crate) struct Scratch {
    /// `[block rows, head_dim]`
    gathered: Vec<f32>,
    /// `[MOST_STRIP_ROWS, Layout::buffer]`
    buffer: Vec<u32>,
    /// `[group, block rows, depth]`: scaled queries in panels.
    queries: Words,
    /// `[group, strips of a block]`: the largest norm of a strip's scaled queries.
    norms: Vec<f32>,
    /// Two strips of logits, each `[MOST_STRIP_ROWS, LOGIT_STRIDE]`.
    logits: [Words; 2],
    /// `[group · block rows]`
    softmax: OnlineSoftmax,
}

/// Words of one strip's logits.
const STRIP_WORDS: usize = MOST_STRIP_ROWS * LOGIT_STRIDE;

impl Scratch {
    pub(crate) fn new(window: &Window<'_>) -> Self {
        let (group, head_dim) = (window.shape.group(), window.shape.head_dim);
        let layout = window.kernel.layout();
        let depth = layout.depth(head_dim);
        let rows = window.block_rows();
        Self {
            gathered: vec![0.0; rows * head_dim],
            buffer: vec![0; MOST_STRIP_ROWS * layout.buffer(head_dim)],
            queries: Words::new(group * rows * depth),
            norms: vec![0.0; group * rows / LEAST_STRIP_ROWS],
            logits: [Words::new(STRIP_WORDS), Words::new(STRIP_WORDS)],
            softmax: OnlineSoftmax::new(group * rows, window.segments.count()),
        }
    }

    /// Heap bytes of one thread's buffers.
    pub(crate) fn bytes(kernel: Kernel, shape: &AttentionShape, segments: usize) -> u64 {
        let (group, layout) = (shape.group(), kernel.layout());
        let (depth, buffer) = (layout.depth(shape.head_dim), layout.buffer(shape.head_dim));
        let rows = block_rows(shape, shape.tokens);
        let floats =
            rows * shape.head_dim + MOST_STRIP_ROWS * buffer + group * rows / LEAST_STRIP_ROWS;
        (floats * size_of::<f32>()) as u64
            + Words::bytes(group * rows * depth)
            + 2 * Words::bytes(STRIP_WORDS)
            + OnlineSoftmax::bytes(group * rows, segments)
    }
}

/// The sums of rows `rows` of the query heads of `key_head`, at most a block of them, part by part.
pub(crate) fn block_sums(
    window: &Window<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: Keys<'_>,
    scratch: &mut Scratch,
) -> Vec<PartSums> {
    let block = Block::new(window, key_head, rows, keys);
    block.take(scratch);
    block.parts().map(|rows| block.collect(rows, &scratch.softmax)).collect()
}

/// The attention of rows `rows` of the query heads of `key_head`, at most a block of them, part by part, by the window's
/// segments, which end before the keys `ends`: what rows of one segment give is one sum.
pub(crate) fn segment_sums(
    window: &Window<'_>,
    key_head: usize,
    rows: Range<usize>,
    keys: Keys<'_>,
    ends: &[usize],
    scratch: &mut Scratch,
) -> Vec<SegmentSums> {
    let block = Block::new(window, key_head, rows, keys);
    block.take(scratch);
    block.parts().map(|rows| block.collect_segments(rows, &scratch.softmax, ends)).collect()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn walk_avx2(block: &Block<'_>, scratch: &mut Scratch) {
    block.walk(Avx2Tile::new(Avx2::new()), scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn walk_avx512(block: &Block<'_>, scratch: &mut Scratch) {
    block.walk(Avx512Tile::new(Avx512::new()), scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bf16")]
fn walk_bf16_dot(block: &Block<'_>, scratch: &mut Scratch) {
    block.walk(Bf16DotTile::new(), scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn walk_avx2_int16(block: &Block<'_>, scratch: &mut Scratch) {
    block.walk(Avx2Int16Tile::avx2(), scratch);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vnni")]
fn walk_avx512_int16(block: &Block<'_>, scratch: &mut Scratch) {
    block.walk(Avx512Int16Tile::avx512(), scratch);
}

/// # Safety
/// As for [`AmxTile::new`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn walk_amx(block: &Block<'_>, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    block.walk(unsafe { AmxTile::new() }, scratch);
}

/// One block's part of a window.
struct Block<'a> {
    window: &'a Window<'a>,
    key_head: usize,
    rows: Range<usize>,
    keys: Keys<'a>,
    /// Rows of each query head that a whole block has: the pitch of what is kept by row.
    height: usize,
}

impl<'a> Block<'a> {
    fn new(window: &'a Window<'a>, key_head: usize, rows: Range<usize>, keys: Keys<'a>) -> Self {
        Self { window, key_head, rows, keys, height: window.block_rows() }
    }

    /// Its rows, part by part.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.rows.end;
        self.rows.clone().step_by(PART_ROWS).map(move |first| first..end.min(first + PART_ROWS))
    }

    /// Where the softmax of a measured row of a query head of the group is kept.
    fn state(&self, head: usize, row: usize) -> usize {
        head * self.height + row - self.rows.start
    }

    /// Meets all keys of the block's rows: their softmax is then in `scratch`.
    fn take(&self, scratch: &mut Scratch) {
        self.window.kernel.assert_supported();
        match self.window.kernel {
            Kernel::PortableF32 => self.walk(PortableTile::new(Portable), scratch),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX2 and FMA are there.
            Kernel::Avx2F32 => unsafe { walk_avx2(self, scratch) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX-512 F and DQ are there.
            Kernel::Avx512F32 => unsafe { walk_avx512(self, scratch) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX-512 F, DQ and BF16 are there.
            Kernel::Avx512Bf16 => unsafe { walk_bf16_dot(self, scratch) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AMX may be used, and AVX-512 F and DQ are there.
            Kernel::AmxBf16 => unsafe { walk_amx(self, scratch) },
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonF32 => self.walk(NeonTile::new(Twice::new(Neon)), scratch),
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonInt16 => self.walk(NeonInt16Tile::neon(), scratch),
            Kernel::PortableInt16 => self.walk(PortableInt16Tile::portable(), scratch),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX2 and FMA are there.
            Kernel::Avx2Int16 => unsafe { walk_avx2_int16(self, scratch) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX-512 F, DQ and VNNI are there.
            Kernel::Avx512Int16 => unsafe { walk_avx512_int16(self, scratch) },
            _ => unreachable!("not supported on this target"),
        }
    }

    /// Takes the block's steps: the products of one step are formed while the softmax of the step before is summed,
    /// panel by panel and a few rows at a time, so that units which do only the one or the other stay busy.
    #[inline(always)]
    fn walk<T: Tile>(&self, tile: T, scratch: &mut Scratch) {
        run(Loading {
            block: self,
            layout: tile.layout(),
            strip_rows: T::STRIP_ROWS,
            scratch: &mut *scratch,
        }); // before the session: a source may run work of its own on this thread
        let mut session = tile.begin();
        let Scratch { queries, norms, logits: [logits, ahead], softmax, .. } = scratch;
        let (mut logits, mut ahead) = (logits.floats(), ahead.floats());
        let width = tile.layout().keys;
        let mut steps = Steps::new(self.window, &self.rows, T::STRIP_ROWS);
        let mut step = steps.next();
        if let Some(step) = &step {
            for panel in step.panels(width) {
                self.multiply(tile, &mut session, step, panel, queries, logits);
            }
        }
        while let Some(current) = step {
            let next = steps.next();
            let bounded = self.is_bounded(&current, T::STRIP_ROWS, norms, softmax);
            let panels = next.as_ref().map_or(0..0, |next| next.panels(width));
            let parts = panels.len().max(1);
            let mut row = 0;
            for part in 0..parts {
                if let Some(next) = &next {
                    let panel = panels.start + part;
                    self.multiply(tile, &mut session, next, panel, queries, ahead);
                }
                let end = current.rows.len() * (part + 1) / parts;
                self.sum_rows(tile.simd(), &current, row..end, bounded, logits, softmax);
                row = end;
            }
            (logits, ahead) = (ahead, logits);
            step = next;
        }
    }

    /// The products of a step's queries with one panel of keys, written to the columns of those keys.
    #[inline(always)]
    fn multiply<T: Tile>(
        &self,
        tile: T,
        session: &mut T::Session,
        step: &Step,
        panel: usize,
        queries: &[u32],
        logits: &mut [f32],
    ) {
        let depth = tile.layout().depth(self.window.shape.head_dim);
        let width = tile.layout().keys;
        let first = (step.head * self.height + step.strip * T::STRIP_ROWS) * depth;
        let queries = &queries[first..][..T::STRIP_ROWS * depth];
        let keys = &self.keys.panels[panel * width * depth..][..width * depth];
        let logits = &mut logits[panel * width - step.tile..];
        tile.multiply(session, queries, keys, step.rows.len(), logits);
    }

    /// Sums rows `rows` of a strip whose products are done.
    #[inline(always)]
    fn sum_rows<S: Simd>(
        &self,
        simd: S,
        step: &Step,
        rows: Range<usize>,
        bounded: bool,
        logits: &mut [f32],
        softmax: &mut OnlineSoftmax,
    ) {
        let Window { shape, rules, segments, .. } = self.window;
        for row in rows {
            let measured = step.rows.start + row;
            let position = self.window.position(measured);
            let seen = visible_keys(rules, shape.tokens, position);
            let seen = seen.start.max(step.keys.start)..seen.end.min(step.keys.end);
            if seen.is_empty() {
                continue;
            }
            let logits = &mut logits[row * LOGIT_STRIDE..][..LOGIT_STRIDE];
            if rules.softcap.is_some() || rules.alibi_slopes.is_some() {
                let head = self.key_head * shape.group() + step.head;
                apply_softcap_and_alibi(
                    simd,
                    rules,
                    head,
                    position,
                    seen.clone(),
                    step.tile,
                    logits,
                );
            }
            let state = self.state(step.head, measured);
            let logits = Logits { values: logits, first: step.tile, bounded };
            softmax.absorb(simd, state, position, seen, &logits, segments);
        }
    }

    /// Whether the logits of a step are known to be so small that they need no offset: `|q·k| <= ‖q‖·‖k‖`.
    #[inline(always)]
    fn is_bounded(
        &self,
        step: &Step,
        strip_rows: usize,
        norms: &[f32],
        softmax: &OnlineSoftmax,
    ) -> bool {
        let rules = self.window.rules;
        let strips = self.height / strip_rows;
        let norm = norms[step.head * strips + step.strip];
        let state = self.state(step.head, step.rows.start);
        rules.softcap.is_none()
            && rules.alibi_slopes.is_none()
            && norm * self.keys.norms[step.tile / TILE_KEYS] <= BOUND
            && softmax.are_at_zero(state..state + step.rows.len())
    }

    /// Gathers the block's queries and packs them, scaled so that their products with keys are final logits in units
    /// of log2 (or, with a softcap, the argument of its tanh).
    #[inline(always)]
    fn load_queries(&self, layout: Layout, strip_rows: usize, scratch: &mut Scratch) {
        let Window { shape, rules, .. } = self.window;
        let (group, head_dim) = (shape.group(), shape.head_dim);
        let depth = layout.depth(head_dim);
        let unit = match rules.softcap {
            Some(cap) => 1.0 / f64::from(cap),
            None => std::f64::consts::LOG2_E,
        };
        let unit = unit * f64::from(rules.scale);
        let Scratch { gathered, buffer, queries, norms, .. } = scratch;
        let gathered = &mut gathered[..self.rows.len() * head_dim];
        let heads = queries.chunks_exact_mut(self.height * depth);
        let norms = norms.chunks_exact_mut(self.height / strip_rows);
        for (head, (panels, norms)) in heads.zip(norms).enumerate() {
            self.window.gather(self.key_head * group + head, self.rows.clone(), gathered);
            let strips = gathered.chunks_mut(strip_rows * head_dim).enumerate();
            let panels = panels.chunks_exact_mut(strip_rows * depth);
            for (((strip, rows), panels), largest) in strips.zip(panels).zip(norms) {
                for (row, query) in rows.chunks_exact_mut(head_dim).enumerate() {
                    let row = self.rows.start + strip * strip_rows + row;
                    let scale = rules.query_scale.as_ref();
                    let scale = scale.map_or(1.0, |scale| scale[self.window.position(row)]);
                    let scale = unit * f64::from(scale);
                    for value in query {
                        *value = (f64::from(*value) * scale) as f32;
                    }
                }
                let width = layout.query_rows;
                *largest = Packing { layout, width, rows, head_dim, buffer, panels }.run();
            }
        }
        scratch.softmax.clear(&self.window.segments);
    }

    /// The logit of a query head of the group that joins the softmax's denominator, in units of log2.
    fn sink(&self, head: usize) -> Option<f64> {
        let Window { shape, rules, .. } = self.window;
        let sinks = rules.sinks.as_ref()?;
        Some(f64::from(sinks[self.key_head * shape.group() + head]) * std::f64::consts::LOG2_E)
    }

    /// Adds up finished rows by segments of queries and keys.
    fn collect_segments(
        &self,
        rows: Range<usize>,
        softmax: &OnlineSoftmax,
        ends: &[usize],
    ) -> SegmentSums {
        let Window { shape, segments, .. } = self.window;
        let segment_of = |row: usize| {
            let position = self.window.position(row);
            ends.partition_point(|end| *end <= position)
        };
        let first = segment_of(rows.start);
        let last = segment_of(rows.end - 1);
        let mut masses = vec![0.0; (last - first + 1) * ends.len()];
        for head in 0..shape.group() {
            let sink = self.sink(head);
            for row in rows.clone() {
                let finished = softmax.finish(self.state(head, row), sink, segments);
                let scale = self.window.weight(row) * finished.scale;
                let sums = &mut masses[(segment_of(row) - first) * ends.len()..];
                sums.iter_mut().zip(finished.masses).for_each(|(sum, mass)| *sum += scale * mass);
            }
        }
        SegmentSums { first, masses }
    }

    /// Adds up finished rows.
    fn collect(&self, rows: Range<usize>, softmax: &OnlineSoftmax) -> PartSums {
        let Window { shape, segments, bins, .. } = self.window;
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
        for head in 0..group {
            let sink = self.sink(head);
            for (row, measured) in rows.clone().enumerate() {
                let finished = softmax.finish(self.state(head, measured), sink, segments);
                let weight = self.window.weight(measured);
                sums.far_mass[head] += weight * finished.far_mass;
                sums.far_square[head] += weight * finished.far_square;
                sums.rows[row] += finished.far_mass;
                sums.row_squares[row] += finished.far_square;
                for (mass, bin) in finished.masses.iter().zip(&bins_of_segments) {
                    if let Some(bin) = *bin {
                        sums.histogram[bin] += weight * mass * finished.scale;
                    }
                }
            }
        }
        sums
    }
}

/// A block whose queries are to be loaded: apart from its walk, whose registers that would take.
struct Loading<'a, 'b> {
    block: &'a Block<'b>,
    layout: Layout,
    strip_rows: usize,
    scratch: &'a mut Scratch,
}

impl Work for Loading<'_, '_> {
    type Found = ();

    #[inline(always)]
    fn run(self) {
        self.block.load_queries(self.layout, self.strip_rows, self.scratch);
    }
}

/// Turns products into logits where the model does more than scale: softcap, then `ALiBi`. Column 0 of `logits` is key
/// `first`; columns beside those of `keys` may change as well.
#[inline(always)]
fn apply_softcap_and_alibi<S: Simd>(
    simd: S,
    rules: &LogitRules,
    head: usize,
    row: usize,
    keys: Range<usize>,
    first: usize,
    logits: &mut [f32],
) {
    let start = (keys.start - first) / S::LANES * S::LANES;
    let logits = &mut logits[start..(keys.end - first).next_multiple_of(S::LANES)];
    if let Some(cap) = rules.softcap {
        let cap = simd.splat((f64::from(cap) * std::f64::consts::LOG2_E) as f32);
        for logits in logits.chunks_exact_mut(S::LANES) {
            simd.store(simd.mul(cap, tanh(simd, simd.load(logits))), logits);
        }
    }
    if let Some(slopes) = &rules.alibi_slopes {
        let slope = simd.splat((f64::from(slopes[head]) * std::f64::consts::LOG2_E) as f32);
        let distance = (first + start) as f32 - row as f32;
        let mut distance = simd.add(simd.splat(distance), simd.load(&LANE_INDICES));
        for logits in logits.chunks_exact_mut(S::LANES) {
            simd.store(simd.mul_add(slope, distance, simd.load(logits)), logits);
            distance = simd.add(distance, simd.splat(S::LANES as f32));
        }
    }
}
