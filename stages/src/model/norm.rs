//! The norms of all families, one row at a time.

use longsift_kernels::{layer_norm, rms_norm};

use super::spec::Norm;

/// Normalises one row in place. `weight` and `bias` are as long as the row, or empty for 1 and 0.
pub(crate) fn normalise(norm: &Norm, weight: &[f32], bias: &[f32], row: &mut [f32]) {
    match *norm {
        Norm::Rms { eps, offset } => rms_norm(row, eps, weight, offset),
        Norm::Layer { eps, offset } => layer_norm(row, eps, weight, offset, bias),
        Norm::None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
