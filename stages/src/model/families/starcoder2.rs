//! `StarCoder2`: a layer norm, biases, and usually a sliding window in every layer.

use super::first_layer::{FirstLayerConfig, slide_everywhere};
use super::llama_like::{Bias, LLAMA, LlamaLike, NormKind, llama_like};
use super::rest::{head, output, plain, two_projections};
use crate::model::decoder::{Decoder, NamedNorm};
use crate::model::fields::Fields;

/// Every layer slides over `sliding_window` tokens if it is given.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(2),
        norm: NormKind::Layer { offset: 0.0, bias: true },
        eps: ("norm_epsilon", 1e-5),
        max_positions: 4096,
        bias: Bias::Flag("use_bias", true),
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    let window = config.optional_size("sliding_window", 1 << 32);
    slide_everywhere(&mut first, config, window);
    first
}

/// Two projections without a gate.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let names = ("layers.0.mlp.c_fc", "layers.0.mlp.c_proj");
    let (width, activation) = (("intermediate_size", None), ("hidden_act", "gelu_pytorch_tanh"));
    let feed_forward = two_projections((config, first), names, spec.bias, width, activation);
    let norm = |name: &str| NamedNorm::new(spec.norm.clone(), name, true);
    let norms = (norm("layers.0.post_attention_layernorm"), norm("norm"));
    let output = output(first, "layers.0.self_attn.o_proj", spec.bias);
    plain(first, output, norms, feed_forward, head(config, true))
}
