//! Llama 1 to 3.3, `TinyLlama`, Yi, DeepSeek-LLM and all other models of type `llama`; Seed-OSS.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{LlamaLike, llama_like};
use super::rest::{LlamaLayout, llama_decoder};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;

/// Every layer sees all tokens. `attention_bias` gives all projections a bias.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let bias = config.flag("attention_bias", false);
    let family = LlamaLike { bias, ..LlamaLike::default() };
    llama_like(config, &family, rope_theta)
}

/// Seed-OSS: Llama with biases on queries and keys.
pub(super) fn seed_oss(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(8),
        head_dim: Some(128),
        max_positions: 524_288,
        bias: config.flag("attention_bias", true),
        ..LlamaLike::default()
    };
    llama_like(config, &family, rope_theta)
}

/// `mlp_bias` gives the feed-forward part biases.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout {
        output_bias: first.spec.bias,
        feed_forward_bias: config.flag("mlp_bias", false),
        ..LlamaLayout::default()
    };
    llama_decoder(config, first, &layout)
}

/// The output projection has a separate flag.
pub(super) fn seed_oss_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout {
        output_bias: config.flag("attention_out_bias", false),
        feed_forward_bias: config.flag("mlp_bias", false),
        ..LlamaLayout::default()
    };
    llama_decoder(config, first, &layout)
}
