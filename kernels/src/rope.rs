//! The rotary position embedding: a table of cosines and sines, and the rotation of one row by it.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::simd_op::{SimdOp, run};
use crate::transpose::Transpose;
use crate::trigonometry::sine_cosine;
use crate::words::AlignedWords;

/// Pairing of the dimensions that rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeStyle {
    /// Dimension `t` with `t + rotary_dims/2` (GPT-NeoX, Llama: "rotate half").
    Half,
    /// Dimension `2t` with `2t + 1` (GPT-J, Cohere, GLM).
    Interleaved,
}

/// Parameters of a rotary embedding, from which a device computes its angles.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    pub style: RopeStyle,
    /// `[pairs]`: the angle of a pair is the position times this.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
}

impl Rotation {
    /// Computes the rotations of positions `0..tokens`, with the angle position × inverse frequency. Pair `t` of
    /// dimensions has the frequency `inverse_frequencies[t]`; dimensions from `2 · inverse_frequencies.len()` on are
    /// unchanged (partial rotary).
    ///
    /// The angle is formed in float64, then its cosine and sine, times `attention_factor`, rounded to float32 once: the
    /// same bits on every machine. Memory: `tokens · inverse_frequencies.len() · 8` bytes.
    pub fn table(&self, tokens: usize) -> Rope {
        let pairs = self.inverse_frequencies.len();
        let (mut cos, mut sin) =
            (AlignedWords::new(tokens * pairs), AlignedWords::new(tokens * pairs));
        if pairs > 0 {
            let rows = cos.floats_mut().par_chunks_mut(pairs);
            let rows = rows.zip(sin.floats_mut().par_chunks_mut(pairs)).enumerate();
            rows.with_min_len(64).for_each(|(position, (cos, sin))| {
                for (pair, &frequency) in self.inverse_frequencies.iter().enumerate() {
                    let (sine, cosine) = sine_cosine(position as f64 * f64::from(frequency));
                    cos[pair] = (cosine * self.attention_factor) as f32;
                    sin[pair] = (sine * self.attention_factor) as f32;
                }
            });
        }
        Rope { style: self.style, rotary_dims: 2 * pairs, tokens, cos, sin }
    }
}

/// Rotations of one window's positions `0..tokens`.
#[derive(Clone, Debug)]
pub struct Rope {
    style: RopeStyle,
    rotary_dims: usize,
    tokens: usize,
    /// `[tokens, rotary_dims/2]`
    cos: AlignedWords,
    /// `[tokens, rotary_dims/2]`
    sin: AlignedWords,
}

impl Rope {
    /// Returns the number of rotating dimensions, counted from the first.
    pub fn rotary_dims(&self) -> usize {
        self.rotary_dims
    }

    /// Returns the pairing of dimensions, and the cosines and sines, each `[tokens, rotary_dims/2]`.
    pub fn table(&self) -> (RopeStyle, &[f32], &[f32]) {
        (self.style, self.cos.floats(), self.sin.floats())
    }

    /// Returns the number of positions the table holds.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Rotates one head's row in place. `row`: `[head_dim]`, `head_dim >= rotary_dims`, `position < tokens`.
    ///
    /// # Panics
    /// If the table has no such position, or the row is too short.
    pub fn rotate(&self, position: usize, row: &mut [f32]) {
        run(RotatePass { rope: self, position, row });
    }

    /// Rotates a row like [`Self::rotate`], inside a pass.
    #[inline(always)]
    pub(crate) fn turn(&self, position: usize, row: &mut [f32]) {
        let pairs = self.rotary_dims / 2;
        let (cos, sin) = self.turning(position);
        match self.style {
            RopeStyle::Half => {
                let (first, second) = row[..2 * pairs].split_at_mut(pairs);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    [*a, *b] = turned([*a, *b], *cos, *sin);
                }
            }
            RopeStyle::Interleaved => {
                let pairs = row[..2 * pairs].as_chunks_mut::<2>().0;
                for ((pair, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
                    *pair = turned(*pair, *cos, *sin);
                }
            }
        }
    }

    /// Whether pairs fill whole vectors, as [`Self::turn_heads`] requires.
    #[inline(always)]
    pub(crate) fn turns_vectors(&self) -> bool {
        self.style == RopeStyle::Half && (self.rotary_dims / 2).is_multiple_of(VECTOR)
    }

    /// Rotates the heads `from` into `to`, each `[heads, head_dim]`. Requires [`Self::turns_vectors`].
    #[inline(always)]
    pub(crate) fn turn_heads(
        &self,
        position: usize,
        from: &[f32],
        head_dim: usize,
        to: &mut [f32],
    ) {
        let pairs = self.rotary_dims / 2;
        let (cos, sin) = self.turning(position);
        for (from, to) in from.chunks_exact(head_dim).zip(to.chunks_exact_mut(head_dim)) {
            let (from, rest) = from.split_at(2 * pairs);
            let (to, to_rest) = to.split_at_mut(2 * pairs);
            // Most models rotate all dimensions, and an empty copy would still be a call for each head.
            if !rest.is_empty() {
                to_rest.copy_from_slice(rest);
            }
            let (first, second) = from.split_at(pairs);
            let (to_first, to_second) = to.split_at_mut(pairs);
            let vectors = first.as_chunks::<VECTOR>().0.iter().zip(second.as_chunks().0);
            let to = to_first.as_chunks_mut().0.iter_mut().zip(to_second.as_chunks_mut().0);
            let turning = cos.as_chunks().0.iter().zip(sin.as_chunks().0);
            for (((a, b), (to_a, to_b)), (cos, sin)) in vectors.zip(to).zip(turning) {
                (*to_a, *to_b) = turned_vectors(*a, *b, *cos, *sin);
            }
        }
    }

    /// Returns the cosines and sines of a position.
    #[inline(always)]
    fn turning(&self, position: usize) -> (&[f32], &[f32]) {
        let pairs = self.rotary_dims / 2;
        let first = position * pairs;
        (&self.cos.floats()[first..][..pairs], &self.sin.floats()[first..][..pairs])
    }
}

/// Pairs of a vector.
const VECTOR: usize = 16;

/// Rotates a pair. Products and sums are rounded one by one, with any vectors.
#[inline(always)]
fn turned([a, b]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [a * cos - b * sin, b * cos + a * sin]
}

/// Rotates many pairs by value: with slices the compiler would check for overlap in each row.
#[inline(always)]
fn turned_vectors(
    a: [f32; VECTOR],
    b: [f32; VECTOR],
    cos: [f32; VECTOR],
    sin: [f32; VECTOR],
) -> ([f32; VECTOR], [f32; VECTOR]) {
    let (mut first, mut second) = (a, b);
    for lane in 0..VECTOR {
        [first[lane], second[lane]] = turned([a[lane], b[lane]], cos[lane], sin[lane]);
    }
    (first, second)
}

struct RotatePass<'a> {
    rope: &'a Rope,
    position: usize,
    row: &'a mut [f32],
}

impl SimdOp for RotatePass<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self, _: impl Transpose) {
        self.rope.turn(self.position, self.row);
    }
}

#[cfg(test)]
impl Rope {
    pub(crate) fn new(style: RopeStyle, frequencies: &[f32], factor: f64, tokens: usize) -> Self {
        let inverse_frequencies = frequencies.to_vec();
        Rotation { style, inverse_frequencies, attention_factor: factor }.table(tokens)
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    fn product(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn the_first_position_is_unchanged_and_lengths_are_kept() {
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            let rope = Rope::new(style, &[1.0, 0.01], 1.0, 9);
            let row = [1.0, 2.0, 3.0, 4.0];
            let mut turned = row;
            rope.rotate(0, &mut turned);
            assert_eq!(turned, row);
            rope.rotate(7, &mut turned);
            assert!(
                (product(&turned, &turned) - product(&row, &row)).abs() < 1e-5 && turned != row
            );
        }
    }

    #[test]
    fn products_depend_only_on_the_difference_of_positions() {
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            let rope = Rope::new(style, &[1.0, 0.3], 1.0, 40);
            let at = |position: usize, mut row: [f32; 5]| {
                rope.rotate(position, &mut row);
                row
            };
            let (query, key) = ([0.5, -1.0, 2.0, 0.25, 1.0], [1.0, 0.5, -0.5, 3.0, 2.0]);
            let near = product(&at(12, query), &at(3, key));
            let far = product(&at(39, query), &at(30, key));
            assert!((near - far).abs() < 1e-5, "{near} {far}");
        }
    }

    #[test]
    fn styles_pair_different_dimensions() {
        let frequencies = [std::f32::consts::FRAC_PI_2, 0.0];
        let turned = |style| {
            let mut row = [1.0, 2.0, 3.0, 4.0, 5.0];
            Rope::new(style, &frequencies, 1.0, 2).rotate(1, &mut row);
            row.map(f32::round)
        };
        assert_eq!(turned(RopeStyle::Half), [-3.0, 2.0, 1.0, 4.0, 5.0]);
        assert_eq!(turned(RopeStyle::Interleaved), [-2.0, 1.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn the_attention_factor_scales_rotating_dimensions() {
        let mut row = [1.0, 2.0, 3.0];
        Rope::new(RopeStyle::Half, &[0.5], 2.0, 1).rotate(0, &mut row);
        assert_eq!(row, [2.0, 4.0, 3.0]);
    }

    #[test]
    fn rotating_into_a_buffer_equals_rotating_in_place() {
        for pairs in [0_usize, 16, 32] {
            let frequencies: Vec<f32> = (0..pairs).map(|pair| 0.3 * pair as f32).collect();
            let rope = Rope::new(RopeStyle::Half, &frequencies, 1.5, 8);
            assert!(rope.turns_vectors());
            let head_dim = 2 * pairs + 5;
            let heads: Vec<f32> = (0..3 * head_dim).map(|at| at as f32 - 7.5).collect();
            let (mut turned, mut written) = (heads.clone(), vec![9.0; heads.len()]);
            turned.chunks_exact_mut(head_dim).for_each(|head| rope.rotate(7, head));
            rope.turn_heads(7, &heads, head_dim, &mut written);
            assert_eq!(turned, written, "{pairs}");
        }
        for (style, pairs) in [(RopeStyle::Half, 40), (RopeStyle::Interleaved, 32)] {
            assert!(!Rope::new(style, &vec![1.0; pairs], 1.0, 1).turns_vectors());
        }
    }
}
