//! Creates the auxiliary tensors of a table from the weights.

use super::side::{AuxTensor, aux_tensors};
use super::spec::{AttentionSpec, Norm};
use super::tensors::TensorRole;
use super::weights::LayerWeights;

/// Takes the auxiliary tensors from the weights, in the order of [`aux_tensors`]. Missing weights are 1, missing biases
/// 0.
pub(crate) fn collect(spec: &AttentionSpec, weights: &mut LayerWeights) -> Vec<Vec<f32>> {
    let take = |(array, length): (AuxTensor, u64)| {
        let (role, absent) = match array {
            AuxTensor::Sinks => (TensorRole::Sinks, 0.0),
            AuxTensor::QueryNorm => (TensorRole::QueryNormWeight, 1.0),
            AuxTensor::KeyNorm => (TensorRole::KeyNormWeight, 1.0),
            AuxTensor::QueryWeight => (TensorRole::QueryWeight, 0.0),
            AuxTensor::QueryBias => (TensorRole::QueryBias, 0.0),
            AuxTensor::KeyWeight => (TensorRole::KeyWeight, 0.0),
            AuxTensor::KeyBias => (TensorRole::KeyBias, 0.0),
            AuxTensor::Positions => (TensorRole::Positions, 0.0),
            AuxTensor::NormWeight => (TensorRole::NormWeight, 1.0),
            AuxTensor::NormBias => (TensorRole::NormBias, 0.0),
        };
        let mut numbers = weights.take(role);
        if array == AuxTensor::NormWeight && numbers.is_empty() {
            // A norm without weights multiplies by 1 for any offset.
            let offset = match spec.norm {
                Norm::Rms { offset, .. } | Norm::Layer { offset, .. } => offset,
                Norm::None => 0.0,
            };
            numbers = vec![(1.0 - offset) as f32; length as usize];
        }
        numbers.resize(length as usize, absent);
        numbers
    };
    aux_tensors(spec).into_iter().map(take).collect()
}
