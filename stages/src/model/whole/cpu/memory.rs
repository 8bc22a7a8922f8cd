//! Peak memory of this backend, computed before any weight is read.

use longsift_kernels::{GatedLinearState, KeyValues, PackedWeights, span_bytes};

use super::gated_linear::{self, PIECE_TOKENS};
use super::query_keys::BLOCK_ROWS;
use crate::model::decoder::FeedForward;
use crate::model::formats::LocatedTensor;
use crate::model::spec::AttentionSpec;
use crate::model::weights::chunk_bytes;
use crate::model::whole::located::WholeModel;
use crate::model::whole::memory::{
    ForwardMemory, Sequences, embedding_peak, float_bytes, peak_while_reading, piece_rows,
    projected_bytes, total_float_bytes,
};
use crate::model::whole::pass::ROUND_TOKENS;
use crate::model::whole::ropes::Ropes;

pub(in crate::model::whole) fn estimate(
    model: &WholeModel,
    Sequences { lengths, attention, losses }: &Sequences<'_>,
    threads: u64,
) -> ForwardMemory {
    let spec = model.spec();
    let (hidden, width, block) = (spec.hidden_size, spec.embedding_width(), BLOCK_ROWS as u64);
    let (longest, tokens) = (lengths.iter().copied().max(), lengths.iter().sum::<u64>());
    let longest = longest.unwrap_or(0);
    let (shape, kernel) = (spec.attention_shape(longest as usize), model.kernel);
    // Longer sequences run in pieces.
    let scored = tokens;
    let tokens = if model.runs_in_pieces() { tokens.min(ROUND_TOKENS as u64) } else { tokens };
    let mut mixers: Vec<&AttentionSpec> = model.layers.iter().map(|layer| &layer.spec).collect();
    let heads_of = |spec: &AttentionSpec| {
        (spec.query_heads, spec.key_heads, spec.head_dim, spec.gated_linear.is_some())
    };
    mixers.dedup_by_key(|spec| heads_of(spec));
    let mixing = mixers.into_iter().map(|spec| mixing_of(model, spec, lengths, threads));
    let mixing: Vec<Mixing> = mixing.collect();
    let most = |of: fn(&Mixing) -> u64| mixing.iter().map(of).max().unwrap_or(0);
    let (keys_and_values_bytes, attending) = (most(|of| of.windows), most(|of| of.thread));
    let (heads, state) = (most(|of| of.width), most(|of| of.state));
    let carried = if scored > tokens { 2 * state * model.layers.len() as u64 } else { 0 };
    let window_bytes = 4 * tokens * hidden + Ropes::bytes(model, lengths) + carried;
    let layer_bytes =
        model.layers.iter().map(|layer| total_float_bytes(&layer.parts)).max().unwrap_or(0);
    let scratch = PackedWeights::scratch_bytes();

    // 1. Embedding.
    let starting = embedding_peak(model, tokens);
    // 2. Reading a layer, one array after the other. Each array exists twice while it is packed; experts are packed
    //    all at once.
    let experts = matches!(model.decoder.feed_forward, FeedForward::Experts { .. });
    let packing = |parts: &[LocatedTensor]| {
        let all = total_float_bytes(parts);
        all + if experts { all } else { parts.iter().map(float_bytes).max().unwrap_or(0) }
    };
    let layers = model
        .layers
        .iter()
        .map(|layer| peak_while_reading(&layer.parts).max(packing(&layer.parts)));
    let reading = window_bytes + layers.max().unwrap_or(0);
    // 3. Applying the layer; before that, attention of whole windows is summed, one after the other.
    let wide = model.decoder.feed_forward.perceptrons();
    let wide = wide.iter().map(|part| 2 * part.up.outputs).max().unwrap_or(0);
    let of_block = 4 * block * (2 * hidden + (2 * heads).max(wide + 2 * hidden));
    let threads_bytes = threads * (attending + of_block + scratch);
    let summing = attention.map_or(0, |attention| {
        let rows = 4 * longest * (spec.query_heads + spec.key_heads) * spec.head_dim;
        let spans = attention.ladm.as_ref().map_or(0, |_| threads * span_bytes(&shape));
        rows + spans.max(longsift_kernels::window_bytes(kernel, &shape, threads as usize))
    });
    let applying = (keys_and_values_bytes + threads_bytes).max(summing);
    let applying = window_bytes + layer_bytes + applying;
    // 4. The head, in pieces: stored, as floats and packed; then packed, with the logits of one block per thread.
    let ending = if *losses {
        let (stored, chunk) = chunk_bytes(model.head(), piece_rows(width));
        let piece = piece_rows(width).min(spec.vocabulary_size);
        let logits = threads * (4 * block * piece + scratch);
        let meeting = stored + chunk + chunk.max(logits);
        window_bytes
            + projected_bytes(model, tokens)
            + meeting
            + 16 * tokens
            + 8 * scored
            + 4 * spec.vocabulary_size
    } else {
        0
    };
    let peak_bytes = starting.max(reading).max(applying).max(ending);
    ForwardMemory { window_bytes, keys_and_values_bytes, layer_bytes, threads_bytes, peak_bytes }
}

/// Memory of attention in a layer, for sequences of these lengths.
fn mixing_of(model: &WholeModel, spec: &AttentionSpec, lengths: &[u64], threads: u64) -> Mixing {
    let piece = spec.gated_linear.as_ref().map(|_| PIECE_TOKENS);
    let numbers: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
    let mut rest = lengths;
    let groups = parallel_groups(&numbers, piece).into_iter().map(|count| {
        let (group, later) = rest.split_at(count);
        rest = later;
        group
    });
    if let (Some(piece), Some(gated)) = (piece, &spec.gated_linear) {
        let (chunk, mut windows) = (GatedLinearState::CHUNK as u64, 0);
        for group in groups {
            let (tokens, count) = (group.iter().sum::<u64>().min(piece as u64), group.len() as u64);
            // Each sequence has separate chunks.
            let (rows, state) = gated_linear::bytes(spec, tokens + (count - 1) * chunk, threads);
            windows = windows.max(rows + count * state);
        }
        let (_, state) = gated_linear::bytes(spec, 0, threads);
        return Mixing { windows, thread: 0, width: spec.query_heads * gated.value_dim, state };
    }
    let of_length = |length: &u64| {
        let shape = spec.attention_shape(*length as usize);
        KeyValues::bytes(model.kernel, &shape, BLOCK_ROWS)
    };
    let windows = groups.map(|group| group.iter().map(|length| of_length(length).0).sum());
    let longest = lengths.iter().max().map_or(0, |longest| of_length(longest).1);
    let width = spec.query_heads * spec.head_dim;
    Mixing { windows: windows.max().unwrap_or(0), thread: longest, width, state: 0 }
}

struct Mixing {
    /// Keys and values, or rows and states, of the windows that run in parallel.
    windows: u64,
    thread: u64,
    /// Numbers in a row of the output.
    width: u64,
    state: u64,
}

/// Returns how many consecutive states run in parallel: together at most `max`, by default the longest state.
pub(super) fn parallel_groups(lengths: &[usize], max: Option<usize>) -> Vec<usize> {
    let max = max.or_else(|| lengths.iter().copied().max()).unwrap_or(0);
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for length in lengths {
        match groups.last_mut() {
            Some((count, total)) if *total + length <= max => {
                (*count, *total) = (*count + 1, *total + length);
            }
            _ => groups.push((1, *length)),
        }
    }
    groups.into_iter().map(|(count, _)| count).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel_groups;

    #[test]
    fn parallel_states_are_no_longer_than_the_longest() {
        assert_eq!(parallel_groups(&[8, 3, 3, 3, 8, 1], None), [1, 2, 1, 1, 1]);
        assert_eq!(parallel_groups(&[8, 4, 4, 4, 1, 1], None), [1, 2, 3]);
        assert_eq!(parallel_groups(&[9, 2, 2, 1], Some(4)), [1, 2, 1]);
        assert_eq!(parallel_groups(&[2, 2], None), [1, 1]);
        assert!(parallel_groups(&[], None).is_empty());
    }
}
