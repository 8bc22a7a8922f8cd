//! A block of rows of every query head that shares one key head, against all its keys.

use std::ops::Range;

use crate::kernel::Kernel;
use crate::online_softmax::{BOUND, FinishedStrip, Logits, OnlineSoftmax, STRIP_ROWS, Strip};
use crate::panels::{Layout, Packing};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
#[cfg(target_arch = "aarch64")]
use crate::simd::{Neon, Twice};
use crate::simd::{Portable, Simd, tanh};
use crate::statistics::{AttentionShape, LogitRules};
use crate::steps::{Step, Steps};
use crate::tile::int16::PortableInt16Tile;
#[cfg(target_arch = "x86_64")]
use crate::tile::{
    Avx2Tile, Avx512Tile, amx, amx::AmxTile, bf16_dot::Bf16DotTile, int16::avx2::Avx2Int16Tile,
    int16::avx512::Avx512Int16Tile,
};
use crate::tile::{MOST_CHUNK_KEYS, PortableTile, TILE_KEYS, Tile};
#[cfg(target_arch = "aarch64")]
use crate::tile::{NeonTile, int16::neon::NeonInt16Tile};
use crate::transpose::Registers;
use crate::window::{PART_ROWS, Window, block_rows};
use crate::words::Words;
use crate::work::{Work, run};

/// The most query heads whose rows are gathered together.
const MOST_HEADS: usize = 4;

/// How many rows are gathered at a time, those of several heads together.
fn gathered_rows(shape: &AttentionShape, rows: usize) -> usize {
    block_rows(shape, rows).max(STRIP_ROWS * MOST_HEADS.min(shape.group()))
}

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
    /// `[gathered rows, head_dim]`
    gathered: Words,
    /// `[STRIP_ROWS, Layout::buffer]`
    buffer: Vec<u32>,
    /// `[group, block rows, depth]`: scaled queries in panels.
    queries: Words,
    /// `[group, strips of a block]`: the largest norm of a strip's scaled queries.
    norms: Vec<f32>,
    /// Two chunks of a strip's logits, each `[MOST_CHUNK_KEYS, STRIP_ROWS]`.
    logits: [Words; 2],
    /// `[strips of a block]`: the rows of each query head.
    strips: Vec<Strip>,
    /// `[group, strips of a block]`
    softmax: OnlineSoftmax,
}

/// Words of a chunk of a strip's logits.
const CHUNK_WORDS: usize = MOST_CHUNK_KEYS * STRIP_ROWS;

impl Scratch {
    pub(crate) fn new(window: &Window<'_>) -> Self {
        let (group, head_dim) = (window.shape.group(), window.shape.head_dim);
        let layout = window.kernel.layout();
        let depth = layout.depth(head_dim);
        let rows = window.block_rows();
        Self {
            gathered: Words::new(gathered_rows(window.shape, window.rows()) * head_dim),
            buffer: vec![0; STRIP_ROWS * layout.buffer(head_dim)],
            queries: Words::new(group * rows * depth),
            norms: vec![0.0; group * rows / STRIP_ROWS],
            logits: [Words::new(CHUNK_WORDS), Words::new(CHUNK_WORDS)],
            strips: Vec::with_capacity(rows / STRIP_ROWS),
            softmax: OnlineSoftmax::new(group * rows / STRIP_ROWS, window.segments.count()),
        }
    }

    /// Heap bytes of one thread's buffers.
    pub(crate) fn bytes(kernel: Kernel, shape: &AttentionShape, segments: usize) -> u64 {
        let (group, layout) = (shape.group(), kernel.layout());
        let (depth, buffer) = (layout.depth(shape.head_dim), layout.buffer(shape.head_dim));
        let rows = block_rows(shape, shape.tokens);
        let strips = rows / STRIP_ROWS;
        let gathered = gathered_rows(shape, shape.tokens) * shape.head_dim;
        let words = STRIP_ROWS * buffer + group * strips;
        (words * size_of::<u32>() + strips * size_of::<Strip>()) as u64
            + Words::bytes(gathered)
            + Words::bytes(group * rows * depth)
            + 2 * Words::bytes(CHUNK_WORDS)
            + OnlineSoftmax::bytes(group * strips, segments)
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
    run(Collecting { block: &block, softmax: &scratch.softmax })
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
unsafe fn walk_amx<N: amx::Numbers>(block: &Block<'_>, scratch: &mut Scratch) {
    // SAFETY: the caller's promise.
    block.walk(unsafe { AmxTile::<N>::new() }, scratch);
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
        pieces(&self.rows, PART_ROWS)
    }

    /// Where the softmax of a strip of a query head of the group is kept.
    fn state(&self, head: usize, strip: usize) -> usize {
        head * (self.height / STRIP_ROWS) + strip
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
            Kernel::AmxBf16 => unsafe { walk_amx::<amx::Rounded>(self, scratch) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AMX may be used, and AVX-512 F and DQ are there.
            Kernel::AmxBf16x3 => unsafe { walk_amx::<amx::Split>(self, scratch) },
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

    /// Takes the block's steps: the products of a step are formed while the softmax of the step before is summed, so that
    /// units which do only the one or the other stay busy.
    #[inline(always)]
    fn walk<T: Tile>(&self, tile: T, scratch: &mut Scratch) {
        // Before the session: a source may run work of its own on this thread.
        run(Loading { block: self, layout: tile.layout(), scratch: &mut *scratch });
        let mut session = tile.begin();
        let Scratch { queries, norms, logits: [logits, ahead], strips, softmax, .. } = scratch;
        let (mut logits, mut ahead) =
            (logits.floats_mut().as_chunks_mut().0, ahead.floats_mut().as_chunks_mut().0);
        let mut steps = Steps::new(self.window, &self.rows, T::CHUNK_KEYS);
        let (mut next, mut current) = (steps.next(), None);
        loop {
            if let Some(step) = &next {
                self.multiply(tile, &mut session, step, queries, ahead);
            }
            if let Some(step) = &current {
                self.sum(tile.simd(), step, strips, norms, logits, softmax);
            }
            (logits, ahead) = (ahead, logits);
            current = next;
            if current.is_none() {
                return;
            }
            next = steps.next();
        }
    }

    /// The products of a step's keys with its queries.
    #[inline(always)]
    fn multiply<T: Tile>(
        &self,
        tile: T,
        session: &mut T::Session,
        step: &Step,
        queries: &[u32],
        logits: &mut Logits,
    ) {
        let layout = tile.layout();
        let (depth, width) = (layout.depth(self.window.shape.head_dim), layout.keys);
        let first = self.state(step.head, step.strip) * STRIP_ROWS * depth;
        let queries = &queries[first..][..STRIP_ROWS * depth];
        for panel in step.panels(width) {
            let keys = &self.keys.panels[panel * width * depth..][..width * depth];
            let logits = &mut logits[panel * width - step.first..];
            tile.multiply(session, keys, queries, step.rows, logits);
        }
    }

    /// Sums a step whose products are done.
    #[inline(always)]
    fn sum<S: Simd>(
        &self,
        simd: S,
        step: &Step,
        strips: &[Strip],
        norms: &[f32],
        logits: &mut Logits,
        softmax: &mut OnlineSoftmax,
    ) {
        let Window { shape, rules, segments, .. } = self.window;
        let (strip, keys) = (&strips[step.strip], step.keys());
        if step.is_first() {
            let state = self.state(step.head, step.strip);
            let bounded = self.is_bounded(step, norms[state], softmax);
            softmax.open(state, strip, keys.start, bounded, segments);
        }
        if rules.softcap.is_some() || rules.alibi_slopes.is_some() {
            let head = self.key_head * shape.group() + step.head;
            let logits = &mut logits[keys.start - step.first..keys.end - step.first];
            apply_softcap_and_alibi(simd, rules, head, strip, keys.start, logits);
        }
        softmax.absorb(simd, strip, &keys, step.first, logits, segments);
        if step.is_last() {
            softmax.close(simd, strip);
        }
    }

    /// Whether the logits of a strip's tile are known to be so small that they need no offset: `|q·k| <= ‖q‖·‖k‖`.
    #[inline(always)]
    fn is_bounded(&self, step: &Step, norm: f32, softmax: &OnlineSoftmax) -> bool {
        let rules = self.window.rules;
        rules.softcap.is_none()
            && rules.alibi_slopes.is_none()
            && norm * self.keys.norms[step.tile / TILE_KEYS] <= BOUND
            && softmax.are_at_zero(self.state(step.head, step.strip), step.rows)
    }

    /// How many heads and rows are gathered at a time: a strip of several heads, which stays near until it is packed, or as many
    /// rows of one as its source would rather be asked for.
    fn gathered_at_once(&self) -> (usize, usize) {
        match self.window.source.rows_at_once().min(self.height) / STRIP_ROWS {
            0 | 1 => (MOST_HEADS.min(self.window.shape.group()), STRIP_ROWS),
            strips => (1, strips * STRIP_ROWS),
        }
    }

    /// Gathers the block's queries and packs them.
    #[inline(always)]
    fn load_queries(&self, registers: impl Registers, layout: Layout, scratch: &mut Scratch) {
        let Window { shape, .. } = self.window;
        let (head_dim, depth) = (shape.head_dim, layout.depth(shape.head_dim));
        let Scratch { gathered, buffer, queries, norms, strips, softmax, .. } = scratch;
        let (heads_at_once, rows_at_once) = self.gathered_at_once();
        for rows in pieces(&self.rows, rows_at_once) {
            for heads in pieces(&(0..shape.group()), heads_at_once) {
                let gathered = &mut gathered.floats_mut()[..heads.len() * rows.len() * head_dim];
                let first = self.key_head * shape.group();
                let of_window = first + heads.start..first + heads.end;
                self.window.gather(of_window, rows.clone(), gathered);
                for (head, of_head) in heads.zip(gathered.chunks_exact_mut(rows.len() * head_dim)) {
                    let strips = of_head.chunks_mut(STRIP_ROWS * head_dim);
                    for (rows, of_strip) in pieces(&rows, STRIP_ROWS).zip(strips) {
                        let state = self.state(head, (rows.start - self.rows.start) / STRIP_ROWS);
                        self.scale(rows, of_strip);
                        let (width, together, rows) = (layout.queries, 1, &*of_strip);
                        let panels = &mut queries[state * STRIP_ROWS * depth..];
                        let panels = &mut panels[..STRIP_ROWS * depth];
                        let packing =
                            Packing { layout, width, together, rows, head_dim, buffer, panels };
                        norms[state] = packing.run(registers);
                    }
                }
            }
        }
        strips.clear();
        strips.extend(pieces(&self.rows, STRIP_ROWS).map(|rows| Strip::new(self.window, &rows)));
        softmax.clear();
    }

    /// Scales queries of some rows, `[rows, head_dim]`, so that their products with keys are final logits in units of log2 (or,
    /// with a softcap, the argument of its tanh).
    #[inline(always)]
    fn scale(&self, rows: Range<usize>, queries: &mut [f32]) {
        let rules = self.window.rules;
        let unit = match rules.softcap {
            Some(cap) => 1.0 / f64::from(cap),
            None => std::f64::consts::LOG2_E,
        };
        let unit = unit * f64::from(rules.scale);
        for (row, query) in rows.zip(queries.chunks_exact_mut(self.window.shape.head_dim)) {
            let scale = rules.query_scale.as_ref();
            let scale = scale.map_or(1.0, |scale| scale[self.window.position(row)]);
            let scale = unit * f64::from(scale);
            for value in query {
                *value = (f64::from(*value) * scale) as f32;
            }
        }
    }

    /// The logit of a query head of the group that joins the softmax's denominator, in units of log2.
    fn sink(&self, head: usize) -> Option<f64> {
        let Window { shape, rules, .. } = self.window;
        let sinks = rules.sinks.as_ref()?;
        Some(f64::from(sinks[self.key_head * shape.group() + head]) * std::f64::consts::LOG2_E)
    }

    /// The strips of some rows of a query head, finished: with the rows and how many of the window each stands for.
    #[inline(always)]
    fn finished<'s>(
        &self,
        head: usize,
        rows: &Range<usize>,
        softmax: &'s OnlineSoftmax,
    ) -> impl Iterator<Item = (Range<usize>, [f64; STRIP_ROWS], FinishedStrip<'s>)> {
        let sink = self.sink(head);
        pieces(rows, STRIP_ROWS).map(move |rows| {
            let strip = (rows.start - self.rows.start) / STRIP_ROWS;
            let finished = softmax.finish(self.state(head, strip), sink, &self.window.segments);
            let mut weights = [0.0; STRIP_ROWS];
            for (weight, row) in weights.iter_mut().zip(rows.clone()) {
                *weight = self.window.weight(row);
            }
            (rows, weights, finished)
        })
    }

    /// Adds up finished rows by segments of queries and keys.
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
        for head in 0..self.window.shape.group() {
            for (rows, weights, finished) in self.finished(head, &rows, softmax) {
                let scales = products(&weights, &finished.scales);
                let mut from = 0;
                while from < rows.len() {
                    let segment = segment_of(rows.start + from);
                    let same = |lane: &usize| segment_of(rows.start + lane) == segment;
                    let to = (from + 1..rows.len()).find(|lane| !same(lane));
                    let lanes = from..to.unwrap_or(rows.len());
                    let sums = &mut masses[(segment - first) * ends.len()..];
                    for (sum, masses) in sums.iter_mut().zip(finished.masses) {
                        *sum += sum_of_products(&scales, masses, &lanes);
                    }
                    from = lanes.end;
                }
            }
        }
        SegmentSums { first, masses }
    }

    /// Adds up finished rows.
    #[inline(always)]
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
            for (of_strip, weights, finished) in self.finished(head, &rows, softmax) {
                let (lanes, first) = (0..of_strip.len(), of_strip.start - rows.start);
                let FinishedStrip { far_masses, far_squares, masses, scales } = finished;
                sums.far_mass[head] += sum_of_products(&weights, &far_masses, &lanes);
                sums.far_square[head] += sum_of_products(&weights, &far_squares, &lanes);
                add(&mut sums.rows[first..], &far_masses[lanes.clone()]);
                add(&mut sums.row_squares[first..], &far_squares[lanes.clone()]);
                let scales = products(&weights, &scales);
                for (masses, bin) in masses.iter().zip(&bins_of_segments) {
                    if let Some(bin) = *bin {
                        sums.histogram[bin] += sum_of_products(&scales, masses, &lanes);
                    }
                }
            }
        }
        sums
    }
}

/// Rows, `length` at a time.
fn pieces(rows: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = rows.end;
    rows.clone().step_by(length).map(move |first| first..end.min(first + length))
}

/// Adds values to the first of `to`.
#[inline(always)]
pub(crate) fn add(to: &mut [f64], values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
}

#[inline(always)]
fn products(a: &[f64; STRIP_ROWS], b: &[f64; STRIP_ROWS]) -> [f64; STRIP_ROWS] {
    std::array::from_fn(|lane| a[lane] * b[lane])
}

/// `Σ a·b` of some lanes: every eighth together, then the eight in halves.
#[inline(always)]
fn sum_of_products(a: &[f64; STRIP_ROWS], b: &[f64; STRIP_ROWS], lanes: &Range<usize>) -> f64 {
    let mut terms = products(a, b);
    terms[..lanes.start].fill(0.0);
    terms[lanes.end..].fill(0.0);
    let mut sums = [0.0; 8];
    for terms in terms.as_chunks::<8>().0 {
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += term;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// A block whose finished rows are to be added up.
struct Collecting<'a, 'b> {
    block: &'a Block<'b>,
    softmax: &'a OnlineSoftmax,
}

impl Work for Collecting<'_, '_> {
    type Found = Vec<PartSums>;

    #[inline(always)]
    fn run(self, _: impl Registers) -> Vec<PartSums> {
        let mut parts = Vec::with_capacity(self.block.rows.len().div_ceil(PART_ROWS));
        for rows in self.block.parts() {
            parts.push(self.block.collect(rows, self.softmax));
        }
        parts
    }
}

/// A block whose queries are to be loaded: apart from its walk, whose registers that would take.
struct Loading<'a, 'b> {
    block: &'a Block<'b>,
    layout: Layout,
    scratch: &'a mut Scratch,
}

impl Work for Loading<'_, '_> {
    type Found = ();

    #[inline(always)]
    fn run(self, registers: impl Registers) {
        self.block.load_queries(registers, self.layout, self.scratch);
    }
}

/// Turns products into logits where the model does more than scale: softcap, then `ALiBi`. `logits` begin with those of key
/// `first`.
#[inline(always)]
fn apply_softcap_and_alibi<S: Simd>(
    simd: S,
    rules: &LogitRules,
    head: usize,
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
        let slope = simd.splat((f64::from(slopes[head]) * std::f64::consts::LOG2_E) as f32);
        let positions = strip.positions_from(first);
        for (key, logits) in logits.iter_mut().enumerate() {
            let key = simd.splat(key as f32);
            let vectors = logits.chunks_exact_mut(S::LANES);
            for (logits, positions) in vectors.zip(positions.chunks_exact(S::LANES)) {
                let distance = simd.sub(key, simd.load(positions));
                simd.store(simd.mul_add(slope, distance, simd.load(logits)), logits);
            }
        }
    }
}
