//! Command-R and Command-A: a layer norm without bias, adjacent rotating pairs.

use longsift_kernels::RopeStyle;

use super::decoders::{LLAMA_LAYOUT, LlamaLayout, llama_decoder};
use super::first_layer::{FirstLayerConfig, layer_zero_slides, slide, sliding_window};
use super::llama_like::{LLAMA, LlamaLike, NormKind, head_norm};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::spec::{HeadNorm, NormScope};

/// Every layer sees all tokens. With `use_qk_norm` (Command-R+), each head has its own layer norm.
pub(super) const COHERE: LlamaLike = LlamaLike {
    norm: NormKind::Layer { offset: 0.0, bias: false },
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

/// Three layers of four slide, starting with the first, and only these rotate.
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

/// Both parts read the same norm; logits are multiplied by `logit_scale`.
pub(super) fn cohere_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout { output_bias: first.spec.bias, tied: true, ..LLAMA_LAYOUT };
    let mut decoder = llama_decoder(config, first, &layout);
    decoder.order = Order::Parallel;
    decoder.before_feed_forward = NamedNorm::default();
    decoder.head.multiplier = config.optional_number("logit_scale").unwrap_or(0.0625);
    decoder
}
