//! Parameters of the kernels, field by field as `device/parameters.cuh` declares them.

use bytemuck::{Pod, Zeroable};

/// Maximum segments of a row: enough for windows of fewer than 2^24 tokens.
pub(crate) const MAX_SEGMENTS: usize = 32;
/// Value for "no window" and "no chunk".
pub(crate) const UNBOUNDED: i32 = i32::MAX;

/// Formats of a table's numbers, with the values that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum TableFormat {
    F32 = 0,
    Bf16 = 1,
}

/// `GatherParameters`. Addresses are in device memory; 0 means a missing array.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct GatherParameters {
    pub(crate) table: u64,
    pub(crate) ids: u64,
    pub(crate) rows: u64,
    pub(crate) inverse_frequencies: u64,
    pub(crate) row_scale: u64,
    pub(crate) norm_weight: u64,
    pub(crate) out: u64,
    pub(crate) factor: f64,
    pub(crate) attention_factor: f64,
    pub(crate) norm_epsilon: f64,
    pub(crate) row_width: u64,
    pub(crate) first_number: u64,
    pub(crate) table_format: i32,
    pub(crate) heads: i32,
    pub(crate) row_count: i32,
    pub(crate) head_dim: i32,
    pub(crate) width: i32,
    pub(crate) rotary_pairs: i32,
    pub(crate) interleaved: i32,
    pub(crate) reserved: i32,
}

/// `AttentionParameters`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct AttentionParameters {
    pub(crate) queries: u64,
    pub(crate) keys: u64,
    pub(crate) shared_keys: u64,
    pub(crate) rows: u64,
    pub(crate) slopes: u64,
    pub(crate) sinks: u64,
    pub(crate) block_sums: u64,
    pub(crate) weights: u64,
    pub(crate) row_mass: u64,
    pub(crate) row_square: u64,
    pub(crate) tokens: i32,
    pub(crate) row_count: i32,
    pub(crate) heads: i32,
    pub(crate) group: i32,
    pub(crate) blocks: i32,
    pub(crate) width: i32,
    pub(crate) own_width: i32,
    pub(crate) window: i32,
    pub(crate) chunk: i32,
    pub(crate) causal: i32,
    pub(crate) softcap: f32,
    pub(crate) segments: i32,
    pub(crate) far: i32,
    pub(crate) distances: [i32; MAX_SEGMENTS],
    pub(crate) heads_per_block: i32,
}

/// A description of a tensor for the bulk copy engine, as the driver writes it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct TensorMap(pub [u64; 16]);

/// `TensorAttentionParameters`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct TensorAttentionParameters {
    pub(crate) queries: TensorMap,
    pub(crate) keys: TensorMap,
    pub(crate) shared_keys: TensorMap,
    pub(crate) attention: AttentionParameters,
    pub(crate) key_norms: u64,
    pub(crate) reserved: [u64; 6],
}

/// `KeyNormParameters`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct KeyNormParameters {
    pub(crate) keys: u64,
    pub(crate) shared_keys: u64,
    pub(crate) out: u64,
    pub(crate) tokens: i32,
    pub(crate) tiles: i32,
    pub(crate) width: i32,
    pub(crate) own_width: i32,
}

/// `SumParameters`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct SumParameters {
    pub(crate) blocks_in: u64,
    pub(crate) out: u64,
    pub(crate) blocks: i32,
    pub(crate) reserved: i32,
}

const _: () = {
    assert!(size_of::<GatherParameters>() == 128 && size_of::<AttentionParameters>() == 264);
    assert!(size_of::<TensorAttentionParameters>() == 704 && size_of::<SumParameters>() == 24);
    assert!(size_of::<KeyNormParameters>() == 40);
};
