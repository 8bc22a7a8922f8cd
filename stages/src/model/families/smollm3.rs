//! `SmolLM3`: Llama, with some layers that have no positions.

use super::attention_span::slide;
use super::first_layer::FirstLayerConfig;
use super::llama_like::{LLAMA, LlamaLike, llama_like};
use super::rest::{LlamaLayout, llama_decoder};
use crate::model::decoder::Decoder;
use crate::model::fields::Fields;

/// `no_rope_layers` has a 1 for each layer that rotates; by default, all but every fourth. With `use_sliding_window`,
/// layers without positions slide.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = base(config, rope_theta);
    let rotates = rotating_layers(config);
    let window = config.optional_size("sliding_window", 1 << 32);
    let window = window.filter(|_| config.flag("use_sliding_window", false));
    slide(&mut first, config, window, |layer| !rotates(layer));
    if !rotates(0) {
        first.spec.rope = None;
    }
    first
}

/// A layer that rotates.
fn base(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike { key_heads: Some(4), rope_theta: 2e6, max_positions: 32_768, ..LLAMA };
    llama_like(config, &family, rope_theta)
}

/// Returns whether a layer rotates: from `no_rope_layers`, otherwise all but every `no_rope_layer_interval`th. Llama 4
/// has the same two keys.
pub(super) fn rotating_layers(config: &Fields<'_>) -> impl Fn(u64) -> bool {
    let written = config.optional_numbers("no_rope_layers").filter(|layers| !layers.is_empty());
    let interval = config.optional_size("no_rope_layer_interval", 1 << 20).unwrap_or(4);
    move |layer| match written.as_ref().and_then(|layers| layers.get(layer as usize)) {
        Some(rotates) => *rotates != 0.0,
        None => !(layer + 1).is_multiple_of(interval),
    }
}

/// `no_rope_layers` lists the layers without positions.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let layout = LlamaLayout {
        output_bias: first.spec.bias,
        feed_forward_bias: config.flag("mlp_bias", false),
        tied: true,
        ..LlamaLayout::default()
    };
    let (rotates, rope) = (rotating_layers(config), base(config, None).spec.rope);
    let of_layer = |layer| rope.clone().filter(|_| rotates(layer));
    let ropes = Some((0..first.spec.layers).map(of_layer).collect());
    Decoder { ropes, ..llama_decoder(config, first, &layout) }
}
