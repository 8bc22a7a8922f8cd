//! Peak memory of a whole model, computed before any weight is read.

use serde::Serialize;

use super::embedding;
use super::located::WholeModel;
use crate::contract::LayersRequest;
use crate::model::formats::LocatedTensor;
use crate::model::weights::{chunk_bytes, read_overhead_bytes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ForwardMemory {
    /// Hidden states and rotations of all windows.
    pub window_bytes: u64,
    /// One layer's keys and values of the windows that run in parallel.
    pub keys_and_values_bytes: u64,
    /// Weights of the largest layer, as float32.
    pub layer_bytes: u64,
    /// Buffers of all threads.
    pub threads_bytes: u64,
    /// Peak of the sum.
    pub peak_bytes: u64,
}

/// Sequences of a run, and its results.
pub(super) struct Sequences<'a> {
    /// Tokens of each, the longest first.
    pub(super) lengths: Vec<u64>,
    pub(super) attention: Option<&'a LayersRequest>,
    pub(super) losses: bool,
}

/// Bytes of the head's rows per read, as float32.
const PIECE_BYTES: u64 = 8 << 20;

/// Returns the rows of the head that are read at a time: their logits for a block of tokens are in memory at once.
pub(super) fn piece_rows(width: u64) -> u64 {
    (PIECE_BYTES / (4 * width.max(1))).clamp(64, 4096)
}

pub(super) fn float_bytes(part: &LocatedTensor) -> u64 {
    4 * part.needed.numbers()
}

pub(super) fn total_float_bytes(parts: &[LocatedTensor]) -> u64 {
    parts.iter().map(float_bytes).sum()
}

/// Peak memory while tensors are read one after the other.
pub(super) fn peak_while_reading(parts: &[LocatedTensor]) -> u64 {
    let mut read = 0;
    let with_chunk = |part: &LocatedTensor| {
        read += float_bytes(part);
        read + read_overhead_bytes(part)
    };
    parts.iter().map(with_chunk).max().unwrap_or(0)
}

/// Bytes of the states of `tokens` tokens before they are projected to the width of the layers, if they are.
pub(super) fn projected_bytes(model: &WholeModel, tokens: u64) -> u64 {
    let spec = model.spec();
    if spec.embedding_width() == spec.hidden_size { 0 } else { 4 * tokens * spec.embedding_width() }
}

/// Peak memory of the embedding of `tokens` tokens: rows of the distinct ids, then the states computed from them.
pub(super) fn embedding_peak(model: &WholeModel, tokens: u64) -> u64 {
    let spec = model.spec();
    let rows = 4 * tokens.min(spec.vocabulary_size) * spec.embedding_width();
    let (stored, chunk) = chunk_bytes(&model.embedding, embedding::ROWS.min(tokens));
    let before = total_float_bytes(&model.before).max(peak_while_reading(&model.before));
    let states = 4 * tokens * spec.hidden_size + projected_bytes(model, tokens) + before;
    4 * tokens + rows + states.max(stored + chunk)
}
