//! Reads a column as strings: ids, groups, labels.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;
use longsift_stages::contract::hex;

use super::formats::type_names::UTC;
use super::input::Dataset;
use super::read::{Batches, ReadError, ReadRequest, remaining};
use super::units::WorkUnit;

/// Reads a column of a work unit as strings, one per row: `None` for null values and for `unreadable` rows (ascending
/// and disjoint), which are not read.
pub fn read_labels(
    dataset: &Dataset,
    unit: &WorkUnit,
    column: &str,
    unreadable: &[Range<u64>],
) -> Result<Vec<Option<String>>, ReadError> {
    let column = dataset.check_label_column(column)?;
    let columns = [(column, label_type(dataset.schema.field(column).data_type()))];
    let first = unit.first_row;
    let rows = remaining(first..first + unit.rows, unreadable);
    let mut labels = vec![None; usize::try_from(unit.rows).unwrap_or(usize::MAX)];
    for batch in Batches::open(dataset, &ReadRequest::new(unit.file, rows, &columns))? {
        let batch = batch?;
        let values = LabelColumn::new(&batch.columns[0]);
        for (position, row) in batch.rows.iter().enumerate() {
            labels[(row - first) as usize] = values.get(position);
        }
    }
    Ok(labels)
}

pub(crate) fn values(array: &ArrayRef) -> Vec<Option<String>> {
    let labels = LabelColumn::new(array);
    (0..array.len()).map(|row| labels.get(row)).collect()
}

/// Returns the type that a column of labels is read as: views for strings and binaries, UTC for instants, whose time zones
/// would require a database, otherwise its own type.
pub(super) fn label_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, value) => label_type(value),
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some(UTC.into())),
        other => other.clone(),
    }
}

pub(super) struct LabelColumn(ArrayRef);

impl LabelColumn {
    pub(super) fn new(array: &ArrayRef) -> Self {
        let read = arrow_cast::cast(array, &label_type(array.data_type()));
        Self(read.unwrap_or_else(|_| Arc::clone(array)))
    }

    /// Returns the value of a row as a label; `None` for null. Different values have different labels: binary that is not UTF-8
    /// is `\x` with hexadecimal digits, as is binary text of that form.
    pub(super) fn get(&self, row: usize) -> Option<String> {
        self.string(row, binary_label)
    }

    /// Returns the value of a row as an id; `None` for null. Binary that is not UTF-8 is written in hexadecimal.
    pub(super) fn id(&self, row: usize) -> Option<String> {
        self.string(row, |bytes| {
            std::str::from_utf8(bytes).map_or_else(|_| hex(bytes), str::to_owned)
        })
    }

    fn string(&self, row: usize, binary: impl Fn(&[u8]) -> String) -> Option<String> {
        let array = &self.0;
        if array.is_null(row) || array.data_type() == &DataType::Null {
            return None;
        }
        match array.data_type() {
            DataType::Utf8View => Some(array.as_string_view().value(row).to_string()),
            DataType::BinaryView => Some(binary(array.as_binary_view().value(row))),
            _ => {
                let options = FormatOptions::new();
                let formatter = ArrayFormatter::try_new(array.as_ref(), &options).ok()?;
                let text = formatter.value(row).try_to_string();
                // An instant beyond the calendar, such as `infinity` of DuckDB: its number.
                let number = || {
                    let number = arrow_cast::cast(&array.slice(row, 1), &DataType::Int64).ok()?;
                    Some(number.as_primitive::<Int64Type>().value(0).to_string())
                };
                // Negative zero equals zero.
                let text = text.ok().or_else(number)?;
                Some(if text == "-0.0" { "0.0".to_owned() } else { text })
            }
        }
    }
}

fn binary_label(bytes: &[u8]) -> String {
    let is_escape = |text: &&str| {
        text.strip_prefix("\\x")
            .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    let text = std::str::from_utf8(bytes).ok().filter(|text| !is_escape(text));
    text.map_or_else(|| format!("\\x{}", hex(bytes)), str::to_owned)
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        BinaryArray, BooleanArray, Date32Array, Float64Array, TimestampMicrosecondArray,
    };

    use super::*;
    use crate::dataset::tests::{batch, everything, folder_of};

    fn labels(column: ArrayRef) -> Vec<Option<String>> {
        let (_folder, dataset) = folder_of(&[batch(vec![("label", column)])], 2);
        let units = dataset.units(1, None);
        units.iter().flat_map(|unit| read_labels(&dataset, unit, "label", &[]).unwrap()).collect()
    }

    #[test]
    fn labels_of_any_flat_type_are_strings_and_nulls_stay() {
        let some = |values: &[&str]| {
            values.iter().map(|value| Some((*value).to_string())).collect::<Vec<_>>()
        };
        assert_eq!(
            labels(Arc::new(BooleanArray::from(vec![Some(true), None]))),
            [Some("true".to_string()), None]
        );
        assert_eq!(labels(Arc::new(Float64Array::from(vec![0.5, 2.0]))), some(&["0.5", "2.0"]));
        assert_eq!(
            labels(Arc::new(Date32Array::from(vec![0, 1]))),
            some(&["1970-01-01", "1970-01-02"])
        );
        assert_eq!(
            labels(Arc::new(BinaryArray::from(vec![&b"abc"[..], &[255, 1], b"\\xff01", b"\\xi"]))),
            some(&["abc", "\\xff01", "\\x5c7866663031", "\\xi"])
        );
        let time = TimestampMicrosecondArray::from(vec![0]).with_timezone("Europe/Berlin");
        assert_eq!(labels(Arc::new(time)), some(&["1970-01-01T00:00:00Z"]));
    }

    #[test]
    fn labels_follow_the_rows_of_the_unit() {
        let (_folder, dataset) = folder_of(&[everything(100)], 30);
        let units = dataset.units(1, Some(50));
        let read: Vec<_> =
            units.iter().map(|unit| read_labels(&dataset, unit, "id", &[]).unwrap()).collect();
        assert_eq!(read.iter().map(Vec::len).collect::<Vec<_>>(), [30, 20]);
        assert_eq!(read[1][19].as_deref(), Some("49"));
        let names = read_labels(&dataset, &units[1], "small", &[]).unwrap();
        assert_eq!((names[0].as_deref(), names[1].as_deref()), (Some("name 8"), None));
    }
}
