//! The model families, from `config.json` to the specification of the first layer: alike ones in one file, each in a row
//! of a table. An unknown family is refused; nothing is guessed from tensor names.

mod alibi;
mod decoders;
mod deepseek;
mod first_layer;
mod gemma;
mod gla;
mod glm;
mod gpt2;
mod gpt_neox;
mod layer_norms;
mod llama;
mod llama_like;
mod mistral;
mod olmo;
mod qwen;
mod sizes;
mod without_attention;

use super::decoder::Decoder;
use super::fields::Fields;
use super::problem::ModelProblem;

use FirstLayerSource::{Like, Own};
use Support::{Unverified, Verified, WholeOnly};
pub(crate) use first_layer::FirstLayerConfig;
use llama_like::{LLAMA, LlamaLike, llama_like};

/// First layer of a family.
enum FirstLayerSource {
    /// Differs from Llama by constants and an adjustment.
    Like(LlamaLike),
    Own(fn(&Fields<'_>) -> FirstLayerConfig),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Support {
    /// The arithmetic has been compared with the model's own code.
    Verified,
    Unverified,
    /// The first layer has no attention that could be measured.
    WholeOnly,
}

/// Builder of the other layers and the head. Each has been compared with the model's own code.
type DecoderBuilder = fn(&Fields<'_>, &FirstLayerConfig) -> Decoder;

type Family = (&'static str, FirstLayerSource, Support, Option<DecoderBuilder>);

/// Families by `model_type`. Those without a decoder are supported for their first layer only.
const FAMILIES: [Family; 61] = [
    ("baichuan", Like(alibi::BAICHUAN), Unverified, None),
    ("bloom", Own(alibi::bloom), Verified, None),
    ("chatglm", Own(glm::chatglm), Unverified, None),
    ("cohere", Like(layer_norms::COHERE), Verified, Some(layer_norms::cohere_decoder)),
    ("cohere2", Like(layer_norms::COHERE2), Verified, None),
    ("deepseek", Like(LLAMA), Unverified, None),
    ("deepseek_v2", Own(deepseek::v2), Verified, None),
    ("deepseek_v3", Own(deepseek::v3), Verified, None),
    ("ernie4_5", Like(llama::ERNIE), Verified, None),
    ("ernie4_5_moe", Like(llama::ERNIE_MOE), Verified, None),
    ("falcon", Own(gpt_neox::falcon), Verified, Some(gpt_neox::falcon_decoder)),
    ("gemma", Like(gemma::GEMMA), Verified, Some(gemma::gemma_decoder)),
    ("gemma2", Like(gemma::GEMMA2), Verified, Some(gemma::gemma2_decoder)),
    ("gemma3_text", Own(gemma::gemma3), Verified, Some(gemma::gemma3_decoder)),
    ("gla", Own(gla::first_layer), WholeOnly, Some(gla::decoder)),
    ("glm", Like(glm::GLM), Verified, None),
    ("glm4", Like(glm::GLM), Verified, Some(glm::glm4_decoder)),
    ("glm4_moe", Like(glm::GLM4_MOE), Verified, None),
    ("gpt2", Own(gpt2::gpt2), Verified, Some(gpt2::gpt2_decoder)),
    ("gpt_bigcode", Own(gpt2::gpt_bigcode), Verified, None),
    ("gpt_neo", Own(gpt2::gpt_neo), Verified, None),
    ("gpt_neox", Own(gpt_neox::gpt_neox), Verified, Some(gpt_neox::gpt_neox_decoder)),
    ("gpt_oss", Like(llama::GPT_OSS), Verified, None),
    ("gptj", Own(gpt2::gptj), Verified, None),
    ("granite", Like(llama::GRANITE), Verified, Some(llama::granite_decoder)),
    ("granitemoe", Like(llama::GRANITE), Verified, None),
    ("granitemoeshared", Like(llama::GRANITE), Verified, None),
    ("hunyuan_v1_dense", Like(llama::HUNYUAN), Verified, None),
    ("hunyuan_v1_moe", Like(llama::HUNYUAN), Verified, None),
    ("internlm", Like(llama::INTERNLM), Unverified, None),
    ("internlm2", Like(llama::INTERNLM2), Unverified, None),
    ("internlm3", Own(llama::internlm3), Verified, None),
    ("kimi_k2", Own(deepseek::v3), Unverified, None),
    ("llama", Like(LLAMA), Verified, Some(llama::decoder)),
    ("llama4_text", Like(llama::LLAMA4), Verified, None),
    ("minicpm3", Own(deepseek::minicpm3), Verified, None),
    ("ministral", Like(mistral::MINISTRAL), Verified, None),
    ("ministral3", Like(mistral::MINISTRAL3), Verified, None),
    ("mistral", Like(mistral::MISTRAL), Verified, Some(decoders::plain_llama_decoder)),
    ("mixtral", Like(mistral::MIXTRAL), Verified, Some(mistral::mixtral_decoder)),
    ("mpt", Own(alibi::mpt), Verified, None),
    ("nemotron", Like(llama::NEMOTRON), Verified, None),
    ("olmo", Like(olmo::OLMO), Verified, Some(olmo::olmo_decoder)),
    ("olmo2", Like(olmo::OLMO2), Verified, Some(olmo::olmo2_decoder)),
    ("olmo3", Like(olmo::OLMO3), Verified, None),
    ("olmoe", Like(olmo::OLMOE), Verified, None),
    ("opt", Own(gpt2::opt), Verified, Some(gpt2::opt_decoder)),
    ("persimmon", Like(gpt_neox::PERSIMMON), Verified, None),
    ("phi", Like(layer_norms::PHI), Verified, Some(layer_norms::phi_decoder)),
    ("phi3", Like(llama::PHI3), Verified, Some(decoders::fused_gate_decoder)),
    ("qwen", Own(qwen::qwen), Unverified, None),
    ("qwen2", Like(qwen::QWEN2), Verified, Some(decoders::plain_llama_decoder)),
    ("qwen2_moe", Like(qwen::QWEN2_MOE), Verified, None),
    ("qwen3", Like(qwen::QWEN3), Verified, Some(decoders::attention_bias_decoder)),
    ("qwen3_moe", Like(qwen::QWEN3_MOE), Verified, None),
    ("RefinedWeb", Own(gpt_neox::falcon), Unverified, None),
    ("RefinedWebModel", Own(gpt_neox::falcon), Unverified, None),
    ("seed_oss", Like(llama::SEED_OSS), Verified, Some(llama::seed_oss_decoder)),
    ("smollm3", Like(llama::SMOLLM3), Verified, Some(llama::smollm3_decoder)),
    ("stablelm", Like(layer_norms::STABLELM), Verified, Some(layer_norms::stablelm_decoder)),
    ("starcoder2", Like(layer_norms::STARCODER2), Verified, Some(layer_norms::starcoder2_decoder)),
];

/// Multimodal configurations with the default `model_type` of their `text_config`.
const WRAPPERS: [(&str, &str); 3] =
    [("gemma3", "gemma3_text"), ("llama4", "llama4_text"), ("mistral3", "mistral")];

/// Part of a model that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelScope {
    FirstLayer,
    WholeModel,
}

/// Returns the first layer that `config` describes, or `None` with the problem noted.
pub(crate) fn first_layer(config: &Fields<'_>, scope: ModelScope) -> Option<FirstLayerConfig> {
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
        let mut first = first_layer_for_type(text, text_type, scope)?;
        first.tensors.prefixes =
            &["language_model.model.", "model.language_model.", "language_model.", "model.", ""];
        return Some(first);
    }
    first_layer_for_type(config, model_type, scope)
}

/// Returns the other layers and the head that `config` describes, or `None` with the problem noted.
pub(crate) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Option<Decoder> {
    let model_type = first.spec.model_type.as_str();
    let whole = |(name, _, _, decoder): &Family| Some((*name, (*decoder)?));
    let mut families = FAMILIES.iter().filter_map(whole);
    let Some((_, builder)) = families.find(|(name, _)| *name == model_type) else {
        let names: Vec<&str> = FAMILIES.iter().filter_map(whole).map(|(name, _)| name).collect();
        let message = format!(
            "`{model_type}` models are supported for their first layer only, not as whole models"
        );
        let hint = format!("supported whole models: {}", names.join(", "));
        config.note(ModelProblem::settings(message).with_hint(hint));
        return None;
    };
    let nested = config.optional_object("text_config").filter(|_| is_wrapper(config));
    Some(builder(nested.as_ref().unwrap_or(config), first))
}

fn is_wrapper(config: &Fields<'_>) -> bool {
    let written = config.optional_text("model_type");
    WRAPPERS.iter().any(|(name, _)| Some(*name) == written)
}

fn first_layer_for_type(
    config: &Fields<'_>,
    model_type: &str,
    scope: ModelScope,
) -> Option<FirstLayerConfig> {
    let family = FAMILIES.iter().find(|(name, ..)| *name == model_type);
    let has_scope = |support| support != Support::WholeOnly || scope == ModelScope::WholeModel;
    let Some((_, family, support, _)) = family.filter(|(.., support, _)| has_scope(*support))
    else {
        config.note(unknown_type(config, model_type));
        return None;
    };
    for (name, causal) in [("is_causal", true), ("use_bidirectional_attention", false)] {
        if config.flag(name, causal) != causal {
            config.refuse(format!(
                "this model also attends to later tokens (`{name}: {}`): it is not causal",
                !causal
            ));
        }
    }
    let mut first = match family {
        Like(family) => llama_like(config, family),
        Own(family) => family(config),
    };
    if config.is_clean() {
        note_contradictions(config, &first);
    }
    model_type.clone_into(&mut first.spec.model_type);
    first.spec.unverified |= *support == Support::Unverified;
    Some(first)
}

/// Checks that head sizes, projection rows and rotary dimensions agree.
fn note_contradictions(config: &Fields<'_>, first: &FirstLayerConfig) {
    let spec = &first.spec;
    if let Some(rope) = &spec.rope
        && (rope.rotary_dims > spec.head_dim || rope.rotary_dims < 2 || rope.rotary_dims % 2 == 1)
    {
        config.contradict(format!(
            "config.json contradicts itself: {} of the {} dimensions of a head rotate, and they must form pairs",
            rope.rotary_dims, spec.head_dim
        ));
    }
    let own = spec.head_dim - spec.latent.as_ref().map_or(0, |latent| latent.rotary_dims);
    let projections = [
        ("query", &first.tensors.query, spec.query_heads * spec.head_dim),
        ("key", &first.tensors.key, spec.key_heads * own),
    ];
    for (kind, projection, wanted) in projections {
        let rows: u64 = projection.rows.iter().map(|rows| rows.end - rows.start).sum();
        if rows != wanted {
            config.contradict(format!(
                "config.json contradicts itself: {kind} heads need {wanted} rows of `{}`, but it has {rows}",
                projection.weight
            ));
        }
    }
}

/// Returns the `model_type`s that can be scored, sorted.
pub(crate) fn known_model_types() -> Vec<&'static str> {
    let families = FAMILIES.iter().filter(|(.., support, _)| *support != Support::WholeOnly);
    let names = families.map(|(name, ..)| *name);
    let mut names: Vec<&str> = names.chain(WRAPPERS.iter().map(|(name, _)| *name)).collect();
    names.sort_unstable();
    names
}

fn known_types() -> String {
    format!("supported model types: {}", known_model_types().join(", "))
}

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
