//! Writing one Parquet file: its bytes depend on its rows alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter, encode_arrow_schema};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::problem::DataProblem;
use super::row_bytes::row_bytes;
use super::types;
use crate::files::{AtomicFile, FileError};
use crate::spec::pipeline::Compression;

/// Rows that the Parquet writer gets at once. Pages end between such pieces, so the size is part of the format.
const PIECE_ROWS: u64 = 1024;
/// A piece ends early at the row that reaches this many bytes.
const PIECE_BYTES: u64 = 16 << 20;
/// Bounds of a row group: rows, and bytes before encoding.
const GROUP_ROWS: u64 = 122_880;
const GROUP_BYTES: u64 = 100 << 20;
/// The level at which Zstandard is both small and fast.
const ZSTD_LEVEL: i32 = 3;

/// Writes one Parquet file that appears whole or not at all.
///
/// The same rows give the same bytes however the caller cuts them into batches: rows are cut again at fixed places, and
/// dictionaries and views are written by their values. Memory: the encoded row group, at most about 100 MB before
/// encoding, and one piece.
pub struct PartWriter {
    writer: ArrowWriter<AtomicFile>,
    path: PathBuf,
    /// The types that the Parquet writer gets.
    storage: SchemaRef,
    pending: Vec<RecordBatch>,
    pending_rows: u64,
    pending_bytes: u64,
    group_rows: u64,
    group_bytes: u64,
    rows: u64,
}

/// What a finished part holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPart {
    /// Length, in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes, 64 hexadecimal digits.
    pub sha256: String,
    /// Rows.
    pub rows: u64,
}

impl PartWriter {
    /// Begins the file that will be `path`, in a folder that exists. `metadata`: key-values for the footer; the Arrow
    /// schema is added to them.
    pub fn create(
        path: &Path,
        schema: &SchemaRef,
        metadata: &[(String, String)],
        compression: Compression,
    ) -> Result<Self, DataProblem> {
        let fields =
            schema.fields().iter().map(|field| types::map_field(field, types::storage_type));
        let storage = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let arrow_schema = encode_arrow_schema(&Schema::new(schema.fields().clone()));
        let copied = metadata.iter().filter(|(key, _)| key != ARROW_SCHEMA_META_KEY);
        let mut key_values: Vec<_> =
            copied.map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
        key_values.push(KeyValue::new(ARROW_SCHEMA_META_KEY.into(), arrow_schema));
        let properties = WriterProperties::builder()
            .set_compression(codec(compression))
            .set_key_value_metadata(Some(key_values))
            .set_max_row_group_row_count(None)
            .set_max_row_group_bytes(None)
            .build();
        let options =
            ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let file = AtomicFile::create(path)?;
        let writer = ArrowWriter::try_new_with_options(file, Arc::clone(&storage), options)
            .map_err(|error| problem(path, error))?;
        Ok(Self {
            writer,
            path: path.to_path_buf(),
            storage,
            pending: Vec::new(),
            pending_rows: 0,
            pending_bytes: 0,
            group_rows: 0,
            group_bytes: 0,
            rows: 0,
        })
    }

    /// Rows given so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends rows. Columns are matched by position; their types may differ from the file's in string width, view or
    /// dictionary encoding.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataProblem> {
        let batch = self.store(batch)?;
        let mut start = 0;
        for (row, bytes) in row_bytes(batch.columns(), batch.num_rows()).into_iter().enumerate() {
            self.pending_rows += 1;
            self.pending_bytes += bytes;
            if self.pending_rows == PIECE_ROWS || self.pending_bytes >= PIECE_BYTES {
                self.pending.push(batch.slice(start, row + 1 - start));
                start = row + 1;
                self.write_piece()?;
            }
        }
        if start < batch.num_rows() {
            self.pending
                .push(compact(batch.slice(start, batch.num_rows() - start), self.pending_bytes));
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Writes what is pending and the footer, and gives the file its name.
    pub fn finish(mut self) -> Result<WrittenPart, DataProblem> {
        self.write_piece()?;
        let file = self.writer.into_inner().map_err(|error| problem(&self.path, error))?;
        let written = file.commit()?;
        Ok(WrittenPart { bytes: written.bytes, sha256: written.sha256, rows: self.rows })
    }

    /// The batch in the types that are written.
    fn store(&self, batch: &RecordBatch) -> Result<RecordBatch, DataProblem> {
        let unfit = |why: String| {
            DataProblem::data(format!("cannot write `{}`: {why}", self.path.display()))
        };
        if batch.num_columns() != self.storage.fields().len() {
            let (has, wants) = (batch.num_columns(), self.storage.fields().len());
            return Err(unfit(format!("a batch has {has} columns, the file {wants}")));
        }
        let fields = self.storage.fields().iter();
        let columns = batch.columns().iter().zip(fields).map(|(column, field)| {
            types::conform(column, field.data_type())
                .map_err(|why| unfit(format!("column `{}`: {why}", field.name())))
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(Arc::clone(&self.storage), columns)
            .map_err(|why| unfit(why.to_string()))
    }

    /// Hands the pending rows to the Parquet writer as one batch.
    fn write_piece(&mut self) -> Result<(), DataProblem> {
        if self.pending_rows == 0 {
            return Ok(());
        }
        let pieces = std::mem::take(&mut self.pending);
        let (rows, bytes) =
            (std::mem::take(&mut self.pending_rows), std::mem::take(&mut self.pending_bytes));
        let piece = concat_batches(&self.storage, &pieces)
            .map_err(|why| problem(&self.path, ParquetError::ArrowError(why.to_string())))?;
        if self.group_rows + rows > GROUP_ROWS
            || (self.group_rows > 0 && self.group_bytes + bytes > GROUP_BYTES)
        {
            self.writer.flush().map_err(|error| problem(&self.path, error))?;
            (self.group_rows, self.group_bytes) = (0, 0);
        }
        self.writer.write(&piece).map_err(|error| problem(&self.path, error))?;
        self.group_rows += rows;
        self.group_bytes += bytes;
        Ok(())
    }
}

/// Copies a slice that keeps much more memory alive than the `bytes` it needs.
fn compact(slice: RecordBatch, bytes: u64) -> RecordBatch {
    if slice.get_array_memory_size() as u64 <= 4 * bytes + (1 << 20) {
        return slice;
    }
    let all = UInt64Array::from_iter_values(0..slice.num_rows() as u64);
    take_record_batch(&slice, &all).unwrap_or(slice)
}

fn codec(compression: Compression) -> Codec {
    match compression {
        Compression::Zstd => {
            Codec::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL).expect("3 is a level of Zstandard"))
        }
        Compression::Snappy => Codec::SNAPPY,
        Compression::Lz4 => Codec::LZ4_RAW,
        Compression::None => Codec::UNCOMPRESSED,
    }
}

/// A failed write is the machine's problem; anything else means that the rows do not fit Parquet.
fn problem(path: &Path, error: ParquetError) -> DataProblem {
    if let ParquetError::External(source) = error {
        let file_error = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let file_error = file_error.and_then(|inner| inner.downcast_ref::<FileError>());
        let hint = file_error.and_then(FileError::hint);
        let message = file_error.map_or_else(
            || format!("cannot write `{}`: {source}", path.display()),
            FileError::to_string,
        );
        return DataProblem { hint, ..DataProblem::machine(message) };
    }
    DataProblem::data(format!("cannot write `{}`: {error}", path.display()))
}
