//! The device trait: a place where windows are scored.

use std::ops::Range;

use longsift_kernels::{HeadSums, Kernel};

use crate::first_layer_attention::{FirstLayer, WindowTokens};
use crate::model::LayerZeroSpec;

/// A place where windows are scored: the processor, a GPU.
///
/// A device never changes a score: statistics depend on the kernel and the table, not on where, beside what or in
/// which order a window is measured, nor on how its heads are grouped. Calls come from several threads at once, as many
/// as the scheduler admits.
pub trait Compute: Send + Sync {
    /// `cpu`, `cuda:0`.
    fn name(&self) -> &str;
    /// The kernel this device runs.
    fn kernel(&self) -> Kernel;
    /// Bytes of the device's own memory that stay taken while windows of a layer are measured: the table, where the
    /// device has a copy of it. `table_bytes`: rows and what lies beside them.
    fn resident_bytes(&self, layer: &LayerZeroSpec, table_bytes: u64) -> u64;
    /// Brings those bytes there. Called once before the first window, and again after a failure.
    fn load(&self, layer: &FirstLayer) -> Result<(), DeviceFailure>;
    /// Bytes of the device's own memory that a window of `tokens` tokens takes while these key heads are measured,
    /// besides the resident ones; at most.
    fn window_bytes(&self, layer: &LayerZeroSpec, tokens: usize, key_heads: Range<usize>) -> u64;
    /// Bytes of the device's own memory that this process holds now: resident ones, windows being measured, buffers kept
    /// for later. What a memory query shows beyond them is someone else's.
    fn held_bytes(&self) -> u64;
    /// How many of them are kept for windows to come and may be larger than what is reserved for those under way.
    fn kept_bytes(&self) -> u64 {
        0
    }
    /// Measures the query heads of these key heads; waits until it is done.
    fn measure(
        &self,
        layer: &FirstLayer,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceFailure>;
}

/// Why a device did not measure a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFailure {
    /// Its memory did not suffice, whatever was reckoned before. The device is well.
    #[error("out of memory: {wanted} bytes wanted, {free} free")]
    OutOfMemory {
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// It is gone for good: fallen off the bus, its context destroyed.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// It did not measure this window; others may go well.
    #[error("{0}")]
    Failed(String),
}
