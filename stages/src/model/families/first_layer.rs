//! The first layer of a family: its computation and its tensors.

use crate::model::spec::LayerZeroSpec;
use crate::model::tensors::LayerZeroTensors;

/// The first layer that a `config.json` describes.
pub(crate) struct FirstLayer {
    pub(crate) spec: LayerZeroSpec,
    pub(crate) tensors: LayerZeroTensors,
    /// Layers with a sliding window; `None` if all see every token.
    pub(crate) sliding: Option<SlidingLayers>,
}

/// Layers with a sliding window.
#[derive(Clone, Debug)]
pub(crate) struct SlidingLayers {
    pub(crate) window: u64,
    /// Whether each layer slides, `[layers]`.
    pub(crate) layers: Vec<bool>,
}

impl FirstLayer {
    pub(crate) fn new(spec: LayerZeroSpec, tensors: LayerZeroTensors) -> Self {
        Self { spec, tensors, sliding: None }
    }

    /// Whether a layer slides.
    pub(crate) fn slides(&self, layer: u64) -> bool {
        let sliding = self.sliding.as_ref();
        sliding.and_then(|sliding| sliding.layers.get(layer as usize)).copied().unwrap_or(false)
    }
}
