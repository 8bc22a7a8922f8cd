//! Phi-1.5 and 2; Phi-3, 3.5 and 4.

use super::first_layer::{FirstLayerConfig, slide_everywhere};
use super::llama_like::{Bias, LLAMA, LlamaLike, NormKind, head_norm, llama_like};
use super::rest::{head, output, plain, two_projections};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::spec::{HeadNorm, NormScope};
use crate::model::tensors::Projection;

/// A layer norm, biases everywhere; half of each head rotates (Phi-2: 0.4).
pub(super) fn phi(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        norm: NormKind::Layer { offset: 0.0, bias: true },
        eps: ("layer_norm_eps", 1e-5),
        bias: Bias::Fixed(true),
        partial_rotary: Some(0.5),
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    if config.flag("qk_layernorm", false) {
        let norm = HeadNorm::new(first.spec.norm.clone(), NormScope::Head);
        let norm = HeadNorm { bias: true, ..norm };
        let names = ["layers.0.self_attn.q_layernorm", "layers.0.self_attn.k_layernorm"];
        head_norm(&mut first, norm, names[0], names[1]);
    }
    first
}

/// One tensor of queries, keys and values; `LongRoPE` in the models for 128,000 tokens; a fraction of each head rotates
/// in Phi-4-mini. Every layer slides if `sliding_window` is given.
pub(super) fn phi3(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        eps: ("rms_norm_eps", 1e-5),
        max_positions: 4096,
        bias: Bias::Fixed(false),
        partial_rotary: Some(1.0),
        original_positions: Some(4096),
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    let spec = &first.spec;
    let (queries, keys) = (spec.query_heads * spec.head_dim, spec.key_heads * spec.head_dim);
    (first.tensors.query, first.tensors.key) =
        Projection::stacked("layers.0.self_attn.qkv_proj", false, queries, keys);
    slide_everywhere(&mut first, config, config.optional_size("sliding_window", 1 << 32));
    first
}

/// Both parts read the same norm; the head has a bias.
pub(super) fn phi_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let names = ("layers.0.mlp.fc1", "layers.0.mlp.fc2");
    let (width, activation) = (("intermediate_size", None), ("hidden_act", "gelu_new"));
    let feed_forward = two_projections((config, first), names, true, width, activation);
    let last = NamedNorm::new(first.spec.norm.clone(), "final_layernorm", true);
    let output = output(first, "layers.0.self_attn.dense", true);
    let mut head = head(config, false);
    head.bias = Some("lm_head.bias".to_owned());
    let norms = (NamedNorm::default(), last);
    Decoder { order: Order::Parallel, ..plain(first, output, norms, feed_forward, head) }
}
