//! Builds the layer-zero table: embedding rows in chunks → norm → query and key projections → table rows.

use std::panic::resume_unwind;
use std::sync::mpsc::sync_channel;
use std::thread::ScopedJoinHandle;

use longsift_kernels::Kernel;

use super::aux_tensors::aux_tensors;
use super::checkpoint::ModelFolder;
use super::formats::LocatedTensor;
use super::problem::ModelProblem;
use super::row_steps::RowSteps;
use super::spec::AttentionSpec;
use super::tensors::TensorRole;
use super::weights::{LayerWeights, TensorReader};
use crate::contract::sha256;

/// Part of the table's fingerprint: incremented when the same checkpoint produces different bits.
pub const TABLE_VERSION: u32 = 1;

/// Memory for one chunk of rows: the embedding as stored, as floats, and the projected rows.
const CHUNK_BYTES: u64 = 32 << 20;

/// Result of building a table, in addition to the rows.
pub(crate) struct BuiltTable {
    /// SHA-256 over name, type, shape and content of every tensor that was read.
    pub(crate) weights_digest: String,
    pub(crate) bytes_read: u64,
    /// Auxiliary tensors of the table file, in the order of [`aux_tensors`](super::aux_tensors::aux_tensors).
    pub(crate) aux: Vec<Vec<f32>>,
}

/// Passes the table to `write` in chunks of whole rows `[rows, row_width]`, and the rows done and their total to `progress`.
/// Reading, projecting and writing run on one thread each. Memory: the projection weights as f32 (twice while they are
/// packed) and about 100 MB.
pub(crate) fn build(
    model: &ModelFolder,
    kernel: Kernel,
    progress: &dyn Fn(u64, u64),
    write: &mut (dyn FnMut(&[f32]) -> Result<(), ModelProblem> + Send),
) -> Result<BuiltTable, ModelProblem> {
    let spec = model.spec();
    let is_embedding = |part: &&LocatedTensor| part.needed.role == TensorRole::Embedding;
    let mut weights = LayerWeights::read(model.parts.iter().filter(|part| !is_embedding(part)))?;
    let aux = aux_arrays(spec, &mut weights);
    let steps = RowSteps::new(spec, kernel, &mut weights);
    let embedding = model.parts.iter().find(is_embedding);
    let mut reader = TensorReader::new(embedding.expect("every family needs an embedding"))?;
    let chunk_rows = (CHUNK_BYTES / (8 * (spec.hidden_size + spec.row_width()))).clamp(16, 8192);
    std::thread::scope(|scope| {
        let (read, embeddings) = sync_channel(0);
        let (projected, tables) = sync_channel::<Vec<f32>>(0);
        let source = &mut reader;
        let reading = scope.spawn(move || {
            for rows in source.chunks(chunk_rows) {
                // The receiver is dropped if the table cannot be written.
                if read.send(rows?).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let writing = scope.spawn(move || tables.iter().try_for_each(|table| write(&table)));
        let mut done = 0;
        for rows in embeddings {
            let of_chunk = rows.len() as u64 / spec.embedding_width();
            if projected.send(steps.apply(rows)).is_err() {
                break;
            }
            done += of_chunk;
            progress(done, spec.vocabulary_size);
        }
        drop(projected);
        let finished = |thread: ScopedJoinHandle<'_, Result<(), ModelProblem>>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        finished(writing).and(finished(reading))
    })?;
    let (digest, embedding_bytes) = reader.finish();
    let mut digests = weights.digests;
    digests.push(digest);
    digests.sort_by(|one, other| one.name.cmp(&other.name));
    let json = serde_json::to_vec(&digests).expect("digests are plain data");
    let bytes_read = weights.bytes_read + embedding_bytes;
    assert_eq!(bytes_read, model.bytes_to_read(), "`bytes_to_read` is exact");
    Ok(BuiltTable { weights_digest: sha256(&json), bytes_read, aux })
}

/// Takes the auxiliary tensors from the weights. Missing weights of norms are 1, other missing numbers 0.
fn aux_arrays(spec: &AttentionSpec, weights: &mut LayerWeights) -> Vec<Vec<f32>> {
    let take = |(array, length): (TensorRole, u64)| {
        let mut numbers = weights.take(array);
        if array == TensorRole::NormWeight && numbers.is_empty() {
            // A norm without weights multiplies by 1 for any offset.
            numbers = vec![(1.0 - spec.norm.offset()) as f32; length as usize];
        }
        let norms =
            [TensorRole::QueryNormWeight, TensorRole::KeyNormWeight, TensorRole::NormWeight];
        let absent = if norms.contains(&array) { 1.0 } else { 0.0 };
        numbers.resize(length as usize, absent);
        numbers
    };
    aux_tensors(spec).into_iter().map(take).collect()
}
