//! Builds the layer-zero table: embedding rows in chunks → norm → query and key projection → the table's rows.

use longsift_kernels::{Kernel, PackedWeights};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::checkpoint::ModelFolder;
use super::problem::ModelProblem;
use super::shard::hex;
use super::spec::Norm;
use super::tensors::Role;
use super::weights::{SmallWeights, TensorReader};

/// Part of the table's fingerprint: raised when the same checkpoint gives other bits.
pub(crate) const BUILDER_VERSION: u32 = 1;

/// Memory for one chunk of rows: the embedding as read, as floats, and the projected rows.
const CHUNK_BYTES: u64 = 32 << 20;

/// What building the table brought to light.
pub(crate) struct Built {
    /// SHA-256 over name, type, shape and content of everything that was read.
    pub(crate) weights_digest: String,
    /// Bytes of weights read.
    pub(crate) bytes_read: u64,
}

/// Hands the table to `write`, chunk by chunk of whole rows `[rows, row_width]` in the order of token ids.
///
/// Memory: the projection weights as f32 (twice while they are packed) and about 100 MB. `progress` hears of rows done and rows in all.
pub(crate) fn build(
    model: &ModelFolder,
    kernel: Kernel,
    progress: &dyn Fn(u64, u64),
    write: &mut dyn FnMut(&[f32]) -> Result<(), ModelProblem>,
) -> Result<Built, ModelProblem> {
    let spec = model.spec();
    let (hidden, width) = (spec.hidden_size as usize, spec.row_width() as usize);
    let weights = SmallWeights::read(model)?;
    let bias = (!weights.bias.is_empty()).then_some(weights.bias.as_slice());
    let projection = PackedWeights::new(kernel, &weights.projection, bias, hidden);
    drop(weights.projection);
    let embedding = model.parts().iter().find(|part| part.needed.role == Role::Embedding);
    let mut reader = TensorReader::new(model, embedding.expect("every family needs an embedding"))?;
    let chunk_rows = (CHUNK_BYTES / (8 * (spec.hidden_size + spec.row_width()))).clamp(16, 8192);
    let mut table = Vec::new();
    let mut done = 0;
    loop {
        let mut rows = reader.next(chunk_rows)?;
        if rows.is_empty() {
            break;
        }
        let count = rows.len() / hidden;
        normalise(&spec.norm, &weights.norm_weight, &weights.norm_bias, hidden, &mut rows);
        table.resize(count * width, 0.0);
        projection.apply(&rows, &mut table);
        write(&table)?;
        done += count as u64;
        progress(done, spec.vocabulary_size);
    }
    let (digest, embedding_bytes) = reader.finish();
    let mut digests = weights.digests;
    digests.push(digest);
    digests.sort_by(|one, other| one.name().cmp(other.name()));
    let json = serde_json::to_vec(&digests).expect("digests are plain data");
    let bytes_read = weights.bytes_read + embedding_bytes;
    assert_eq!(
        bytes_read,
        model.bytes_to_read(),
        "the plan promises exactly the bytes that are read"
    );
    Ok(Built { weights_digest: hex(&Sha256::digest(&json)), bytes_read })
}

/// Normalises each row of `rows` (`[rows, hidden]`) in place. Means are summed in f64 in the order of the row.
fn normalise(norm: &Norm, weight: &[f32], bias: &[f32], hidden: usize, rows: &mut [f32]) {
    match *norm {
        Norm::Rms { eps, offset } => rows.par_chunks_exact_mut(hidden).for_each(|row| {
            let square: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let factor = 1.0 / (square / hidden as f64 + eps).sqrt();
            for (x, weight) in row.iter_mut().zip(weight) {
                *x = (f64::from(*x) * factor * (f64::from(*weight) + offset)) as f32;
            }
        }),
        Norm::Layer { eps } => rows.par_chunks_exact_mut(hidden).for_each(|row| {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / hidden as f64;
            let square: f64 = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
            let factor = 1.0 / (square / hidden as f64 + eps).sqrt();
            for (index, x) in row.iter_mut().enumerate() {
                let weight = weight.get(index).map_or(1.0, |weight| f64::from(*weight));
                let bias = bias.get(index).map_or(0.0, |bias| f64::from(*bias));
                *x = ((f64::from(*x) - mean) * factor * weight + bias) as f32;
            }
        }),
        Norm::None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normalised_row_has_mean_square_one_and_the_offset_is_added_to_the_weight() {
        let mut rows = [3.0, -4.0, 0.0, 0.0];
        normalise(&Norm::Rms { eps: 0.0, offset: 1.0 }, &[0.0, 1.0, 0.0, 0.0], &[], 4, &mut rows);
        assert_eq!(rows.map(f32::to_bits), [1.2f32, -3.2, 0.0, 0.0].map(f32::to_bits));
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        let mut rows = [0.0; 4];
        normalise(&Norm::Rms { eps: 1e-6, offset: 0.0 }, &[1.0; 4], &[], 4, &mut rows);
        assert_eq!(rows.map(f32::to_bits), [0; 4]);
    }

    #[test]
    fn a_layer_norm_takes_the_mean_away_and_needs_neither_weight_nor_bias() {
        let mut rows = [1.0, 3.0, 5.0, 5.0];
        normalise(&Norm::Layer { eps: 0.0 }, &[], &[], 2, &mut rows[..2]);
        assert_eq!(rows[..2], [-1.0, 1.0]);
        normalise(&Norm::Layer { eps: 1.0 }, &[2.0, 2.0], &[0.5, -0.5], 2, &mut rows[2..]);
        assert_eq!(rows[2..], [0.5, -0.5]);
    }
}
