//! The device trait: a place where windows are scored.

use longsift_kernels::Kernel;

use crate::first_layer_attention::{FirstLayer, WindowStatistics, WindowTokens};

/// A place where windows are scored: the processor, later GPUs.
///
/// A device never changes a score: statistics depend on the kernel and the table, not on where, beside what or in
/// which order a window is measured.
pub trait Compute: Send + Sync {
    /// `cpu`, `cuda:0`.
    fn name(&self) -> &str;
    /// The kernel this device runs.
    fn kernel(&self) -> Kernel;
    /// Measures all of `windows` at once; the answers are in the order of the windows. The caller hands over at most
    /// [`Self::windows_in_flight`] at a time.
    fn measure(&self, layer: &FirstLayer, windows: &[WindowTokens]) -> Vec<WindowStatistics>;
    /// How many windows fit the device's memory and keep it busy.
    fn windows_in_flight(&self) -> usize;
}
