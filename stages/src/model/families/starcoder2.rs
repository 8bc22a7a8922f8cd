//! `StarCoder2`: a layer norm, biases, and mostly a sliding window in every layer.

use super::attention_span::slide_everywhere;
use super::first_layer::FirstLayer;
use super::llama_like::{LlamaLike, NormKind, llama_like};
use crate::model::fields::Fields;

/// Every layer slides over `sliding_window` tokens where it is given.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let family = LlamaLike {
        key_heads: Some(2),
        norm: NormKind::Layer { offset: 0.0, bias: true },
        eps: ("norm_epsilon", 1e-5),
        max_positions: 4096,
        bias: config.flag("use_bias", true),
        ..LlamaLike::default()
    };
    let mut first = llama_like(config, &family, rope_theta);
    let window = config.optional_size("sliding_window", 1 << 32);
    slide_everywhere(&mut first, config, window);
    first
}
