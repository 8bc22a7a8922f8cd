//! Writes one compressed file of JSON lines whose bytes depend only on its rows.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::temporal_conversions::{as_datetime, as_time};
use arrow_array::types::ArrowTemporalType;
use arrow_array::{
    Array, ArrayRef, PrimitiveArray, RecordBatch, downcast_temporal_array, make_array,
    new_null_array,
};
use arrow_cast::cast;
use arrow_json::writer::{LineDelimited, WriterBuilder};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use zstd::stream::write::Encoder;

use super::formats::type_names::UTC;
use super::part::{WrittenPart, ZSTD_LEVEL};
use super::problem::DataProblem;
use super::types::{contains, map_child_fields, unsupported};
use crate::base::text::quoted;
use crate::storage::atomic::AtomicFile;

/// Bytes per call of the compressor: fixed, so that its output does not depend on the batches.
const PIECE_BYTES: usize = 1 << 20;
/// Writes one `.jsonl.zst` file atomically: a JSON object and a line feed for each row, nulls included. Non-finite
/// numbers and instants beyond the calendar are null, bytes are hexadecimal digits, instants are in UTC. A map that has a key
/// twice is an error: readers would lose a value.
pub struct LinesWriter {
    stream: Encoder<'static, AtomicFile>,
    schema: SchemaRef,
    pending: Vec<u8>,
    rows: u64,
}

impl LinesWriter {
    pub fn create(path: &Path, schema: &SchemaRef) -> Result<Self, DataProblem> {
        let failed = |error: io::Error| written(path, &error);
        let stream = Encoder::new(AtomicFile::create(path)?, ZSTD_LEVEL).map_err(failed)?;
        Ok(Self { stream, schema: in_utc(schema), pending: Vec::new(), rows: 0 })
    }

    /// Appends rows. Columns are matched by index.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataProblem> {
        let rows = 0..batch.num_rows();
        let twice = |(field, column): (&FieldRef, &ArrayRef)| {
            let key = rows.clone().find_map(|row| repeated_key(column, row))?;
            Some(format!("column `{}`: a map has the key {} twice", field.name(), quoted(&key)))
        };
        if let Some(why) = self.schema.fields().iter().zip(batch.columns()).find_map(twice) {
            return Err(DataProblem::data(format!("a row cannot be written as JSON: {why}"))
                .with_hint("write `format: parquet`"));
        }
        let lines = encoded(batch, &self.schema).map_err(|error| {
            DataProblem::data(format!("a row cannot be written as JSON: {error}"))
        })?;
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
    let has_repeated_fields = |kind: &DataType| {
        let DataType::Struct(fields) = kind else { return false };
        let names: HashSet<&String> = fields.iter().map(|field| field.name()).collect();
        names.len() < fields.len()
    };
    let one = |field: &Arc<Field>| {
        if contains(field.data_type(), has_repeated_fields) {
            return Some(format!("`{}`: two of its fields have the same name", field.name()));
        }
        let of_one = vec![field.as_ref().clone().with_nullable(true)];
        let of_one = Arc::new(Schema::new(of_one));
        let nulls = new_null_array(field.data_type(), 1);
        let row = RecordBatch::try_new(Arc::clone(&of_one), vec![nulls]);
        Some(unsupported(field, row.and_then(|row| encoded(&row, &in_utc(&of_one))).err()?))
    };
    schema.fields().iter().filter_map(one).collect()
}

/// Lists columns with maps, at any depth: rows whose map has a key twice cannot be written.
pub fn map_columns(schema: &Schema) -> Vec<String> {
    let is_map = |kind: &DataType| matches!(kind, DataType::Map(..));
    let fields = schema.fields().iter().filter(|field| contains(field.data_type(), is_map));
    fields.map(|field| quoted(field.name())).collect()
}

fn repeated_key(array: &ArrayRef, row: usize) -> Option<String> {
    let inside = |items: &ArrayRef| {
        let rows = if items.data_type().is_nested() { 0..items.len() } else { 0..0 };
        rows.into_iter().find_map(|row| repeated_key(items, row))
    };
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Struct(_) => {
            array.as_struct().columns().iter().find_map(|column| repeated_key(column, row))
        }
        DataType::List(_) => inside(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => inside(&array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => inside(&array.as_fixed_size_list().value(row)),
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let keys = cast(entries.column(0), &DataType::Utf8).ok()?;
            let mut known = HashSet::new();
            let twice = keys.as_string::<i32>().iter().flatten().find(|key| !known.insert(*key));
            twice.map(str::to_owned).or_else(|| inside(entries.column(1)))
        }
        _ => None,
    }
}

fn encoded(batch: &RecordBatch, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| {
        cast(column, field.data_type()).map(|column| representable(&column))
    });
    let batch = RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_, _>>()?)?;
    let mut lines = Vec::new();
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    let mut writer = builder.build::<_, LineDelimited>(&mut lines);
    writer.write(&batch)?;
    writer.finish()?;
    drop(writer);
    Ok(lines)
}

/// Replaces dates, times and instants that the calendar does not have by null, at any depth.
fn representable(array: &ArrayRef) -> ArrayRef {
    let is_time = |kind: &DataType| {
        kind.is_temporal() && !matches!(kind, DataType::Duration(_) | DataType::Interval(_))
    };
    if !contains(array.data_type(), is_time) {
        return Arc::clone(array);
    }
    downcast_temporal_array! {
        array => Arc::new(in_calendar(array).with_data_type(array.data_type().clone())),
        _ => {
            let data = array.to_data();
            let children = data.child_data().iter();
            let children = children.map(|child| representable(&make_array(child.clone())).to_data());
            let replaced = data.clone().into_builder().child_data(children.collect()).build();
            replaced.map_or_else(|_| Arc::clone(array), make_array)
        }
    }
}

fn in_calendar<T: ArrowTemporalType>(array: &PrimitiveArray<T>) -> PrimitiveArray<T>
where
    i64: From<T::Native>,
{
    array.unary_opt(|value| {
        let number = i64::from(value);
        let known = match T::DATA_TYPE {
            DataType::Time32(_) | DataType::Time64(_) => as_time::<T>(number).is_some(),
            _ => as_datetime::<T>(number).is_some(),
        };
        known.then_some(value)
    })
}

/// Returns the schema with all instants in UTC, because longsift has no database of time zone names.
fn in_utc(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new(schema.fields().iter().map(field_in_utc).collect::<Fields>()))
}

fn field_in_utc(field: &Arc<Field>) -> Arc<Field> {
    let kind = type_in_utc(field.data_type());
    // Some times become null.
    let nullable = field.is_nullable() || kind.is_temporal();
    Arc::new(field.as_ref().clone().with_data_type(kind).with_nullable(nullable))
}

fn type_in_utc(kind: &DataType) -> DataType {
    match kind {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some(UTC.into())),
        // Dictionary keys would limit the values of a batch.
        DataType::Dictionary(_, values) => type_in_utc(values),
        DataType::ListView(_) | DataType::LargeListView(_) => kind.clone(),
        _ => map_child_fields(kind, field_in_utc),
    }
}

fn written(path: &Path, error: &io::Error) -> DataProblem {
    DataProblem::machine(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{Int64Builder, MapBuilder, StringBuilder};
    use arrow_array::types::TimestampMicrosecondType;
    use arrow_array::{Date32Array, ListArray, TimestampMicrosecondArray};
    use arrow_buffer::OffsetBuffer;
    use serde_json::{Value, json};

    use super::*;

    fn lines(column: ArrayRef) -> Vec<Value> {
        let batch = RecordBatch::try_from_iter([("value", column)]).unwrap();
        let text = encoded(&batch, &in_utc(&batch.schema())).unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["value"].take())
            .collect()
    }

    #[test]
    fn instants_beyond_the_calendar_are_null() {
        let instants = TimestampMicrosecondArray::from(vec![i64::MAX, 0, i64::MIN]);
        assert_eq!(
            lines(Arc::new(instants)),
            [json!(null), json!("1970-01-01T00:00:00"), json!(null)]
        );
        let zoned = TimestampMicrosecondArray::from(vec![i64::MAX, 0]).with_timezone("Asia/Tokyo");
        assert_eq!(lines(Arc::new(zoned)), [json!(null), json!("1970-01-01T00:00:00Z")]);
        let days = Date32Array::from(vec![i32::MAX, 1]);
        assert_eq!(lines(Arc::new(days)), [json!(null), json!("1970-01-02")]);
        let inside = ListArray::from_iter_primitive::<TimestampMicrosecondType, _, _>([
            Some(vec![Some(i64::MAX), Some(0)]),
            None,
        ]);
        assert_eq!(lines(Arc::new(inside)), [json!([null, "1970-01-01T00:00:00"]), json!(null)]);
    }

    #[test]
    fn maps_with_numbers_as_keys_are_unsupported() {
        let mut map = MapBuilder::new(None, Int64Builder::new(), Int64Builder::new());
        map.append(true).unwrap();
        let map = map.finish();
        let schema = Schema::new(vec![Field::new("map", map.data_type().clone(), false)]);
        let reasons = unsupported_columns(&schema);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].starts_with("`map` of the type map<int64, int64>: "), "{reasons:?}");
    }

    #[test]
    fn keys_that_a_reader_would_lose_are_refused() {
        let field = |kind: DataType| Arc::new(Field::new("x", kind, true));
        let twice = DataType::Struct(vec![field(DataType::Int8), field(DataType::Utf8)].into());
        let schema = Schema::new(vec![field(DataType::List(field(twice)))]);
        assert_eq!(unsupported_columns(&schema), ["`x`: two of its fields have the same name"]);
        let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        for keys in [["a", "b"], ["a", "a"]] {
            for key in keys {
                map.keys().append_value(key);
                map.values().append_value(1);
            }
            map.append(true).unwrap();
        }
        let map: ArrayRef = Arc::new(map.finish());
        let item = Arc::new(Field::new("item", map.data_type().clone(), true));
        let list = |map: ArrayRef| {
            let lengths = OffsetBuffer::from_lengths([map.len()]);
            Arc::new(ListArray::new(Arc::clone(&item), lengths, map, None)) as ArrayRef
        };
        assert_eq!(repeated_key(&list(Arc::clone(&map)), 0).as_deref(), Some("a"));
        assert_eq!(repeated_key(&list(map.slice(0, 1)), 0), None);
        let folder = tempfile::tempdir().unwrap();
        let batch = RecordBatch::try_from_iter([("m", map)]).unwrap();
        let path = folder.path().join("x.jsonl.zst");
        let mut writer = LinesWriter::create(&path, &batch.schema()).unwrap();
        writer.write(&batch.slice(0, 1)).unwrap();
        let refused = writer.write(&batch).unwrap_err();
        assert!(refused.message.contains("column `m`: a map has the key `a` twice"));
    }
}
