//! Llama 1 to 4 and all other models of type `llama`; families that differ from it by constants or a few settings.

use longsift_kernels::RopeStyle;

use super::decoders::{LLAMA_LAYOUT, LlamaLayout, llama_decoder};
use super::first_layer::{FirstLayerConfig, slide, slide_if_given, sliding_window};
use super::llama_like::{Bias, LLAMA, LlamaLike, eps, head_norm, llama_like};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::rope::{RopeScaling, yarn_attention_factor};
use crate::model::rope_config::original_positions;
use crate::model::spec::{HeadNorm, Norm, NormScope, QueryScale};
use crate::model::tensors::{Projection, TensorRole};

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
    pairing: RopeStyle::Interleaved,
    ..LLAMA
};

/// ERNIE 4.5 with experts.
pub(super) const ERNIE_MOE: LlamaLike = LlamaLike { key_heads: Some(4), head_dim: None, ..ERNIE };

/// Nemotron and Minitron: a layer norm that multiplies by `1 + weight`; half of each head rotates.
pub(super) const NEMOTRON: LlamaLike = LlamaLike {
    norm: |eps| Norm::Layer { eps, offset: 1.0 },
    norm_bias: true,
    eps: ("norm_eps", 1e-5),
    max_positions: 4096,
    partial_rotary: Some(0.5),
    ..LLAMA
};

pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    llama_decoder(config, first, &layout(config, first))
}

/// `mlp_bias` gives the feed-forward part biases.
fn layout(config: &Fields<'_>, first: &FirstLayerConfig) -> LlamaLayout {
    let feed_forward_bias = config.flag("mlp_bias", false);
    LlamaLayout { output_bias: first.spec.bias, feed_forward_bias, ..LLAMA_LAYOUT }
}

/// The output projection has a separate flag.
pub(super) fn seed_oss_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let output_bias = config.flag("attention_out_bias", false);
    llama_decoder(config, first, &LlamaLayout { output_bias, ..layout(config, first) })
}

/// Granite 3: a scaled embedding; products of queries and keys are multiplied by `attention_multiplier`.
pub(super) const GRANITE: LlamaLike = LlamaLike {
    adjust: |config, first| {
        first.spec.scale = config.optional_positive("attention_multiplier").unwrap_or(1.0);
        first.spec.embedding.multiplier = config.optional_positive("embedding_multiplier");
    },
    ..LLAMA
};

/// Granite 3: outputs of both parts are multiplied before they are added to the residual stream; logits are divided.
pub(super) fn granite_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = decoder(config, first);
    decoder.residual_multiplier = config.optional_number("residual_multiplier").unwrap_or(1.0);
    decoder.head.multiplier = 1.0 / config.optional_positive("logits_scaling").unwrap_or(1.0);
    decoder
}

/// Hunyuan, dense and with experts: an RMS norm over each head after the rotary embedding. Every layer sees all tokens.
/// `dynamic` rope scaling by `alpha` changes the base once, for windows of any length.
pub(super) const HUNYUAN: LlamaLike = LlamaLike {
    eps: ("rms_norm_eps", 1e-5),
    alpha: true,
    adjust: |_, first| {
        let norm = HeadNorm::new(first.spec.norm.clone(), NormScope::Head);
        let norm = HeadNorm { after_rope: true, ..norm };
        let names = ["layers.0.self_attn.query_layernorm", "layers.0.self_attn.key_layernorm"];
        head_norm(first, norm, names[0], names[1]);
    },
    ..LLAMA
};

/// `InternLM` 1: Llama with biases.
pub(super) const INTERNLM: LlamaLike = LlamaLike { bias: Bias::Flag("bias", true), ..LLAMA };

/// `InternLM` 2: one tensor, in groups of queries, a key and a value.
pub(super) const INTERNLM2: LlamaLike =
    LlamaLike { bias: Bias::Flag("bias", false), adjust: internlm2, ..LLAMA };

fn internlm2(_: &Fields<'_>, first: &mut FirstLayerConfig) {
    let spec = &first.spec;
    let (groups, head_dim) = (spec.key_heads, spec.head_dim);
    let per_group = (spec.query_heads / groups).max(1);
    (first.tensors.query, first.tensors.key) =
        Projection::grouped("layers.0.attention.wqkv", spec.bias, groups, per_group, head_dim);
    "tok_embeddings.weight".clone_into(&mut first.tensors.embedding);
    first.tensors.norm_weight = Some("layers.0.attention_norm.weight".to_owned());
}

/// `InternLM` 3: Llama with `qkv_bias`.
pub(super) fn internlm3(config: &Fields<'_>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(2),
        head_dim: Some(128),
        eps: ("rms_norm_eps", 1e-5),
        max_positions: 32_768,
        bias: Bias::Flag("qkv_bias", config.flag("attention_bias", false)),
        ..LLAMA
    };
    llama_like(config, &family)
}

/// Phi-3, 3.5 and 4: one tensor of queries, keys and values; `LongRoPE` in the models for 128,000 tokens; a fraction of each head
/// rotates in Phi-4-mini. Every layer slides if `sliding_window` is given.
pub(super) const PHI3: LlamaLike = LlamaLike {
    eps: ("rms_norm_eps", 1e-5),
    max_positions: 4096,
    bias: Bias::Fixed(false),
    partial_rotary: Some(1.0),
    original_positions: Some(4096),
    adjust: phi3,
    ..LLAMA
};

fn phi3(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let spec = &first.spec;
    let (queries, keys) = (spec.query_heads * spec.head_dim, spec.key_heads * spec.head_dim);
    (first.tensors.query, first.tensors.key) =
        Projection::stacked("layers.0.self_attn.qkv_proj", false, queries, keys);
    slide_if_given(config, first);
}

/// gpt-oss: a learned logit per head is added to the softmax; layers alternate between sliding and full attention, starting with
/// sliding. Without rope scaling in config.json, the default is `YaRN` from 4,096 positions on.
pub(super) const GPT_OSS: LlamaLike = LlamaLike {
    key_heads: Some(8),
    head_dim: Some(64),
    eps: ("rms_norm_eps", 1e-5),
    rope_theta: 1.5e5,
    max_positions: 131_072,
    bias: Bias::Flag("attention_bias", true),
    adjust: gpt_oss,
    ..LLAMA
};

fn gpt_oss(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    first.spec.sinks = true;
    first.tensors.need(TensorRole::Sinks, "layers.0.self_attn.sinks", &[first.spec.query_heads]);
    let scaled =
        ["rope_scaling", "rope_parameters"].iter().any(|name| config.value(name).is_some());
    if let (false, Some(rope)) = (scaled, &mut first.spec.rope) {
        rope.scaling = RopeScaling::Yarn {
            factor: 32.0,
            original_positions: original_positions(config).unwrap_or(4096),
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: yarn_attention_factor(32.0, None, None),
        };
    }
    slide(first, config, sliding_window(config, 128), |layer| layer.is_multiple_of(2));
}

/// Llama 4: most layers see one chunk of tokens and rotate, the others see all and have no positions. Layers that
/// rotate normalise each head afterwards, without weights; the others scale queries by position.
pub(super) const LLAMA4: LlamaLike = LlamaLike {
    key_heads: Some(8),
    head_dim: Some(128),
    eps: ("rms_norm_eps", 1e-5),
    rope_theta: 5e5,
    max_positions: 131_072,
    pairing: RopeStyle::Interleaved,
    adjust: llama4,
    ..LLAMA
};

fn llama4(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let rotates = rotating_layers(config);
    if rotates(0) {
        if config.flag("use_qk_norm", true) {
            let norm = HeadNorm::new(Norm::rms(eps(&first.spec.norm)), NormScope::Head);
            let norm = HeadNorm { weight: false, after_rope: true, ..norm };
            head_norm(first, norm, "", "");
        }
    } else {
        first.spec.rope = None;
        if config.flag("attn_temperature_tuning", true) {
            first.spec.query_scale = Some(QueryScale::Temperature {
                floor: config.optional_positive("floor_scale").unwrap_or(8192.0),
                scale: config.optional_number("attn_scale").unwrap_or(0.1),
                shift: 1.0,
            });
        }
    }
    chunk(first, config, rotates);
}

fn chunk(first: &mut FirstLayerConfig, config: &Fields<'_>, rotates: impl Fn(u64) -> bool) {
    let default = (!config.contains("attention_chunk_size")).then_some(8192);
    let Some(chunk) = config.optional_size("attention_chunk_size", 1 << 32).or(default) else {
        return;
    };
    let types = config.optional_texts("layer_types");
    let chunked = |layer: u64| match types.as_ref().and_then(|types| types.get(layer as usize)) {
        Some(kind) => *kind == "chunked_attention",
        None => rotates(layer),
    };
    if chunked(0) {
        first.spec.chunk = Some(chunk);
        first.spec.first_full_attention_layer =
            (0..first.spec.layers).find(|layer| !chunked(*layer));
    }
}

/// `SmolLM3`: Llama, with some layers that have no positions. `no_rope_layers` has a 1 for each layer that rotates; by
/// default, all but every fourth. Layers slide by `layer_types`; without it, those
/// without positions with `use_sliding_window`.
pub(super) const SMOLLM3: LlamaLike = LlamaLike {
    adjust: |config, first| {
        let rotates = rotating_layers(config);
        let window = config.optional_size("sliding_window", 1 << 32);
        let has_types = config.optional_texts("layer_types").is_some();
        let window = window.filter(|_| has_types || config.flag("use_sliding_window", false));
        slide(first, config, window, |layer| !rotates(layer));
        if !rotates(0) {
            first.spec.rope = None;
        }
    },
    ..ROTATING
};

/// A layer of `SmolLM3` that rotates.
const ROTATING: LlamaLike =
    LlamaLike { key_heads: Some(4), rope_theta: 2e6, max_positions: 32_768, ..LLAMA };

/// Returns whether a layer rotates: from `no_rope_layers`, otherwise all but every `no_rope_layer_interval`th.
fn rotating_layers(config: &Fields<'_>) -> impl Fn(u64) -> bool {
    let written = config.optional_numbers("no_rope_layers").filter(|layers| !layers.is_empty());
    let interval = config.optional_size("no_rope_layer_interval", 1 << 20).unwrap_or(4);
    move |layer| match written.as_ref().and_then(|layers| layers.get(layer as usize)) {
        Some(rotates) => *rotates != 0.0,
        None => !(layer + 1).is_multiple_of(interval),
    }
}

/// `SmolLM3`: `no_rope_layers` lists the layers without positions.
pub(super) fn smollm3_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout { tied: true, ..layout(config, first) };
    let (rotates, rope) = (rotating_layers(config), llama_like(config, &ROTATING).spec.rope);
    let of_layer = |layer| rope.clone().filter(|_| rotates(layer));
    let ropes = Some((0..first.spec.layers).map(of_layer).collect());
    Decoder { ropes, ..llama_decoder(config, first, &layout) }
}
