//! GPT-2, GPT-Neo, OPT and the first `StarCoder` have learned positions, so each window is projected separately; GPT-J rotates.

use longsift_kernels::RopeStyle;

use super::decoders::{head, output, plain, two_projections};
use super::first_layer::{FirstLayerConfig, slide_window};
use super::llama_like::{named, plain_rope};
use super::sizes::{
    GPT_NAMES, LLAMA_NAMES, MAX_ENTRIES, MAX_HEADS, MAX_TOKENS, SizeDefaults, SizeNames, sizes,
};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{NeededTensor, Projection, TensorRole};

/// One transposed tensor of queries, keys and values.
pub(super) fn gpt2(config: &Fields<'_>) -> FirstLayerConfig {
    let spec = spec(config, &GPT_NAMES, 1024);
    let (mut query, mut key) =
        Projection::stacked("h.0.attn.c_attn", true, spec.hidden_size, spec.hidden_size);
    (query.transposed, key.transposed) = (true, true);
    finished(spec, (query, key))
}

/// Like GPT-2, not transposed; usually all query heads share one key head.
pub(super) fn gpt_bigcode(config: &Fields<'_>) -> FirstLayerConfig {
    let mut spec = spec(config, &GPT_NAMES, 1024);
    let (heads, head_dim, name) = (spec.query_heads, spec.head_dim, "h.0.attn.c_attn");
    let projections = if config.flag("multi_query", true) {
        spec.key_heads = 1;
        Projection::stacked(name, true, spec.hidden_size, head_dim)
    } else {
        Projection::grouped(name, true, heads, 1, head_dim)
    };
    finished(spec, projections)
}

/// Logits are not scaled. Layers see all tokens or slide over `window_size` tokens, according to `attention_types`.
pub(super) fn gpt_neo(config: &Fields<'_>) -> FirstLayerConfig {
    let names = SizeNames {
        hidden: &["hidden_size"],
        layers: &["num_layers", "num_hidden_layers"],
        heads: &["num_heads", "num_attention_heads"],
        positions: &["max_position_embeddings"],
        ..GPT_NAMES
    };
    let mut spec = spec(config, &names, 2048);
    (spec.scale, spec.bias) = (1.0, false);
    let hidden = spec.hidden_size;
    let projections = Projection::separate("h.0.attn.attention", false, hidden, hidden);
    let mut first = finished(spec, projections);
    if let Some(local) = local_layers(config) {
        let window = config.optional_size("window_size", MAX_TOKENS).unwrap_or(256);
        slide_window(&mut first, window, |layer| {
            local.get(layer as usize).copied().unwrap_or(false)
        });
    }
    first
}

/// Returns whether each layer is local, from `[[["global", "local"], 12]]`; `None` if config.json has no such key.
fn local_layers(config: &Fields<'_>) -> Option<Vec<bool>> {
    let types = config.value("attention_types")?;
    let mut layers = Vec::new();
    for item in types.as_array().into_iter().flatten() {
        let kinds = item.get(0).and_then(|kinds| kinds.as_array());
        let count = item.get(1).and_then(serde_json::Value::as_u64);
        let (Some(kinds), Some(count)) = (kinds, count) else {
            config.contradict(
                "`attention_types` in config.json is not a list of [[\"global\", \"local\"], count]",
            );
            return None;
        };
        for _ in 0..count.min(1 << 12) {
            layers.extend(kinds.iter().map(|kind| kind.as_str() == Some("local")));
        }
    }
    Some(layers)
}

fn spec(config: &Fields<'_>, names: &SizeNames, positions: u64) -> AttentionSpec {
    let defaults = SizeDefaults { positions: Some(positions), ..SizeDefaults::default() };
    let sizes = sizes(config, names, &defaults);
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let plain = AttentionSpec::plain(&sizes, Norm::layer(eps));
    let scaled = config.flag("scale_attn_weights", true);
    AttentionSpec {
        bias: true,
        scale: if scaled { plain.scale } else { 1.0 },
        learned_positions: sizes.max_positions,
        ..plain
    }
}

fn finished(spec: AttentionSpec, projections: (Projection, Projection)) -> FirstLayerConfig {
    let positions = [spec.learned_positions.unwrap_or(1), spec.hidden_size];
    let prefixes = &["transformer.", ""];
    let mut first = named(spec, prefixes, ("wte", "h.0.ln_1", true), projections);
    first.tensors.need(TensorRole::Positions, "wpe.weight", &positions);
    first
}

/// All projections are transposed; the feed-forward part is four times as wide unless config.json says otherwise.
pub(super) fn gpt2_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    if config.flag("add_cross_attention", false) {
        config.refuse("`add_cross_attention` is not supported");
    }
    let names = ("h.0.mlp.c_fc", "h.0.mlp.c_proj");
    let (width, activation) =
        (("n_inner", Some(4 * spec.hidden_size)), ("activation_function", "gelu_new"));
    let mut feed_forward = two_projections((config, first), names, true, width, activation);
    let mut output = output(first, "h.0.attn.c_proj", true);
    for projection in [&mut feed_forward.up, &mut feed_forward.down, &mut output] {
        projection.transposed = true;
    }
    let (norms, head) = ((Some("h.0.ln_2"), "ln_f"), head(config, true));
    let scale_by_depth = config.flag("scale_attn_by_inverse_layer_idx", false);
    Decoder { scale_by_depth, ..plain(first, output, norms, feed_forward, head) }
}

/// GPT-J: adjacent rotating pairs, `rotary_dim` dimensions of each head; no biases on queries and keys.
pub(super) fn gptj(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let sizes = sizes(config, &GPT_NAMES, &defaults);
    let rotary = config.optional_size("rotary_dim", MAX_HEADS).unwrap_or(64);
    if config.is_clean() && (rotary > sizes.head_dim || !rotary.is_multiple_of(2)) {
        config.contradict(format!(
            "`rotary_dim` {rotary} is not an even number up to the {} of a head",
            sizes.head_dim
        ));
    }
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let rope = plain_rope(RopeStyle::Interleaved, rotary, config.rope_theta.unwrap_or(1e4));
    let plain = AttentionSpec::plain(&sizes, Norm::layer(eps));
    let spec = AttentionSpec { rope: Some(rope), ..plain };
    let outputs = sizes.query_heads * sizes.head_dim;
    let projections = Projection::separate("h.0.attn", false, outputs, outputs);
    named(spec, &["transformer.", ""], ("wte", "h.0.ln_1", true), projections)
}

/// First row of OPT's position tensor that is used.
const OFFSET: u64 = 2;

/// OPT-350M has its norms after attention, so layer 0 reads the embedding; narrower embeddings are projected first.
pub(super) fn opt(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let names = SizeNames { key_heads: &[], ..LLAMA_NAMES };
    let sizes = sizes(config, &names, &defaults);
    let (hidden, positions) = (sizes.hidden_size, sizes.max_positions.unwrap_or(2048));
    let before = config.flag("do_layer_norm_before", true);
    // `eps` is fixed in the library: config.json has no key for it.
    let norm = if before { Norm::layer(1e-5) } else { Norm::None };
    let bias = config.flag("enable_bias", true);
    let mut spec = AttentionSpec {
        bias,
        learned_positions: Some(positions),
        ..AttentionSpec::plain(&sizes, norm)
    };
    let width = config.optional_size("word_embed_proj_dim", MAX_ENTRIES);
    spec.embedding.width = width.filter(|width| *width != hidden);
    let width = spec.embedding.width;
    let projections = Projection::separate("layers.0.self_attn", bias, hidden, hidden);
    let names = ("embed_tokens", "layers.0.self_attn_layer_norm", true);
    let prefixes = &["model.decoder.", "decoder.", "model.", ""];
    let mut first = named(spec, prefixes, names, projections);
    if !config.flag("layer_norm_elementwise_affine", true) {
        (first.tensors.norm_weight, first.tensors.norm_bias) = (None, None);
    }
    if let Some(width) = width {
        first.tensors.need(TensorRole::EmbeddingProjection, "project_in.weight", &[hidden, width]);
    }
    let shape = vec![positions + OFFSET, hidden];
    let name = "embed_positions.weight".to_owned();
    first.tensors.more.push(NeededTensor {
        rows: std::iter::once(OFFSET..positions + OFFSET).collect(),
        ..NeededTensor::whole(TensorRole::Positions, name, shape)
    });
    first
}

/// OPT: with `do_layer_norm_before: false`, norms are applied to the sums, and the last layer is not followed by one.
pub(super) fn opt_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let before = config.flag("do_layer_norm_before", true);
    let bias = config.flag("enable_bias", true);
    let names = ("layers.0.fc1", "layers.0.fc2");
    let (width, activation) = (("ffn_dim", None), ("activation_function", "relu"));
    let feed_forward = two_projections((config, first), names, bias, width, activation);
    let affine = config.flag("layer_norm_elementwise_affine", true);
    let named = |name: &str| {
        let norm = Norm::layer(1e-5);
        if affine { NamedNorm::new(norm, name, true) } else { NamedNorm::bare(norm) }
    };
    let names = ["layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"];
    let output = output(first, "layers.0.self_attn.out_proj", bias);
    let mut head = head(config, true);
    let out = spec.embedding.width;
    head.projection = out.map(|width| Projection::whole("project_out", false, width));
    let mut decoder = plain(first, output, (None, ""), feed_forward, head);
    if before {
        decoder.before_feed_forward = named(names[1]);
    } else {
        decoder.order = Order::NormalisedSums;
        (decoder.after_attention, decoder.after_feed_forward) = (named(names[0]), named(names[1]));
    }
    let removed = !before || config.flag("_remove_final_layer_norm", false);
    decoder.last_norm = if removed { NamedNorm::default() } else { named("final_layer_norm") };
    decoder
}
