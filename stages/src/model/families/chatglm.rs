//! `ChatGLM` 2 and 3, and GLM-4-9B as first published: grouped key heads; half of each head rotates, in adjacent pairs.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{named, plain_rope};
use super::sizes::{MAX_HEADS, SizeDefaults, SizeNames, check_groups, sizes};
use crate::model::fields::Fields;
use crate::model::rope::Pairing;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::Projection;

const NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size"],
    layers: &["num_layers", "num_hidden_layers"],
    heads: &["num_attention_heads"],
    key_heads: &[],
    vocabulary: &["padded_vocab_size", "vocab_size"],
    positions: &["seq_length"],
};

/// The base is multiplied by `rope_ratio`.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults {
        head_dim: config.optional_size("kv_channels", MAX_HEADS),
        ..SizeDefaults::default()
    };
    let mut sizes = sizes(config, &NAMES, &defaults);
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
    let norm = if rms { Norm::Rms { eps, offset: 0.0 } } else { Norm::Layer { eps, offset: 0.0 } };
    let theta = 1e4 * config.optional_positive("rope_ratio").unwrap_or(1.0);
    let theta = rope_theta.unwrap_or(theta);
    let rope = Some(plain_rope(Pairing::Interleaved, head_dim / 2, theta));
    let spec = AttentionSpec { bias, rope, ..AttentionSpec::plain(&sizes, norm) };
    let names = ("embedding.word_embeddings", "encoder.layers.0.input_layernorm", !rms);
    named(spec, &["transformer.", ""], names, projections)
}
