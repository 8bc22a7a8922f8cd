//! The devices windows are measured on. Here: the processor.

use std::ops::Range;

use longsift_kernels::{HeadSums, Kernel};
use longsift_stages::contract::compute::{Compute, DeviceFailure};
use longsift_stages::first_layer_attention::{FirstLayer, WindowTokens};
use longsift_stages::model::LayerZeroSpec;

/// The processor: windows, heads and blocks of rows are spread over one pool of threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    kernel: Kernel,
    threads: usize,
    windows_in_flight: usize,
}

impl Cpu {
    /// A processor with `threads` threads, one window at a time.
    pub fn new(kernel: Kernel, threads: usize) -> Self {
        Self { kernel, threads, windows_in_flight: 1 }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Lets as many windows of `window_bytes` bytes be measured at a time as fit `budget` bytes, at most `limit`, at
    /// least one. Several at a time keep the threads busy where a window is short.
    pub fn admit(&mut self, window_bytes: u64, budget: u64, limit: usize) {
        let fitting = usize::try_from(budget / window_bytes.max(1)).unwrap_or(usize::MAX);
        self.windows_in_flight = fitting.min(limit).max(1);
    }

    /// Windows measured at a time.
    pub fn windows_in_flight(&self) -> usize {
        self.windows_in_flight
    }
}

impl Compute for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// None: the table is mapped.
    fn resident_bytes(&self, _: &LayerZeroSpec, _: u64) -> u64 {
        0
    }

    fn load(&self, _: &FirstLayer) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// The heads of a window take turns, so their number does not matter.
    fn window_bytes(&self, layer: &LayerZeroSpec, tokens: usize, _: Range<usize>) -> u64 {
        longsift_kernels::window_bytes(&layer.attention_shape(tokens), self.threads)
            + layer.source_bytes(tokens as u64)
    }

    /// Not told apart from the rest of the process.
    fn held_bytes(&self) -> u64 {
        0
    }

    fn measure(
        &self,
        layer: &FirstLayer,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceFailure> {
        Ok(layer.measure_heads(self.kernel, window, key_heads))
    }
}
