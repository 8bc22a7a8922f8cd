//! Backend of this project's own kernels, on processors.

mod gated_linear;
mod head;
mod layer;
pub(super) mod memory;
mod query_keys;

use longsift_kernels::Rope;
use rayon::prelude::*;

use self::gated_linear::{Carried, PIECE_TOKENS};
use self::layer::Layer;
use self::memory::parallel_groups;
pub(super) use self::query_keys::QueryKeys;
use super::backend::{Backend, HeadOutput, HeadRequest, Squares};
use super::located::WholeModel;
use super::ropes::Ropes;
use crate::contract::{LayerAttention, LayersRequest};
use crate::model::problem::ModelProblem;
use crate::model::weights::LayerWeights;

pub(super) struct CpuBackend<'m>(pub(super) &'m WholeModel);

impl<'m> Backend for CpuBackend<'m> {
    type State = Vec<f32>;
    type QueryKeys = QueryKeys<'m>;
    type Layer = Layer<'m>;
    type Carried = Carried;

    fn state(&self, rows: Vec<f32>) -> Result<Vec<f32>, ModelProblem> {
        Ok(rows)
    }

    fn query_keys(
        &self,
        index: usize,
        mut weights: LayerWeights,
    ) -> Result<QueryKeys<'m>, ModelProblem> {
        Ok(QueryKeys::new(&self.0.layers[index].spec, self.0.kernel, &mut weights))
    }

    fn layer(&self, index: usize, weights: LayerWeights) -> Result<Layer<'m>, ModelProblem> {
        Ok(Layer::new(self.0, index, weights))
    }

    fn query_keys_of<'l>(layer: &'l Layer<'m>) -> &'l QueryKeys<'m> {
        layer.query_keys()
    }

    /// States run in parallel as long as their tokens together do not exceed those of the longest state, or of a piece
    /// with gated linear attention. Short windows thus use all threads, with the memory of the longest one.
    fn apply(
        &self,
        layer: &Layer<'m>,
        ropes: &Ropes<'_>,
        states: &mut [Vec<f32>],
        carried: &mut [Option<Carried>],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Squares>, ModelProblem> {
        let hidden = self.0.spec().hidden_size as usize;
        let spec = layer.spec;
        let max = spec.gated_linear.as_ref().map(|_| PIECE_TOKENS * hidden);
        let lengths: Vec<usize> = states.iter().map(Vec::len).collect();
        let mut rest = (&mut *states, carried);
        for count in parallel_groups(&lengths, max) {
            let (group, later) = rest.0.split_at_mut(count);
            let (carried, carried_later) = rest.1.split_at_mut(count);
            group.par_iter_mut().zip(carried).for_each(|(state, carried)| {
                let rope = ropes.get(spec.rope.as_ref(), state.len() / hidden);
                layer.apply(rope, state, carried, should_continue);
            });
            rest = (later, carried_later);
        }
        Ok(states.iter().map(|state| Squares::new(state, self.0.summed())).collect())
    }

    fn attention(
        &self,
        query_keys: &QueryKeys<'m>,
        rope: Option<&Rope>,
        state: &Vec<f32>,
        request: &LayersRequest,
    ) -> Result<LayerAttention, ModelProblem> {
        Ok(query_keys.attention(rope, state, request))
    }

    fn head(
        &self,
        requests: &[HeadRequest<'_>],
        states: Vec<Vec<f32>>,
    ) -> Result<Vec<HeadOutput>, ModelProblem> {
        head::finish(self.0, requests, states)
    }
}
