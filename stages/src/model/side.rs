//! Auxiliary tensors in a table file, next to its rows.

use super::norm::normalise;
use super::spec::{AttentionSpec, Norm};

/// Small f32 arrays in a table file that are used for each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuxTensor {
    /// `[query_heads]`
    Sinks,
    /// `[head_dim]`
    QueryNorm,
    /// `[head_dim]`
    KeyNorm,
    /// `[query heads · projected numbers per head, inputs]`
    QueryWeight,
    /// `[query heads · projected numbers per head]`
    QueryBias,
    /// `[key heads · projected numbers per head, inputs]`
    KeyWeight,
    /// `[key heads · projected numbers per head]`
    KeyBias,
    /// `[learned_positions, hidden_size]`
    Positions,
    /// `[hidden_size]`
    NormWeight,
    /// `[hidden_size]`
    NormBias,
}

impl AuxTensor {
    /// Returns the name in a table file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sinks => "sinks",
            Self::QueryNorm => "query_norm",
            Self::KeyNorm => "key_norm",
            Self::QueryWeight => "query_weight",
            Self::QueryBias => "query_bias",
            Self::KeyWeight => "key_weight",
            Self::KeyBias => "key_bias",
            Self::Positions => "positions",
            Self::NormWeight => "norm_weight",
            Self::NormBias => "norm_bias",
        }
    }
}

/// Lists the arrays of a model's table and their lengths, in the order of the file.
pub(crate) fn aux_tensors(spec: &AttentionSpec) -> Vec<(AuxTensor, u64)> {
    let mut arrays = Vec::new();
    if spec.sinks {
        arrays.push((AuxTensor::Sinks, spec.query_heads));
    }
    if spec.head_norm.as_ref().is_some_and(|norm| norm.after_rope) {
        arrays.push((AuxTensor::QueryNorm, spec.head_dim));
        arrays.push((AuxTensor::KeyNorm, spec.head_dim));
    }
    if let Some(latent) = &spec.latent {
        if let Some(rank) = latent.query_rank {
            let queries = spec.query_heads * spec.head_dim;
            arrays.push((AuxTensor::QueryWeight, queries * rank));
        }
        let keys = spec.key_heads * (spec.head_dim - latent.rotary_dims);
        arrays.push((AuxTensor::KeyWeight, keys * latent.key_rank));
    }
    if let Some(positions) = spec.learned_positions {
        let hidden = spec.hidden_size;
        let (queries, keys) = (spec.query_heads * spec.head_dim, spec.key_heads * spec.head_dim);
        arrays.push((AuxTensor::Positions, positions * hidden));
        arrays.push((AuxTensor::QueryWeight, queries * hidden));
        arrays.push((AuxTensor::KeyWeight, keys * hidden));
        if spec.bias {
            arrays.push((AuxTensor::QueryBias, queries));
            arrays.push((AuxTensor::KeyBias, keys));
        }
        if spec.norm != Norm::None {
            arrays.push((AuxTensor::NormWeight, hidden));
            arrays.push((AuxTensor::NormBias, hidden));
        }
    }
    arrays
}

/// Returns the bytes of the projections that are packed for the kernel with the first window.
pub(crate) fn packed_bytes(spec: &AttentionSpec) -> u64 {
    let projections = |(array, _): &(AuxTensor, u64)| {
        matches!(array, AuxTensor::QueryWeight | AuxTensor::KeyWeight)
    };
    aux_tensors(spec)
        .iter()
        .filter(|array| projections(array))
        .map(|(_, numbers)| 4 * numbers)
        .sum()
}

/// Computes the hidden states of a window before the projections, `[tokens, hidden_size]`: embedding + position,
/// normalised.
pub(crate) fn hidden_states(
    norm: &Norm,
    (weight, bias): (&[f32], &[f32]),
    positions: &[f32],
    mut embeddings: Vec<f32>,
    hidden_size: usize,
) -> Vec<f32> {
    let rows = embeddings.chunks_exact_mut(hidden_size).zip(positions.chunks_exact(hidden_size));
    for (row, position) in rows {
        row.iter_mut().zip(position).for_each(|(x, position)| *x += position);
        normalise(norm, weight, bias, row);
    }
    embeddings
}
