//! What is asked of a whole model, and what comes back.

use super::{FarDistance, Location};
use crate::measures::language_model::Ladm;

/// What a measure asks of a whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardRequest {
    /// The model; none: that of the pipeline.
    pub model: Option<Location>,
    /// Losses; without them nothing above the highest layer that is asked for is computed.
    pub losses: Option<LossRequest>,
    /// Attention of some layers.
    pub attention: Option<LayersRequest>,
    /// Whether windows beyond the positions that the model was trained for are refused, and not warned of.
    pub strict_positions: bool,
}

/// Which losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossRequest {
    /// Tokens of the short windows that losses are computed of again; none: only those of the whole window.
    pub short_context: Option<u32>,
}

/// Of which layers attention is summed.
#[derive(Clone, Debug, PartialEq)]
pub struct LayersRequest {
    /// Layers, ascending, each once.
    pub layers: Vec<u32>,
    /// From which distance on a key is far.
    pub distance: FarDistance,
    /// Keys of the window's first tokens that count as near.
    pub sink_tokens: u32,
    /// What else is taken of each layer.
    pub ladm: Option<Ladm>,
}

impl ForwardRequest {
    /// How many layers of a model of `layers` are computed.
    pub fn depth(&self, layers: u64) -> u64 {
        let asked = self.attention.iter().flat_map(|attention| &attention.layers).max();
        if self.losses.is_some() { layers } else { asked.map_or(0, |layer| u64::from(*layer) + 1) }
    }
}

/// What a whole model makes of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardFigures {
    /// `[tokens - 1]`: the loss of each token but the first, in nats. Empty where none are asked for.
    pub losses: Vec<f64>,
    /// `[tokens - context]`: the losses of the tokens from `context` on, each of a short window. Empty where the window is
    /// no longer than that, or none are asked for.
    pub short_losses: Vec<f64>,
    /// By layer, in the order of [`LayersRequest::layers`].
    pub layers: Vec<LayerAttention>,
}

/// Sums over the attention matrix of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerAttention {
    /// `[query heads]`: `Σ p` over far pairs.
    pub far_mass: Vec<f64>,
    /// `[query heads]`: `Σ p²` over far pairs.
    pub far_square: Vec<f64>,
    /// LADM's score of the layer; none where it is not asked for, or the window is too short for a span.
    pub context_dependence: Option<f64>,
}
