//! Qwen 1 to 3, dense and with experts.

use longsift_kernels::RopeStyle;

use super::first_layer::{FirstLayerConfig, slide, slide_everywhere, sliding_window};
use super::llama_like::{Bias, LLAMA, LlamaLike, eps, named, plain_rope, rms_head_norm};
use super::sizes::{GPT_NAMES, SizeDefaults, SizeNames, sizes};
use crate::model::fields::Fields;
use crate::model::rope::RopeScaling;
use crate::model::spec::{AttentionSpec, Norm, NormScope, QueryScale};
use crate::model::tensors::Projection;

const NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size", "n_embd"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    positions: &["max_position_embeddings", "n_positions"],
    ..GPT_NAMES
};

/// The first Qwen: one tensor of queries, keys and values. `seq_length` is the training length: `use_dynamic_ntk` and `use_logn_attn` apply beyond it.
pub(super) fn qwen(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults {
        positions: Some(8192),
        head_dim: config.optional_size("kv_channels", 1 << 12),
        ..SizeDefaults::default()
    };
    let sizes = sizes(config, &NAMES, &defaults);
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-6);
    let mut spec = AttentionSpec::plain(&sizes, Norm::rms(eps));
    let trained = config.optional_size("seq_length", 1 << 32).unwrap_or(2048).max(2);
    let theta = config.optional_positive("rotary_emb_base").unwrap_or(1e4);
    let share = config.optional_positive("rotary_pct").unwrap_or(1.0).min(1.0);
    let dims = (sizes.head_dim as f64 * share) as u64;
    let mut rope = plain_rope(RopeStyle::Half, dims, config.rope_theta.unwrap_or(theta));
    if config.flag("use_dynamic_ntk", true) {
        rope.scaling = RopeScaling::Stepped { trained };
    }
    if config.flag("use_logn_attn", true) {
        spec.query_scale = Some(QueryScale::LogN { trained });
    }
    (spec.rope, spec.bias) = (Some(rope), true);
    let width = sizes.query_heads * sizes.head_dim;
    let projections = Projection::stacked("h.0.attn.c_attn", true, width, width);
    named(spec, &["transformer.", ""], ("wte", "h.0.ln_1", false), projections)
}

/// Qwen2 and Qwen2.5: queries and keys always have a bias. With `use_sliding_window`, layers from `max_window_layers` on slide, so layer 0
/// does only if that is 0 (or `layer_types` says so).
pub(super) const QWEN2: LlamaLike = LlamaLike {
    key_heads: Some(32),
    max_positions: 32_768,
    bias: Bias::Fixed(true),
    adjust: |config, first| {
        if config.flag("use_sliding_window", false) {
            let sliding_from = config.optional_count("max_window_layers").unwrap_or(28);
            slide(first, config, sliding_window(config, 4096), |layer| layer >= sliding_from);
        }
    },
    ..LLAMA
};

/// Qwen2 with experts: with `use_sliding_window`, every other layer below `max_window_layers` slides, starting with the first.
pub(super) const QWEN2_MOE: LlamaLike = LlamaLike {
    key_heads: Some(16),
    max_positions: 32_768,
    bias: Bias::Flag("qkv_bias", true),
    adjust: |config, first| {
        if config.flag("use_sliding_window", false) {
            let sliding_below = config.optional_count("max_window_layers").unwrap_or(28);
            let slides = |layer: u64| layer.is_multiple_of(2) && layer < sliding_below;
            slide(first, config, sliding_window(config, 4096), slides);
        }
    },
    ..LLAMA
};

/// Qwen3: an RMS norm over each head before the rotary embedding. With `use_sliding_window`, layers from `max_window_layers` on slide.
pub(super) const QWEN3: LlamaLike = LlamaLike {
    key_heads: Some(32),
    head_dim: Some(128),
    max_positions: 32_768,
    adjust: |config, first| {
        norm_each_head(first);
        let sliding_from = config.optional_count("max_window_layers").unwrap_or(28);
        slide(first, config, window(config), |layer| layer >= sliding_from);
    },
    ..LLAMA
};

/// Qwen3 with experts: with `use_sliding_window`, every layer slides.
pub(super) const QWEN3_MOE: LlamaLike = LlamaLike {
    key_heads: Some(4),
    head_dim: None,
    adjust: |config, first| {
        norm_each_head(first);
        slide_everywhere(first, config, window(config));
    },
    ..QWEN3
};

fn norm_each_head(first: &mut FirstLayerConfig) {
    let eps = eps(&first.spec.norm);
    rms_head_norm(first, eps, 0.0, NormScope::Head);
}

fn window(config: &Fields<'_>) -> Option<u64> {
    sliding_window(config, 4096).filter(|_| config.flag("use_sliding_window", false))
}
