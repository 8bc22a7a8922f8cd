//! Table of rows that could not be scored: the original row where it is readable, and the reason.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, new_null_array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use longsift_stages::contract::RowError;

use super::layout::RunDirectory;
use super::table::Table;
use super::units::Part;
use crate::base::error::Result;
use crate::dataset::input::Dataset;
use crate::dataset::lost_row_groups::LostRowGroups;
use crate::dataset::part::{self, PartWriter};
use crate::dataset::rows;
use crate::dataset::units::WorkUnit;
use crate::storage::files;

/// Path of the records of files that cannot be opened, relative to the run directory.
pub const FILES: &str = "quarantine/files.parquet";
/// Rows per batch when rows are read again: bad rows are few, but may be large.
const BATCH_ROWS: usize = 64;

/// Columns that state the reason. An input with one of these columns is refused: its values would be ambiguous.
pub const COLUMNS: [&str; 6] = [
    "longsift_file",
    "longsift_row_group",
    "longsift_row",
    "longsift_stage",
    "longsift_code",
    "longsift_message",
];

/// Returns the schema: the input's columns that Parquet can hold (an output in another format may have others), nullable, then
/// [`COLUMNS`]. Also returns the indices of the input's columns.
fn schema(input: &Schema) -> (SchemaRef, Vec<usize>) {
    let stored = |index: &usize| part::unsupported_column(&input.fields()[*index]).is_none();
    let columns: Vec<usize> = (0..input.fields().len()).filter(stored).collect();
    let nullable = |index: &usize| Arc::new(input.field(*index).clone().with_nullable(true));
    let mut fields: Vec<Arc<Field>> = columns.iter().map(nullable).collect();
    for name in COLUMNS {
        let (kind, nullable) = match name {
            "longsift_row_group" => (DataType::Int32, true),
            "longsift_row" => (DataType::Int64, true),
            _ => (DataType::Utf8, false),
        };
        fields.push(Arc::new(Field::new(name, kind, nullable)));
    }
    (Arc::new(Schema::new(fields)), columns)
}

/// Writes the bad rows of a unit to `part_path` in the run directory; removes an existing file if `bad` is empty.
pub(crate) fn write(
    directory: &RunDirectory,
    part_path: String,
    dataset: &Dataset,
    unit: &WorkUnit,
    bad: &[BadRow],
    lost: &LostRowGroups,
) -> Result<Option<Part>> {
    let path = directory.root.join(&part_path);
    if bad.is_empty() {
        files::remove_file(&path)?;
        return Ok(None);
    }
    let (schema, columns) = schema(&dataset.schema);
    let by_row: HashMap<u64, &BadRow> = bad.iter().map(|bad| (bad.row, bad)).collect();
    let rows: Vec<u64> = bad.iter().map(|bad| bad.row).collect();
    let mut writer = PartWriter::table(&path, &schema)?;
    let reason = |row: &u64| {
        let BadRow { stage, error, .. } = by_row[row];
        Reason {
            file: &unit.file_path,
            row_group: unit.row_group_of(dataset, *row).map(|group| group as i32),
            row: Some(*row as i64),
            stage,
            code: error.code,
            message: &error.message,
        }
    };
    for batch in rows::read_faulty_rows(dataset, unit, &rows, lost, BATCH_ROWS)? {
        let (numbers, originals) = batch?;
        let reasons: Vec<Reason<'_>> = numbers.iter().map(reason).collect();
        let originals = columns.iter().map(|index| Arc::clone(originals.column(*index)));
        writer.write(&batch_with_reasons(&schema, originals.collect(), &reasons))?;
    }
    Ok(Some(Part::new(part_path, &writer.finish()?)))
}

/// Writes a record for each file that cannot be opened; its rows and row groups are unknown.
pub(crate) fn write_files(path: &Path, dataset: &Dataset) -> Result<Option<Part>> {
    let bad = &dataset.bad_files;
    if bad.is_empty() {
        return Ok(None);
    }
    let (schema, columns) = schema(&dataset.schema);
    let originals = schema.fields().iter().take(columns.len());
    let originals = originals.map(|field| new_null_array(field.data_type(), bad.len())).collect();
    let reasons = bad.iter().map(|file| Reason {
        file: &file.path,
        row_group: None,
        row: None,
        stage: "input",
        code: "unreadable_file",
        message: &file.problem.message,
    });
    let reasons: Vec<Reason<'_>> = reasons.collect();
    let mut writer = PartWriter::table(path, &schema)?;
    writer.write(&batch_with_reasons(&schema, originals, &reasons))?;
    Ok(Some(Part::new(FILES.to_owned(), &writer.finish()?)))
}

/// Values of [`COLUMNS`].
struct Reason<'a> {
    file: &'a str,
    row_group: Option<i32>,
    row: Option<i64>,
    stage: &'a str,
    code: &'a str,
    message: &'a str,
}

fn batch_with_reasons(
    schema: &SchemaRef,
    mut columns: Vec<ArrayRef>,
    reasons: &[Reason<'_>],
) -> RecordBatch {
    let text = |value: for<'r> fn(&'r Reason<'_>) -> &'r str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(reasons.iter().map(value)))
    };
    columns.push(text(|reason| reason.file));
    columns.push(Arc::new(reasons.iter().map(|reason| reason.row_group).collect::<Int32Array>()));
    columns.push(Arc::new(reasons.iter().map(|reason| reason.row).collect::<Int64Array>()));
    columns.extend([text(|of| of.stage), text(|of| of.code), text(|of| of.message)]);
    RecordBatch::try_new(Arc::clone(schema), columns).expect("the columns are those of the schema")
}

/// Reads the first messages: `books.parquet, row 12: the text is null (null_text)`. Skips files that cannot be read.
pub fn first_messages(directory: &RunDirectory, limit: usize) -> Result<Vec<String>> {
    // The original rows, which may be large, are not read.
    let names = ["longsift_file", "longsift_message", "longsift_code"];
    let mut messages = Vec::new();
    for path in files::list_if_present(&directory.quarantine())? {
        if messages.len() == limit {
            break;
        }
        let table = table(&path);
        let _ = table.read(
            |name| name == "longsift_row" || names.contains(&name),
            |batch| {
                let texts = table.columns::<StringArray, 3>(batch, names)?;
                let [rows] = table.columns::<Int64Array, 1>(batch, ["longsift_row"])?;
                let numbered = (0..batch.num_rows()).filter(|row| rows.is_valid(*row));
                messages.extend(numbered.take(limit - messages.len()).map(|row| {
                    let [file, text, code] = texts.map(|values| values.value(row));
                    format!("{file}, row {}: {text} ({code})", rows.value(row))
                }));
                Ok(())
            },
        );
    }
    Ok(messages)
}

/// Reads the numbers of rows and their codes; -1 for an unknown number.
pub fn read_codes(path: &Path, mut each: impl FnMut(i64, &str)) -> Result<()> {
    let table = table(path);
    table.read(
        |name| ["longsift_row", "longsift_code"].contains(&name),
        |batch| {
            let [rows] = table.columns::<Int64Array, 1>(batch, ["longsift_row"])?;
            let [codes] = table.columns::<StringArray, 1>(batch, ["longsift_code"])?;
            for (row, code) in rows.iter().zip(codes) {
                each(row.unwrap_or(-1), code.unwrap_or_default());
            }
            Ok(())
        },
    )
}

fn table(path: &Path) -> Table<'_> {
    Table {
        path,
        what: "table",
        other_columns: "expected the columns that longsift writes",
        hint: "`longsift verify` lists all damaged files",
    }
}

#[derive(Clone, Debug)]
pub struct BadRow {
    pub row: u64,
    /// Stage that failed: `input`, `tokenize`, `first-layer-attention`.
    pub stage: Cow<'static, str>,
    pub error: RowError,
}
