//! Parts of whole models other than the first layer's queries and keys.

use super::first_layer::FirstLayerConfig;
use super::sizes::MAX_ENTRIES;
use crate::model::decoder::{Activation, Decoder, FeedForward, Head, NamedNorm, Order, Perceptron};
use crate::model::fields::Fields;
use crate::model::spec::Norm;
use crate::model::tensors::Projection;

/// Names and biases of a family built like Llama; defaults are Llama's.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each flag is an independent property of a family"
)]
pub(super) struct LlamaLayout {
    pub(super) output_bias: bool,
    pub(super) feed_forward_bias: bool,
    /// Whether gate and up projection share one tensor, `gate_up_proj`.
    pub(super) fused_gate: bool,
    /// Key of the activation, and its default.
    pub(super) activation: (&'static str, &'static str),
    /// Default of `tie_word_embeddings`.
    pub(super) tied: bool,
}

pub(super) const LLAMA_LAYOUT: LlamaLayout = LlamaLayout {
    output_bias: false,
    feed_forward_bias: false,
    fused_gate: false,
    activation: ("hidden_act", "silu"),
    tied: false,
};

/// Describes a model with norms before both parts and at the end, and a gated feed-forward part, as in Llama.
pub(super) fn llama_decoder(
    config: &Fields<'_>,
    first: &FirstLayerConfig,
    layout: &LlamaLayout,
) -> Decoder {
    let output = output(first, "layers.0.self_attn.o_proj", layout.output_bias);
    let feed_forward = gated(config, first, "layers.0.mlp", layout);
    let norms = (Some("layers.0.post_attention_layernorm"), "norm");
    plain(first, output, norms, feed_forward, head(config, layout.tied))
}

/// Describes a model with Llama's names, without biases after the first projections.
pub(super) fn plain_llama_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    llama_decoder(config, first, &LLAMA_LAYOUT)
}

/// Describes a model with Llama's names, whose output projection has a bias if queries and keys have one.
pub(super) fn attention_bias_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout { output_bias: first.spec.bias, ..LLAMA_LAYOUT };
    llama_decoder(config, first, &layout)
}

/// Describes a model like Llama with gate and up projection in one tensor.
pub(super) fn fused_gate_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    llama_decoder(config, first, &LlamaLayout { fused_gate: true, ..LLAMA_LAYOUT })
}

/// Describes sequential layers with a norm like the first one at the end, and perhaps before the feed-forward part.
pub(super) fn plain(
    first: &FirstLayerConfig,
    output: Projection,
    (before_feed_forward, last): (Option<&str>, &str),
    feed_forward: Perceptron,
    head: Head,
) -> Decoder {
    let bias = first.tensors.norm_bias.is_some();
    let norm = |name: &str| NamedNorm::new(first.spec.norm.clone(), name, bias);
    Decoder {
        order: Order::Sequential,
        ropes: None,
        scale_by_depth: false,
        value: value(&first.tensors.key),
        output,
        after_attention: NamedNorm::default(),
        before_feed_forward: before_feed_forward.map(norm).unwrap_or_default(),
        feed_forward: FeedForward::Dense(feed_forward),
        after_feed_forward: NamedNorm::default(),
        residual_multiplier: 1.0,
        last_norm: norm(last),
        head,
    }
}

/// Returns the projection of values: a separate tensor, or the rows after the keys of each group in a fused one.
fn value(key: &Projection) -> Projection {
    let of_keys: u64 = key.rows.iter().map(|rows| rows.end - rows.start).sum();
    if of_keys == key.outputs {
        let renamed = |name: &String| name.replace("k_proj", "v_proj");
        let (weight, bias) = (renamed(&key.weight), key.bias.as_ref().map(renamed));
        return Projection { weight, bias, ..key.clone() };
    }
    let values_after = |rows: &std::ops::Range<u64>| rows.end..2 * rows.end - rows.start;
    Projection { rows: key.rows.iter().map(values_after).collect(), ..key.clone() }
}

pub(super) fn output(first: &FirstLayerConfig, name: &str, bias: bool) -> Projection {
    let spec = &first.spec;
    sized(name, bias, spec.hidden_size, spec.query_heads * spec.head_dim)
}

/// Returns a projection of shape `[outputs, inputs]`.
pub(super) fn sized(name: &str, bias: bool, outputs: u64, inputs: u64) -> Projection {
    Projection { inputs: Some(inputs), ..Projection::whole(name, bias, outputs) }
}

fn gated(
    config: &Fields<'_>,
    first: &FirstLayerConfig,
    name: &str,
    layout: &LlamaLayout,
) -> Perceptron {
    let (hidden, bias) = (first.spec.hidden_size, layout.feed_forward_bias);
    let width = config.size("intermediate_size", MAX_ENTRIES);
    let part = |part: &str| sized(&format!("{name}.{part}"), bias, width, hidden);
    let (gate, up) = if layout.fused_gate {
        let fused = format!("{name}.gate_up_proj");
        let half = |rows| Projection::part(&fused, bias, 2 * width, std::iter::once(rows));
        (half(0..width), half(width..2 * width))
    } else {
        (part("gate_proj"), part("up_proj"))
    };
    let down = sized(&format!("{name}.down_proj"), bias, hidden, width);
    let activation = activation(config, layout.activation);
    Perceptron { gate: Some(gate), up, down, activation }
}

/// Describes two projections without a gate, `{up}` and `{down}`. `width` and `activation` are keys and their defaults.
pub(super) fn two_projections(
    (config, first): (&Fields<'_>, &FirstLayerConfig),
    (up, down): (&str, &str),
    bias: bool,
    width: (&str, Option<u64>),
    activation_key: (&str, &str),
) -> Perceptron {
    let hidden = first.spec.hidden_size;
    let width = config.first_size(&[width.0], MAX_ENTRIES, width.1);
    let activation = activation(config, activation_key);
    let (up, down) = (sized(up, bias, width, hidden), sized(down, bias, hidden, width));
    Perceptron { gate: None, up, down, activation }
}

/// Reads the activation from a key of config.json.
fn activation(config: &Fields<'_>, (key, default): (&str, &str)) -> Activation {
    let name = config.optional_text(key).unwrap_or(default);
    Activation::named(name).unwrap_or_else(|| {
        config.refuse(format!(
            "the activation `{name}` (`{key}` in config.json) is not supported for whole models"
        ));
        Activation::Silu
    })
}

/// Returns `lm_head`, or the embedding if `tie_word_embeddings` is set.
pub(super) fn head(config: &Fields<'_>, tied: bool) -> Head {
    let tied = config.flag("tie_word_embeddings", tied);
    let weight = (!tied).then(|| "lm_head.weight".to_owned());
    Head { weight, bias: None, projection: None, multiplier: 1.0, softcap: None }
}

pub(super) fn norms_after(decoder: &mut Decoder, norm: &Norm, attention: &str, feed_forward: &str) {
    let named = |name: &str| NamedNorm::new(norm.clone(), name, false);
    decoder.after_attention = named(attention);
    decoder.after_feed_forward = named(feed_forward);
}
