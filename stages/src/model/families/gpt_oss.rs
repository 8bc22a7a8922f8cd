//! gpt-oss: a learned logit per head is added to the softmax; layers alternate between sliding and full attention.

use super::first_layer::{FirstLayerConfig, slide, sliding_window};
use super::llama_like::{Bias, LLAMA, LlamaLike};
use crate::model::fields::Fields;
use crate::model::rope::{RopeScaling, yarn_attention_factor};
use crate::model::tensors::TensorRole;

/// The first layer slides. Without rope scaling in config.json, the default is `YaRN` from 4,096 positions on.
pub(super) const GPT_OSS: LlamaLike = LlamaLike {
    key_heads: Some(8),
    head_dim: Some(64),
    eps: ("rms_norm_eps", 1e-5),
    rope_theta: 1.5e5,
    max_positions: 131_072,
    bias: Bias::Flag("attention_bias", true),
    adjust: gpt_oss,
    ..LLAMA
};

fn gpt_oss(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    first.spec.sinks = true;
    first.tensors.need(TensorRole::Sinks, "layers.0.self_attn.sinks", &[first.spec.query_heads]);
    let scaled =
        ["rope_scaling", "rope_parameters"].iter().any(|name| config.value(name).is_some());
    if let (false, Some(rope)) = (scaled, &mut first.spec.rope) {
        rope.scaling = RopeScaling::Yarn {
            factor: 32.0,
            original_positions: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: yarn_attention_factor(32.0, None, None),
        };
    }
    slide(first, config, sliding_window(config, 128), |layer| layer.is_multiple_of(2));
}
