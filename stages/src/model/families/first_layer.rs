//! The first layer of a family: its computation, its tensors, and the attention span of the layers.

use crate::model::fields::Fields;
use crate::model::spec::AttentionSpec;
use crate::model::tensors::{LayerZeroTensors, Projection};

pub(crate) struct FirstLayerConfig {
    pub(crate) spec: AttentionSpec,
    pub(crate) tensors: LayerZeroTensors,
    /// Layers with a sliding window; `None` if all see every token.
    pub(crate) sliding: Option<SlidingLayers>,
    /// Layers with softmax attention among layers with gated linear attention.
    pub(crate) softmax: Vec<SoftmaxLayers>,
}

/// Layers with softmax attention, with the names of layer 0.
pub(crate) struct SoftmaxLayers {
    pub(crate) layers: Vec<u64>,
    pub(crate) spec: AttentionSpec,
    pub(crate) tensors: LayerZeroTensors,
    pub(crate) value: Projection,
    pub(crate) output: Projection,
}

#[derive(Clone, Debug)]
pub(crate) struct SlidingLayers {
    pub(crate) window: u64,
    /// Whether each layer slides, `[layers]`.
    pub(crate) layers: Vec<bool>,
}

impl FirstLayerConfig {
    /// Returns the softmax attention of a layer among layers with gated linear attention.
    pub(crate) fn softmax(&self, layer: u64) -> Option<&SoftmaxLayers> {
        self.softmax.iter().find(|softmax| softmax.layers.contains(&layer))
    }

    pub(crate) fn slides(&self, layer: u64) -> bool {
        let sliding = self.sliding.as_ref();
        sliding.and_then(|sliding| sliding.layers.get(layer as usize)).copied().unwrap_or(false)
    }
}

/// Makes every layer slide over `window` tokens. The transformers library does so for these model types regardless of
/// `layer_types`; a list that contradicts it is refused.
pub(super) fn slide_everywhere(
    first: &mut FirstLayerConfig,
    config: &Fields<'_>,
    window: Option<u64>,
) {
    let Some(window) = window else { return };
    let types = config.optional_texts("layer_types").unwrap_or_default();
    if let Some(other) = types.iter().find(|kind| **kind != "sliding_attention") {
        let model_type = config.optional_text("model_type").unwrap_or_default();
        config.refuse(format!(
            "config.json contradicts itself: with `sliding_window` {window} every layer of a `{model_type}` model \
             slides, but `layer_types` has `{other}`"
        ));
    }
    slide_window(first, window, |_| true);
}

/// Makes every layer slide over `sliding_window` tokens if config.json states it.
pub(super) fn slide_if_given(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    slide_everywhere(first, config, config.optional_size("sliding_window", 1 << 32));
}

/// Makes layers slide over `window` tokens, according to `layer_types` of config.json, otherwise to `slides`, by index.
pub(super) fn slide(
    first: &mut FirstLayerConfig,
    config: &Fields<'_>,
    window: Option<u64>,
    slides: impl Fn(u64) -> bool,
) {
    let types = config.optional_texts("layer_types");
    let slides = |layer: u64| match types.as_ref().and_then(|types| types.get(layer as usize)) {
        Some(kind) => *kind == "sliding_attention",
        None => slides(layer),
    };
    for kind in types.iter().flatten() {
        if !["full_attention", "sliding_attention"].contains(kind) {
            config.refuse(format!("layer type `{kind}` is not supported for this model type"));
            return;
        }
    }
    if let Some(window) = window {
        slide_window(first, window, slides);
    }
}

/// Sets the attention span of layers that slide over `window` tokens if `slides` returns `true`.
pub(super) fn slide_window(
    first: &mut FirstLayerConfig,
    window: u64,
    slides: impl Fn(u64) -> bool,
) {
    if slides(0) {
        first.spec.window = Some(window);
        first.spec.first_full_attention_layer =
            (0..first.spec.layers).find(|layer| !slides(*layer));
    }
    first.sliding =
        Some(SlidingLayers { window, layers: (0..first.spec.layers).map(slides).collect() });
}

/// Reads `sliding_window`. As in the transformers library, `null` disables the window and a missing key means `default`.
pub(super) fn sliding_window(config: &Fields<'_>, default: u64) -> Option<u64> {
    let default = (!config.contains("sliding_window")).then_some(default);
    config.optional_size("sliding_window", 1 << 32).or(default)
}

/// Whether layer 0 slides, from `layer_types` or the family's default.
pub(super) fn layer_zero_slides(config: &Fields<'_>, default: bool) -> bool {
    let types = config.optional_texts("layer_types").unwrap_or_default();
    types.first().map_or(default, |kind| *kind == "sliding_attention")
}
