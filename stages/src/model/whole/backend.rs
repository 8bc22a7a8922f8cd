//! Interface of backends: implementations of a model's layers and head; and the choice of one.

use longsift_kernels::Rope;

#[cfg(feature = "candle")]
use super::candle::Place;
use super::figures::Squares;
use super::located::WholeModel;
use super::memory::{ForwardMemory, Sequences};
use super::pass::{HeadOutput, HeadRequest};
use super::ropes::Ropes;
use crate::contract::{LayerAttention, LayersRequest};
use crate::measures::language_model::ProductPrecision;
use crate::model::problem::ModelProblem;
use crate::model::weights::LayerWeights;

/// Name of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// This project's own kernels, on processors.
    Own,
    /// candle, on processors and GPUs.
    Candle,
}

impl BackendName {
    /// Returns the backend with a recorded [`WholeModel::backend_name`].
    pub fn recorded(name: &str) -> Self {
        if name.starts_with("candle-") { Self::Candle } else { Self::Own }
    }
}

/// Backend of a model.
#[derive(Clone, Debug)]
pub(super) enum Chosen {
    Own,
    #[cfg(feature = "candle")]
    Candle(Place),
}

/// Evaluates an expression with the backend of a model.
macro_rules! on_backend {
    ($model:expr, $backend:ident => $result:expr) => {
        match &$model.backend {
            $crate::model::whole::backend::Chosen::Own => {
                let $backend = $crate::model::whole::cpu::Cpu($model);
                $result
            }
            #[cfg(feature = "candle")]
            $crate::model::whole::backend::Chosen::Candle(place) => {
                let $backend = $crate::model::whole::candle::Candle { model: $model, place };
                $result
            }
        }
    };
}
pub(super) use on_backend;

impl WholeModel {
    /// Selects a backend and the precision of its products. By default this is candle on a GPU, or for a precision that
    /// only candle has, and otherwise the own one.
    ///
    /// # Errors
    /// This build lacks the backend, or the backend lacks the precision or a layer of the model.
    pub fn with_backend(
        mut self,
        name: Option<BackendName>,
        precision: ProductPrecision,
    ) -> Result<Self, ModelProblem> {
        let linear = self.layers.iter().position(|layer| layer.spec.gated_linear.is_some());
        let name = name.unwrap_or_else(|| {
            let on_gpu = linear.is_none() && has_gpu();
            let candle = on_gpu || precision != ProductPrecision::F32;
            if candle { BackendName::Candle } else { BackendName::Own }
        });
        if name == BackendName::Own {
            if precision == ProductPrecision::F32 {
                self.backend = Chosen::Own;
                return Ok(self);
            }
            let message = "`precision: bf16` is computed by the backend candle only";
            return Err(ModelProblem::settings(message)
                .with_hint("use `--backend candle`, or leave `precision` out"));
        }
        if let Some(layer) = linear {
            let message = format!(
                "the backend candle does not compute gated linear attention, as in layer {layer} of this `{}` model",
                self.spec().model_type
            );
            let hint = "use `--backend own` with `precision: f32`";
            return Err(ModelProblem::settings(message).with_hint(hint));
        }
        #[cfg(feature = "candle")]
        {
            self.backend = Chosen::Candle(Place::open(precision));
            // It computes the embedding, with the same bits on every machine.
            self.kernel = longsift_kernels::Kernel::PortableF32;
            Ok(self)
        }
        #[cfg(not(feature = "candle"))]
        Err(ModelProblem::settings("this build does not have the backend candle").with_hint(
            "build with `--features candle`, or use `--backend own` with `precision: f32`",
        ))
    }

    /// Name of the kernel or backend that determines the bits.
    pub fn backend_name(&self) -> String {
        match &self.backend {
            Chosen::Own => self.kernel.name().to_owned(),
            #[cfg(feature = "candle")]
            Chosen::Candle(place) => place.name(),
        }
    }

    /// Free memory of the device if it has its own.
    pub fn device_bytes(&self) -> Option<u64> {
        match &self.backend {
            Chosen::Own => None,
            #[cfg(feature = "candle")]
            Chosen::Candle(place) => place.free_bytes(),
        }
    }
}

/// Whether this build can use a GPU of this machine.
fn has_gpu() -> bool {
    #[cfg(feature = "candle-cuda")]
    return !Place::open(ProductPrecision::F32).is_cpu();
    #[cfg(not(feature = "candle-cuda"))]
    false
}

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
