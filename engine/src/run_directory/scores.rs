//! The score table: statistics of every window, a Parquet file per work unit.
//!
//! The columns of the windows come first, then those of each measure in the order of the pipeline. The metadata of a column
//! describes its statistic, and the footer contains the fingerprints of windows and measures. Nothing depends on the selection,
//! so changing a weight, a fraction or a grouping never runs the model.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use longsift_stages::contract::{Column, Kind, StatisticValues, Value};
use serde_json::json;

use super::table::{SCORE_AGAIN, Table, begin_with, column};
use crate::base::error::Result;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureColumns {
    pub measure: String,
    /// Statistics of the measure in order, with their names in the pipeline.
    pub columns: Vec<Column>,
}

/// Measured window with its statistics: by default those that a selection requested, in order, with `None` for a null.
#[derive(Clone, Debug)]
pub struct ScoredWindow<S = Vec<Option<f64>>> {
    /// Row of the document in its file.
    pub input_row: u64,
    /// Id of the document; `<file>:<row>` if the input has no ids.
    pub id: String,
    /// Index of the window in the document.
    pub window: u32,
    /// Number of windows of the document.
    pub windows: u32,
    /// Token range, in tokens of the document without BOS.
    pub tokens: (u64, u64),
    /// Byte range of the window's text; `None` for pre-tokenized input.
    pub bytes: Option<(u64, u64)>,
    pub tokens_total: u64,
    /// Tokens of the scored sequence, including BOS.
    pub tokens_scored: u64,
    /// Hash of the document's text or tokens, to detect changes when it is read again.
    pub content_hash: String,
    pub statistics: S,
}

/// Window with all its statistics by measure, in the order of the pipeline.
pub type ScoreRow = ScoredWindow<Vec<StatisticValues>>;

/// Columns that identify a window, independent of the measures.
fn window_fields() -> Fields {
    let not_null = |name: &str, kind: DataType| Field::new(name, kind, false);
    Fields::from(vec![
        not_null("input_file", DataType::Utf8),
        not_null("input_row", DataType::Int64),
        not_null("id", DataType::Utf8),
        not_null("window", DataType::Int32),
        not_null("windows", DataType::Int32),
        not_null("token_start", DataType::Int64),
        not_null("token_end", DataType::Int64),
        Field::new("byte_start", DataType::Int64, true),
        Field::new("byte_end", DataType::Int64, true),
        not_null("tokens_total", DataType::Int64),
        not_null("tokens_scored", DataType::Int64),
        not_null("content_hash", DataType::Utf8),
    ])
}

pub fn is_window_column(name: &str) -> bool {
    window_fields().iter().any(|field| field.name() == name)
}

fn data_type(kind: Kind) -> DataType {
    match kind {
        Kind::Number => DataType::Float64,
        Kind::Count => DataType::Int64,
        Kind::Numbers => DataType::List(Arc::new(Field::new("item", DataType::Float64, false))),
    }
}

const MEASURE: &str = "measure";

pub fn schema(measures: &[MeasureColumns]) -> SchemaRef {
    let mut fields = window_fields().to_vec();
    for MeasureColumns { measure, columns } in measures {
        for column in columns {
            let metadata = [
                (MEASURE, measure.as_str()),
                ("unit", column.unit.as_ref()),
                ("doc", column.doc.as_ref()),
            ];
            let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let field = Field::new(column.name.as_ref(), data_type(column.kind), true);
            fields.push(Arc::new(field.with_metadata(HashMap::from(metadata))));
        }
    }
    Arc::new(Schema::new(fields))
}

/// Footer metadata of a score file: fingerprints of its windows and of each measure.
pub fn metadata<'a>(
    windows: &str,
    measures: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<(String, String)> {
    let measures = json!(measures.collect::<BTreeMap<_, _>>()).to_string();
    vec![
        ("longsift.windows".to_owned(), windows.to_owned()),
        ("longsift.measures".to_owned(), measures),
    ]
}

pub fn is_table(schema: &Schema) -> bool {
    let (fields, windows) = (schema.fields(), window_fields());
    let kinds = [Kind::Number, Kind::Count, Kind::Numbers].map(data_type);
    begin_with(fields, &windows)
        && fields[windows.len()..].iter().all(|field| kinds.contains(field.data_type()))
}

/// Reads the names of the statistics that are single numbers, in the order of the columns.
pub fn statistics(path: &Path) -> Result<Vec<String>> {
    let (schema, _) = table(path).shape()?;
    let measured = schema.fields().iter().skip(window_fields().len());
    let single = measured.filter(|field| !matches!(field.data_type(), DataType::List(_)));
    Ok(single.map(|field| field.name().clone()).collect())
}

/// Reads the measures of a score file from the metadata of its columns; rules are not stored.
pub fn measures(path: &Path) -> Result<Vec<MeasureColumns>> {
    let (schema, _) = table(path).shape()?;
    let mut measures: Vec<MeasureColumns> = Vec::new();
    for field in schema.fields().iter().skip(window_fields().len()) {
        let attribute = |key: &str| field.metadata().get(key).cloned().unwrap_or_default();
        let kind = match field.data_type() {
            DataType::Int64 => Kind::Count,
            DataType::List(_) => Kind::Numbers,
            _ => Kind::Number,
        };
        let column = Column::number(field.name().clone(), attribute("unit"), attribute("doc"));
        let column = Column { kind, ..column };
        let measure = attribute(MEASURE);
        match measures.last_mut().filter(|last| last.measure == measure) {
            Some(last) => last.columns.push(column),
            None => measures.push(MeasureColumns { measure, columns: vec![column] }),
        }
    }
    Ok(measures)
}

/// Converts rows of one file to a record batch of [`schema`].
pub fn to_batch(input_file: &str, rows: &[ScoreRow], measures: &[MeasureColumns]) -> RecordBatch {
    let int64 = |value: &dyn Fn(&ScoreRow) -> Option<u64>| -> ArrayRef {
        let numbers = rows.iter().map(|row| value(row).map(|number| number as i64));
        Arc::new(numbers.collect::<Int64Array>())
    };
    let int32 = |value: &dyn Fn(&ScoreRow) -> u32| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(value(row) as i32)).collect::<Int32Array>())
    };
    let text = |value: &dyn Fn(&ScoreRow) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(value)))
    };
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| input_file))),
        int64(&|row| Some(row.input_row)),
        text(&|row| &row.id),
        int32(&|row| row.window),
        int32(&|row| row.windows),
        int64(&|row| Some(row.tokens.0)),
        int64(&|row| Some(row.tokens.1)),
        int64(&|row| Some(row.bytes?.0)),
        int64(&|row| Some(row.bytes?.1)),
        int64(&|row| Some(row.tokens_total)),
        int64(&|row| Some(row.tokens_scored)),
        text(&|row| &row.content_hash),
    ];
    for (index, measure) in measures.iter().enumerate() {
        for (position, column) in measure.columns.iter().enumerate() {
            let values = rows.iter().map(|row| row.statistics[index].0.get(position));
            columns.push(array(column.kind, values));
        }
    }
    RecordBatch::try_new(schema(measures), columns).expect("the columns are those of the schema")
}

/// Builds the column of one statistic; missing values are null.
fn array<'v>(kind: Kind, values: impl Iterator<Item = Option<&'v Value>>) -> ArrayRef {
    match kind {
        Kind::Number => {
            let numbers = values.map(|value| match value {
                Some(Value::Number(number)) => Some(*number),
                _ => None,
            });
            Arc::new(numbers.collect::<Float64Array>())
        }
        Kind::Count => {
            let counts = values.map(|value| match value {
                Some(Value::Count(count)) => Some(*count as i64),
                _ => None,
            });
            Arc::new(counts.collect::<Int64Array>())
        }
        Kind::Numbers => {
            let item = Arc::new(Field::new("item", DataType::Float64, false));
            let mut builder = ListBuilder::new(Float64Builder::new()).with_field(item);
            for value in values {
                if let Some(Value::Numbers(numbers)) = value {
                    builder.values().append_slice(numbers);
                }
                builder.append(matches!(value, Some(Value::Numbers(_))));
            }
            Arc::new(builder.finish())
        }
    }
}

impl ScoredWindow {
    /// Returns a requested statistic by its index in the request; `NaN` for a null.
    pub fn statistic(&self, index: usize) -> f64 {
        self.statistics[index].unwrap_or(f64::NAN)
    }
}

/// Reads the windows of a score file with these single-number statistics and calls `each` in order.
pub fn read(
    path: &Path,
    statistics: &[&str],
    mut each: impl FnMut(ScoredWindow) -> Result<()>,
) -> Result<()> {
    let table = table(path);
    table.read(
        |name| name != "input_file" && is_window_column(name) || statistics.contains(&name),
        |batch| {
            let [ids, hashes] = table.columns::<StringArray, 2>(batch, ["id", "content_hash"])?;
            let [windows] = table.columns::<Int32Array, 1>(batch, ["windows"])?;
            let [scored] = table.columns::<Int64Array, 1>(batch, ["tokens_scored"])?;
            let locations = Locations::from_batch(&table, batch)?;
            let statistic = |name: &&str| match column::<Float64Array>(batch, name) {
                Some(numbers) => Some(StatisticColumn::Number(numbers)),
                None => column(batch, name).map(StatisticColumn::Count),
            };
            let columns: Option<Vec<_>> = statistics.iter().map(statistic).collect();
            let columns = columns.ok_or_else(|| table.unexpected_columns())?;
            (0..batch.num_rows()).try_for_each(|row| {
                let at = locations.location(row);
                let statistic = |column: &StatisticColumn<'_>| match column.value(row) {
                    Value::Number(number) => Some(number),
                    Value::Count(count) => Some(count as f64),
                    Value::Null | Value::Numbers(_) => None,
                };
                each(ScoredWindow {
                    input_row: at.input_row,
                    id: ids.value(row).to_owned(),
                    window: at.window,
                    windows: windows.value(row) as u32,
                    tokens: at.tokens,
                    bytes: at.bytes,
                    tokens_total: at.tokens_total,
                    tokens_scored: scored.value(row) as u64,
                    statistics: columns.iter().map(statistic).collect(),
                    content_hash: hashes.value(row).to_owned(),
                })
            })
        },
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLocation {
    pub input_row: u64,
    pub window: u32,
    /// Token range, in tokens of the document without BOS.
    pub tokens: (u64, u64),
    /// Byte range of the window's text; `None` for pre-tokenized input.
    pub bytes: Option<(u64, u64)>,
    pub tokens_total: u64,
}

/// Locations of the windows of a score file, and statistics that are lists.
#[derive(Debug, Default)]
pub struct WindowLocations {
    pub locations: Vec<WindowLocation>,
    /// Chunks of the column of each requested list; empty if the file does not have it.
    lists: Vec<Vec<ListArray>>,
}

impl WindowLocations {
    /// Calls `each` with the index of every window that has the list, and its values.
    pub fn each(&self, list: usize, mut each: impl FnMut(usize, &[f64])) {
        let mut first = 0;
        for lists in &self.lists[list] {
            let (numbers, ends) = (lists.values().as_primitive::<Float64Type>(), lists.offsets());
            for (row, range) in ends.windows(2).enumerate().filter(|(row, _)| lists.is_valid(*row))
            {
                each(first + row, &numbers.values()[range[0] as usize..range[1] as usize]);
            }
            first += lists.len();
        }
    }
}

/// Columns of [`WindowLocation`].
struct Locations<'a> {
    windows: &'a Int32Array,
    numbers: [&'a Int64Array; 6],
}

impl<'a> Locations<'a> {
    const NUMBERS: [&'static str; 6] =
        ["input_row", "token_start", "token_end", "byte_start", "byte_end", "tokens_total"];

    fn from_batch(table: &Table<'_>, batch: &'a RecordBatch) -> Result<Self> {
        let [windows] = table.columns(batch, ["window"])?;
        Ok(Self { windows, numbers: table.columns(batch, Self::NUMBERS)? })
    }

    fn location(&self, row: usize) -> WindowLocation {
        let [input_row, start, end, from, to, tokens_total] =
            self.numbers.map(|numbers| numbers.value(row) as u64);
        WindowLocation {
            input_row,
            window: self.windows.value(row) as u32,
            tokens: (start, end),
            bytes: self.numbers[3].is_valid(row).then_some((from, to)),
            tokens_total,
        }
    }
}

/// Reads the locations of the windows of a score file, and the lists among `lists` that it contains.
pub fn read_locations(path: &Path, lists: &[&str]) -> Result<WindowLocations> {
    let table = table(path);
    let mut located =
        WindowLocations { locations: Vec::new(), lists: vec![Vec::new(); lists.len()] };
    table.read(
        |name| name == "window" || Locations::NUMBERS.contains(&name) || lists.contains(&name),
        |batch| {
            let locations = Locations::from_batch(&table, batch)?;
            located.locations.extend((0..batch.num_rows()).map(|row| locations.location(row)));
            for (pieces, name) in located.lists.iter_mut().zip(lists) {
                if batch.column_by_name(name).is_some() {
                    let list = list(batch, name).ok_or_else(|| table.unexpected_columns())?;
                    pieces.push(list.clone());
                }
            }
            Ok(())
        },
    )?;
    Ok(located)
}

/// Reads the statistics of `measures`, skipping measures that the score file does not contain. Calls `each` with the row, the
/// index of the window, the index of the measure and the statistics. If all are null, the window may not have been measured.
pub fn read_statistics(
    path: &Path,
    measures: &[MeasureColumns],
    mut each: impl FnMut(u64, u32, usize, StatisticValues) -> Result<()>,
) -> Result<()> {
    let table = table(path);
    let wanted = |name: &str| {
        let mut columns = measures.iter().flat_map(|measure| &measure.columns);
        ["input_row", "window"].contains(&name) || columns.any(|column| column.name == name)
    };
    table.read(wanted, |batch| {
        let [rows] = table.columns::<Int64Array, 1>(batch, ["input_row"])?;
        let [windows] = table.columns::<Int32Array, 1>(batch, ["window"])?;
        for (index, measure) in measures.iter().enumerate() {
            if measure.columns.iter().any(|own| batch.column_by_name(&own.name).is_none()) {
                continue;
            }
            let columns = measure.columns.iter();
            let columns: Option<Vec<StatisticColumn<'_>>> =
                columns.map(|own| StatisticColumn::from_column(batch, own)).collect();
            let columns = columns.ok_or_else(|| table.unexpected_columns())?;
            for row in 0..batch.num_rows() {
                let values = columns.iter().map(|column| column.value(row)).collect();
                let (row, window) = (rows.value(row) as u64, windows.value(row) as u32);
                each(row, window, index, StatisticValues(values))?;
            }
        }
        Ok(())
    })
}

const OTHER_COLUMNS: &str = "its columns are not those of a score file";

fn table(path: &Path) -> Table<'_> {
    Table { path, what: "score file", other_columns: OTHER_COLUMNS, hint: SCORE_AGAIN }
}

enum StatisticColumn<'a> {
    Number(&'a Float64Array),
    Count(&'a Int64Array),
    Numbers(&'a ListArray),
}

impl<'a> StatisticColumn<'a> {
    fn from_column(batch: &'a RecordBatch, own: &Column) -> Option<Self> {
        Some(match own.kind {
            Kind::Number => Self::Number(column(batch, &own.name)?),
            Kind::Count => Self::Count(column(batch, &own.name)?),
            Kind::Numbers => Self::Numbers(list(batch, &own.name)?),
        })
    }

    fn value(&self, row: usize) -> Value {
        match self {
            Self::Number(numbers) if numbers.is_valid(row) => Value::Number(numbers.value(row)),
            Self::Count(counts) if counts.is_valid(row) => Value::Count(counts.value(row) as u64),
            Self::Numbers(lists) if lists.is_valid(row) => {
                Value::Numbers(lists.value(row).as_primitive::<Float64Type>().values().to_vec())
            }
            Self::Number(_) | Self::Count(_) | Self::Numbers(_) => Value::Null,
        }
    }
}

fn list<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a ListArray> {
    column::<ListArray>(batch, name).filter(|list| *list.values().data_type() == DataType::Float64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::part::PartWriter;
    use crate::spec::pipeline::ParquetCompression;

    fn measure(name: &str, columns: &[(&'static str, Kind)]) -> MeasureColumns {
        let column = |&(name, kind): &(&'static str, Kind)| Column {
            kind,
            ..Column::number(name, "share", "what it is")
        };
        let columns = columns.iter().map(column).collect();
        MeasureColumns { measure: name.to_owned(), columns }
    }

    fn row(window: u32, statistics: Vec<StatisticValues>) -> ScoreRow {
        ScoreRow {
            input_row: 7,
            id: "a".to_owned(),
            window,
            windows: 3,
            tokens: (0, 4),
            bytes: None,
            tokens_total: 12,
            tokens_scored: 5,
            content_hash: "h".to_owned(),
            statistics,
        }
    }

    #[test]
    fn statistics_round_trip_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part.parquet");
        let measures = [
            measure("one", &[("near", Kind::Number), ("bins", Kind::Numbers)]),
            measure("two", &[("k", Kind::Count)]),
        ];
        let values =
            |near, bins, k| vec![StatisticValues(vec![near, bins]), StatisticValues(vec![k])];
        let numbers = Value::Numbers(vec![0.1, -0.0, f64::MIN_POSITIVE]);
        let rows = [
            row(0, values(Value::Number(0.1 + 0.2), numbers, Value::Count(1 << 40))),
            row(1, values(Value::Null, Value::Numbers(Vec::new()), Value::Null)),
            row(2, values(Value::Null, Value::Null, Value::Count(0))),
        ];
        let batch = to_batch("f.parquet", &rows, &measures);
        assert!(is_table(&batch.schema()));
        let metadata = metadata("", std::iter::empty());
        let mut writer =
            PartWriter::create(&path, &schema(&measures), &metadata, ParquetCompression::Zstd)
                .unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        assert_eq!(statistics(&path).unwrap(), ["near", "k"]);
        let (found, _) = table(&path).shape().unwrap();
        assert_eq!(found.field_with_name("near").unwrap().metadata()[MEASURE], "one");
        let mut read_back = Vec::new();
        read_statistics(&path, &measures, |row, window, index, values| {
            read_back.push((row, window, index, values));
            Ok(())
        })
        .unwrap();
        let locations = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)];
        let of = |(window, index): (usize, usize)| {
            (7, window as u32, index, rows[window].statistics[index].clone())
        };
        assert_eq!(read_back, locations.map(of));
        let mut light = Vec::new();
        read(&path, &["k", "near"], |window| {
            light.push(window.statistics);
            Ok(())
        })
        .unwrap();
        let first = vec![Some((1_u64 << 40) as f64), Some(0.1 + 0.2)];
        assert_eq!(light, [first, vec![None, None], vec![Some(0.0), None]]);
        let located = read_locations(&path, &["bins", "absent"]).unwrap();
        let locations = located.locations.iter();
        let locations = locations.map(|at| (at.window, at.tokens, at.bytes, at.tokens_total));
        assert!(locations.eq([0, 1, 2].map(|window| (window, (0, 4), None, 12))));
        let mut lists = Vec::new();
        located.each(0, |window, numbers| lists.push((window, numbers.to_vec())));
        assert_eq!(lists, [(0, vec![0.1, -0.0, f64::MIN_POSITIVE]), (1, Vec::new())]);
        located.each(1, |_, _| unreachable!("the column does not exist"));
        let absent = read(&path, &["far"], |_| Ok(())).unwrap_err();
        assert!(absent.to_string().contains(OTHER_COLUMNS), "{absent}");
        // A measure that the file does not have is skipped.
        let other = [measure("three", &[("far", Kind::Number)])];
        read_statistics(&path, &other, |_, _, _, _| unreachable!("the column does not exist"))
            .unwrap();
    }
}
