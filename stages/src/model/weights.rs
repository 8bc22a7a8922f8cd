//! Weights as they lie on disk, turned into 32-bit floats.

use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::checkpoint::{ModelFolder, Part};
use super::problem::ModelProblem;
use super::shard::ShardReader;
use super::tensors::Role;
use crate::contract::hex;

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
        let bytes = self.bytes(range.start..end)?;
        range.start = end;
        if !range.is_empty() {
            self.rows.push(range);
        }
        let (hash, dtype) = (&mut self.hash, self.part.info.dtype);
        let ((), numbers) = rayon::join(|| hash.update(&bytes), || to_f32(dtype, &bytes));
        Ok(numbers)
    }

    /// The wanted columns of some rows.
    fn bytes(&mut self, rows: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        let (needed, number) = (&self.part.needed, self.part.number_bytes());
        let (row_bytes, wanted) = (needed.row_width() * number, needed.row_numbers() * number);
        let mut bytes = vec![0; ((rows.end - rows.start) * wanted) as usize];
        let Some(columns) = &needed.columns else {
            self.reader.read(&self.part.info, rows.start * row_bytes, &mut bytes)?;
            return Ok(bytes);
        };
        for (row, bytes) in rows.zip(bytes.chunks_exact_mut(wanted.max(1) as usize)) {
            self.reader.read(&self.part.info, row * row_bytes + columns.start * number, bytes)?;
        }
        Ok(bytes)
    }

    /// All that is left of the tensor.
    pub(crate) fn rest(&mut self) -> Result<Vec<f32>, ModelProblem> {
        let needed = &self.part.needed;
        let row_bytes = (needed.row_numbers() * self.part.number_bytes()).max(1);
        let mut numbers = Vec::with_capacity(needed.numbers() as usize);
        while !self.rows.is_empty() {
            numbers.extend(self.next(CHUNK_BYTES / row_bytes)?);
        }
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
            columns: self.part.needed.columns.as_ref().map(|range| (range.start, range.end)),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<(u64, u64)>,
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
    arrays: Vec<(Role, Vec<f32>)>,
    pub(crate) digests: Vec<TensorDigest>,
    pub(crate) bytes_read: u64,
}

impl SmallWeights {
    /// Reads every needed tensor but the embedding.
    pub(crate) fn read(model: &ModelFolder) -> Result<Self, ModelProblem> {
        let mut weights = Self { arrays: Vec::new(), digests: Vec::new(), bytes_read: 0 };
        for part in model.parts().iter().filter(|part| part.needed.role != Role::Embedding) {
            let mut reader = TensorReader::new(model, part)?;
            let mut numbers = reader.rest()?;
            if let Some(wrong) = numbers.iter().find(|number| !number.is_finite()) {
                let message =
                    format!("`{}` holds {wrong}: every score would be undefined", part.name);
                return Err(
                    ModelProblem::checkpoint(message).with_hint("download the checkpoint again")
                );
            }
            if part.needed.columns.is_some() {
                numbers = transposed(&numbers, part.needed.row_numbers() as usize);
            }
            weights.add(part.needed.role, numbers);
            let (digest, bytes) = reader.finish();
            weights.digests.push(digest);
            weights.bytes_read += bytes;
        }
        Ok(weights)
    }

    /// Several tensors of one role are one array, in the order in which they are needed.
    fn add(&mut self, role: Role, numbers: Vec<f32>) {
        match self.arrays.iter_mut().find(|(found, _)| *found == role) {
            Some((_, array)) => array.extend(numbers),
            None => self.arrays.push((role, numbers)),
        }
    }

    /// The numbers of a role; empty where the model has none.
    pub(crate) fn take(&mut self, role: Role) -> Vec<f32> {
        let place = self.arrays.iter().position(|(found, _)| *found == role);
        place.map_or_else(Vec::new, |place| self.arrays.swap_remove(place).1)
    }

    /// A projection onto the rows of `one`, then those of `other`, both `[outputs, inputs]`, with their biases.
    pub(crate) fn joined(
        &mut self,
        one: (Role, Role),
        other: (Role, Role),
        inputs: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut weight, more) = (self.take(one.0), self.take(other.0));
        let (bias, more_bias) = (self.take(one.1), self.take(other.1));
        let bias = joined_bias(bias, more_bias, weight.len() / inputs, more.len() / inputs);
        weight.extend(more);
        (weight, bias)
    }
}

/// `[columns, rows]` of `[rows, columns]`.
fn transposed(numbers: &[f32], columns: usize) -> Vec<f32> {
    let rows = numbers.len() / columns.max(1);
    let column = |column: usize| (0..rows).map(move |row| numbers[row * columns + column]);
    (0..columns).flat_map(column).collect()
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
    fn transposing_swaps_rows_and_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert!(transposed(&[], 3).is_empty());
    }

    #[test]
    fn one_bias_alone_is_padded_with_zeros() {
        assert_eq!(joined_bias(vec![1.0, 2.0], vec![], 2, 1), [1.0, 2.0, 0.0]);
        assert_eq!(joined_bias(vec![], vec![3.0], 2, 1), [0.0, 0.0, 3.0]);
        assert!(joined_bias(vec![], vec![], 2, 1).is_empty());
    }
}
