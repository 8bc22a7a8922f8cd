//! Interface of backends: implementations of a model's layers and head.

use std::ops::Range;

use longsift_kernels::Rope;
use rayon::prelude::*;

use super::ropes::Ropes;
use crate::contract::{LayerAttention, LayersRequest};
use crate::model::problem::ModelProblem;
use crate::model::weights::LayerWeights;

/// Numbers per partial sum of squares. Fixed, so that the sum has the same bits for any number of threads.
pub(super) const SUMMED: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct Squares {
    parts: Vec<f64>,
    count: usize,
}

impl Squares {
    /// Sums the squares of `summed` numbers at a time.
    pub(super) fn new(numbers: &[f32], summed: usize) -> Self {
        let square =
            |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
        Self { parts: numbers.par_chunks(summed).map(square).collect(), count: numbers.len() }
    }

    /// Creates the squares of `count` numbers from their sum.
    #[cfg(feature = "candle")]
    pub(super) fn from_sum(sum: f64, count: usize) -> Self {
        Self { parts: vec![sum], count }
    }

    pub(super) fn append(&mut self, next: Self) {
        self.parts.extend(next.parts);
        self.count += next.count;
    }

    pub(super) fn root_mean(&self) -> f64 {
        (self.parts.iter().sum::<f64>() / self.count as f64).sqrt()
    }
}

/// A sequence, or one of its pieces, and the results requested for it.
#[derive(Clone)]
pub(super) struct HeadRequest<'a> {
    /// All tokens of the sequence.
    pub(super) ids: &'a [u32],
    pub(super) rows: Range<usize>,
    /// First row whose next token's loss is requested.
    pub(super) from: usize,
    pub(super) last_logits: bool,
}

impl<'a> HeadRequest<'a> {
    /// Requests the losses of a whole sequence from row `from` on.
    pub(super) fn losses(ids: &'a [u32], from: usize) -> Self {
        Self { ids, rows: 0..ids.len(), from, last_logits: false }
    }

    /// First row of the piece whose next token's loss is requested; otherwise the piece's end.
    pub(super) fn first(&self) -> usize {
        self.from.clamp(self.rows.start, self.rows.end)
    }

    pub(super) fn checked(&self, output: HeadOutput) -> Result<HeadOutput, ModelProblem> {
        match output.losses.iter().position(|loss| !loss.is_finite()) {
            None => Ok(output),
            Some(at) => Err(ModelProblem::checkpoint(format!(
                "the loss of token {} is {}: the head or the last norm is damaged, or too large for float32",
                self.first() + at + 1,
                output.losses[at]
            ))),
        }
    }
}

/// Results of the head for a sequence, or for one of its pieces.
#[derive(Default)]
pub(super) struct HeadOutput {
    /// Losses of the tokens after the requested rows, in nats.
    pub(super) losses: Vec<f64>,
    pub(super) squares: Squares,
    pub(super) last_logits: Vec<f32>,
}

/// Layers and head of a model. Results have the same bits for any number of threads and any other sequences.
pub(super) trait Backend {
    /// Hidden states of a sequence or of one of its pieces, `[tokens, hidden_size]`.
    type State;
    /// Norm and projections of a layer's queries and keys.
    type QueryKeys;
    type Layer;
    /// State that a layer passes from one piece of a sequence to the next.
    type Carried;

    /// Takes the input of the first layer.
    fn state(&self, rows: Vec<f32>) -> Result<Self::State, ModelProblem>;

    fn query_keys(
        &self,
        index: usize,
        weights: LayerWeights,
    ) -> Result<Self::QueryKeys, ModelProblem>;

    fn layer(&self, index: usize, weights: LayerWeights) -> Result<Self::Layer, ModelProblem>;

    fn query_keys_of(layer: &Self::Layer) -> &Self::QueryKeys;

    /// Replaces states by those after a layer and returns the squares of each. If `should_continue` returns `false`
    /// meanwhile, both are undefined.
    fn apply(
        &self,
        layer: &Self::Layer,
        ropes: &Ropes<'_>,
        states: &mut [Self::State],
        carried: &mut [Option<Self::Carried>],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Squares>, ModelProblem>;

    /// Computes attention sums of a window with the states `state` before the layer.
    fn attention(
        &self,
        query_keys: &Self::QueryKeys,
        rope: Option<&Rope>,
        state: &Self::State,
        request: &LayersRequest,
    ) -> Result<LayerAttention, ModelProblem>;

    /// Applies the last norm and the head to every sequence or piece.
    fn head(
        &self,
        requests: &[HeadRequest<'_>],
        states: Vec<Self::State>,
    ) -> Result<Vec<HeadOutput>, ModelProblem>;
}
