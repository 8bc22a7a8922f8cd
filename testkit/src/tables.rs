//! Parquet files of tests: written from columns, read back whole.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow_cast::cast;
use arrow_ord::sort::{SortColumn, lexsort_to_indices};
use arrow_schema::{DataType, Schema};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use crate::{Random, files_below};

/// Table of nullable columns.
pub fn table(columns: &[(&str, ArrayRef)]) -> RecordBatch {
    let columns = columns.iter().map(|(name, array)| (*name, Arc::clone(array), true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

pub fn strings<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Column of strings and nulls.
pub fn labels(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

/// Column of token ids.
pub fn token_lists(documents: &[Vec<u32>]) -> ArrayRef {
    let mut builder = ListBuilder::new(Int32Builder::new());
    for document in documents {
        builder.append_value(document.iter().map(|id| Some(i32::try_from(*id).unwrap())));
    }
    Arc::new(builder.finish())
}

/// Document of `length` tokens below 97, with passages that recur far away more or less often.
pub fn document(seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random(seed);
    let often = 1 + random.below(6);
    let mut tokens: Vec<u32> = Vec::with_capacity(length + 8);
    while tokens.len() < length {
        if tokens.len() > 16 && random.below(6) < often {
            let start = random.below(tokens.len() as u64 - 8) as usize;
            tokens.extend_from_within(start..start + 8);
        } else {
            tokens.push(2 + random.below(95) as u32);
        }
    }
    tokens.truncate(length);
    tokens
}

/// Documents `<name>-<index>` of the given lengths, with their tokens.
pub fn corpus(name: &str, lengths: &[usize]) -> RecordBatch {
    let seed = name.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte));
    let documents: Vec<Vec<u32>> =
        lengths.iter().zip(0..).map(|(length, index)| document(seed + index, *length)).collect();
    let ids = (0..lengths.len()).map(|index| format!("{name}-{index}"));
    table(&[("id", strings(ids)), ("tokens", token_lists(&documents))])
}

/// Writes a table in row groups of `rows_per_group`.
pub fn write_parquet(path: &Path, table: &RecordBatch, rows_per_group: usize) {
    write_parquet_with(path, table, rows_per_group, &[]);
}

/// Writes a table with key-values in the footer.
pub fn write_parquet_with(
    path: &Path,
    table: &RecordBatch,
    rows_per_group: usize,
    metadata: &[(&str, &str)],
) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let metadata = metadata
        .iter()
        .map(|(key, value)| KeyValue::new((*key).to_owned(), Some((*value).to_owned())));
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows_per_group))
        .set_key_value_metadata(Some(metadata.collect()))
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, table.schema(), Some(properties)).unwrap();
    writer.write(table).unwrap();
    writer.close().unwrap();
}

/// Reads all rows of a Parquet file, or of all files below a folder in path order.
pub fn read_parquet(path: &Path) -> RecordBatch {
    let files = if path.is_dir() { files_below(path) } else { vec![path.to_owned()] };
    assert!(!files.is_empty(), "no Parquet files below {}", path.display());
    let mut batches = Vec::new();
    let mut schema = Arc::new(Schema::empty());
    for file in files {
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&file).unwrap()).unwrap();
        schema = Arc::clone(builder.schema());
        batches.extend(builder.build().unwrap().map(Result::unwrap));
    }
    concat_batches(&schema, &batches).unwrap()
}

/// Returns the number of rows in the footer of a Parquet file.
pub fn count_rows(file: &Path) -> u64 {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap();
    builder.metadata().file_metadata().num_rows() as u64
}

/// Reads the score table of a run directory, in input order.
pub fn read_scores(run_directory: &Path) -> RecordBatch {
    let scores = read_parquet(&run_directory.join("scores"));
    let order = ["input_file", "input_row", "window"].map(|name| SortColumn {
        values: Arc::clone(scores.column_by_name(name).unwrap()),
        options: None,
    });
    take_record_batch(&scores, &lexsort_to_indices(&order, None).unwrap()).unwrap()
}

/// Returns a value of the footer's key-values.
pub fn footer_value(path: &Path, key: &str) -> Option<String> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let values = builder.metadata().file_metadata().key_value_metadata()?.clone();
    values.into_iter().find(|pair| pair.key == key)?.value
}

fn column<'a, A: Array + 'static>(table: &'a RecordBatch, name: &str) -> &'a A {
    let column = table.column_by_name(name).unwrap_or_else(|| panic!("no column {name}"));
    column
        .as_any()
        .downcast_ref()
        .unwrap_or_else(|| panic!("column {name} is {}", column.data_type()))
}

/// Returns the values of a column of 64-bit floats, nulls as NaN.
pub fn floats(table: &RecordBatch, name: &str) -> Vec<f64> {
    let column: &Float64Array = column(table, name);
    column.iter().map(|value| value.unwrap_or(f64::NAN)).collect()
}

/// Returns the values of a column of 32- or 64-bit integers.
pub fn optional_integers(table: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    if table.column_by_name(name).is_some_and(|column| *column.data_type() == DataType::Int32) {
        return column::<Int32Array>(table, name)
            .iter()
            .map(|value| value.map(i64::from))
            .collect();
    }
    column::<Int64Array>(table, name).iter().collect()
}

/// Returns the values of an integer column without nulls.
pub fn integers(table: &RecordBatch, name: &str) -> Vec<i64> {
    optional_integers(table, name).into_iter().map(Option::unwrap).collect()
}

/// Returns the values of a text column of any layout.
pub fn optional_texts(table: &RecordBatch, name: &str) -> Vec<Option<String>> {
    let column = table.column_by_name(name).unwrap_or_else(|| panic!("no column {name}"));
    let plain = cast(column, &DataType::Utf8).unwrap();
    plain.as_string::<i32>().iter().map(|value| value.map(str::to_owned)).collect()
}

/// Returns the values of a text column without nulls.
pub fn texts(table: &RecordBatch, name: &str) -> Vec<String> {
    optional_texts(table, name).into_iter().map(Option::unwrap).collect()
}

/// Returns the values of a column of lists of 64-bit floats.
pub fn float_lists(table: &RecordBatch, name: &str) -> Vec<Vec<f64>> {
    let lists: &ListArray = column(table, name);
    lists.iter().map(|list| list.unwrap().as_primitive::<Float64Type>().values().to_vec()).collect()
}

/// Returns the values of a column of token ids.
pub fn token_ids(table: &RecordBatch, name: &str) -> Vec<Vec<u32>> {
    let lists: &ListArray = column(table, name);
    lists
        .iter()
        .map(|list| {
            let ids = cast(&list.unwrap(), &DataType::UInt32).unwrap();
            ids.as_primitive::<UInt32Type>().values().to_vec()
        })
        .collect()
}
