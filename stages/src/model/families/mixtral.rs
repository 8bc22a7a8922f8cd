//! Mixtral: Mistral's attention in front of a mixture of experts.

use super::attention_span::slide_everywhere;
use super::first_layer::FirstLayer;
use super::llama_like::{LlamaLike, llama_like};
use crate::model::fields::Fields;

/// Every layer slides over `sliding_window` tokens where it is given; by default none does.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let family = LlamaLike {
        key_heads: Some(8),
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 1e6,
        max_positions: 131_072,
        ..LlamaLike::default()
    };
    let mut first = llama_like(config, &family, rope_theta);
    let window = config.optional_size("sliding_window", 1 << 32);
    slide_everywhere(&mut first, config, window);
    first
}
