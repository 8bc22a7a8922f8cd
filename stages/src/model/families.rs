//! The model families, one file each: from `config.json` to the specification of the first layer.
//!
//! An unknown family is refused; nothing is guessed from tensor names.

mod alibi;
mod attention_span;
mod baichuan;
mod bloom;
mod chatglm;
mod cohere;
mod deepseek;
mod ernie;
mod falcon;
mod first_layer;
mod gemma;
mod gla;
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
mod llama_like;
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
mod rest;
mod sizes;
mod smollm3;
mod stablelm;
mod starcoder2;
mod without_attention;

use super::decoder::Decoder;
use super::fields::Fields;
use super::problem::ModelProblem;

pub(crate) use first_layer::FirstLayerConfig;

type Family = fn(&Fields<'_>, Option<f64>) -> FirstLayerConfig;

/// Families by `model_type`, and whether their arithmetic has been compared with the model's own code.
const FAMILIES: [(&str, Family, bool); 60] = [
    ("baichuan", baichuan::first_layer, UNVERIFIED),
    ("bloom", bloom::first_layer, VERIFIED),
    ("chatglm", chatglm::first_layer, UNVERIFIED),
    ("cohere", cohere::cohere, VERIFIED),
    ("cohere2", cohere::cohere2, VERIFIED),
    ("deepseek", deepseek::dense, UNVERIFIED),
    ("deepseek_v2", deepseek::v2, VERIFIED),
    ("deepseek_v3", deepseek::v3, VERIFIED),
    ("ernie4_5", ernie::first_layer, VERIFIED),
    ("ernie4_5_moe", ernie::first_layer, VERIFIED),
    ("falcon", falcon::first_layer, VERIFIED),
    ("gemma", gemma::gemma, VERIFIED),
    ("gemma2", gemma::gemma2, VERIFIED),
    ("gemma3_text", gemma::gemma3, VERIFIED),
    ("glm", glm::glm, VERIFIED),
    ("glm4", glm::glm, VERIFIED),
    ("glm4_moe", glm::glm4_moe, VERIFIED),
    ("gpt2", gpt2::gpt2, VERIFIED),
    ("gpt_bigcode", gpt2::gpt_bigcode, VERIFIED),
    ("gpt_neo", gpt2::gpt_neo, VERIFIED),
    ("gpt_neox", gpt_neox::gpt_neox, VERIFIED),
    ("gpt_oss", gpt_oss::first_layer, VERIFIED),
    ("gptj", gptj::first_layer, VERIFIED),
    ("granite", granite::first_layer, VERIFIED),
    ("granitemoe", granite::first_layer, VERIFIED),
    ("granitemoeshared", granite::first_layer, VERIFIED),
    ("hunyuan_v1_dense", hunyuan::first_layer, VERIFIED),
    ("hunyuan_v1_moe", hunyuan::first_layer, VERIFIED),
    ("internlm", internlm::internlm, UNVERIFIED),
    ("internlm2", internlm::internlm2, UNVERIFIED),
    ("internlm3", internlm::internlm3, VERIFIED),
    ("kimi_k2", deepseek::v3, UNVERIFIED),
    ("llama", llama::first_layer, VERIFIED),
    ("llama4_text", llama4::first_layer, VERIFIED),
    ("minicpm3", deepseek::minicpm3, VERIFIED),
    ("ministral", mistral::ministral, VERIFIED),
    ("ministral3", mistral::ministral3, VERIFIED),
    ("mistral", mistral::first_layer, VERIFIED),
    ("mixtral", mixtral::first_layer, VERIFIED),
    ("mpt", mpt::first_layer, VERIFIED),
    ("nemotron", nemotron::first_layer, VERIFIED),
    ("olmo", olmo::olmo, VERIFIED),
    ("olmo2", olmo::olmo2, VERIFIED),
    ("olmo3", olmo::olmo3, VERIFIED),
    ("olmoe", olmo::olmoe, VERIFIED),
    ("opt", opt::first_layer, VERIFIED),
    ("persimmon", gpt_neox::persimmon, VERIFIED),
    ("phi", phi::phi, VERIFIED),
    ("phi3", phi::phi3, VERIFIED),
    ("qwen", qwen::first_layer, UNVERIFIED),
    ("qwen2", qwen2::first_layer, VERIFIED),
    ("qwen2_moe", qwen2::moe, VERIFIED),
    ("qwen3", qwen3::dense, VERIFIED),
    ("qwen3_moe", qwen3::moe, VERIFIED),
    ("RefinedWeb", falcon::first_layer, UNVERIFIED),
    ("RefinedWebModel", falcon::first_layer, UNVERIFIED),
    ("seed_oss", llama::seed_oss, VERIFIED),
    ("smollm3", smollm3::first_layer, VERIFIED),
    ("stablelm", stablelm::first_layer, VERIFIED),
    ("starcoder2", starcoder2::first_layer, VERIFIED),
];
const VERIFIED: bool = true;
const UNVERIFIED: bool = false;

/// Families supported as whole models only: their first layer has no attention that could be measured.
const WHOLE_ONLY: [(&str, Family); 1] = [("gla", gla::first_layer)];

type DecoderBuilder = fn(&Fields<'_>, &FirstLayerConfig) -> Decoder;

/// Families supported as whole models, each compared with the model's own code.
const WHOLE: [(&str, DecoderBuilder); 24] = [
    ("cohere", cohere::cohere_decoder),
    ("falcon", falcon::decoder),
    ("gemma", gemma::gemma_decoder),
    ("gemma2", gemma::gemma2_decoder),
    ("gemma3_text", gemma::gemma3_decoder),
    ("gla", gla::decoder),
    ("glm4", glm::glm4_decoder),
    ("gpt2", gpt2::gpt2_decoder),
    ("gpt_neox", gpt_neox::gpt_neox_decoder),
    ("granite", granite::decoder),
    ("llama", llama::decoder),
    ("mistral", rest::plain_llama_decoder),
    ("mixtral", mixtral::decoder),
    ("olmo", olmo::olmo_decoder),
    ("olmo2", olmo::olmo2_decoder),
    ("opt", opt::decoder),
    ("phi", phi::phi_decoder),
    ("phi3", rest::fused_gate_decoder),
    ("qwen2", rest::plain_llama_decoder),
    ("qwen3", qwen3::decoder),
    ("seed_oss", llama::seed_oss_decoder),
    ("smollm3", smollm3::decoder),
    ("stablelm", stablelm::decoder),
    ("starcoder2", starcoder2::decoder),
];

/// Multimodal configurations that keep their text model in `text_config`, with the `model_type` to assume if that has
/// none.
const WRAPPERS: [(&str, &str); 3] =
    [("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("mistral3", "mistral")];

/// Part of a model that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelScope {
    FirstLayer,
    WholeModel,
}

/// Returns the first layer that `config` describes, or `None` with the problem noted.
pub(crate) fn first_layer(
    config: &Fields<'_>,
    rope_theta: Option<f64>,
    scope: ModelScope,
) -> Option<FirstLayerConfig> {
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
        let mut first = first_layer_for_type(text, text_type, rope_theta, scope)?;
        first.tensors.prefixes =
            &["language_model.model.", "model.language_model.", "language_model.", "model.", ""];
        return Some(first);
    }
    first_layer_for_type(config, model_type, rope_theta, scope)
}

/// Returns the other layers and the head that `config` describes, or `None` with the problem noted.
pub(crate) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Option<Decoder> {
    let model_type = first.spec.model_type.as_str();
    let Some((_, rest)) = WHOLE.iter().find(|(name, _)| *name == model_type) else {
        let names: Vec<&str> = WHOLE.iter().map(|(name, _)| *name).collect();
        let message = format!(
            "`{model_type}` models are supported for their first layer only, not as whole models"
        );
        let hint = format!("supported whole models: {}", names.join(", "));
        config.note(ModelProblem::settings(message).with_hint(hint));
        return None;
    };
    let nested = config.optional_object("text_config").filter(|_| is_wrapper(config));
    Some(rest(nested.as_ref().unwrap_or(config), first))
}

fn is_wrapper(config: &Fields<'_>) -> bool {
    let written = config.optional_text("model_type");
    WRAPPERS.iter().any(|(name, _)| Some(*name) == written)
}

fn first_layer_for_type(
    config: &Fields<'_>,
    model_type: &str,
    rope_theta: Option<f64>,
    scope: ModelScope,
) -> Option<FirstLayerConfig> {
    let whole_only = WHOLE_ONLY.iter().filter(|_| scope == ModelScope::WholeModel);
    let whole_only = whole_only.map(|(name, family)| (*name, *family, VERIFIED));
    let mut families = FAMILIES.into_iter().chain(whole_only);
    let Some((_, family, verified)) = families.find(|(name, _, _)| *name == model_type) else {
        config.note(unknown_type(config, model_type));
        return None;
    };
    let mut first = family(config, rope_theta);
    if config.is_clean() {
        note_contradictions(config, &first);
    }
    model_type.clone_into(&mut first.spec.model_type);
    first.spec.unverified |= !verified;
    Some(first)
}

/// Checks that head sizes, projection rows and rotary dimensions agree, so that the builder receives consistent shapes
/// only.
fn note_contradictions(config: &Fields<'_>, first: &FirstLayerConfig) {
    let spec = &first.spec;
    if let Some(rope) = &spec.rope
        && (rope.rotary_dims > spec.head_dim || rope.rotary_dims < 2 || rope.rotary_dims % 2 == 1)
    {
        config.note(ModelProblem::checkpoint(format!(
            "config.json contradicts itself: {} of the {} dimensions of a head rotate, and they must form pairs",
            rope.rotary_dims, spec.head_dim
        )));
    }
    let own = spec.head_dim - spec.latent.as_ref().map_or(0, |latent| latent.rotary_dims);
    let projections = [
        ("query", &first.tensors.query, spec.query_heads * spec.head_dim),
        ("key", &first.tensors.key, spec.key_heads * own),
    ];
    for (kind, projection, wanted) in projections {
        let rows: u64 = projection.rows.iter().map(|rows| rows.end - rows.start).sum();
        if rows != wanted {
            config.note(ModelProblem::checkpoint(format!(
                "config.json contradicts itself: {kind} heads need {wanted} rows of `{}`, but it has {rows}",
                projection.weight
            )));
        }
    }
}

/// Returns the `model_type`s that can be scored, sorted.
pub(crate) fn known_model_types() -> Vec<&'static str> {
    let names = FAMILIES.iter().map(|(name, _, _)| *name);
    let mut names: Vec<&str> = names.chain(WRAPPERS.iter().map(|(name, _)| *name)).collect();
    names.sort_unstable();
    names
}

fn known_types() -> String {
    format!("supported model types: {}", known_model_types().join(", "))
}

/// Returns the problem of a model type that is unknown or cannot be scored.
fn unknown_type(config: &Fields<'_>, model_type: &str) -> ModelProblem {
    without_attention::problem(config, model_type).unwrap_or_else(|| {
        ModelProblem::settings(format!("model type `{model_type}` is not supported"))
            .with_hint(known_types())
    })
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
