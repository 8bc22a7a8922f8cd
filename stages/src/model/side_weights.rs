//! Creates the auxiliary tensors of a table from the weights.

use super::side::aux_tensors;
use super::spec::{AttentionSpec, Norm};
use super::tensors::TensorRole;
use super::weights::LayerWeights;

/// Takes the auxiliary tensors from the weights, in the order of [`aux_tensors`]. Missing weights of norms are 1, other missing
/// numbers 0.
pub(crate) fn collect(spec: &AttentionSpec, weights: &mut LayerWeights) -> Vec<Vec<f32>> {
    let take = |(array, length): (TensorRole, u64)| {
        let mut numbers = weights.take(array);
        if array == TensorRole::NormWeight && numbers.is_empty() {
            // A norm without weights multiplies by 1 for any offset.
            let offset = match spec.norm {
                Norm::Rms { offset, .. } | Norm::Layer { offset, .. } => offset,
                Norm::None => 0.0,
            };
            numbers = vec![(1.0 - offset) as f32; length as usize];
        }
        let norms =
            [TensorRole::QueryNormWeight, TensorRole::KeyNormWeight, TensorRole::NormWeight];
        let absent = if norms.contains(&array) { 1.0 } else { 0.0 };
        numbers.resize(length as usize, absent);
        numbers
    };
    aux_tensors(spec).into_iter().map(take).collect()
}
