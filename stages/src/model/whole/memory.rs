//! How much memory a whole model takes at most, known before any weight is read.

use longsift_kernels::{ElementType, Kernel, KeyValues};
use serde::Serialize;

use super::head::piece_rows;
use super::located::WholeModel;
use super::packed::BLOCK_ROWS;
use crate::model::checkpoint::Part;
use crate::model::decoder::FeedForward;
use crate::model::rope::RopeSpec;

/// Bytes that reading a tensor takes beside the array that it joins: a piece as floats, and as stored.
const READING: u64 = 24 << 20;

/// The memory of one window on its way through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The hidden states and rotations of the window.
    pub window_bytes: u64,
    /// One layer's keys and values.
    pub keys_and_values_bytes: u64,
    /// The largest layer's weights, as float32.
    pub layer_bytes: u64,
    /// What the threads hold of the rows they work on.
    pub threads_bytes: u64,
    /// The most of all of it at a time.
    pub peak_bytes: u64,
}

impl WholeModel {
    /// The heap memory that [`Self::forward`] holds at most for one window of `tokens` tokens on `threads` threads. The
    /// number of layers does not enter.
    pub fn memory(&self, tokens: u64, threads: u64) -> Memory {
        let spec = self.spec();
        let (hidden, width, block) = (spec.hidden_size, spec.embedding_width(), BLOCK_ROWS as u64);
        let shape = spec.attention_shape(tokens as usize);
        let kernel = Kernel::detect(ElementType::F32);
        let (keys_and_values_bytes, attending) = KeyValues::bytes(kernel, &shape, BLOCK_ROWS);
        let rotary = |rope: &RopeSpec| tokens * rope.rotary_dims / 2 * 8;
        let ropes =
            self.layers.iter().filter_map(|layer| layer.spec.rope.as_ref()).map(rotary).max();
        let window_bytes = 4 * tokens * hidden + ropes.unwrap_or(0);
        let layer =
            |parts: &[Part]| parts.iter().map(|part| 4 * part.needed.numbers()).sum::<u64>();
        let layer_bytes = self.layers.iter().map(|of| layer(&of.parts)).max().unwrap_or(0);
        let largest = self.layers.iter().flat_map(|layer| &layer.parts);
        let largest = largest.map(|part| 4 * part.needed.numbers()).max().unwrap_or(0);

        // 1. A layer is read: its arrays, one of them twice while it is packed; experts are packed beside all of theirs.
        let experts = matches!(self.decoder.feed_forward, FeedForward::Experts { .. });
        let beside = if experts { layer_bytes } else { largest.max(READING) };
        let reading = window_bytes + layer_bytes + beside;
        // 2. It is applied.
        let heads = spec.query_heads * spec.head_dim;
        let wide = self.decoder.feed_forward.perceptrons();
        let wide = wide.iter().map(|part| 2 * part.up.outputs).max().unwrap_or(0);
        let of_block = 4 * block * (3 * hidden + (2 * heads + hidden).max(wide + 2 * hidden));
        let threads_bytes = threads * (attending + of_block);
        let applying = window_bytes + layer_bytes + keys_and_values_bytes + threads_bytes;
        // 3. The head, in pieces: as floats, packed, and the logits of a block for each thread.
        let piece = piece_rows(width).min(spec.vocabulary_size);
        let logits = threads * 4 * block * piece + 4 * spec.vocabulary_size;
        let projected = if width == hidden { 0 } else { 4 * tokens * width };
        let ending = window_bytes + projected + 3 * 4 * piece * width + logits + 24 * tokens;
        let peak_bytes = reading.max(applying).max(ending);
        Memory { window_bytes, keys_and_values_bytes, layer_bytes, threads_bytes, peak_bytes }
    }
}
