//! Table of rows and windows that are not in the output, with the reason: `dropped/*.parquet`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::table::{SCORE_AGAIN, Table, begin_with};
use super::units::Part;
use crate::base::error::Result;
use crate::dataset::part::PartWriter;
use crate::storage::files;

/// Reason of samples that were ranked too low.
pub const NOT_SELECTED: &str = "not_selected";

/// Reason of samples without a score because sampling excluded them from a measure.
pub const NOT_MEASURED: &str = "not_measured";

/// Whether the selection dropped a sample for this reason: by rank, by a guard, or for a missing statistic.
pub fn is_selection_reason(reason: &str) -> bool {
    [NOT_SELECTED, NOT_MEASURED].contains(&reason)
        || reason.starts_with("guard_")
        || reason.starts_with("no_")
}

#[derive(Clone, Debug)]
pub struct DroppedRow {
    /// Row of the document in its file.
    pub input_row: u64,
    pub id: String,
    /// Index of the window; `None` if the whole row was dropped.
    pub window: Option<u32>,
    /// `short_document`, `too_short`, `dropped_by_<stage>`, or a reason of the selection.
    pub reason: Arc<str>,
    pub score: Option<f64>,
}

impl DroppedRow {
    /// Describes a dropped row, which has neither window nor score.
    pub fn row(input_row: u64, id: String, reason: &str) -> Self {
        Self { input_row, id, window: None, reason: Arc::from(reason), score: None }
    }
}

/// Reads all rows of a table into memory, without windows and scores.
pub fn read(path: &Path) -> Result<Vec<DroppedRow>> {
    let table = Table {
        path,
        what: "list of dropped rows",
        other_columns: "its columns are not those of a list of dropped rows",
        hint: SCORE_AGAIN,
    };
    let mut found = Vec::new();
    table.read(
        |name| ["input_row", "id", "reason"].contains(&name),
        |batch| {
            let [rows] = table.columns::<Int64Array, 1>(batch, ["input_row"])?;
            let [ids, reasons] = table.columns::<StringArray, 2>(batch, ["id", "reason"])?;
            for ((row, id), reason) in rows.values().iter().zip(ids).zip(reasons) {
                let id = id.unwrap_or_default().to_owned();
                found.push(DroppedRow::row(*row as u64, id, reason.unwrap_or_default()));
            }
            Ok(())
        },
    )?;
    Ok(found)
}

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

pub fn is_table(found: &Schema) -> bool {
    found.fields().len() == schema().fields().len() && begin_with(found.fields(), schema().fields())
}

/// Writes rows of one file to `part_path` in `folder`; removes an existing file if `rows` is empty.
pub fn write(
    folder: &Path,
    part_path: String,
    file: &str,
    rows: &[DroppedRow],
) -> Result<Option<Part>> {
    let path = folder.join(&part_path);
    if rows.is_empty() {
        files::remove_file(&path)?;
        return Ok(None);
    }
    let mut writer = PartWriter::table(&path, &schema())?;
    for some in rows.chunks(8192) {
        writer.write(&batch(file, some))?;
    }
    Ok(Some(Part::new(part_path, &writer.finish()?)))
}

fn batch(file: &str, rows: &[DroppedRow]) -> RecordBatch {
    let columns: Vec<arrow_array::ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| file))),
        Arc::new(rows.iter().map(|row| Some(row.input_row as i64)).collect::<Int64Array>()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.id))),
        Arc::new(
            rows.iter().map(|row| row.window.map(|window| window as i32)).collect::<Int32Array>(),
        ),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &*row.reason))),
        Arc::new(rows.iter().map(|row| row.score).collect::<Float64Array>()),
    ];
    RecordBatch::try_new(schema(), columns).expect("the columns are those of the schema")
}
