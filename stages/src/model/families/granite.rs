//! Granite 3, dense and with experts: Llama with a scaled embedding and a configurable attention scale.

use super::first_layer::FirstLayerConfig;
use super::llama;
use super::llama_like::{LLAMA, llama_like};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;

/// Products of queries and keys are multiplied by `attention_multiplier`.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = llama_like(config, &LLAMA, rope_theta);
    first.spec.scale = config.optional_positive("attention_multiplier").unwrap_or(1.0);
    first.spec.embedding.multiplier = config.optional_positive("embedding_multiplier");
    first
}

/// Outputs of both parts are multiplied before they are added to the residual stream; logits are divided.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = llama::decoder(config, first);
    decoder.residual_multiplier = config.optional_number("residual_multiplier").unwrap_or(1.0);
    decoder.head.multiplier = 1.0 / config.optional_positive("logits_scaling").unwrap_or(1.0);
    decoder
}
