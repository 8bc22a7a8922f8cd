//! GLA (flash-linear-attention): gated linear attention in all layers, or softmax attention in some.

use longsift_kernels::RopeStyle;

use serde_json::{Value, json};

use super::decoders::{head, plain, sized};
use super::first_layer::{FirstLayerConfig, SoftmaxLayers};
use super::llama_like::{named, plain_rope};
use super::sizes::{MAX_ENTRIES, MAX_HEADS, MAX_TOKENS, check_groups};
use crate::model::decoder::{Activation, Decoder, Perceptron};
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::spec::{AttentionSpec, GatedLinear, Norm};
use crate::model::tensors::{Projection, TensorRole};

const DECAY_RANK: u64 = 16;
const PREFIXES: &[&str] = &["model.", ""];
const ATTENTION: &str = "layers.0.attn";

/// Keys of earlier versions, or of variants that compute something else.
const UNKNOWN_KEYS: [&str; 6] = [
    "attnres_block_size",
    "layernorm_eps",
    "num_attention_heads",
    "quantization",
    "quantization_config",
    "rms_norm_eps",
];
const SOFTMAX_KEYS: [&str; 6] =
    ["layers", "num_heads", "num_kv_heads", "qkv_bias", "rope_theta", "window_size"];

/// Defaults are those of flash-linear-attention's configuration class.
pub(super) fn first_layer(config: &Fields<'_>) -> FirstLayerConfig {
    refuse_variants(config);
    let hidden_size = config.optional_size("hidden_size", MAX_ENTRIES).unwrap_or(2048);
    let heads = config.optional_size("num_heads", MAX_HEADS).unwrap_or(4);
    let key_heads = config.optional_size("num_kv_heads", MAX_HEADS).unwrap_or(heads);
    check_groups(config, &config.location, heads, key_heads);
    let sizes = AttentionSpec {
        layers: config.optional_size("num_hidden_layers", MAX_ENTRIES).unwrap_or(24),
        hidden_size,
        query_heads: heads,
        key_heads,
        head_dim: head_width(config, ("expand_k", 0.5), hidden_size, heads),
        vocabulary_size: config.optional_size("vocab_size", MAX_TOKENS).unwrap_or(32_000),
        ..AttentionSpec::default()
    };
    let relu = match config.optional_text("feature_map") {
        None => false,
        Some("relu") => true,
        Some(other) => {
            config.refuse(format!("`feature_map` is `{other}`; supported are `null` and `relu`"));
            false
        }
    };
    let convolution = config.flag("use_short_conv", false);
    let convolution =
        convolution.then(|| config.optional_size("conv_size", MAX_ENTRIES).unwrap_or(4));
    let gated = GatedLinear {
        value_dim: head_width(config, ("expand_v", 1.0), hidden_size, heads),
        relu,
        min_log_decay: config.optional_number("clamp_min"),
        convolution,
        output_gate: config.flag("use_output_gate", true),
    };
    let norm = Norm::rms(config.optional_positive("norm_eps").unwrap_or(1e-6));
    let spec = AttentionSpec {
        gated_linear: Some(gated),
        first_full_attention_layer: None,
        ..AttentionSpec::plain(&sizes, norm.clone())
    };
    let softmax = softmax_layers(config, &sizes, &norm);
    let mut first = with_projections(spec);
    need_tensors(config, &mut first);
    first.softmax = softmax;
    first
}

/// A norm after the last layer and before each gated feed-forward part.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let hidden = spec.hidden_size;
    let width = config.optional_size("intermediate_size", MAX_ENTRIES).unwrap_or_else(|| {
        let ratio = config.optional_positive("hidden_ratio").unwrap_or(4.0);
        let width = (hidden as f64 * ratio * 2.0 / 3.0) as u64;
        width.clamp(1, MAX_ENTRIES).next_multiple_of(256)
    });
    let part = |name: &str, outputs, inputs| {
        sized(&format!("layers.0.mlp.{name}"), false, outputs, inputs)
    };
    let feed_forward = Perceptron {
        gate: Some(part("gate_proj", width, hidden)),
        up: part("up_proj", width, hidden),
        down: part("down_proj", hidden, width),
        activation: Activation::Silu,
    };
    let value_dim = spec.gated_linear.as_ref().map_or(1, |gated| gated.value_dim);
    let output = sized(&format!("{ATTENTION}.o_proj"), false, hidden, spec.query_heads * value_dim);
    let norms = (Some("layers.0.mlp_norm"), "norm");
    let decoder = plain(first, output, norms, feed_forward, head(config, false));
    let value = format!("{ATTENTION}.v_proj");
    Decoder { value: Projection::whole(&value, false, spec.key_heads * value_dim), ..decoder }
}

fn refuse_variants(config: &Fields<'_>) {
    let fixed: [(&str, Value); 6] = [
        ("hidden_act", json!("swish")),
        ("use_gk", json!(true)),
        ("use_gv", json!(false)),
        ("gate_logit_normalizer", json!(16)),
        ("gate_low_rank_dim", json!(DECAY_RANK)),
        ("conv_bias", json!(false)),
    ];
    for (key, wanted) in &fixed {
        let same = |value: &Value| {
            value == wanted || value.is_number() && value.as_f64() == wanted.as_f64()
        };
        if let Some(value) = config.value(key).filter(|value| !same(value)) {
            config.refuse(format!("`{key}` in config.json is {value}; a `gla` model has {wanted}"));
        }
    }
    let convolves = config.value("use_short_conv") == Some(&Value::Bool(true));
    let shares = config.value("share_conv_kernel").is_some_and(|value| *value != json!(false));
    let shared = (convolves && shares).then_some("share_conv_kernel");
    for key in UNKNOWN_KEYS.into_iter().filter(|key| config.value(key).is_some()).chain(shared) {
        config.note(
            ModelProblem::settings(format!(
                "`{key}` in config.json is not supported for `gla` models"
            ))
            .with_hint(
                "it belongs to another version of the model's code, or to another model type",
            ),
        );
    }
}

/// Returns the numbers of a head whose heads together have `hidden_size` times the value of a key.
fn head_width(
    config: &Fields<'_>,
    (key, default): (&str, f64),
    hidden_size: u64,
    heads: u64,
) -> u64 {
    let ratio = config.optional_positive(key).unwrap_or(default);
    let width = hidden_size as f64 * ratio;
    let rounded = width.round();
    let sensible = (width - rounded).abs() < 1e-6 && (1.0..=MAX_ENTRIES as f64).contains(&rounded);
    if sensible && (rounded as u64).is_multiple_of(heads) {
        return rounded as u64 / heads;
    }
    config.contradict(format!(
        "config.json contradicts itself: `hidden_size` {hidden_size} times `{key}` {ratio} is {width}, which {heads} heads \
         cannot share evenly"
    ));
    1
}

/// The query and key projections of a layer.
fn with_projections(spec: AttentionSpec) -> FirstLayerConfig {
    let (queries, keys) = (spec.query_heads * spec.head_dim, spec.key_heads * spec.head_dim);
    let projections = Projection::separate(ATTENTION, spec.bias, queries, keys);
    named(spec, PREFIXES, ("embeddings", "layers.0.attn_norm", false), projections)
}

/// Adds the tensors of gated linear attention that are not shared with softmax attention.
fn need_tensors(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let spec = &first.spec;
    let Some(gated) = spec.gated_linear.clone() else { return };
    let hidden = spec.hidden_size;
    let (queries, keys) = (spec.query_heads * spec.head_dim, spec.key_heads * spec.head_dim);
    let (values, outputs) = (spec.key_heads * gated.value_dim, spec.query_heads * gated.value_dim);
    let mut need = |role, name: &str, shape: &[u64]| {
        first.tensors.need(role, &format!("{ATTENTION}.{name}"), shape);
    };
    need(TensorRole::DecayDownWeight, "gk_proj.0.weight", &[DECAY_RANK, hidden]);
    need(TensorRole::DecayUpWeight, "gk_proj.1.weight", &[keys, DECAY_RANK]);
    need(TensorRole::DecayUpBias, "gk_proj.1.bias", &[keys]);
    if let Some(taps) = gated.convolution {
        need(TensorRole::QueryConvolution, "q_conv1d.weight", &[queries, 1, taps]);
        need(TensorRole::KeyConvolution, "k_conv1d.weight", &[keys, 1, taps]);
        need(TensorRole::ValueConvolution, "v_conv1d.weight", &[values, 1, taps]);
    }
    if gated.output_gate {
        need(TensorRole::OutputGateWeight, "g_proj.weight", &[outputs, hidden]);
    }
    if config.flag("elementwise_affine", true) {
        let fused = gated.output_gate && config.flag("fuse_norm", true);
        let name = if fused { "g_norm_swish_gate.weight" } else { "g_norm.weight" };
        need(TensorRole::MixedNormWeight, name, &[gated.value_dim]);
    }
}

/// Reads the layers with softmax attention: `attn` is one group of them, or a list.
fn softmax_layers(config: &Fields<'_>, sizes: &AttentionSpec, norm: &Norm) -> Vec<SoftmaxLayers> {
    let mut groups: Vec<SoftmaxLayers> = Vec::new();
    for fields in config.objects("attn") {
        for key in fields.names().filter(|key| !SOFTMAX_KEYS.contains(&key.as_str())) {
            fields.refuse(format!("`{key}` in {} is not supported", fields.location));
        }
        let mut layers: Vec<u64> = Vec::new();
        for layer in fields.optional_numbers("layers").unwrap_or_default() {
            let known = groups.iter().any(|group| group.layers.contains(&(layer as u64)));
            let sensible = layer >= 0.0 && layer < sizes.layers as f64 && layer.fract() == 0.0;
            if !sensible || known || layers.contains(&(layer as u64)) {
                let message = format!(
                    "`layers` in {} names layer {layer}; the model has layers 0 to {}, and each is named once",
                    fields.location,
                    sizes.layers - 1
                );
                fields.contradict(message);
            }
            layers.push(layer as u64);
        }
        if fields.value("layers").is_none() {
            fields.contradict(format!("{} has no `layers`", fields.location));
        }
        groups.push(softmax_group(&fields, layers, sizes, norm));
    }
    groups
}

fn softmax_group(
    fields: &Fields<'_>,
    layers: Vec<u64>,
    sizes: &AttentionSpec,
    norm: &Norm,
) -> SoftmaxLayers {
    let hidden = sizes.hidden_size;
    let query_heads = fields.size("num_heads", MAX_HEADS);
    let key_heads = fields.optional_size("num_kv_heads", MAX_HEADS).unwrap_or(query_heads);
    check_groups(fields, &fields.location, query_heads, key_heads);
    if !hidden.is_multiple_of(2 * query_heads) {
        let message = format!(
            "{} contradicts itself: {query_heads} heads with pairs of numbers cannot share `hidden_size` {hidden} evenly",
            fields.location
        );
        fields.contradict(message);
    }
    let head_dim = (hidden / query_heads).max(1);
    let sizes = AttentionSpec { query_heads, key_heads, head_dim, ..sizes.clone() };
    let bias = fields.flag("qkv_bias", false);
    let theta = fields.optional_positive("rope_theta").unwrap_or(10_000.0);
    let spec = AttentionSpec {
        model_type: "gla".to_owned(),
        bias,
        window: fields.optional_size("window_size", 1 << 32),
        rope: Some(plain_rope(RopeStyle::Half, head_dim, theta)),
        ..AttentionSpec::plain(&sizes, norm.clone())
    };
    let FirstLayerConfig { spec, tensors, .. } = with_projections(spec);
    let value = Projection::whole(&format!("{ATTENTION}.v_proj"), bias, key_heads * head_dim);
    let output = sized(&format!("{ATTENTION}.o_proj"), false, hidden, query_heads * head_dim);
    SoftmaxLayers { layers, spec, tensors, value, output }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn problems(config: &Value) -> Vec<String> {
        let problems = RefCell::new(Vec::new());
        let fields = Fields::new(config.as_object().unwrap(), "config.json", &problems);
        decoder(&fields, &first_layer(&fields));
        problems.into_inner().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_configuration_is_the_default_model_and_variants_are_refused_by_name() {
        assert_eq!(problems(&json!({})), [""; 0]);
        let softmax = json!({"layers": [1, 3], "num_heads": 16});
        assert_eq!(problems(&json!({"attn": softmax})), [""; 0]);
        assert_eq!(problems(&json!({"attn": [softmax]})), [""; 0]);
        for (config, wanted) in [
            (json!({"hidden_act": "gelu"}), "`hidden_act`"),
            (json!({"feature_map": "elu"}), "`feature_map`"),
            (json!({"use_gv": true}), "`use_gv`"),
            (json!({"gate_logit_normalizer": 8}), "`gate_logit_normalizer`"),
            (json!({"num_attention_heads": 4}), "`num_attention_heads`"),
            (json!({"use_short_conv": true, "share_conv_kernel": true}), "`share_conv_kernel`"),
            (json!({"num_kv_heads": 3}), "3 key heads"),
            (json!({"expand_k": 0.77}), "`expand_k` 0.77"),
            (json!({"expand_v": 1e300}), "`expand_v`"),
            (json!({"attn": 3}), "`attn`"),
            (json!({"attn": [softmax, 3]}), "`attn.1`"),
            (json!({"attn": [softmax, softmax]}), "layer 1"),
            (json!({"attn": {"layers": [24], "num_heads": 4}}), "layer 24"),
            (json!({"attn": {"layers": [1], "num_heads": 4, "qk_norm": true}}), "`qk_norm`"),
            (json!({"attn": {"layers": [1], "num_heads": 3}}), "3 heads"),
            (json!({"attn": {"layers": [1]}}), "`num_heads`"),
            (json!({"attn": {"num_heads": 4}}), "`layers`"),
        ] {
            let found = problems(&config);
            assert!(found.iter().any(|problem| problem.contains(wanted)), "{config}: {found:?}");
        }
    }
}
