//! The rotary position embedding: a table of cosines and sines, and the rotation of one row by it.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::trigonometry::sine_cosine;
use crate::work::{Work, run};

/// Which two dimensions turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeStyle {
    /// Dimension `t` with `t + rotary_dims/2` (GPT-NeoX, Llama: "rotate half").
    Half,
    /// Dimension `2t` with `2t + 1` (GPT-J, Cohere, GLM).
    Interleaved,
}

/// A rotary embedding as the figures that its angles come from: what a device computes rotations with.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// Which dimensions turn together.
    pub style: RopeStyle,
    /// `[pairs]`: the angle of a pair is the position times this.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
}

impl Rotation {
    /// The cosines and sines of positions `0..tokens`.
    pub fn table(&self, tokens: usize) -> Rope {
        Rope::new(self.style, &self.inverse_frequencies, self.attention_factor, tokens)
    }
}

/// Rotations of one window's positions `0..tokens`.
#[derive(Clone, Debug)]
pub struct Rope {
    style: RopeStyle,
    rotary_dims: usize,
    tokens: usize,
    /// `[tokens, rotary_dims/2]`
    cos: Vec<f32>,
    /// `[tokens, rotary_dims/2]`
    sin: Vec<f32>,
}

impl Rope {
    /// Positions `0..tokens`, turned by position × inverse frequency. Pair `t` of dimensions has the frequency
    /// `inverse_frequencies[t]`; dimensions from `2 · inverse_frequencies.len()` on pass unchanged (partial rotary).
    ///
    /// The angle is formed in float64, then its cosine and sine, times `attention_factor`, rounded to float32 once: the
    /// same bits on every machine. Memory: `tokens · inverse_frequencies.len() · 8` bytes.
    pub fn new(
        style: RopeStyle,
        inverse_frequencies: &[f32],
        attention_factor: f64,
        tokens: usize,
    ) -> Self {
        let pairs = inverse_frequencies.len();
        let mut cos = vec![0.0; tokens * pairs];
        let mut sin = vec![0.0; tokens * pairs];
        if pairs > 0 {
            let rows = cos.par_chunks_mut(pairs).zip(sin.par_chunks_mut(pairs)).enumerate();
            rows.with_min_len(64).for_each(|(position, (cos, sin))| {
                for (pair, &frequency) in inverse_frequencies.iter().enumerate() {
                    let (sine, cosine) = sine_cosine(position as f64 * f64::from(frequency));
                    cos[pair] = (cosine * attention_factor) as f32;
                    sin[pair] = (sine * attention_factor) as f32;
                }
            });
        }
        Self { style, rotary_dims: 2 * pairs, tokens, cos, sin }
    }

    /// Dimensions that turn, counted from the first.
    pub fn rotary_dims(&self) -> usize {
        self.rotary_dims
    }

    /// Positions the table holds.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Turns one head's row in place. `row`: `[head_dim]`, `head_dim >= rotary_dims`, `position < tokens`.
    ///
    /// # Panics
    /// If the table has no such position, or the row is too short.
    pub fn rotate(&self, position: usize, row: &mut [f32]) {
        let pairs = self.rotary_dims / 2;
        let cos = &self.cos[position * pairs..][..pairs];
        let sin = &self.sin[position * pairs..][..pairs];
        let row = &mut row[..self.rotary_dims];
        run(Turning { style: self.style, row, cos, sin });
    }
}

/// One row to be turned. Products and sums are rounded one by one, whatever the vectors.
struct Turning<'a> {
    style: RopeStyle,
    row: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Work for Turning<'_> {
    type Found = ();

    #[inline(always)]
    fn run(self) {
        let Self { style, row, cos, sin } = self;
        match style {
            RopeStyle::Half => {
                let (first, second) = row.split_at_mut(cos.len());
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
            RopeStyle::Interleaved => {
                let turned = row.as_chunks_mut::<2>().0;
                for (([a, b], cos), sin) in turned.iter_mut().zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
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
    fn a_product_depends_on_the_difference_of_positions_alone() {
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
    fn styles_pair_different_dimensions_and_leave_the_rest_alone() {
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
    fn the_attention_factor_scales_the_dimensions_that_turn() {
        let mut row = [1.0, 2.0, 3.0];
        Rope::new(RopeStyle::Half, &[0.5], 2.0, 1).rotate(0, &mut row);
        assert_eq!(row, [2.0, 4.0, 3.0]);
    }
}
