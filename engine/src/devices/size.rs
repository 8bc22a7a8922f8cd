//! Memory of a window on a simulated device: about that on a GPU, without padding.

use longsift_stages::model::AttentionSpec;

/// Rows per block of a GPU kernel: sums are kept per block until they are added in order.
const BLOCK_ROWS: u64 = 128;

/// Bytes of a window of `tokens` tokens while `key_heads` of its key heads are measured: token ids and row factors, rotated
/// queries and keys with numbers of `number_bytes` bytes, and the sums of each block of rows.
pub fn window_bytes(
    layer: &AttentionSpec,
    number_bytes: u64,
    tokens: usize,
    key_heads: usize,
) -> u64 {
    let shape = layer.attention_shape(tokens);
    let (tokens, keys) = (tokens as u64, key_heads as u64);
    let queries = keys * shape.group() as u64;
    let rows = tokens * (queries + keys) * shape.head_dim as u64 * number_bytes;
    let bins = longsift_kernels::histogram_bins(shape.tokens) as u64;
    let sums = tokens.div_ceil(BLOCK_ROWS) * queries * (2 + bins) * 8;
    8 * tokens + rows + sums
}
