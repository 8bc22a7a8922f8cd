//! Architectures of GGUF files, and llama.cpp's changes to their tensors.

use crate::model::problem::ModelProblem;

/// A supported `general.architecture`.
#[derive(Debug, PartialEq)]
pub(crate) struct Architecture {
    pub(crate) name: &'static str,
    /// Model types stored under this architecture, the usual one first.
    pub(crate) model_types: &'static [&'static str],
    /// Whether the file alone describes the first layer completely.
    pub(crate) self_contained: bool,
    /// Whether rotated pairs of queries and keys are adjacent.
    pub(super) adjacent_pairs: bool,
    /// Whether 1 is added to the weights of norms.
    pub(super) norms_plus_one: bool,
}

const fn plain_order(
    name: &'static str,
    model_types: &'static [&'static str],
    self_contained: bool,
) -> Architecture {
    Architecture { name, model_types, self_contained, adjacent_pairs: false, norms_plus_one: false }
}

const ARCHITECTURES: [Architecture; 9] = [
    Architecture {
        adjacent_pairs: true,
        ..plain_order("llama", &["llama", "mistral", "mixtral"], true)
    },
    plain_order("qwen2", &["qwen2"], true),
    plain_order("qwen2moe", &["qwen2_moe"], true),
    plain_order("qwen3", &["qwen3"], true),
    plain_order("qwen3moe", &["qwen3_moe"], true),
    Architecture { norms_plus_one: true, ..plain_order("gemma", &["gemma"], true) },
    Architecture { norms_plus_one: true, ..plain_order("gemma2", &["gemma2"], false) },
    Architecture { norms_plus_one: true, ..plain_order("gemma3", &["gemma3_text"], false) },
    plain_order("phi3", &["phi3"], false),
];

impl Architecture {
    pub(crate) fn named(name: &str) -> Result<&'static Self, ModelProblem> {
        let found = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
            ModelProblem::settings(format!(
                "GGUF files of the architecture `{name}` are not supported"
            ))
            .with_hint(format!(
                "use the checkpoint in safetensors, or a GGUF file of one of: {}",
                known.join(", ")
            ))
        })
    }
}
