//! `config.json` derived from the header of a GGUF file: the entries that the first layer needs. Keys are those of
//! llama.cpp's conversion, values become what the transformers library reads from them.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::formats::Architecture;
use super::model_files::is_part_of;
use super::problem::ModelProblem;
use super::rope::RopeScaling;
use super::shard::WeightShard;
use super::spec::AttentionSpec;

const MAX_FREQUENCIES: u64 = 1 << 12;

/// Returns the architecture that the file states.
pub(crate) fn architecture(shard: &WeightShard) -> Result<&'static Architecture, ModelProblem> {
    let metadata = &shard.metadata;
    let count = metadata.whole("split.count").unwrap_or(1);
    if count > 1 && !is_part_of(&shard.name, count) {
        let part = metadata
            .whole("split.no")
            .map_or(String::new(), |part| format!(" number {}", part + 1));
        let message =
            format!("`{}` is part{part} of a model in {count} files", shard.path.display());
        return Err(ModelProblem::checkpoint(message).with_hint(format!(
            "put all parts in one folder, named `NAME-00001-of-{count:05}.gguf` and so on"
        )));
    }
    if let Some(kind) = metadata.text("general.type").filter(|kind| *kind != "model") {
        let message = format!("`{}` has the `general.type` `{kind}`", shard.path.display());
        return Err(ModelProblem::settings(message)
            .with_hint("set `model` to a GGUF file of a whole model"));
    }
    match metadata.text("general.architecture") {
        Some(name) => {
            let causal = format!("{name}.attention.causal");
            if metadata.is_false_or_zero(&causal) {
                let message = format!(
                    "`{}` states that attention is not causal (`{causal}`)",
                    shard.path.display()
                );
                return Err(ModelProblem::settings(message).with_hint(
                    "set `model` to a decoder: its tokens attend to earlier tokens only",
                ));
            }
            Architecture::named(name)
        }
        None => Err(ModelProblem::checkpoint(format!(
            "`{}` has no `general.architecture`",
            shard.path.display()
        ))
        .with_hint("for a model in several files, name the first one")),
    }
}

/// Derives the content of config.json.
pub(crate) fn config(
    shard: &WeightShard,
    architecture: &Architecture,
) -> Result<Map<String, Value>, ModelProblem> {
    let requires_config = |what: &str| {
        let message = format!("`{}` {what}", shard.path.display());
        ModelProblem::settings(message).with_hint(format!(
            "put the model's config.json next to it, in `{}`",
            shard.path.parent().unwrap_or(Path::new(".")).display()
        ))
    };
    if !architecture.self_contained {
        return Err(requires_config(&format!(
            "has no config.json next to it, and GGUF files of the architecture `{}` do not describe the first layer completely",
            architecture.name
        )));
    }
    let metadata = &shard.metadata;
    let key = |name: &str| format!("{}.{name}", architecture.name);
    refuse_wrong_types(shard, &key)?;
    let mut config = Map::new();
    config.insert("model_type".to_owned(), json!(architecture.model_types[0]));
    for (name, field, _) in NUMBERS {
        if let Some((field, size)) = field.zip(metadata.whole(&key(name))) {
            config.insert(field.to_owned(), json!(size));
        }
    }
    let Some(eps) = metadata.number(&key(EPSILON)) else {
        return Err(requires_config(&format!(
            "does not state the epsilon of its norms (`{}`)",
            key(EPSILON)
        )));
    };
    config.insert("rms_norm_eps".to_owned(), json!(eps));
    // Defaults of llama.cpp, which differ from those of some model types.
    let theta = metadata.number(&key(THETA)).unwrap_or(1e4);
    config.insert("rope_theta".to_owned(), json!(theta));
    let size = |config: &Map<String, Value>, field: &str| {
        config.get(field).and_then(Value::as_u64).filter(|size| *size > 0)
    };
    let heads = size(&config, "num_attention_heads");
    if let (None, Some(heads)) = (size(&config, "num_key_value_heads"), heads) {
        config.insert("num_key_value_heads".to_owned(), json!(heads));
    }
    if let (None, Some(width), Some(heads)) =
        (size(&config, "head_dim"), size(&config, "hidden_size"), heads)
    {
        config.insert("head_dim".to_owned(), json!(width / heads));
    }
    if let Some(embedding) = shard.tensors.get("token_embd.weight") {
        config.insert("vocab_size".to_owned(), json!(embedding.shape[0]));
    }
    let has = |tensor: &str| shard.tensors.contains_key(tensor);
    config.insert("tie_word_embeddings".to_owned(), json!(!has("output.weight")));
    config.insert("attention_bias".to_owned(), json!(has("blk.0.attn_q.bias")));
    let bos = metadata.whole("tokenizer.ggml.bos_token_id");
    if let Some(bos) = bos.filter(|_| metadata.flag("tokenizer.ggml.add_bos_token") != Some(false))
    {
        config.insert("bos_token_id".to_owned(), json!(bos));
    }
    if let Some(window) = metadata.whole(&key("attention.sliding_window")) {
        return Err(requires_config(&format!(
            "has a sliding window of {window} tokens, but does not state which layers slide"
        )));
    }
    if let Some(scaling) = scaling(shard, &key, &requires_config)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    let prefix = key("");
    let own = metadata.names().filter_map(|name| name.strip_prefix(&prefix));
    let is_known = |name: &&str| {
        NUMBERS.iter().any(|(known, ..)| known == name)
            || KNOWN.contains(name)
            || SCALING_NUMBERS.contains(name)
            || name.starts_with(EXPERTS)
            || metadata.is_false_or_zero(&key(name))
            || *name == "attention.causal" && metadata.flag(&key(name)) == Some(true)
    };
    match own.into_iter().find(|name| !is_known(name)) {
        Some(name) => Err(requires_config(&format!(
            "has the entry `{prefix}{name}`, which is supported only with a config.json"
        ))),
        None => Ok(config),
    }
}

/// Refuses entries of another type than that with which they are read: they would count as absent.
fn refuse_wrong_types(
    shard: &WeightShard,
    key: &impl Fn(&str) -> String,
) -> Result<(), ModelProblem> {
    let metadata = &shard.metadata;
    let mut numbers = NUMBERS.iter().map(|(name, ..)| *name).chain(SCALING_NUMBERS).map(key);
    let number = numbers.find(|key| metadata.is_no_number(key));
    let text = Some(key(SCALING_KIND)).filter(|key| metadata.is_no_text(key));
    let wrong = number.map(|key| (key, "a number")).or_else(|| Some((text?, "a text")));
    let Some((key, expected)) = wrong else { return Ok(()) };
    let message = format!("entry `{key}` of `{}` is not {expected}", shard.path.display());
    Err(ModelProblem::checkpoint(message)
        .with_hint("convert the model again with a current converter of llama.cpp"))
}

const EPSILON: &str = "attention.layer_norm_rms_epsilon";
const THETA: &str = "rope.freq_base";
/// List with an entry per row of the embedding.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// Tensor of the factors by which the frequencies of the rotary embedding are divided.
const FREQUENCIES: &str = "rope_freqs.weight";

/// Name of a number, the key of config.json that it becomes, and the number with which a model is scored: `None` if the
/// first layer does not depend on it.
type HeaderNumber = (&'static str, Option<&'static str>, fn(&AttentionSpec) -> Option<f64>);

/// Numbers of an architecture that are read.
const NUMBERS: [HeaderNumber; 11] = [
    ("embedding_length", Some("hidden_size"), |spec| Some(spec.hidden_size as f64)),
    ("block_count", Some("num_hidden_layers"), |spec| Some(spec.layers as f64)),
    ("attention.head_count", Some("num_attention_heads"), |spec| Some(spec.query_heads as f64)),
    ("attention.head_count_kv", Some("num_key_value_heads"), |spec| Some(spec.key_heads as f64)),
    ("attention.key_length", Some("head_dim"), |spec| Some(spec.head_dim as f64)),
    ("context_length", Some("max_position_embeddings"), |_| None),
    ("feed_forward_length", Some("intermediate_size"), |_| None),
    ("rope.dimension_count", None, |spec| Some(spec.rope.as_ref()?.rotary_dims as f64)),
    ("vocab_size", None, |spec| Some(spec.vocabulary_size as f64)),
    (EPSILON, None, |spec| spec.norm.eps()),
    (THETA, None, |spec| Some(spec.rope.as_ref()?.theta)),
];

/// Numbers that a config.json describes as well, which is required to read them; with 0, llama.cpp takes them as absent.
const OTHER_NUMBERS: [HeaderNumber; 4] = [
    ("attention.scale", None, |spec| Some(spec.scale)),
    ("attn_logit_softcapping", None, |spec| Some(spec.softcap.unwrap_or(0.0))),
    ("embedding_scale", None, |spec| Some(spec.embedding.multiplier.unwrap_or(1.0))),
    (SCALING_FACTOR, None, |spec| match &spec.rope.as_ref()?.scaling {
        RopeScaling::Default => Some(1.0),
        RopeScaling::Linear { factor }
        | RopeScaling::Dynamic { factor, .. }
        | RopeScaling::Yarn { factor, .. } => Some(*factor),
        _ => None,
    }),
];

/// Other entries of an architecture that are read, or that do not affect what is read.
const KNOWN: [&str; 7] = [
    "attention.value_length",
    SCALING_KIND,
    "rope.scaling.finetuned",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "tensor_data_layout",
    "interleave_moe_layer_step",
];
/// Numbers of the rope scaling.
const SCALING_NUMBERS: [&str; 5] = [
    SCALING_FACTOR,
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
];
const SCALING_FACTOR: &str = "rope.scaling.factor";
const SCALING_KIND: &str = "rope.scaling.type";
/// Beginning of the names of entries about experts, on which the first layer does not depend.
const EXPERTS: &str = "expert_";

/// A number in the header of a file that also describes a first layer.
#[derive(Clone, Debug)]
pub(crate) struct StatedNumber {
    key: String,
    value: f64,
    /// Returns the number with which a model is scored.
    scored: fn(&AttentionSpec) -> Option<f64>,
}

/// Returns the numbers of a file that also describe a first layer.
pub(crate) fn stated(shard: &WeightShard, architecture: &Architecture) -> Vec<StatedNumber> {
    let metadata = &shard.metadata;
    let tokens = metadata.list_length(TOKENS).map(|tokens| StatedNumber {
        key: TOKENS.to_owned(),
        value: tokens as f64,
        scored: |spec| Some(spec.vocabulary_size as f64),
    });
    let stated = NUMBERS.into_iter().filter_map(|(name, _, scored)| {
        let key = format!("{}.{name}", architecture.name);
        let value = metadata.number(&key).or_else(|| Some(metadata.whole(&key)? as f64))?;
        // For architectures with several bases, layer 0's is stored elsewhere.
        (name != THETA || architecture.self_contained).then_some(StatedNumber {
            key,
            value,
            scored,
        })
    });
    let other = OTHER_NUMBERS.into_iter().filter_map(|(name, _, scored)| {
        let key = format!("{}.{name}", architecture.name);
        let is_read = name != SCALING_FACTOR
            || architecture.self_contained
                && metadata.text(&format!("{}.{SCALING_KIND}", architecture.name)) != Some("none");
        let value = metadata.number(&key).filter(|value| is_read && *value != 0.0)?;
        Some(StatedNumber { key, value, scored })
    });
    let frequencies = shard.tensors.get(FREQUENCIES).filter(|_| architecture.self_contained);
    let frequencies = frequencies.map(|_| StatedNumber {
        key: FREQUENCIES.to_owned(),
        value: 1.0,
        scored: |spec| (spec.rope.as_ref()?.scaling == RopeScaling::Default).then_some(0.0),
    });
    stated.chain(tokens).chain(other).chain(frequencies).collect()
}

impl StatedNumber {
    /// Returns the problem if the model is to be scored with another number.
    pub(crate) fn contradiction(
        &self,
        spec: &AttentionSpec,
        rope_theta: Option<f64>,
    ) -> Option<ModelProblem> {
        if rope_theta.is_some() && self.key.ends_with(THETA) {
            return None;
        }
        let scored = (self.scored)(spec)?;
        if (scored - self.value).abs() <= 1e-6 * scored.abs() {
            return None;
        }
        let Self { key, value, .. } = self;
        let stated = if key == TOKENS {
            format!("{value} as the length of `{key}`")
        } else {
            format!("`{key}` {value}")
        };
        let message = if key == FREQUENCIES {
            format!(
                "the GGUF file has the tensor `{key}`, but config.json does not scale the rotary embedding"
            )
        } else {
            format!(
                "the GGUF file states {stated}, but the `{}` model would be scored with {scored}",
                spec.model_type
            )
        };
        Some(
            ModelProblem::checkpoint(message).with_hint(
                "use a config.json that matches the file, or the checkpoint in safetensors",
            ),
        )
    }
}

/// Returns the rope scaling: frequency factors that the file stores as a tensor, or linear or `YaRN` from its metadata.
fn scaling(
    shard: &WeightShard,
    key: &impl Fn(&str) -> String,
    requires_config: &impl Fn(&str) -> ModelProblem,
) -> Result<Option<Value>, ModelProblem> {
    let metadata = &shard.metadata;
    let number = |name: &str| metadata.number(&key(&format!("rope.scaling.{name}")));
    // Defaults of llama.cpp, which also takes a factor of 0 for none.
    let kind = metadata.text(&key(SCALING_KIND)).unwrap_or("linear");
    let legacy = metadata.number(&key("rope.scale_linear"));
    let unusual = ["attn_factor", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"];
    let unusual = unusual.into_iter().find(|name| number(name).is_some());
    if let Some(name) = unusual {
        return Err(requires_config(&format!(
            "has `rope.scaling.{name}`, which is supported only with a config.json"
        )));
    }
    let factors = frequency_factors(shard)?;
    let factor = number("factor").or(legacy).filter(|factor| *factor != 0.0);
    match (kind, factor, factors) {
        ("none", _, None) | ("linear", None, None) => Ok(None),
        ("linear", Some(factor), None) => {
            Ok(Some(json!({"rope_type": "linear", "factor": factor})))
        }
        ("yarn", Some(factor), None) => {
            let original = metadata.whole(&key("rope.scaling.original_context_length"));
            let mut yarn = json!({"rope_type": "yarn", "factor": factor});
            if let Some(original) = original {
                yarn["original_max_position_embeddings"] = json!(original);
            }
            for (name, field) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")]
            {
                if let Some(value) = number(name) {
                    yarn[field] = json!(value);
                }
            }
            Ok(Some(yarn))
        }
        // Llama 3.1 and later: each frequency is divided by its own factor.
        ("none", _, Some(factors)) | ("linear", None | Some(1.0), Some(factors)) => {
            Ok(Some(json!({
                "rope_type": "longrope",
                "short_factor": factors,
                "long_factor": factors,
                "factor": 1.0,
                "attention_factor": 1.0,
            })))
        }
        _ => Err(requires_config(&format!(
            "has the rope scaling `{kind}`, which is supported only with a config.json"
        ))),
    }
}

/// Reads `rope_freqs.weight`, `[head_dim / 2]`.
fn frequency_factors(shard: &WeightShard) -> Result<Option<Vec<f32>>, ModelProblem> {
    let Some(entry) = shard.tensors.get(FREQUENCIES) else { return Ok(None) };
    let float = entry.dtype == super::entry::StoredType::Numbers(safetensors::Dtype::F32);
    if !float || entry.shape.len() != 1 || entry.shape[0] > MAX_FREQUENCIES {
        return Err(ModelProblem::checkpoint(format!(
            "`rope_freqs.weight` in `{}` has type {} and shape {:?}; expected f32 and one dimension",
            shard.path.display(),
            entry.dtype,
            entry.shape
        )));
    }
    let mut bytes = vec![0; entry.byte_length() as usize];
    shard.reader()?.read(entry, 0, &mut bytes)?;
    Ok(Some(super::formats::floats(safetensors::Dtype::F32, &bytes)))
}
