//! Falcon's layouts: one key head for all queries (7B), grouped key heads (40B, 180B).

use longsift_kernels::RopeStyle;

use super::decoders::{head, output, plain, two_projections};
use super::first_layer::FirstLayerConfig;
use super::llama_like::named;
use super::sizes::{SizeDefaults, SizeNames, sizes};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::rope_config::{self, RopeDefaults};
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::Projection;

const NAMES: SizeNames = SizeNames {
    hidden: &["n_embed", "hidden_size"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    key_heads: &["num_kv_heads", "n_head_kv"],
    vocabulary: &["vocab_size"],
    positions: &["max_position_embeddings"],
};

pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let mut sizes = sizes(config, &NAMES, &defaults);
    let bias = config.flag("bias", false);
    let (grouped, shared) =
        (config.flag("new_decoder_architecture", false), config.flag("multi_query", true));
    let (heads, head_dim) = (sizes.query_heads, sizes.head_dim);
    let name = "h.0.self_attention.query_key_value";
    let projections = if grouped {
        let per_group = (heads / sizes.key_heads).max(1);
        Projection::grouped(name, bias, sizes.key_heads, per_group, head_dim)
    } else if shared {
        sizes.key_heads = 1;
        Projection::stacked(name, bias, heads * head_dim, head_dim)
    } else {
        sizes.key_heads = heads;
        Projection::grouped(name, bias, heads, 1, head_dim)
    };
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let plain = AttentionSpec::plain(&sizes, Norm::Layer { eps, offset: 0.0 });
    let mut spec = AttentionSpec { bias, ..plain };
    if config.flag("alibi", false) {
        config.note(
            ModelProblem::settings(
                "Falcon with `alibi` (falcon-rw-1b, falcon-rw-7b) is not supported: it rounds its linear biases to bf16",
            )
            .with_hint("choose a Falcon with rotary positions, for example falcon-7b"),
        );
    }
    let positions = sizes.max_positions.unwrap_or(2048);
    let rope = RopeDefaults::new(RopeStyle::Half, 1e4, head_dim, positions);
    spec.rope = Some(rope_config::read(config, &rope, rope_theta));
    let norm = norm_name(config, grouped);
    named(spec, &["transformer.", ""], ("word_embeddings", norm, true), projections)
}

/// In the grouped layout, attention and MLP have separate norms unless config.json sets a shared one.
fn norm_name(config: &Fields<'_>, grouped: bool) -> &'static str {
    let norms = config.optional_size("num_ln_in_parallel_attn", 2);
    let parallel = config.flag("parallel_attn", true);
    if grouped && norms.unwrap_or(2) == 2 {
        if !parallel {
            config.note(ModelProblem::settings(
                "`new_decoder_architecture` without `parallel_attn` is not supported",
            ));
        }
        return "h.0.ln_attn";
    }
    "h.0.input_layernorm"
}

/// Attention and feed-forward part in parallel, with separate norms or a shared one; sequential without
/// `parallel_attn`.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let grouped = config.flag("new_decoder_architecture", false);
    let parallel = grouped || config.flag("parallel_attn", true);
    let norm = |name: &str| NamedNorm::new(spec.norm.clone(), name, true);
    let own = norm_name(config, grouped) == "h.0.ln_attn";
    let before = match (parallel, own) {
        (false, _) => norm("h.0.post_attention_layernorm"),
        (true, true) => norm("h.0.ln_mlp"),
        (true, false) => NamedNorm::default(),
    };
    let names = ("h.0.mlp.dense_h_to_4h", "h.0.mlp.dense_4h_to_h");
    let (width, activation) =
        (("ffn_hidden_size", Some(4 * spec.hidden_size)), ("activation", "gelu"));
    let feed_forward = two_projections((config, first), names, spec.bias, width, activation);
    let output = output(first, "h.0.self_attention.dense", spec.bias);
    let order = if parallel { Order::Parallel } else { Order::Sequential };
    let (norms, head) = ((before, norm("ln_f")), head(config, true));
    Decoder { order, ..plain(first, output, norms, feed_forward, head) }
}
