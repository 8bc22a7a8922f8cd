//! Selection of a model's backend, and calls to it.

#[cfg(feature = "candle")]
use super::candle::devices::CandleDevices;
#[cfg(feature = "candle")]
use super::candle_memory;
use super::cpu;
use super::located::{BackendName, Chosen, WholeModel};
use super::memory::{ForwardMemory, Sequences};
use crate::measures::language_model::ProductPrecision;
use crate::model::problem::ModelProblem;

/// Evaluates an expression with the backend of a model, on a GPU of this number if it uses GPUs.
macro_rules! on_backend {
    ($model:expr, $gpu:expr, $backend:ident => $result:expr) => {
        match &$model.backend {
            $crate::model::whole::located::Chosen::Own => {
                let _: u32 = $gpu;
                let $backend = $crate::model::whole::cpu::CpuBackend($model);
                $result
            }
            #[cfg(feature = "candle")]
            $crate::model::whole::located::Chosen::Candle(devices) => {
                let device = &devices.open($gpu)?;
                let $backend = $crate::model::whole::candle::Candle { model: $model, device };
                $result
            }
        }
    };
}
pub(super) use on_backend;

impl WholeModel {
    /// Selects a backend and the precision of its products. `on_gpus`: GPUs run the model if the backend is candle and
    /// this build supports them. The default is candle on GPUs, or for a precision that only candle has, and otherwise
    /// the own one.
    pub fn with_backend(
        mut self,
        name: Option<BackendName>,
        precision: ProductPrecision,
        on_gpus: bool,
    ) -> Result<Self, ModelProblem> {
        let on_gpus = on_gpus && cfg!(feature = "candle-cuda");
        let linear = self.layers.iter().position(|layer| layer.spec.gated_linear.is_some());
        let name = name.unwrap_or_else(|| {
            let on_gpus = on_gpus && linear.is_none();
            let candle = on_gpus || precision != ProductPrecision::F32;
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
            self.backend = Chosen::Candle(CandleDevices::new(on_gpus, precision));
            // It computes the embedding, with the same bits on every machine.
            self.kernel = longsift_kernels::Kernel::PortableF32;
            Ok(self)
        }
        #[cfg(not(feature = "candle"))]
        Err(ModelProblem::settings("this build does not have the backend candle").with_hint(
            "build with `--features candle`, or use `--backend own` with `precision: f32`",
        ))
    }

    /// Returns the name of the kernel or backend that determines the bits.
    pub fn backend_name(&self) -> String {
        match &self.backend {
            Chosen::Own => self.kernel.name().to_owned(),
            #[cfg(feature = "candle")]
            Chosen::Candle(devices) => devices.name(),
        }
    }

    pub fn precision(&self) -> ProductPrecision {
        match &self.backend {
            Chosen::Own => ProductPrecision::F32,
            #[cfg(feature = "candle")]
            Chosen::Candle(devices) => devices.precision,
        }
    }

    pub fn on_gpus(&self) -> bool {
        match &self.backend {
            Chosen::Own => false,
            #[cfg(feature = "candle")]
            Chosen::Candle(devices) => devices.on_gpus,
        }
    }

    /// Peak heap memory of [`Self::forward`] for one window, independent of the number of layers.
    pub fn memory(&self, tokens: u64, threads: u64) -> ForwardMemory {
        self.memory_for(
            &Sequences { lengths: vec![tokens], attention: None, losses: true },
            threads,
        )
    }

    /// Like [`Self::memory`], for any sequences and results.
    pub(super) fn memory_for(&self, sequences: &Sequences<'_>, threads: u64) -> ForwardMemory {
        match &self.backend {
            Chosen::Own => cpu::memory::estimate(self, sequences, threads),
            #[cfg(feature = "candle")]
            Chosen::Candle(devices) => candle_memory::estimate(self, devices.on_gpus, sequences),
        }
    }
}

/// Whether this build can use a GPU of this machine.
pub fn has_gpu() -> bool {
    #[cfg(feature = "candle-cuda")]
    return candle_core::utils::cuda_is_available() && candle_core::Device::new_cuda(0).is_ok();
    #[cfg(not(feature = "candle-cuda"))]
    false
}
