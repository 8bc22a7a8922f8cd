//! Where windows are measured: the processor, GPUs, or what stands in for GPUs in a test.

pub mod catalogue;
mod choose;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod nvml;
pub mod simulated;
pub mod size;
pub mod survey;
mod visible;

use longsift_kernels::Kernel;

pub use choose::{Choice, NoDevices, choose, visible_gpus};
pub use cpu::Cpu;

use crate::schedule::Device;

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
