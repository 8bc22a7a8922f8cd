//! How much memory a whole model takes at most, known before any weight is read.

use longsift_kernels::{ElementType, Kernel, KeyValues, span_bytes};
use serde::Serialize;

use super::forward::side_by_side;
use super::head::piece_rows;
use super::located::WholeModel;
use super::packed::BLOCK_ROWS;
use super::ropes::Ropes;
use crate::contract::LayersRequest;
use crate::model::checkpoint::Part;
use crate::model::decoder::FeedForward;
use crate::model::spec::widened_shape;

/// Bytes that reading a tensor takes beside the array that it joins: a piece as floats, and as stored.
const READING: u64 = 24 << 20;

/// The memory of windows on their way through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The hidden states and rotations of all windows.
    pub window_bytes: u64,
    /// One layer's keys and values of the windows that are side by side.
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
        self.memory_of(&[tokens], None, true, threads)
    }

    /// The same for sequences of these lengths, the longest first, and for what is asked of each.
    pub(super) fn memory_of(
        &self,
        lengths: &[u64],
        attention: Option<&LayersRequest>,
        losses: bool,
        threads: u64,
    ) -> Memory {
        let spec = self.spec();
        let (hidden, width, block) = (spec.hidden_size, spec.embedding_width(), BLOCK_ROWS as u64);
        let (longest, tokens) = (lengths.iter().copied().max(), lengths.iter().sum::<u64>());
        let longest = longest.unwrap_or(0);
        let shape = spec.attention_shape(longest as usize);
        let kernel = Kernel::detect(ElementType::F32);
        let (_, attending) = KeyValues::bytes(kernel, &shape, BLOCK_ROWS);
        let of_length = |length: &u64| {
            KeyValues::bytes(kernel, &spec.attention_shape(*length as usize), BLOCK_ROWS).0
        };
        let numbers: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
        let mut rest = lengths;
        let groups = side_by_side(&numbers).into_iter().map(|count| {
            let (now, later) = rest.split_at(count);
            rest = later;
            now.iter().map(of_length).sum::<u64>()
        });
        let keys_and_values_bytes = groups.max().unwrap_or(0);
        let window_bytes = 4 * tokens * hidden + Ropes::bytes(self, lengths);
        let layer =
            |parts: &[Part]| parts.iter().map(|part| 4 * part.needed.numbers()).sum::<u64>();
        let layer_bytes = self.layers.iter().map(|of| layer(&of.parts)).max().unwrap_or(0);
        let largest = self.layers.iter().flat_map(|layer| &layer.parts);
        let largest = largest.map(|part| 4 * part.needed.numbers()).max().unwrap_or(0);

        // 1. A layer is read: its arrays, one of them twice while it is packed; experts are packed beside all of theirs.
        let experts = matches!(self.decoder.feed_forward, FeedForward::Experts { .. });
        let beside = if experts { layer_bytes } else { largest.max(READING) };
        let reading = window_bytes + layer_bytes + beside;
        // 2. It is applied; before that, attention of whole windows is summed, one after the other.
        let heads = spec.query_heads * spec.head_dim;
        let wide = self.decoder.feed_forward.perceptrons();
        let wide = wide.iter().map(|part| 2 * part.up.outputs).max().unwrap_or(0);
        let of_block = 4 * block * (3 * hidden + (2 * heads + hidden).max(wide + 2 * hidden));
        let threads_bytes = threads * (attending + of_block);
        let summing = attention.map_or(0, |attention| {
            let shape = if spec.alibi_rounded { widened_shape(&shape) } else { shape.clone() };
            let rows = 4 * longest * (heads + spec.key_heads * spec.head_dim);
            let spans = attention.ladm.as_ref().map_or(0, |_| threads * span_bytes(&shape));
            rows + spans.max(longsift_kernels::window_bytes(kernel, &shape, threads as usize))
        });
        let applying = (keys_and_values_bytes + threads_bytes).max(summing);
        let applying = window_bytes + layer_bytes + applying;
        // 3. The head, in pieces: as floats, packed, and the logits of a block for each thread.
        let piece = piece_rows(width).min(spec.vocabulary_size);
        let logits = threads * 4 * block * piece + 4 * spec.vocabulary_size;
        let projected = if width == hidden { 0 } else { 4 * tokens * width };
        let ending = window_bytes + projected + 3 * 4 * piece * width + logits + 24 * tokens;
        let ending = if losses { ending } else { 0 };
        let peak_bytes = reading.max(applying).max(ending);
        Memory { window_bytes, keys_and_values_bytes, layer_bytes, threads_bytes, peak_bytes }
    }
}
