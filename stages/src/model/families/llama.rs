//! Llama 1 to 3.3, `TinyLlama`, Yi, DeepSeek-LLM and all other models of type `llama`; families that differ from it by
//! constants only.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, NormKind};
use super::rest::{LlamaLayout, llama_decoder};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::rope::Pairing;

/// Seed-OSS: Llama with biases on queries and keys.
pub(super) const SEED_OSS: LlamaLike = LlamaLike {
    key_heads: Some(8),
    head_dim: Some(128),
    max_positions: 524_288,
    bias: Bias::Flag("attention_bias", true),
    ..LLAMA
};

/// ERNIE 4.5: adjacent rotating pairs.
pub(super) const ERNIE: LlamaLike = LlamaLike {
    key_heads: Some(2),
    head_dim: Some(128),
    eps: ("rms_norm_eps", 1e-5),
    rope_theta: 5e5,
    max_positions: 131_072,
    bias: Bias::Flag("use_bias", false),
    pairing: Pairing::Interleaved,
    ..LLAMA
};

/// ERNIE 4.5 with experts.
pub(super) const ERNIE_MOE: LlamaLike = LlamaLike { key_heads: Some(4), head_dim: None, ..ERNIE };

/// Nemotron and Minitron: a layer norm that multiplies by `1 + weight`; half of each head rotates.
pub(super) const NEMOTRON: LlamaLike = LlamaLike {
    norm: NormKind::Layer { offset: 1.0, bias: true },
    eps: ("norm_eps", 1e-5),
    max_positions: 4096,
    partial_rotary: Some(0.5),
    ..LLAMA
};

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
