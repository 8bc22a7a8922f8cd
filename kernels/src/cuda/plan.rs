//! Memory plan of a window on a device, to the byte: shapes that each kernel supports, and the offset of each array.

use std::ops::Range;

use half::bf16;

use super::parameters::MAX_SEGMENTS;
use crate::kernel::Kernel;
use crate::statistics::{AttentionShape, LogitRules, histogram_bins};

/// Positions and distances are exact in float32 below this many tokens.
const MAX_TOKENS: usize = 1 << 24;
/// Widths of a head that the tensor-core kernels are compiled for; others are padded to the next.
const WIDTHS: [usize; 7] = [32, 64, 80, 96, 128, 192, 256];
/// Keys of a tile of `cuda-v3-bf16`, which reads the largest norm of each tile.
pub(crate) const NORM_KEYS: usize = 128;
/// Every array begins at a multiple of this.
const ALIGNMENT: u64 = 256;

/// Returns the reason why `kernel` cannot measure windows of this shape on a GPU; `None` if it can.
pub fn unsupported_reason(kernel: Kernel, shape: &AttentionShape) -> Option<String> {
    let Some(geometry) = KernelGeometry::for_shape(kernel, shape) else {
        return Some(format!(
            "kernel `{}` supports heads of at most {} numbers, got {}",
            kernel.name(),
            widest(kernel),
            shape.head_dim
        ));
    };
    if shape.tokens >= MAX_TOKENS {
        return Some(format!(
            "GPU kernels support windows of fewer than {MAX_TOKENS} tokens, got {}",
            shape.tokens
        ));
    }
    let blocks = shape.tokens.div_ceil(geometry.block_rows) * shape.query_heads;
    let too_many = i32::try_from(blocks).is_err();
    too_many.then(|| format!("{} query heads are too many", shape.query_heads))
}

fn widest(kernel: Kernel) -> usize {
    assert!(kernel.is_cuda(), "`{}` runs on processors", kernel.name());
    if kernel == Kernel::CudaF32 { 512 } else { WIDTHS[WIDTHS.len() - 1] }
}

/// Layout of heads and blocks of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelGeometry {
    pub(crate) kernel: Kernel,
    /// Numbers of a query: the head's, then zeros.
    pub(crate) width: usize,
    /// Rows of a head in a block.
    pub(crate) block_rows: usize,
    /// Query heads of a block, side by side.
    pub(crate) block_heads: usize,
    pub(crate) threads: u32,
    /// A shared tail of keys must begin at a multiple of this.
    pub(crate) split: usize,
}

impl KernelGeometry {
    pub(crate) fn for_shape(kernel: Kernel, shape: &AttentionShape) -> Option<Self> {
        let head_dim = shape.head_dim;
        if head_dim == 0 || head_dim > widest(kernel) {
            return None;
        }
        let padded = WIDTHS.into_iter().find(|&width| width >= head_dim);
        let width = if kernel == Kernel::CudaF32 { head_dim.next_multiple_of(32) } else { padded? };
        let narrow = width <= 128;
        let (block_rows, block_heads, threads, split) = match kernel {
            Kernel::CudaF32 => (64, 1, 128, 4),
            Kernel::CudaV1Bf16 => (if narrow { 128 } else { 64 }, 1, 128, 8),
            Kernel::CudaV2Bf16 => (128, 1, 384, 64),
            // Four warpgroups of 64 rows if the queries of 256 rows leave room for tiles, else two.
            Kernel::CudaV3Bf16 if narrow && shape.group().is_multiple_of(2) => (128, 2, 512, 64),
            Kernel::CudaV3Bf16 if narrow => (256, 1, 512, 64),
            Kernel::CudaV3Bf16 => (128, 1, 256, 64),
            processor => panic!("`{}` runs on processors", processor.name()),
        };
        Some(Self { kernel, width, block_rows, block_heads, threads, split })
    }

    /// Returns the bytes of a number of stored queries and keys.
    pub(crate) fn number_bytes(&self) -> usize {
        if self.kernel == Kernel::CudaF32 { size_of::<f32>() } else { size_of::<bf16>() }
    }

    /// Returns the bytes of shared memory of a block.
    pub(crate) fn shared_bytes(&self, segments: usize) -> u32 {
        let block_rows = self.block_rows * self.block_heads;
        let rows = block_rows * segments * 8 + block_rows * (8 + 4);
        let tiles = match self.kernel {
            Kernel::CudaV2Bf16 | Kernel::CudaV3Bf16 => {
                let slabs = self.width.div_ceil(64);
                let stages = match slabs {
                    1 => 4,
                    4 => 2,
                    _ => 3,
                };
                (block_rows + stages * 128) * slabs * 64 * 2 + (2 * stages + 2) * 8
            }
            Kernel::CudaF32 => 2 * 64 * (32 + 4) * 4,
            Kernel::CudaV1Bf16 => 2 * 64 * (self.width + 8) * 2,
            processor => unreachable!("`{}` has no geometry", processor.name()),
        };
        (tiles + rows) as u32
    }

    /// Whether the kernel copies by tensor maps.
    pub(crate) fn has_tensor_maps(&self) -> bool {
        matches!(self.kernel, Kernel::CudaV2Bf16 | Kernel::CudaV3Bf16)
    }

    /// Returns the name of the kernel that reduces queries and keys to sums under these rules.
    pub(crate) fn attention(&self, rules: &LogitRules) -> String {
        match self.kernel {
            Kernel::CudaV1Bf16 => format!("attention_v1_bf16_{}", self.width),
            Kernel::CudaV2Bf16 => format!("attention_v2_bf16_{}", self.width),
            Kernel::CudaV3Bf16 => {
                let softcap = if rules.softcap.is_some() { "_softcap" } else { "" };
                let alibi = if rules.alibi_slopes.is_some() { "_alibi" } else { "" };
                format!("attention_v3_bf16_{}{softcap}{alibi}", self.width)
            }
            Kernel::CudaF32 => "attention_f32".to_owned(),
            processor => unreachable!("`{}` has no geometry", processor.name()),
        }
    }

    /// Returns the name of the kernel that gathers queries and keys.
    pub(crate) fn gather(&self) -> &'static str {
        if self.kernel == Kernel::CudaF32 { "gather_rope_f32" } else { "gather_rope_bf16" }
    }

    /// Returns the width of the part of a key that belongs to its head alone if all heads share the last `shared` of
    /// `head_dim`; all numbers if the kernel cannot read both parts from different arrays.
    pub(crate) fn own_width(&self, head_dim: usize, shared: usize) -> usize {
        let own = head_dim - shared;
        if shared > 0 && own > 0 && own.is_multiple_of(self.split) { own } else { self.width }
    }
}

/// Returns the maximum segments of a window of `tokens` tokens: one per bin, one for the far distance, one for the keys
/// after the row.
pub(crate) fn segments_of(tokens: usize) -> usize {
    (histogram_bins(tokens) + 2).min(MAX_SEGMENTS)
}

/// Sizes of a window's queries and keys, known before its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSizes {
    /// Whether rows are gathered on the device, which then needs the token ids.
    pub table: bool,
    /// Inverse frequencies of the rotary embedding.
    pub rotary_pairs: usize,
    /// Whether norms follow the rotary embedding.
    pub head_norms: bool,
    /// Numbers that all keys of a position end with.
    pub shared: usize,
    /// Number of sampled rows; `None` if all rows are measured.
    pub sampled_rows: Option<usize>,
}

/// Returns the exact bytes of device memory of the key heads `key_heads` of a window, without the table. 0 if `kernel`
/// cannot measure it: see [`unsupported_reason`].
pub fn window_bytes(
    kernel: Kernel,
    shape: &AttentionShape,
    sizes: &SourceSizes,
    key_heads: &Range<usize>,
) -> u64 {
    WindowPlan::new(kernel, shape, sizes, key_heads).map_or(0, |plan| plan.bytes)
}

/// Offsets in bytes of the arrays of a window in its device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowPlan {
    pub(crate) geometry: KernelGeometry,
    /// Query heads measured.
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) row_count: usize,
    pub(crate) own_width: usize,
    pub(crate) segments: usize,
    /// Blocks of rows of one head.
    pub(crate) blocks: usize,
    pub(crate) ids: u64,
    pub(crate) rows: u64,
    pub(crate) frequencies: u64,
    pub(crate) row_scale: u64,
    pub(crate) query_norm: u64,
    pub(crate) key_norm: u64,
    pub(crate) slopes: u64,
    pub(crate) sinks: u64,
    pub(crate) queries: u64,
    pub(crate) keys: u64,
    pub(crate) shared_keys: u64,
    /// `[key heads, tiles of 128 keys]`, for `cuda-v3-bf16`.
    pub(crate) key_norms: u64,
    pub(crate) block_sums: u64,
    pub(crate) sums: u64,
    pub(crate) weights: u64,
    pub(crate) row_mass: u64,
    pub(crate) row_square: u64,
    pub(crate) bytes: u64,
}

impl WindowPlan {
    pub(crate) fn new(
        kernel: Kernel,
        shape: &AttentionShape,
        sizes: &SourceSizes,
        key_heads: &Range<usize>,
    ) -> Option<Self> {
        let geometry = KernelGeometry::for_shape(kernel, shape)?;
        let tokens = shape.tokens;
        let (key_heads, heads) = (key_heads.len(), key_heads.len() * shape.group());
        let row_count = sizes.sampled_rows.unwrap_or(tokens);
        let own_width = geometry.own_width(shape.head_dim, sizes.shared);
        let segments = segments_of(tokens);
        let blocks = row_count.div_ceil(geometry.block_rows);
        let mut end = 0_u64;
        let mut take = |numbers: usize, bytes: usize| {
            let start = end;
            end = (start + numbers as u64 * bytes as u64).next_multiple_of(ALIGNMENT);
            start
        };
        let (norm, values) = (if sizes.head_norms { shape.head_dim } else { 0 }, segments + 1);
        let normed = kernel == Kernel::CudaV3Bf16;
        let sampled = sizes.sampled_rows.unwrap_or(0);
        let of_rows = heads * sampled;
        Some(Self {
            geometry,
            heads,
            key_heads,
            row_count,
            own_width,
            segments,
            blocks,
            ids: take(if sizes.table { tokens } else { 0 }, 4),
            rows: take(sampled, 4),
            frequencies: take(sizes.rotary_pairs, 4),
            row_scale: take(tokens, 4),
            query_norm: take(norm, 4),
            key_norm: take(norm, 4),
            slopes: take(heads, 4),
            sinks: take(heads, 8),
            queries: take(heads * row_count * geometry.width, geometry.number_bytes()),
            keys: take(key_heads * tokens * own_width, geometry.number_bytes()),
            shared_keys: take(tokens * (geometry.width - own_width), geometry.number_bytes()),
            key_norms: take(if normed { key_heads * tokens.div_ceil(NORM_KEYS) } else { 0 }, 4),
            block_sums: take(heads * values * blocks, 8),
            sums: take(heads * values, 8),
            weights: take(sampled, 8),
            row_mass: take(of_rows, 8),
            row_square: take(of_rows, 8),
            bytes: end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: AttentionShape =
        AttentionShape { tokens: 32_768, query_heads: 32, key_heads: 8, head_dim: 128 };

    #[test]
    fn window_memory_is_mostly_queries_and_keys() {
        let sizes = SourceSizes { table: true, rotary_pairs: 64, ..SourceSizes::default() };
        let bytes = window_bytes(Kernel::CudaV1Bf16, &LLAMA, &sizes, &(0..8));
        let queries_and_keys = 40 * 32_768 * 128 * 2;
        assert!(bytes > queries_and_keys && bytes < queries_and_keys * 101 / 100, "{bytes}");
        let one = window_bytes(Kernel::CudaV1Bf16, &LLAMA, &sizes, &(3..4));
        assert!(one * 8 < bytes * 101 / 100 && one * 8 > bytes, "{one}");
    }

    #[test]
    fn a_million_tokens_fit_an_80_gb_card_by_head_groups() {
        let shape = AttentionShape { tokens: 1 << 20, ..LLAMA };
        let sizes = SourceSizes { table: true, rotary_pairs: 64, ..SourceSizes::default() };
        for kernel in [Kernel::CudaV2Bf16, Kernel::CudaV3Bf16] {
            let bytes = |heads| window_bytes(kernel, &shape, &sizes, &heads);
            assert!(bytes(0..8) < 12 << 30, "{}", bytes(0..8));
            assert!(bytes(0..1) < 2 << 30, "{}", bytes(0..1));
        }
    }

    #[test]
    fn latent_keys_store_their_shared_part_once() {
        let shape =
            AttentionShape { tokens: 4096, query_heads: 128, key_heads: 128, head_dim: 192 };
        let bytes = |shared| {
            let sizes = SourceSizes { shared, ..SourceSizes::default() };
            window_bytes(Kernel::CudaV2Bf16, &shape, &sizes, &(0..128))
        };
        assert_eq!(bytes(0) - bytes(64), (128 - 1) * 4096 * 64 * 2);
    }

    #[test]
    fn blocks_fit_the_shared_memory_of_their_chips() {
        for head_dim in 1..=512 {
            for tokens in [1, 4096, MAX_TOKENS - 1] {
                let shape = AttentionShape { head_dim, ..LLAMA };
                let bytes = |kernel| {
                    KernelGeometry::for_shape(kernel, &shape)
                        .map(|geometry| geometry.shared_bytes(segments_of(tokens)))
                };
                // Of a block: 227 KiB on sm_90, 99 KiB on sm_86 and sm_89, 163 KiB on sm_80.
                assert!(bytes(Kernel::CudaV2Bf16).is_none_or(|bytes| bytes <= 227 << 10));
                assert!(bytes(Kernel::CudaV3Bf16).is_none_or(|bytes| bytes <= 227 << 10));
                assert!(bytes(Kernel::CudaV1Bf16).is_none_or(|bytes| bytes <= 99 << 10));
                assert!(bytes(Kernel::CudaF32).is_some_and(|bytes| bytes <= 99 << 10));
            }
        }
    }

    #[test]
    fn unsupported_shapes_have_a_reason() {
        let wide = AttentionShape { head_dim: 300, ..LLAMA };
        assert_eq!(
            unsupported_reason(Kernel::CudaV1Bf16, &wide).as_deref(),
            Some("kernel `cuda-v1-bf16` supports heads of at most 256 numbers, got 300")
        );
        assert_eq!(unsupported_reason(Kernel::CudaF32, &wide), None);
        assert_eq!(unsupported_reason(Kernel::CudaV2Bf16, &LLAMA), None);
        let long = AttentionShape { tokens: MAX_TOKENS, ..LLAMA };
        assert!(unsupported_reason(Kernel::CudaF32, &long).is_some());
    }
}
