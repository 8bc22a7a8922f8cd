//! Whole models: locates and checks every tensor of every layer, and computes losses and hidden states of windows, layer
//! by layer. Memory holds a window's hidden states and one layer's weights, keys and values. Each layer's weights are
//! read once for several windows.

mod backend;
#[cfg(feature = "candle")]
mod candle;
mod candle_memory;
mod cpu;
mod dispatch;
mod embedding;
mod feed_forward;
mod forward;
mod identity;
mod layer_blocks;
mod located;
mod measured;
mod memory;
mod operations;
mod pass;
mod ropes;
mod sequences;

pub use dispatch::has_gpu;
pub use forward::{FORWARD_VERSION, ForwardOutput};
pub use located::{BackendName, WholeModel};
pub use memory::ForwardMemory;
pub use operations::ForwardOperations;
pub use sequences::{ShortWindow, short_windows};
