//! Reads required tensors from disk as 32-bit floats.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::entry::TensorEntry;
use super::formats::LocatedTensor;
use super::problem::ModelProblem;
use super::shard::ShardReader;
use super::tensors::{Roles, TensorRole};
use crate::contract::hex;

const CHUNK_BYTES: u64 = 16 << 20;

/// Reads one required tensor in order, in chunks of whole rows, and hashes the bytes.
pub(crate) struct TensorReader<'a> {
    part: &'a LocatedTensor,
    sources: Vec<TensorSource<'a>>,
    /// Bytes of each stored tensor for the next floats.
    bytes: Vec<Vec<u8>>,
    /// Rows still to be read, in order.
    rows: Vec<Range<u64>>,
}

/// File of one stored tensor, and the hash of the bytes read so far.
struct TensorSource<'a> {
    entry: &'a TensorEntry,
    reader: ShardReader<'a>,
    hash: Sha256,
}

impl TensorSource<'_> {
    /// Reads and concatenates several ranges of the tensor.
    fn read(&mut self, byte_ranges: &[(u64, u64)]) -> Result<Vec<u8>, ModelProblem> {
        let total: u64 = byte_ranges.iter().map(|(_, length)| length).sum();
        let mut bytes = vec![0; total as usize];
        let mut rest = bytes.as_mut_slice();
        for (offset, length) in byte_ranges {
            let (range, later) = rest.split_at_mut(*length as usize);
            self.reader.read(self.entry, *offset, range)?;
            rest = later;
        }
        Ok(bytes)
    }
}

impl<'a> TensorReader<'a> {
    /// Opens the files and reads the parts that stay in memory.
    pub(crate) fn new(part: &'a LocatedTensor) -> Result<Self, ModelProblem> {
        Self::for_rows(part, &part.needed.rows)
    }

    /// Like `new`, for some rows in the given order.
    pub(crate) fn for_rows(
        part: &'a LocatedTensor,
        rows: &[Range<u64>],
    ) -> Result<Self, ModelProblem> {
        let sources = part.stored.iter().map(|stored| {
            let reader = stored.shard.reader()?;
            Ok(TensorSource { entry: &stored.entry, reader, hash: Sha256::new() })
        });
        let mut sources = sources.collect::<Result<Vec<_>, ModelProblem>>()?;
        let rows: Vec<_> = rows.iter().rev().cloned().collect();
        let mut bytes = vec![Vec::new(); sources.len()];
        for index in part.kept() {
            let source = &mut sources[index];
            bytes[index] = source.read(&[(0, source.entry.byte_length())])?;
            source.hash.update(&bytes[index]);
        }
        Ok(Self { part, sources, bytes, rows })
    }

    /// Returns the rest of the tensor as floats, in chunks of at most about `max_rows` rows.
    pub(crate) fn chunks(
        &mut self,
        max_rows: u64,
    ) -> impl Iterator<Item = Result<Vec<f32>, ModelProblem>> {
        std::iter::from_fn(move || self.rows.pop().map(|range| self.chunk(range, max_rows)))
    }

    /// Reads the first rows of `range`; the others are read next.
    fn chunk(&mut self, mut range: Range<u64>, max_rows: u64) -> Result<Vec<f32>, ModelProblem> {
        let end = chunk_end(&range, max_rows, self.part.format.row_step());
        let rows = range.start..end;
        let mut sliced = Vec::new();
        for (index, source) in self.sources.iter_mut().enumerate() {
            if let Some(slice) = self.part.format.slice(index, &rows) {
                self.bytes[index] = source.read(&slice.byte_ranges())?;
                sliced.push(index);
            }
        }
        range.start = end;
        if !range.is_empty() {
            self.rows.push(range);
        }
        let (sources, bytes) = (&mut self.sources, &self.bytes);
        let hash = || sliced.iter().for_each(|index| sources[*index].hash.update(&bytes[*index]));
        let ((), floats) = rayon::join(hash, || self.part.format.floats(rows, bytes));
        floats.map_err(|why| {
            ModelProblem::checkpoint(format!("`{}`: {why}", self.part.name()))
                .with_hint("download the checkpoint again")
        })
    }

    pub(crate) fn rest(&mut self) -> Result<Vec<f32>, ModelProblem> {
        let mut numbers = Vec::with_capacity(self.part.needed.numbers() as usize);
        for chunk in self.chunks(rows_per_chunk(self.part)) {
            numbers.extend(chunk?);
        }
        Ok(numbers)
    }

    /// Returns the tensor's part of the weights' digest, and the number of bytes read.
    pub(crate) fn finish(self) -> (TensorDigest, u64) {
        let needed = &self.part.needed;
        let bytes_read = self.sources.iter().map(|source| source.reader.bytes_read).sum();
        let mut hashes: Vec<_> =
            self.sources.into_iter().map(|source| source.hash.finalize()).collect();
        let hash = match hashes.len() {
            1 => hashes.remove(0),
            _ => Sha256::digest(hashes.concat()),
        };
        let digest = TensorDigest {
            name: needed.name.clone(),
            dtype: self.part.format.name(),
            shape: needed.shape.clone(),
            rows: needed.rows.iter().map(|rows| (rows.start, rows.end)).collect(),
            columns: needed.columns.as_ref().map(|range| (range.start, range.end)),
            sha256: hex(&hash),
        };
        (digest, bytes_read)
    }
}

/// Returns the maximum bytes of a chunk: stored bytes, including those that stay in memory, and bytes of its floats.
pub(crate) fn chunk_bytes(part: &LocatedTensor, max_rows: u64) -> (u64, u64) {
    let kept: u64 = part.kept().map(|index| part.stored[index].entry.byte_length()).sum();
    let of_chunk = |rows: &Range<u64>| {
        let rows = rows.start..chunk_end(rows, max_rows, part.format.row_step());
        let slices = (0..part.stored.len()).filter_map(|index| part.format.slice(index, &rows));
        let stored: u64 = slices.map(|slice| slice.bytes()).sum();
        (kept + stored, 4 * (rows.end - rows.start) * part.needed.row_numbers())
    };
    let chunks = part.needed.rows.iter().filter(|rows| !rows.is_empty()).map(of_chunk);
    chunks.max().unwrap_or((kept, 0))
}

/// Returns the maximum memory while a tensor is read, in addition to its array: one chunk, or a transposed copy.
pub(crate) fn read_overhead_bytes(part: &LocatedTensor) -> u64 {
    let (stored, floats) = chunk_bytes(part, rows_per_chunk(part));
    let transposed = if part.needed.columns.is_some() { 4 * part.needed.numbers() } else { 0 };
    stored + floats.max(transposed)
}

fn rows_per_chunk(part: &LocatedTensor) -> u64 {
    CHUNK_BYTES / (part.needed.row_numbers() * 4).max(1)
}

/// Returns the end of a chunk of at most `max` rows, or of `step` rows if that is more.
fn chunk_end(range: &Range<u64>, max: u64, step: u64) -> u64 {
    let before = range.start.saturating_add(max.max(1)) / step * step;
    let end = if before > range.start { before } else { (range.start / step + 1) * step };
    end.min(range.end)
}

/// One tensor's part of the weights' digest, from its content only.
#[derive(serde::Serialize)]
pub(crate) struct TensorDigest {
    pub(crate) name: String,
    dtype: String,
    shape: Vec<u64>,
    rows: Vec<(u64, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<(u64, u64)>,
    sha256: String,
}

/// All tensors except the embedding: small enough to be held in memory.
pub(crate) struct LayerWeights {
    arrays: Vec<(TensorRole, Vec<f32>)>,
    pub(crate) digests: Vec<TensorDigest>,
    pub(crate) bytes_read: u64,
}

impl LayerWeights {
    pub(crate) fn read<'a>(
        parts: impl IntoIterator<Item = &'a LocatedTensor>,
    ) -> Result<Self, ModelProblem> {
        let mut weights = Self { arrays: Vec::new(), digests: Vec::new(), bytes_read: 0 };
        for part in parts {
            let mut reader = TensorReader::new(part)?;
            let mut numbers = reader.rest()?;
            part.check_finite(&numbers, "score")?;
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

    /// Concatenates several tensors of one role in the order in which they are required.
    fn add(&mut self, role: TensorRole, numbers: Vec<f32>) {
        match self.arrays.iter_mut().find(|(found, _)| *found == role) {
            Some((_, array)) => array.extend(numbers),
            None => self.arrays.push((role, numbers)),
        }
    }

    /// Removes and returns the numbers of a role; empty if the model lacks it.
    pub(crate) fn take(&mut self, role: TensorRole) -> Vec<f32> {
        let index = self.arrays.iter().position(|(found, _)| *found == role);
        index.map_or_else(Vec::new, |index| self.arrays.swap_remove(index).1)
    }

    /// Creates a projection to the rows of `one`, then those of `other`, both `[outputs, inputs]`, with their biases.
    pub(crate) fn joined(
        &mut self,
        one: Roles,
        other: Roles,
        inputs: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut weight, mut bias) = (self.take(one.0), self.take(one.1));
        let more_bias = self.take(other.1);
        // If only one of them has a bias, that of the other is 0.
        let has_bias = !bias.is_empty() || !more_bias.is_empty();
        bias.resize(if has_bias { weight.len() / inputs } else { 0 }, 0.0);
        bias.extend(more_bias);
        weight.extend(self.take(other.0));
        bias.resize(if has_bias { weight.len() / inputs } else { 0 }, 0.0);
        (weight, bias)
    }
}

/// Transposes `[rows, columns]` to `[columns, rows]`.
fn transposed(numbers: &[f32], columns: usize) -> Vec<f32> {
    let rows = numbers.len() / columns.max(1);
    let column = |column: usize| (0..rows).map(move |row| numbers[row * columns + column]);
    (0..columns).flat_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_at_multiples_of_the_step_and_always_advance() {
        assert_eq!(chunk_end(&(0..10), 4, 1), 4);
        assert_eq!(chunk_end(&(3..10), 4, 1), 7);
        assert_eq!(chunk_end(&(3..20), 8, 4), 8);
        assert_eq!(chunk_end(&(3..20), 2, 8), 8);
        assert_eq!(chunk_end(&(8..20), 2, 8), 16);
        assert_eq!(chunk_end(&(16..20), 2, 8), 20);
        assert_eq!(chunk_end(&(1..9), u64::MAX, 1), 9);
    }

    #[test]
    fn transposing_swaps_rows_and_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert!(transposed(&[], 3).is_empty());
    }

    #[test]
    fn a_single_bias_is_padded_with_zeros() {
        let joined = |biases: &[(TensorRole, Vec<f32>)]| {
            let weights =
                [(TensorRole::QueryWeight, vec![0.0; 6]), (TensorRole::KeyWeight, vec![0.0; 3])];
            let arrays = [&weights[..], biases].concat();
            let mut weights = LayerWeights { arrays, digests: Vec::new(), bytes_read: 0 };
            weights.joined(TensorRole::QUERY, TensorRole::KEY, 3).1
        };
        assert_eq!(joined(&[(TensorRole::QueryBias, vec![1.0, 2.0])]), [1.0, 2.0, 0.0]);
        assert_eq!(joined(&[(TensorRole::KeyBias, vec![3.0])]), [0.0, 0.0, 3.0]);
        assert!(joined(&[]).is_empty());
    }
}
