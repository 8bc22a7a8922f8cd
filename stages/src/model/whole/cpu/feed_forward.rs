//! Application of the feed-forward part of a layer.

use longsift_kernels::{Kernel, PackedWeights, Pointwise};

use crate::model::decoder::Activation;
use crate::model::whole::feed_forward::{FeedForwardLayers, PerceptronLayers, choose};

impl FeedForwardLayers<PackedWeights> {
    /// Computes the output for some rows, `[rows, hidden_size]`.
    pub(super) fn apply(&self, kernel: Kernel, rows: &[f32]) -> Vec<f32> {
        let (router, chosen, experts) = match self {
            Self::Dense(part) => return part.apply(kernel, rows),
            Self::Experts { router, chosen, experts } => (router, *chosen, experts),
        };
        let hidden = experts[0].down.outputs();
        let count = rows.len() / hidden;
        let mut logits = vec![0.0; count * experts.len()];
        router.apply(rows, &mut logits);
        let choices: Vec<Vec<(usize, f64)>> =
            logits.chunks_exact(experts.len()).map(|row| choose(row, chosen)).collect();
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
            let of_expert: Vec<f32> =
                routed.iter().flat_map(|(index, _)| row(*index)).copied().collect();
            let given = expert.apply(kernel, &of_expert);
            for ((row, weight), given) in routed.iter().zip(given.chunks_exact(hidden)) {
                let out = &mut out[row * hidden..(row + 1) * hidden];
                out.iter_mut().zip(given).for_each(|(out, given)| *out += weight * given);
            }
        }
        out
    }
}

impl PerceptronLayers<PackedWeights> {
    fn apply(&self, kernel: Kernel, rows: &[f32]) -> Vec<f32> {
        let count = rows.len() / self.down.outputs();
        let mut wide = vec![0.0; count * self.up.outputs()];
        self.up.apply(rows, &mut wide);
        match &self.gate {
            None => activate(self.activation, kernel, &mut wide),
            Some(gate) => {
                let mut gates = vec![0.0; wide.len()];
                gate.apply(rows, &mut gates);
                activate(self.activation, kernel, &mut gates);
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
