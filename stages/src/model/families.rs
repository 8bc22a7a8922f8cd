//! The model families: one short file each, from `config.json` to the layer-zero specification.
//!
//! A family is known or it is refused; nothing is guessed from tensor names.

mod alibi;
mod baichuan;
mod bloom;
mod chatglm;
mod cohere;
mod deepseek;
mod ernie;
mod falcon;
mod gemma;
mod glm;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod hunyuan;
mod internlm;
mod llama;
mod llama4;
mod mistral;
mod mixtral;
mod mpt;
mod nemotron;
mod olmo;
mod opt;
mod phi;
mod qwen;
mod qwen2;
mod qwen3;
mod smollm3;
mod stablelm;
mod starcoder2;
mod without_attention;

use super::fields::Fields;
use super::problem::ModelProblem;
use super::rope::{Pairing, RopeScaling, RopeSpec};
use super::rope_config::{self, RopeDefaults};
use super::spec::{HeadNorm, LayerZeroSpec, Norm, NormScope, Sizes};
use super::tensors::{LayerZeroTensors, Projection, Role};

/// A family's answer: what its first layer computes, and from which tensors.
pub(crate) struct FirstLayer {
    pub(crate) spec: LayerZeroSpec,
    pub(crate) tensors: LayerZeroTensors,
}

type Family = fn(&Fields<'_>, Option<f64>) -> FirstLayer;

/// The known families by `model_type`, and whether their arithmetic has been compared with the model's own code.
const FAMILIES: [(&str, Family, bool); 60] = [
    ("baichuan", baichuan::first_layer, UNVERIFIED),
    ("bloom", bloom::first_layer, VERIFIED),
    ("chatglm", chatglm::first_layer, UNVERIFIED),
    ("cohere", cohere::cohere, VERIFIED),
    ("cohere2", cohere::cohere2, UNVERIFIED),
    ("deepseek", deepseek::dense, UNVERIFIED),
    ("deepseek_v2", deepseek::v2, VERIFIED),
    ("deepseek_v3", deepseek::v3, VERIFIED),
    ("ernie4_5", ernie::first_layer, UNVERIFIED),
    ("ernie4_5_moe", ernie::first_layer, UNVERIFIED),
    ("falcon", falcon::first_layer, VERIFIED),
    ("gemma", gemma::gemma, VERIFIED),
    ("gemma2", gemma::gemma2, VERIFIED),
    ("gemma3_text", gemma::gemma3, VERIFIED),
    ("glm", glm::glm, UNVERIFIED),
    ("glm4", glm::glm, VERIFIED),
    ("glm4_moe", glm::glm4_moe, UNVERIFIED),
    ("gpt2", gpt2::gpt2, VERIFIED),
    ("gpt_bigcode", gpt2::gpt_bigcode, UNVERIFIED),
    ("gpt_neo", gpt2::gpt_neo, UNVERIFIED),
    ("gpt_neox", gpt_neox::gpt_neox, VERIFIED),
    ("gpt_oss", gpt_oss::first_layer, VERIFIED),
    ("gptj", gptj::first_layer, VERIFIED),
    ("granite", granite::first_layer, UNVERIFIED),
    ("granitemoe", granite::first_layer, UNVERIFIED),
    ("granitemoeshared", granite::first_layer, UNVERIFIED),
    ("hunyuan_v1_dense", hunyuan::first_layer, VERIFIED),
    ("hunyuan_v1_moe", hunyuan::first_layer, UNVERIFIED),
    ("internlm", internlm::internlm, UNVERIFIED),
    ("internlm2", internlm::internlm2, UNVERIFIED),
    ("internlm3", internlm::internlm3, UNVERIFIED),
    ("kimi_k2", deepseek::v3, UNVERIFIED),
    ("llama", llama::first_layer, VERIFIED),
    ("llama4_text", llama4::first_layer, VERIFIED),
    ("minicpm3", deepseek::minicpm3, VERIFIED),
    ("ministral", mistral::ministral, UNVERIFIED),
    ("ministral3", mistral::ministral3, UNVERIFIED),
    ("mistral", mistral::first_layer, VERIFIED),
    ("mixtral", mixtral::first_layer, VERIFIED),
    ("mpt", mpt::first_layer, UNVERIFIED),
    ("nemotron", nemotron::first_layer, UNVERIFIED),
    ("olmo", olmo::olmo, UNVERIFIED),
    ("olmo2", olmo::olmo2, VERIFIED),
    ("olmo3", olmo::olmo3, UNVERIFIED),
    ("olmoe", olmo::olmoe, UNVERIFIED),
    ("opt", opt::first_layer, VERIFIED),
    ("persimmon", gpt_neox::persimmon, UNVERIFIED),
    ("phi", phi::phi, VERIFIED),
    ("phi3", phi::phi3, VERIFIED),
    ("qwen", qwen::first_layer, UNVERIFIED),
    ("qwen2", qwen2::first_layer, VERIFIED),
    ("qwen2_moe", qwen2::moe, UNVERIFIED),
    ("qwen3", qwen3::dense, VERIFIED),
    ("qwen3_moe", qwen3::moe, VERIFIED),
    ("RefinedWeb", falcon::first_layer, UNVERIFIED),
    ("RefinedWebModel", falcon::first_layer, UNVERIFIED),
    ("seed_oss", llama::seed_oss, UNVERIFIED),
    ("smollm3", smollm3::first_layer, VERIFIED),
    ("stablelm", stablelm::first_layer, VERIFIED),
    ("starcoder2", starcoder2::first_layer, UNVERIFIED),
];
const VERIFIED: bool = true;
const UNVERIFIED: bool = false;

/// Multimodal configurations that keep their text model in `text_config`, and its `model_type` where that says none.
const WRAPPERS: [(&str, &str); 3] =
    [("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("mistral3", "mistral")];

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
    if let Some((_, text_type)) = WRAPPERS.iter().find(|(name, _)| *name == model_type) {
        let nested = config.optional_object("text_config");
        let text = nested.as_ref().unwrap_or(config);
        let text_type =
            nested.as_ref().and_then(|text| text.optional_text("model_type")).unwrap_or(text_type);
        let mut first = of_type(text, text_type, rope_theta)?;
        first.tensors.prefixes = &["language_model.model.", "model.language_model.", "model.", ""];
        return Some(first);
    }
    of_type(config, model_type, rope_theta)
}

fn of_type(config: &Fields<'_>, model_type: &str, rope_theta: Option<f64>) -> Option<FirstLayer> {
    let Some((_, family, verified)) = FAMILIES.iter().find(|(name, _, _)| *name == model_type)
    else {
        config.note(unknown_type(config, model_type));
        return None;
    };
    let mut first = family(config, rope_theta);
    model_type.clone_into(&mut first.spec.model_type);
    first.spec.unverified = !verified;
    Some(first)
}

/// The `model_type`s that can be scored, sorted.
pub fn known_model_types() -> Vec<&'static str> {
    let names = FAMILIES.iter().map(|(name, _, _)| *name);
    let mut names: Vec<&str> = names.chain(WRAPPERS.iter().map(|(name, _)| *name)).collect();
    names.sort_unstable();
    names
}

fn known_types() -> String {
    format!("known model types: {}", known_model_types().join(", "))
}

/// A model that cannot be scored, or is not known: the hint says what can be done, else what is known.
fn unknown_type(config: &Fields<'_>, model_type: &str) -> ModelProblem {
    let unknown = || ModelProblem::settings(format!("model type `{model_type}` is not known"));
    let problem = without_attention::problem(config, model_type).unwrap_or_else(unknown);
    if problem.hint.is_some() { problem } else { problem.with_hint(known_types()) }
}

/// Under which names config.json writes sizes, the usual one first.
struct SizeNames {
    hidden: &'static [&'static str],
    layers: &'static [&'static str],
    heads: &'static [&'static str],
    key_heads: &'static [&'static str],
    vocabulary: &'static [&'static str],
    positions: &'static [&'static str],
}

const LLAMA_NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    key_heads: &["num_key_value_heads"],
    vocabulary: &["vocab_size"],
    positions: &["max_position_embeddings"],
};

/// Sizes where config.json has no such key: mostly none, it must be there.
#[derive(Default)]
struct SizeDefaults {
    hidden: Option<u64>,
    layers: Option<u64>,
    heads: Option<u64>,
    vocabulary: Option<u64>,
    /// Key heads; `None` for as many as query heads.
    key_heads: Option<u64>,
    /// `None`: `hidden_size / query heads`.
    head_dim: Option<u64>,
    positions: Option<u64>,
}

/// Reads the sizes and holds them against each other. `null` for key heads and `head_dim` means "derive it".
fn sizes(config: &Fields<'_>, names: &SizeNames, defaults: &SizeDefaults) -> Sizes {
    let hidden_size = config.size_of(names.hidden, MOST_ENTRIES, defaults.hidden);
    let query_heads = config.size_of(names.heads, MOST_HEADS, defaults.heads);
    let written = names.key_heads.iter().any(|name| config.has(name));
    let default_heads = defaults.key_heads.filter(|_| !written).unwrap_or(query_heads);
    let key_heads = config.size_of(names.key_heads, MOST_HEADS, Some(default_heads));
    if config.is_clean() && !query_heads.is_multiple_of(key_heads) {
        let message =
            format!("{query_heads} query heads cannot share {key_heads} key heads evenly");
        config.note(ModelProblem::checkpoint(format!("config.json contradicts itself: {message}")));
    }
    let positions = names.positions.iter().find_map(|name| config.optional_size(name, 1 << 32));
    Sizes {
        layers: config.size_of(names.layers, MOST_ENTRIES, defaults.layers),
        hidden_size,
        query_heads,
        key_heads,
        head_dim: head_dim(config, hidden_size, query_heads, defaults.head_dim),
        vocabulary_size: config.size_of(names.vocabulary, MOST_TOKENS, defaults.vocabulary),
        max_positions: positions.or(defaults.positions),
    }
}

/// What the families around Llama differ in.
struct LlamaLike {
    /// `num_key_value_heads` where config.json has no such key; `None` for as many as query heads.
    key_heads: Option<u64>,
    /// `head_dim` where config.json has no such key; `None` for `hidden_size / num_attention_heads`.
    head_dim: Option<u64>,
    /// The first norm.
    norm: NormKind,
    /// The key of the norm's `eps`, and its default.
    eps: (&'static str, f64),
    rope_theta: f64,
    max_positions: u64,
    /// Whether queries and keys have a bias.
    bias: bool,
    pairing: Pairing,
    /// The share of a head that rotates where config.json has no `partial_rotary_factor`; `None`: it may not have one.
    partial_rotary: Option<f64>,
    /// Where the length of the first training is read beside the rope scaling: its default.
    original_positions: Option<u64>,
    /// Whether `dynamic` rope scaling may be given by `alpha`.
    alpha: bool,
}

impl Default for LlamaLike {
    fn default() -> Self {
        Self {
            key_heads: None,
            head_dim: None,
            norm: NormKind::Rms { offset: 0.0 },
            eps: ("rms_norm_eps", 1e-6),
            rope_theta: 1e4,
            max_positions: 2048,
            bias: false,
            pairing: Pairing::Half,
            partial_rotary: None,
            original_positions: None,
            alpha: false,
        }
    }
}

/// The kind of a norm, without its `eps`.
#[derive(Clone, Copy)]
enum NormKind {
    /// With a weight.
    Rms { offset: f64 },
    /// With a weight and, perhaps, a bias.
    Layer { offset: f64, bias: bool },
    /// The projections read the embedding.
    None,
}

impl NormKind {
    fn with(self, eps: f64) -> Norm {
        match self {
            Self::Rms { offset } => Norm::Rms { eps, offset },
            Self::Layer { offset, .. } => Norm::Layer { eps, offset },
            Self::None => Norm::None,
        }
    }
}

/// A norm, separate query and key projections, a rotary embedding: Llama and everything built like it.
///
/// Defaults are those of the transformers library's configuration classes; `null` for `num_key_value_heads` and
/// `head_dim` means "derive it", as there.
fn llama_like(config: &Fields<'_>, family: &LlamaLike, rope_theta: Option<f64>) -> FirstLayer {
    llama_like_of(config, family, &SizeDefaults::default(), rope_theta)
}

/// As [`llama_like`], with defaults for sizes that config.json may leave out.
fn llama_like_of(
    config: &Fields<'_>,
    family: &LlamaLike,
    defaults: &SizeDefaults,
    rope_theta: Option<f64>,
) -> FirstLayer {
    let defaults = SizeDefaults {
        key_heads: family.key_heads,
        head_dim: family.head_dim,
        positions: Some(family.max_positions),
        ..*defaults
    };
    let sizes = sizes(config, &LLAMA_NAMES, &defaults);
    let rotary_dims = match family.partial_rotary {
        Some(default) => rope_config::rotary_dims(config, sizes.head_dim, default),
        None => whole_head(config, sizes.head_dim),
    };
    let rope = RopeDefaults {
        pairing: family.pairing,
        theta: family.rope_theta,
        rotary_dims,
        max_positions: sizes.max_positions.unwrap_or(family.max_positions),
        original_positions: family.original_positions,
        alpha: family.alpha,
    };
    let norm = family.norm.with(config.optional_positive(family.eps.0).unwrap_or(family.eps.1));
    let layer = "layers.0.input_layernorm";
    let norm_weight = (norm != Norm::None).then(|| format!("{layer}.weight"));
    let norm_bias = matches!(family.norm, NormKind::Layer { bias: true, .. });
    let spec = LayerZeroSpec {
        bias: family.bias,
        rope: Some(rope_config::read(config, &rope, rope_theta)),
        ..LayerZeroSpec::plain(&sizes, norm)
    };
    let projection = |name: &str, heads: u64| {
        let name = format!("layers.0.self_attn.{name}");
        Projection::whole(&name, family.bias, heads * sizes.head_dim)
    };
    let tensors = LayerZeroTensors {
        prefixes: &["model.", ""],
        embedding: "embed_tokens.weight".to_owned(),
        norm_weight,
        norm_bias: norm_bias.then(|| format!("{layer}.bias")),
        query: projection("q_proj", sizes.query_heads),
        key: projection("k_proj", sizes.key_heads),
        more: Vec::new(),
    };
    FirstLayer { spec, tensors }
}

/// A first layer whose names are its own. `norm` is named `{norm}.weight` and, with `norm_bias`, `{norm}.bias`.
fn named(
    spec: LayerZeroSpec,
    prefixes: &'static [&'static str],
    (embedding, norm, norm_bias): (&str, &str, bool),
    (query, key): (Projection, Projection),
) -> FirstLayer {
    let tensors = LayerZeroTensors {
        prefixes,
        embedding: format!("{embedding}.weight"),
        norm_weight: (spec.norm != Norm::None).then(|| format!("{norm}.weight")),
        norm_bias: (norm_bias && spec.norm != Norm::None).then(|| format!("{norm}.bias")),
        query,
        key,
        more: Vec::new(),
    };
    FirstLayer { spec, tensors }
}

/// A plain rotary embedding of a family that reads its own base.
fn plain_rope(pairing: Pairing, rotary_dims: u64, theta: f64) -> RopeSpec {
    RopeSpec { pairing, rotary_dims, theta, scaling: RopeScaling::Default }
}

/// All dimensions rotate: a share of them is refused rather than ignored.
fn whole_head(config: &Fields<'_>, head_dim: u64) -> u64 {
    if config.optional_number("partial_rotary_factor").is_some_and(|part| (part - 1.0).abs() > 1e-9)
    {
        config.note(ModelProblem::settings(
            "`partial_rotary_factor` is not supported for this model type",
        ));
    }
    head_dim
}

fn head_dim(config: &Fields<'_>, hidden_size: u64, query_heads: u64, default: Option<u64>) -> u64 {
    let default = default.filter(|_| !config.has("head_dim"));
    if let Some(head_dim) = config.optional_size("head_dim", MOST_HEADS).or(default) {
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

/// A norm over queries and keys, with weights named `{query}.weight` and `{key}.weight`.
fn head_norm(first: &mut FirstLayer, norm: HeadNorm, query: &str, key: &str) {
    let spec = &first.spec;
    let sides = [
        (query, spec.query_heads, Role::QueryNormWeight, Role::QueryNormBias),
        (key, spec.key_heads, Role::KeyNormWeight, Role::KeyNormBias),
    ];
    let head_dim = spec.head_dim;
    for (name, heads, weight, bias) in sides {
        let shape = match norm.over {
            NormScope::Head => vec![head_dim],
            NormScope::EachHead => vec![heads, head_dim],
            NormScope::AllHeads => vec![heads * head_dim],
        };
        if norm.weight {
            first.tensors.need(weight, &format!("{name}.weight"), &shape);
        }
        if norm.bias {
            first.tensors.need(bias, &format!("{name}.bias"), &shape);
        }
    }
    first.spec.head_norm = Some(norm);
}

/// The RMS norm of each head before the rotary embedding, `q_norm` and `k_norm` (Qwen3, Gemma 3).
fn rms_head_norm(first: &mut FirstLayer, eps: f64, offset: f64, over: NormScope) {
    let norm = Norm::Rms { eps, offset };
    let norm = HeadNorm { norm, over, weight: true, bias: false, after_rope: false };
    head_norm(first, norm, "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm");
}

/// `eps` of the first norm, which many families use for their other norms too.
fn eps(norm: &Norm) -> f64 {
    match *norm {
        Norm::Rms { eps, .. } | Norm::Layer { eps, .. } => eps,
        Norm::None => 1e-6,
    }
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
    if let Some(window) = window {
        slide_window(first, window, slides);
    }
}

/// Sets what layer 0 sees where `slides` says of each layer whether it sees only `window` tokens.
fn slide_window(first: &mut FirstLayer, window: u64, slides: impl Fn(u64) -> bool) {
    if slides(0) {
        first.spec.window = Some(window);
        first.spec.first_layer_that_sees_all = (0..first.spec.layers).find(|layer| !slides(*layer));
    }
}

/// Whether layer 0 slides: as `layer_types` says, or by the family's default.
fn layer_zero_slides(config: &Fields<'_>, default: bool) -> bool {
    let types = config.optional_texts("layer_types").unwrap_or_default();
    types.first().map_or(default, |kind| *kind == "sliding_attention")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_types_are_sorted_and_named_once() {
        let names = known_model_types();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
    }
}
