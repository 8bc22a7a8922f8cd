//! Granite 3, dense and with experts: Llama with a multiplied embedding and a scale of its own.

use super::first_layer::FirstLayer;
use super::llama_like::{LlamaLike, llama_like};
use crate::model::fields::Fields;

/// Products of queries and keys are multiplied by `attention_multiplier`.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let bias = config.flag("attention_bias", false);
    let mut first = llama_like(config, &LlamaLike { bias, ..LlamaLike::default() }, rope_theta);
    first.spec.scale = config.optional_positive("attention_multiplier").unwrap_or(1.0);
    first.spec.embedding.multiplier = config.optional_positive("embedding_multiplier");
    first
}
