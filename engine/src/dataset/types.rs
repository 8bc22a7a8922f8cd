//! Equivalent column types, and conversion of arrays between them.
//!
//! Types are equivalent if they differ only in the width of strings, binaries or lists, views, or dictionary encoding, or if
//! one is null, at any depth. All functions handle nested types; nullability and names are those of the target.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, GenericListViewArray, OffsetSizeTrait, make_array, new_null_array,
};
use arrow_cast::{CastOptions, cast, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, TimeUnit};

use super::formats::type_names;

/// Returns whether a type is a string (or a binary), and its rank among the three string (or binary) types: `string` <
/// `string_view` < `large_string`. The widest holds all values of the others, without a limit on array bytes.
fn width(data_type: &DataType) -> Option<(bool, u8)> {
    Some(match data_type {
        DataType::Utf8 => (true, 0),
        DataType::Utf8View => (true, 1),
        DataType::LargeUtf8 => (true, 2),
        DataType::Binary => (false, 0),
        DataType::BinaryView => (false, 1),
        DataType::LargeBinary => (false, 2),
        _ => return None,
    })
}

pub(super) fn is_text(data_type: &DataType) -> bool {
    matches!(width(data_type), Some((true, _)))
}

pub(super) fn is_text_or_bytes(data_type: &DataType) -> bool {
    width(data_type).is_some()
}

/// Metadata key of the dictionary key type that the files declare for an output column, whose keys are wider in memory.
const DECLARED_KEY: &str = "longsift:dictionary_key";

/// Returns the output column for a column of a file.
///
/// Only dictionaries change. Dictionaries of strings and binaries get keys of at least 32 bits in memory, where rows of
/// many row groups are combined; the column records the declared key type for [`written_field`]. Other dictionaries
/// become plain columns, as other Parquet readers read them. No dictionary is ordered: its values are in order of appearance.
pub(super) fn output_field(field: &FieldRef) -> FieldRef {
    let output = field.as_ref().clone().with_data_type(output_type(field.data_type()));
    let mut output = output.with_dict_is_ordered(false);
    if let (DataType::Dictionary(key, _), DataType::Dictionary(wide, _)) =
        (field.data_type(), output.data_type())
        && key != wide
    {
        output.metadata_mut().insert(DECLARED_KEY.to_string(), key.to_string());
    }
    Arc::new(output)
}

/// Metadata key by which the Parquet writer declares a time of day as UTC.
const UTC_TIME_KEY: &str = "adjusted_to_utc";

/// Declares a time of day as UTC, which its Arrow type cannot.
pub(super) fn utc_time_field(mut field: Field) -> Field {
    field.metadata_mut().insert(UTC_TIME_KEY.to_owned(), String::new());
    field
}

pub(super) fn unsupported(field: &Field, why: impl std::fmt::Display) -> String {
    format!("`{}` of the type {}: {why}", field.name(), type_names::name(field.data_type()))
}

pub(super) fn described(field: &FieldRef) -> String {
    let zone = if is_utc_time(field) { " in UTC" } else { "" };
    let unit = match field.data_type() {
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => {
            format!(" in {unit}")
        }
        _ => String::new(),
    };
    format!("{}{unit}{zone}", type_names::name(field.data_type()))
}

fn is_utc_time(field: &FieldRef) -> bool {
    field.metadata().contains_key(UTC_TIME_KEY)
}

/// Returns the column as declared in a written file, and the maximum dictionary values of a row group for small keys.
pub(super) fn written_field(field: &FieldRef) -> (FieldRef, Option<usize>) {
    let Some(declared) = field.metadata().get(DECLARED_KEY) else {
        return (map_field(field, parquet_time), None);
    };
    let (key, limit) = match declared.as_str() {
        "Int8" => (DataType::Int8, 1 << 7),
        "UInt8" => (DataType::UInt8, 1 << 8),
        "Int16" => (DataType::Int16, 1 << 15),
        _ => (DataType::UInt16, 1 << 16),
    };
    let plain = without_metadata(field, &[DECLARED_KEY]);
    match field.data_type() {
        DataType::Dictionary(_, value) => {
            let declared = DataType::Dictionary(Box::new(key), value.clone());
            (Arc::new(plain.as_ref().clone().with_data_type(declared)), Some(limit))
        }
        _ => (plain, None),
    }
}

fn without_metadata(field: &FieldRef, keys: &[&str]) -> FieldRef {
    let mut metadata = field.metadata().clone();
    metadata.retain(|key, _| !keys.contains(&key.as_str()));
    Arc::new(field.as_ref().clone().with_metadata(metadata))
}

fn output_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(key, value) if width(value).is_some() => {
            let wide = matches!(**key, DataType::Int64 | DataType::UInt64 | DataType::UInt32);
            DataType::Dictionary(
                if wide { key.clone() } else { Box::new(DataType::Int32) },
                value.clone(),
            )
        }
        DataType::Dictionary(_, value) => output_type(value),
        _ => map_children(data_type, output_type),
    }
}

/// Returns `hinted`, the type in the footer's Arrow schema, where it agrees with the file, otherwise `parquet`.
///
/// A column of days can be declared as `date64`, but other readers would read `date64` as plain numbers.
pub(super) fn reconcile(hinted: &DataType, parquet: &DataType) -> DataType {
    let field = |hinted: &FieldRef, parquet: &FieldRef| {
        let data_type = reconcile(hinted.data_type(), parquet.data_type());
        Some(Arc::new(hinted.as_ref().clone().with_data_type(data_type)))
    };
    match (hinted, parquet) {
        (DataType::Date64, DataType::Date32) => Some(DataType::Date32),
        (DataType::LargeList(hinted), DataType::List(parquet)) => {
            field(hinted, parquet).map(DataType::LargeList)
        }
        (DataType::FixedSizeList(hinted, size), DataType::List(parquet)) => {
            field(hinted, parquet).map(|item| DataType::FixedSizeList(item, *size))
        }
        _ => zip_children(hinted, parquet, field),
    }
    .unwrap_or_else(|| hinted.clone())
}

/// Returns the type in which a column is written: dictionaries become plain, views become large, list views become
/// lists, and times have a [`parquet_time`].
///
/// The bytes of a Parquet file then depend only on the values, and slices of views do not keep other buffers alive. The
/// Arrow schema in the footer declares the type for readers.
pub(super) fn storage_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, value) => storage_type(value),
        DataType::Utf8View => DataType::LargeUtf8,
        DataType::BinaryView => DataType::LargeBinary,
        DataType::ListView(item) => DataType::List(map_field(item, storage_type)),
        DataType::LargeListView(item) => DataType::LargeList(map_field(item, storage_type)),
        DataType::Timestamp(..) | DataType::Time32(_) | DataType::Date64 => parquet_time(data_type),
        _ => map_children(data_type, storage_type),
    }
}

/// Returns the type that Parquet has for a time, instead of plain numbers: milliseconds for seconds, days for `date64`.
fn parquet_time(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Date64 => DataType::Date32,
        _ => map_children(data_type, parquet_time),
    }
}

pub(super) fn map_children(data_type: &DataType, change: fn(&DataType) -> DataType) -> DataType {
    map_child_fields(data_type, |field| map_field(field, change))
}

pub(super) fn map_child_fields(
    data_type: &DataType,
    change: impl Fn(&FieldRef) -> FieldRef,
) -> DataType {
    zip_children(data_type, data_type, |field, _| Some(change(field)))
        .unwrap_or_else(|| data_type.clone())
}

/// Combines the child fields of two nested types of one kind; `None` for other types, or if a pair cannot be combined.
pub(super) fn zip_children(
    left: &DataType,
    right: &DataType,
    combine: impl Fn(&FieldRef, &FieldRef) -> Option<FieldRef>,
) -> Option<DataType> {
    Some(match (left, right) {
        (DataType::List(left), DataType::List(right)) => DataType::List(combine(left, right)?),
        (DataType::LargeList(left), DataType::LargeList(right)) => {
            DataType::LargeList(combine(left, right)?)
        }
        (DataType::ListView(left), DataType::ListView(right)) => {
            DataType::ListView(combine(left, right)?)
        }
        (DataType::LargeListView(left), DataType::LargeListView(right)) => {
            DataType::LargeListView(combine(left, right)?)
        }
        (DataType::FixedSizeList(left, size), DataType::FixedSizeList(right, other))
            if size == other =>
        {
            DataType::FixedSizeList(combine(left, right)?, *size)
        }
        (DataType::Map(left, sorted), DataType::Map(right, _)) => {
            DataType::Map(combine(left, right)?, *sorted)
        }
        (DataType::Struct(left), DataType::Struct(right)) if left.len() == right.len() => {
            let fields = left.iter().zip(right).map(|(left, right)| combine(left, right));
            DataType::Struct(fields.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// Applies `change` to the type of a field; name, nullability and metadata stay.
pub(super) fn map_field(field: &FieldRef, change: fn(&DataType) -> DataType) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(change(field.data_type())))
}

/// Returns the narrowest type that holds the values of both; `None` if they are not equivalent.
///
/// Names inside lists and maps, and metadata, are those of `left`; the result is nullable if either type is.
pub(super) fn widest(left: &DataType, right: &DataType) -> Option<DataType> {
    if let (Some((left_text, left_width)), Some((right_text, right_width))) =
        (width(left), width(right))
    {
        let wider = if left_width >= right_width { left } else { right };
        return (left_text == right_text).then(|| wider.clone());
    }
    Some(match (left, right) {
        // A column without values, as pandas writes it.
        (DataType::Null, other) | (other, DataType::Null) => other.clone(),
        (DataType::Dictionary(left_key, left), DataType::Dictionary(right_key, right)) => {
            let key =
                if left_key == right_key { left_key.clone() } else { Box::new(DataType::Int64) };
            DataType::Dictionary(key, Box::new(widest(left, right)?))
        }
        (DataType::Dictionary(_, value), plain) | (plain, DataType::Dictionary(_, value)) => {
            widest(value, plain)?
        }
        (DataType::Map(left, sorted), DataType::Map(right, also)) => {
            // Key and value are matched by position instead of name.
            let entries = zip_children(left.data_type(), right.data_type(), widest_field)?;
            let entries = left.as_ref().clone().with_data_type(entries);
            DataType::Map(Arc::new(entries), *sorted && *also)
        }
        (DataType::List(left), DataType::LargeList(right))
        | (DataType::LargeList(left), DataType::List(right)) => {
            DataType::LargeList(widest_field(left, right)?)
        }
        (DataType::Struct(left), DataType::Struct(right))
            if left.iter().map(|field| field.name()).ne(right.iter().map(|field| field.name())) =>
        {
            return None;
        }
        _ => zip_children(left, right, widest_field)
            .or_else(|| (left == right).then(|| left.clone()))?,
    })
}

/// Metadata keys of the name and the parameters of an extension type.
const EXTENSION_TYPE: [&str; 2] = ["ARROW:extension:name", "ARROW:extension:metadata"];

/// Applies [`widest`] to two corresponding fields.
pub(super) fn widest_field(left: &FieldRef, right: &FieldRef) -> Option<FieldRef> {
    let data_type = widest(left.data_type(), right.data_type())?;
    if is_utc_time(left) != is_utc_time(right) {
        return None;
    }
    let nullable = left.is_nullable() || right.is_nullable();
    let differs = |key: &str| left.metadata().get(key) != right.metadata().get(key);
    // Values of another file need not belong to an extension type: an `arrow.bool8` is 0 or 1, an int8 any number. Polars reads
    // values that are not among the categories of its metadata as null.
    let is_other_type = EXTENSION_TYPE.iter().any(|key| differs(key));
    let is_of_one_file = |key: &&str| match *key {
        key if EXTENSION_TYPE.contains(&key) => is_other_type,
        key => (key == DECLARED_KEY || key.starts_with("_PL_")) && differs(key),
    };
    let keys = left.metadata().keys().map(String::as_str).filter(is_of_one_file);
    let left = without_metadata(left, &keys.collect::<Vec<_>>());
    Some(Arc::new(left.as_ref().clone().with_data_type(data_type).with_nullable(nullable)))
}

/// Whether times of this type are written in another unit.
pub(super) fn is_converted_time(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Timestamp(TimeUnit::Second, _)
            | DataType::Time32(TimeUnit::Second)
            | DataType::Date64
    )
}

/// Returns the type to request from the Parquet reader: the structure of `file` with leaves and list widths of
/// `wanted`.
///
/// The reader accepts only the file's own names, nullability and metadata.
pub(super) fn request(file: &DataType, wanted: &DataType) -> DataType {
    let field = |file: &FieldRef, wanted: &FieldRef| {
        let data_type = request(file.data_type(), wanted.data_type());
        Some(Arc::new(file.as_ref().clone().with_data_type(data_type)))
    };
    match (file, wanted) {
        (list, DataType::LargeList(item)) if list_item(list).is_some() => {
            list_item(list).and_then(|inner| field(inner, item)).map(DataType::LargeList)
        }
        (file, DataType::Dictionary(_, wanted)) => Some(request(file, wanted)),
        (DataType::Dictionary(_, value), wanted) => Some(request(value, wanted)),
        (file, wanted) if width(file).is_some() && width(wanted).is_some() => Some(wanted.clone()),
        _ => zip_children(file, wanted, field),
    }
    .unwrap_or_else(|| file.clone())
}

pub(crate) fn list_item(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Whether `test` is true for a type or one inside it, at any depth.
pub(super) fn contains(data_type: &DataType, test: fn(&DataType) -> bool) -> bool {
    test(data_type) || child_fields(data_type).iter().any(|field| contains(field.data_type(), test))
}

/// Returns the item of lists, the entries of maps and the fields of structs.
pub(super) fn child_fields(data_type: &DataType) -> &[FieldRef] {
    match data_type {
        DataType::Struct(fields) => fields,
        DataType::Map(entries, _) => std::slice::from_ref(entries),
        other => list_item(other).map_or(&[], std::slice::from_ref),
    }
}

/// Returns the items of all lists or maps of an array, and by row the range of its items; `None` for other arrays.
pub(super) fn items(array: &dyn Array) -> Option<(ArrayRef, Vec<Range<usize>>)> {
    fn by_offsets<O: OffsetSizeTrait>(
        items: &dyn Array,
        offsets: &[O],
    ) -> (ArrayRef, Vec<Range<usize>>) {
        let (first, end) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        let range = |ends: &[O]| ends[0].as_usize() - first..ends[1].as_usize() - first;
        (items.slice(first, end - first), offsets.windows(2).map(range).collect())
    }
    fn by_views<O: OffsetSizeTrait>(
        list: &GenericListViewArray<O>,
    ) -> (ArrayRef, Vec<Range<usize>>) {
        let views = list.value_offsets().iter().zip(list.value_sizes());
        let range = |(start, size): (&O, &O)| start.as_usize()..start.as_usize() + size.as_usize();
        (Arc::clone(list.values()), views.map(range).collect())
    }
    Some(match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            by_offsets(list.values(), list.value_offsets())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            by_offsets(list.values(), list.value_offsets())
        }
        DataType::ListView(_) => by_views(array.as_list_view::<i32>()),
        DataType::LargeListView(_) => by_views(array.as_list_view::<i64>()),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let ranges = (0..array.len()).map(|row| row * size..(row + 1) * size).collect();
            (Arc::clone(array.as_fixed_size_list().values()), ranges)
        }
        DataType::Map(..) => {
            let map = array.as_map();
            by_offsets(map.entries(), map.value_offsets())
        }
        _ => return None,
    })
}

/// Returns the bytes of a string or binary value; `None` for null, and for other types.
pub(super) fn bytes_at(array: &dyn Array, row: usize) -> Option<&[u8]> {
    match array.data_type() {
        _ if array.is_null(row) => None,
        DataType::Utf8 => Some(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row).as_bytes()),
        DataType::Binary => Some(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Some(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Some(array.as_binary_view().value(row)),
        _ => None,
    }
}

/// Converts an array to an equivalent type with other names and nullability. A value that does not fit is an error, except for a
/// time inside lists and structs: [`times::without_lost`](super::times::without_lost) has checked those that belong to a row.
pub(super) fn conform(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    conform_at(array, to, false)
}

fn conform_at(array: &ArrayRef, to: &DataType, is_inside: bool) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    if *array.data_type() == DataType::Null {
        return Ok(new_null_array(to, array.len()));
    }
    if let (DataType::List(item), DataType::LargeList(_)) = (array.data_type(), to) {
        let wider = cast(array, &DataType::LargeList(Arc::clone(item)))?;
        return conform_at(&wider, to, is_inside);
    }
    if zip_children(array.data_type(), to, |_, field| Some(Arc::clone(field))).is_none() {
        let safe = is_inside && is_converted_time(array.data_type());
        let options = CastOptions { safe, ..CastOptions::default() };
        let converted = cast_with_options(array, to, &options)?;
        if !safe {
            return Ok(converted);
        }
        // The field may not be nullable.
        let data = converted.to_data().into_builder().nulls(array.nulls().cloned());
        return data.build().map(make_array);
    }
    let data = array.to_data();
    let children = data.child_data().iter().zip(child_fields(to)).map(|(child, field)| {
        conform_at(&make_array(child.clone()), field.data_type(), true).map(|child| child.to_data())
    });
    let children = children.collect::<Result<_, _>>()?;
    let conformed = data.into_builder().data_type(to.clone()).child_data(children);
    conformed.build().map(make_array)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, ListArray, StringArray, StructArray};
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use arrow_schema::{Field, Fields};

    use super::*;

    fn dictionary(key: DataType, value: DataType) -> DataType {
        DataType::Dictionary(Box::new(key), Box::new(value))
    }

    fn list(item: DataType) -> DataType {
        DataType::List(Arc::new(Field::new("element", item, true)))
    }

    #[test]
    fn seconds_and_date64_are_written_as_times() {
        use arrow_array::{
            Date32Array, Date64Array, TimestampMillisecondArray, TimestampSecondArray,
        };
        let seconds: ArrayRef = Arc::new(TimestampSecondArray::from(vec![1, i64::MAX]));
        let stored = storage_type(seconds.data_type());
        let expected = TimestampMillisecondArray::from(vec![1000]);
        assert_eq!(conform(&seconds.slice(0, 1), &stored).unwrap().as_ref(), &expected);
        assert!(conform(&seconds, &stored).is_err(), "nothing is converted with loss");
        let days: ArrayRef = Arc::new(Date64Array::from(vec![86_400_000]));
        let stored = storage_type(days.data_type());
        assert_eq!(conform(&days, &stored).unwrap().as_ref(), &Date32Array::from(vec![1]));
        let second = DataType::Time32(TimeUnit::Second);
        let list = DataType::List(Arc::new(Field::new("item", second, true)));
        let (declared, _) = written_field(&Arc::new(Field::new("list", list.clone(), true)));
        assert_eq!(declared.data_type(), &storage_type(&list));
    }

    #[test]
    fn the_widest_of_two_strings_is_large_then_view_then_plain() {
        assert_eq!(widest(&DataType::Utf8, &DataType::LargeUtf8), Some(DataType::LargeUtf8));
        assert_eq!(widest(&DataType::Utf8View, &DataType::Utf8), Some(DataType::Utf8View));
        assert_eq!(widest(&DataType::Utf8View, &DataType::LargeUtf8), Some(DataType::LargeUtf8));
        assert_eq!(widest(&DataType::BinaryView, &DataType::Binary), Some(DataType::BinaryView));
    }

    #[test]
    fn a_dictionary_and_a_plain_string_are_a_plain_string() {
        let left = dictionary(DataType::Int32, DataType::Utf8);
        assert_eq!(widest(&left, &DataType::LargeUtf8), Some(DataType::LargeUtf8));
        assert_eq!(widest(&DataType::Utf8, &left), Some(DataType::Utf8));
        assert_eq!(widest(&left, &left), Some(left.clone()));
    }

    #[test]
    fn widths_are_unified_inside_nested_types() {
        let fields = |inner| DataType::Struct(vec![Field::new("a", list(inner), false)].into());
        assert_eq!(
            widest(&fields(DataType::Utf8), &fields(DataType::LargeUtf8)),
            Some(fields(DataType::LargeUtf8))
        );
    }

    #[test]
    fn categories_of_polars_are_kept_only_if_all_files_have_them() {
        let field = |metadata: &[(&str, &str)]| {
            let pairs =
                metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let metadata = pairs.collect::<std::collections::BTreeMap<_, _>>();
            Arc::new(Field::new("a", DataType::Utf8, true).with_metadata(metadata))
        };
        let first = field(&[("_PL_ENUM_VALUES2", "1;a"), ("comment", "x")]);
        let kept = |second| widest_field(&first, &second).unwrap().metadata().clone();
        assert_eq!(kept(first.clone()), *first.metadata());
        for second in [field(&[("_PL_ENUM_VALUES2", "1;a1;b")]), field(&[])] {
            assert_eq!(kept(second), *field(&[("comment", "x")]).metadata());
        }
    }

    #[test]
    fn no_output_dictionary_is_ordered() {
        let levels = dictionary(DataType::Int8, DataType::Utf8);
        let ordered = Field::new("level", levels, true).with_dict_is_ordered(true);
        assert_eq!(output_field(&Arc::new(ordered)).dict_is_ordered(), Some(false));
    }

    #[test]
    fn other_differences_are_refused() {
        assert_eq!(widest(&DataType::Utf8, &DataType::Binary), None);
        assert_eq!(widest(&DataType::Int32, &DataType::Int64), None);
        assert_eq!(widest(&DataType::Null, &list(DataType::Int32)), Some(list(DataType::Int32)));
        assert_eq!(widest(&list(DataType::Int32), &list(DataType::Int64)), None);
        let named =
            |name: &str| DataType::Struct(vec![Field::new(name, DataType::Int32, true)].into());
        assert_eq!(widest(&named("a"), &named("b")), None);
    }

    #[test]
    fn names_of_list_items_may_differ() {
        let item = DataType::List(Arc::new(Field::new("item", DataType::Utf8, false)));
        assert_eq!(widest(&list(DataType::Utf8), &item), Some(list(DataType::Utf8)));
    }

    fn output_of(data_type: DataType) -> FieldRef {
        output_field(&Arc::new(Field::new("a", data_type, true)))
    }

    #[test]
    fn small_dictionary_keys_are_wide_in_memory_and_as_declared_in_a_file() {
        let small = dictionary(DataType::Int8, DataType::Utf8);
        let output = output_of(small.clone());
        assert_eq!(output.data_type(), &dictionary(DataType::Int32, DataType::Utf8));
        let (written, limit) = written_field(&output);
        assert_eq!((written.as_ref(), limit), (&Field::new("a", small.clone(), true), Some(128)));
        assert_eq!(
            output_of(list(small)).data_type(),
            &list(dictionary(DataType::Int32, DataType::Utf8))
        );
    }

    #[test]
    fn files_that_declare_different_keys_get_wide_ones() {
        let (small, medium) = (
            dictionary(DataType::Int8, DataType::Utf8),
            dictionary(DataType::Int16, DataType::Utf8),
        );
        let mixed = widest_field(&output_of(small), &output_of(medium)).unwrap();
        let wide = Field::new("a", dictionary(DataType::Int32, DataType::Utf8), true);
        assert_eq!(written_field(&mixed), (Arc::new(wide), None));
    }

    #[test]
    fn dictionaries_of_numbers_become_plain() {
        assert_eq!(
            output_of(dictionary(DataType::Int8, DataType::Int64)).as_ref(),
            &Field::new("a", DataType::Int64, true)
        );
    }

    #[test]
    fn a_conformed_array_keeps_values_and_nulls_under_the_new_type() {
        let text = Arc::new(StringArray::from(vec![Some("a"), None, Some("c")])) as ArrayRef;
        let numbers = Arc::new(Int32Array::from(vec![1, 2, 3])) as ArrayRef;
        let fields = |text: DataType| {
            Fields::from(vec![Field::new("t", text, true), Field::new("n", DataType::Int32, false)])
        };
        let nulls = Some(NullBuffer::from(vec![true, true, false]));
        let structs = StructArray::new(fields(DataType::Utf8), vec![text, numbers], nulls);
        let item = |text| Arc::new(Field::new("element", DataType::Struct(fields(text)), true));
        let offsets = OffsetBuffer::new(vec![0, 2, 3].into());
        let array = Arc::new(ListArray::new(
            item(DataType::Utf8),
            offsets.clone(),
            Arc::new(structs),
            None,
        )) as ArrayRef;

        let to = DataType::List(item(dictionary(DataType::Int32, DataType::LargeUtf8)));
        let conformed = conform(&array, &to).unwrap();
        assert_eq!(conformed.data_type(), &to);
        let structs = conformed.as_list::<i32>().values().as_struct();
        assert!(structs.is_null(2) && structs.is_valid(1));
        let text = structs.column(0).as_dictionary::<Int32Type>();
        let text: Vec<_> =
            text.downcast_dict::<arrow_array::LargeStringArray>().unwrap().into_iter().collect();
        assert_eq!(text, [Some("a"), None, Some("c")]);
        assert_eq!(conformed.as_list::<i32>().offsets(), &offsets);
    }
}
