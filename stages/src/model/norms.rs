//! Norms of all families, with their weights.

use longsift_kernels::{layer_norm, rms_norm};

use super::spec::Norm;
use super::tensors::Roles;
use super::weights::LayerWeights;

/// A norm over rows, or over parts of rows. Weight and bias are those of one part, of several parts in order, or empty for 1 and 0.
pub(crate) struct RowNorm {
    pub(crate) norm: Norm,
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

impl RowNorm {
    /// Creates the norm, and removes its weights from those of a layer.
    pub(crate) fn take(norm: &Norm, weights: &mut LayerWeights, (weight, bias): Roles) -> Self {
        Self { norm: norm.clone(), weight: weights.take(weight), bias: weights.take(bias) }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.norm == Norm::None
    }

    /// Normalises parts of `width` numbers each.
    pub(crate) fn apply(&self, width: usize, numbers: &mut [f32]) {
        for (index, part) in numbers.chunks_exact_mut(width).enumerate() {
            let weight = values_of_part(&self.weight, width, index);
            match self.norm {
                Norm::Rms { eps, offset } => rms_norm(part, eps, weight, offset),
                Norm::Layer { eps, offset } => {
                    let bias = values_of_part(&self.bias, width, index);
                    layer_norm(part, eps, weight, offset, bias);
                }
                Norm::None => return,
            }
        }
    }

    pub(crate) fn normalised(&self, width: usize, rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        self.apply(width, &mut rows);
        rows
    }
}

fn values_of_part(values: &[f32], width: usize, index: usize) -> &[f32] {
    let parts = values.len() / width;
    if parts == 0 { values } else { &values[index % parts * width..][..width] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalise(norm: &Norm, weight: &[f32], bias: &[f32], row: &mut [f32]) {
        let (norm, weight, bias) = (norm.clone(), weight.to_vec(), bias.to_vec());
        RowNorm { norm, weight, bias }.apply(row.len(), row);
    }

    #[test]
    fn an_rms_norm_gives_mean_square_one_and_adds_the_offset_to_the_weight() {
        let mut row = [3.0, -4.0, 0.0, 0.0];
        normalise(&Norm::Rms { eps: 0.0, offset: 1.0 }, &[0.0, 1.0, 0.0, 0.0], &[], &mut row);
        assert_eq!(row.map(f32::to_bits), [1.2f32, -3.2, 0.0, 0.0].map(f32::to_bits));
    }

    #[test]
    fn without_weights_an_rms_norm_only_divides() {
        let mut row = [3.0, -4.0, 0.0, 0.0];
        normalise(&Norm::Rms { eps: 0.0, offset: 0.0 }, &[], &[], &mut row);
        assert_eq!(row.map(f32::to_bits), [1.2f32, -1.6, 0.0, 0.0].map(f32::to_bits));
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        let mut row = [0.0; 4];
        normalise(&Norm::Rms { eps: 1e-6, offset: 0.0 }, &[1.0; 4], &[], &mut row);
        assert_eq!(row.map(f32::to_bits), [0; 4]);
    }

    #[test]
    fn a_layer_norm_subtracts_the_mean_without_weight_or_bias() {
        let layer = |eps, offset| Norm::Layer { eps, offset };
        let mut row = [1.0, 3.0];
        normalise(&layer(0.0, 0.0), &[], &[], &mut row);
        assert_eq!(row.map(f32::to_bits), [-1.0f32, 1.0].map(f32::to_bits));
        let mut row = [5.0, 5.0];
        normalise(&layer(1.0, 0.0), &[2.0, 2.0], &[0.5, -0.5], &mut row);
        assert_eq!(row.map(f32::to_bits), [0.5f32, -0.5].map(f32::to_bits));
        let mut row = [1.0, 3.0];
        normalise(&layer(0.0, 1.0), &[1.0, 2.0], &[], &mut row);
        assert_eq!(row.map(f32::to_bits), [-2.0f32, 3.0].map(f32::to_bits));
    }

    #[test]
    fn group_weights_are_shared_or_separate() {
        let normed = |weight| {
            let norm = Norm::Layer { eps: 0.0, offset: 0.0 };
            let mut row = [1.0, 3.0, 4.0, 8.0, 9.0];
            RowNorm { norm, weight, bias: Vec::new() }.apply(2, &mut row);
            row.map(|x| x as i32)
        };
        assert_eq!(normed(vec![]), [-1, 1, -1, 1, 9]);
        assert_eq!(normed(vec![2.0, 3.0]), [-2, 3, -2, 3, 9]);
        assert_eq!(normed(vec![2.0, 3.0, 4.0, 5.0]), [-2, 3, -4, 5, 9]);
    }
}
