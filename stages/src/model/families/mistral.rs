//! Mistral 7B, Nemo and Small. The first release slides over 4,096 tokens in every layer.

use super::{FirstLayer, LlamaLike, llama_like, slide_everywhere};
use crate::model::fields::Fields;

/// Every layer slides over `sliding_window` tokens; `null` there means none does, a missing key means 4,096, as in
/// the transformers library.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let family = LlamaLike {
        key_heads: Some(8),
        rms_eps: 1e-6,
        rope_theta: 1e4,
        max_positions: 131_072,
        bias: false,
    };
    let mut first = llama_like(config, &family, rope_theta);
    let default = (!config.has("sliding_window")).then_some(4096);
    let window = config.optional_size("sliding_window", 1 << 32).or(default);
    slide_everywhere(&mut first, config, window);
    first
}
