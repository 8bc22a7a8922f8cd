//! Bloom: linear biases instead of positions, a layer norm over the embedding itself.

use super::alibi::slopes;
use super::first_layer::FirstLayerConfig;
use super::llama_like::named;
use super::sizes::{SizeDefaults, SizeNames, sizes};
use crate::model::fields::Fields;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{Projection, TensorRole};

const NAMES: SizeNames = SizeNames {
    hidden: &["n_embed", "hidden_size"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    key_heads: &[],
    vocabulary: &["vocab_size"],
    positions: &["seq_length"],
};

/// One tensor of queries, keys and values, head by head.
pub(super) fn first_layer(config: &Fields<'_>, _: Option<f64>) -> FirstLayerConfig {
    let sizes = sizes(config, &NAMES, &SizeDefaults::default());
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let norm = Norm::Layer { eps, offset: 0.0 };
    let mut spec = AttentionSpec {
        bias: true,
        alibi_slopes: Some(slopes(sizes.query_heads)),
        ..AttentionSpec::plain(&sizes, norm.clone())
    };
    spec.embedding.norm = norm;
    let name = "h.0.self_attention.query_key_value";
    let projections = Projection::grouped(name, true, sizes.query_heads, 1, sizes.head_dim);
    let names = ("word_embeddings", "h.0.input_layernorm", true);
    let mut first = named(spec, &["transformer.", ""], names, projections);
    let norm = "word_embeddings_layernorm";
    let shape = [sizes.hidden_size];
    first.tensors.need(TensorRole::EmbeddingNormWeight, &format!("{norm}.weight"), &shape);
    first.tensors.need(TensorRole::EmbeddingNormBias, &format!("{norm}.bias"), &shape);
    first
}
