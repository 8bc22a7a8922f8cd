//! Llama 4 and `SmolLM3`: layers without positions among layers that rotate.

use longsift_kernels::RopeStyle;

use super::decoders::{LLAMA_LAYOUT, LlamaLayout, llama_decoder};
use super::first_layer::{FirstLayerConfig, slide};
use super::llama_like::{LLAMA, LlamaLike, eps, head_norm, llama_like};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::spec::{HeadNorm, Norm, NormScope, QueryScale};

/// Llama 4: most layers see one chunk of tokens and rotate, the others see all and have no positions. Layers that
/// rotate normalise each head afterwards, without weights; the others scale queries by position.
pub(super) const LLAMA4: LlamaLike = LlamaLike {
    key_heads: Some(8),
    head_dim: Some(128),
    eps: ("rms_norm_eps", 1e-5),
    rope_theta: 5e5,
    max_positions: 131_072,
    pairing: RopeStyle::Interleaved,
    adjust: llama4,
    ..LLAMA
};

fn llama4(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let rotates = rotating_layers(config);
    if rotates(0) {
        if config.flag("use_qk_norm", true) {
            let norm = Norm::Rms { eps: eps(&first.spec.norm), offset: 0.0 };
            let over = NormScope::Head;
            let norm = HeadNorm { norm, over, weight: false, bias: false, after_rope: true };
            head_norm(first, norm, "", "");
        }
    } else {
        first.spec.rope = None;
        if config.flag("attn_temperature_tuning", true) {
            first.spec.query_scale = Some(QueryScale::Temperature {
                floor: config.optional_positive("floor_scale").unwrap_or(8192.0),
                scale: config.optional_number("attn_scale").unwrap_or(0.1),
                shift: 1.0,
            });
        }
    }
    chunk(first, config, rotates);
}

fn chunk(first: &mut FirstLayerConfig, config: &Fields<'_>, rotates: impl Fn(u64) -> bool) {
    let default = (!config.contains("attention_chunk_size")).then_some(8192);
    let Some(chunk) = config.optional_size("attention_chunk_size", 1 << 32).or(default) else {
        return;
    };
    let types = config.optional_texts("layer_types");
    let chunked = |layer: u64| match types.as_ref().and_then(|types| types.get(layer as usize)) {
        Some(kind) => *kind == "chunked_attention",
        None => rotates(layer),
    };
    if chunked(0) {
        first.spec.chunk = Some(chunk);
        first.spec.first_full_attention_layer =
            (0..first.spec.layers).find(|layer| !chunked(*layer));
    }
}

/// `SmolLM3`: Llama, with some layers that have no positions. `no_rope_layers` has a 1 for each layer that rotates; by
/// default, all but every fourth. With `use_sliding_window`, layers without positions slide.
pub(super) const SMOLLM3: LlamaLike = LlamaLike {
    adjust: |config, first| {
        let rotates = rotating_layers(config);
        let window = config.optional_size("sliding_window", 1 << 32);
        let window = window.filter(|_| config.flag("use_sliding_window", false));
        slide(first, config, window, |layer| !rotates(layer));
        if !rotates(0) {
            first.spec.rope = None;
        }
    },
    ..ROTATING
};

/// A layer of `SmolLM3` that rotates.
const ROTATING: LlamaLike =
    LlamaLike { key_heads: Some(4), rope_theta: 2e6, max_positions: 32_768, ..LLAMA };

/// Returns whether a layer rotates: from `no_rope_layers`, otherwise all but every `no_rope_layer_interval`th.
fn rotating_layers(config: &Fields<'_>) -> impl Fn(u64) -> bool {
    let written = config.optional_numbers("no_rope_layers").filter(|layers| !layers.is_empty());
    let interval = config.optional_size("no_rope_layer_interval", 1 << 20).unwrap_or(4);
    move |layer| match written.as_ref().and_then(|layers| layers.get(layer as usize)) {
        Some(rotates) => *rotates != 0.0,
        None => !(layer + 1).is_multiple_of(interval),
    }
}

/// `SmolLM3`: `no_rope_layers` lists the layers without positions.
pub(super) fn smollm3_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout {
        output_bias: first.spec.bias,
        feed_forward_bias: config.flag("mlp_bias", false),
        tied: true,
        ..LLAMA_LAYOUT
    };
    let (rotates, rope) = (rotating_layers(config), llama_like(config, &ROTATING, None).spec.rope);
    let of_layer = |layer| rope.clone().filter(|_| rotates(layer));
    let ropes = Some((0..first.spec.layers).map(of_layer).collect());
    Decoder { ropes, ..llama_decoder(config, first, &layout) }
}
