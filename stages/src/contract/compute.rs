//! Device interface: the hardware that measures windows.

use std::ops::Range;

use longsift_kernels::{HeadSums, Kernel};

use crate::contract::{ForwardRequest, ForwardStatistics};
use crate::first_layer_attention::{FirstLayer, WindowTokens};
use crate::model::{AttentionSpec, ModelProblem, ProblemKind, WholeModel};

/// Hardware that measures windows: the CPU or a GPU. Statistics do not depend on it, on the order of the windows or on the
/// grouping of their heads. Several threads call it at once, as many as the scheduler admits.
pub trait Compute: Send + Sync {
    /// Returns the name of the device: `cpu`, `cuda:0`.
    fn name(&self) -> &str;
    fn kernel(&self) -> Kernel;
    /// Returns the bytes of device memory that stay allocated: the device's copy of the table, if it has one.
    fn resident_bytes(&self, _layer: &AttentionSpec, _table_bytes: u64) -> u64 {
        0
    }
    /// Loads the resident data. Called once before the first window, and again after a failure.
    fn load(&self, _layer: &FirstLayer) -> Result<(), DeviceFailure> {
        Ok(())
    }
    /// Returns an upper bound of a window's device memory for these key heads, in addition to the resident bytes.
    fn window_bytes(&self, layer: &AttentionSpec, tokens: usize, key_heads: Range<usize>) -> u64;
    /// Returns the bytes of device memory that are cached for later windows, perhaps more than reserved.
    fn kept_bytes(&self) -> u64 {
        0
    }
    /// Measures the query heads of these key heads; blocks until it is done.
    fn measure(
        &self,
        layer: &FirstLayer,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceFailure>;
    /// Runs windows through a whole model; blocks until it is done. By default, the processor runs it.
    fn forward(&self, pass: &ForwardPass<'_>) -> Result<ForwardResult, DeviceFailure> {
        pass.run_on_gpu(0)
    }
}

/// Windows that run through a whole model together.
pub struct ForwardPass<'a> {
    pub model: &'a WholeModel,
    pub request: &'a ForwardRequest,
    pub windows: &'a [&'a [u32]],
    /// Upper bound of the device memory that they take.
    pub bytes: u64,
    /// Stops the pass when it returns `false`.
    pub should_continue: &'a (dyn Fn() -> bool + Sync),
}

/// Results of the windows of a pass; `None` if it was stopped.
pub type ForwardResult = Result<Option<Vec<ForwardStatistics>>, ModelProblem>;

impl ForwardPass<'_> {
    /// Runs the windows, on the GPU of this number if GPUs run the model.
    /// Problems of the model are part of the result.
    pub fn run_on_gpu(&self, gpu: u32) -> Result<ForwardResult, DeviceFailure> {
        let Self { model, request, windows, bytes, should_continue } = *self;
        match model.measure(gpu, request, windows, should_continue) {
            Err(ModelProblem { kind: ProblemKind::Memory, .. }) => {
                Err(DeviceFailure::OutOfMemory { wanted: bytes, free: 0 })
            }
            Err(ModelProblem { kind: ProblemKind::Device, message, .. }) => {
                Err(DeviceFailure::Failed(message))
            }
            result => Ok(result),
        }
    }
}

/// Reason why a device did not measure a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFailure {
    /// Memory allocation failed in spite of the estimate; the device itself works.
    #[error("out of memory: requested {wanted} bytes, {free} free")]
    OutOfMemory { wanted: u64, free: u64 },
    /// The device is lost for good: fallen off the bus, or its context destroyed.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// This window could not be measured; others may succeed.
    #[error("{0}")]
    Failed(String),
}
