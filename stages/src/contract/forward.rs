//! Requests to a whole model, and their results.

use super::{FarDistance, Location};
use crate::measures::language_model::Ladm;

/// Results that a measure requests from a whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardRequest {
    /// Model; `None` for that of the pipeline.
    pub model: Option<Location>,
    /// Whether losses are computed; without them the model stops after the highest requested layer.
    pub losses: bool,
    /// Tokens of the short windows for which losses are computed as well; `None` for whole windows only.
    pub short_context: Option<u32>,
    pub attention: Option<LayersRequest>,
    /// Whether windows longer than the positions the model was trained on are an error instead of a warning.
    pub strict_positions: bool,
}

/// Layers whose attention is summed.
#[derive(Clone, Debug, PartialEq)]
pub struct LayersRequest {
    /// Layer indices, ascending and distinct.
    pub layers: Vec<u32>,
    pub distance: FarDistance,
    /// Number of leading tokens that count as near keys.
    pub sink_tokens: u32,
    /// LADM score of each layer, if requested.
    pub ladm: Option<Ladm>,
}

impl ForwardRequest {
    /// Returns how many layers of a model with `layers` layers are computed.
    pub fn depth(&self, layers: u64) -> u64 {
        let highest = self.attention.iter().flat_map(|attention| &attention.layers).max();
        if self.losses { layers } else { highest.map_or(0, |layer| u64::from(*layer) + 1) }
    }
}

/// Results of a whole model for one window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardStatistics {
    /// `[tokens - 1]`: loss of each token but the first, in nats. Empty if not requested.
    pub losses: Vec<f64>,
    /// `[tokens - context]`: losses of the tokens from `context` on, each predicted from a short window. Empty if not
    /// requested, or if the window is not longer than `context`.
    pub short_losses: Vec<f64>,
    /// Results by layer, in the order of [`LayersRequest::layers`].
    pub layers: Vec<LayerAttention>,
}

/// Sums over the attention matrix of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerAttention {
    /// `[query heads]`: `Σ p` over far pairs.
    pub far_mass: Vec<f64>,
    /// `[query heads]`: `Σ p²` over far pairs.
    pub far_square: Vec<f64>,
    /// LADM score of the layer; `None` if it is not requested, or the window is too short for a span.
    pub context_dependence: Option<f64>,
}
