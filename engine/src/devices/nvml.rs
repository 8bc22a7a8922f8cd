//! GPUs as reported by the NVIDIA management library: names, UUIDs, memory of all processes, utilisation.
//!
//! The library comes with the driver and is loaded at run time; without it no GPU is used. It orders GPUs by PCI bus and
//! ignores `CUDA_VISIBLE_DEVICES`, so GPUs are identified by UUID.

use std::sync::OnceLock;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::ledger::Memory;

#[derive(Clone, Copy, Debug)]
pub struct NvmlGpu {
    device: &'static Device<'static>,
    /// `NVIDIA H100 80GB HBM3`.
    pub name: &'static str,
    /// `GPU-…`: independent of the order of GPUs.
    pub uuid: &'static str,
}

/// Lists the GPUs of this machine by PCI bus.
///
/// # Errors
/// The driver is missing or does not respond.
pub fn gpus() -> Result<Vec<NvmlGpu>, String> {
    static GPUS: OnceLock<Result<Vec<NvmlGpu>, String>> = OnceLock::new();
    GPUS.get_or_init(|| find().map_err(|error| explain(&error))).clone()
}

fn find() -> Result<Vec<NvmlGpu>, NvmlError> {
    // Loaded once per process.
    let nvml: &'static Nvml = Box::leak(Box::new(Nvml::init()?));
    let gpu = |index| {
        let device: &'static Device<'static> = Box::leak(Box::new(nvml.device_by_index(index)?));
        Ok(NvmlGpu { device, name: device.name()?.leak(), uuid: device.uuid()?.leak() })
    };
    (0..nvml.device_count()?).map(gpu).collect()
}

fn explain(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "no NVIDIA driver was found".to_owned(),
        other => format!("the NVIDIA driver does not respond: {other}"),
    }
}

impl NvmlGpu {
    /// Reads its memory, used by all processes; the driver's own memory counts as used.
    ///
    /// # Errors
    /// The GPU does not respond, for example because it has fallen off the bus.
    pub fn memory(&self) -> Result<Memory, String> {
        let memory = self.device.memory_info().map_err(|error| error.to_string())?;
        Ok(Memory { total: memory.total, used: memory.total.saturating_sub(memory.free) })
    }

    /// Percentage of recent time in which a kernel ran on it.
    pub fn utilisation(&self) -> Option<u32> {
        self.device.utilization_rates().ok().map(|rates| rates.gpu)
    }
}
