//! Auxiliary tensors in a table file, next to its rows.

use super::spec::{AttentionSpec, Norm};
use super::tensors::TensorRole;

/// Small f32 arrays in a table file that are used for each window, by name.
const AUX_NAMES: [(TensorRole, &str); 10] = [
    (TensorRole::Sinks, "sinks"),
    (TensorRole::QueryNormWeight, "query_norm"),
    (TensorRole::KeyNormWeight, "key_norm"),
    (TensorRole::QueryWeight, "query_weight"),
    (TensorRole::QueryBias, "query_bias"),
    (TensorRole::KeyWeight, "key_weight"),
    (TensorRole::KeyBias, "key_bias"),
    (TensorRole::Positions, "positions"),
    (TensorRole::NormWeight, "norm_weight"),
    (TensorRole::NormBias, "norm_bias"),
];

pub(crate) fn aux_name(array: TensorRole) -> &'static str {
    let named = AUX_NAMES.iter().find(|(role, _)| *role == array);
    named.expect("every array of a table has a name").1
}

/// Lists the arrays of a model's table and their lengths, in the order of the file.
pub(crate) fn aux_tensors(spec: &AttentionSpec) -> Vec<(TensorRole, u64)> {
    let mut arrays = Vec::new();
    if spec.sinks {
        arrays.push((TensorRole::Sinks, spec.query_heads));
    }
    if spec.head_norm.as_ref().is_some_and(|norm| norm.after_rope) {
        arrays.push((TensorRole::QueryNormWeight, spec.head_dim));
        arrays.push((TensorRole::KeyNormWeight, spec.head_dim));
    }
    if let Some(latent) = &spec.latent {
        if let Some(rank) = latent.query_rank {
            let queries = spec.query_heads * spec.head_dim;
            arrays.push((TensorRole::QueryWeight, queries * rank));
        }
        let keys = spec.key_heads * (spec.head_dim - latent.rotary_dims);
        arrays.push((TensorRole::KeyWeight, keys * latent.key_rank));
    }
    if let Some(positions) = spec.learned_positions {
        let hidden = spec.hidden_size;
        let (queries, keys) = (spec.query_heads * spec.head_dim, spec.key_heads * spec.head_dim);
        arrays.push((TensorRole::Positions, positions * hidden));
        arrays.push((TensorRole::QueryWeight, queries * hidden));
        arrays.push((TensorRole::KeyWeight, keys * hidden));
        if spec.bias {
            arrays.push((TensorRole::QueryBias, queries));
            arrays.push((TensorRole::KeyBias, keys));
        }
        if spec.norm != Norm::None {
            arrays.push((TensorRole::NormWeight, hidden));
            arrays.push((TensorRole::NormBias, hidden));
        }
    }
    arrays
}
