//! Devices that measure windows: the processor, GPUs, or simulated ones.

use std::sync::Arc;

use longsift_kernels::{AttentionShape, Kernel};
use longsift_stages::contract::compute::Compute;
use longsift_stages::load_partial_model::Precision;
use longsift_stages::shard_across_devices::ShardAcrossDevices;

use super::ledger::Ledger;

#[derive(Clone)]
pub struct Devices {
    /// At least one.
    pub list: Vec<Device>,
    /// Reason for the choice: `as set`, `no NVIDIA driver was found`.
    pub why: String,
    pub threads: usize,
    /// Kernel that all of them run: scores of different kernels are never mixed.
    pub kernel: Kernel,
}

impl Devices {
    pub fn is_cpu(&self) -> bool {
        self.list.len() == 1 && self.list[0].compute.name() == "cpu"
    }

    /// Returns the devices for passes of whole models, which run one at a time on each.
    #[must_use]
    pub fn for_passes(&self) -> Self {
        let one = |device: &Device| Device { workers: 1, ..device.clone() };
        Self { list: self.list.iter().map(one).collect(), ..self.clone() }
    }

    pub fn most_available(&self) -> u64 {
        let states = self.list.iter().filter_map(|device| device.ledger.memory_state().ok());
        states.map(|state| state.available).max().unwrap_or(0)
    }

    pub fn names(&self) -> String {
        self.list.iter().map(|device| device.compute.name()).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Clone)]
pub struct Device {
    pub compute: Arc<dyn Compute>,
    pub ledger: Arc<Ledger>,
    /// Maximum concurrent windows.
    pub workers: usize,
    /// UUID of a GPU, which does not depend on `CUDA_VISIBLE_DEVICES`.
    pub uuid: Option<String>,
}

impl Device {
    /// Number of windows of `window_bytes` bytes that fit into the free memory in addition to `resident_bytes`, at least one.
    pub fn fitting_windows(&self, window_bytes: u64, resident_bytes: u64) -> usize {
        let available = self.ledger.memory_state().map_or(0, |state| state.available);
        let fitting = available.saturating_sub(resident_bytes) / window_bytes.max(1);
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, self.workers)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct DeviceCriteria<'a> {
    pub settings: &'a ShardAcrossDevices,
    pub kernel: Kernel,
    /// Kernel requested by name, for the processor or GPUs.
    pub named: Option<Kernel>,
    /// Shape of the windows, if the model is known.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs are chosen by it"))]
    pub shape: Option<&'a AttentionShape>,
    pub precision: Precision,
    pub threads: usize,
    /// Bytes that `memory_limit_bytes` leaves for windows on the processor.
    pub window_memory_bytes: u64,
}
