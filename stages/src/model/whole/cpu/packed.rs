//! Projections in the kernels' packed layout.

use longsift_kernels::{Kernel, PackedWeights};

use crate::model::tensors::Roles;
use crate::model::weights::LayerWeights;

/// Rows that a thread processes at a time.
pub(super) const BLOCK_ROWS: usize = 96;

/// Packs a projection and its bias, if it has one.
pub(super) fn packed(
    weights: &mut LayerWeights,
    kernel: Kernel,
    (weight, bias): Roles,
    inputs: usize,
) -> PackedWeights {
    let (weight, bias) = (weights.take(weight), weights.take(bias));
    PackedWeights::new(kernel, &weight, (!bias.is_empty()).then_some(&bias), inputs)
}
