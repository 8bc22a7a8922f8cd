//! `InternLM` 1 to 3: Llama with biases; with one grouped tensor; without either.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, llama_like};
use crate::model::fields::Fields;
use crate::model::tensors::Projection;

/// `InternLM` 1.
pub(super) const INTERNLM: LlamaLike = LlamaLike { bias: Bias::Flag("bias", true), ..LLAMA };

/// `InternLM` 2: one tensor, in groups of queries, a key and a value.
pub(super) fn internlm2(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike { bias: Bias::Flag("bias", false), ..LLAMA };
    let mut first = llama_like(config, &family, rope_theta);
    let spec = &first.spec;
    let (groups, head_dim) = (spec.key_heads, spec.head_dim);
    let per_group = (spec.query_heads / groups).max(1);
    (first.tensors.query, first.tensors.key) =
        Projection::grouped("layers.0.attention.wqkv", spec.bias, groups, per_group, head_dim);
    "tok_embeddings.weight".clone_into(&mut first.tensors.embedding);
    first.tensors.norm_weight = Some("layers.0.attention_norm.weight".to_owned());
    first
}

/// `InternLM` 3: Llama with `qkv_bias`.
pub(super) fn internlm3(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(2),
        head_dim: Some(128),
        eps: ("rms_norm_eps", 1e-5),
        max_positions: 32_768,
        bias: Bias::Flag("qkv_bias", config.flag("attention_bias", false)),
        ..LLAMA
    };
    llama_like(config, &family, rope_theta)
}
