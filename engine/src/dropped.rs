//! The table of rows and windows that are not in the output, and why: `dropped/*.parquet`.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::dataset::PartWriter;
use crate::error::Result;
use crate::files;
use crate::run_directory::RunDirectory;
use crate::spec::pipeline::Compression;
use crate::units::Part;

/// A row or a window that is not in the output.
#[derive(Clone, Debug)]
pub struct DroppedRow {
    /// Row of the document in its file.
    pub input_row: u64,
    /// The document's id.
    pub id: String,
    /// Index of the window; none where the whole row was dropped.
    pub window: Option<u32>,
    /// `short_document`, `too_short`, `not_selected`.
    pub reason: &'static str,
    /// Its score, if it got one.
    pub score: Option<f64>,
}

impl DroppedRow {
    /// A whole row without a score.
    pub fn row(input_row: u64, id: String, reason: &'static str) -> Self {
        Self { input_row, id, window: None, reason, score: None }
    }
}

/// The schema of the table.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("input_file", DataType::Utf8, false),
        Field::new("input_row", DataType::Int64, false),
        Field::new("id", DataType::Utf8, false),
        Field::new("window", DataType::Int32, true),
        Field::new("reason", DataType::Utf8, false),
        Field::new("score", DataType::Float64, true),
    ]))
}

/// Writes rows of one file as `dropped/<name>.parquet`; without rows there is no file.
pub fn write(
    directory: &RunDirectory,
    name: &str,
    file: &str,
    rows: &[DroppedRow],
) -> Result<Option<Part>> {
    let path = format!("dropped/{name}.parquet");
    write_at(&directory.root.join(&path), path, file, rows)
}

/// The same, at a path of the caller's choice.
pub fn write_at(
    path: &Path,
    part_path: String,
    file: &str,
    rows: &[DroppedRow],
) -> Result<Option<Part>> {
    if rows.is_empty() {
        files::remove_file(path)?;
        return Ok(None);
    }
    let mut writer = PartWriter::create(path, &schema(), &[], Compression::Zstd)?;
    for some in rows.chunks(8192) {
        writer.write(&batch(file, some))?;
    }
    let written = writer.finish()?;
    Ok(Some(Part::new(part_path, &written)))
}

fn batch(file: &str, rows: &[DroppedRow]) -> RecordBatch {
    let columns: Vec<arrow::array::ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| file))),
        Arc::new(rows.iter().map(|row| Some(row.input_row as i64)).collect::<Int64Array>()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.id))),
        Arc::new(
            rows.iter().map(|row| row.window.map(|window| window as i32)).collect::<Int32Array>(),
        ),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.reason))),
        Arc::new(rows.iter().map(|row| row.score).collect::<Float64Array>()),
    ];
    RecordBatch::try_new(schema(), columns).expect("the columns are those of the schema")
}
