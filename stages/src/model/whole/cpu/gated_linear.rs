//! Gated linear attention of a layer: projections, short convolutions, log decays, and the norm and gate of its output.

use longsift_kernels::{
    GatedLinearRows, GatedLinearShape, GatedLinearState, Kernel, PackedWeights, Pointwise,
};
use rayon::prelude::*;

use super::query_keys::{BLOCK_ROWS, packed};
use crate::model::norms::RowNorm;
use crate::model::spec::{AttentionSpec, GatedLinear};
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;

/// Tokens that a layer processes at a time: whole chunks, so that results do not depend on it.
pub(super) const PIECE_TOKENS: usize = 64 * GatedLinearState::CHUNK;
const DECAY_DIVISOR: f64 = 16.0;

pub(super) struct GatedLinearLayer<'a> {
    settings: &'a GatedLinear,
    shape: GatedLinearShape,
    kernel: Kernel,
    hidden: usize,
    /// Factor of the queries.
    scale: f32,
    norm: RowNorm,
    query: PackedWeights,
    key: PackedWeights,
    value: PackedWeights,
    decay_down: PackedWeights,
    decay_up: PackedWeights,
    /// Queries, keys and values: `[channels, taps]`, empty without convolutions.
    convolutions: [Vec<f32>; 3],
    head_norm: RowNorm,
    gate: Option<PackedWeights>,
}

/// State of a sequence after one of its pieces.
pub(crate) struct Carried {
    matrices: GatedLinearState,
    /// Last inputs of the convolutions.
    inputs: [Vec<f32>; 3],
}

impl<'a> GatedLinearLayer<'a> {
    /// Takes its weights from those of a layer. `None` if the layer has softmax attention.
    pub(super) fn new(
        spec: &'a AttentionSpec,
        kernel: Kernel,
        weights: &mut LayerWeights,
    ) -> Option<Self> {
        let (settings, shape) = (spec.gated_linear.as_ref()?, spec.gated_linear_shape()?);
        let hidden = spec.hidden_size as usize;
        let norm = RowNorm::take(&spec.norm, weights, TensorRole::NORM);
        let mixed = weights.take(TensorRole::MixedNormWeight);
        let head_norm = RowNorm { norm: spec.norm.clone(), weight: mixed, bias: Vec::new() };
        let convolutions = [
            TensorRole::QueryConvolution,
            TensorRole::KeyConvolution,
            TensorRole::ValueConvolution,
        ];
        let convolutions = convolutions.map(|role| weights.take(role));
        let rank = weights.take(TensorRole::DecayDownWeight);
        let decay_down = PackedWeights::new(kernel, &rank, None, hidden);
        let decay_up = packed(weights, kernel, TensorRole::DECAY_UP, decay_down.outputs());
        let gate = settings.output_gate.then(|| weights.take(TensorRole::OutputGateWeight));
        let mut packed = |roles| packed(weights, kernel, roles, hidden);
        Some(Self {
            settings,
            shape,
            kernel,
            hidden,
            scale: spec.scale as f32,
            norm,
            query: packed(TensorRole::QUERY),
            key: packed(TensorRole::KEY),
            value: packed(TensorRole::VALUE),
            decay_down,
            decay_up,
            convolutions,
            head_norm,
            gate: gate.map(|gate| PackedWeights::new(kernel, &gate, None, hidden)),
        })
    }

    pub(super) fn width(&self) -> usize {
        self.shape.query_heads * self.shape.value_dim
    }

    /// Returns the state before the first token.
    pub(super) fn start(&self) -> Carried {
        let past = self.settings.convolution.map_or(0, |taps| taps as usize - 1);
        let inputs = self.projections().map(|projection| vec![0.0; past * projection.outputs()]);
        Carried { matrices: GatedLinearState::new(self.shape.clone()), inputs }
    }

    fn projections(&self) -> [&PackedWeights; 3] {
        [&self.query, &self.key, &self.value]
    }

    /// Computes the normalised output of a sequence's next tokens, `[tokens, query_heads · value_dim]`. Memory: [`bytes`].
    pub(super) fn mix(&self, states: &[f32], carried: &mut Carried) -> Vec<f32> {
        let tokens = states.len() / self.hidden;
        let mut decays = vec![0.0; tokens * self.key.outputs()];
        let mut rows = self.projections().map(|weights| vec![0.0; tokens * weights.outputs()]);
        self.project(states, &mut rows, &mut decays);
        if self.settings.convolution.is_some() {
            let weights = self.convolutions.iter().zip(&mut carried.inputs);
            for ((weights, past), rows) in weights.zip(&mut rows) {
                self.convolve(weights, past, rows);
            }
        }
        let [mut queries, mut keys, values] = rows;
        if self.settings.relu {
            let both = queries.par_iter_mut().chain(&mut keys);
            both.for_each(|x| *x = x.max(0.0));
        }
        queries.par_iter_mut().for_each(|x| *x *= self.scale);
        let mut out = vec![0.0; tokens * self.width()];
        let rows = GatedLinearRows {
            queries: &mut queries,
            keys: &mut keys,
            values: &values,
            log_decays: &decays,
        };
        carried.matrices.advance(self.kernel, rows, &mut out);
        let blocks = out.par_chunks_mut(BLOCK_ROWS * self.width());
        blocks.for_each(|rows| self.head_norm.apply(self.shape.value_dim, rows));
        out
    }

    /// Multiplies the output of some rows by their gate; without a gate, does nothing.
    pub(super) fn gate(&self, states: &[f32], out: &mut [f32]) {
        let Some(gate) = &self.gate else { return };
        let mut gates = vec![0.0; out.len()];
        gate.apply(&self.norm.normalised(self.hidden, states), &mut gates);
        Pointwise::Silu.apply(self.kernel, &mut gates);
        out.iter_mut().zip(&gates).for_each(|(x, gate)| *x *= gate);
    }

    fn project(&self, states: &[f32], rows: &mut [Vec<f32>; 3], decays: &mut [f32]) {
        let chunk = |weights: &PackedWeights| BLOCK_ROWS * weights.outputs();
        let [queries, keys, values] = rows;
        let blocks = states.par_chunks(BLOCK_ROWS * self.hidden);
        let blocks = blocks.zip(queries.par_chunks_mut(chunk(&self.query)));
        let blocks = blocks.zip(keys.par_chunks_mut(chunk(&self.key)));
        let blocks = blocks.zip(values.par_chunks_mut(chunk(&self.value)));
        let blocks = blocks.zip(decays.par_chunks_mut(chunk(&self.decay_up)));
        blocks.for_each(|((((states, queries), keys), values), decays)| {
            let normed = self.norm.normalised(self.hidden, states);
            self.query.apply(&normed, queries);
            self.key.apply(&normed, keys);
            self.value.apply(&normed, values);
            let mut rank = vec![0.0; states.len() / self.hidden * self.decay_down.outputs()];
            self.decay_down.apply(&normed, &mut rank);
            self.decay_up.apply(&rank, decays);
            for x in decays {
                *x = log_decay(*x, self.settings.min_log_decay);
            }
        });
    }

    /// Replaces each row by the swish of a convolution over it and the rows before; `past` becomes the last of them.
    fn convolve(&self, weights: &[f32], past: &mut Vec<f32>, rows: &mut [f32]) {
        let taps = self.settings.convolution.unwrap_or(1) as usize;
        let width = weights.len() / taps;
        let mut inputs = std::mem::take(past);
        inputs.extend_from_slice(rows);
        rows.par_chunks_mut(width).enumerate().for_each(|(row, out)| {
            for (channel, (out, weights)) in out.iter_mut().zip(weights.chunks(taps)).enumerate() {
                let inputs = inputs[row * width + channel..].iter().step_by(width);
                let terms = weights.iter().zip(inputs);
                let sum: f64 = terms.map(|(weight, x)| f64::from(*weight) * f64::from(*x)).sum();
                *out = sum as f32;
            }
            Pointwise::Silu.apply(self.kernel, out);
        });
        *past = inputs.split_off(inputs.len() - (taps - 1) * width);
    }
}

/// Computes `max(ln sigmoid(x) / 16, min)`.
fn log_decay(x: f32, min: Option<f64>) -> f32 {
    let x = f64::from(x);
    let decay = (x.min(0.0) - libm::log1p(libm::exp(-x.abs()))) / DECAY_DIVISOR;
    decay.max(min.unwrap_or(f64::NEG_INFINITY)) as f32
}

/// Peak memory of [`GatedLinearLayer::mix`] on `threads` threads, states not included, and of a sequence's state.
pub(super) fn bytes(spec: &AttentionSpec, tokens: u64, threads: u64) -> (u64, u64) {
    let Some((settings, shape)) = spec.gated_linear.as_ref().zip(spec.gated_linear_shape()) else {
        return (0, 0);
    };
    let (queries, keys) = (shape.query_heads * shape.key_dim, shape.key_heads * shape.key_dim);
    let (values, out) = (shape.key_heads * shape.value_dim, shape.query_heads * shape.value_dim);
    let (mixing, scratch) = shape.bytes(tokens as usize);
    let past = settings.convolution.map_or(0, |taps| taps - 1);
    let inputs = if past > 0 { tokens * queries.max(values) as u64 * 4 } else { 0 };
    let rows = 4 * tokens * (queries + 2 * keys + values) as u64;
    let mixing = 4 * tokens * out as u64 + mixing + threads * scratch;
    let state = shape.state_bytes() + 4 * past * (queries + keys + values) as u64;
    (rows + mixing.max(inputs), state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_decay_is_at_most_zero_and_exact_at_both_ends() {
        for (x, want) in [(0.0, -0.5_f64.ln().abs() / 16.0), (200.0, 0.0), (-160.0, -10.0)] {
            let got = f64::from(log_decay(x, None));
            assert!((got - want).abs() < 1e-7 * want.abs().max(1.0), "{x}: {got}");
        }
        assert_eq!(log_decay(-160.0, Some(-0.5)).to_bits(), (-0.5_f32).to_bits());
    }
}
