//! Weights as they lie on disk, turned into 32-bit floats.

use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::checkpoint::{ModelFolder, Part};
use super::problem::ModelProblem;
use super::shard::{ShardReader, hex};
use super::tensors::Role;

/// Bytes that are read at a time.
const CHUNK_BYTES: u64 = 16 << 20;

/// Little-endian numbers of a checkpoint as 32-bit floats: exact for all three types.
pub(crate) fn to_f32(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.par_chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        Dtype::F32 => bytes
            .par_chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect(),
        Dtype::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        other => unreachable!("{other} is refused when the header is read"),
    }
}

/// Reads one needed tensor in order, in chunks of whole rows, hashing what it reads.
pub(crate) struct TensorReader<'a> {
    part: &'a Part,
    reader: ShardReader<'a>,
    /// Rows still to be read, in order.
    rows: Vec<Range<u64>>,
    hash: Sha256,
}

impl<'a> TensorReader<'a> {
    pub(crate) fn new(model: &'a ModelFolder, part: &'a Part) -> Result<Self, ModelProblem> {
        let reader = model.shards()[part.shard].reader()?;
        let rows = part.needed.rows.iter().rev().cloned().collect();
        Ok(Self { part, reader, rows, hash: Sha256::new() })
    }

    /// The next rows, at most `most_rows`, as floats; empty at the end.
    pub(crate) fn next(&mut self, most_rows: u64) -> Result<Vec<f32>, ModelProblem> {
        let Some(mut range) = self.rows.pop() else { return Ok(Vec::new()) };
        let end = range.end.min(range.start + most_rows.max(1));
        let row_bytes =
            self.part.needed.shape.get(1).copied().unwrap_or(1) * self.part.number_bytes();
        let mut bytes = vec![0; ((end - range.start) * row_bytes) as usize];
        self.reader.read(&self.part.info, range.start * row_bytes, &mut bytes)?;
        range.start = end;
        if !range.is_empty() {
            self.rows.push(range);
        }
        let (hash, dtype) = (&mut self.hash, self.part.info.dtype);
        let ((), numbers) = rayon::join(|| hash.update(&bytes), || to_f32(dtype, &bytes));
        Ok(numbers)
    }

    /// What was read, for the weights' digest, and how many bytes it took.
    pub(crate) fn finish(self) -> (TensorDigest, u64) {
        let rows = self.part.needed.rows.iter().map(|rows| (rows.start, rows.end)).collect();
        let digest = TensorDigest {
            name: self.part.needed.name.clone(),
            dtype: self.part.info.dtype.to_string(),
            shape: self.part.needed.shape.clone(),
            rows,
            sha256: hex(&self.hash.finalize()),
        };
        (digest, self.reader.bytes_read)
    }
}

/// One tensor's share in the weights' digest: content only.
#[derive(serde::Serialize)]
pub(crate) struct TensorDigest {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    rows: Vec<(u64, u64)>,
    sha256: String,
}

impl TensorDigest {
    /// The name without a prefix.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Everything but the embedding: small enough to be held in memory.
pub(crate) struct SmallWeights {
    /// `[hidden_size]`, empty without a norm weight.
    pub(crate) norm_weight: Vec<f32>,
    /// `[hidden_size]`, empty without a norm bias.
    pub(crate) norm_bias: Vec<f32>,
    /// `[row_width, hidden_size]`: query rows, then key rows.
    pub(crate) projection: Vec<f32>,
    /// `[row_width]`, empty without biases; zero where only one of query and key has one.
    pub(crate) bias: Vec<f32>,
    pub(crate) digests: Vec<TensorDigest>,
    pub(crate) bytes_read: u64,
}

impl SmallWeights {
    /// Reads the norm, the projections and their biases.
    pub(crate) fn read(model: &ModelFolder) -> Result<Self, ModelProblem> {
        let mut tensors: Vec<(Role, Vec<f32>)> = Vec::new();
        let (mut digests, mut bytes_read) = (Vec::new(), 0);
        for part in model.parts().iter().filter(|part| part.needed.role != Role::Embedding) {
            let mut reader = TensorReader::new(model, part)?;
            let row_bytes = part.needed.shape.get(1).copied().unwrap_or(1) * part.number_bytes();
            let mut numbers = Vec::with_capacity(part.needed.numbers() as usize);
            loop {
                let rows = reader.next(CHUNK_BYTES / row_bytes)?;
                if rows.is_empty() {
                    break;
                }
                numbers.extend(rows);
            }
            if let Some(wrong) = numbers.iter().find(|number| !number.is_finite()) {
                let message =
                    format!("`{}` holds {wrong}: every score would be undefined", part.name);
                return Err(
                    ModelProblem::checkpoint(message).with_hint("download the checkpoint again")
                );
            }
            tensors.push((part.needed.role, numbers));
            let (digest, bytes) = reader.finish();
            digests.push(digest);
            bytes_read += bytes;
        }
        let mut take = |role| {
            let place = tensors.iter().position(|(found, _)| *found == role);
            place.map_or_else(Vec::new, |place| tensors.swap_remove(place).1)
        };
        let (norm_weight, norm_bias) = (take(Role::NormWeight), take(Role::NormBias));
        let (mut projection, key) = (take(Role::QueryWeight), take(Role::KeyWeight));
        let (query_bias, key_bias) = (take(Role::QueryBias), take(Role::KeyBias));
        let hidden = model.spec().hidden_size as usize;
        let bias = joined_bias(query_bias, key_bias, projection.len() / hidden, key.len() / hidden);
        projection.extend(key);
        Ok(Self { norm_weight, norm_bias, projection, bias, digests, bytes_read })
    }
}

fn joined_bias(
    mut query: Vec<f32>,
    mut key: Vec<f32>,
    query_rows: usize,
    key_rows: usize,
) -> Vec<f32> {
    if query.is_empty() && key.is_empty() {
        return query;
    }
    query.resize(query_rows, 0.0);
    key.resize(key_rows, 0.0);
    query.extend(key);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_types_are_exact() {
        let numbers = [1.0f32, -0.5, 65_504.0, 0.0];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(to_f32(Dtype::F32, &bytes), numbers);
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect();
        assert_eq!(to_f32(Dtype::F16, &bytes), numbers);
        let bytes: Vec<u8> =
            numbers[..2].iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect();
        assert_eq!(to_f32(Dtype::BF16, &bytes), numbers[..2]);
    }

    #[test]
    fn one_bias_alone_is_padded_with_zeros() {
        assert_eq!(joined_bias(vec![1.0, 2.0], vec![], 2, 1), [1.0, 2.0, 0.0]);
        assert_eq!(joined_bias(vec![], vec![3.0], 2, 1), [0.0, 0.0, 3.0]);
        assert!(joined_bias(vec![], vec![], 2, 1).is_empty());
    }
}
