//! Model types without attention in their first layer, which therefore cannot be scored.

use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;

/// First layer of each of these model types.
const TYPES: [(&str, &str); 25] = [
    ("bailing_hybrid", "linear attention"),
    ("bamba", "a state-space (Mamba) layer"),
    ("delta_net", "linear attention (DeltaNet)"),
    ("falcon_mamba", "a state-space (Mamba) layer"),
    ("gated_deltanet", "linear attention (gated DeltaNet)"),
    ("gla", "gated linear attention"),
    ("granitemoehybrid", "a state-space (Mamba) layer"),
    ("hgrn2", "a linear recurrence"),
    ("jamba", "a state-space (Mamba) layer"),
    ("kimi_linear", "linear attention (Kimi delta attention)"),
    ("lfm2", "a convolution"),
    ("lfm2_moe", "a convolution"),
    ("mamba", "a state-space (Mamba) layer"),
    ("mamba2", "a state-space (Mamba) layer"),
    ("minimax", "linear attention (lightning attention)"),
    ("minimax_m1", "linear attention (lightning attention)"),
    ("minimax_text_01", "linear attention (lightning attention)"),
    ("nemotron_h", "a state-space (Mamba) layer"),
    ("olmo_hybrid", "linear attention (gated DeltaNet)"),
    ("qwen3_5_text", "linear attention (gated DeltaNet)"),
    ("qwen3_next", "linear attention (gated DeltaNet)"),
    ("recurrent_gemma", "a linear recurrence"),
    ("retnet", "linear attention (retention)"),
    ("rwkv", "a linear recurrence"),
    ("zamba2", "a state-space (Mamba) layer"),
];

/// Returns the reason why a model of this type cannot be scored; `None` if its first layer has attention.
pub(super) fn problem(config: &Fields<'_>, model_type: &str) -> Option<ModelProblem> {
    let (_, layer) = TYPES.iter().find(|(name, _)| *name == model_type)?;
    let first = first_attention_layer(config, model_type);
    if first == Some(0) {
        return None;
    }
    let problem = ModelProblem::settings(format!(
        "the first layer of a `{model_type}` model is {layer}, not softmax attention: it has no attention to score"
    ));
    Some(match first {
        Some(index) => problem.with_hint(format!(
            "its first layer with attention is layer {index}, and only layer 0 can be scored: choose another model"
        )),
        None if model_type == "gla" => problem.with_hint(
            "its weights are signed and not normalised, so the share of attention to far tokens is not defined: measure losses \
             with `language-model`, or choose a model whose first layer is softmax attention",
        ),
        None => problem.with_hint("choose a model whose first layer is softmax attention"),
    })
}

/// Returns the first layer with softmax attention according to config.json.
fn first_attention_layer(config: &Fields<'_>, model_type: &str) -> Option<u64> {
    let index = |found: Option<usize>| found.map(|index| index as u64);
    for name in ["layer_types", "layers_block_type", "block_types", "_block_types"] {
        let Some(types) = config.optional_texts(name) else { continue };
        let attends = |kind: &&str| {
            ["full_attention", "sliding_attention", "attention", "hybrid"].contains(kind)
        };
        return index(types.iter().position(attends));
    }
    if let Some(pattern) = config.optional_text("hybrid_override_pattern") {
        return index(pattern.chars().position(|layer| layer == '*'));
    }
    if let Some(types) = config.optional_numbers("attn_type_list") {
        return index(types.iter().position(|kind| *kind > 0.0));
    }
    for name in ["attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"] {
        if let Some(layers) = config.optional_numbers(name) {
            return layers.into_iter().reduce(f64::min).map(|layer| layer as u64);
        }
    }
    let interval = |name, default| config.optional_size(name, 1 << 20).unwrap_or(default);
    match model_type {
        "jamba" => Some(config.optional_count("attn_layer_offset").unwrap_or(4)),
        "qwen3_next" | "qwen3_5_text" => Some(interval("full_attention_interval", 4) - 1),
        "recurrent_gemma" => Some(2),
        "kimi_linear" => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::*;

    fn first(model_type: &str, config: &Value) -> Option<u64> {
        let problems = RefCell::new(Vec::new());
        let fields = Fields::new(config.as_object().unwrap(), "config.json", &problems);
        first_attention_layer(&fields, model_type)
    }

    #[test]
    fn the_first_layer_with_attention_is_found_in_every_notation() {
        let types = json!({"layer_types": ["conv", "conv", "full_attention"]});
        assert_eq!(first("lfm2", &types), Some(2));
        let linear = json!({"layer_types": ["linear_attention", "full_attention"]});
        assert_eq!(first("qwen3_next", &linear), Some(1));
        assert_eq!(first("qwen3_next", &json!({})), Some(3));
        assert_eq!(first("jamba", &json!({"attn_layer_offset": 4})), Some(4));
        assert_eq!(first("nemotron_h", &json!({"hybrid_override_pattern": "M-M*-"})), Some(3));
        assert_eq!(first("minimax_m1", &json!({"attn_type_list": [0, 0, 0, 1]})), Some(3));
        assert_eq!(first("bamba", &json!({"attn_layer_indices": [27, 9, 18]})), Some(9));
        assert_eq!(first("mamba", &json!({})), None);
    }

    #[test]
    fn the_problem_names_the_first_layer_with_attention() {
        let problems = RefCell::new(Vec::new());
        let config = json!({"layer_types": ["linear_attention", "full_attention"]});
        let fields = Fields::new(config.as_object().unwrap(), "config.json", &problems);
        let hint = problem(&fields, "qwen3_next").unwrap().hint.unwrap();
        assert!(hint.starts_with("its first layer with attention is layer 1"), "{hint}");
        let config = json!({"layer_types": ["full_attention", "linear_attention"]});
        let fields = Fields::new(config.as_object().unwrap(), "config.json", &problems);
        assert!(problem(&fields, "minimax").is_none());
        assert!(problem(&fields, "llama").is_none());
    }
}
