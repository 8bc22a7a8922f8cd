//! Granite 3, dense and with experts: Llama with a scaled embedding and a configurable attention scale.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{LlamaLike, llama_like};
use super::rest::{LlamaLayout, llama_decoder};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;

/// Products of queries and keys are multiplied by `attention_multiplier`.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let bias = config.flag("attention_bias", false);
    let mut first = llama_like(config, &LlamaLike { bias, ..LlamaLike::default() }, rope_theta);
    first.spec.scale = config.optional_positive("attention_multiplier").unwrap_or(1.0);
    first.spec.embedding.multiplier = config.optional_positive("embedding_multiplier");
    first
}

/// Outputs of both parts are multiplied before they are added to the residual stream; logits are divided.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout {
        output_bias: first.spec.bias,
        feed_forward_bias: config.flag("mlp_bias", false),
        ..LlamaLayout::default()
    };
    let mut decoder = llama_decoder(config, first, &layout);
    decoder.residual_multiplier = config.optional_number("residual_multiplier").unwrap_or(1.0);
    decoder.head.multiplier = 1.0 / config.optional_positive("logits_scaling").unwrap_or(1.0);
    decoder
}
