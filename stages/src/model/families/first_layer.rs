//! The first layer of a family: its computation and its tensors.

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
