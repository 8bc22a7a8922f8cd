//! The table of what a selection made of every sample, and why: `selection/*.parquet`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::units::Part;
use crate::base::error::Result;
use crate::dataset::part::PartWriter;

/// What became of a sample.
#[derive(Clone, Debug)]
pub struct SelectedRow<'a> {
    /// Row of the document in its file.
    pub input_row: u64,
    /// The document's id.
    pub id: &'a str,
    /// Index of the window; none for a document.
    pub window: Option<u32>,
    /// Value of the `within` column.
    pub group: Option<&'a str>,
    /// The statistics of terms and guards, in the order of the table's columns; `NaN` where there is none.
    pub statistics: &'a [f64],
    /// Its score; `NaN` without one.
    pub score: f64,
    /// The share of the group's scores below it and half of those beside it, by 65,536 bins; none without a score.
    pub percentile: Option<f64>,
    /// Why it is not kept; none where it is.
    pub reason: Option<&'a str>,
}

/// The columns before the statistics.
fn first_fields() -> Vec<Field> {
    vec![
        Field::new("input_file", DataType::Utf8, false),
        Field::new("input_row", DataType::Int64, false),
        Field::new("id", DataType::Utf8, false),
        Field::new("window", DataType::Int32, true),
        Field::new("group", DataType::Utf8, true),
    ]
}

/// Those behind them.
fn last_fields() -> Vec<Field> {
    vec![
        Field::new("score", DataType::Float64, true),
        Field::new("percentile", DataType::Float64, true),
        Field::new("kept", DataType::Boolean, false),
        Field::new("reason", DataType::Utf8, true),
    ]
}

/// Whether a schema is that of such a table over any statistics.
pub fn is_table(schema: &Schema) -> bool {
    let (first, last) = (first_fields(), last_fields());
    let fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    let same = |found: &[Field], wanted: &[Field]| {
        found.iter().zip(wanted).all(|(found, wanted)| {
            found.name() == wanted.name() && found.data_type() == wanted.data_type()
        })
    };
    fields.len() >= first.len() + last.len()
        && same(&fields, &first)
        && same(&fields[fields.len() - last.len()..], &last)
}

fn schema(statistics: &[&str]) -> SchemaRef {
    let statistics = statistics.iter().map(|name| Field::new(*name, DataType::Float64, true));
    let fields = first_fields().into_iter().chain(statistics).chain(last_fields());
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Writes the samples of one file as `path`, which the run directory calls `part_path`; without samples there is no file.
pub fn write_at(
    path: &Path,
    part_path: String,
    file: &str,
    statistics: &[&str],
    rows: &[SelectedRow<'_>],
) -> Result<Option<Part>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let schema = schema(statistics);
    let mut writer = PartWriter::table(path, &schema)?;
    for some in rows.chunks(8192) {
        writer.write(&batch(file, &schema, statistics.len(), some))?;
    }
    Ok(Some(Part::new(part_path, &writer.finish()?)))
}

fn batch(
    file: &str,
    schema: &SchemaRef,
    statistics: usize,
    rows: &[SelectedRow<'_>],
) -> RecordBatch {
    let finite = |value: f64| Some(value).filter(|value| !value.is_nan());
    let float = |value: &dyn Fn(&SelectedRow<'_>) -> Option<f64>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<Float64Array>())
    };
    let first: [ArrayRef; 5] = [
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| file))),
        Arc::new(rows.iter().map(|row| Some(row.input_row as i64)).collect::<Int64Array>()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.id))),
        Arc::new(
            rows.iter().map(|row| row.window.map(|window| window as i32)).collect::<Int32Array>(),
        ),
        Arc::new(rows.iter().map(|row| row.group).collect::<StringArray>()),
    ];
    let statistics = (0..statistics).map(|index| float(&move |row| finite(row.statistics[index])));
    let last: [ArrayRef; 4] = [
        float(&|row| finite(row.score)),
        float(&|row| row.percentile),
        Arc::new(rows.iter().map(|row| Some(row.reason.is_none())).collect::<BooleanArray>()),
        Arc::new(rows.iter().map(|row| row.reason).collect::<StringArray>()),
    ];
    let columns = first.into_iter().chain(statistics).chain(last).collect();
    RecordBatch::try_new(Arc::clone(schema), columns).expect("the columns are those of the schema")
}
