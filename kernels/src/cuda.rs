//! Attention statistics on NVIDIA GPUs: one copy of the layer-zero table per device, token ids in, sums out.
//!
//! [`CudaDevice`] holds the table and measures windows; [`window_bytes`] returns the memory of a window beforehand. Both are plain
//! Rust over a [`Driver`], so that the tests run the same code, kernels included, on a processor. The driver of real GPUs is
//! `nvidia`, with the feature `cuda`.
//!
//! The kernels are in `cuda/device/`: `gather_rope.cu` computes queries and keys from table rows; `attention_v1.cu`,
//! `attention_v2.cu`, `attention_v3.cu` and `attention_f32.cu` reduce them to sums per block of rows, which are then added in a
//! fixed order.

mod arena;
mod device;
mod driver;
mod filling;
#[cfg(feature = "cuda")]
pub mod nvidia;
mod parameters;
mod plan;
mod request;

pub use device::CudaDevice;
pub use driver::{DeviceError, DeviceMemory, Driver, Launch, TensorMapRequest};
pub use parameters::TensorMap;
pub use plan::{SourceSizes, unsupported_reason, window_bytes};
pub use request::{Operands, WindowRequest};
