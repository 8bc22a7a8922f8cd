//! GPT-2, GPT-Neo and the first `StarCoder` have learned positions, so each window is projected separately; GPT-J rotates.

use longsift_kernels::RopeStyle;

use super::decoders::{head, output, plain, two_projections};
use super::first_layer::{FirstLayerConfig, slide_window};
use super::llama_like::{named, plain_rope};
use super::sizes::{MAX_HEADS, MAX_TOKENS, SizeDefaults, SizeNames, sizes};
use crate::model::decoder::{Decoder, NamedNorm};
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{Projection, TensorRole};

const GPT_NAMES: SizeNames = SizeNames {
    hidden: &["n_embd", "hidden_size"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    key_heads: &[],
    vocabulary: &["vocab_size"],
    positions: &["n_positions", "max_position_embeddings"],
};

/// One transposed tensor of queries, keys and values.
pub(super) fn gpt2(config: &Fields<'_>, _: Option<f64>) -> FirstLayerConfig {
    let spec = spec(config, &GPT_NAMES, 1024);
    let (mut query, mut key) =
        Projection::stacked("h.0.attn.c_attn", true, spec.hidden_size, spec.hidden_size);
    (query.transposed, key.transposed) = (true, true);
    finished(spec, (query, key))
}

/// Like GPT-2, not transposed; usually all query heads share one key head.
pub(super) fn gpt_bigcode(config: &Fields<'_>, _: Option<f64>) -> FirstLayerConfig {
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
pub(super) fn gpt_neo(config: &Fields<'_>, _: Option<f64>) -> FirstLayerConfig {
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
            config.note(ModelProblem::checkpoint(
                "`attention_types` in config.json is not a list of [[\"global\", \"local\"], count]",
            ));
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
    let plain = AttentionSpec::plain(&sizes, Norm::Layer { eps, offset: 0.0 });
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
        config.note(ModelProblem::settings("`add_cross_attention` is not supported"));
    }
    let names = ("h.0.mlp.c_fc", "h.0.mlp.c_proj");
    let (width, activation) =
        (("n_inner", Some(4 * spec.hidden_size)), ("activation_function", "gelu_new"));
    let mut feed_forward = two_projections((config, first), names, true, width, activation);
    let mut output = output(first, "h.0.attn.c_proj", true);
    for projection in [&mut feed_forward.up, &mut feed_forward.down, &mut output] {
        projection.transposed = true;
    }
    let norm = |name: &str| NamedNorm::new(spec.norm.clone(), name, true);
    let (norms, head) = ((norm("h.0.ln_2"), norm("ln_f")), head(config, true));
    let scale_by_depth = config.flag("scale_attn_by_inverse_layer_idx", false);
    Decoder { scale_by_depth, ..plain(first, output, norms, feed_forward, head) }
}

/// GPT-J: adjacent rotating pairs, `rotary_dim` dimensions of each head; no biases on queries and keys.
pub(super) fn gptj(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let sizes = sizes(config, &GPT_NAMES, &defaults);
    let rotary = config.optional_size("rotary_dim", MAX_HEADS).unwrap_or(64);
    if config.is_clean() && (rotary > sizes.head_dim || !rotary.is_multiple_of(2)) {
        config.note(ModelProblem::checkpoint(format!(
            "`rotary_dim` {rotary} is not an even number up to the {} of a head",
            sizes.head_dim
        )));
    }
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let rope = plain_rope(RopeStyle::Interleaved, rotary, rope_theta.unwrap_or(1e4));
    let plain = AttentionSpec::plain(&sizes, Norm::Layer { eps, offset: 0.0 });
    let spec = AttentionSpec { rope: Some(rope), ..plain };
    let outputs = sizes.query_heads * sizes.head_dim;
    let projections = Projection::separate("h.0.attn", false, outputs, outputs);
    named(spec, &["transformer.", ""], ("wte", "h.0.ln_1", true), projections)
}
