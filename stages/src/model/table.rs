//! The layer-zero table as a file: written once, checked when opened, memory-mapped.
//!
//! Layout, all numbers little-endian:
//!
//! ```text
//! 0    magic "longsift-table-1"                        16 bytes
//! 16   length of the header                             8 bytes
//! 24   header: JSON, padded with spaces to a multiple of 64 bytes from the file's start
//!      rows: [rows, row_width] in the header's precision
//!      zeros to a multiple of 64 bytes, then the header's auxiliary tensors, f32, one after the other, if any
//!      length of the rows and auxiliary tensors in bytes      8 bytes
//!      SHA-256 over the header and the SHA-256 of each block in between    32 bytes
//! ```

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use half::bf16;
use longsift_kernels::{MappedFile, TableView};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::aux_tensors::aux_name;
use super::tensors::TensorRole;
use crate::load_partial_model::Precision;

const MAGIC: &[u8; 16] = b"longsift-table-1";
const PREFIX_BYTES: usize = 24;
const TRAILER_BYTES: usize = 40;
pub(crate) const ALIGNMENT: usize = 64;
/// Size of a hashed block. Blocks are hashed separately so that they can be verified in parallel.
const BLOCK_BYTES: usize = 4 << 20;
/// Bytes between syncs. Syncing while the next rows are computed leaves little to wait for at the end.
const SYNC_BYTES: u64 = 64 << 20;

/// Header of a table file. `fingerprint` covers everything that determines the content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableHeader {
    /// Covers weights, norm and projections, precision, kernel and builder version.
    pub(crate) fingerprint: String,
    pub(crate) rows: u64,
    /// Numbers per row: all queries of a token, then all its keys.
    pub(crate) row_width: u64,
    pub(crate) precision: Precision,
    /// Name and length of each auxiliary tensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) side: Vec<(String, u64)>,
}

impl TableHeader {
    fn row_bytes(&self) -> Option<u64> {
        self.rows.checked_mul(self.row_width)?.checked_mul(self.precision.bytes())
    }

    /// Returns the offset of the auxiliary tensors from the first row.
    fn aux_start(&self) -> Option<u64> {
        self.row_bytes()?.checked_next_multiple_of(ALIGNMENT as u64)
    }

    fn data_bytes(&self) -> Option<u64> {
        if self.side.is_empty() {
            return self.row_bytes();
        }
        let numbers = self.side.iter().try_fold(0u64, |sum, (_, length)| sum.checked_add(*length));
        self.aux_start()?.checked_add(numbers?.checked_mul(4)?)
    }
}

pub(crate) struct TableWriter {
    file: BufWriter<File>,
    root: Sha256,
    block: Sha256,
    in_block: usize,
    written: u64,
    header: TableHeader,
}

impl TableWriter {
    /// Reserves space for the header, whose fingerprint is known only after all rows.
    pub(crate) fn new(file: File, header: TableHeader) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&vec![0; head(&header).len()])?;
        Ok(Self {
            file,
            root: Sha256::new(),
            block: Sha256::new(),
            in_block: 0,
            written: 0,
            header,
        })
    }

    /// Appends whole rows, `[rows, row_width]`, rounded to the table's precision (to nearest, ties to even).
    pub(crate) fn write(&mut self, rows: &[f32]) -> io::Result<()> {
        match self.header.precision {
            Precision::F32 | Precision::Int16 => self.write_bytes(bytemuck::cast_slice(rows)),
            Precision::Bf16 => {
                let rounded: Vec<bf16> =
                    rows.par_iter().map(|number| bf16::from_f32(*number)).collect();
                self.write_bytes(bytemuck::cast_slice(&rounded))
            }
        }
    }

    /// Appends the auxiliary tensors in the header's order, after all rows.
    pub(crate) fn write_aux(&mut self, arrays: &[Vec<f32>]) -> io::Result<()> {
        if arrays.is_empty() {
            return Ok(());
        }
        let start = self.header.aux_start().expect("the rows were written");
        self.write_bytes(&vec![0; (start - self.written) as usize])?;
        arrays.iter().try_for_each(|array| self.write_bytes(bytemuck::cast_slice(array)))
    }

    fn write_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        let synced = self.written / SYNC_BYTES;
        self.written += bytes.len() as u64;
        if self.written / SYNC_BYTES > synced {
            self.file.get_ref().sync_data()?;
        }
        while !bytes.is_empty() {
            let (chunk, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.in_block));
            self.block.update(chunk);
            self.in_block += chunk.len();
            if self.in_block == BLOCK_BYTES {
                self.end_block();
            }
            bytes = later;
        }
        Ok(())
    }

    fn end_block(&mut self) {
        if self.in_block > 0 {
            self.root.update(std::mem::take(&mut self.block).finalize());
            self.in_block = 0;
        }
    }

    /// Writes the trailer and the header with its fingerprint, and syncs the file.
    pub(crate) fn finish(mut self, fingerprint: String) -> io::Result<()> {
        assert_eq!(
            self.header.data_bytes(),
            Some(self.written),
            "as many rows as the header states"
        );
        self.end_block();
        let space = head(&self.header).len();
        self.header.fingerprint = fingerprint;
        let head = head(&self.header);
        assert_eq!(head.len(), space, "every fingerprint has the same length");
        let root = root_hash(&head, std::mem::take(&mut self.root));
        self.file.write_all(&self.written.to_le_bytes())?;
        self.file.write_all(&root)?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &head, 0)?;
        file.sync_all()
    }
}

fn head(header: &TableHeader) -> Vec<u8> {
    let mut json = serde_json::to_vec(header).expect("a header is plain data");
    json.resize((PREFIX_BYTES + json.len()).next_multiple_of(ALIGNMENT) - PREFIX_BYTES, b' ');
    let length = (json.len() as u64).to_le_bytes();
    [MAGIC.as_slice(), &length, &json].concat()
}

/// Returns the trailer's hash from the head and a hash over the hashes of all blocks.
fn root_hash(head: &[u8], blocks: Sha256) -> [u8; 32] {
    let mut root = Sha256::new();
    root.update(head);
    root.update(blocks.finalize());
    root.finalize().into()
}

/// The layer-zero table of a model, memory-mapped: for each token id its queries and keys before the rotary embedding,
/// `[vocabulary_size, (query_heads + key_heads) · head_dim]`, or the vectors that they are projected from
/// ([`AttentionSpec::row_width`](super::AttentionSpec::row_width)).
pub struct LayerZeroTable {
    file: MappedFile,
    header: TableHeader,
    /// Rows and auxiliary tensors.
    data: Range<usize>,
    rows: Range<usize>,
}

impl std::fmt::Debug for LayerZeroTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LayerZeroTable")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl LayerZeroTable {
    /// Maps a table file and checks magic, header, fingerprint and lengths.
    pub(crate) fn open(path: &Path, expected: &TableHeader) -> Result<Self, String> {
        let file = MappedFile::open(path).map_err(|error| error.to_string())?;
        let data = data_range(file.bytes(), expected)?;
        let length = expected.row_bytes().expect("the length was checked with that of the data");
        let rows = data.start..data.start + length as usize;
        let table = Self { file, header: expected.clone(), data, rows };
        table.try_view()?;
        Ok(table)
    }

    /// Reads the whole table and compares it with its hash, in parallel.
    pub fn verify(&self) -> Result<(), String> {
        let bytes = self.file.bytes();
        let blocks: Vec<_> =
            bytes[self.data.clone()].par_chunks(BLOCK_BYTES).map(Sha256::digest).collect();
        let mut hash = Sha256::new();
        for block in &blocks {
            hash.update(block);
        }
        let stated = &bytes[bytes.len() - 32..];
        if root_hash(&bytes[..self.data.start], hash) == stated {
            Ok(())
        } else {
            Err("its hash is wrong".to_owned())
        }
    }

    /// Returns a warning if the table was copied into memory because others may rewrite the file.
    pub(crate) fn memory_warning(&self, path: &Path) -> Option<String> {
        (!self.file.is_mapped()).then(|| {
            format!(
                "table `{}` ({} bytes) was copied into memory instead of mapped, because other users may rewrite the file; \
                 a cache folder that only this user can write to avoids this",
                path.display(),
                self.file.bytes().len()
            )
        })
    }

    pub fn view(&self) -> TableView<'_> {
        self.try_view().expect("the view was checked when the table was opened")
    }

    fn try_view(&self) -> Result<TableView<'_>, String> {
        let rows = self.rows.clone();
        let view = match self.header.precision {
            Precision::F32 | Precision::Int16 => self.file.numbers(rows).map(TableView::F32),
            Precision::Bf16 => self.file.numbers(rows).map(TableView::Bf16),
        };
        view.ok_or_else(|| "its rows are not aligned".to_owned())
    }

    pub(crate) fn aux(&self, array: TensorRole) -> Option<&[f32]> {
        let mut start = self.data.start + self.header.aux_start()? as usize;
        for (name, length) in &self.header.side {
            let end = start + *length as usize * 4;
            if name == aux_name(array) {
                return self.file.numbers(start..end);
            }
            start = end;
        }
        None
    }

    pub fn rows(&self) -> usize {
        self.header.rows as usize
    }

    pub fn row_width(&self) -> usize {
        self.header.row_width as usize
    }

    pub fn precision(&self) -> Precision {
        self.header.precision
    }

    /// Returns the bytes of the rows and auxiliary tensors.
    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }
}

/// Returns the range of rows and auxiliary tensors, if the file is the table that `expected` describes.
fn data_range(bytes: &[u8], expected: &TableHeader) -> Result<Range<usize>, String> {
    let expected_head = head(expected);
    if bytes.len() < expected_head.len() + TRAILER_BYTES {
        return Err(format!("{} bytes are too short for a table", bytes.len()));
    }
    if !bytes.starts_with(MAGIC) {
        return Err("it is not a table file".to_owned());
    }
    if !bytes.starts_with(&expected_head) {
        return Err("its header describes another table".to_owned());
    }
    let data = expected_head.len()..bytes.len() - TRAILER_BYTES;
    let stated = u64::from_le_bytes(bytes[data.end..data.end + 8].try_into().expect("eight bytes"));
    if expected.data_bytes() != Some(data.len() as u64) || stated != data.len() as u64 {
        return Err(format!("it states {stated} bytes of rows, but has {}", data.len()));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn header(rows: u64, row_width: u64, precision: Precision) -> TableHeader {
        TableHeader { fingerprint: "0".repeat(64), rows, row_width, precision, side: Vec::new() }
    }

    /// Replaces the file, since an opened table is read-only.
    fn create(path: &Path) -> File {
        let _ = fs::remove_file(path); // missing the first time
        File::create(path).unwrap()
    }

    fn replace(path: &Path, bytes: &[u8]) {
        create(path).write_all(bytes).unwrap();
    }

    fn written(path: &Path, header: &TableHeader, numbers: &[f32]) {
        let mut writer = TableWriter::new(create(path), header.clone()).unwrap();
        for row in numbers.chunks(header.row_width as usize) {
            writer.write(row).unwrap();
        }
        writer.finish(header.fingerprint.clone()).unwrap();
    }

    #[test]
    fn a_written_table_is_read_back_and_verifies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let numbers: Vec<f32> = (0..3000).map(|number| number as f32 * 0.37).collect();
        for precision in [Precision::F32, Precision::Bf16] {
            let header = header(1000, 3, precision);
            written(&path, &header, &numbers);
            let table = LayerZeroTable::open(&path, &header).unwrap();
            table.verify().unwrap();
            match table.view() {
                TableView::F32(rows) => assert_eq!(rows, numbers),
                TableView::Bf16(rows) => {
                    assert!(
                        rows.iter()
                            .zip(&numbers)
                            .all(|(row, number)| *row == bf16::from_f32(*number))
                    );
                }
            }
        }
    }

    #[test]
    fn auxiliary_tensors_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let side = vec![("sinks".to_owned(), 2), ("key_norm".to_owned(), 3)];
        for precision in [Precision::F32, Precision::Bf16] {
            let header = TableHeader { side: side.clone(), ..header(5, 3, precision) };
            let mut writer = TableWriter::new(create(&path), header.clone()).unwrap();
            writer.write(&[0.5; 15]).unwrap();
            writer.write_aux(&[vec![1.0, 2.0], vec![3.0, 4.0, 5.0]]).unwrap();
            writer.finish(header.fingerprint.clone()).unwrap();
            let table = LayerZeroTable::open(&path, &header).unwrap();
            table.verify().unwrap();
            assert_eq!(table.view().len(), 15);
            assert_eq!(table.aux(TensorRole::Sinks), Some([1.0f32, 2.0].as_slice()));
            assert_eq!(table.aux(TensorRole::KeyNormWeight), Some([3.0f32, 4.0, 5.0].as_slice()));
            assert_eq!(table.aux(TensorRole::Positions), None);
        }
    }

    #[test]
    fn a_flipped_bit_in_any_block_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let header = header(2, (BLOCK_BYTES / 4 + 5) as u64, Precision::F32);
        written(&path, &header, &vec![1.5; 2 * (BLOCK_BYTES / 4 + 5)]);
        LayerZeroTable::open(&path, &header).unwrap().verify().unwrap();
        let bytes = fs::read(&path).unwrap();
        for index in [1000, bytes.len() / 2, bytes.len() - 50] {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            replace(&path, &damaged);
            assert!(LayerZeroTable::open(&path, &header).unwrap().verify().is_err());
        }
    }

    #[test]
    fn another_fingerprint_and_a_cut_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let header = header(4, 2, Precision::F32);
        written(&path, &header, &[1.0; 8]);
        let other = TableHeader { fingerprint: "1".repeat(64), ..header.clone() };
        assert_eq!(
            LayerZeroTable::open(&path, &other).unwrap_err(),
            "its header describes another table"
        );
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            replace(&path, &bytes[..length]);
            assert!(LayerZeroTable::open(&path, &header).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn a_damaged_byte_never_passes_open_and_verify(index in any::<prop::sample::Index>(), flip in 1u8..=255) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t");
            let header = header(4, 2, Precision::F32);
            written(&path, &header, &[1.0; 8]);
            let mut bytes = fs::read(&path).unwrap();
            let index = index.index(bytes.len());
            bytes[index] ^= flip;
            replace(&path, &bytes);
            let passed = LayerZeroTable::open(&path, &header).is_ok_and(|table| table.verify().is_ok());
            prop_assert!(!passed);
        }
    }
}
