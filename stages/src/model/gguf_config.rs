//! `config.json` derived from the header of a GGUF file: the entries that the first layer needs. Keys are those of
//! llama.cpp's conversion, values become what the transformers library reads from them.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::entry::{StoredType, TensorEntry};
use super::formats::Architecture;
use super::model_files::is_part_of;
use super::problem::ModelProblem;
use super::rope::{RopeScaling, RopeSpec};
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

/// Derives the content of config.json. `parts`: all parts of the file; the first has the entries.
pub(crate) fn config(
    parts: &[WeightShard],
    architecture: &Architecture,
) -> Result<Map<String, Value>, ModelProblem> {
    let shard = &parts[0];
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
    if let Some((_, embedding)) = tensor(parts, "token_embd.weight") {
        config.insert("vocab_size".to_owned(), json!(embedding.shape[0]));
    }
    let has = |name: &str| tensor(parts, name).is_some();
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
    if let Some(scaling) = scaling(parts, &key, &requires_config)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    let prefix = key("");
    match unread(shard, &prefix).next() {
        Some(name) => Err(requires_config(&format!(
            "has the entry `{prefix}{name}`, which is supported only with a config.json"
        ))),
        None => Ok(config),
    }
}

/// Returns the entries of the architecture, without its name, that are not read and may affect what is read.
fn unread<'s>(shard: &'s WeightShard, prefix: &'s str) -> impl Iterator<Item = &'s str> {
    let metadata = &shard.metadata;
    let own = metadata.names().filter_map(move |name| Some((name, name.strip_prefix(prefix)?)));
    own.filter(move |(name, own)| {
        let is_known = NUMBERS.iter().any(|(known, ..)| known == own)
            || KNOWN.contains(own)
            || SCALING_NUMBERS.contains(own)
            || own.starts_with(EXPERTS)
            || metadata.is_false_or_zero(name)
            || *own == "attention.causal" && metadata.flag(name) == Some(true);
        !is_known
    })
    .map(|(_, own)| own)
}

/// Returns a warning for each entry of the architecture that neither longsift nor config.json describes, as far as known.
pub(crate) fn warnings(shard: &WeightShard, architecture: &Architecture) -> Vec<String> {
    let prefix = format!("{}.", architecture.name);
    let is_described = |own: &&str| {
        OTHER_NUMBERS.iter().any(|(known, ..)| known == own)
            || DESCRIBED.contains(own)
            || DESCRIBED_PARTS.iter().any(|part| own.starts_with(part))
    };
    let unknown = unread(shard, &prefix).filter(|own| !is_described(own));
    let path = shard.path.display();
    let warning = |own| {
        format!(
            "entry `{prefix}{own}` of `{path}` is not known and ignored; config.json must describe what it changes"
        )
    };
    unknown.map(warning).collect()
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
const OTHER_NUMBERS: [HeaderNumber; 11] = [
    ("attention.layer_norm_epsilon", None, |spec| spec.norm.eps()),
    ("attention.clamp_kqv", None, |spec| Some(spec.clip.unwrap_or(0.0))),
    ("attention.sliding_window", None, |spec| Some(spec.window? as f64)),
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
    (ORIGINAL_LENGTH, None, |spec| match &spec.rope.as_ref()?.scaling {
        RopeScaling::Yarn { original_positions, .. }
        | RopeScaling::Llama3 { original_positions, .. } => Some(*original_positions as f64),
        _ => None,
    }),
    (BETA_FAST, None, |spec| match &spec.rope.as_ref()?.scaling {
        RopeScaling::Yarn { beta_fast, .. } => Some(*beta_fast),
        _ => None,
    }),
    (BETA_SLOW, None, |spec| match &spec.rope.as_ref()?.scaling {
        RopeScaling::Yarn { beta_slow, .. } => Some(*beta_slow),
        _ => None,
    }),
    // llama.cpp multiplies it by the usual factor of `YaRN`.
    ("rope.scaling.attn_factor", None, |spec| match &spec.rope.as_ref()?.scaling {
        RopeScaling::Yarn { factor, attention_factor, .. } => {
            Some(attention_factor / (0.1 * libm::log(*factor) + 1.0))
        }
        RopeScaling::Default | RopeScaling::Linear { .. } => Some(1.0),
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
const SCALING_NUMBERS: [&str; 5] =
    [SCALING_FACTOR, ORIGINAL_LENGTH, BETA_FAST, BETA_SLOW, LEGACY_FACTOR];
const SCALING: &str = "rope.scaling.";
const SCALING_FACTOR: &str = "rope.scaling.factor";
/// Name of the factor in older files.
const LEGACY_FACTOR: &str = "rope.scale_linear";
const ORIGINAL_LENGTH: &str = "rope.scaling.original_context_length";
const BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
const BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";
const SCALING_KIND: &str = "rope.scaling.type";
/// Entries of llama.cpp that config.json describes as well, or that do not affect layer 0.
const DESCRIBED: [&str; 59] = [
    "attention.causal",
    "attention.compress_ratios",
    "attention.compress_rope_freq_base",
    "attention.decay_lora_rank",
    "attention.gate_lora_rank",
    "attention.group_norm_epsilon",
    "attention.group_norm_groups",
    "attention.iclr_lora_rank",
    "attention.key_length_mla",
    "attention.key_length_swa",
    "attention.kv_lora_rank",
    "attention.max_alibi_bias",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.output_scale",
    "attention.q_lora_rank",
    "attention.relative_buckets_count",
    "attention.shared_kv_layers",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length_mla",
    "attention.value_length_swa",
    "attention.value_residual_mix_lora_rank",
    "attention.value_scale",
    "activation_sparsity_scale",
    "decoder_block_count",
    "decoder_start_token_id",
    "embedding_length_out",
    "embedding_length_per_layer_input",
    "features_length",
    "final_logit_softcapping",
    "full_attention_interval",
    "logit_scale",
    "moe_every_n_layers",
    "moe_latent_size",
    "n_deepstack_layers",
    "pooling_type",
    "rescale_every_n_layers",
    "residual_scale",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base_swa",
    "rope.scaling.alpha",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "router_logit_softcapping",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "swin_norm",
    "time_decay_extra_dim",
    "time_mix_extra_dim",
    "token_shift_count",
    "use_parallel_residual",
    "dense_feat_in_size",
    "dense_feat_out_size",
    "input_zero_token",
    "is_moe",
];
/// Beginnings of the names of entries about parts that follow the first layer's queries and keys, or replace its attention.
const DESCRIBED_PARTS: [&str; 8] = [
    "altup.",
    "attention.indexer.",
    "classifier.",
    "convnext.",
    "hyper_connection.",
    "posnet.",
    "shortconv.",
    "ssm.",
];
/// Beginning of the names of entries about experts, on which the first layer does not depend.
const EXPERTS: &str = "expert_";

/// Numbers and rope scaling of a file that also describe a first layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stated {
    numbers: Vec<StatedNumber>,
    /// Scaling of the rotary embedding, for architectures that describe it completely.
    scaling: Option<StatedScaling>,
}

#[derive(Clone, Debug)]
struct StatedScaling {
    kind: &'static str,
    /// Divisors of the frequencies, `[rotary_dims / 2]`, if `kind` is [`BY_FREQUENCY`].
    factors: Vec<f32>,
}

/// Kind of a scaling by a factor for each frequency.
const BY_FREQUENCY: &str = "by frequency";

#[derive(Clone, Debug)]
struct StatedNumber {
    key: String,
    value: f64,
    /// Returns the number with which a model is scored.
    scored: fn(&AttentionSpec) -> Option<f64>,
}

/// Reads the numbers and the rope scaling of a file, given by its parts, that also describe a first layer.
pub(crate) fn stated(
    parts: &[WeightShard],
    architecture: &Architecture,
) -> Result<Stated, ModelProblem> {
    let metadata = &parts[0].metadata;
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
        let is_read = !name.starts_with(SCALING)
            || architecture.self_contained
                && metadata.text(&format!("{}.{SCALING_KIND}", architecture.name)) != Some("none");
        let value = metadata.number(&key).filter(|value| is_read && *value != 0.0)?;
        Some(StatedNumber { key, value, scored })
    });
    let numbers = stated.chain(tokens).chain(other).collect();
    let scaling = architecture.self_contained.then(|| stated_scaling(parts, architecture));
    Ok(Stated { numbers, scaling: scaling.transpose()?.flatten() })
}

/// Returns the scaling of a file; `None` if it states none or an unknown one.
fn stated_scaling(
    parts: &[WeightShard],
    architecture: &Architecture,
) -> Result<Option<StatedScaling>, ModelProblem> {
    let shard = &parts[0];
    let key = |name: &str| format!("{}.{name}", architecture.name);
    if let Some(factors) = frequency_factors(parts)? {
        return Ok(Some(StatedScaling { kind: BY_FREQUENCY, factors }));
    }
    let factor = scaling_factor(shard, &key);
    let is_scaled = factor.is_some_and(|factor| (factor - 1.0).abs() > 1e-6);
    let kind = match shard.metadata.text(&key(SCALING_KIND)) {
        None if factor.is_none() => return Ok(None),
        None | Some("linear") if is_scaled => "linear",
        None | Some("none" | "linear") => "none",
        Some("yarn") => "yarn",
        Some("longrope") => BY_FREQUENCY,
        Some(_) => return Ok(None),
    };
    Ok(Some(StatedScaling { kind, factors: Vec::new() }))
}

impl Stated {
    /// Returns the problems if the model is to be scored in another way.
    pub(crate) fn contradictions(
        &self,
        spec: &AttentionSpec,
        rope_theta: Option<f64>,
    ) -> impl Iterator<Item = ModelProblem> {
        let numbers =
            self.numbers.iter().filter_map(move |number| number.contradiction(spec, rope_theta));
        let scaling = self.scaling.as_ref().and_then(|scaling| scaling.contradiction(spec));
        numbers.chain(scaling)
    }
}

impl StatedScaling {
    fn contradiction(&self, spec: &AttentionSpec) -> Option<ModelProblem> {
        let rope = spec.rope.as_ref()?;
        let scored = match rope.scaling {
            RopeScaling::Default => "none",
            RopeScaling::Linear { factor } if (factor - 1.0).abs() <= 1e-6 => "none",
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Yarn { .. } => "yarn",
            RopeScaling::LongRope { .. } | RopeScaling::Llama3 { .. } => BY_FREQUENCY,
            RopeScaling::Dynamic { .. } | RopeScaling::Stepped { .. } => return None,
        };
        let same_factors = || {
            let plain = RopeSpec { scaling: RopeScaling::Default, ..rope.clone() };
            let (plain, scaled) = (plain.inverse_frequencies(1), rope.inverse_frequencies(1));
            let scored = plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled);
            let mut both = self.factors.iter().zip(scored);
            self.factors.is_empty() || both.all(|(own, scored)| (own - scored).abs() <= 1e-3 * own)
        };
        let Self { kind, .. } = self;
        let message = if *kind != scored {
            format!(
                "the GGUF file scales the rotary embedding in the way `{kind}`, but the `{}` model would be scored with `{scored}`",
                spec.model_type
            )
        } else if same_factors() {
            return None;
        } else {
            format!("`{FREQUENCIES}` of the GGUF file has other factors than config.json")
        };
        Some(other_config(message))
    }
}

fn other_config(message: String) -> ModelProblem {
    ModelProblem::checkpoint(message)
        .with_hint("use a config.json that matches the file, or the checkpoint in safetensors")
}

impl StatedNumber {
    /// Returns the problem if the model is to be scored with another number.
    fn contradiction(&self, spec: &AttentionSpec, rope_theta: Option<f64>) -> Option<ModelProblem> {
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
        Some(other_config(format!(
            "the GGUF file states {stated}, but the `{}` model would be scored with {scored}",
            spec.model_type
        )))
    }
}

/// Returns the rope scaling: frequency factors that the file stores as a tensor, or linear or `YaRN` from its metadata.
fn scaling(
    parts: &[WeightShard],
    key: &impl Fn(&str) -> String,
    requires_config: &impl Fn(&str) -> ModelProblem,
) -> Result<Option<Value>, ModelProblem> {
    let metadata = &parts[0].metadata;
    let number = |name: &str| metadata.number(&key(&format!("rope.scaling.{name}")));
    // Default of llama.cpp.
    let kind = metadata.text(&key(SCALING_KIND)).unwrap_or("linear");
    let unusual = ["attn_factor", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"];
    let unusual = unusual.into_iter().find(|name| number(name).is_some());
    if let Some(name) = unusual {
        return Err(requires_config(&format!(
            "has `rope.scaling.{name}`, which is supported only with a config.json"
        )));
    }
    let factors = frequency_factors(parts)?;
    match (kind, scaling_factor(&parts[0], key), factors) {
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

/// Returns the factor of the rope scaling. Like llama.cpp, takes 0 for none.
fn scaling_factor(shard: &WeightShard, key: &impl Fn(&str) -> String) -> Option<f64> {
    let number = |name: &str| shard.metadata.number(&key(name));
    let factor = number(SCALING_FACTOR).or_else(|| number(LEGACY_FACTOR));
    factor.filter(|factor| *factor != 0.0)
}

/// Returns a tensor and the part that stores it.
fn tensor<'p>(parts: &'p [WeightShard], name: &str) -> Option<(&'p WeightShard, &'p TensorEntry)> {
    parts.iter().find_map(|part| Some((part, part.tensors.get(name)?)))
}

/// Reads `rope_freqs.weight`, `[head_dim / 2]`.
fn frequency_factors(parts: &[WeightShard]) -> Result<Option<Vec<f32>>, ModelProblem> {
    let Some((shard, entry)) = tensor(parts, FREQUENCIES) else { return Ok(None) };
    let float = entry.dtype == StoredType::Numbers(safetensors::Dtype::F32);
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
