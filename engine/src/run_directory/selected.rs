//! Table of the result of a selection for every sample, with the reason: `selection/*.parquet`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use super::table::{Table, begin_with};
use super::units::Part;
use crate::base::error::Result;
use crate::dataset::part::PartWriter;

#[derive(Clone, Debug)]
pub struct SelectedRow<'a> {
    pub input_row: u64,
    pub id: &'a str,
    /// Index of the window; `None` for a document.
    pub window: Option<u32>,
    /// Value of the `within` column.
    pub group: Option<&'a str>,
    /// Statistics of terms and guards, in the order of the table's columns; `NaN` if missing.
    pub statistics: &'a [f64],
    /// Score; `NaN` if missing.
    pub score: f64,
    /// Percentile rank in the group, by 65,536 bins of scores. `None` for samples that do not pass every guard.
    pub percentile: Option<f64>,
    /// Reason for not keeping the sample; `None` if it is kept.
    pub reason: Option<&'a str>,
}

fn first_fields() -> Fields {
    Fields::from(vec![
        Field::new("input_file", DataType::Utf8, false),
        Field::new("input_row", DataType::Int64, false),
        Field::new("id", DataType::Utf8, false),
        Field::new("window", DataType::Int32, true),
        Field::new("group", DataType::Utf8, true),
    ])
}

fn last_fields() -> Fields {
    Fields::from(vec![
        Field::new("score", DataType::Float64, true),
        Field::new("percentile", DataType::Float64, true),
        Field::new("kept", DataType::Boolean, false),
        Field::new("reason", DataType::Utf8, true),
    ])
}

pub fn is_table(schema: &Schema) -> bool {
    let (fields, first, last) = (schema.fields(), first_fields(), last_fields());
    fields.len() >= first.len() + last.len()
        && begin_with(fields, &first)
        && begin_with(&fields[fields.len() - last.len()..], &last)
}

pub fn is_sample_column(name: &str) -> bool {
    first_fields().iter().chain(last_fields().iter()).any(|field| field.name() == name)
}

/// A statistic of two terms has two columns, the second with a number after its name: readers find columns by name.
fn schema(statistics: &[&str]) -> SchemaRef {
    let mut taken = BTreeMap::new();
    let statistics = statistics.iter().map(|name| {
        let times = taken.entry(*name).and_modify(|times| *times += 1).or_insert(1_u32);
        let name = if *times == 1 { (*name).to_owned() } else { format!("{name} ({times})") };
        Arc::new(Field::new(name, DataType::Float64, true))
    });
    let (first, last) = (first_fields(), last_fields());
    let fields = first.iter().cloned().chain(statistics).chain(last.iter().cloned());
    Arc::new(Schema::new(fields.collect::<Fields>()))
}

/// Writes the samples of one file to `part_path` in `folder`; creates no file if `rows` is empty.
pub fn write(
    folder: &Path,
    part_path: String,
    file: &str,
    statistics: &[&str],
    rows: &[SelectedRow<'_>],
) -> Result<Option<Part>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let schema = schema(statistics);
    let mut writer = PartWriter::table(&folder.join(&part_path), &schema)?;
    for some in rows.chunks(8192) {
        writer.write(&batch(file, &schema, statistics.len(), some))?;
    }
    Ok(Some(Part::new(part_path, &writer.finish()?)))
}

pub fn statistics(path: &Path) -> Result<Vec<String>> {
    let table = table(path);
    let (schema, _) = table.shape()?;
    if !is_table(&schema) {
        return Err(table.unexpected_columns());
    }
    let (first, last) = (first_fields().len(), schema.fields().len() - last_fields().len());
    Ok(schema.fields()[first..last].iter().map(|field| field.name().clone()).collect())
}

/// Calls `each` for the samples of a table in input order.
pub fn read(path: &Path, mut each: impl FnMut(&SelectedRow<'_>) -> Result<()>) -> Result<()> {
    let table = table(path);
    table.read(
        |name| name != "input_file",
        |batch| {
            // The input file is not read.
            let first = first_fields().len() - 1;
            let last = batch.num_columns().checked_sub(last_fields().len());
            let columns = last.and_then(|last| batch.columns().get(first..last));
            let columns: Option<Vec<&Float64Array>> = columns
                .and_then(|all| all.iter().map(|column| column.as_any().downcast_ref()).collect());
            let columns = columns.ok_or_else(|| table.unexpected_columns())?;
            let [rows] = table.columns::<Int64Array, 1>(batch, ["input_row"])?;
            let [windows] = table.columns::<Int32Array, 1>(batch, ["window"])?;
            let [ids, groups, reasons] =
                table.columns::<StringArray, 3>(batch, ["id", "group", "reason"])?;
            let [scores, percentiles] =
                table.columns::<Float64Array, 2>(batch, ["score", "percentile"])?;
            let float =
                |values: &Float64Array, row: usize| values.is_valid(row).then(|| values.value(row));
            let mut statistics = Vec::with_capacity(columns.len());
            for row in 0..batch.num_rows() {
                statistics.clear();
                statistics.extend(columns.iter().map(|of| float(of, row).unwrap_or(f64::NAN)));
                each(&SelectedRow {
                    input_row: rows.value(row) as u64,
                    id: ids.value(row),
                    window: windows.is_valid(row).then(|| windows.value(row) as u32),
                    group: groups.is_valid(row).then(|| groups.value(row)),
                    statistics: &statistics,
                    score: float(scores, row).unwrap_or(f64::NAN),
                    percentile: float(percentiles, row),
                    reason: reasons.is_valid(row).then(|| reasons.value(row)),
                })?;
            }
            Ok(())
        },
    )
}

pub(crate) fn table(path: &Path) -> Table<'_> {
    Table {
        path,
        what: "table of the selection",
        other_columns: "its columns are not those of a selection",
        hint: "run the pipeline again after a small change of its filter, or with `--fresh`, to repeat the selection",
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_table_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part.parquet");
        let row = |window, group, score: f64, reason| SelectedRow {
            input_row: 7,
            id: "a",
            window,
            group,
            statistics: if score.is_nan() { &[f64::NAN, 1.0] } else { &[0.1, f64::NAN] },
            score,
            percentile: Some(0.5).filter(|_| !score.is_nan()),
            reason,
        };
        let rows =
            [row(Some(3), Some("g"), 0.25, None), row(None, None, f64::NAN, Some("no_near"))];
        write(folder.path(), "part.parquet".to_owned(), "f", &["near", "far"], &rows).unwrap();
        assert_eq!(statistics(&path).unwrap(), ["near", "far"]);
        let mut found = Vec::new();
        read(&path, |row| {
            found.push(format!("{row:?}"));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, rows.map(|row| format!("{row:?}")));
    }
}
