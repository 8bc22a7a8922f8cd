//! Whole models: every tensor of every layer located and checked, losses and hidden states of windows computed.
//!
//! A window is computed layer by layer, never token by token: memory holds its hidden states, one layer's keys and
//! values and one layer's weights, whatever the number of layers. Several windows share each layer's read.

mod embedding;
mod feed_forward;
mod figures;
mod forward;
mod head;
mod identity;
mod layer;
mod layer_blocks;
mod located;
mod measured;
mod memory;
mod norms;
mod packed;
mod query_keys;
mod ropes;
mod sequences;

pub use figures::Forward;
pub use forward::FORWARD_VERSION;
pub use located::WholeModel;
pub use memory::Memory;
pub use sequences::{ShortWindow, short_stride, short_windows};
