//! Families like Llama with layer norms: Phi-1.5 and 2, `StableLM` 2 and 3B, `StarCoder2`, Command-R and Command-A.

use longsift_kernels::RopeStyle;

use super::decoders::{
    LLAMA_LAYOUT, LlamaLayout, head, llama_decoder, output, plain, plain_llama_decoder,
    two_projections,
};
use super::first_layer::{
    FirstLayerConfig, layer_zero_slides, slide, slide_if_given, sliding_window,
};
use super::llama_like::{Bias, LLAMA, LlamaLike, head_norm, layer_head_norm};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::spec::{HeadNorm, Norm, NormScope};
use crate::model::tensors::TensorRole;

/// Biases everywhere; half of each head rotates (Phi-2: 0.4).
pub(super) const PHI: LlamaLike = LlamaLike {
    norm: Norm::layer,
    norm_bias: true,
    eps: ("layer_norm_eps", 1e-5),
    bias: Bias::Fixed(true),
    partial_rotary: Some(0.5),
    adjust: |config, first| {
        if config.flag("qk_layernorm", false) {
            layer_head_norm(first);
        }
    },
    ..LLAMA
};

/// Both parts read the same norm; the head has a bias.
pub(super) fn phi_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let names = ("layers.0.mlp.fc1", "layers.0.mlp.fc2");
    let (width, activation) = (("intermediate_size", None), ("hidden_act", "gelu_new"));
    let feed_forward = two_projections((config, first), names, true, width, activation);
    let output = output(first, "layers.0.self_attn.dense", true);
    let mut head = head(config, false);
    head.bias = Some("lm_head.bias".to_owned());
    let norms = (None, "final_layernorm");
    Decoder { order: Order::Parallel, ..plain(first, output, norms, feed_forward, head) }
}

/// `StableLM`: a quarter of each head rotates. `use_qkv_bias` adds a bias to queries and keys; `qk_layernorm` adds a layer norm to
/// each head, with separate tensors.
pub(super) const STABLELM: LlamaLike = LlamaLike {
    key_heads: Some(32),
    norm: Norm::layer,
    norm_bias: true,
    eps: ("layer_norm_eps", 1e-5),
    max_positions: 4096,
    bias: Bias::Flag("use_qkv_bias", false),
    partial_rotary: Some(0.25),
    adjust: stablelm,
    ..LLAMA
};

fn stablelm(config: &Fields<'_>, first: &mut FirstLayerConfig) {
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
}

/// With `use_parallel_residual`, both parts read the same norm.
pub(super) fn stablelm_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = plain_llama_decoder(config, first);
    if config.flag("use_parallel_residual", false) {
        decoder.order = Order::Parallel;
        decoder.before_feed_forward = NamedNorm::default();
    }
    decoder
}

/// `StarCoder2`: biases, and usually a sliding window in every layer.
pub(super) const STARCODER2: LlamaLike = LlamaLike {
    key_heads: Some(2),
    norm: Norm::layer,
    norm_bias: true,
    eps: ("norm_epsilon", 1e-5),
    max_positions: 4096,
    bias: Bias::Flag("use_bias", true),
    adjust: slide_if_given,
    ..LLAMA
};

/// Two projections without a gate.
pub(super) fn starcoder2_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let names = ("layers.0.mlp.c_fc", "layers.0.mlp.c_proj");
    let (width, activation) = (("intermediate_size", None), ("hidden_act", "gelu_pytorch_tanh"));
    let feed_forward = two_projections((config, first), names, spec.bias, width, activation);
    let norms = (Some("layers.0.post_attention_layernorm"), "norm");
    let output = output(first, "layers.0.self_attn.o_proj", spec.bias);
    plain(first, output, norms, feed_forward, head(config, true))
}

/// Command-R: every layer sees all tokens. With `use_qk_norm` (Command-R+), each head has its own layer norm.
pub(super) const COHERE: LlamaLike = LlamaLike {
    norm: Norm::layer,
    eps: ("layer_norm_eps", 1e-5),
    rope_theta: 5e5,
    max_positions: 8192,
    pairing: RopeStyle::Interleaved,
    adjust: |config, first| {
        if config.flag("use_qk_norm", false) {
            let norm = HeadNorm::new(first.spec.norm.clone(), NormScope::EachHead);
            head_norm(first, norm, "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm");
        }
    },
    ..LLAMA
};

/// Command-A: three layers of four slide, starting with the first, and only these rotate.
pub(super) const COHERE2: LlamaLike = LlamaLike { rope_theta: 1e4, adjust: cohere2, ..COHERE };

fn cohere2(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let window = sliding_window(config, 4096);
    let pattern = config.optional_size("sliding_window_pattern", 1 << 20).unwrap_or(4);
    let slides = |layer: u64| !(layer + 1).is_multiple_of(pattern);
    slide(first, config, window, slides);
    if window.is_none() || !layer_zero_slides(config, slides(0)) {
        first.spec.rope = None;
    }
}

/// Command-R: both parts read the same norm; logits are multiplied by `logit_scale`.
pub(super) fn cohere_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout { output_bias: first.spec.bias, tied: true, ..LLAMA_LAYOUT };
    let mut decoder = llama_decoder(config, first, &layout);
    decoder.order = Order::Parallel;
    decoder.before_feed_forward = NamedNorm::default();
    decoder.head.multiplier = config.optional_number("logit_scale").unwrap_or(0.0625);
    decoder
}
