//! A family's answer: what its first layer computes, and from which tensors.

use crate::model::spec::LayerZeroSpec;
use crate::model::tensors::LayerZeroTensors;

/// The first layer that a `config.json` describes.
pub(crate) struct FirstLayer {
    pub(crate) spec: LayerZeroSpec,
    pub(crate) tensors: LayerZeroTensors,
    /// Which layers slide over how many tokens; `None`: none does.
    pub(crate) sliding: Option<Sliding>,
}

/// Layers that see a window of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Sliding {
    pub(crate) window: u64,
    /// `[layers]`
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
