//! Qwen3, dense and with experts: an RMS norm over each head of queries and keys before the rotary embedding.

use super::attention_span::{slide, sliding_window};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{LLAMA, LlamaLike, eps, llama_like, rms_head_norm};
use crate::model::fields::Fields;
use crate::model::spec::NormScope;

const DENSE: LlamaLike =
    LlamaLike { key_heads: Some(32), head_dim: Some(128), max_positions: 32_768, ..LLAMA };

/// With `use_sliding_window`, layers from `max_window_layers` on slide.
pub(super) fn dense(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = base(config, &DENSE, rope_theta);
    let sliding_from = config.optional_count("max_window_layers").unwrap_or(28);
    slide(&mut first, config, window(config), |layer| layer >= sliding_from);
    first
}

/// With `use_sliding_window`, every layer slides.
pub(super) fn moe(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike { key_heads: Some(4), head_dim: None, ..DENSE };
    let mut first = base(config, &family, rope_theta);
    slide(&mut first, config, window(config), |_| true);
    first
}

fn base(config: &Fields<'_>, family: &LlamaLike, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = llama_like(config, family, rope_theta);
    let eps = eps(&first.spec.norm);
    rms_head_norm(&mut first, eps, 0.0, NormScope::Head);
    first
}

fn window(config: &Fields<'_>) -> Option<u64> {
    sliding_window(config, 4096).filter(|_| config.flag("use_sliding_window", false))
}
