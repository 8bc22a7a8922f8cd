//! Backend on candle: the same computation on processors and on NVIDIA GPUs, in float32 with row sums in float64.
//!
//! Sequences run one after the other, in blocks of rows that depend on the model and the sequence only, so other
//! sequences change no bit.

mod attention;
mod head;
mod layer;
mod memory;
mod numbers;

use candle_core::{Device, Tensor};
use longsift_kernels::Rope;

use self::attention::QueryKeys;
use self::layer::Layer;
use super::backend::Backend;
use super::figures::Squares;
use super::located::WholeModel;
use super::memory::{ForwardMemory, Sequences};
use super::pass::{HeadOutput, HeadRequest};
use super::ropes::Ropes;
use crate::contract::{LayerAttention, LayersRequest};
use crate::measures::language_model::ProductPrecision;
use crate::model::problem::{ModelProblem, ProblemKind};
use crate::model::weights::LayerWeights;

/// Version of candle, which the bits depend on.
const VERSION: &str = "0.11.1";
/// Rows that the projections of a layer and the head are applied to at a time.
const BLOCK_ROWS: usize = 512;
/// Maximum rows of a block of attention.
const ATTENTION_ROWS: usize = 128;

/// Device that computes a model, and the precision of its products.
#[derive(Clone, Debug)]
pub(super) struct Place {
    device: Device,
    precision: ProductPrecision,
}

impl Place {
    /// Opens the first GPU if this build supports GPUs and one is there, otherwise the processor.
    pub(super) fn open(precision: ProductPrecision) -> Self {
        let device = Device::cuda_if_available(0).unwrap_or(Device::Cpu);
        // Products of bf16 numbers are exact in TF32.
        #[cfg(feature = "candle-cuda")]
        candle_core::cuda::set_gemm_reduced_precision_f32(precision == ProductPrecision::Bf16);
        Self { device, precision }
    }

    /// Free memory of a GPU.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        match &self.device {
            #[cfg(feature = "candle-cuda")]
            Device::Cuda(device) => {
                let (free, _) = device.cuda_stream().context().mem_get_info().ok()?;
                Some(free as u64)
            }
            _ => None,
        }
    }

    /// Whether this is the processor.
    #[cfg(feature = "candle-cuda")]
    pub(super) fn is_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    /// Name of everything except the weights that determines the bits.
    pub(super) fn name(&self) -> String {
        let kind = if self.device.is_cpu() { "cpu" } else { "cuda" };
        format!("candle-{VERSION}-{kind}")
    }

    /// Bytes of the logits of a block of attention: they fit a processor's cache, and fill a GPU.
    fn attention_bytes(&self) -> usize {
        if self.device.is_cpu() { 1 << 20 } else { 128 << 20 }
    }

    /// Moves numbers to the device.
    fn tensor(&self, numbers: Vec<f32>, shape: &[usize]) -> candle_core::Result<Tensor> {
        Tensor::from_vec(numbers, shape, &self.device)
    }
}

/// Converts an error of candle.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: candle_core::Error) -> ModelProblem {
    let message = format!("the backend candle failed: {error}");
    let kind = if message.to_lowercase().contains("out of memory") {
        ProblemKind::Memory
    } else {
        ProblemKind::Machine
    };
    ModelProblem { kind, ..ModelProblem::machine(message) }
        .with_hint("run again; if it fails again, use `--backend own`")
}

/// A model on a device.
pub(super) struct Candle<'m> {
    pub(super) model: &'m WholeModel,
    pub(super) place: &'m Place,
}

impl<'m> Backend for Candle<'m> {
    type State = Tensor;
    type QueryKeys = QueryKeys<'m>;
    type Layer = Layer<'m>;
    type Carried = ();

    fn state(&self, rows: Vec<f32>) -> Result<Tensor, ModelProblem> {
        let hidden = self.model.spec().hidden_size as usize;
        let tokens = rows.len() / hidden;
        self.place.tensor(rows, &[tokens, hidden]).map_err(failed)
    }

    fn query_keys(
        &self,
        index: usize,
        mut weights: LayerWeights,
    ) -> Result<QueryKeys<'m>, ModelProblem> {
        QueryKeys::new(self.place, &self.model.layers[index].spec, &mut weights).map_err(failed)
    }

    fn layer(&self, index: usize, weights: LayerWeights) -> Result<Layer<'m>, ModelProblem> {
        Layer::new(self.model, self.place, index, weights).map_err(failed)
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
        head::finish(self.model, self.place, requests, states)
    }

    fn memory(&self, sequences: &Sequences<'_>, _threads: u64) -> ForwardMemory {
        memory::estimate(self.model, self.place, sequences)
    }
}

#[cfg(test)]
mod tests {
    use super::VERSION;

    #[test]
    fn the_version_is_that_of_the_lock() {
        let lock = include_str!("../../../../Cargo.lock");
        let entry = format!("name = \"candle-core\"\nversion = \"{VERSION}\"\n");
        assert!(lock.contains(&entry), "VERSION is that of another candle");
    }
}
