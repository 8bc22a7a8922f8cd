//! Backend on candle: the same computation on processors and on NVIDIA GPUs, in float32 with row sums in float64.
//!
//! Sequences run one after the other, in blocks of rows that depend on the model and the sequence only, so other
//! sequences change no bit.

mod attention;
pub(super) mod devices;
mod head;
mod layer;
mod numbers;

use candle_core::Tensor;
use longsift_kernels::Rope;

use self::attention::QueryKeys;
use self::devices::{CandleDevice, failed};
use self::layer::Layer;
use super::backend::{Backend, HeadOutput, HeadRequest, Squares};
use super::located::WholeModel;
use super::ropes::Ropes;
use crate::contract::{LayerAttention, LayersRequest};
use crate::model::problem::ModelProblem;
use crate::model::weights::LayerWeights;

pub(super) struct Candle<'m> {
    pub(super) model: &'m WholeModel,
    pub(super) device: &'m CandleDevice,
}

impl<'m> Backend for Candle<'m> {
    type State = Tensor;
    type QueryKeys = QueryKeys<'m>;
    type Layer = Layer<'m>;
    type Carried = ();

    fn state(&self, rows: Vec<f32>) -> Result<Tensor, ModelProblem> {
        let hidden = self.model.spec().hidden_size as usize;
        let tokens = rows.len() / hidden;
        self.device.tensor(rows, &[tokens, hidden]).map_err(failed)
    }

    fn query_keys(
        &self,
        index: usize,
        mut weights: LayerWeights,
    ) -> Result<QueryKeys<'m>, ModelProblem> {
        QueryKeys::new(self.device, &self.model.layers[index].spec, &mut weights).map_err(failed)
    }

    fn layer(&self, index: usize, weights: LayerWeights) -> Result<Layer<'m>, ModelProblem> {
        Layer::new(self.model, self.device, index, weights).map_err(failed)
    }

    fn query_keys_of<'l>(layer: &'l Layer<'m>) -> &'l QueryKeys<'m> {
        &layer.query_keys
    }

    fn apply(
        &self,
        layer: &Layer<'m>,
        ropes: &Ropes<'_>,
        states: &mut [Tensor],
        _carried: &mut [Option<()>],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Squares>, ModelProblem> {
        let of_state = |state: &mut Tensor| {
            let rope = ropes.get(layer.query_keys.spec.rope.as_ref(), state.dims()[0]);
            layer.apply(rope, state, should_continue).map_err(failed)
        };
        states.iter_mut().map(of_state).collect()
    }

    fn attention(
        &self,
        query_keys: &QueryKeys<'m>,
        rope: Option<&Rope>,
        state: &Tensor,
        request: &LayersRequest,
    ) -> Result<LayerAttention, ModelProblem> {
        query_keys.attention(rope, state, request).map_err(failed)
    }

    fn head(
        &self,
        requests: &[HeadRequest<'_>],
        states: Vec<Tensor>,
    ) -> Result<Vec<HeadOutput>, ModelProblem> {
        head::finish(self.model, self.device, requests, states)
    }
}
