//! Times that the output cannot hold without loss: Parquet has neither times in seconds nor `date64`, which are written as
//! milliseconds and as days.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType, TimeUnit};
use arrow_select::nullif::nullif;

use super::types;

const DAY: i64 = 86_400_000;

/// Values that cannot be written, in words, by row.
type LostValues = BTreeMap<usize, String>;

fn is_converted(data_type: &DataType) -> bool {
    types::contains(data_type, types::is_converted_time)
}

/// Sets the rows to null whose times cannot be written. Returns the first such value of each row, in words.
pub(super) fn without_lost(array: ArrayRef) -> Result<(ArrayRef, LostValues), ArrowError> {
    if !is_converted(array.data_type()) {
        return Ok((array, LostValues::new()));
    }
    let lost = lost_values(array.as_ref());
    if lost.is_empty() {
        return Ok((array, lost));
    }
    let is_lost: BooleanArray = (0..array.len()).map(|row| Some(lost.contains_key(&row))).collect();
    Ok((nullif(array.as_ref(), &is_lost)?, lost))
}

fn lost_values(array: &dyn Array) -> LostValues {
    let mut lost = match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => lost_seconds(array, i64::MIN, i64::MAX),
        DataType::Time32(TimeUnit::Second) => {
            lost_seconds(array, i64::from(i32::MIN), i64::from(i32::MAX))
        }
        DataType::Date64 => lost_numbers(array, |milliseconds| {
            let fits = milliseconds % DAY == 0 && i32::try_from(milliseconds / DAY).is_ok();
            (!fits).then(|| format!("{milliseconds} ms is not a date in days"))
        }),
        DataType::Struct(_) => {
            let mut lost = LostValues::new();
            for column in array.as_struct().columns() {
                for (row, value) in lost_values(column.as_ref()) {
                    lost.entry(row).or_insert(value);
                }
            }
            lost
        }
        _ => {
            let Some((items, ranges)) = types::items(array) else { return LostValues::new() };
            let lost = lost_values(items.as_ref());
            let first = |(row, range)| Some((row, lost.range(range).next()?.1.clone()));
            ranges.into_iter().enumerate().filter_map(first).collect()
        }
    };
    lost.retain(|row, _| array.is_valid(*row));
    lost
}

/// Returns the times in seconds that are outside the range of milliseconds `min` to `max`.
fn lost_seconds(array: &dyn Array, min: i64, max: i64) -> LostValues {
    lost_numbers(array, |seconds| {
        let fits = (min / 1000..=max / 1000).contains(&seconds);
        (!fits).then(|| format!("{seconds} s does not fit in milliseconds"))
    })
}

fn lost_numbers(array: &dyn Array, problem: impl Fn(i64) -> Option<String>) -> LostValues {
    let numbers = cast(array, &DataType::Int64).expect("a time is an integer");
    let numbers = numbers.as_primitive::<Int64Type>().values().iter().enumerate();
    numbers.filter_map(|(row, number)| Some((row, problem(*number)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        Date64Array, ListArray, StructArray, Time32SecondArray, TimestampSecondArray,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::Field;

    use super::*;

    fn lost_rows(array: &ArrayRef) -> Vec<usize> {
        assert!(is_converted(array.data_type()));
        let (rest, lost) = without_lost(Arc::clone(array)).unwrap();
        let rows: Vec<usize> = lost.into_keys().collect();
        assert!(rows.iter().all(|row| rest.is_null(*row)));
        assert_eq!(rest.null_count(), array.null_count() + rows.len());
        let written = types::storage_type(array.data_type());
        assert!(types::conform(&rest, &written).is_ok(), "{written} holds the other values");
        rows
    }

    #[test]
    fn times_that_fit_no_written_type_are_found_at_any_depth() {
        let seconds =
            vec![Some(0), None, Some(i64::MAX), Some(-1), Some(i64::MIN), Some(i64::MAX / 1000)];
        let seconds: ArrayRef = Arc::new(TimestampSecondArray::from(seconds));
        assert_eq!(lost_rows(&seconds), [2, 4]);
        let days =
            [0, -DAY, 1, DAY + 1, i64::from(i32::MAX) * DAY, (i64::from(i32::MAX) + 1) * DAY];
        assert_eq!(lost_rows(&(Arc::new(Date64Array::from(days.to_vec())) as ArrayRef)), [2, 3, 5]);
        assert_eq!(
            lost_rows(&(Arc::new(Time32SecondArray::from(vec![86_399, i32::MAX])) as ArrayRef)),
            [1]
        );
        let field = Arc::new(Field::new("time", seconds.data_type().clone(), true));
        let structs: ArrayRef = Arc::new(StructArray::from(vec![(field, Arc::clone(&seconds))]));
        assert_eq!(lost_rows(&structs), [2, 4]);
        let item = Arc::new(Field::new("item", structs.data_type().clone(), true));
        let offsets = OffsetBuffer::new(vec![0, 2, 4, 4, 6].into());
        assert_eq!(
            lost_rows(&(Arc::new(ListArray::new(item, offsets, structs, None)) as ArrayRef)),
            [1, 3]
        );
        assert!(!is_converted(&DataType::Timestamp(TimeUnit::Millisecond, None)));
    }
}
