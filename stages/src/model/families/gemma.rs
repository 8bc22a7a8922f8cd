//! Gemma 1, 2 and 3: the embedding times `√hidden_size`, norms that multiply by `1 + weight`.

use super::attention_span::{layer_zero_slides, slide};
use super::first_layer::FirstLayer;
use super::llama_like::{LlamaLike, NormKind, eps, llama_like_of, plain_rope, rms_head_norm};
use super::sizes::SizeDefaults;
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::rope::Pairing;
use crate::model::spec::NormScope;

/// Every layer sees all tokens.
pub(super) fn gemma(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    base(config, 16, 1e4, 8192, &SizeDefaults::default(), rope_theta)
}

/// Layers slide and see all in turn, the first slides; logits are bounded.
pub(super) fn gemma2(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let mut first = base(config, 4, 1e4, 8192, &SizeDefaults::default(), rope_theta);
    attention(&mut first, config, Some(50.0));
    slide(&mut first, config, window(config), |layer| layer.is_multiple_of(2));
    first
}

/// Five layers of six slide, the first among them, with a rotary base of their own; each head has a norm. Published
/// configurations leave out what is the default.
pub(super) fn gemma3(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let defaults = SizeDefaults {
        hidden: Some(2304),
        layers: Some(26),
        heads: Some(8),
        vocabulary: Some(262_208),
        ..SizeDefaults::default()
    };
    let mut first = base(config, 4, 1e6, 131_072, &defaults, rope_theta);
    attention(&mut first, config, None);
    let eps = eps(&first.spec.norm);
    rms_head_norm(&mut first, eps, 1.0, NormScope::Head);
    let pattern = config.optional_size("sliding_window_pattern", 1 << 20).unwrap_or(6);
    let slides = |layer: u64| !(layer + 1).is_multiple_of(pattern);
    slide(&mut first, config, window(config), slides);
    let nested = config.optional_object("rope_parameters");
    if layer_zero_slides(config, slides(0))
        && !nested.is_some_and(|rope| rope.has("sliding_attention"))
    {
        let theta = rope_theta.or_else(|| config.optional_positive("rope_local_base_freq"));
        let rope = plain_rope(Pairing::Half, first.spec.head_dim, theta.unwrap_or(1e4));
        first.spec.rope = Some(rope);
    }
    first
}

fn base(
    config: &Fields<'_>,
    key_heads: u64,
    theta: f64,
    max_positions: u64,
    defaults: &SizeDefaults,
    rope_theta: Option<f64>,
) -> FirstLayer {
    let family = LlamaLike {
        key_heads: Some(key_heads),
        head_dim: Some(256),
        norm: NormKind::Rms { offset: 1.0 },
        rope_theta: theta,
        max_positions,
        bias: config.flag("attention_bias", false),
        ..LlamaLike::default()
    };
    let mut first = llama_like_of(config, &family, defaults, rope_theta);
    first.spec.embedding.multiplier = Some((first.spec.hidden_size as f64).sqrt());
    if config.flag("use_bidirectional_attention", false) {
        config.note(ModelProblem::settings(
            "this model attends to later tokens too (`use_bidirectional_attention`); it is not a causal model",
        ));
    }
    first
}

/// The scale is of its own, whatever the width of a head; logits may be bounded.
fn attention(first: &mut FirstLayer, config: &Fields<'_>, softcap: Option<f64>) {
    let scalar = config.optional_positive("query_pre_attn_scalar").unwrap_or(256.0);
    first.spec.scale = 1.0 / scalar.sqrt();
    let default = softcap.filter(|_| !config.has("attn_logit_softcapping"));
    first.spec.softcap = config.optional_positive("attn_logit_softcapping").or(default);
}

fn window(config: &Fields<'_>) -> Option<u64> {
    let default = (!config.has("sliding_window")).then_some(4096);
    config.optional_size("sliding_window", 1 << 32).or(default)
}
