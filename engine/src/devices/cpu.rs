use std::ops::Range;

use longsift_kernels::{HeadSums, Kernel};
use longsift_stages::contract::compute::{Compute, DeviceFailure};
use longsift_stages::first_layer_attention::{FirstLayer, WindowTokens};
use longsift_stages::model::AttentionSpec;

/// The processor: distributes windows, heads and blocks of rows over one thread pool.
#[derive(Clone, Debug)]
pub struct Cpu {
    pub kernel: Kernel,
    pub threads: usize,
}

impl Compute for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Independent of the number of heads, which are processed in turn.
    fn window_bytes(&self, layer: &AttentionSpec, tokens: usize, _: Range<usize>) -> u64 {
        longsift_kernels::window_bytes(self.kernel, &layer.attention_shape(tokens), self.threads)
            + layer.source_bytes(tokens as u64)
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
