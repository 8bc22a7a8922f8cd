//! The feed-forward part of a layer: a single perceptron, or a mixture of experts.

use longsift_kernels::{Kernel, PackedWeights, Pointwise};

use super::packed::packed;
use crate::model::decoder::{Activation, FeedForward, Perceptron};
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;

pub(super) enum FeedForwardWeights {
    Dense(PerceptronWeights),
    Experts {
        /// To the logits of the experts.
        router: PackedWeights,
        chosen: usize,
        experts: Vec<PerceptronWeights>,
        hidden: usize,
    },
}

pub(super) struct PerceptronWeights {
    gate: Option<PackedWeights>,
    up: PackedWeights,
    down: PackedWeights,
    activation: Activation,
    kernel: Kernel,
}

impl FeedForwardWeights {
    pub(super) fn new(
        of: &FeedForward,
        weights: &mut LayerWeights,
        kernel: Kernel,
        hidden: usize,
    ) -> Self {
        match of {
            FeedForward::Dense(part) => {
                let width = part.down.inputs.unwrap_or(1) as usize;
                let mut take = |roles, inputs| packed(weights, kernel, roles, inputs);
                Self::Dense(PerceptronWeights {
                    gate: part.gate.as_ref().map(|_| take(TensorRole::GATE, hidden)),
                    up: take(TensorRole::UP, hidden),
                    down: take(TensorRole::DOWN, width),
                    activation: part.activation,
                    kernel,
                })
            }
            FeedForward::Experts { chosen, experts, .. } => {
                let gates = weights.take(TensorRole::GateWeight);
                let (ups, downs) =
                    (weights.take(TensorRole::UpWeight), weights.take(TensorRole::DownWeight));
                let expert = |(index, part): (usize, &Perceptron)| {
                    let width = part.down.inputs.unwrap_or(1) as usize;
                    // Experts have no biases and equal sizes; they are concatenated in order.
                    let of = |all: &[f32], inputs: usize| {
                        let own = &all[index * hidden * width..][..hidden * width];
                        PackedWeights::new(kernel, own, None, inputs)
                    };
                    PerceptronWeights {
                        gate: Some(of(&gates, hidden)),
                        up: of(&ups, hidden),
                        down: of(&downs, width),
                        activation: part.activation,
                        kernel,
                    }
                };
                Self::Experts {
                    router: packed(weights, kernel, TensorRole::ROUTER, hidden),
                    chosen: *chosen as usize,
                    experts: experts.iter().enumerate().map(expert).collect(),
                    hidden,
                }
            }
        }
    }

    /// Computes the output for some rows, `[rows, hidden_size]`.
    pub(super) fn apply(&self, rows: &[f32]) -> Vec<f32> {
        match self {
            Self::Dense(part) => part.apply(rows),
            Self::Experts { router, chosen, experts, hidden } => {
                let count = rows.len() / hidden;
                let mut logits = vec![0.0; count * experts.len()];
                router.apply(rows, &mut logits);
                let choices: Vec<Vec<(usize, f64)>> =
                    logits.chunks_exact(experts.len()).map(|row| choose(row, *chosen)).collect();
                let mut out = vec![0.0; rows.len()];
                for (index, expert) in experts.iter().enumerate() {
                    let of_row = |row: usize| {
                        let choice = choices[row].iter().find(|(chosen, _)| *chosen == index)?;
                        Some((row, choice.1 as f32))
                    };
                    let routed: Vec<(usize, f32)> = (0..count).filter_map(of_row).collect();
                    if routed.is_empty() {
                        continue;
                    }
                    let row = |row: usize| &rows[row * hidden..(row + 1) * hidden];
                    let request_here: Vec<f32> =
                        routed.iter().flat_map(|(index, _)| row(*index)).copied().collect();
                    let given = expert.apply(&request_here);
                    for ((row, weight), given) in routed.iter().zip(given.chunks_exact(*hidden)) {
                        let out = &mut out[row * hidden..(row + 1) * hidden];
                        out.iter_mut().zip(given).for_each(|(out, given)| *out += weight * given);
                    }
                }
                out
            }
        }
    }
}

/// Selects the experts with the largest logits (the first among equal ones), each with its weight: a softmax over the
/// selected logits.
pub(crate) fn choose(logits: &[f32], count: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
    order.truncate(count);
    let largest = f64::from(logits[order[0]]);
    let powers: Vec<f64> =
        order.iter().map(|index| libm::exp(f64::from(logits[*index]) - largest)).collect();
    let total: f64 = powers.iter().sum();
    order.into_iter().zip(powers.into_iter().map(|power| power / total)).collect()
}

impl PerceptronWeights {
    fn apply(&self, rows: &[f32]) -> Vec<f32> {
        let count = rows.len() / self.down.outputs();
        let mut wide = vec![0.0; count * self.up.outputs()];
        self.up.apply(rows, &mut wide);
        match &self.gate {
            None => activate(self.activation, self.kernel, &mut wide),
            Some(gate) => {
                let mut gates = vec![0.0; wide.len()];
                gate.apply(rows, &mut gates);
                activate(self.activation, self.kernel, &mut gates);
                wide.iter_mut().zip(&gates).for_each(|(x, gate)| *x *= gate);
            }
        }
        let mut out = vec![0.0; rows.len()];
        self.down.apply(&wide, &mut out);
        out
    }
}

fn activate(activation: Activation, kernel: Kernel, numbers: &mut [f32]) {
    match activation {
        Activation::Silu => Pointwise::Silu.apply(kernel, numbers),
        Activation::GeluTanh => Pointwise::GeluTanh.apply(kernel, numbers),
        Activation::Gelu => {
            for x in numbers {
                let exact = f64::from(*x);
                *x = (exact / 2.0 * libm::erfc(-exact * std::f64::consts::FRAC_1_SQRT_2)) as f32;
            }
        }
        Activation::Relu => numbers.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::ReluSquared => numbers.iter_mut().for_each(|x| *x = x.max(0.0).powi(2)),
    }
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
