//! The devices windows are measured on. Here: the processor.

use longsift_kernels::Kernel;
use longsift_stages::contract::compute::Compute;
use longsift_stages::first_layer_attention::{FirstLayer, WindowStatistics, WindowTokens};
use rayon::prelude::*;

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
}

impl Compute for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn kernel(&self) -> Kernel {
        self.kernel
    }

    fn measure(&self, layer: &FirstLayer, windows: &[WindowTokens]) -> Vec<WindowStatistics> {
        windows.par_iter().map(|window| layer.measure(self.kernel, window)).collect()
    }

    fn windows_in_flight(&self) -> usize {
        self.windows_in_flight
    }
}
