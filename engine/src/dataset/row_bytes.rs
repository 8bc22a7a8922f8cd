//! Size of each row, computed only from its values.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use super::problem::DataProblem;
use super::types;

const LENGTH_BYTES: u64 = 4;

/// Returns the bytes of each row as written, with dictionaries and views expanded. Accepts columns of any type.
pub fn stored_row_bytes(columns: &[ArrayRef], rows: usize) -> Result<Vec<u64>, DataProblem> {
    let stored = columns.iter().map(|column| {
        types::conform(column, &types::storage_type(column.data_type())).map_err(|why| {
            DataProblem::data(format!(
                "a column of {} cannot be written: {why}",
                column.data_type()
            ))
        })
    });
    Ok(row_bytes(&stored.collect::<Result<Vec<_>, _>>()?, rows))
}

/// Returns the bytes of each row's values, independent of shared buffers and of how the batch was split.
///
/// Columns have types returned by [`storage_type`](super::types::storage_type). Nulls count zero, and so do values of
/// types that Parquet does not have.
pub(super) fn row_bytes(columns: &[ArrayRef], rows: usize) -> Vec<u64> {
    let mut sums = vec![0; rows];
    for column in columns {
        add(column.as_ref(), &mut sums);
    }
    sums
}

fn add(array: &dyn Array, sums: &mut [u64]) {
    match array.data_type() {
        DataType::Boolean => add_each(array, sums, |_| 1),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
            let length = |row| types::bytes_at(array, row).map_or(0, <[u8]>::len);
            add_each(array, sums, |row| LENGTH_BYTES + length(row) as u64);
        }
        DataType::FixedSizeBinary(size) => {
            add_each(array, sums, |_| u64::try_from(*size).unwrap_or(0));
        }
        DataType::Struct(_) => {
            let fields = row_bytes(array.as_struct().columns(), array.len());
            add_each(array, sums, |row| fields[row]);
        }
        other => {
            let Some((items, ranges)) = types::items(array) else {
                let width = other.primitive_width().unwrap_or(0) as u64;
                return add_each(array, sums, |_| width);
            };
            let has_length = !matches!(other, DataType::FixedSizeList(..));
            let length = if has_length { LENGTH_BYTES } else { 0 };
            let count = items.len();
            let mut before = vec![0];
            before.extend(row_bytes(&[items], count).into_iter().scan(0_u64, |sum, bytes| {
                *sum += bytes;
                Some(*sum)
            }));
            add_each(array, sums, |row| {
                length + before[ranges[row].end] - before[ranges[row].start]
            });
        }
    }
}

fn add_each(array: &dyn Array, sums: &mut [u64], bytes: impl Fn(usize) -> u64) {
    for (row, sum) in sums.iter_mut().enumerate() {
        if array.is_valid(row) {
            *sum += bytes(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, ListArray, StringArray, StructArray};
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn a_row_has_the_bytes_of_its_values_and_a_null_has_none() {
        let text = Arc::new(StringArray::from(vec![Some("abc"), None, Some("")])) as ArrayRef;
        let numbers = Arc::new(Int32Array::from(vec![Some(1), Some(2), None])) as ArrayRef;
        assert_eq!(row_bytes(&[text, numbers], 3), [3 + 4 + 4, 4, 4]);
    }

    #[test]
    fn a_sliced_list_of_a_struct_counts_its_own_items() {
        let numbers = Some(vec![Some(1), Some(2), None]);
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(9)]),
            numbers,
            None,
            Some(vec![]),
        ]);
        let sizes = [8, 4 + 8, 0, 4];
        assert_eq!(row_bytes(&[Arc::new(list.clone())], 4), sizes);
        assert_eq!(row_bytes(&[Arc::new(list.slice(1, 3))], 3), sizes[1..]);
        let field = Field::new("a", list.data_type().clone(), true);
        let structs = StructArray::new(vec![field].into(), vec![Arc::new(list)], None);
        assert_eq!(row_bytes(&[Arc::new(structs.slice(1, 2))], 2), sizes[1..3]);
    }
}
