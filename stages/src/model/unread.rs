//! Refuses checkpoints with unread tensors, which may describe another computation, unless these are known to be used
//! later or to hold no model parameters.

use std::collections::BTreeSet;

use super::config::ModelConfig;
use super::problem::{ModelProblem, listed};
use super::stored::StoredTensors;

/// Part of a model that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadScope {
    /// Queries and keys of layer 0.
    QueriesAndKeys,
    /// `count` layers, and the head (`above`) if these are all.
    Layers { count: u64, above: bool },
}

/// Name parts of a layer's modules outside attention, which are computed after its queries and keys.
const AFTER_ATTENTION: [&str; 18] = [
    "mlp",
    "ffn",
    "feed",
    "moe",
    "expert",
    "post",
    "fc1",
    "fc2",
    "ln_2",
    "ln_mlp",
    "norm_2",
    "ln2",
    "final_layer_norm",
    "shared",
    "residual",
    "gate",
    "router",
    "layer_output_norm",
];
/// Modules that follow attention in one model type only: `opt-350m` normalises there, other OPT models before.
const AFTER_ATTENTION_OF: [(&str, &str); 1] = [("opt", "self_attn_layer_norm")];
/// Name prefixes, inside attention, of tensors that are used after queries and keys.
const AFTER_KEYS: [&str; 18] = [
    "v_proj",
    "o_proj",
    "out_proj",
    "dense",
    "c_proj",
    "wo",
    "wv",
    "proj",
    "v_a_proj",
    "o_a_proj",
    "v_norm",
    "g_proj",
    "gate_proj",
    "inner_attn_ln",
    "attn_sub_norm",
    "sub_norm",
    "out",
    "value",
];
/// GGUF names, after `blk.0.`, of tensors that are used after queries and keys.
const GGUF_AFTER_KEYS: [&str; 10] = [
    "attn_v.",
    "attn_v_",
    "attn_output",
    "attn_sub_norm",
    "attn_post_norm",
    "post_attention_norm",
    "post_ffw_norm",
    "layer_output_norm",
    "ffn_",
    "exp_probs_b",
];
/// Tensors of a whole GGUF file that are used elsewhere, or follow the layers.
const GGUF_ELSEWHERE: [&str; 3] = ["rope_freqs.", "rope_factors_", "cls."];
/// Name suffixes of tensors without model parameters: buffers, and companions of servers and packed formats.
const BUFFERS: [&str; 17] = [
    "position_ids",
    "inv_freq",
    "masked_bias",
    "cos_cached",
    "sin_cached",
    "q_scale",
    "k_scale",
    "v_scale",
    "prob_scale",
    "kv_scale",
    "input_scale",
    "output_scale",
    "input_zero_point",
    "output_zero_point",
    "input_global_scale",
    "activation_scale",
    "weight_format",
];

pub(crate) fn check(
    config: &ModelConfig,
    tensors: &StoredTensors,
    reads: ReadScope,
) -> Option<ModelProblem> {
    let used: BTreeSet<&str> = tensors.found().map(|stored| stored.name.as_str()).collect();
    let stems: BTreeSet<&str> = used.iter().filter_map(|name| stem(name)).collect();
    let all = tensors.files_by_tensor.keys().map(String::as_str);
    let unused = all.filter(|name| !used.contains(name));
    let unread: Vec<&str> = if let Some((_, architecture)) = config.gguf() {
        let layers = config.spec().layers;
        if let Some(difference) = other_gguf_layers(tensors, layers) {
            return Some(ModelProblem::checkpoint(format!(
                "the GGUF file states `{}.block_count` {layers}, but {difference}",
                architecture.name
            )));
        }
        unused.filter(|name| changes_gguf(name, reads)).collect()
    } else {
        let names = TensorNames::new(config, &used);
        unused.filter(|name| names.changes(name, &stems, reads)).collect()
    };
    if unread.is_empty() {
        return None;
    }
    let message = format!(
        "the checkpoint has {}, which a `{}` model with this config.json does not use: scores would ignore it",
        listed(&unread, 6),
        config.spec().model_type
    );
    Some(ModelProblem::checkpoint(message).with_hint(
        "check that `model_type` in config.json matches the weights; use the config.json that came with them",
    ))
}

fn stem(name: &str) -> Option<&str> {
    Some(name.rsplit_once('.')?.0)
}

/// Splits the name of a layer's tensor in a GGUF file into the layer's number and the rest.
fn gguf_layer(name: &str) -> Option<(u64, &str)> {
    let (layer, name) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, name))
}

/// Describes the first missing layer, or the last superfluous one.
fn other_gguf_layers(tensors: &StoredTensors, layers: u64) -> Option<String> {
    let names = tensors.files_by_tensor.keys();
    let present: BTreeSet<u64> = names.filter_map(|name| Some(gguf_layer(name)?.0)).collect();
    if let Some(missing) = (0..layers).find(|layer| !present.contains(layer)) {
        return Some(format!("has no tensors of layer {missing} (counted from 0)"));
    }
    let last = present.last().filter(|last| **last >= layers)?;
    Some(format!("has tensors of layer {last} (counted from 0)"))
}

/// Whether a tensor of a GGUF file changes the result.
fn changes_gguf(name: &str, reads: ReadScope) -> bool {
    let begins = |starts: &[&str], name: &str| starts.iter().any(|start| name.starts_with(start));
    if begins(&GGUF_ELSEWHERE, name) {
        return false;
    }
    match (gguf_layer(name), reads) {
        (Some((0, name)), ReadScope::QueriesAndKeys) => !begins(&GGUF_AFTER_KEYS, name),
        (Some(_), ReadScope::QueriesAndKeys) => false,
        (Some((layer, _)), ReadScope::Layers { count, .. }) => layer < count,
        (None, ReadScope::Layers { above: true, .. }) => true,
        (None, _) => !begins(&["output.", "output_norm."], name),
    }
}

struct TensorNames<'a> {
    /// Whether all tensors must be read: a checkpoint with others computes something else.
    closed: bool,
    model_type: &'a str,
    prefix: &'a str,
    /// Prefix of a layer's names, before its number.
    layers: &'a str,
    /// Module with queries and keys, after the number of the layer.
    attention: &'a str,
    /// Queries and keys, without `.weight`. A bias that they do not expect is reported elsewhere.
    projections: [&'a str; 2],
    /// Layers, and those that predict further tokens during training.
    all_layers: u64,
}

impl<'a> TensorNames<'a> {
    fn new(config: &'a ModelConfig, used: &BTreeSet<&'a str>) -> Self {
        let tensors = &config.tensors;
        let query = tensors.query.weight.as_str();
        let (layers, rest) = query.split_once("0.").unwrap_or(("", query));
        let module = stem(rest).and_then(stem).unwrap_or_default();
        let projections = [&tensors.query, &tensors.key].map(|projection| {
            projection.weight.strip_suffix(".weight").unwrap_or(&projection.weight)
        });
        let prefix = used.iter().find_map(|name| stem(name)?.strip_suffix(projections[0]));
        Self {
            model_type: &config.spec().model_type,
            prefix: prefix.unwrap_or_default(),
            closed: config.spec().gated_linear.is_some(),
            layers,
            attention: module,
            projections,
            all_layers: config.spec().layers + config.prediction_layers(),
        }
    }

    /// Whether a tensor changes the result.
    fn changes(&self, name: &str, stems: &BTreeSet<&str>, reads: ReadScope) -> bool {
        if self.closed {
            // A model whose head is the embedding may also have a head.
            let all = matches!(reads, ReadScope::Layers { above: true, .. });
            return all && name != "lm_head.weight";
        }
        let is_whole = matches!(reads, ReadScope::Layers { above: true, .. });
        let Some(own) = name.strip_prefix(self.prefix).filter(|_| name != "lm_head.weight") else {
            return is_whole && name.starts_with("lm_head.") && name != "lm_head.weight";
        };
        if BUFFERS.iter().any(|ending| {
            own.strip_suffix(ending)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with(['.', '_']))
        }) || own.contains(".weight.")
        {
            return false;
        }
        let of_layer = own.strip_prefix(self.layers).filter(|_| !self.layers.is_empty());
        let of_layer = of_layer.and_then(|rest| rest.split_once('.'));
        let of_layer = of_layer.and_then(|(layer, rest)| Some((layer.parse::<u64>().ok()?, rest)));
        let Some((layer, rest)) = of_layer else {
            let is_companion = stem(name).is_some_and(|stem| stems.contains(stem));
            let module = own.split('.').next().unwrap_or_default();
            let embeds = ["embed", "wpe", "position"].iter().any(|part| module.contains(part));
            return is_whole || is_companion || embeds && !module.starts_with("embed_out");
        };
        let is_read = match reads {
            ReadScope::QueriesAndKeys => layer == 0,
            ReadScope::Layers { count, above } => {
                layer < count || above && layer >= self.all_layers
            }
        };
        // Masks of causal attention, and biases that config.json does not request.
        let in_attention =
            rest.strip_prefix(self.attention).and_then(|rest| rest.strip_prefix('.'));
        let is_known = in_attention == Some("bias")
            || reads == ReadScope::QueriesAndKeys
                && rest.rsplit_once('.').is_some_and(|(_, role)| role == "bias")
                && self.projections.iter().any(|projection| {
                    let own = projection.strip_prefix(self.layers);
                    own.and_then(|own| own.strip_prefix("0.")) == stem(rest)
                });
        if !is_read || is_known {
            return false;
        }
        match (reads, in_attention) {
            (ReadScope::Layers { .. }, _) => true,
            (_, Some(rest)) => !AFTER_KEYS.iter().any(|start| rest.starts_with(start)),
            (_, None) => {
                let module = rest.split('.').next().unwrap_or_default();
                !AFTER_ATTENTION.iter().any(|part| module.contains(part))
                    && !AFTER_ATTENTION_OF.contains(&(self.model_type, module))
            }
        }
    }
}
