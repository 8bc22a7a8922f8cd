//! Reads texts as bytes and validates them here, so that invalid UTF-8 affects only its own row: the Parquet reader
//! would reject the page, or the whole row group for a value in a dictionary, and the Arrow reader the record batch.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, UInt64Array, new_null_array};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take;
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, ParquetMetaData};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use super::types;

pub(super) fn declare_bytes(footer: &ParquetMetaData) -> Result<ParquetMetaData, ParquetError> {
    let file = footer.file_metadata();
    let root = bytes_type(&file.schema_descr().root_schema_ptr())?;
    let declared = FileMetaData::new(
        file.version(),
        file.num_rows(),
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        Arc::new(SchemaDescriptor::new(root)),
        file.column_orders().cloned(),
    );
    Ok(ParquetMetaData::new(declared, footer.row_groups().to_vec()))
}

fn bytes_type(declared: &TypePtr) -> Result<TypePtr, ParquetError> {
    let info = declared.get_basic_info();
    let id = info.has_id().then(|| info.id());
    if declared.is_primitive() {
        let is_text = matches!(
            (info.logical_type_ref(), info.converted_type()),
            (Some(LogicalType::String | LogicalType::Json), _)
                | (None, ConvertedType::UTF8 | ConvertedType::JSON)
        );
        if !is_text || declared.get_physical_type() != Physical::BYTE_ARRAY {
            return Ok(Arc::clone(declared));
        }
        let bytes = Type::primitive_type_builder(declared.name(), Physical::BYTE_ARRAY);
        return Ok(Arc::new(bytes.with_repetition(info.repetition()).with_id(id).build()?));
    }
    let fields = declared.get_fields().iter().map(bytes_type).collect::<Result<Vec<_>, _>>()?;
    let unchanged = fields.iter().zip(declared.get_fields()).all(|(a, b)| Arc::ptr_eq(a, b));
    if unchanged {
        return Ok(Arc::clone(declared));
    }
    let mut group = Type::group_type_builder(declared.name())
        .with_fields(fields)
        .with_id(id)
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned());
    if info.has_repetition() {
        group = group.with_repetition(info.repetition());
    }
    Ok(Arc::new(group.build()?))
}

/// Returns the type with the same layout in Arrow files and bytes instead of texts.
pub(super) fn bytes_of_same_layout(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 => DataType::Binary,
        DataType::LargeUtf8 => DataType::LargeBinary,
        DataType::Utf8View => DataType::BinaryView,
        DataType::Dictionary(key, value) => {
            DataType::Dictionary(key.clone(), Box::new(bytes_of_same_layout(value)))
        }
        // Views of lists cannot be converted item by item.
        DataType::ListView(_) | DataType::LargeListView(_) => data_type.clone(),
        _ => types::map_children(data_type, bytes_of_same_layout),
    }
}

/// Returns the type requested from the Parquet reader for a column of type `data_type`: bytes for texts.
pub(super) fn as_bytes(data_type: &DataType) -> DataType {
    fn nested(data_type: &DataType) -> DataType {
        match data_type {
            DataType::Utf8 => DataType::Binary,
            DataType::LargeUtf8 | DataType::Utf8View => DataType::LargeBinary,
            _ => types::map_children(data_type, nested),
        }
    }
    match data_type {
        DataType::Utf8View => DataType::BinaryView,
        other => nested(other),
    }
}

/// Converts a column whose texts were read as bytes to the requested type. Returns the indices of rows with invalid
/// UTF-8, ascending; their values are null. A value that does not fit for another reason is an error.
pub(super) fn to_text(
    array: &ArrayRef,
    wanted: &DataType,
) -> Result<(ArrayRef, Vec<usize>), ArrowError> {
    let error = match types::conform(array, wanted) {
        Ok(array) => return Ok((array, Vec::new())),
        Err(error) => error,
    };
    // A value of a dictionary may be invalid in several rows or in none, and views of nulls are validated as well.
    let array = &cast(array, &flat(array.data_type()))?;
    let mut bad = vec![false; array.len()];
    mark(array.as_ref(), wanted, &mut bad);
    // Null rows, and items of lists outside these rows, may hold any bytes.
    let rows: Vec<usize> = (0..bad.len()).filter(|&row| array.is_valid(row) && bad[row]).collect();
    if rows.len() == bad.len() {
        return Ok((new_null_array(wanted, bad.len()), rows));
    }
    let is_kept = |row: usize| array.is_valid(row) && !bad[row];
    let kept = (0..bad.len()).map(|row| is_kept(row).then_some(row as u64));
    let rest = take(array, &kept.collect::<UInt64Array>(), None)?;
    match types::conform(&rest, wanted) {
        Err(_) if rows.is_empty() => Err(error),
        rest => Ok((rest?, rows)),
    }
}

/// Returns the type without dictionaries and views of bytes.
fn flat(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, value) => flat(value),
        DataType::BinaryView => DataType::LargeBinary,
        _ => types::map_children(data_type, flat),
    }
}

fn mark(array: &dyn Array, wanted: &DataType, bad: &mut [bool]) {
    match (array.data_type(), wanted) {
        (DataType::Binary | DataType::LargeBinary | DataType::BinaryView, text)
            if types::is_text(text) =>
        {
            for (row, bad) in bad.iter_mut().enumerate() {
                let bytes = types::bytes_at(array, row);
                *bad |= bytes.is_some_and(|bytes| std::str::from_utf8(bytes).is_err());
            }
        }
        (_, DataType::Dictionary(_, value)) => mark(array, value, bad),
        (DataType::Struct(_), DataType::Struct(fields)) => {
            for (column, field) in array.as_struct().columns().iter().zip(fields) {
                mark(column.as_ref(), field.data_type(), bad);
            }
        }
        (_, wanted) => {
            let item = types::child_fields(wanted).first();
            if let (Some(item), Some((items, ranges))) = (item, types::items(array)) {
                let mut of_items = vec![false; items.len()];
                mark(items.as_ref(), item.data_type(), &mut of_items);
                for (bad, range) in bad.iter_mut().zip(ranges) {
                    *bad |= of_items[range].contains(&true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        BinaryArray, BinaryViewArray, LargeListArray, ListArray, StringArray, StructArray,
    };
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use arrow_schema::{Field, Fields};

    use super::*;

    const VALUES: [Option<&[u8]>; 5] = [
        Some(b"\xff\xfe"),
        Some(b"plain"),
        None,
        Some("grüße und mehr Text".as_bytes()),
        Some(b"a\x80"),
    ];

    #[test]
    fn texts_that_are_not_utf8_are_null_and_named_in_every_width() {
        let expected =
            StringArray::from(vec![None, Some("plain"), None, Some("grüße und mehr Text"), None]);
        let views = Arc::new(BinaryViewArray::from_iter(VALUES)) as ArrayRef;
        let binary = Arc::new(BinaryArray::from_iter(VALUES)) as ArrayRef;
        for array in [views, binary] {
            for wanted in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
                let (text, bad) = to_text(&array, &wanted).unwrap();
                assert_eq!(bad, [0, 4]);
                assert_eq!(text.data_type(), &wanted);
                assert_eq!(types::conform(&text, &DataType::Utf8).unwrap().as_ref(), &expected);
            }
        }
    }

    #[test]
    fn invalid_text_inside_lists_and_structs_makes_only_its_row_null() {
        let leaf = Arc::new(BinaryArray::from_iter(VALUES)) as ArrayRef;
        let fields: Fields = vec![Field::new("a", DataType::Binary, true)].into();
        let structs = Arc::new(StructArray::new(fields.clone(), vec![leaf], None));
        let item = Arc::new(Field::new("item", DataType::Struct(fields), true));
        let offsets = OffsetBuffer::<i32>::from_lengths([1, 0, 3, 1]);
        let list = Arc::new(ListArray::new(item, offsets, structs, None)) as ArrayRef;
        let text = DataType::Struct(vec![Field::new("a", DataType::Utf8, true)].into());
        let wanted = DataType::List(Arc::new(Field::new("item", text, true)));
        assert_eq!(as_bytes(&wanted), *list.data_type());
        let (list, bad) = to_text(&list, &wanted).unwrap();
        assert_eq!((bad, list.null_count()), (vec![0, 3], 2));
        let texts = list.as_list::<i32>().value(2);
        let expected = StringArray::from(vec![Some("plain"), None, Some("grüße und mehr Text")]);
        assert_eq!(texts.as_struct().column(0).as_ref(), &expected);
    }

    #[test]
    fn invalid_bytes_of_no_row_are_ignored() {
        let stale = |values: &[&[u8]], nulls: Vec<bool>| {
            let views = BinaryViewArray::from_iter_values(values);
            let nulls = Some(NullBuffer::from(nulls));
            Arc::new(BinaryViewArray::new(views.views().clone(), vec![], nulls)) as ArrayRef
        };
        let views = stale(&[b"\xff", b"a\x80", b"plain"], vec![false, true, true]);
        let (text, bad) = to_text(&views, &DataType::Utf8View).unwrap();
        assert_eq!(bad, [1]);
        let expected = StringArray::from(vec![None, None, Some("plain")]);
        assert_eq!(types::conform(&text, &DataType::Utf8).unwrap().as_ref(), &expected);

        let leaf = Arc::new(BinaryArray::from_iter_values([&b"\xff"[..], b"b", b"c"])) as ArrayRef;
        let fields: Fields = vec![Field::new("a", DataType::Binary, true)].into();
        let nulls = Some(NullBuffer::from(vec![false, true, true]));
        let structs = StructArray::new(fields, vec![Arc::clone(&leaf)], nulls);
        let wanted = DataType::Struct(vec![Field::new("a", DataType::Utf8, true)].into());
        let (structs, bad) = to_text(&(Arc::new(structs) as ArrayRef), &wanted).unwrap();
        assert_eq!((bad, structs.null_count()), (vec![], 1));

        let keys = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Binary));
        for (items, text) in [
            (Arc::clone(&leaf), DataType::Utf8),
            (cast(&leaf, &DataType::BinaryView).unwrap(), DataType::Utf8View),
            (
                cast(&leaf, &keys).unwrap(),
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            ),
        ] {
            let item = Arc::new(Field::new("item", items.data_type().clone(), true));
            let offsets = OffsetBuffer::<i32>::from_lengths([1, 2]);
            let list = Arc::new(ListArray::new(item, offsets, items, None)) as ArrayRef;
            let wanted = DataType::List(Arc::new(Field::new("item", text, true)));
            for (rows, bad_rows) in [(list.slice(1, 1), vec![]), (list, vec![0])] {
                let (texts, bad) = to_text(&rows, &wanted).unwrap();
                assert_eq!((bad, texts.data_type()), (bad_rows, &wanted));
                let last = texts.as_list::<i32>().value(texts.len() - 1);
                let last = cast(&last, &DataType::Utf8).unwrap();
                assert_eq!(last.as_ref(), &StringArray::from(vec!["b", "c"]));
            }
        }
    }

    #[test]
    fn other_conversion_failures_are_errors() {
        let list =
            LargeListArray::new_null(Arc::new(Field::new("item", DataType::Binary, true)), 2);
        assert!(to_text(&(Arc::new(list) as ArrayRef), &DataType::Int8).is_err());
    }
}
