//! Attention statistics of one window without the S×S matrix: longsift's hot path.
//!
//! [`attention_statistics`] reads queries and keys of one layer and returns, per head, how much attention goes to keys
//! that are at least `k` tokens away; [`BlockAttention`] how much goes from each block of tokens to each other.
//! [`TableWindow`] gathers their input from a layer-zero table, [`PackedWeights`] builds such a table and [`MappedFile`]
//! opens one. [`KeyValues`] is attention with values, as a layer of a whole model computes it, and
//! [`GatedLinearState`] attention of linear cost. [`reference_statistics`] and [`reference_gated_linear`] are the same
//! arithmetic as plain float64 loops.
//! [`recurrence`] needs token ids only.
//!
//! `kernel.rs` has the table of kernels and `dispatch.rs` runs code with the instructions of one.
//!
//! This is the only crate with `unsafe`: calls into code that is compiled for a processor feature, the memory map and a
//! setting of the allocator. It does not depend on model families, pipeline files or the device scheduler.

mod attend;
pub mod bench;
mod block;
mod block_attention;
#[cfg(target_arch = "x86_64")]
mod child;
pub mod cuda;
mod dispatch;
mod gated_linear;
mod gather;
mod int16;
mod kernel;
mod mapped;
mod masks;
mod norm;
mod online_softmax;
mod panels;
mod pointwise;
mod project;
mod projected;
pub mod recurrence;
mod reference;
mod rope;
mod simd;
mod simd_op;
mod spans;
mod statistics;
mod steps;
mod stream;
mod support;
mod tile;
mod transpose;
mod trigonometry;
mod window;
mod words;

pub use attend::{AttendScratch, KeyValues, QueryBlock};
pub use block_attention::{BlockAttention, BlockShares, MAX_BLOCKS, OneHead};
pub use gated_linear::{GatedLinearRows, GatedLinearShape, GatedLinearState};
pub use gather::{HeadNorms, TableView, TableWindow};
pub use kernel::Kernel;
pub use mapped::MappedFile;
pub use norm::{layer_norm, rms_norm};
pub use panels::ElementType;
pub use pointwise::{LogSumExp, Pointwise};
pub use project::PackedWeights;
pub use projected::{ProjectedHeads, ProjectedWindow, WindowRows};
pub use reference::{reference_gated_linear, reference_rows, reference_statistics};
pub use rope::{Rope, RopeStyle, Rotation};
pub use spans::{RowSpan, span_bytes, span_masses};
pub use statistics::{
    AttentionShape, HeadSums, LogitRules, QueryKeySource, RowSample, WindowSums, histogram_bins,
};
pub use stream::{attention_statistics, head_statistics, statistics_without_sinks, window_bytes};

/// Version of the arithmetic that scores depend on. Part of the score fingerprint; incremented when any bit of a
/// kernel's result changes.
pub const STATISTICS_VERSION: u32 = 5;

/// Makes glibc return arrays of 1 MiB and more to the system as soon as they are freed. Otherwise it keeps them in
/// fragments that are too small for the next layer of a model, and the process grows to nearly twice the computed size.
///
/// Programs with many small windows should not call it: they take about 8 % more processor time. No effect with other C
/// libraries.
pub fn return_freed_arrays() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` only changes a setting of the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
