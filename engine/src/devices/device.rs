//! Where windows are measured: the processor, GPUs, or what stands in for GPUs in a test.

use std::sync::Arc;

use longsift_kernels::{AttentionShape, ElementType, Kernel};
use longsift_stages::contract::compute::Compute;
use longsift_stages::shard_across_devices::ShardAcrossDevices;

use super::ledger::Ledger;

/// The devices of a run, and why these.
#[derive(Clone)]
pub struct Devices {
    /// At least one.
    pub list: Vec<Device>,
    /// Why these: `as set`, `no NVIDIA driver was found`.
    pub why: String,
    /// Threads of the processor.
    pub threads: usize,
    /// The kernel that all of them run: scores of two kernels are never mixed.
    pub kernel: Kernel,
}

impl Devices {
    /// Whether it is the processor that measures.
    pub fn is_cpu(&self) -> bool {
        self.list.len() == 1 && self.list[0].compute.name() == "cpu"
    }

    /// `cpu`, or `cuda:0, cuda:1`.
    pub fn names(&self) -> String {
        self.list.iter().map(|device| device.compute.name()).collect::<Vec<_>>().join(", ")
    }
}

/// A device that a run may use.
#[derive(Clone)]
pub struct Device {
    /// What measures.
    pub compute: Arc<dyn Compute>,
    /// Its memory.
    pub ledger: Arc<Ledger>,
    /// Windows it measures at a time, at most.
    pub workers: usize,
    /// The GPU's own name, where there is one: it stays the same whatever `CUDA_VISIBLE_DEVICES` says.
    pub uuid: Option<String>,
}

impl Device {
    /// Windows of `window_bytes` bytes that it can measure at a time as its memory is now, beside `resident_bytes`: at
    /// least one, in groups of heads if need be.
    pub fn windows_that_fit(&self, window_bytes: u64, resident_bytes: u64) -> usize {
        let available = self.ledger.memory_state().map_or(0, |state| state.available);
        let fitting = available.saturating_sub(resident_bytes) / window_bytes.max(1);
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, self.workers)
    }
}

/// What devices are chosen by.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The pipeline's settings.
    pub settings: &'a ShardAcrossDevices,
    /// The processor's kernel.
    pub kernel: Kernel,
    /// The kernel that was asked for by name, the processor's or GPUs'.
    pub named: Option<Kernel>,
    /// The windows, where the model is known.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "GPUs alone are chosen by it"))]
    pub shape: Option<&'a AttentionShape>,
    /// The numbers that kernels multiply.
    pub element_type: ElementType,
    /// Threads of the processor.
    pub threads: usize,
    /// Bytes that `memory_limit_bytes` leaves to windows on the processor.
    pub window_memory_bytes: u64,
    /// Bytes of a number in the table.
    pub number_bytes: u64,
}

/// Why devices cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDevices {
    /// Which key of the stage is to blame.
    pub key: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Windows in flight on a GPU by default: one that fills it, and one whose ids are sent and whose sums are read meanwhile.
#[cfg(feature = "cuda")]
pub(super) const GPU_WORKERS: usize = 2;
/// Windows in flight on a simulated device by default: the processor's threads share it, there is nothing to overlap.
pub(super) const SIMULATED_WORKERS: usize = 1;
