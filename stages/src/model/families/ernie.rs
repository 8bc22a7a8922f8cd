//! ERNIE 4.5, dense and with experts: Llama with adjacent rotating pairs.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{LlamaLike, llama_like};
use crate::model::fields::Fields;
use crate::model::rope::Pairing;

/// Every layer sees all tokens.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let dense = config.optional_text("model_type") == Some("ernie4_5");
    let family = LlamaLike {
        key_heads: Some(if dense { 2 } else { 4 }),
        head_dim: dense.then_some(128),
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 5e5,
        max_positions: 131_072,
        bias: config.flag("use_bias", false),
        pairing: Pairing::Interleaved,
        ..LlamaLike::default()
    };
    llama_like(config, &family, rope_theta)
}
