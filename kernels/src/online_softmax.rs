//! The softmax of one row, met tile by tile: sums of exponentials per distance segment, in O(1) memory a row.
//!
//! Exponentials are float32, relative to an offset: zero where the logits are known to be small, else one that follows the
//! row's largest logit lazily. What they sum to within a tile is added up in float64.

use std::ops::Range;

use crate::masks::Segments;
use crate::simd::{Simd, exp2};

/// A logit may exceed the offset by this many powers of two before the offset moves. A tile of 256 squares of `2^32`
/// is far from the largest float32.
const SLACK: f32 = 32.0;

/// Logits further below the offset count as this far below: what they add to a sum of millions beside 1 is nothing, and
/// their squares are still normal numbers.
const FLOOR: f32 = -62.0;

/// Logits known to lie within this of zero need no offset: a tile of 256 squares of `2^56` fits a float32, and squares
/// of `2^-56` are normal numbers.
pub(crate) const BOUND: f32 = 56.0;

/// Running sums of many rows. Logits are in units of log2.
pub(crate) struct OnlineSoftmax {
    /// `[rows]`: what exponentials are relative to; minus infinity until a row has met a key. Wherever the floor is used,
    /// a row's exponentials sum to one or more with those of the tile: what is cut off is nothing beside them.
    offsets: Vec<f32>,
    /// `[rows]`: `Σ 2^(2·(logit - offset))` over far keys.
    squares: Vec<f64>,
    /// `[rows]`: the segment of the next key.
    current: Vec<usize>,
    /// `[rows, segments]`: `Σ 2^(logit - offset)`.
    masses: Vec<f64>,
    segments: usize,
}

/// Logits of one row, in units of log2.
pub(crate) struct Logits<'a> {
    /// Columns beside those that are asked for may hold anything.
    pub(crate) values: &'a [f32],
    /// The key that column 0 stands for.
    pub(crate) first: usize,
    /// Promises that what is asked for lies within [`BOUND`] of zero and the row
    /// [is at zero](OnlineSoftmax::are_at_zero).
    pub(crate) bounded: bool,
}

/// What one row gives once all its keys have passed.
pub(crate) struct FinishedRow<'a> {
    /// Far mass, `Σ p` over far keys.
    pub(crate) far_mass: f64,
    /// `Σ p²` over far keys.
    pub(crate) far_square: f64,
    /// `[segments]`: unnormalised mass; times `scale` it is the row's attention. Where keys cut segments, none behind the last
    /// key that the row sees.
    pub(crate) masses: &'a [f64],
    /// One over the softmax's denominator, 0 for a row that sees no key.
    pub(crate) scale: f64,
}

impl OnlineSoftmax {
    pub(crate) fn new(rows: usize, segments: usize) -> Self {
        Self {
            offsets: vec![f32::NEG_INFINITY; rows],
            squares: vec![0.0; rows],
            current: vec![0; rows],
            masses: vec![0.0; rows * segments],
            segments,
        }
    }

    /// Heap bytes of `rows` rows.
    pub(crate) fn bytes(rows: usize, segments: usize) -> u64 {
        (rows
            * (size_of::<f32>()
                + size_of::<f64>()
                + size_of::<usize>()
                + segments * size_of::<f64>())) as u64
    }

    /// Forgets all keys, which these segments have sorted.
    pub(crate) fn clear(&mut self, segments: &Segments) {
        self.offsets.fill(f32::NEG_INFINITY);
        self.squares.fill(0.0);
        if segments.ends().is_some() {
            // Nothing lies behind the segment of a row's last key, and there may be a thousand.
            for (masses, last) in self.masses.chunks_exact_mut(self.segments).zip(&self.current) {
                masses[..=*last].fill(0.0);
            }
        } else {
            self.masses.fill(0.0);
        }
        self.current.fill(0);
    }

    /// Whether no offset has moved: exponentials of the rows `rows` may still be taken of the logits as they are.
    pub(crate) fn are_at_zero(&self, rows: Range<usize>) -> bool {
        self.offsets[rows].iter().all(|&offset| offset == 0.0 || offset == f32::NEG_INFINITY)
    }

    /// Adds the keys `keys` of the row at window position `position`. Calls for one row come with ascending keys, at
    /// least one each. One pass over the logits where they are bounded, else one more to find the largest.
    #[inline(always)]
    pub(crate) fn absorb<S: Simd>(
        &mut self,
        simd: S,
        row: usize,
        position: usize,
        keys: Range<usize>,
        logits: &Logits<'_>,
        segments: &Segments,
    ) {
        let &Logits { values, first, bounded } = logits;
        let mut segment = self.current[row];
        // 1. The offset follows the largest logit.
        if bounded {
            self.offsets[row] = 0.0;
        } else {
            self.rebase(row, largest(simd, values, keys.start - first..keys.end - first));
        }
        let offset = self.offsets[row];
        // 2. Exponentials and their sums, segment by segment.
        let masses = &mut self.masses[row * self.segments..(row + 1) * self.segments];
        if let Some(ends) = segments.ends() {
            let short = Short::of::<S>(ends, segment, &keys, first);
            if let Some(short) = short {
                self.current[row] = if bounded {
                    short.sum::<S, true>(simd, values, offset, masses)
                } else {
                    short.sum::<S, false>(simd, values, offset, masses)
                };
                return;
            }
        }
        let near = Near::of(segments, position, &keys, first);
        let (mut key, end_of_pieces) =
            (keys.start, near.as_ref().map_or(keys.end, |near| near.start));
        let mut cut = CutVector::none(simd);
        while key < end_of_pieces {
            while segments.end(segment, position) <= key {
                segment += 1;
            }
            let end = end_of_pieces.min(segments.end(segment, position));
            let columns = key - first..end - first;
            let (mass, square) = match (bounded, segments.far.contains(&segment)) {
                (true, true) => sum_exp2::<S, true, true>(simd, values, columns, offset, &mut cut),
                (true, false) => {
                    sum_exp2::<S, true, false>(simd, values, columns, offset, &mut cut)
                }
                (false, true) => {
                    sum_exp2::<S, false, true>(simd, values, columns, offset, &mut cut)
                }
                (false, false) => {
                    sum_exp2::<S, false, false>(simd, values, columns, offset, &mut cut)
                }
            };
            masses[segment] += f64::from(mass);
            self.squares[row] += f64::from(square);
            key = end;
        }
        if let Some(near) = near {
            let logits = &values[near.start - first..][..NEAR];
            let masses = &mut masses[near.segment..];
            if bounded {
                sum_nearest_exp2::<S, true>(simd, logits, offset, masses);
            } else {
                sum_nearest_exp2::<S, false>(simd, logits, offset, masses);
            }
        }
        self.current[row] = segment;
    }

    /// Moves the row's offset: up where `largest` exceeds it by too much; down where the keys so far were bounded, so
    /// that it is zero, and weigh less than one in all: what lies further below would be cut off too near to them.
    fn rebase(&mut self, row: usize, largest: f32) {
        if self.offsets[row] == 0.0 && largest < 0.0 {
            // A row may have a thousand segments: as soon as those from the first on weigh enough, the rest does not matter.
            let masses = &self.masses[row * self.segments..(row + 1) * self.segments];
            let mut mass = 0.0;
            let weighs_less = masses.iter().all(|of_segment| {
                mass += of_segment;
                mass < 1.0
            });
            if weighs_less {
                self.move_offset(row, exponent(mass));
            }
        }
        if largest > self.offsets[row] + SLACK {
            self.move_offset(row, largest);
        }
    }

    /// Makes the row's sums relative to `offset`.
    fn move_offset(&mut self, row: usize, offset: f32) {
        let factor = exp2(f64::from(self.offsets[row]) - f64::from(offset));
        for mass in &mut self.masses[row * self.segments..(row + 1) * self.segments] {
            *mass *= factor;
        }
        self.squares[row] *= factor * factor;
        self.offsets[row] = offset;
    }

    /// The row's attention. `sink` (a logit in units of log2) joins the denominator.
    pub(crate) fn finish(
        &self,
        row: usize,
        sink: Option<f64>,
        segments: &Segments,
    ) -> FinishedRow<'_> {
        let mut masses = &self.masses[row * self.segments..(row + 1) * self.segments];
        let offset = f64::from(self.offsets[row]);
        let total: f64 = if segments.ends().is_some() {
            // There may be a thousand, and of most rows the last ones are beyond what they see.
            masses = &masses[..=self.current[row]];
            sum_by_lanes(masses)
        } else {
            masses.iter().sum()
        };
        let scale = if offset == f64::NEG_INFINITY {
            0.0 // no visible key
        } else {
            1.0 / (total + sink.map_or(0.0, |sink| exp2(sink - offset)))
        };
        let far_mass = masses[segments.far.clone()].iter().sum::<f64>() * scale;
        FinishedRow { far_mass, far_square: self.squares[row] * scale * scale, masses, scale }
    }
}

/// The largest integer whose power of two is at most `mass`, a positive normal number.
fn exponent(mass: f64) -> f32 {
    ((mass.to_bits() >> 52) as i32 - 1023) as f32
}

/// `2^x` of a vector of logits, relative to `offset` unless they are bounded.
#[inline(always)]
fn relative_exp2<S: Simd, const BOUNDED: bool>(
    simd: S,
    logits: &[f32],
    offset: S::Vector,
) -> S::Vector {
    let x = simd.load(logits);
    if BOUNDED { simd.exp2(x) } else { simd.exp2(simd.max(simd.splat(FLOOR), simd.sub(x, offset))) }
}

/// A vector that one piece of a row ends in and the next begins in: its exponentials are taken once.
struct CutVector<S: Simd> {
    powers: S::Vector,
    /// The column that it begins at; none at first.
    at: usize,
}

impl<S: Simd> CutVector<S> {
    #[inline(always)]
    fn none(simd: S) -> Self {
        Self { powers: simd.splat(0.0), at: usize::MAX }
    }

    /// The exponentials of the vector at column `at`.
    #[inline(always)]
    fn take<const BOUNDED: bool>(
        &mut self,
        simd: S,
        logits: &[f32],
        at: usize,
        offset: S::Vector,
    ) -> S::Vector {
        if self.at != at {
            self.at = at;
            self.powers = relative_exp2::<S, BOUNDED>(simd, &logits[at..], offset);
        }
        self.powers
    }
}

/// `Σ 2^(x - offset)` over the logits at `columns`, not empty, and the sum of squares of the same terms if wanted.
/// Terms are added lane by lane, ascending, then the lanes in halves. `cut` is that of the piece before.
#[inline(always)]
fn sum_exp2<S: Simd, const BOUNDED: bool, const SQUARES: bool>(
    simd: S,
    logits: &[f32],
    columns: Range<usize>,
    offset: f32,
    cut: &mut CutVector<S>,
) -> (f32, f32) {
    let (zero, offset) = (simd.splat(0.0), simd.splat(offset));
    let parts = Parts::of::<S>(&columns);
    let (mut mass, mut square) = (zero, zero);
    if let Some((at, lanes)) = parts.head {
        mass = simd.select(lanes, cut.take::<BOUNDED>(simd, logits, at, offset), zero);
        square = simd.mul(mass, mass);
    }
    for logits in logits[parts.whole].chunks_exact(S::LANES) {
        let power = relative_exp2::<S, BOUNDED>(simd, logits, offset);
        mass = simd.add(mass, power);
        if SQUARES {
            square = simd.mul_add(power, power, square);
        }
    }
    if let Some((at, lanes)) = parts.tail {
        let power = simd.select(lanes, cut.take::<BOUNDED>(simd, logits, at, offset), zero);
        mass = simd.add(mass, power);
        square = simd.mul_add(power, power, square);
    }
    (simd.sum(mass), if SQUARES { simd.sum(square) } else { 0.0 })
}

/// The sum of numbers, eight at a time side by side.
fn sum_by_lanes(numbers: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let chunks = numbers.chunks_exact(sums.len());
    let rest: f64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, number)| *sum += number);
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h)) + rest
}

/// Exponentials of so many columns are kept at a time: a tile, and the whole vectors that it begins and ends in.
const KEPT: usize = 288;

/// Keys of a row whose segments are, on average, so short that exponentials are taken of all of them at once: else a vector would
/// be computed again for every segment that it lies in.
struct Short<'a> {
    ends: &'a [usize],
    /// The segment of the first key.
    segment: usize,
    keys: Range<usize>,
    /// The key that column 0 stands for.
    first: usize,
}

impl<'a> Short<'a> {
    /// `None` where segments are longer. `segment` is at or before that of the first key.
    #[inline(always)]
    fn of<S: Simd>(
        ends: &'a [usize],
        mut segment: usize,
        keys: &Range<usize>,
        first: usize,
    ) -> Option<Self> {
        while ends[segment] <= keys.start {
            segment += 1;
        }
        let touched = 1 + ends[segment..].partition_point(|end| *end < keys.end);
        let start = (keys.start - first) / S::LANES * S::LANES;
        let columns = (keys.end - first).next_multiple_of(S::LANES) - start;
        (touched * 2 * S::LANES > keys.len() && columns <= KEPT).then(|| Self {
            ends,
            segment,
            keys: keys.clone(),
            first,
        })
    }

    /// Adds `Σ 2^(x - offset)` of the keys of each segment to its mass; the segment of the last key.
    #[inline(always)]
    fn sum<S: Simd, const BOUNDED: bool>(
        self,
        simd: S,
        logits: &[f32],
        offset: f32,
        masses: &mut [f64],
    ) -> usize {
        let Self { ends, mut segment, keys, first } = self;
        let offset = simd.splat(offset);
        let start = (keys.start - first) / S::LANES * S::LANES;
        let end = (keys.end - first).next_multiple_of(S::LANES);
        let mut powers = [0.0_f32; KEPT];
        let vectors = powers.chunks_exact_mut(S::LANES);
        for (logits, powers) in logits[start..end].chunks_exact(S::LANES).zip(vectors) {
            simd.store(relative_exp2::<S, BOUNDED>(simd, logits, offset), powers);
        }
        let base = first + start;
        let mut key = keys.start;
        loop {
            let end = ends[segment].min(keys.end);
            masses[segment] += f64::from(sum_of_four(&powers[key - base..end - base]));
            if end == keys.end {
                return segment;
            }
            (key, segment) = (end, segment + 1);
        }
    }
}

/// The sum of a few numbers, four at a time side by side.
#[inline(always)]
fn sum_of_four(numbers: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 4];
    let chunks = numbers.chunks_exact(4);
    let rest = chunks.remainder();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, number)| *sum += number);
    }
    let sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    rest.iter().fold(sum, |sum, number| sum + number)
}

/// Distances of a row's nearest keys, whose seven segments are summed together.
const NEAR: usize = 64;
/// Segments of those keys: distances `[32, 64)`, `[16, 32)`, `[8, 16)`, `[4, 8)`, 2 and 3, 1, and 0.
const NEAR_SEGMENTS: usize = 7;

/// A row's nearest keys, all of them among those to be added.
struct Near {
    /// The farthest of them.
    start: usize,
    /// Its segment.
    segment: usize,
}

impl Near {
    /// `None` where a key is missing, lies before column 0, or is far, and where keys cut the segments.
    #[inline(always)]
    fn of(segments: &Segments, position: usize, keys: &Range<usize>, first: usize) -> Option<Self> {
        if segments.distances().is_empty() {
            return None;
        }
        let start = (position + 1).checked_sub(NEAR)?;
        let segment = segments.count().checked_sub(1 + NEAR_SEGMENTS)?;
        let there = keys.end == position + 1 && start >= keys.start && start >= first;
        let there = there && start >= segments.first_keys();
        let cut_by_powers = segments.far.end <= segment
            && segments.end(segment, position) == position + 1 - NEAR / 2
            && (segment == 0 || segments.end(segment - 1, position) <= start);
        (there && cut_by_powers).then_some(Self { start, segment })
    }
}

/// Adds `Σ 2^(x - offset)` of a row's nearest keys, the farthest first, to the masses of their segments.
#[inline(always)]
fn sum_nearest_exp2<S: Simd, const BOUNDED: bool>(
    simd: S,
    logits: &[f32],
    offset: f32,
    masses: &mut [f64],
) {
    let offset = simd.splat(offset);
    let mut powers = [0.0_f32; NEAR];
    for (logits, powers) in logits.chunks_exact(S::LANES).zip(powers.chunks_exact_mut(S::LANES)) {
        simd.store(relative_exp2::<S, BOUNDED>(simd, logits, offset), powers);
    }
    let vectors = |powers: &[f32]| {
        let mut sum = simd.splat(0.0);
        for powers in powers.chunks_exact(S::LANES) {
            sum = simd.add(sum, simd.load(powers));
        }
        f64::from(simd.sum(sum))
    };
    let p = &powers[NEAR - 16..];
    let pair = |at: usize| p[at] + p[at + 1];
    masses[0] += vectors(&powers[..32]);
    masses[1] += vectors(&powers[32..48]);
    masses[2] += f64::from((pair(0) + pair(2)) + (pair(4) + pair(6)));
    masses[3] += f64::from(pair(8) + pair(10));
    masses[4] += f64::from(pair(12));
    masses[5] += f64::from(p[14]);
    masses[6] += f64::from(p[15]);
}

/// The largest of the logits at `columns`, not empty.
#[inline(always)]
fn largest<S: Simd>(simd: S, logits: &[f32], columns: Range<usize>) -> f32 {
    let none = simd.splat(f32::NEG_INFINITY);
    let parts = Parts::of::<S>(&columns);
    let mut largest = none;
    if let Some((at, lanes)) = parts.head {
        largest = simd.select(lanes, simd.load(&logits[at..]), none);
    }
    for logits in logits[parts.whole].chunks_exact(S::LANES) {
        largest = simd.max(simd.load(logits), largest);
    }
    if let Some((at, lanes)) = parts.tail {
        largest = simd.max(simd.select(lanes, simd.load(&logits[at..]), none), largest);
    }
    simd.largest(largest)
}

/// A range of columns cut at whole vectors, which start at multiples of their length.
struct Parts {
    /// Where a first, partial vector begins, and which of its lanes are meant.
    head: Option<(usize, Range<usize>)>,
    /// Columns of the whole vectors.
    whole: Range<usize>,
    /// As `head`, after the whole vectors.
    tail: Option<(usize, Range<usize>)>,
}

impl Parts {
    #[inline(always)]
    fn of<S: Simd>(columns: &Range<usize>) -> Self {
        let (before, after) = (columns.start % S::LANES, columns.end % S::LANES);
        let (first, last) = (columns.start - before, columns.end - after);
        if before == 0 {
            let tail = (after > 0).then_some((last, 0..after));
            return Self { head: None, whole: first..last, tail };
        }
        if first == last {
            return Self { head: Some((first, before..after)), whole: last..last, tail: None };
        }
        let tail = (after > 0).then_some((last, 0..after));
        Self { head: Some((first, before..S::LANES)), whole: first + S::LANES..last, tail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use crate::statistics::{AttentionShape, Measure};
    use proptest::prelude::*;

    /// One row over `logits`, met in pieces of `piece` keys, against float64; returns the worst relative error.
    fn worst_error(
        logits: &[f32],
        piece: usize,
        distance: usize,
        sink: Option<f64>,
        bounded: bool,
    ) -> f64 {
        worst_error_of(logits, piece, distance, sink, |_| bounded)
    }

    /// As [`worst_error`]; `is_bounded` says of the piece that starts at a key whether its logits are.
    fn worst_error_of(
        logits: &[f32],
        piece: usize,
        distance: usize,
        sink: Option<f64>,
        is_bounded: impl Fn(usize) -> bool,
    ) -> f64 {
        let tokens = logits.len();
        let shape = AttentionShape { tokens, query_heads: 1, key_heads: 1, head_dim: 8 };
        let segments = Segments::new(&shape, &Measure { distance, rows: false });
        let mut softmax = OnlineSoftmax::new(1, segments.count());
        for start in (0..tokens).step_by(piece) {
            let end = tokens.min(start + piece);
            let bounded = is_bounded(start);
            // The piece begins at a column of its own, between columns that hold nonsense.
            let column = start % 5;
            let mut columns =
                vec![f32::NAN; (column + piece + 2).next_multiple_of(Portable::LANES)];
            columns[column..column + end - start].copy_from_slice(&logits[start..end]);
            assert!(softmax.are_at_zero(0..1) || !bounded);
            // Column 0 would be a key before the first one, were there a window before it.
            let position = tokens - 1 + 5;
            let keys = start + 5..end + 5;
            let logits = Logits { values: &columns, first: keys.start - column, bounded };
            softmax.absorb(Portable, 0, position, keys, &logits, &segments);
        }
        let row = softmax.finish(0, sink, &segments);

        let largest = logits.iter().fold(f64::NEG_INFINITY, |best, &x| best.max(f64::from(x)));
        let power = |x: f64| (x - largest).exp2();
        let total =
            logits.iter().map(|&x| power(f64::from(x))).sum::<f64>() + sink.map_or(0.0, power);
        let far: Vec<f64> = logits[..tokens.saturating_sub(distance)]
            .iter()
            .map(|&x| power(f64::from(x)) / total)
            .collect();
        let (mass, square) = (far.iter().sum::<f64>(), far.iter().map(|p| p * p).sum::<f64>());
        // What is below the floor counts as the floor: so much beside a row of 1, and its square.
        let error = |got: f64, want: f64, least: f64| (got - want).abs() / want.max(least);
        error(row.far_mass, mass, 1e-10).max(error(row.far_square, square, 1e-25))
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_merge_to_the_dense_softmax(
            logits in prop::collection::vec(-40.0_f32..40.0, 1..700), piece in 1_usize..300, distance in 0_usize..700,
            sink in proptest::option::of(-30.0_f64..60.0), bounded: bool,
        ) {
            let error = worst_error(&logits, piece, distance, sink, bounded);
            prop_assert!(error < 4e-6, "{error:e}");
        }
    }

    #[test]
    fn logits_that_climb_by_hundreds_move_the_offset_and_keep_the_sums() {
        let logits: Vec<f32> = (0..600).map(|key| key as f32 * 1.5 - 200.0).collect();
        assert!(worst_error(&logits, 64, 3, None, false) < 3e-5);
        let falling: Vec<f32> = logits.iter().rev().copied().collect();
        assert!(worst_error(&falling, 64, 3, None, false) < 3e-5);
    }

    #[test]
    fn keys_below_bounded_ones_that_are_themselves_below_zero_keep_their_distance() {
        for (bounded, rest) in [(-50.0, -70.0), (-50.0, -110.0), (-55.0, -64.0), (-1.0, -64.0)] {
            let logits = [[bounded; 64], [rest; 64], [rest + 0.5; 64]].concat();
            let error = worst_error_of(&logits, 64, 3, None, |start| start == 0);
            assert!(error < 4e-6, "{bounded}, then {rest}: {error:e}");
        }
    }

    #[test]
    fn a_row_of_small_mass_is_followed_upwards_again() {
        let logits = [[-50.0; 64], [-70.0; 64], [30.0; 64], [-20.0; 64]].concat();
        assert!(worst_error_of(&logits, 64, 3, None, |start| start == 0) < 4e-6);
    }

    #[test]
    fn a_sink_far_above_the_logits_takes_everything_and_one_far_below_nothing() {
        let logits = [1.0; 40];
        for bounded in [true, false] {
            assert!(worst_error(&logits, 16, 10, Some(5000.0), bounded) < 1e-12);
            assert!(worst_error(&logits, 16, 10, Some(-5000.0), bounded) < 1e-6);
        }
    }

    #[test]
    fn nan_logits_are_not_hidden() {
        let mut logits = [1.0; 40];
        logits[7] = f32::NAN;
        assert!(worst_error(&logits, 16, 10, None, false).is_nan());
        let mut columns = [1.0; 40];
        columns[39] = f32::INFINITY;
        assert!(worst_error(&columns, 16, 10, None, false).is_nan());
    }
}
