//! Peak memory of the backend candle, in every build, since a plan sizes GPUs that this machine does not have.

use super::located::WholeModel;
use super::memory::{
    ForwardMemory, Sequences, embedding_peak, float_bytes, peak_while_reading, piece_rows,
    total_float_bytes,
};
use super::ropes::Ropes;
use crate::model::decoder::FeedForward;
use crate::model::weights::chunk_bytes;

/// Rows that the projections of a layer and the head are applied to at a time.
pub(super) const BLOCK_ROWS: usize = 512;
/// Maximum rows of a block of attention.
pub(super) const ATTENTION_ROWS: usize = 128;

/// Returns the bytes of the logits of a block of attention: they fit a processor's cache, or fill a GPU.
pub(super) fn attention_bytes(on_gpu: bool) -> usize {
    if on_gpu { 128 << 20 } else { 1 << 20 }
}

/// Estimates the memory of all sequences' hidden states, one layer, and one sequence's keys, values and block.
pub(super) fn estimate(
    model: &WholeModel,
    on_gpu: bool,
    Sequences { lengths, attention, losses }: &Sequences<'_>,
) -> ForwardMemory {
    let spec = model.spec();
    let (hidden, width) = (spec.hidden_size, spec.embedding_width());
    let (longest, tokens) =
        (lengths.iter().copied().max().unwrap_or(0), lengths.iter().sum::<u64>());
    let ropes = Ropes::bytes(model, lengths);
    let window_bytes = 4 * tokens * hidden + ropes;
    let layer_bytes =
        model.layers.iter().map(|layer| total_float_bytes(&layer.parts)).max().unwrap_or(0);
    // Keys, values, and the rotation on the device.
    let keys_and_values_bytes = 8 * longest * spec.key_heads * spec.head_dim + ropes;
    // A block's rows in float64 and float32, and the products of its perceptron.
    let block = longest.min(BLOCK_ROWS as u64);
    let wide = model.decoder.feed_forward.perceptrons().iter().map(|part| part.up.outputs).max();
    let heads = spec.query_heads * spec.head_dim;
    let rows = 4 * block * (8 * hidden + 6 * heads.max(wide.unwrap_or(0)));
    // Logits, powers, and powers or shares in float64 with a copy for the far ones.
    let row_bytes = 4 * spec.query_heads * longest;
    let logits =
        (attention_bytes(on_gpu) as u64).clamp(row_bytes, row_bytes * ATTENTION_ROWS as u64);
    let logits = logits.min(row_bytes * block) * if attention.is_some() { 7 } else { 4 };
    let threads_bytes = rows + logits;

    let experts = matches!(model.decoder.feed_forward, FeedForward::Experts { .. });
    let moving = model.layers.iter().map(|layer| {
        // Experts are copied out of one array, and rounded numbers exist twice.
        let largest = layer.parts.iter().map(float_bytes).max().unwrap_or(0);
        let all = total_float_bytes(&layer.parts);
        peak_while_reading(&layer.parts).max(all + if experts { all } else { 2 * largest })
    });
    let reading = window_bytes + moving.max().unwrap_or(0);
    let applying = window_bytes + layer_bytes + keys_and_values_bytes + threads_bytes;
    let ending = if *losses {
        let piece = piece_rows(width).min(spec.vocabulary_size);
        let (stored, chunk) = chunk_bytes(model.head(), piece);
        let logits = 4 * block * piece * 5;
        let input = 4 * tokens * width + 24 * tokens;
        window_bytes + input + stored + 2 * chunk + logits + rows + 4 * spec.vocabulary_size
    } else {
        0
    };
    let starting = embedding_peak(model, tokens);
    let peak_bytes = starting.max(reading).max(applying).max(ending);
    ForwardMemory { window_bytes, keys_and_values_bytes, layer_bytes, threads_bytes, peak_bytes }
}
