//! The table of rows that could not be scored: the original row where it is readable, and why it is here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, new_null_array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::dataset::{self, BadFile, Faults, ParquetFile, PartWriter, WorkUnit};
use crate::error::Result;
use crate::execute::{BadRow, Tools};
use crate::files;
use crate::plan::Plan;
use crate::run_directory::RunDirectory;
use crate::spec::pipeline::Compression;
use crate::units::Part;

/// The records of files that cannot be opened, below the run directory.
pub const FILES: &str = "quarantine/files.parquet";
/// Rows are read again in batches of this many: bad rows are few, but may be large.
const BATCH_ROWS: usize = 64;

/// The schema: the input's columns, nullable, then why the row is here.
pub fn schema(input: &Schema) -> SchemaRef {
    let mut fields: Vec<Arc<Field>> = input
        .fields()
        .iter()
        .map(|field| Arc::new(field.as_ref().clone().with_nullable(true)))
        .collect();
    for (name, kind, nullable) in [
        ("longsift_file", DataType::Utf8, false),
        ("longsift_row_group", DataType::Int32, true),
        ("longsift_row", DataType::Int64, true),
        ("longsift_stage", DataType::Utf8, false),
        ("longsift_code", DataType::Utf8, false),
        ("longsift_message", DataType::Utf8, false),
    ] {
        fields.push(Arc::new(Field::new(name, kind, nullable)));
    }
    Arc::new(Schema::new(fields))
}

/// Writes the bad rows of a unit as `quarantine/part-<unit>.parquet`; without bad rows there is no file.
pub(crate) fn write(
    tools: &Tools<'_>,
    unit: &WorkUnit,
    bad: &[BadRow],
    faults: &Faults,
) -> Result<Option<Part>> {
    let part_path = format!("quarantine/part-{}.parquet", unit.name());
    let path = tools.directory.root.join(&part_path);
    if bad.is_empty() {
        files::remove_file(&path)?;
        return Ok(None);
    }
    let dataset = &tools.plan.dataset;
    let schema = schema(&dataset.schema);
    let by_row: HashMap<u64, &BadRow> = bad.iter().map(|bad| (bad.row, bad)).collect();
    let rows: Vec<u64> = bad.iter().map(|bad| bad.row).collect();
    let mut writer = PartWriter::create(&path, &schema, &[], Compression::Zstd)?;
    for batch in dataset::read_faulty_rows(dataset, unit, &rows, faults, BATCH_ROWS)? {
        let (numbers, originals) = batch?;
        let reasons: Vec<&BadRow> = numbers.iter().map(|row| by_row[row]).collect();
        let groups =
            numbers.iter().map(|row| dataset.row_group_of(unit, *row).map(|group| group as i32));
        writer.write(&batch_with_reasons(
            &schema,
            &originals,
            &unit.file_path,
            &reasons,
            groups.collect(),
        ))?;
    }
    let written = writer.finish()?;
    Ok(Some(Part::new(part_path, &written)))
}

/// Writes a record for each file that cannot be opened, of which neither rows nor row groups are known.
pub(crate) fn write_files(path: &Path, plan: &Plan) -> Result<Option<Part>> {
    let bad = &plan.dataset.bad_files;
    if bad.is_empty() {
        return Ok(None);
    }
    let schema = schema(&plan.dataset.schema);
    let text = |value: &dyn Fn(&BadFile) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(bad.iter().map(value)))
    };
    let input = plan.dataset.schema.fields().len();
    let mut columns: Vec<ArrayRef> = schema.fields()[..input]
        .iter()
        .map(|field| new_null_array(field.data_type(), bad.len()))
        .collect();
    columns.push(text(&|file| &file.path));
    columns.push(new_null_array(&DataType::Int32, bad.len()));
    columns.push(new_null_array(&DataType::Int64, bad.len()));
    columns.push(text(&|_| "input"));
    columns.push(text(&|_| "unreadable_file"));
    columns.push(text(&|file| &file.problem.message));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)
        .expect("the columns are those of the schema");
    let mut writer = PartWriter::create(path, &schema, &[], Compression::Zstd)?;
    writer.write(&batch)?;
    Ok(Some(Part::new(FILES.to_owned(), &writer.finish()?)))
}

fn batch_with_reasons(
    schema: &SchemaRef,
    originals: &RecordBatch,
    file: &str,
    reasons: &[&BadRow],
    row_groups: Int32Array,
) -> RecordBatch {
    let text = |value: &dyn Fn(&BadRow) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(reasons.iter().map(|bad| value(bad))))
    };
    let mut columns: Vec<ArrayRef> = originals
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                Arc::clone(column)
            } else {
                new_null_array(field.data_type(), originals.num_rows())
            }
        })
        .collect();
    columns.push(text(&|_| file.to_owned()));
    columns.push(Arc::new(row_groups));
    columns.push(Arc::new(reasons.iter().map(|bad| Some(bad.row as i64)).collect::<Int64Array>()));
    columns.push(text(&|bad| bad.stage.to_owned()));
    columns.push(text(&|bad| bad.code.to_owned()));
    columns.push(text(&|bad| bad.message.clone()));
    RecordBatch::try_new(Arc::clone(schema), columns).expect("the columns are those of the schema")
}

/// The first few quarantined rows, a line each: `books.parquet, row 12: the text is null (null_text)`.
pub fn first_messages(directory: &RunDirectory, limit: usize) -> Result<Vec<String>> {
    let mut messages = Vec::new();
    for path in files::list_if_present(&directory.quarantine())? {
        if messages.len() < limit {
            messages.extend(messages_of(&path).into_iter().take(limit - messages.len()));
        }
    }
    Ok(messages)
}

/// A quarantine file that cannot be read has no messages to show: it is only read to explain another failure.
fn messages_of(path: &Path) -> Vec<String> {
    let Ok(builder) = ParquetFile::open(path)
        .map_err(drop)
        .and_then(|file| ParquetRecordBatchReaderBuilder::try_new(file).map_err(drop))
    else {
        return Vec::new();
    };
    // Not the originals, which may be large.
    let names = ["longsift_file", "longsift_code", "longsift_message", "longsift_row"];
    let mask = ProjectionMask::columns(builder.parquet_schema(), names);
    let builder = builder.with_projection(mask).with_batch_size(BATCH_ROWS);
    let Ok(reader) = builder.build() else { return Vec::new() };
    let Some(Ok(batch)) = reader.into_iter().next() else { return Vec::new() };
    let text = |name: &str| batch.column_by_name(name)?.as_any().downcast_ref::<StringArray>();
    let (Some(files), Some(codes), Some(messages)) =
        (text("longsift_file"), text("longsift_code"), text("longsift_message"))
    else {
        return Vec::new();
    };
    let Some(rows) = batch
        .column_by_name("longsift_row")
        .and_then(|rows| rows.as_any().downcast_ref::<Int64Array>())
    else {
        return Vec::new();
    };
    (0..batch.num_rows())
        .filter(|row| rows.is_valid(*row))
        .map(|row| {
            format!(
                "{}, row {}: {} ({})",
                files.value(row),
                rows.value(row),
                messages.value(row),
                codes.value(row)
            )
        })
        .collect()
}
