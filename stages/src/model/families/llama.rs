//! Llama 1 to 3.3, `TinyLlama`, Yi, DeepSeek-LLM and everything else that calls itself `llama`; Seed-OSS.

use super::first_layer::FirstLayer;
use super::llama_like::{LlamaLike, llama_like};
use crate::model::fields::Fields;

/// Every layer sees all tokens. `attention_bias` gives all projections a bias.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let bias = config.flag("attention_bias", false);
    let family = LlamaLike { bias, ..LlamaLike::default() };
    llama_like(config, &family, rope_theta)
}

/// Seed-OSS: Llama with biases on queries and keys.
pub(super) fn seed_oss(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let family = LlamaLike {
        key_heads: Some(8),
        head_dim: Some(128),
        max_positions: 524_288,
        bias: config.flag("attention_bias", true),
        ..LlamaLike::default()
    };
    llama_like(config, &family, rope_theta)
}
