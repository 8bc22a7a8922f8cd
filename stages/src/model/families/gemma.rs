//! Gemma 1, 2 and 3: the embedding is multiplied by `√hidden_size`, norms multiply by `1 + weight`.

use longsift_kernels::RopeStyle;

use super::decoders::{LLAMA_LAYOUT, LlamaLayout, llama_decoder, norms_after};
use super::first_layer::{FirstLayerConfig, layer_zero_slides, slide, sliding_window};
use super::llama_like::{LLAMA, LlamaLike, eps, llama_like_with, plain_rope, rms_head_norm};
use super::sizes::SizeDefaults;
use crate::model::decoder::{Activation, Decoder, FeedForward, NamedNorm};
use crate::model::fields::Fields;
use crate::model::rope::RopeSpec;
use crate::model::rope_config::{RopeDefaults, read_for_layer_type};
use crate::model::spec::{Norm, NormScope};

/// Every layer sees all tokens.
pub(super) const GEMMA: LlamaLike = LlamaLike {
    key_heads: Some(16),
    head_dim: Some(256),
    norm: |eps| Norm::Rms { eps, offset: 1.0 },
    max_positions: 8192,
    adjust: |_, first| gemma(first),
    ..LLAMA
};

/// Layers alternate between sliding and full attention, starting with sliding; logits are bounded.
pub(super) const GEMMA2: LlamaLike = LlamaLike {
    key_heads: Some(4),
    adjust: |config, first| {
        gemma(first);
        attention(first, config, Some(50.0));
        slide(first, config, sliding_window(config, 4096), |layer| layer.is_multiple_of(2));
    },
    ..GEMMA
};

/// Five layers of six slide, starting with the first, with a separate rotary base; each head has a norm. Published
/// configurations omit default values.
pub(super) fn gemma3(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults {
        hidden: Some(2304),
        layers: Some(26),
        heads: Some(8),
        vocabulary: Some(262_208),
        ..SizeDefaults::default()
    };
    let family = LlamaLike { key_heads: Some(4), rope_theta: 1e6, max_positions: 131_072, ..GEMMA };
    let mut first = llama_like_with(config, &family, &defaults);
    attention(&mut first, config, None);
    if first.spec.softcap.take().is_some() {
        config.refuse("`attn_logit_softcapping`: transformers does not bound the logits of this model type; expected null");
    }
    let eps = eps(&first.spec.norm);
    rms_head_norm(&mut first, eps, 1.0, NormScope::Head);
    let pattern = config.optional_size("sliding_window_pattern", 1 << 20).unwrap_or(6);
    let slides = |layer: u64| !(layer + 1).is_multiple_of(pattern);
    slide(&mut first, config, sliding_window(config, 4096), slides);
    if layer_zero_slides(config, slides(0)) {
        first.spec.rope = Some(rope_for(config, &first, true));
    }
    first
}

fn gemma(first: &mut FirstLayerConfig) {
    first.spec.embedding.multiplier = Some((first.spec.hidden_size as f64).sqrt());
}

/// The scale does not depend on the head size; logits may be bounded.
fn attention(first: &mut FirstLayerConfig, config: &Fields<'_>, softcap: Option<f64>) {
    let scalar = config.optional_positive("query_pre_attn_scalar").unwrap_or(256.0);
    first.spec.scale = 1.0 / scalar.sqrt();
    let default = softcap.filter(|_| !config.contains("attn_logit_softcapping"));
    first.spec.softcap = config.optional_positive("attn_logit_softcapping").or(default);
}

/// Gemma 1: a gate with tanh-approximated GELU, even for `hidden_act: gelu`, as in the library.
pub(super) fn gemma_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    decoder(config, first, "hidden_act")
}

/// Gemma 2: norms before and after each part, bounded logits.
pub(super) fn gemma2_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    four_norms(config, first, Some(30.0))
}

/// Gemma 3: sliding layers have a separate rotary base.
pub(super) fn gemma3_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let (sliding, full) = (rope_for(config, first, true), rope_for(config, first, false));
    let of_layer = |layer| Some(if first.slides(layer) { sliding.clone() } else { full.clone() });
    let ropes = Some((0..first.spec.layers).map(of_layer).collect());
    Decoder { ropes, ..four_norms(config, first, None) }
}

fn decoder(config: &Fields<'_>, first: &FirstLayerConfig, activation: &'static str) -> Decoder {
    let layout = LlamaLayout {
        output_bias: first.spec.bias,
        tied: true,
        activation: (activation, "gelu_pytorch_tanh"),
        ..LLAMA_LAYOUT
    };
    let mut decoder = llama_decoder(config, first, &layout);
    if let (FeedForward::Dense(part), true) =
        (&mut decoder.feed_forward, activation == "hidden_act")
        && part.activation == Activation::Gelu
    {
        part.activation = Activation::GeluTanh;
    }
    decoder
}

fn four_norms(config: &Fields<'_>, first: &FirstLayerConfig, softcap: Option<f64>) -> Decoder {
    let mut decoder = decoder(config, first, "hidden_activation");
    let (norm, layer) = (&first.spec.norm, "layers.0");
    let before = format!("{layer}.pre_feedforward_layernorm");
    decoder.before_feed_forward = NamedNorm::new(norm.clone(), &before, false);
    let after = ["post_attention_layernorm", "post_feedforward_layernorm"];
    let after = after.map(|name| format!("{layer}.{name}"));
    norms_after(&mut decoder, norm, &after[0], &after[1]);
    let default = softcap.filter(|_| !config.contains("final_logit_softcapping"));
    decoder.head.softcap = config.optional_positive("final_logit_softcapping").or(default);
    decoder
}

/// Returns the rotary embedding of the sliding layers, or of those with full attention (Gemma 3).
fn rope_for(config: &Fields<'_>, first: &FirstLayerConfig, slides: bool) -> RopeSpec {
    let spec = &first.spec;
    let nested = config.optional_object("rope_parameters");
    if slides && !nested.is_some_and(|rope| rope.contains("sliding_attention")) {
        let theta = config.rope_theta.or_else(|| config.optional_positive("rope_local_base_freq"));
        return plain_rope(RopeStyle::Half, spec.head_dim, theta.unwrap_or(1e4));
    }
    let theta = if slides { 1e4 } else { 1e6 };
    let positions = spec.max_positions.unwrap_or(131_072);
    let defaults = RopeDefaults::new(RopeStyle::Half, theta, spec.head_dim, positions);
    let layer_type = if slides { "sliding_attention" } else { "full_attention" };
    read_for_layer_type(config, &defaults, Some(layer_type))
}
