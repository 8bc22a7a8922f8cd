//! Writes samples as token ids in Megatron's format: `.bin` with the ids and `.idx` with the offsets of sequences.
//! Packed sequences also have `.cu_seqlens.npy` with the offsets of samples in them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::part::WrittenPart;
use super::problem::DataProblem;
use crate::spec::pipeline::OutputFormat;
use crate::storage::atomic::AtomicFile;

/// Magic number and version of an index.
const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
/// Largest vocabulary with two-byte ids in Megatron's own tools.
const MAX_TWO_BYTE_VOCABULARY: u64 = 65_499;
/// Number of tokens that are packed at once. More tokens would need more memory and pack only slightly better.
const BLOCK_TOKENS: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSettings {
    pub vocabulary: u64,
    /// Maximum tokens of a sequence; `None` if every sample is a sequence.
    pub tokens: Option<u32>,
    pub end_token: Option<u32>,
}

/// Writes the files of one part atomically.
pub struct TokensWriter {
    stem: PathBuf,
    ids: AtomicFile,
    sequences: SequenceSettings,
    /// For each sequence, the lengths of its samples or pieces of samples.
    written: Vec<Vec<u32>>,
    /// Tokens to pack next; `pieces`: lengths of their pieces.
    pending: Vec<u32>,
    pieces: Vec<u32>,
    samples: u64,
}

impl TokensWriter {
    pub fn create(stem: &Path, sequences: SequenceSettings) -> Result<Self, DataProblem> {
        let ids = AtomicFile::create(&stem.with_added_extension("bin"))?;
        let stem = stem.to_owned();
        let (written, pending, pieces) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { stem, ids, sequences, written, pending, pieces, samples: 0 })
    }

    pub fn write(&mut self, ids: &[u32]) -> Result<(), DataProblem> {
        self.samples += 1;
        let end = self.sequences.end_token;
        let length = ids.len() + usize::from(end.is_some());
        let Some(max) = self.sequences.tokens.map(|tokens| tokens as usize) else {
            let tokens: Vec<u32> = ids.iter().copied().chain(end).collect();
            self.written.push(vec![length as u32]);
            return self.put(&tokens);
        };
        if self.pending.len() + length > BLOCK_TOKENS && !self.pieces.is_empty() {
            self.pack()?;
        }
        self.pending.extend(ids.iter().copied().chain(end));
        // A sample that is too long is cut; its last piece is packed with others.
        let mut left = length;
        while left > 0 {
            let piece = left.min(max);
            self.pieces.push(piece as u32);
            left -= piece;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Vec<WrittenPart>, DataProblem> {
        self.pack()?;
        let part = |file: &mut AtomicFile, rows: u64| -> Result<WrittenPart, DataProblem> {
            let written = file.commit()?;
            Ok(WrittenPart { bytes: written.bytes, sha256: written.sha256, rows })
        };
        let mut parts = vec![part(&mut self.ids, self.samples)?];
        let endings = OutputFormat::Megatron.endings(self.sequences.tokens.is_some());
        for suffix in &endings[1..] {
            let path = self.stem.with_added_extension(&suffix[1..]);
            let bytes = if *suffix == ".idx" { self.index() } else { self.cu_seqlens() };
            let mut file = AtomicFile::create(&path)?;
            file.write_all(&bytes).map_err(|error| failed(&path, &error))?;
            // Rows are counted for the file of the ids.
            parts.push(part(&mut file, 0)?);
        }
        Ok(parts)
    }

    /// Packs the pending pieces into sequences by best fit: the longest first, each into the sequence with the least
    /// room left. Sequences, and pieces in them, are in the order of their first piece.
    fn pack(&mut self) -> Result<(), DataProblem> {
        let Some(max) = self.sequences.tokens else { return Ok(()) };
        let lengths = std::mem::take(&mut self.pieces);
        let tokens = std::mem::take(&mut self.pending);
        let mut rest = &tokens[..];
        let mut pieces = Vec::with_capacity(lengths.len());
        for length in &lengths {
            let (piece, later) = rest.split_at(*length as usize);
            pieces.push(piece);
            rest = later;
        }
        for mut sequence in best_fit(&lengths, max) {
            sequence.sort_unstable();
            let ids: Vec<u32> = sequence.iter().flat_map(|piece| pieces[*piece]).copied().collect();
            self.written.push(sequence.iter().map(|piece| lengths[*piece]).collect());
            self.put(&ids)?;
        }
        Ok(())
    }

    fn put(&mut self, ids: &[u32]) -> Result<(), DataProblem> {
        let bytes: Vec<u8> = if self.has_two_byte_ids() {
            ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect()
        } else {
            ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect()
        };
        self.ids.write_all(&bytes).map_err(|error| failed(&self.stem, &error))
    }

    fn has_two_byte_ids(&self) -> bool {
        self.sequences.vocabulary <= MAX_TWO_BYTE_VOCABULARY
    }

    /// Encodes `.idx`: magic number, version, type of the ids, numbers of sequences and of document boundaries, length
    /// of each sequence in tokens, its byte offset, and the boundaries. Each sequence is a document.
    fn index(&self) -> Vec<u8> {
        let lengths: Vec<u64> = self
            .written
            .iter()
            .map(|pieces| pieces.iter().map(|length| u64::from(*length)).sum())
            .collect();
        let (kind, bytes) = if self.has_two_byte_ids() { (8_u8, 2) } else { (4_u8, 4) };
        let sequences = lengths.len() as u64;
        let mut index = MAGIC.to_vec();
        index.extend(VERSION.to_le_bytes());
        index.push(kind);
        index.extend(sequences.to_le_bytes());
        index.extend((sequences + 1).to_le_bytes());
        index.extend(lengths.iter().flat_map(|length| (*length as i32).to_le_bytes()));
        let mut next = 0;
        for length in &lengths {
            index.extend(i64::to_le_bytes(next));
            next += (*length * bytes) as i64;
        }
        index.extend((0..=sequences as i64).flat_map(i64::to_le_bytes));
        index
    }

    /// Encodes `.cu_seqlens.npy`, an array of int32: for each sequence 0, then the end of each of its pieces.
    fn cu_seqlens(&self) -> Vec<u8> {
        let mut ends: Vec<i32> = Vec::new();
        for pieces in &self.written {
            let mut end = 0;
            ends.push(end);
            for length in pieces {
                end += *length as i32;
                ends.push(end);
            }
        }
        let mut header =
            format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({},), }}", ends.len());
        // The data begins at a multiple of 64 bytes.
        while (10 + header.len() + 1) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut array = b"\x93NUMPY\x01\x00".to_vec();
        array.extend((header.len() as u16).to_le_bytes());
        array.extend(header.into_bytes());
        array.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
        array
    }
}

/// Assigns pieces to sequences of at most `max` tokens.
fn best_fit(pieces: &[u32], max: u32) -> Vec<Vec<usize>> {
    let mut longest_first: Vec<usize> = (0..pieces.len()).collect();
    longest_first.sort_by_key(|piece| std::cmp::Reverse(pieces[*piece]));
    // Sequences by remaining room, the latest last.
    let mut room: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut sequences: Vec<Vec<usize>> = Vec::new();
    for piece in longest_first {
        let length = pieces[piece];
        let found = room.range(length..).next().map(|(left, _)| *left);
        let (sequence, left) = if let Some(left) = found {
            let open = room.get_mut(&left).expect("it has just been found");
            let sequence = open.pop().expect("no list is empty");
            if open.is_empty() {
                room.remove(&left);
            }
            (sequence, left)
        } else {
            sequences.push(Vec::new());
            (sequences.len() - 1, max)
        };
        sequences[sequence].push(piece);
        if left > length {
            room.entry(left - length).or_default().push(sequence);
        }
    }
    sequences.sort_by_key(|pieces| pieces.iter().copied().min());
    sequences
}

fn failed(path: &Path, error: &std::io::Error) -> DataProblem {
    DataProblem::machine(format!("cannot write `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sequences(tokens: Option<u32>) -> SequenceSettings {
        SequenceSettings { vocabulary: 1000, tokens, end_token: None }
    }

    /// Returns the sequences of a part and, if they are packed, the boundaries of pieces.
    fn read(folder: &Path, tokens: Option<u32>) -> (Vec<Vec<u32>>, Vec<Vec<i32>>) {
        let bytes = std::fs::read(folder.join("part.bin")).unwrap();
        let ids: Vec<u32> =
            bytes.as_chunks().0.iter().map(|two| u32::from(u16::from_le_bytes(*two))).collect();
        let index = std::fs::read(folder.join("part.idx")).unwrap();
        assert_eq!(&index[..9], MAGIC);
        let word = |at: usize| u64::from_le_bytes(index[at..at + 8].try_into().unwrap());
        assert_eq!((word(9), index[17]), (1, 8));
        let count = word(18) as usize;
        assert_eq!(word(26) as usize, count + 1);
        let (lengths, pointers) = (34, 34 + 4 * count);
        let found = (0..count).map(|sequence| {
            let at = lengths + 4 * sequence;
            let length = i32::from_le_bytes(index[at..at + 4].try_into().unwrap()) as usize;
            let first = word(pointers + 8 * sequence) as usize / 2;
            ids[first..first + length].to_vec()
        });
        let found: Vec<Vec<u32>> = found.collect();
        let borders = pointers + 8 * count;
        assert!((0..=count).all(|border| word(borders + 8 * border) == border as u64));
        assert_eq!(index.len(), borders + 8 * (count + 1));
        if tokens.is_none() {
            return (found, Vec::new());
        }
        let array = std::fs::read(folder.join("part.cu_seqlens.npy")).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes(array[8..10].try_into().unwrap()));
        assert_eq!(header % 64, 0);
        let all = array[header..].as_chunks().0.iter().map(|four| i32::from_le_bytes(*four));
        let all: Vec<i32> = all.collect();
        let ends = all.split(|end| *end == 0).skip(1).map(<[i32]>::to_vec).collect();
        (found, ends)
    }

    #[test]
    fn without_a_length_every_sample_is_a_sequence_and_a_document() {
        let folder = tempfile::tempdir().unwrap();
        let end = SequenceSettings { end_token: Some(7), ..sequences(None) };
        let mut writer = TokensWriter::create(&folder.path().join("part"), end).unwrap();
        for sample in [&[1, 2, 3][..], &[4], &[5, 6]] {
            writer.write(sample).unwrap();
        }
        let parts = writer.finish().unwrap();
        assert_eq!(parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [3, 0]);
        let (found, _) = read(folder.path(), None);
        assert_eq!(found, [vec![1, 2, 3, 7], vec![4, 7], vec![5, 6, 7]]);
    }

    #[test]
    fn large_vocabularies_have_four_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let large = SequenceSettings { vocabulary: 65_500, ..sequences(None) };
        let mut writer = TokensWriter::create(&folder.path().join("part"), large).unwrap();
        writer.write(&[70_000, 3]).unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(folder.path().join("part.bin")).unwrap();
        assert_eq!(bytes, [0x70, 0x11, 1, 0, 3, 0, 0, 0]);
        assert_eq!(std::fs::read(folder.path().join("part.idx")).unwrap()[17], 4);
    }

    #[test]
    fn pieces_are_packed_by_best_fit() {
        assert_eq!(best_fit(&[6, 5, 4, 3, 2], 10), [vec![0, 2], vec![1, 3, 4]]);
        assert_eq!(best_fit(&[10, 10], 10), [vec![0], vec![1]]);
        assert!(best_fit(&[], 10).is_empty());
    }

    proptest! {
        #[test]
        fn every_token_of_every_sample_is_in_one_sequence_and_none_is_longer(
            samples in prop::collection::vec(prop::collection::vec(1_u32..1000, 1..40), 0..30), max in 1_u32..30,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let packed = sequences(Some(max));
            let mut writer = TokensWriter::create(&folder.path().join("part"), packed).unwrap();
            for sample in &samples {
                writer.write(sample).unwrap();
            }
            writer.finish().unwrap();
            let (found, ends) = read(folder.path(), Some(max));
            prop_assert_eq!(found.len(), ends.len());
            let mut pieces = Vec::new();
            for (sequence, ends) in found.iter().zip(&ends) {
                prop_assert!(sequence.len() <= max as usize);
                prop_assert_eq!(ends.last().copied(), Some(sequence.len() as i32));
                let mut start = 0;
                for end in ends {
                    pieces.push(sequence[start..*end as usize].to_vec());
                    start = *end as usize;
                }
            }
            let mut expected: Vec<Vec<u32>> =
                samples.iter().flat_map(|sample| sample.chunks(max as usize).map(<[u32]>::to_vec)).collect();
            pieces.sort();
            expected.sort();
            prop_assert_eq!(pieces, expected);
        }
    }
}
