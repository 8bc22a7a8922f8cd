//! Counts the operations of a window, for estimates of time.

use serde::Serialize;

use super::located::{LocatedLayer, WholeModel};
use super::measured::sequences;
use crate::contract::ForwardRequest;
use crate::model::decoder::FeedForward;
use crate::model::tensors::TensorRole;

/// Minimum work of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ForwardOperations {
    /// Floating-point operations of all products, two for each multiplication.
    pub products: f64,
    /// Exponentials of attention and of the losses.
    pub exponentials: f64,
    /// Bytes of float32 hidden states that layers read and write.
    pub bytes: f64,
}

impl WholeModel {
    /// Counts the operations of [`Self::measure`] for a window, unless a layer has gated linear attention.
    pub fn operations(&self, request: &ForwardRequest, tokens: u64) -> Option<ForwardOperations> {
        let ids = vec![0; tokens as usize];
        let depth = request.depth(self.spec().layers) as usize;
        let layers = &self.layers[..depth];
        if layers.iter().any(|layer| layer.spec.gated_linear.is_some()) {
            return None;
        }
        let requested = request.attention.iter().flat_map(|attention| &attention.layers);
        let requested: Vec<usize> = requested.map(|layer| *layer as usize).collect();
        let mut all = ForwardOperations::default();
        for sequence in sequences(request, &[&ids]) {
            let tokens = sequence.ids.len() as u64;
            for (index, layer) in layers.iter().enumerate() {
                let spec = &layer.spec;
                let pairs = (spec.query_heads * pairs(tokens, spec.visible_distances())) as f64;
                let is_applied = request.losses || index + 1 < depth;
                let is_summed = !sequence.is_short() && requested.contains(&index);
                // Queries times keys, and weights times values.
                let passes = 2 * u64::from(is_applied) + u64::from(is_summed);
                all.products += 2.0 * pairs * (spec.head_dim * passes) as f64;
                all.exponentials += pairs * f64::from(u32::from(is_applied) + u32::from(is_summed));
                all.products += 2.0 * (tokens * self.multiplications(layer, is_applied)) as f64;
                all.bytes += (8 * tokens * spec.hidden_size) as f64;
            }
            if request.losses {
                let rows = sequence.losses();
                all.products += 2.0 * (rows * self.head().needed.numbers()) as f64;
                all.exponentials += (rows * self.spec().vocabulary_size) as f64;
            }
        }
        Some(all)
    }

    /// Multiplications of a token with the matrices of a layer, or with those of queries and keys only.
    fn multiplications(&self, layer: &LocatedLayer, is_applied: bool) -> u64 {
        let of_role = |role: TensorRole| match role {
            TensorRole::QueryWeight | TensorRole::KeyWeight => (1, 1),
            _ if !is_applied => (0, 1),
            TensorRole::ValueWeight | TensorRole::OutputWeight | TensorRole::RouterWeight => (1, 1),
            TensorRole::GateWeight | TensorRole::UpWeight | TensorRole::DownWeight => {
                match &self.decoder.feed_forward {
                    FeedForward::Dense(_) => (1, 1),
                    FeedForward::Experts { chosen, experts, .. } => (*chosen, experts.len() as u64),
                }
            }
            _ => (0, 1),
        };
        let numbers = layer.parts.iter().map(|part| {
            let (chosen, all) = of_role(part.needed.role);
            (part.needed.numbers() * chosen, all)
        });
        numbers.map(|(numbers, all)| numbers / all).sum()
    }
}

/// Counts the pairs of a query and a key fewer than `visible` tokens before it, in a sequence of `tokens` tokens.
fn pairs(tokens: u64, visible: Option<u64>) -> u64 {
    let beyond = tokens.saturating_sub(visible.unwrap_or(tokens));
    tokens * (tokens + 1) / 2 - beyond * (beyond + 1) / 2
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn pairs_are_those_of_every_row() {
        for visible in [None, Some(1), Some(5), Some(12), Some(40)] {
            let of_row = |row: u64| (row + 1).min(visible.unwrap_or(u64::MAX));
            assert_eq!(pairs(12, visible), (0..12).map(of_row).sum::<u64>(), "{visible:?}");
        }
    }
}
