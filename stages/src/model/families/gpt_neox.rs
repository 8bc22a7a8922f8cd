//! GPT-NeoX, Pythia and relatives: one tensor of queries, keys and values, head by head; Persimmon has the same layout.

use longsift_kernels::RopeStyle;

use super::decoders::{head_named, output, plain, two_projections};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, NormKind, layer_head_norm, named};
use super::sizes::{LLAMA_NAMES, SizeDefaults, SizeNames, sizes};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::rope_config::{self, RopeDefaults};
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::Projection;

/// The rotating fraction and the base have different keys: `rotary_pct`, `rotary_emb_base`.
pub(super) fn gpt_neox(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let names = SizeNames { key_heads: &[], ..LLAMA_NAMES };
    let sizes = sizes(config, &names, &defaults);
    let share = config.optional_positive("rotary_pct").unwrap_or(0.25);
    let theta = config.optional_positive("rotary_emb_base").unwrap_or(1e4);
    let dims = rope_config::rotary_dims(config, sizes.head_dim, share);
    let positions = sizes.max_positions.unwrap_or(2048);
    let rope = RopeDefaults::new(RopeStyle::Half, theta, dims, positions);
    let eps = config.optional_positive("layer_norm_eps").unwrap_or(1e-5);
    let plain = AttentionSpec::plain(&sizes, Norm::Layer { eps, offset: 0.0 });
    let bias = config.flag("attention_bias", true);
    let rope = Some(rope_config::read(config, &rope, rope_theta));
    let spec = AttentionSpec { bias, rope, ..plain };
    let name = "layers.0.attention.query_key_value";
    let projections = Projection::grouped(name, bias, sizes.query_heads, 1, sizes.head_dim);
    named(spec, &["gpt_neox.", ""], ("embed_in", "layers.0.input_layernorm", true), projections)
}

/// Half of a head rotates; each head of queries and keys has a layer norm before that.
pub(super) const PERSIMMON: LlamaLike = LlamaLike {
    norm: NormKind::Layer { offset: 0.0, bias: true },
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
    let norm = |name: &str| NamedNorm::new(spec.norm.clone(), name, true);
    let norms = (norm("layers.0.post_attention_layernorm"), norm("final_layer_norm"));
    let parallel = config.flag("use_parallel_residual", true);
    let order = if parallel { Order::Parallel } else { Order::Sequential };
    let head = head_named(config, false, "embed_out");
    Decoder { order, ..plain(first, output, norms, feed_forward, head) }
}
