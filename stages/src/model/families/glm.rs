//! `ChatGLM` 2 and 3, GLM-4 and GLM-4.5.

use longsift_kernels::RopeStyle;

use super::decoders::{fused_gate_decoder, norms_after};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, eps, named, plain_rope, rms_head_norm};
use super::sizes::{LLAMA_NAMES, MAX_HEADS, SizeDefaults, SizeNames, check_groups, sizes};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::spec::{AttentionSpec, Norm, NormScope};
use crate::model::tensors::Projection;

/// GLM-4-9B and GLM-4-0414 in the transformers library's format: half of each head rotates, in adjacent pairs; queries
/// and keys have a bias.
pub(super) const GLM: LlamaLike = LlamaLike {
    key_heads: Some(2),
    head_dim: Some(128),
    eps: ("rms_norm_eps", 1.5625e-7),
    max_positions: 131_072,
    bias: Bias::Flag("attention_bias", true),
    pairing: RopeStyle::Interleaved,
    partial_rotary: Some(0.5),
    ..LLAMA
};

/// GLM-4.5: pairs half a head apart; `use_qk_norm` adds a norm over each head.
pub(super) const GLM4_MOE: LlamaLike = LlamaLike {
    key_heads: Some(8),
    eps: ("rms_norm_eps", 1e-5),
    max_positions: 131_072,
    partial_rotary: Some(0.5),
    adjust: |config, first| {
        if config.flag("use_qk_norm", false) {
            let eps = eps(&first.spec.norm);
            rms_head_norm(first, eps, 0.0, NormScope::Head);
        }
    },
    ..LLAMA
};

/// GLM-4-0414: norms before and after both parts; gate and up projection in one tensor.
pub(super) fn glm4_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = fused_gate_decoder(config, first);
    let names = ["layers.0.post_self_attn_layernorm", "layers.0.post_mlp_layernorm"];
    norms_after(&mut decoder, &first.spec.norm, names[0], names[1]);
    decoder
}

const CHATGLM_NAMES: SizeNames = SizeNames {
    layers: &["num_layers", "num_hidden_layers"],
    key_heads: &[],
    vocabulary: &["padded_vocab_size", "vocab_size"],
    positions: &["seq_length"],
    ..LLAMA_NAMES
};

/// `ChatGLM` 2 and 3, and GLM-4-9B as first published: half of each head rotates, in adjacent pairs. The base is
/// multiplied by `rope_ratio`.
pub(super) fn chatglm(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults {
        head_dim: config.optional_size("kv_channels", MAX_HEADS),
        ..SizeDefaults::default()
    };
    let mut sizes = sizes(config, &CHATGLM_NAMES, &defaults);
    let (heads, head_dim) = (sizes.query_heads, sizes.head_dim);
    let bias = config.flag("add_qkv_bias", false) || config.flag("add_bias_linear", false);
    let name = "encoder.layers.0.self_attention.query_key_value";
    let projections = if config.flag("multi_query_attention", false) {
        sizes.key_heads = config.size("multi_query_group_num", MAX_HEADS);
        Projection::stacked(name, bias, heads * head_dim, sizes.key_heads * head_dim)
    } else {
        Projection::grouped(name, bias, heads, 1, head_dim)
    };
    if config.is_clean() {
        check_groups(config, "config.json", heads, sizes.key_heads);
    }
    let eps = config.optional_positive("layernorm_epsilon").unwrap_or(1e-5);
    let rms = config.flag("rmsnorm", true);
    let norm = if rms { Norm::rms(eps) } else { Norm::layer(eps) };
    let theta = 1e4 * config.optional_positive("rope_ratio").unwrap_or(1.0);
    let theta = config.rope_theta.unwrap_or(theta);
    let rope = Some(plain_rope(RopeStyle::Interleaved, head_dim / 2, theta));
    let spec = AttentionSpec { bias, rope, ..AttentionSpec::plain(&sizes, norm) };
    let names = ("embedding.word_embeddings", "encoder.layers.0.input_layernorm", !rms);
    named(spec, &["transformer.", ""], names, projections)
}
