//! Llama 1 to 3.3, `TinyLlama`, Yi, DeepSeek-LLM and everything else that calls itself `llama`.

use super::{FirstLayer, LlamaLike, llama_like};
use crate::model::fields::Fields;

/// Every layer sees all tokens. `attention_bias` gives all projections a bias.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayer {
    let bias = config.flag("attention_bias", false);
    let family =
        LlamaLike { key_heads: None, rms_eps: 1e-6, rope_theta: 1e4, max_positions: 2048, bias };
    llama_like(config, &family, rope_theta)
}
