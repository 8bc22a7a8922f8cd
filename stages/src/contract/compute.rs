//! Device interface: the hardware that measures windows.

use std::ops::Range;

use longsift_kernels::{HeadSums, Kernel};

use crate::first_layer_attention::{FirstLayer, WindowTokens};
use crate::model::AttentionSpec;

/// Hardware that measures windows: the CPU or a GPU.
///
/// A device never changes a score: statistics depend on the kernel and the table, not on the device, on the order of
/// the windows or on the grouping of their heads. Several threads call it at once, as many as the scheduler admits.
pub trait Compute: Send + Sync {
    /// Returns the name of the device: `cpu`, `cuda:0`.
    fn name(&self) -> &str;
    fn kernel(&self) -> Kernel;
    /// Returns the bytes of device memory that stay allocated while windows of a layer are measured: the device's
    /// copy of the table, if it has one. `table_bytes`: size of the table with its auxiliary tensors.
    fn resident_bytes(&self, layer: &AttentionSpec, table_bytes: u64) -> u64;
    /// Loads the resident data. Called once before the first window, and again after a failure.
    fn load(&self, layer: &FirstLayer) -> Result<(), DeviceFailure>;
    /// Returns an upper bound of the device memory that a window of `tokens` tokens takes while these key heads are
    /// measured, in addition to the resident bytes.
    fn window_bytes(&self, layer: &AttentionSpec, tokens: usize, key_heads: Range<usize>) -> u64;
    /// Returns the bytes of device memory that this process holds now: resident data, windows in progress and cached
    /// buffers. The rest of the memory in use belongs to other processes.
    fn held_bytes(&self) -> u64;
    /// Returns the bytes of [`Compute::held_bytes`] that are cached for later windows. They may exceed what the windows
    /// in progress have reserved.
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
}

/// Reason why a device did not measure a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFailure {
    /// Memory allocation failed in spite of the estimate; the device itself works.
    #[error("out of memory: requested {wanted} bytes, {free} free")]
    OutOfMemory {
        /// Bytes requested.
        wanted: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The device is lost for good: fallen off the bus, or its context destroyed.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// This window could not be measured; others may succeed.
    #[error("{0}")]
    Failed(String),
}
