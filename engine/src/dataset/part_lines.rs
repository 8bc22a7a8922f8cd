//! Writes one compressed file of JSON lines whose bytes depend only on its rows.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_cast::cast;
use arrow_json::writer::{LineDelimited, WriterBuilder};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use zstd::stream::write::Encoder;

use super::part::WrittenPart;
use super::problem::DataProblem;
use crate::storage::atomic::AtomicFile;

/// Bytes per call of the compressor: fixed, so that its output does not depend on the batches.
const PIECE_BYTES: usize = 1 << 20;
/// Zstandard level with small and fast output.
const ZSTD_LEVEL: i32 = 3;
/// Time zone of written instants.
const UTC: &str = "+00:00";

/// Writes one `.jsonl.zst` file atomically: a JSON object and a line feed for each row, nulls included. Non-finite
/// numbers are null, bytes are hexadecimal digits, instants are in UTC.
pub struct LinesWriter {
    stream: Encoder<'static, AtomicFile>,
    /// Written types.
    schema: SchemaRef,
    pending: Vec<u8>,
    rows: u64,
}

impl LinesWriter {
    /// Creates the file `path` in an existing folder.
    pub fn create(path: &Path, schema: &SchemaRef) -> Result<Self, DataProblem> {
        let failed = |error: io::Error| written(path, &error);
        let stream = Encoder::new(AtomicFile::create(path)?, ZSTD_LEVEL).map_err(failed)?;
        Ok(Self { stream, schema: in_utc(schema), pending: Vec::new(), rows: 0 })
    }

    /// Appends rows. Columns are matched by index.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataProblem> {
        let lines = encoded(batch, &self.schema).map_err(|error| unwritable(&error))?;
        self.pending.extend(lines);
        let whole = self.pending.len() / PIECE_BYTES * PIECE_BYTES;
        for piece in self.pending[..whole].chunks(PIECE_BYTES) {
            self.stream
                .write_all(piece)
                .map_err(|error| written(Path::new("the output"), &error))?;
        }
        self.pending.drain(..whole);
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Writes the pending lines and moves the file to its path.
    pub fn finish(mut self) -> Result<WrittenPart, DataProblem> {
        let failed = |error: io::Error| written(Path::new("the output"), &error);
        self.stream.write_all(&self.pending).map_err(failed)?;
        let mut file = self.stream.finish().map_err(failed)?;
        let written = file.commit()?;
        Ok(WrittenPart { bytes: written.bytes, sha256: written.sha256, rows: self.rows })
    }
}

/// Lists columns that JSON cannot represent, each with the reason.
pub fn unsupported_columns(schema: &Schema) -> Vec<String> {
    let one = |field: &Arc<Field>| {
        let of_one = Arc::new(Schema::new(vec![Arc::clone(field)]));
        let row = RecordBatch::new_empty(Arc::clone(&of_one));
        let why = encoded(&row, &in_utc(&of_one)).err()?;
        Some(format!("`{}` of the type {}: {why}", field.name(), field.data_type()))
    };
    schema.fields().iter().filter_map(one).collect()
}

fn encoded(batch: &RecordBatch, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast(column, field.data_type()));
    let batch = RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_, _>>()?)?;
    let mut lines = Vec::new();
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    let mut writer = builder.build::<_, LineDelimited>(&mut lines);
    writer.write(&batch)?;
    writer.finish()?;
    drop(writer);
    Ok(lines)
}

/// Returns the schema with all instants in UTC, because there is no database of time zone names.
fn in_utc(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new(fields_in_utc(schema.fields())))
}

fn fields_in_utc(fields: &Fields) -> Fields {
    fields.iter().map(field_in_utc).collect()
}

fn field_in_utc(field: &Arc<Field>) -> Arc<Field> {
    let kind = type_in_utc(field.data_type());
    Arc::new(field.as_ref().clone().with_data_type(kind))
}

fn type_in_utc(kind: &DataType) -> DataType {
    match kind {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some(UTC.into())),
        DataType::Struct(fields) => DataType::Struct(fields_in_utc(fields)),
        DataType::List(item) => DataType::List(field_in_utc(item)),
        DataType::LargeList(item) => DataType::LargeList(field_in_utc(item)),
        DataType::FixedSizeList(item, length) => {
            DataType::FixedSizeList(field_in_utc(item), *length)
        }
        DataType::Map(entries, sorted) => DataType::Map(field_in_utc(entries), *sorted),
        // Dictionary keys would limit the values of a batch.
        DataType::Dictionary(_, values) => type_in_utc(values),
        other => other.clone(),
    }
}

fn unwritable(error: &ArrowError) -> DataProblem {
    DataProblem::data(format!("a row cannot be written as JSON: {error}"))
}

fn written(path: &Path, error: &io::Error) -> DataProblem {
    DataProblem::machine(format!("{}: {error}", path.display()))
}
