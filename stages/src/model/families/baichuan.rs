//! Baichuan and Baichuan 2: Llama with one tensor of queries, keys and values; the 13B models have linear biases.

use super::alibi::slopes;
use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, llama_like};
use crate::model::fields::Fields;
use crate::model::tensors::Projection;

/// Models with linear biases have no `max_position_embeddings`.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike { max_positions: 4096, bias: Bias::Fixed(false), ..LLAMA };
    let mut first = llama_like(config, &family, rope_theta);
    let width = first.spec.query_heads * first.spec.head_dim;
    (first.tensors.query, first.tensors.key) =
        Projection::stacked("layers.0.self_attn.W_pack", false, width, width);
    if config.value("max_position_embeddings").is_none() {
        first.spec.rope = None;
        first.spec.alibi_slopes = Some(slopes(first.spec.query_heads));
        first.spec.max_positions = config.optional_size("model_max_length", 1 << 32);
    }
    first
}
