//! GPUs as reported by the NVIDIA management library: names, UUIDs, memory of all processes, utilisation.
//!
//! The library comes with the driver and is loaded at run time; without it no GPU is used. It orders GPUs by PCI bus and
//! ignores `CUDA_VISIBLE_DEVICES`, which selects and orders the GPUs of a program, so GPUs are identified by UUID.

use std::sync::OnceLock;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::ledger::Memory;

#[derive(Clone, Copy, Debug)]
pub struct NvmlGpu {
    device: &'static Device<'static>,
    pub name: &'static str,
    /// `GPU-…`: independent of the order of GPUs.
    pub uuid: &'static str,
}

/// Lists the GPUs of this machine by PCI bus. Fails if the driver is missing or does not respond.
fn gpus() -> Result<Vec<NvmlGpu>, String> {
    static GPUS: OnceLock<Result<Vec<NvmlGpu>, String>> = OnceLock::new();
    let explain = |error| match error {
        NvmlError::LibloadingError(_) => "no NVIDIA driver was found".to_owned(),
        other => format!("the NVIDIA driver does not respond: {other}"),
    };
    GPUS.get_or_init(|| find().map_err(explain)).clone()
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

impl NvmlGpu {
    /// Reads its memory, used by all processes; the driver's own memory counts as used. Fails if the GPU has fallen off the bus.
    pub fn memory(&self) -> Result<Memory, String> {
        let memory = self.device.memory_info().map_err(|error| error.to_string())?;
        Ok(Memory { total: memory.total, used: memory.total.saturating_sub(memory.free) })
    }

    /// Percentage of recent time in which a kernel ran on it.
    pub fn utilisation(&self) -> Option<u32> {
        self.device.utilization_rates().ok().map(|rates| rates.gpu)
    }
}

/// Returns the indexes in `uuids` (ordered by PCI bus) of the visible GPUs, in the order of `cuda:0`, `cuda:1`, …
///
/// Entries are numbers or prefixes of UUIDs. As in CUDA, the first entry that is invalid or repeated ends the list.
fn visible(variable: Option<&str>, uuids: &[&str]) -> Vec<usize> {
    let Some(variable) = variable else { return (0..uuids.len()).collect() };
    let mut positions = Vec::new();
    for entry in variable.split(',') {
        match position(entry.trim(), uuids) {
            Some(position) if !positions.contains(&position) => positions.push(position),
            _ => break,
        }
    }
    positions
}

fn position(entry: &str, uuids: &[&str]) -> Option<usize> {
    if let Ok(number) = entry.parse::<usize>() {
        return (number < uuids.len()).then_some(number);
    }
    let mut matching = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(entry));
    let first = matching.next().filter(|_| entry.starts_with("GPU-"))?;
    matching.next().is_none().then_some(first.0)
}

/// Lists the GPUs that this process may use, in CUDA's order.
pub fn visible_gpus() -> Result<Vec<NvmlGpu>, String> {
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    if variable.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let gpus = gpus()?;
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid).collect();
    Ok(visible(variable.as_deref(), &uuids).into_iter().map(|index| gpus[index]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [&str; 4] = ["GPU-aa01", "GPU-aa02", "GPU-bb03", "GPU-cc04"];

    #[test]
    fn all_gpus_are_visible_without_the_variable_and_none_if_it_is_empty() {
        assert_eq!(visible(None, &UUIDS), [0, 1, 2, 3]);
        assert!(visible(Some(""), &UUIDS).is_empty());
        assert!(visible(Some("-1"), &UUIDS).is_empty());
    }

    #[test]
    fn numbers_and_uuid_prefixes_set_the_order() {
        assert_eq!(visible(Some("2,0"), &UUIDS), [2, 0]);
        assert_eq!(visible(Some("GPU-cc, GPU-aa02,1"), &UUIDS), [3, 1]);
    }

    #[test]
    fn first_invalid_entry_ends_the_list() {
        assert_eq!(visible(Some("1,9,0"), &UUIDS), [1]);
        assert_eq!(visible(Some("0,0,1"), &UUIDS), [0]);
        assert_eq!(visible(Some("3,GPU-aa,0"), &UUIDS), [3], "the prefix matches two GPUs");
    }
}
