//! `StableLM` 2 and 3B: a layer norm; a quarter of each head rotates.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, NormKind, llama_like};
use super::rest::plain_llama_decoder;
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::spec::{HeadNorm, NormScope};
use crate::model::tensors::TensorRole;

/// `use_qkv_bias` adds a bias to queries and keys; `qk_layernorm` adds a layer norm to each head, with separate
/// tensors.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(32),
        norm: NormKind::Layer { offset: 0.0, bias: true },
        eps: ("layer_norm_eps", 1e-5),
        max_positions: 4096,
        bias: Bias::Flag("use_qkv_bias", false),
        partial_rotary: Some(0.25),
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    if config.flag("qk_layernorm", false) {
        let spec = &mut first.spec;
        spec.head_norm = Some(HeadNorm::new(spec.norm.clone(), NormScope::EachHead));
        let projections = [
            ("q_layernorm", TensorRole::QueryNormWeight, spec.query_heads),
            ("k_layernorm", TensorRole::KeyNormWeight, spec.key_heads),
        ];
        for (name, role, heads) in projections {
            for head in 0..heads {
                let name = format!("layers.0.self_attn.{name}.norms.{head}.weight");
                first.tensors.need(role, &name, &[spec.head_dim]);
            }
        }
    }
    first
}

/// With `use_parallel_residual`, both parts read the same norm.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = plain_llama_decoder(config, first);
    if config.flag("use_parallel_residual", false) {
        decoder.order = Order::Parallel;
        decoder.before_feed_forward = NamedNorm::default();
    }
    decoder
}
