//! Qwen2 and Qwen2.5, dense and with experts.

use super::attention_span::{slide, sliding_window};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, llama_like};
use crate::model::fields::Fields;

/// Queries and keys always have a bias. With `use_sliding_window`, layers from `max_window_layers` on slide, so layer 0
/// does only if that is 0 (or `layer_types` says so).
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family =
        LlamaLike { key_heads: Some(32), max_positions: 32_768, bias: Bias::Fixed(true), ..LLAMA };
    let mut first = llama_like(config, &family, rope_theta);
    if config.flag("use_sliding_window", false) {
        let sliding_from = config.optional_count("max_window_layers").unwrap_or(28);
        slide(&mut first, config, sliding_window(config, 4096), |layer| layer >= sliding_from);
    }
    first
}

/// With `use_sliding_window`, every other layer below `max_window_layers` slides, starting with the first.
pub(super) fn moe(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(16),
        max_positions: 32_768,
        bias: Bias::Flag("qkv_bias", true),
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    if config.flag("use_sliding_window", false) {
        let sliding_below = config.optional_count("max_window_layers").unwrap_or(28);
        let slides = |layer: u64| layer.is_multiple_of(2) && layer < sliding_below;
        slide(&mut first, config, sliding_window(config, 4096), slides);
    }
    first
}
