//! The model families: one short file each, from `config.json` to the layer-zero specification.
//!
//! A family is known or it is refused; nothing is guessed from tensor names.

mod llama;
mod mistral;
mod mixtral;
mod qwen2;

use super::fields::Fields;
use super::problem::ModelProblem;
use super::rope::Pairing;
use super::rope_config::{self, RopeDefaults};
use super::spec::{LayerZeroSpec, Norm};
use super::tensors::{LayerZeroTensors, Projection};

/// A family's answer: what its first layer computes, and from which tensors.
pub(crate) struct FirstLayer {
    pub(crate) spec: LayerZeroSpec,
    pub(crate) tensors: LayerZeroTensors,
}

type Family = fn(&Fields<'_>, Option<f64>) -> FirstLayer;

/// The known families by `model_type`.
const FAMILIES: [(&str, Family); 4] = [
    ("llama", llama::first_layer),
    ("mistral", mistral::first_layer),
    ("mixtral", mixtral::first_layer),
    ("qwen2", qwen2::first_layer),
];

/// Model types whose first layer is no softmax attention: there is nothing to score.
const WITHOUT_ATTENTION: [(&str, &str); 16] = [
    ("bamba", "a state-space (Mamba) layer"),
    ("delta_net", "linear attention (DeltaNet)"),
    ("falcon_mamba", "a state-space (Mamba) layer"),
    ("gated_deltanet", "linear attention (gated DeltaNet)"),
    ("gla", "gated linear attention"),
    ("granitemoehybrid", "a state-space (Mamba) layer"),
    ("hgrn2", "a linear recurrence"),
    ("jamba", "a state-space (Mamba) layer"),
    ("lfm2", "a convolution"),
    ("mamba", "a state-space (Mamba) layer"),
    ("mamba2", "a state-space (Mamba) layer"),
    ("qwen3_next", "linear attention (gated DeltaNet)"),
    ("recurrent_gemma", "a linear recurrence"),
    ("retnet", "linear attention (retention)"),
    ("rwkv", "a linear recurrence"),
    ("zamba2", "a state-space (Mamba) layer"),
];

/// Most entries along any dimension that config.json may claim: products of three stay within 64 bits.
const MOST_ENTRIES: u64 = 1 << 20;
const MOST_HEADS: u64 = 1 << 12;
const MOST_TOKENS: u64 = 1 << 24;

/// The first layer that `config` describes, or `None` with the reason noted.
pub(crate) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> Option<FirstLayer> {
    let Some(model_type) = config.optional_text("model_type") else {
        if config.value("model_type").is_none() {
            let problem = ModelProblem::settings("config.json has no `model_type`");
            config.note(problem.with_hint(known_types()));
        }
        return None;
    };
    let Some((_, family)) = FAMILIES.iter().find(|(name, _)| *name == model_type) else {
        config.note(unknown_type(model_type));
        return None;
    };
    Some(family(config, rope_theta))
}

/// The `model_type`s that can be scored, sorted.
pub fn known_model_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|(name, _)| *name).collect()
}

fn known_types() -> String {
    format!("known model types: {}", known_model_types().join(", "))
}

fn unknown_type(model_type: &str) -> ModelProblem {
    let message = match WITHOUT_ATTENTION.iter().find(|(name, _)| *name == model_type) {
        Some((_, layer)) => format!(
            "the first layer of a `{model_type}` model is {layer}, not softmax attention: it has no attention to score"
        ),
        None => format!("model type `{model_type}` is not known"),
    };
    ModelProblem::settings(message).with_hint(known_types())
}

/// What the families around Llama differ in.
struct LlamaLike {
    /// `num_key_value_heads` where config.json has no such key; `None` for as many as query heads.
    key_heads: Option<u64>,
    rms_eps: f64,
    rope_theta: f64,
    max_positions: u64,
    bias: bool,
}

/// RMS norm, separate query and key projections, rotary halves: Llama and everything built like it.
///
/// Defaults are those of the transformers library's configuration classes; `null` for `num_key_value_heads` and
/// `head_dim` means "derive it", as there.
fn llama_like(config: &Fields<'_>, family: &LlamaLike, rope_theta: Option<f64>) -> FirstLayer {
    let hidden_size = config.size("hidden_size", MOST_ENTRIES);
    let query_heads = config.size("num_attention_heads", MOST_HEADS);
    let default_heads =
        family.key_heads.filter(|_| !config.has("num_key_value_heads")).unwrap_or(query_heads);
    let key_heads =
        config.optional_size("num_key_value_heads", MOST_HEADS).unwrap_or(default_heads);
    let head_dim = head_dim(config, hidden_size, query_heads);
    if config.is_clean() && !query_heads.is_multiple_of(key_heads) {
        let message =
            format!("{query_heads} query heads cannot share {key_heads} key heads evenly");
        config.note(ModelProblem::checkpoint(format!("config.json contradicts itself: {message}")));
    }
    if config.optional_number("partial_rotary_factor").is_some_and(|part| (part - 1.0).abs() > 1e-9)
    {
        config.note(ModelProblem::settings(
            "`partial_rotary_factor` is not supported for this model type",
        ));
    }
    let max_positions =
        config.optional_size("max_position_embeddings", 1 << 32).unwrap_or(family.max_positions);
    let defaults = RopeDefaults {
        pairing: Pairing::Half,
        theta: family.rope_theta,
        rotary_dims: head_dim,
        max_positions,
    };
    let spec = LayerZeroSpec {
        model_type: config.optional_text("model_type").unwrap_or_default().to_owned(),
        layers: config.size("num_hidden_layers", MOST_ENTRIES),
        hidden_size,
        query_heads,
        key_heads,
        head_dim,
        vocabulary_size: config.size("vocab_size", MOST_TOKENS),
        norm: Norm::Rms {
            eps: config.optional_positive("rms_norm_eps").unwrap_or(family.rms_eps),
            offset: 0.0,
        },
        bias: family.bias,
        scale: 1.0 / (head_dim as f64).sqrt(),
        softcap: None,
        alibi_slopes: None,
        window: None,
        chunk: None,
        rope: Some(rope_config::read(config, &defaults, rope_theta)),
        max_positions: Some(max_positions),
        first_layer_that_sees_all: Some(0),
    };
    let tensors = LayerZeroTensors {
        prefixes: &["model.", ""],
        embedding: "embed_tokens.weight".to_owned(),
        norm_weight: Some("layers.0.input_layernorm.weight".to_owned()),
        norm_bias: None,
        query: Projection::whole("layers.0.self_attn.q_proj", family.bias, query_heads * head_dim),
        key: Projection::whole("layers.0.self_attn.k_proj", family.bias, key_heads * head_dim),
    };
    FirstLayer { spec, tensors }
}

fn head_dim(config: &Fields<'_>, hidden_size: u64, query_heads: u64) -> u64 {
    if let Some(head_dim) = config.optional_size("head_dim", MOST_HEADS) {
        return head_dim;
    }
    if !config.is_clean() {
        return 2;
    }
    if !hidden_size.is_multiple_of(query_heads) || hidden_size / query_heads > MOST_HEADS {
        config.note(ModelProblem::checkpoint(format!(
            "config.json has no `head_dim`, and `hidden_size` {hidden_size} is not a sensible multiple of \
             `num_attention_heads` {query_heads}"
        )));
        return 2;
    }
    hidden_size / query_heads
}

/// Sets that every layer slides over `window` tokens. The transformers library does so for these model types
/// whatever `layer_types` says; a list that says otherwise is a contradiction, and nothing is guessed.
fn slide_everywhere(first: &mut FirstLayer, config: &Fields<'_>, window: Option<u64>) {
    let Some(window) = window else { return };
    let types = config.optional_texts("layer_types").unwrap_or_default();
    if let Some(other) = types.iter().find(|kind| **kind != "sliding_attention") {
        let model_type = &first.spec.model_type;
        config.note(ModelProblem::settings(format!(
            "config.json contradicts itself: with `sliding_window` {window} every layer of a `{model_type}` model \
             slides, but `layer_types` has `{other}`"
        )));
    }
    first.spec.window = Some(window);
    first.spec.first_layer_that_sees_all = None;
}

/// Sets what layer 0 sees where each layer either slides over `window` tokens or sees all.
///
/// `layer_types` of config.json decides where it is there; otherwise `slides` says it of a layer's index.
fn slide(
    first: &mut FirstLayer,
    config: &Fields<'_>,
    window: Option<u64>,
    slides: impl Fn(u64) -> bool,
) {
    let types = config.optional_texts("layer_types");
    let slides = |layer: u64| match types.as_ref().and_then(|types| types.get(layer as usize)) {
        Some(kind) => *kind == "sliding_attention",
        None => slides(layer),
    };
    for kind in types.iter().flatten() {
        if !["full_attention", "sliding_attention"].contains(kind) {
            config.note(ModelProblem::settings(format!(
                "layer type `{kind}` is not supported for this model type"
            )));
            return;
        }
    }
    let Some(window) = window else { return };
    if slides(0) {
        first.spec.window = Some(window);
        first.spec.first_layer_that_sees_all = (0..first.spec.layers).find(|layer| !slides(*layer));
    }
}
