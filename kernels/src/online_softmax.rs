//! Softmax of a strip of rows, chunk by chunk: sums of exponentials per segment, in O(1) memory a row.
//!
//! A vector holds the logits of one key and one row per lane, so a row is summed in its own lane, key after key: no sum crosses
//! lanes. Neighbouring rows end a segment at neighbouring keys; these keys, and keys that not every row sees, are masked. Decisions
//! that affect bits are made for a group of rows whose size depends on the kernel, so that vectors of any length have the same
//! bits. Masked keys add zeros, so they are chosen per vector.
//!
//! Exponentials are float32, relative to an offset: zero if the logits are certainly small, else one that follows the row's
//! largest logit lazily. A few at a time are added up in float32, and their sums in float64.

use std::ops::Range;

use crate::masks::{Segments, visible_keys};
use crate::simd::{Simd, exp2};
use crate::window::WindowInput;

/// Rows of a strip, those of some query heads at each of its positions: two of the longest vectors. Its positions divide the rows
/// of a part.
pub(crate) const STRIP_ROWS: usize = 32;
/// Lanes of the longest vector, the minimum rows of a group.
const MAX_LANES: usize = 16;
const MAX_GROUPS: usize = STRIP_ROWS / MAX_LANES;

/// A logit may exceed the offset by this many powers of two before the offset moves. A tile of 288 squares of `2^32`
/// is far from the largest float32.
const SLACK: f32 = 32.0;

/// Logits further below the offset are raised to this distance: their part of the sum is negligible, and their squares are still
/// normal numbers.
const FLOOR: f32 = -62.0;

/// Logits within this distance of zero need no offset: a tile of 288 squares of `2^56` fits a float32, and squares of `2^-56` are
/// normal numbers.
pub(crate) const BOUND: f32 = 56.0;

/// Rows of a strip: their positions in the window and their visible keys. Lanes without a row repeat the last row.
pub(crate) struct Strip {
    rows: usize,
    positions: [i32; STRIP_ROWS],
    /// The first key that each row sees.
    starts: [i32; STRIP_ROWS],
    /// One past the last key that each row sees.
    ends: [i32; STRIP_ROWS],
}

impl Strip {
    /// Creates the strip of measured rows `rows` (not empty) of `heads` heads each.
    pub(crate) fn new(window: &WindowInput<'_>, rows: &Range<usize>, heads: usize) -> Self {
        let tokens = window.shape.tokens;
        Self::from_positions(heads, rows.len() * heads, |index| {
            let position = window.position((rows.start + index).min(rows.end - 1));
            (position, visible_keys(window.rules, tokens, position))
        })
    }

    /// `of_position` returns the position in the window and the visible keys of each position of the strip.
    #[inline(always)]
    fn from_positions(
        heads: usize,
        rows: usize,
        of_position: impl Fn(usize) -> (usize, Range<usize>),
    ) -> Self {
        let none = [0; STRIP_ROWS];
        let mut strip = Self { rows, positions: none, starts: none, ends: none };
        let number = |at: usize| i32::try_from(at).expect("a window has fewer than 2^31 tokens");
        for (index, first) in (0..STRIP_ROWS).step_by(heads).enumerate() {
            let (position, seen) = of_position(index);
            let (position, start, end) = (number(position), number(seen.start), number(seen.end));
            for lane in first..first + heads {
                strip.positions[lane] = position;
                strip.starts[lane] = start;
                strip.ends[lane] = end;
            }
        }
        strip
    }

    /// Returns the position of each row less `origin`: small numbers are exact.
    #[inline(always)]
    pub(crate) fn positions_from(&self, origin: usize) -> [f32; STRIP_ROWS] {
        self.positions.map(|position| (position - origin as i32) as f32)
    }

    #[inline(always)]
    fn position(&self, lane: usize) -> usize {
        self.positions[lane] as usize
    }

    /// Keys of `keys` from the first to the last that a lane sees, and whether each lane sees all of them.
    #[inline(always)]
    fn seen(&self, lanes: &Range<usize>, keys: &Range<usize>) -> (Range<usize>, bool) {
        let (first, last) = (lanes.start, lanes.end - 1);
        let seen =
            keys.start.max(self.starts[first] as usize)..keys.end.min(self.ends[last] as usize);
        let whole =
            self.starts[last] as usize <= seen.start && self.ends[first] as usize >= seen.end;
        (seen, whole)
    }
}

/// Running sums of many strips. Logits are in units of log2.
pub(crate) struct OnlineSoftmax {
    /// `[strips, STRIP_ROWS]`: offset of the exponentials, minus infinity before the first key. Wherever the floor is used, a row's
    /// exponentials sum to at least one with those of the tile, so the floor's part is negligible.
    offsets: Vec<f32>,
    /// `[strips, STRIP_ROWS]`: `Σ 2^(2·(logit - offset))` over far keys.
    squares: Vec<f64>,
    /// `[strips, segments, STRIP_ROWS]`: `Σ 2^(logit - offset)`; undefined after the used segments.
    masses: Vec<f64>,
    /// `[strips]`: number of segments up to the last that has a key.
    used_segments: Vec<usize>,
    /// `[strips]`: whether no row with offset zero has a mass below one.
    rescaled: Vec<bool>,
    segments: usize,
    open: OpenStrip,
}

/// State of the strip whose keys of a tile are being added.
struct OpenStrip {
    strip: usize,
    bounded: bool,
    /// `[groups]`: segment of the next key in the group's last row, or an earlier one.
    next: [usize; MAX_GROUPS],
    /// `[groups]`: segment of the sums.
    summed: [usize; MAX_GROUPS],
    /// Sums that are not yet in the strip's masses and squares.
    masses: [f32; STRIP_ROWS],
    squares: [f32; STRIP_ROWS],
}

/// Logits of a strip, `[keys, rows]`.
pub(crate) type Logits = [[f32; STRIP_ROWS]];

/// Result of a strip, by row; undefined for lanes without a row.
pub(crate) struct FinishedStrip<'a> {
    /// Far mass, `Σ p` over far keys.
    pub(crate) far_masses: [f64; STRIP_ROWS],
    /// `Σ p²` over far keys.
    pub(crate) far_squares: [f64; STRIP_ROWS],
    /// `[segments]`: unnormalised mass; times `scales` it is the rows' attention. Ends with the last segment that has a key.
    pub(crate) masses: &'a [[f64; STRIP_ROWS]],
    /// One over the softmax's denominator, 0 for a row that sees no key.
    pub(crate) scales: [f64; STRIP_ROWS],
}

impl OnlineSoftmax {
    pub(crate) fn new(strips: usize, segments: usize) -> Self {
        Self {
            offsets: vec![f32::NEG_INFINITY; strips * STRIP_ROWS],
            squares: vec![0.0; strips * STRIP_ROWS],
            masses: vec![0.0; strips * segments * STRIP_ROWS],
            used_segments: vec![0; strips],
            rescaled: vec![true; strips],
            segments,
            open: OpenStrip {
                strip: 0,
                bounded: false,
                next: [0; MAX_GROUPS],
                summed: [0; MAX_GROUPS],
                masses: [0.0; STRIP_ROWS],
                squares: [0.0; STRIP_ROWS],
            },
        }
    }

    /// Returns the heap bytes of `strips` strips.
    pub(crate) fn bytes(strips: usize, segments: usize) -> u64 {
        let of_row = size_of::<f32>() + size_of::<f64>() + segments * size_of::<f64>();
        (strips * (STRIP_ROWS * of_row + size_of::<usize>() + size_of::<bool>())) as u64
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        self.offsets.fill(f32::NEG_INFINITY);
        self.squares.fill(0.0);
        self.used_segments.fill(0);
        self.rescaled.fill(true);
    }

    /// Whether the offsets of the first `rows` rows of a strip are zero or unset, so that exponentials need no offset.
    pub(crate) fn are_at_zero(&self, strip: usize, rows: usize) -> bool {
        let offsets = &self.offsets[strip * STRIP_ROWS..][..rows];
        offsets.iter().all(|&offset| offset == 0.0 || offset == f32::NEG_INFINITY)
    }

    /// Starts a tile's keys of a strip, from `key` on. `bounded` promises that the logits lie within [`BOUND`] of zero and the
    /// strip's rows [are at zero](Self::are_at_zero).
    #[inline(always)]
    pub(crate) fn open(
        &mut self,
        strip: usize,
        rows: &Strip,
        key: usize,
        bounded: bool,
        group_rows: usize,
        segments: &Segments,
    ) {
        let offsets = &mut self.offsets[strip * STRIP_ROWS..][..STRIP_ROWS];
        let (offsets, of_no_row) = offsets.split_at_mut(rows.rows);
        of_no_row.fill(f32::INFINITY); // no logit exceeds it, so lanes without a row do not affect others
        if bounded {
            offsets.fill(0.0);
            self.rescaled[strip] = false;
        } else if !self.rescaled[strip] {
            self.rescale_small_rows(strip);
        }
        let last_row = |group: usize| rows.position(STRIP_ROWS.min((group + 1) * group_rows) - 1);
        let next = std::array::from_fn(|group| segments.segment_of(key, last_row(group)));
        let none = [0.0; STRIP_ROWS];
        self.open = OpenStrip { strip, bounded, next, summed: next, masses: none, squares: none };
    }

    /// Adds the keys `keys` of the open strip; the first logits are those of key `first`, ascending from call to call. One pass
    /// over bounded logits, else another one to find the largest. Overwrites `logits`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the length of a group is known where the kernel is compiled"
    )]
    #[inline(always)]
    pub(crate) fn absorb<S: Simd>(
        &mut self,
        simd: S,
        rows: &Strip,
        keys: &Range<usize>,
        first: usize,
        logits: &mut Logits,
        group_rows: usize,
        segments: &Segments,
    ) {
        for group in 0..rows.rows.div_ceil(group_rows) {
            let lanes = group * group_rows..(group + 1) * group_rows;
            let (seen, whole) = rows.seen(&lanes, keys);
            if seen.is_empty() {
                continue;
            }
            let part = ChunkPart { rows, group, lanes, seen, whole, first };
            if self.open.bounded {
                self.absorb_part::<S, true>(simd, &part, logits, segments);
            } else {
                self.update_offsets(simd, &part, logits);
                self.absorb_part::<S, false>(simd, &part, logits, segments);
            }
        }
    }

    /// Ends the open strip.
    #[inline(always)]
    pub(crate) fn close<S: Simd>(&mut self, simd: S, rows: &Strip, group_rows: usize) {
        for group in 0..rows.rows.div_ceil(group_rows) {
            self.flush(simd, group, &(group * group_rows..(group + 1) * group_rows));
        }
    }

    /// Adds a part of a chunk: whole pieces of segments if all rows share them, else lane by lane.
    #[inline(always)]
    fn absorb_part<S: Simd, const BOUNDED: bool>(
        &mut self,
        simd: S,
        part: &ChunkPart<'_>,
        logits: &mut Logits,
        segments: &Segments,
    ) {
        let ChunkPart { group, ref lanes, ref seen, whole, first, .. } = *part;
        let (nearest, farthest) = part.positions();
        let mut segment = self.open.next[group];
        while segments.end(segment, farthest) <= seen.start {
            segment += 1;
        }
        self.open.next[group] = segment;
        let shared = segments.end(segment, nearest) >= seen.end || segments.ends().is_some();
        if !(whole && shared) {
            return if whole && part.ends_are_disjoint(segments, segment) {
                self.absorb_crossed::<S, BOUNDED>(simd, part, segment, logits, segments);
            } else {
                self.absorb_lanes::<S, BOUNDED>(simd, part, segment, logits, segments);
            };
        }
        let mut key = seen.start;
        loop {
            let end = segments.end(segment, nearest).min(seen.end);
            if self.open.summed[group] != segment {
                self.flush(simd, group, lanes);
                self.open.summed[group] = segment;
            }
            let piece = &logits[key - first..end - first];
            if segments.far.contains(&segment) {
                self.add_piece::<S, BOUNDED, true>(simd, lanes, piece);
            } else {
                self.add_piece::<S, BOUNDED, false>(simd, lanes, piece);
            }
            if end == seen.end {
                return;
            }
            (key, segment) = (end, segment + 1);
        }
    }

    /// Adds keys that belong to the same segment in all rows of a group.
    #[inline(always)]
    fn add_piece<S: Simd, const BOUNDED: bool, const SQUARES: bool>(
        &mut self,
        simd: S,
        lanes: &Range<usize>,
        piece: &Logits,
    ) {
        let offsets = &self.offsets[self.open.strip * STRIP_ROWS..][..STRIP_ROWS];
        for lane in vectors::<S>(lanes) {
            let offset = simd.load(&offsets[lane..]);
            let (mass, square) = sum_exp2::<S, BOUNDED, SQUARES>(simd, piece, lane, offset);
            let to = &mut self.open.masses[lane..];
            simd.store(simd.add(simd.load(to), mass), to);
            if SQUARES {
                let to = &mut self.open.squares[lane..];
                simd.store(simd.add(simd.load(to), square), to);
            }
        }
    }

    /// Adds a part whose rows see the same keys but assign some of them to different segments, from `first_segment` on, each key
    /// to at most two.
    #[inline(always)]
    fn absorb_crossed<S: Simd, const BOUNDED: bool>(
        &mut self,
        simd: S,
        part: &ChunkPart<'_>,
        first_segment: usize,
        logits: &Logits,
        segments: &Segments,
    ) {
        let ChunkPart { ref lanes, ref seen, first, .. } = *part;
        let one = simd.splat(1.0);
        let logits = &logits[..seen.end - first];
        for lane in vectors::<S>(lanes) {
            let (nearest, farthest) = part.positions_of(lane, S::LANES);
            let offset = simd.load(&self.offsets[self.open.strip * STRIP_ROWS + lane..]);
            let (mut key, mut segment) = (seen.start, first_segment);
            let mut sums = PowerSums::none(simd);
            loop {
                let from = segments.end(segment, nearest).clamp(key, seen.end);
                let to = segments.end(segment, farthest).clamp(from, seen.end);
                for logits in &logits[key - first..from - first] {
                    sums.add(simd, relative_exp2::<S, BOUNDED>(simd, &logits[lane..], offset));
                }
                let mut sums_after = PowerSums::none(simd);
                let end = part.ends_of(simd, lane, segments, segment);
                let mut at = simd.splat((from - first) as f32);
                for logits in &logits[from - first..to - first] {
                    let power = relative_exp2::<S, BOUNDED>(simd, &logits[lane..], offset);
                    let (before, after) = simd.split(at, end, power);
                    sums.add(simd, before);
                    sums_after.add(simd, after);
                    at = simd.add(at, one);
                }
                let square = segments.far.contains(&segment).then_some(sums.square);
                self.add(simd, segment, lane, sums.mass, square);
                if from == seen.end {
                    break;
                }
                (key, segment) = (to, segment + 1);
                sums = sums_after;
            }
        }
    }

    /// Adds a part whose rows see different keys or assign them to different segments, from `first_segment` on.
    #[inline(always)]
    fn absorb_lanes<S: Simd, const BOUNDED: bool>(
        &mut self,
        simd: S,
        part: &ChunkPart<'_>,
        first_segment: usize,
        logits: &mut Logits,
        segments: &Segments,
    ) {
        let ChunkPart { ref lanes, ref seen, whole, first, .. } = *part;
        let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
        let logits = &mut logits[..seen.end - first];
        for lane in vectors::<S>(lanes) {
            let (nearest, farthest) = part.positions_of(lane, S::LANES);
            let offset = simd.load(&self.offsets[self.open.strip * STRIP_ROWS + lane..]);
            let (starts, ends) = part.visible_keys(simd, lane);
            let mut at = simd.splat((seen.start - first) as f32);
            for logits in &mut logits[seen.start - first..] {
                let power = relative_exp2::<S, BOUNDED>(simd, &logits[lane..], offset);
                let power = if whole { power } else { simd.between(starts, at, ends, power, zero) };
                simd.store(power, &mut logits[lane..]);
                at = simd.add(at, one);
            }
            let mut segment = first_segment;
            // Start of the segment in the row that enters it first, and in the row that enters it last.
            let (mut from, mut from_all, mut low) = (seen.start, seen.start, zero);
            loop {
                let high = part.ends_of(simd, lane, segments, segment);
                let (end, end_of_all) =
                    (segments.end(segment, farthest), segments.end(segment, nearest));
                let to = end.min(seen.end).max(from);
                let mut sums = PowerSums::none(simd);
                let shared = from_all.min(to)..end_of_all.clamp(from_all.min(to), to);
                let masked = MaskedPowers { logits, first, lane, low, high };
                masked.add(simd, from..shared.start, &mut sums);
                for powers in &logits[shared.start - first..shared.end - first] {
                    sums.add(simd, simd.load(&powers[lane..]));
                }
                masked.add(simd, shared.end..to, &mut sums);
                let square = segments.far.contains(&segment).then_some(sums.square);
                self.add(simd, segment, lane, sums.mass, square);
                if end_of_all >= seen.end {
                    break;
                }
                (from, from_all) = (from.max(end_of_all), from_all.max(end));
                low = simd.max(low, high);
                segment += 1;
            }
        }
    }

    /// Moves the offsets of rows whose largest logit exceeds them by too much.
    #[inline(always)]
    fn update_offsets<S: Simd>(&mut self, simd: S, part: &ChunkPart<'_>, logits: &Logits) {
        let ChunkPart { group, ref lanes, ref seen, whole, first, .. } = *part;
        let none = simd.splat(f32::NEG_INFINITY);
        let logits = &logits[seen.start - first..seen.end - first];
        let offsets = &self.offsets[self.open.strip * STRIP_ROWS..][..STRIP_ROWS];
        let (mut all, mut moves) = ([f32::NEG_INFINITY; STRIP_ROWS], false);
        for lane in vectors::<S>(lanes) {
            let mut largest = none;
            if whole {
                for logits in logits {
                    largest = simd.max(largest, simd.load(&logits[lane..]));
                }
            } else {
                let (starts, ends) = part.visible_keys(simd, lane);
                for (key, logits) in logits.iter().enumerate() {
                    let at = simd.splat((seen.start - first + key) as f32);
                    let seen = simd.between(starts, at, ends, simd.load(&logits[lane..]), none);
                    largest = simd.max(largest, seen);
                }
            }
            let limit = simd.add(simd.load(&offsets[lane..]), simd.splat(SLACK));
            moves |= simd.any_above(largest, limit);
            simd.store(largest, &mut all[lane..]);
        }
        if moves {
            self.flush(simd, group, lanes);
            self.raise_offsets(&all);
        }
    }

    /// Moves offsets that the largest logits, by row, exceed by too much.
    #[cold]
    fn raise_offsets(&mut self, largest: &[f32; STRIP_ROWS]) {
        let strip = self.open.strip;
        for (lane, largest) in largest.iter().enumerate() {
            if *largest > self.offsets[strip * STRIP_ROWS + lane] + SLACK {
                self.move_offset(strip, lane, *largest);
            }
        }
    }

    /// Lowers the offsets of rows whose keys so far were bounded (offset zero) and whose mass is below one: otherwise the floor
    /// would cut off logits too close to theirs.
    #[cold]
    fn rescale_small_rows(&mut self, strip: usize) {
        for lane in 0..STRIP_ROWS {
            if self.offsets[strip * STRIP_ROWS + lane] != 0.0 {
                continue;
            }
            let masses = &self.masses[strip * self.segments * STRIP_ROWS..];
            let masses = masses.chunks_exact(STRIP_ROWS).take(self.used_segments[strip]);
            let mass: f64 = masses.map(|masses| masses[lane]).sum();
            if mass == 0.0 {
                self.offsets[strip * STRIP_ROWS + lane] = f32::NEG_INFINITY; // no key yet
            } else if mass < 1.0 {
                self.move_offset(strip, lane, exponent(mass));
            }
        }
        self.rescaled[strip] = true;
    }

    /// Rescales a row's sums to `offset`.
    fn move_offset(&mut self, strip: usize, lane: usize, offset: f32) {
        let row = strip * STRIP_ROWS + lane;
        let factor = exp2(f64::from(self.offsets[row]) - f64::from(offset));
        let masses = &mut self.masses[strip * self.segments * STRIP_ROWS..];
        for masses in masses.chunks_exact_mut(STRIP_ROWS).take(self.used_segments[strip]) {
            masses[lane] *= factor;
        }
        self.squares[row] *= factor * factor;
        self.offsets[row] = offset;
    }

    /// Adds the open sums of a group's segment to the strip's sums.
    #[inline(always)]
    fn flush<S: Simd>(&mut self, simd: S, group: usize, lanes: &Range<usize>) {
        let zero = simd.splat(0.0);
        for lane in vectors::<S>(lanes) {
            let OpenStrip { summed, masses, squares, .. } = &mut self.open;
            let segment = summed[group];
            let (mass, square) = (simd.load(&masses[lane..]), simd.load(&squares[lane..]));
            simd.store(zero, &mut masses[lane..]);
            simd.store(zero, &mut squares[lane..]);
            self.add(simd, segment, lane, mass, Some(square));
        }
    }

    /// Adds a vector's sums of a segment to those of the open strip.
    #[inline(always)]
    fn add<S: Simd>(
        &mut self,
        simd: S,
        segment: usize,
        lane: usize,
        mass: S::Vector,
        square: Option<S::Vector>,
    ) {
        let strip = self.open.strip;
        let (first, used) = (strip * self.segments, self.used_segments[strip]);
        if segment >= used {
            // These segments hold values of another block.
            self.masses[(first + used) * STRIP_ROWS..(first + segment + 1) * STRIP_ROWS].fill(0.0);
            self.used_segments[strip] = segment + 1;
        }
        let at = (first + segment) * STRIP_ROWS + lane;
        add_to(simd, mass, &mut self.masses[at..]);
        if let Some(square) = square {
            add_to(simd, square, &mut self.squares[strip * STRIP_ROWS + lane..]);
        }
    }

    /// Computes the attention of a strip's rows. `sinks` (by row, logits in units of log2) join the denominators.
    #[inline(always)]
    pub(crate) fn finish(
        &self,
        strip: usize,
        sinks: Option<&[f64; STRIP_ROWS]>,
        segments: &Segments,
    ) -> FinishedStrip<'_> {
        let offsets = &self.offsets[strip * STRIP_ROWS..][..STRIP_ROWS];
        let masses = &self.masses[strip * self.segments * STRIP_ROWS..];
        let masses = &masses.as_chunks::<STRIP_ROWS>().0[..self.used_segments[strip]];
        let far = segments.far.start.min(masses.len())..segments.far.end.min(masses.len());
        let mut far_masses = sum_of_segments(&masses[far.clone()]);
        let mut total = far_masses;
        for masses in masses[..far.start].iter().chain(&masses[far.end..]) {
            for lane in 0..STRIP_ROWS {
                total[lane] += masses[lane];
            }
        }
        let mut denominators = total;
        if let Some(sinks) = sinks {
            for lane in 0..STRIP_ROWS {
                denominators[lane] += exp2(sinks[lane] - f64::from(offsets[lane]));
            }
        }
        let mut scales = [0.0; STRIP_ROWS];
        for lane in 0..STRIP_ROWS {
            // No exponential is zero, so zero mass means no visible key.
            scales[lane] = if total[lane] == 0.0 { 0.0 } else { 1.0 / denominators[lane] };
        }
        let mut far_squares = [0.0; STRIP_ROWS];
        far_squares.copy_from_slice(&self.squares[strip * STRIP_ROWS..][..STRIP_ROWS]);
        for lane in 0..STRIP_ROWS {
            far_masses[lane] *= scales[lane];
            far_squares[lane] *= scales[lane] * scales[lane];
        }
        FinishedStrip { far_masses, far_squares, masses, scales }
    }
}

/// Returns the first lane of each vector of a range of lanes.
#[inline(always)]
fn vectors<S: Simd>(lanes: &Range<usize>) -> impl Iterator<Item = usize> + use<S> {
    let first = lanes.start;
    (0..lanes.len() / S::LANES).map(move |vector| first + vector * S::LANES)
}

/// A group of a strip's rows, and keys of a chunk.
struct ChunkPart<'a> {
    rows: &'a Strip,
    group: usize,
    lanes: Range<usize>,
    /// Keys from the first to the last that a row sees; not empty.
    seen: Range<usize>,
    /// Whether each row sees all these keys.
    whole: bool,
    /// The chunk's first key.
    first: usize,
}

impl ChunkPart<'_> {
    /// Returns the positions of the group's first and last row in the window.
    #[inline(always)]
    fn positions(&self) -> (usize, usize) {
        self.positions_of(self.lanes.start, self.lanes.len())
    }

    /// Returns the positions in the window of the first and the last of `count` rows from `lane` on.
    #[inline(always)]
    fn positions_of(&self, lane: usize, count: usize) -> (usize, usize) {
        (self.rows.position(lane), self.rows.position(lane + count - 1))
    }

    /// Whether every segment from `segment` on ends in all rows before the next one ends in any row, among the visible keys.
    #[inline(always)]
    fn ends_are_disjoint(&self, segments: &Segments, mut segment: usize) -> bool {
        let (nearest, farthest) = self.positions();
        while segments.end(segment, nearest) < self.seen.end {
            let next = segments.end(segment + 1, nearest).min(self.seen.end);
            if segments.end(segment, farthest) > next {
                return false;
            }
            segment += 1;
        }
        true
    }

    /// Converts keys of the window, by lane, to indices in the chunk, clamped to the visible keys.
    #[inline(always)]
    fn counted<S: Simd>(&self, simd: S, keys: &[i32]) -> S::Vector {
        let (first, max) = (self.first as i32, (self.seen.end - self.first) as i32);
        let mut counts = [0.0; MAX_LANES];
        for (count, key) in counts.iter_mut().zip(&keys[..S::LANES]) {
            *count = (key - first).clamp(0, max) as f32;
        }
        simd.load(&counts)
    }

    /// Returns the start and end of the visible keys, by lane of the vector from `lane` on.
    #[inline(always)]
    fn visible_keys<S: Simd>(&self, simd: S, lane: usize) -> (S::Vector, S::Vector) {
        let Strip { starts, ends, .. } = self.rows;
        (self.counted(simd, &starts[lane..]), self.counted(simd, &ends[lane..]))
    }

    /// Returns the end of a segment, by lane of the vector from `lane` on.
    #[inline(always)]
    fn ends_of<S: Simd>(
        &self,
        simd: S,
        lane: usize,
        segments: &Segments,
        segment: usize,
    ) -> S::Vector {
        let Some(distance) = segments.distance(segment) else {
            let end = segments.end(segment, 0).saturating_sub(self.first);
            return simd.splat(end.min(self.seen.end - self.first) as f32);
        };
        let nearer = 1 - distance as i32;
        let mut ends = [0; MAX_LANES];
        for (end, position) in ends.iter_mut().zip(&self.rows.positions[lane..][..S::LANES]) {
            *end = position + nearer;
        }
        self.counted(simd, &ends)
    }
}

/// Sums of powers and of their squares, by lane.
#[derive(Clone, Copy)]
struct PowerSums<V> {
    mass: V,
    square: V,
}

impl<V: Copy> PowerSums<V> {
    #[inline(always)]
    fn none(simd: impl Simd<Vector = V>) -> Self {
        Self { mass: simd.splat(0.0), square: simd.splat(0.0) }
    }

    #[inline(always)]
    fn add(&mut self, simd: impl Simd<Vector = V>, power: V) {
        self.mass = simd.add(self.mass, power);
        self.square = simd.mul_add(power, power, self.square);
    }
}

/// Powers of a chunk's keys in the lanes from `lane` on; the segment of each lane is the keys from `low` to `high`.
struct MaskedPowers<'a, S: Simd> {
    logits: &'a Logits,
    /// The chunk's first key.
    first: usize,
    lane: usize,
    low: S::Vector,
    high: S::Vector,
}

impl<S: Simd> MaskedPowers<'_, S> {
    /// Adds the powers of some keys, and their squares, where they are the lane's.
    #[inline(always)]
    fn add(&self, simd: S, keys: Range<usize>, sums: &mut PowerSums<S::Vector>) {
        let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
        let mut at = simd.splat((keys.start - self.first) as f32);
        for powers in &self.logits[keys.start - self.first..keys.end - self.first] {
            let power = simd.load(&powers[self.lane..]);
            sums.add(simd, simd.between(self.low, at, self.high, power, zero));
            at = simd.add(at, one);
        }
    }
}

/// Returns the largest integer whose power of two is at most `mass`, a positive normal number.
fn exponent(mass: f64) -> f32 {
    ((mass.to_bits() >> 52) as i32 - 1023) as f32
}

/// Computes `2^x` of a vector of logits, relative to `offset` unless they are bounded.
#[inline(always)]
fn relative_exp2<S: Simd, const BOUNDED: bool>(
    simd: S,
    logits: &[f32],
    offset: S::Vector,
) -> S::Vector {
    let x = simd.load(logits);
    if BOUNDED { simd.exp2(x) } else { simd.exp2(simd.max(simd.splat(FLOOR), simd.sub(x, offset))) }
}

/// Computes, by lane, `Σ 2^(x - offset)` over some keys' logits and, if requested, the sum of squares of the terms. Even and odd keys are
/// added up apart: an addition need not wait for the one before.
#[inline(always)]
fn sum_exp2<S: Simd, const BOUNDED: bool, const SQUARES: bool>(
    simd: S,
    logits: &Logits,
    lane: usize,
    offset: S::Vector,
) -> (S::Vector, S::Vector) {
    assert!(lane + S::LANES <= STRIP_ROWS, "lanes of a strip");
    let zero = simd.splat(0.0);
    let (mut masses, mut squares) = ([zero; 2], [zero; 2]);
    let (pairs, odd) = logits.as_chunks::<2>();
    for pair in pairs {
        for (index, logits) in pair.iter().enumerate() {
            let power = relative_exp2::<S, BOUNDED>(simd, &logits[lane..], offset);
            masses[index] = simd.add(masses[index], power);
            if SQUARES {
                squares[index] = simd.mul_add(power, power, squares[index]);
            }
        }
    }
    if let [logits] = odd {
        let power = relative_exp2::<S, BOUNDED>(simd, &logits[lane..], offset);
        masses[0] = simd.add(masses[0], power);
        if SQUARES {
            squares[0] = simd.mul_add(power, power, squares[0]);
        }
    }
    (simd.add(masses[0], masses[1]), simd.add(squares[0], squares[1]))
}

/// Adds a vector's lanes to the first of `to`.
#[inline(always)]
fn add_to<S: Simd>(simd: S, vector: S::Vector, to: &mut [f64]) {
    let mut lanes = [0.0_f32; MAX_LANES];
    simd.store(vector, &mut lanes);
    for (to, value) in to[..S::LANES].iter_mut().zip(lanes) {
        *to += f64::from(value);
    }
}

/// Sums masses over segments, ascending, by row.
#[inline(always)]
fn sum_of_segments(masses: &[[f64; STRIP_ROWS]]) -> [f64; STRIP_ROWS] {
    let mut sums = [0.0; STRIP_ROWS];
    for masses in masses {
        for lane in 0..STRIP_ROWS {
            sums[lane] += masses[lane];
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Portable, PortableFused, Twice};
    use crate::statistics::AttentionShape;
    use proptest::prelude::*;

    /// The first key of the window that any row sees.
    const FIRST: usize = 5;

    /// Returns the worst relative error against float64 for the last rows of a window; each has the logits
    /// `logits` up to its own key. Keys are processed in tiles of `tile` and chunks of `chunk`; `is_bounded` returns
    /// whether the tile that starts at a key has bounded logits. Two group lengths are compared.
    fn worst_error_of<S: Simd>(
        simd: S,
        logits: &[f32],
        lengths: (usize, usize),
        far: (usize, usize),
        sink: Option<f64>,
        is_bounded: &dyn Fn(usize) -> bool,
    ) -> f64 {
        let of_groups = |group_rows: usize| {
            worst_error_of_groups(simd, logits, lengths, far, sink, is_bounded, group_rows)
        };
        worse(of_groups(MAX_LANES), of_groups(STRIP_ROWS))
    }

    /// Returns the larger error; `NaN` counts as the largest.
    fn worse(one: f64, other: f64) -> f64 {
        if one.is_nan() || one > other { one } else { other }
    }

    fn worst_error_of_groups<S: Simd>(
        simd: S,
        logits: &[f32],
        (tile, chunk): (usize, usize),
        (distance, first_keys): (usize, usize),
        sink: Option<f64>,
        is_bounded: &dyn Fn(usize) -> bool,
        group_rows: usize,
    ) -> f64 {
        let tokens = logits.len();
        let shape = AttentionShape { tokens, query_heads: 1, key_heads: 1, head_dim: 8 };
        let segments = Segments::new(&shape, distance).without_first_keys(first_keys);
        let lowest = (FIRST + tokens).saturating_sub(STRIP_ROWS);
        let last = FIRST + tokens - 1;
        let positions = std::array::from_fn(|lane| (lowest + lane).min(last));
        let visible = |position: usize| FIRST..(position + 1).max(FIRST);
        let strip = Strip::from_positions(1, (last + 1 - lowest).min(STRIP_ROWS), |lane| {
            (positions[lane], visible(positions[lane]))
        });
        let mut softmax = OnlineSoftmax::new(2, segments.count());
        for start in (0..tokens).step_by(tile) {
            let end = tokens.min(start + tile);
            let bounded = is_bounded(start);
            assert!(softmax.are_at_zero(1, strip.rows) || !bounded);
            softmax.open(1, &strip, start + FIRST, bounded, group_rows, &segments);
            for start in (start..end).step_by(chunk) {
                let keys = start + FIRST..end.min(start + chunk) + FIRST;
                // The chunk begins before its first key, with arbitrary logits: rows must ignore keys that they do not
                // see.
                let first = keys.start - start % 3;
                let of_key = |key: usize| {
                    positions.map(|position| {
                        if visible(position).contains(&key) {
                            logits[key - FIRST]
                        } else {
                            f32::NAN
                        }
                    })
                };
                let mut logits: Vec<_> = (first..keys.end).map(of_key).collect();
                softmax.absorb(simd, &strip, &keys, first, &mut logits, group_rows, &segments);
            }
            softmax.close(simd, &strip, group_rows);
        }
        let finished = softmax.finish(1, sink.map(|sink| [sink; STRIP_ROWS]).as_ref(), &segments);
        let error = |lane: usize| {
            let seen = &logits[..visible(positions[lane]).len()];
            let largest = seen.iter().fold(f64::NEG_INFINITY, |best, &x| best.max(f64::from(x)));
            let power = |x: f64| (x - largest).exp2();
            let total =
                seen.iter().map(|&x| power(f64::from(x))).sum::<f64>() + sink.map_or(0.0, power);
            let is_far =
                |key: usize| key + FIRST >= first_keys && key + FIRST + distance <= positions[lane];
            let far: Vec<f64> = (0..seen.len())
                .filter(|key| is_far(*key))
                .map(|key| power(f64::from(seen[key])) / total)
                .collect();
            let (mass, square) = (far.iter().sum::<f64>(), far.iter().map(|p| p * p).sum::<f64>());
            // Values below the floor are raised to it: this is its share relative to a row of 1, and the square.
            let error = |got: f64, want: f64, min: f64| (got - want).abs() / want.max(min);
            let mass = error(finished.far_masses[lane], mass, 1e-10);
            let square = error(finished.far_squares[lane], square, 1e-25);
            if mass.is_nan() || square.is_nan() { f64::NAN } else { mass.max(square) }
        };
        let errors = (0..strip.rows).filter(|lane| positions[*lane] >= FIRST).map(error);
        errors.fold(0.0, worse)
    }

    fn worst_error(
        logits: &[f32],
        tile: usize,
        distance: usize,
        sink: Option<f64>,
        bounded: bool,
    ) -> f64 {
        worst_error_of(Portable, logits, (tile, 24), (distance, 0), sink, &|_| bounded)
    }

    proptest! {
        #[test]
        fn chunks_of_any_size_merge_to_the_dense_softmax(
            logits in prop::collection::vec(-40.0_f32..40.0, 1..700), tile in 1_usize..300, chunk in 1_usize..40,
            distance in 0_usize..700, first_keys in prop_oneof![Just(0_usize), 0_usize..60], sink in proptest::option::of(-30.0_f64..60.0), bounded: bool,
        ) {
            let sizes = (tile, chunk);
            let error = worst_error_of(Portable, &logits, sizes, (distance, first_keys), sink, &|_| bounded);
            prop_assert!(error < 4e-6, "{error:e}");
            let fused = worst_error_of(PortableFused, &logits, sizes, (distance, first_keys), sink, &|_| bounded);
            let twice =
                worst_error_of(Twice::new(PortableFused), &logits, sizes, (distance, first_keys), sink, &|_| bounded);
            prop_assert_eq!(fused.to_bits(), twice.to_bits());
        }
    }

    #[test]
    fn offsets_follow_rising_and_falling_logits() {
        let logits: Vec<f32> = (0..600).map(|key| key as f32 * 1.5 - 200.0).collect();
        assert!(worst_error(&logits, 64, 3, None, false) < 3e-5);
        let falling: Vec<f32> = logits.iter().rev().copied().collect();
        assert!(worst_error(&falling, 64, 3, None, false) < 3e-5);
    }

    #[test]
    fn small_logits_after_bounded_negative_ones_keep_their_weight() {
        for (bounded, rest) in [(-50.0, -70.0), (-50.0, -110.0), (-55.0, -64.0), (-1.0, -64.0)] {
            let logits = [[bounded; 64], [rest; 64], [rest + 0.5; 64]].concat();
            let error =
                worst_error_of(Portable, &logits, (64, 24), (3, 0), None, &|start| start == 0);
            assert!(error < 4e-6, "{bounded}, then {rest}: {error:e}");
        }
    }

    #[test]
    fn a_lowered_offset_rises_with_larger_logits() {
        let logits = [[-50.0; 64], [-70.0; 64], [30.0; 64], [-20.0; 64]].concat();
        let error = worst_error_of(Portable, &logits, (64, 24), (3, 0), None, &|start| start == 0);
        assert!(error < 4e-6, "{error:e}");
    }

    #[test]
    fn a_large_sink_takes_all_attention_and_a_small_one_none() {
        let logits = [1.0; 40];
        for bounded in [true, false] {
            assert!(worst_error(&logits, 16, 10, Some(5000.0), bounded) < 1e-12);
            assert!(worst_error(&logits, 16, 10, Some(-5000.0), bounded) < 1e-6);
        }
    }

    #[test]
    fn nan_and_infinite_logits_give_nan() {
        let mut logits = [1.0; 40];
        logits[7] = f32::NAN;
        assert!(worst_error(&logits, 16, 10, None, false).is_nan());
        let mut columns = [1.0; 40];
        columns[39] = f32::INFINITY;
        assert!(worst_error(&columns, 16, 10, None, false).is_nan());
    }
}
