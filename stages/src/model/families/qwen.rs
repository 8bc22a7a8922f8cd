//! The first Qwen: one tensor of queries, keys and values; rotary base and query scale grow with the window.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{named, plain_rope};
use super::sizes::{SizeDefaults, SizeNames, sizes};
use crate::model::fields::Fields;
use crate::model::rope::{Pairing, RopeScaling};
use crate::model::spec::{AttentionSpec, Norm, QueryScale};
use crate::model::tensors::Projection;

const NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size", "n_embd"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    key_heads: &[],
    vocabulary: &["vocab_size"],
    positions: &["max_position_embeddings", "n_positions"],
};

/// `seq_length` is the training length: `use_dynamic_ntk` and `use_logn_attn` apply beyond it.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults {
        positions: Some(8192),
        head_dim: config.optional_size("kv_channels", 1 << 12),
        ..SizeDefaults::default()
    };
    let sizes = sizes(config, &NAMES, &defaults);
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-6);
    let mut spec = AttentionSpec::plain(&sizes, Norm::Rms { eps, offset: 0.0 });
    let trained = config.optional_size("seq_length", 1 << 32).unwrap_or(2048).max(2);
    let theta = config.optional_positive("rotary_emb_base").unwrap_or(1e4);
    let share = config.optional_positive("rotary_pct").unwrap_or(1.0).min(1.0);
    let dims = (sizes.head_dim as f64 * share) as u64;
    let mut rope = plain_rope(Pairing::Half, dims, rope_theta.unwrap_or(theta));
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
