//! Qwen2 and Qwen2.5, dense.

use super::{FirstLayer, LlamaLike, llama_like, slide};
use crate::model::fields::Fields;

/// Queries and keys always have a bias. With `use_sliding_window`, the layers from `max_window_layers` on slide, so
/// layer 0 does only where that is 0 (or `layer_types` says so).
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let family = LlamaLike {
        key_heads: Some(32),
        rms_eps: 1e-6,
        rope_theta: 1e4,
        max_positions: 32_768,
        bias: true,
    };
    let mut first = llama_like(config, &family, rope_theta);
    if config.flag("use_sliding_window", false) {
        let default = (!config.has("sliding_window")).then_some(4096);
        let window = config.optional_size("sliding_window", 1 << 32).or(default);
        let sliding_from = config.optional_count("max_window_layers").unwrap_or(28);
        slide(&mut first, config, window, |layer| layer >= sliding_from);
    }
    first
}
