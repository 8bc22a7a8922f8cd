//! The softmax of one row, met tile by tile: sums of exponentials per distance segment, in O(1) memory a row.
//!
//! Exponentials are float32, relative to an offset that follows the row's largest logit lazily; what they sum to
//! within a tile is added up in float64.

use std::ops::Range;

use crate::exponential::{LANES, exp2, exp2_lanes};
use crate::masks::Segments;
use crate::tile::Arithmetic;

/// A logit may exceed the offset by this many powers of two before the offset moves. A tile of 256 squares of `2^32`
/// is far from the largest float32.
const SLACK: f32 = 32.0;

/// Running sums of many rows. Logits are in units of log2.
pub(crate) struct Rows {
    /// `[rows]`: what exponentials are relative to; minus infinity until a row has met a key.
    offsets: Vec<f32>,
    /// `[rows]`: `Σ 2^(2·(logit - offset))` over far keys.
    squares: Vec<f64>,
    /// `[rows]`: the segment of the next key.
    current: Vec<usize>,
    /// `[rows, segments]`: `Σ 2^(logit - offset)`.
    masses: Vec<f64>,
    segments: usize,
}

/// What one row gives once all its keys have passed.
pub(crate) struct FinishedRow<'a> {
    /// Far mass, `Σ p` over far keys.
    pub(crate) far_mass: f64,
    /// `Σ p²` over far keys.
    pub(crate) far_square: f64,
    /// `[segments]`: unnormalised mass; times `scale` it is the row's attention.
    pub(crate) masses: &'a [f64],
    /// One over the softmax's denominator, 0 for a row that sees no key.
    pub(crate) scale: f64,
}

impl Rows {
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

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.offsets.fill(f32::NEG_INFINITY);
        self.squares.fill(0.0);
        self.current.fill(0);
        self.masses.fill(0.0);
    }

    /// Adds the keys `keys` of the row at window position `position`. `logits[0]` is that of key `keys.start`; at least
    /// [`LANES`] more floats, of any value, follow the last. Calls for one row come with ascending keys.
    #[inline(always)]
    pub(crate) fn absorb<A: Arithmetic>(
        &mut self,
        row: usize,
        position: usize,
        keys: Range<usize>,
        logits: &[f32],
        segments: &Segments,
    ) {
        let mut segment = self.current[row];
        let mut offset = self.offsets[row];
        let masses = &mut self.masses[row * self.segments..(row + 1) * self.segments];
        let mut key = keys.start;
        while key < keys.end {
            while segments.end(segment, position) <= key {
                segment += 1;
            }
            let end = keys.end.min(segments.end(segment, position));
            let count = end - key;
            let values = &logits[key - keys.start..];
            if offset == f32::NEG_INFINITY {
                offset = largest(values, count);
            }
            let far = segment < segments.far;
            let mut sums = sums::<A>(far, values, count, offset);
            if sums.largest > offset + SLACK {
                let factor = exp2(f64::from(offset) - f64::from(sums.largest));
                masses[..=segment].iter_mut().for_each(|mass| *mass *= factor);
                self.squares[row] *= factor * factor;
                offset = sums.largest;
                sums = self::sums::<A>(far, values, count, offset);
            }
            masses[segment] += f64::from(sums.mass);
            self.squares[row] += f64::from(sums.square);
            key = end;
        }
        self.current[row] = segment;
        self.offsets[row] = offset;
    }

    /// The row's attention. `sink` (a logit in units of log2) joins the denominator.
    pub(crate) fn finish(
        &self,
        row: usize,
        sink: Option<f64>,
        segments: &Segments,
    ) -> FinishedRow<'_> {
        let masses = &self.masses[row * self.segments..(row + 1) * self.segments];
        let offset = f64::from(self.offsets[row]);
        let total: f64 = masses.iter().sum();
        let scale = if offset == f64::NEG_INFINITY {
            0.0 // no visible key
        } else {
            1.0 / (total + sink.map_or(0.0, |sink| exp2(sink - offset)))
        };
        let far_mass = masses[..segments.far].iter().sum::<f64>() * scale;
        FinishedRow { far_mass, far_square: self.squares[row] * scale * scale, masses, scale }
    }
}

struct Sums {
    mass: f32,
    square: f32,
    largest: f32,
}

/// Sums over `values[..count]`; the squares only where `far`.
#[inline(always)]
fn sums<A: Arithmetic>(far: bool, values: &[f32], count: usize, offset: f32) -> Sums {
    if far {
        lane_sums::<A, true>(values, count, offset)
    } else {
        lane_sums::<A, false>(values, count, offset)
    }
}

#[inline(always)]
fn lane_sums<A: Arithmetic, const SQUARES: bool>(
    values: &[f32],
    count: usize,
    offset: f32,
) -> Sums {
    let mut lanes =
        Lanes { mass: [0.0; LANES], square: [0.0; LANES], largest: [f32::NEG_INFINITY; LANES] };
    let whole = count / LANES * LANES;
    for chunk in values[..whole].as_chunks::<LANES>().0 {
        lanes.add::<A, SQUARES>(chunk, offset, [true; LANES]);
    }
    if whole < count {
        let chunk =
            values[whole..].first_chunk::<LANES>().expect("logits are padded by a full chunk");
        let mut wanted = [false; LANES];
        for (lane, wanted) in wanted.iter_mut().enumerate() {
            *wanted = whole + lane < count;
        }
        lanes.add::<A, SQUARES>(chunk, offset, wanted);
    }
    let square = if SQUARES { fold(lanes.square, |a, b| a + b) } else { 0.0 };
    Sums { mass: fold(lanes.mass, |a, b| a + b), square, largest: fold(lanes.largest, larger) }
}

#[derive(Clone, Copy)]
struct Lanes {
    mass: [f32; LANES],
    square: [f32; LANES],
    largest: [f32; LANES],
}

impl Lanes {
    #[inline(always)]
    fn add<A: Arithmetic, const SQUARES: bool>(
        &mut self,
        chunk: &[f32; LANES],
        offset: f32,
        wanted: [bool; LANES],
    ) {
        let mut logits = *chunk;
        for lane in 0..LANES {
            logits[lane] = if wanted[lane] { logits[lane] } else { f32::NEG_INFINITY };
            self.largest[lane] = larger(logits[lane], self.largest[lane]);
            logits[lane] -= offset;
        }
        let mut powers = exp2_lanes::<A>(logits);
        for lane in 0..LANES {
            powers[lane] = if wanted[lane] { powers[lane] } else { 0.0 };
            self.mass[lane] += powers[lane];
            if SQUARES {
                self.square[lane] = A::mul_add(powers[lane], powers[lane], self.square[lane]);
            }
        }
    }
}

/// The largest of `values[..count]`.
#[inline(always)]
fn largest(values: &[f32], count: usize) -> f32 {
    values[..count].iter().fold(f32::NEG_INFINITY, |best, &value| larger(value, best))
}

/// One vector instruction, unlike `f32::max`, which has rules of its own for `NaN`.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Combines the lanes in halves: a fixed order with a short chain.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{AttentionShape, Measure};
    use crate::tile::{Fused, Plain};
    use proptest::prelude::*;

    /// One row over `logits`, met in pieces of `piece` keys, against float64; returns the worst relative error.
    fn worst_error<A: Arithmetic>(
        logits: &[f32],
        piece: usize,
        distance: usize,
        sink: Option<f64>,
    ) -> f64 {
        let tokens = logits.len();
        let shape = AttentionShape { tokens, query_heads: 1, key_heads: 1, head_dim: 8 };
        let segments = Segments::new(&shape, &Measure { distance, rows: false });
        let mut rows = Rows::new(1, segments.count());
        for start in (0..tokens).step_by(piece) {
            let end = tokens.min(start + piece);
            let mut padded = logits[start..end].to_vec();
            padded.extend([f32::NAN; LANES]);
            rows.absorb::<A>(0, tokens - 1, start..end, &padded, &segments);
        }
        let row = rows.finish(0, sink, &segments);

        let largest = logits.iter().fold(f64::NEG_INFINITY, |best, &x| best.max(f64::from(x)));
        let power = |x: f64| (x - largest).exp2();
        let total =
            logits.iter().map(|&x| power(f64::from(x))).sum::<f64>() + sink.map_or(0.0, power);
        let far: Vec<f64> = logits[..tokens.saturating_sub(distance)]
            .iter()
            .map(|&x| power(f64::from(x)) / total)
            .collect();
        let (mass, square) = (far.iter().sum::<f64>(), far.iter().map(|p| p * p).sum::<f64>());
        // Below 1e-30 a float32 exponential may have vanished beside the row's largest.
        let error = |got: f64, want: f64| if want < 1e-30 { got } else { (got / want - 1.0).abs() };
        error(row.far_mass, mass).max(error(row.far_square, square))
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_merge_to_the_dense_softmax(
            logits in prop::collection::vec(-40.0_f32..40.0, 1..700), piece in 1_usize..300, distance in 0_usize..700,
            sink in proptest::option::of(-30.0_f64..60.0),
        ) {
            let (plain, fused) = (
                worst_error::<Plain>(&logits, piece, distance, sink),
                worst_error::<Fused>(&logits, piece, distance, sink),
            );
            prop_assert!(plain < 4e-6 && fused < 4e-6, "plain {plain:e}, fused {fused:e}");
        }
    }

    #[test]
    fn logits_that_climb_by_hundreds_move_the_offset_and_keep_the_sums() {
        let logits: Vec<f32> = (0..600).map(|key| key as f32 * 1.5 - 200.0).collect();
        assert!(worst_error::<Fused>(&logits, 64, 3, None) < 3e-5);
        let falling: Vec<f32> = logits.iter().rev().copied().collect();
        assert!(worst_error::<Fused>(&falling, 64, 3, None) < 3e-5);
    }

    #[test]
    fn a_sink_far_above_the_logits_takes_everything_and_one_far_below_nothing() {
        let logits = [1.0; 40];
        assert!(worst_error::<Plain>(&logits, 16, 10, Some(5000.0)) < 1e-12);
        assert!(worst_error::<Plain>(&logits, 16, 10, Some(-5000.0)) < 1e-6);
    }

    #[test]
    fn nan_logits_are_not_hidden() {
        let mut logits = [1.0; 40];
        logits[7] = f32::NAN;
        assert!(worst_error::<Fused>(&logits, 16, 10, None).is_nan());
    }
}
