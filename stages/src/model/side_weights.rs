//! Creates the auxiliary arrays of a table from the weights.

use super::side::{SideArray, side_arrays};
use super::spec::{LayerZeroSpec, Norm};
use super::tensors::Role;
use super::weights::SmallWeights;

/// Takes the arrays from the weights, in the order of [`side_arrays`]. Missing weights are 1, missing biases 0.
pub(crate) fn collect(spec: &LayerZeroSpec, weights: &mut SmallWeights) -> Vec<Vec<f32>> {
    let take = |(array, length): (SideArray, u64)| {
        let (role, absent) = match array {
            SideArray::Sinks => (Role::Sinks, 0.0),
            SideArray::QueryNorm => (Role::QueryNormWeight, 1.0),
            SideArray::KeyNorm => (Role::KeyNormWeight, 1.0),
            SideArray::QueryWeight => (Role::QueryWeight, 0.0),
            SideArray::QueryBias => (Role::QueryBias, 0.0),
            SideArray::KeyWeight => (Role::KeyWeight, 0.0),
            SideArray::KeyBias => (Role::KeyBias, 0.0),
            SideArray::Positions => (Role::Positions, 0.0),
            SideArray::NormWeight => (Role::NormWeight, 1.0),
            SideArray::NormBias => (Role::NormBias, 0.0),
        };
        let mut numbers = weights.take(role);
        if array == SideArray::NormWeight && numbers.is_empty() {
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
    side_arrays(spec).into_iter().map(take).collect()
}
