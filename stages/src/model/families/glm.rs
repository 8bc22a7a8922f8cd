//! GLM-4-9B and GLM-4-0414 in the transformers library's format, and GLM-4.5.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, eps, llama_like, rms_head_norm};
use super::rest::{fused_gate_decoder, norms_after};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::rope::Pairing;
use crate::model::spec::NormScope;

/// Half of each head rotates, in adjacent pairs; queries and keys have a bias.
pub(super) const GLM: LlamaLike = LlamaLike {
    key_heads: Some(2),
    head_dim: Some(128),
    eps: ("rms_norm_eps", 1.5625e-7),
    max_positions: 131_072,
    bias: Bias::Flag("attention_bias", true),
    pairing: Pairing::Interleaved,
    partial_rotary: Some(0.5),
    ..LLAMA
};

/// GLM-4.5: pairs half a head apart; `use_qk_norm` adds a norm over each head.
pub(super) fn glm4_moe(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(8),
        eps: ("rms_norm_eps", 1e-5),
        max_positions: 131_072,
        partial_rotary: Some(0.5),
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    if config.flag("use_qk_norm", false) {
        let eps = eps(&first.spec.norm);
        rms_head_norm(&mut first, eps, 0.0, NormScope::Head);
    }
    first
}

/// GLM-4-0414: norms before and after both parts; gate and up projection in one tensor.
pub(super) fn glm4_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = fused_gate_decoder(config, first);
    let names = ["layers.0.post_self_attn_layernorm", "layers.0.post_mlp_layernorm"];
    norms_after(&mut decoder, &first.spec.norm, names[0], names[1]);
    decoder
}
