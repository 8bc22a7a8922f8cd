//! Device of the backend, and its limits.

use candle_core::{Device, Tensor};

use crate::measures::language_model::ProductPrecision;
use crate::model::problem::{ModelProblem, ProblemKind};

/// Version of candle, which the bits depend on.
const VERSION: &str = "0.11.1";
/// Rows that the projections of a layer and the head are applied to at a time.
pub(super) const BLOCK_ROWS: usize = 512;
/// Maximum rows of a block of attention.
pub(super) const ATTENTION_ROWS: usize = 128;

/// Device that runs a model, and the precision of its products.
#[derive(Clone, Debug)]
pub(in crate::model::whole) struct CandleDevice {
    pub(super) device: Device,
    pub(super) precision: ProductPrecision,
}

impl CandleDevice {
    /// Opens the first GPU if this build supports GPUs and finds one, otherwise the processor.
    pub(in crate::model::whole) fn open(precision: ProductPrecision) -> Self {
        let device = Device::cuda_if_available(0).unwrap_or(Device::Cpu);
        // Products of bf16 numbers are exact in TF32.
        #[cfg(feature = "candle-cuda")]
        candle_core::cuda::set_gemm_reduced_precision_f32(precision == ProductPrecision::Bf16);
        Self { device, precision }
    }

    /// Returns the free bytes of a GPU; `None` for the processor, or if the query fails.
    pub(in crate::model::whole) fn free_bytes(&self) -> Option<u64> {
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
    pub(in crate::model::whole) fn is_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    pub(in crate::model::whole) fn precision(&self) -> ProductPrecision {
        self.precision
    }

    /// Returns the name of everything except the weights that determines the bits.
    pub(in crate::model::whole) fn name(&self) -> String {
        let kind = if self.device.is_cpu() { "cpu" } else { "cuda" };
        format!("candle-{VERSION}-{kind}")
    }

    /// Bytes of the logits of a block of attention: they fit a processor's cache, and fill a GPU.
    pub(super) fn attention_bytes(&self) -> usize {
        if self.device.is_cpu() { 1 << 20 } else { 128 << 20 }
    }

    /// Moves numbers to the device.
    pub(super) fn tensor(&self, numbers: Vec<f32>, shape: &[usize]) -> candle_core::Result<Tensor> {
        Tensor::from_vec(numbers, shape, &self.device)
    }
}

/// Converts an error of candle.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn failed(error: candle_core::Error) -> ModelProblem {
    let message = format!("the backend candle failed: {error}");
    let kind = if message.to_lowercase().contains("out of memory") {
        ProblemKind::Memory
    } else {
        ProblemKind::Machine
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
