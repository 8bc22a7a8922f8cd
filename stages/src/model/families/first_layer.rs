//! A family's answer: what its first layer computes, and from which tensors.

use crate::model::spec::LayerZeroSpec;
use crate::model::tensors::LayerZeroTensors;

/// The first layer that a `config.json` describes.
pub(crate) struct FirstLayer {
    pub(crate) spec: LayerZeroSpec,
    pub(crate) tensors: LayerZeroTensors,
}
