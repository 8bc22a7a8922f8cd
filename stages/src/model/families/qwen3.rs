//! Qwen3, dense and with experts: an RMS norm over each head of queries and keys before the rotary embedding.

use super::attention_span::{slide, sliding_window};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{LlamaLike, eps, llama_like, rms_head_norm};
use super::rest::{LlamaLayout, llama_decoder};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::spec::NormScope;

/// With `use_sliding_window`, layers from `max_window_layers` on slide.
pub(super) fn dense(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = base(config, 32, Some(128), rope_theta);
    let sliding_from = config.optional_count("max_window_layers").unwrap_or(28);
    slide(&mut first, config, window(config), |layer| layer >= sliding_from);
    first
}

/// With `use_sliding_window`, every layer slides.
pub(super) fn moe(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = base(config, 4, None, rope_theta);
    slide(&mut first, config, window(config), |_| true);
    first
}

fn base(
    config: &Fields<'_>,
    key_heads: u64,
    head_dim: Option<u64>,
    rope_theta: Option<f64>,
) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(key_heads),
        head_dim,
        max_positions: 32_768,
        bias: config.flag("attention_bias", false),
        ..LlamaLike::default()
    };
    let mut first = llama_like(config, &family, rope_theta);
    let eps = eps(&first.spec.norm);
    rms_head_norm(&mut first, eps, 0.0, NormScope::Head);
    first
}

fn window(config: &Fields<'_>) -> Option<u64> {
    sliding_window(config, 4096).filter(|_| config.flag("use_sliding_window", false))
}

/// `attention_bias` applies to all projections of attention.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    llama_decoder(
        config,
        first,
        &LlamaLayout { output_bias: first.spec.bias, ..LlamaLayout::default() },
    )
}
