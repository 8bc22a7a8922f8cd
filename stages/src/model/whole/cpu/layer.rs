//! One layer: its weights, and its effect on the hidden states of a window.

use std::borrow::Cow;
use std::convert::Infallible;

use longsift_kernels::{
    AttendScratch, Kernel, KeyValues, LogitRules, PackedWeights, Pointwise, QueryBlock, Rope,
};
use rayon::prelude::*;

use super::gated_linear::{Carried, GatedLinearLayer, PIECE_TOKENS};
use super::query_keys::{BLOCK_ROWS, QueryKeys, packed};
use crate::model::decoder::{Activation, Decoder, NamedNorm, Order};
use crate::model::norms::RowNorm;
use crate::model::row_steps::clip;
use crate::model::spec::AttentionSpec;
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;
use crate::model::whole::feed_forward::{FeedForwardLayers, PerceptronLayers, choose};
use crate::model::whole::located::WholeModel;

pub(crate) struct Layer<'a> {
    pub(super) spec: &'a AttentionSpec,
    mixer: Mixer<'a>,
    hidden: usize,
    kernel: Kernel,
    decoder: &'a Decoder,
    output: PackedWeights,
    after_attention: RowNorm,
    before_feed_forward: RowNorm,
    feed_forward: FeedForwardLayers<PackedWeights>,
    after_feed_forward: RowNorm,
}

/// Part of a layer in which tokens depend on earlier ones.
enum Mixer<'a> {
    Softmax { query_keys: Box<QueryKeys<'a>>, value: PackedWeights },
    GatedLinear(Box<GatedLinearLayer<'a>>),
}

impl<'a> Layer<'a> {
    pub(super) fn new(model: &'a WholeModel, index: usize, mut weights: LayerWeights) -> Self {
        let (spec, decoder, kernel) = (&model.layers[index].spec, &model.decoder, model.kernel);
        let hidden = spec.hidden_size as usize;
        let mut norm = |named: &NamedNorm, roles| RowNorm::take(&named.norm, &mut weights, roles);
        let after_attention = norm(&decoder.after_attention, TensorRole::AFTER_ATTENTION);
        let before_feed_forward = norm(&decoder.before_feed_forward, TensorRole::FEED_FORWARD_NORM);
        let after_feed_forward = norm(&decoder.after_feed_forward, TensorRole::AFTER_FEED_FORWARD);
        let gated_linear = GatedLinearLayer::new(spec, kernel, &mut weights);
        let (mixer, width) = if let Some(layer) = gated_linear {
            let width = layer.width();
            (Mixer::GatedLinear(Box::new(layer)), width)
        } else {
            let query_keys = Box::new(QueryKeys::new(spec, kernel, &mut weights));
            let width = query_keys.query_width();
            let value = packed(&mut weights, kernel, TensorRole::VALUE, hidden);
            (Mixer::Softmax { query_keys, value }, width)
        };
        let output = packed(&mut weights, kernel, TensorRole::OUTPUT, width);
        let projection = |weight: Cow<'_, [f32]>, bias: Vec<f32>, inputs| {
            let bias = (!bias.is_empty()).then_some(bias.as_slice());
            Ok::<_, Infallible>(PackedWeights::new(kernel, &weight, bias, inputs))
        };
        let Ok(feed_forward) =
            FeedForwardLayers::new(&decoder.feed_forward, &mut weights, hidden, projection);
        Self {
            spec,
            mixer,
            hidden,
            kernel,
            decoder,
            output,
            after_attention,
            before_feed_forward,
            feed_forward,
            after_feed_forward,
        }
    }

    /// # Panics
    /// If the layer has no softmax attention.
    pub(super) fn query_keys(&self) -> &QueryKeys<'a> {
        match &self.mixer {
            Mixer::Softmax { query_keys, .. } => query_keys,
            Mixer::GatedLinear(_) => panic!("the layer has no softmax attention"),
        }
    }

    /// Replaces the hidden states of a window, `[tokens, hidden_size]`, by those after this layer. With gated linear
    /// attention they may be the next piece of a window, whose state before it is `carried`. If `should_continue` returns
    /// `false` meanwhile, they are undefined.
    pub(super) fn apply(
        &self,
        rope: Option<&Rope>,
        state: &mut [f32],
        carried: &mut Option<Carried>,
        should_continue: &(dyn Fn() -> bool + Sync),
    ) {
        match &self.mixer {
            Mixer::Softmax { query_keys, value } => {
                self.apply_softmax((query_keys, value), rope, state, should_continue);
            }
            Mixer::GatedLinear(layer) => {
                let carried = carried.get_or_insert_with(|| layer.start());
                for piece in state.chunks_mut(PIECE_TOKENS * self.hidden) {
                    if should_continue() {
                        self.apply_gated_linear(layer, piece, carried);
                    }
                }
            }
        }
    }

    fn apply_gated_linear(
        &self,
        layer: &GatedLinearLayer<'_>,
        state: &mut [f32],
        carried: &mut Carried,
    ) {
        let mut mixed = layer.mix(state, carried);
        let blocks = state.par_chunks_mut(BLOCK_ROWS * self.hidden);
        let blocks = blocks.zip(mixed.par_chunks_mut(BLOCK_ROWS * layer.width()));
        blocks.for_each(|(rows, mixed)| {
            layer.gate(rows, mixed);
            let mut given = vec![0.0; rows.len()];
            self.output.apply(mixed, &mut given);
            self.finish(rows, given);
        });
    }

    fn apply_softmax(
        &self,
        (query_keys, value): (&QueryKeys<'_>, &PackedWeights),
        rope: Option<&Rope>,
        state: &mut [f32],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) {
        let (spec, hidden) = (query_keys.spec, self.hidden);
        let tokens = state.len() / hidden;
        let shape = spec.attention_shape(tokens);
        let rules = spec.logit_rules(true);
        let scales = spec.query_scales(tokens);
        let mut packed = KeyValues::new(query_keys.kernel, &shape);
        packed.fill(|rows, keys, values| {
            let normed =
                query_keys.norm.normalised(hidden, &state[rows.start * hidden..rows.end * hidden]);
            query_keys.keys(rows.start, &normed, rope, keys);
            value.apply(&normed, values);
            clip(spec.clip, values);
        });
        let window = LayerWindow { rules: &rules, packed: &packed, rope, scales };
        // The last rows of a causal window see the most keys, so they start first.
        state.par_chunks_mut(BLOCK_ROWS * hidden).enumerate().rev().for_each_init(
            AttendScratch::default,
            |scratch, (block, rows)| {
                if should_continue() {
                    self.block(query_keys, &window, block * BLOCK_ROWS, rows, scratch);
                }
            },
        );
    }

    /// Computes the rows starting with `first`.
    fn block(
        &self,
        query_keys: &QueryKeys<'_>,
        window: &LayerWindow<'_>,
        first: usize,
        rows: &mut [f32],
        scratch: &mut AttendScratch,
    ) {
        let hidden = self.hidden;
        let normed = query_keys.norm.normalised(hidden, rows);
        let attended = attend(query_keys, window, first, &normed, scratch);
        let mut given = vec![0.0; rows.len()];
        self.output.apply(&attended, &mut given);
        drop(attended);
        if self.decoder.order == Order::Parallel {
            let fed = if self.before_feed_forward.is_none() {
                self.feed_forward.apply(self.kernel, &normed)
            } else {
                self.feed_forward
                    .apply(self.kernel, &self.before_feed_forward.normalised(hidden, rows))
            };
            self.join(rows, &given);
            self.join(rows, &fed);
            return;
        }
        drop(normed);
        self.finish(rows, given);
    }

    /// Adds attention's output to some rows and applies the feed-forward part.
    fn finish(&self, rows: &mut [f32], given: Vec<f32>) {
        self.join_normalised(&self.after_attention, rows, given);
        let normed = self.before_feed_forward.normalised(self.hidden, rows);
        let fed = self.feed_forward.apply(self.kernel, &normed);
        self.join_normalised(&self.after_feed_forward, rows, fed);
    }

    fn join_normalised(&self, norm: &RowNorm, rows: &mut [f32], mut given: Vec<f32>) {
        if self.decoder.order == Order::NormalisedSums {
            self.join(rows, &given);
            norm.apply(self.hidden, rows);
        } else {
            norm.apply(self.hidden, &mut given);
            self.join(rows, &given);
        }
    }

    fn join(&self, rows: &mut [f32], given: &[f32]) {
        let multiplier = self.decoder.residual_multiplier as f32;
        rows.iter_mut().zip(given).for_each(|(x, given)| *x += given * multiplier);
    }
}

/// Computes attention's output for some rows, `[rows, query_heads · head_dim]`.
fn attend(
    query_keys: &QueryKeys<'_>,
    window: &LayerWindow<'_>,
    first: usize,
    normed: &[f32],
    scratch: &mut AttendScratch,
) -> Vec<f32> {
    let count = normed.len() / query_keys.spec.hidden_size as usize;
    let width = query_keys.query_width();
    let mut queries = vec![0.0; count * width];
    query_keys.queries(first, normed, window.rope, &mut queries);
    if let Some(scales) = &window.scales {
        let rows = queries.chunks_exact_mut(width);
        for (row, scale) in rows.zip(&scales[first..]) {
            for x in row {
                *x *= scale;
            }
        }
    }
    let mut out = vec![0.0; queries.len()];
    let block = QueryBlock { rows: first..first + count, queries: &queries };
    window.packed.attend(window.rules, &block, scratch, &mut out);
    out
}

struct LayerWindow<'a> {
    rules: &'a LogitRules,
    packed: &'a KeyValues,
    rope: Option<&'a Rope>,
    /// Factors of the queries, `[tokens]`.
    scales: Option<Vec<f32>>,
}

impl FeedForwardLayers<PackedWeights> {
    /// Computes the output for some rows, `[rows, hidden_size]`.
    fn apply(&self, kernel: Kernel, rows: &[f32]) -> Vec<f32> {
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
