//! GPT-NeoX, Pythia and relatives: one tensor of queries, keys and values, head by head; Persimmon has the same layout.
//! Falcon: one key head for all queries (7B), or grouped key heads (40B, 180B).

use longsift_kernels::RopeStyle;

use super::decoders::{head, output, plain, two_projections};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, layer_head_norm, named};
use super::sizes::{LLAMA_NAMES, SizeDefaults, SizeNames, sizes};
use crate::model::decoder::{Decoder, Order};
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::rope_config::{self, RopeDefaults};
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::Projection;

/// The rotating fraction and the base have different keys: `rotary_pct`, `rotary_emb_base`.
pub(super) fn gpt_neox(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let names = SizeNames { key_heads: &[], ..LLAMA_NAMES };
    let sizes = sizes(config, &names, &defaults);
    let share = config.optional_positive("rotary_pct").unwrap_or(0.25);
    let theta = config.optional_positive("rotary_emb_base").unwrap_or(1e4);
    // Some versions of the transformers library read the second name.
    config.check_agreement(&["rotary_pct", "partial_rotary_factor"], Some(0.25));
    config.check_agreement(&["rotary_emb_base", "rope_theta"], Some(1e4));
    let dims = rope_config::rotary_dims(config, sizes.head_dim, share);
    let positions = sizes.max_positions.unwrap_or(2048);
    let rope = RopeDefaults::new(RopeStyle::Half, theta, dims, positions);
    let eps = config.optional_positive("layer_norm_eps").unwrap_or(1e-5);
    let plain = AttentionSpec::plain(&sizes, Norm::layer(eps));
    let bias = config.flag("attention_bias", true);
    let rope = Some(rope_config::read(config, &rope));
    let spec = AttentionSpec { bias, rope, ..plain };
    let name = "layers.0.attention.query_key_value";
    let projections = Projection::grouped(name, bias, sizes.query_heads, 1, sizes.head_dim);
    named(spec, &["gpt_neox.", ""], ("embed_in", "layers.0.input_layernorm", true), projections)
}

/// Half of a head rotates; each head of queries and keys has a layer norm before that.
pub(super) const PERSIMMON: LlamaLike = LlamaLike {
    norm: Norm::layer,
    norm_bias: true,
    eps: ("layer_norm_eps", 1e-5),
    max_positions: 16_384,
    bias: Bias::Fixed(true),
    partial_rotary: Some(0.5),
    adjust: persimmon,
    ..LLAMA
};

fn persimmon(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let (heads, head_dim) = (first.spec.query_heads, first.spec.head_dim);
    let name = "layers.0.self_attn.query_key_value";
    let (query, key) = Projection::grouped(name, true, heads, 1, head_dim);
    (first.tensors.query, first.tensors.key, first.spec.key_heads) = (query, key, heads);
    if config.flag("qk_layernorm", true) {
        layer_head_norm(first);
    }
}

/// Both parts read the layer's input, each through its own norm, unless `use_parallel_residual` says otherwise.
pub(super) fn gpt_neox_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let names = ("layers.0.mlp.dense_h_to_4h", "layers.0.mlp.dense_4h_to_h");
    let (width, activation) = (("intermediate_size", None), ("hidden_act", "gelu"));
    let feed_forward = two_projections((config, first), names, true, width, activation);
    let output = output(first, "layers.0.attention.dense", spec.bias);
    let norms = (Some("layers.0.post_attention_layernorm"), "final_layer_norm");
    let parallel = config.flag("use_parallel_residual", true);
    let order = if parallel { Order::Parallel } else { Order::Sequential };
    let mut head = head(config, false);
    head.weight = head.weight.map(|_| "embed_out.weight".to_owned());
    Decoder { order, ..plain(first, output, norms, feed_forward, head) }
}

const FALCON_NAMES: SizeNames = SizeNames {
    hidden: &["n_embed", "hidden_size"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    key_heads: &["num_kv_heads", "n_head_kv"],
    ..LLAMA_NAMES
};

pub(super) fn falcon(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let mut sizes = sizes(config, &FALCON_NAMES, &defaults);
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
    let plain = AttentionSpec::plain(&sizes, Norm::layer(eps));
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
    spec.rope = Some(rope_config::read(config, &rope));
    let norm = norm_name(config, grouped);
    named(spec, &["transformer.", ""], ("word_embeddings", norm, true), projections)
}

/// In the grouped layout, attention and MLP have separate norms unless config.json sets a shared one.
fn norm_name(config: &Fields<'_>, grouped: bool) -> &'static str {
    let norms = config.optional_size("num_ln_in_parallel_attn", 2);
    let parallel = config.flag("parallel_attn", true);
    if grouped && norms.unwrap_or(2) == 2 {
        if !parallel {
            config.refuse("`new_decoder_architecture` without `parallel_attn` is not supported");
        }
        return "h.0.ln_attn";
    }
    "h.0.input_layernorm"
}

/// Falcon: parallel parts with separate norms or a shared one; sequential without `parallel_attn`.
pub(super) fn falcon_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let grouped = config.flag("new_decoder_architecture", false);
    let parallel = grouped || config.flag("parallel_attn", true);
    let own = norm_name(config, grouped) == "h.0.ln_attn";
    let before = match (parallel, own) {
        (false, _) => Some("h.0.post_attention_layernorm"),
        (true, true) => Some("h.0.ln_mlp"),
        (true, false) => None,
    };
    let names = ("h.0.mlp.dense_h_to_4h", "h.0.mlp.dense_4h_to_h");
    let (width, activation) =
        (("ffn_hidden_size", Some(4 * spec.hidden_size)), ("activation", "gelu"));
    let feed_forward = two_projections((config, first), names, spec.bias, width, activation);
    let output = output(first, "h.0.self_attention.dense", spec.bias);
    let order = if parallel { Order::Parallel } else { Order::Sequential };
    Decoder { order, ..plain(first, output, (before, "ln_f"), feed_forward, head(config, true)) }
}
