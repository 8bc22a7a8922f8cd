//! Nemotron and Minitron: a layer norm that multiplies by `1 + weight`; half of each head rotates.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{LlamaLike, NormKind, llama_like};
use crate::model::fields::Fields;

/// Every layer sees all tokens.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        norm: NormKind::Layer { offset: 1.0, bias: true },
        eps: ("norm_eps", 1e-5),
        max_positions: 4096,
        bias: config.flag("attention_bias", false),
        partial_rotary: Some(0.5),
        ..LlamaLike::default()
    };
    llama_like(config, &family, rope_theta)
}
