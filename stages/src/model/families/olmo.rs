//! `OLMo` 1 to 3 and `OLMoE`: a first norm without weights or none at all, norms over all heads together.

use longsift_kernels::RopeStyle;

use super::decoders::{attention_bias_decoder, norms_after};
use super::first_layer::{FirstLayerConfig, layer_zero_slides, slide, sliding_window};
use super::llama_like::{LLAMA, LlamaLike, plain_rope, rms_head_norm};
use crate::model::decoder::{Decoder, NamedNorm};
use crate::model::fields::Fields;
use crate::model::spec::{Norm, NormScope};

/// The norm has no weights; queries and keys may be clipped.
pub(super) const OLMO: LlamaLike = LlamaLike {
    norm: Norm::layer,
    // `eps` is fixed in the library: config.json has no key for it.
    eps: ("layer_norm_eps of OLMo is not configurable", 1e-5),
    adjust: |config, first| {
        first.tensors.norm_weight = None;
        first.spec.clip = config.optional_positive("clip_qkv");
    },
    ..LLAMA
};

/// Norms follow attention and MLP. One norm covers all query heads, another all key heads.
pub(super) const OLMO2: LlamaLike =
    LlamaLike { norm: |_| Norm::None, adjust: norm_all_heads, ..LLAMA };

/// Like `OLMo` 2; three layers of four slide, starting with the first, without rope scaling.
pub(super) const OLMO3: LlamaLike = LlamaLike { rope_theta: 5e5, adjust: olmo3, ..OLMO2 };

fn olmo3(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    norm_all_heads(config, first);
    let slides = |layer: u64| !(layer + 1).is_multiple_of(4);
    slide(first, config, sliding_window(config, 4096), slides);
    let nested = config.optional_object("rope_parameters");
    let nested = nested.is_some_and(|rope| rope.contains("sliding_attention"));
    if layer_zero_slides(config, slides(0)) && !nested {
        let theta = first.spec.rope.as_ref().map_or(5e5, |rope| rope.theta);
        first.spec.rope = Some(plain_rope(RopeStyle::Half, first.spec.head_dim, theta));
    }
}

/// Like `OLMo` 2 with a first norm. Clipping, which would follow the norms over all heads, is refused.
pub(super) const OLMOE: LlamaLike = LlamaLike {
    eps: ("rms_norm_eps", 1e-5),
    max_positions: 4096,
    adjust: |config, first| {
        if config.optional_positive("clip_qkv").is_some() {
            config.refuse("`clip_qkv` is not supported for this model type");
        }
        norm_all_heads(config, first);
    },
    ..LLAMA
};

fn norm_all_heads(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    rms_head_norm(first, rms_eps(config), 0.0, NormScope::AllHeads);
}

fn rms_eps(config: &Fields<'_>) -> f64 {
    config.optional_positive("rms_norm_eps").unwrap_or(1e-5)
}

/// `OLMo` 1: norms have no weights.
pub(super) fn olmo_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let norm = || NamedNorm::bare(first.spec.norm.clone());
    let (before_feed_forward, last_norm) = (norm(), norm());
    Decoder { before_feed_forward, last_norm, ..attention_bias_decoder(config, first) }
}

/// `OLMo` 2: norms after both parts, none before.
pub(super) fn olmo2_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = attention_bias_decoder(config, first);
    let norm = Norm::rms(rms_eps(config));
    let names = ["layers.0.post_attention_layernorm", "layers.0.post_feedforward_layernorm"];
    norms_after(&mut decoder, &norm, names[0], names[1]);
    decoder.before_feed_forward = NamedNorm::default();
    decoder.last_norm = NamedNorm::new(norm, "norm", false);
    decoder
}
