//! One layer: its weights, and its effect on the hidden states of a window.

use std::borrow::Cow;

use candle_core::{Result, Tensor};
use longsift_kernels::Rope;

use super::attention::{QueryKeys, blocks};
use super::devices::CandleDevice;
use super::numbers::{LinearLayer, TensorNorm, squares_of};
use crate::model::decoder::{Activation, Decoder, NamedNorm, Order};
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;
use crate::model::whole::backend::Squares;
use crate::model::whole::candle_memory::BLOCK_ROWS;
use crate::model::whole::feed_forward::{FeedForwardLayers, PerceptronLayers, choose};
use crate::model::whole::located::WholeModel;

pub(in crate::model::whole) struct Layer<'m> {
    pub(super) query_keys: QueryKeys<'m>,
    value: LinearLayer,
    output: LinearLayer,
    decoder: &'m Decoder,
    after_attention: TensorNorm,
    before_feed_forward: TensorNorm,
    feed_forward: FeedForwardLayers<LinearLayer>,
    after_feed_forward: TensorNorm,
}

impl<'m> Layer<'m> {
    pub(super) fn new(
        model: &'m WholeModel,
        device: &'m CandleDevice,
        index: usize,
        mut weights: LayerWeights,
    ) -> Result<Self> {
        let (spec, decoder) = (&model.layers[index].spec, &model.decoder);
        let hidden = spec.hidden_size as usize;
        let weights = &mut weights;
        let query_keys = QueryKeys::new(device, spec, weights)?;
        let value = LinearLayer::take(device, weights, TensorRole::VALUE, hidden)?;
        let width = query_keys.query_width();
        let output = LinearLayer::take(device, weights, TensorRole::OUTPUT, width)?;
        let mut norm = |named: &NamedNorm, roles| {
            TensorNorm::take(device, &named.norm, weights, roles, hidden)
        };
        let after_attention = norm(&decoder.after_attention, TensorRole::AFTER_ATTENTION)?;
        let before_feed_forward =
            norm(&decoder.before_feed_forward, TensorRole::FEED_FORWARD_NORM)?;
        let after_feed_forward = norm(&decoder.after_feed_forward, TensorRole::AFTER_FEED_FORWARD)?;
        let projection = |weight: Cow<'_, [f32]>, bias, inputs| {
            LinearLayer::new(device, weight.into_owned(), bias, inputs)
        };
        let feed_forward =
            FeedForwardLayers::new(&decoder.feed_forward, weights, hidden, projection)?;
        Ok(Self {
            query_keys,
            value,
            output,
            decoder,
            after_attention,
            before_feed_forward,
            feed_forward,
            after_feed_forward,
        })
    }

    /// Replaces the hidden states of a window, `[tokens, hidden_size]`, by those after this layer. If `should_continue`
    /// returns `false` meanwhile, they are undefined.
    pub(super) fn apply(
        &self,
        rope: Option<&Rope>,
        state: &mut Tensor,
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Squares> {
        let window = self.query_keys.window(rope, state, Some(&self.value))?;
        let mut squares = Squares::default();
        for rows in blocks(0..state.dims()[0], BLOCK_ROWS) {
            if !should_continue() {
                break;
            }
            let before = state.narrow(0, rows.start, rows.len())?;
            let normed = self.query_keys.norm.apply(&before)?;
            let attended = window.attend(rows.clone(), &normed)?;
            let after = self.after(&before, &normed, &self.output.apply(&attended)?)?;
            squares.append(squares_of(&after)?);
            state.slice_set(&after, 0, rows.start)?;
        }
        Ok(squares)
    }

    /// Adds the output of attention and that of the feed-forward part.
    fn after(&self, rows: &Tensor, normed: &Tensor, given: &Tensor) -> Result<Tensor> {
        if self.decoder.order == Order::Parallel {
            let fed = if self.before_feed_forward.is_none() {
                self.feed_forward.apply(normed)?
            } else {
                self.feed_forward.apply(&self.before_feed_forward.apply(rows)?)?
            };
            return self.joined(&self.joined(rows, given)?, &fed);
        }
        let rows = self.joined_normalised(&self.after_attention, rows, given)?;
        let fed = self.feed_forward.apply(&self.before_feed_forward.apply(&rows)?)?;
        self.joined_normalised(&self.after_feed_forward, &rows, &fed)
    }

    fn joined_normalised(
        &self,
        norm: &TensorNorm,
        rows: &Tensor,
        given: &Tensor,
    ) -> Result<Tensor> {
        if self.decoder.order == Order::NormalisedSums {
            norm.apply(&self.joined(rows, given)?)
        } else {
            self.joined(rows, &norm.apply(given)?)
        }
    }

    fn joined(&self, rows: &Tensor, given: &Tensor) -> Result<Tensor> {
        rows + (given * self.decoder.residual_multiplier)?
    }
}

impl FeedForwardLayers<LinearLayer> {
    /// Computes the output for some rows, `[rows, hidden_size]`.
    fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        let (router, chosen, experts) = match self {
            Self::Dense(part) => return part.apply(rows),
            Self::Experts { router, chosen, experts } => (router, *chosen, experts),
        };
        let logits = router.apply(rows)?.to_vec2::<f32>()?;
        let choices: Vec<Vec<(usize, f64)>> =
            logits.iter().map(|row| choose(row, chosen)).collect();
        let mut out = rows.zeros_like()?;
        for (index, expert) in experts.iter().enumerate() {
            let of_row = |(row, choices): (usize, &Vec<(usize, f64)>)| {
                let choice = choices.iter().find(|(chosen, _)| *chosen == index)?;
                Some((row as u32, choice.1 as f32))
            };
            let (selected, weights): (Vec<u32>, Vec<f32>) =
                choices.iter().enumerate().filter_map(of_row).unzip();
            if selected.is_empty() {
                continue;
            }
            let weights = Tensor::from_vec(weights, (selected.len(), 1), rows.device())?;
            let selected = Tensor::new(selected, rows.device())?;
            let given = expert.apply(&rows.index_select(&selected, 0)?)?.broadcast_mul(&weights)?;
            out = out.index_add(&selected, &given, 0)?;
        }
        Ok(out)
    }
}

impl PerceptronLayers<LinearLayer> {
    fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        let wide = self.up.apply(rows)?;
        let wide = match &self.gate {
            None => activated(self.activation, &wide)?,
            Some(gate) => (activated(self.activation, &gate.apply(rows)?)? * wide)?,
        };
        self.down.apply(&wide)
    }
}

fn activated(activation: Activation, numbers: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Silu => numbers.silu(),
        Activation::Gelu => numbers.gelu_erf(),
        Activation::GeluTanh => numbers.gelu(),
        Activation::Relu => numbers.relu(),
        Activation::ReluSquared => numbers.relu()?.sqr(),
    }
}
