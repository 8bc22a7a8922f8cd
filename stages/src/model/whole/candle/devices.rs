//! Devices of the backend.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};

use crate::measures::language_model::ProductPrecision;
use crate::model::problem::{ModelProblem, ProblemKind};

/// Version of candle, on which the bits depend.
const VERSION: &str = "0.11.1";

/// Devices that may run a model: the processor, or the GPUs of this machine.
#[derive(Clone, Debug)]
pub(in crate::model::whole) struct CandleDevices {
    pub(in crate::model::whole) on_gpus: bool,
    pub(in crate::model::whole) precision: ProductPrecision,
    /// GPUs in use, by number.
    opened: Arc<Mutex<BTreeMap<u32, Device>>>,
}

impl CandleDevices {
    pub(in crate::model::whole) fn new(on_gpus: bool, precision: ProductPrecision) -> Self {
        Self { on_gpus, precision, opened: Arc::default() }
    }

    /// Returns the processor, or the GPU `number`, which is opened by the first call.
    pub(in crate::model::whole) fn open(&self, number: u32) -> Result<CandleDevice, ModelProblem> {
        let mut handle = Device::Cpu;
        if self.on_gpus {
            let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
            handle = match opened.get(&number) {
                Some(handle) => handle.clone(),
                None => Device::new_cuda(number as usize).map_err(failed)?,
            };
            opened.insert(number, handle.clone());
        }
        // Products of bf16 numbers are exact in TF32.
        #[cfg(feature = "candle-cuda")]
        candle_core::cuda::set_gemm_reduced_precision_f32(self.precision == ProductPrecision::Bf16);
        Ok(CandleDevice { handle, precision: self.precision })
    }

    /// Returns the name of the backend, its version and the kind of device: the bits depend on them.
    pub(in crate::model::whole) fn name(&self) -> String {
        format!("candle-{VERSION}-{}", if self.on_gpus { "cuda" } else { "cpu" })
    }
}

#[derive(Clone, Debug)]
pub(in crate::model::whole) struct CandleDevice {
    pub(super) handle: Device,
    pub(super) precision: ProductPrecision,
}

impl CandleDevice {
    pub(super) fn tensor(&self, numbers: Vec<f32>, shape: &[usize]) -> candle_core::Result<Tensor> {
        Tensor::from_vec(numbers, shape, &self.handle)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn failed(error: candle_core::Error) -> ModelProblem {
    let message = format!("the backend candle failed: {error}");
    let kind = if message.to_lowercase().contains("out of memory") {
        ProblemKind::Memory
    } else {
        ProblemKind::Device
    };
    ModelProblem { kind, ..ModelProblem::machine(message) }
        .with_hint("run again; if it fails again, use `--backend own`")
}

#[cfg(test)]
mod tests {
    use super::VERSION;

    #[test]
    fn the_version_is_that_of_the_lock() {
        let lock = include_str!("../../../../../Cargo.lock");
        let entry = format!("name = \"candle-core\"\nversion = \"{VERSION}\"\n");
        assert!(lock.contains(&entry), "VERSION differs from the version of candle in Cargo.lock");
    }
}
