//! Weights of a layer's feed-forward part, a single perceptron or a mixture of experts, as projections of any backend.

use std::borrow::Cow;

use crate::model::decoder::{Activation, FeedForward, Perceptron};
use crate::model::tensors::{Roles, TensorRole};
use crate::model::weights::LayerWeights;

/// `P`: a projection of the backend.
pub(super) enum FeedForwardLayers<P> {
    Dense(PerceptronLayers<P>),
    Experts { router: P, chosen: usize, experts: Vec<PerceptronLayers<P>> },
}

pub(super) struct PerceptronLayers<P> {
    pub(super) gate: Option<P>,
    pub(super) up: P,
    pub(super) down: P,
    pub(super) activation: Activation,
}

impl<P> FeedForwardLayers<P> {
    /// Takes the weights of a layer. `projection`: creates one from its weight, its bias, which may be empty, and its inputs.
    pub(super) fn new<E>(
        description: &FeedForward,
        weights: &mut LayerWeights,
        hidden: usize,
        projection: impl Fn(Cow<'_, [f32]>, Vec<f32>, usize) -> Result<P, E>,
    ) -> Result<Self, E> {
        let width = |part: &Perceptron| part.down.inputs.unwrap_or(1) as usize;
        let mut take = |(weight, bias): Roles, inputs| {
            projection(Cow::Owned(weights.take(weight)), weights.take(bias), inputs)
        };
        match description {
            FeedForward::Dense(part) => {
                let gate = part.gate.as_ref().map(|_| take(TensorRole::GATE, hidden));
                Ok(Self::Dense(PerceptronLayers {
                    gate: gate.transpose()?,
                    up: take(TensorRole::UP, hidden)?,
                    down: take(TensorRole::DOWN, width(part))?,
                    activation: part.activation,
                }))
            }
            FeedForward::Experts { chosen, experts, .. } => {
                let router = take(TensorRole::ROUTER, hidden)?;
                let [gates, ups, downs] =
                    [TensorRole::GateWeight, TensorRole::UpWeight, TensorRole::DownWeight]
                        .map(|role| weights.take(role));
                let expert = |(index, part): (usize, &Perceptron)| {
                    // Experts have no biases and equal sizes; they are concatenated in order.
                    let own = |all: &[f32], inputs| {
                        let numbers = hidden * width(part);
                        let weight = Cow::Borrowed(&all[index * numbers..][..numbers]);
                        projection(weight, Vec::new(), inputs)
                    };
                    Ok(PerceptronLayers {
                        gate: Some(own(&gates, hidden)?),
                        up: own(&ups, hidden)?,
                        down: own(&downs, width(part))?,
                        activation: part.activation,
                    })
                };
                let experts = experts.iter().enumerate().map(expert).collect::<Result<_, E>>()?;
                Ok(Self::Experts { router, chosen: *chosen as usize, experts })
            }
        }
    }
}

/// Selects the experts with the largest logits, the first among equal ones, weighted by a softmax over these logits.
pub(super) fn choose(logits: &[f32], count: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    order.truncate(count);
    let largest = f64::from(logits[order[0]]);
    let powers: Vec<f64> =
        order.iter().map(|index| libm::exp(f64::from(logits[*index]) - largest)).collect();
    let total: f64 = powers.iter().sum();
    order.into_iter().zip(powers.into_iter().map(|power| power / total)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logits_are_chosen_and_their_weights_sum_to_one() {
        let chosen = choose(&[1.0, 3.0, 3.0, -2.0], 2);
        assert_eq!(chosen, [(1, 0.5), (2, 0.5)]);
        let one = choose(&[1.0, 2.0], 1);
        assert_eq!(one, [(1, 1.0)]);
    }
}
