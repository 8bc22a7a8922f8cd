//! Interface of backends: implementations of a model's layers and head.

use longsift_kernels::Rope;

use super::figures::Squares;
use super::memory::{ForwardMemory, Sequences};
use super::pass::{HeadOutput, HeadRequest};
use super::ropes::Ropes;
use crate::contract::{LayerAttention, LayersRequest};
use crate::model::problem::ModelProblem;
use crate::model::weights::LayerWeights;

/// Computes the layers and the head of a model. Results of a sequence have the same bits for any number of threads and
/// any other sequences.
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

    /// Takes the weights of the queries and keys of layer `index`.
    fn query_keys(
        &self,
        index: usize,
        weights: LayerWeights,
    ) -> Result<Self::QueryKeys, ModelProblem>;

    /// Takes the weights of layer `index`.
    fn layer(&self, index: usize, weights: LayerWeights) -> Result<Self::Layer, ModelProblem>;

    /// Returns the queries and keys of a layer with softmax attention.
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

    /// Peak memory of a run.
    fn memory(&self, sequences: &Sequences<'_>, threads: u64) -> ForwardMemory;
}
