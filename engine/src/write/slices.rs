//! Windows of a column: byte-exact slices of texts, slices of token lists.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, LargeBinaryArray, LargeListArray, LargeStringArray};
use arrow_buffer::OffsetBuffer;
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType, Field};
use arrow_select::concat::concat;

use super::output_rows::OutputRow;
use crate::dataset::types::list_item;

/// Returns the text or the tokens of each row's window, or of the document if a row has no window.
pub(super) fn slices(
    column: &ArrayRef,
    target: &DataType,
    rows: &[OutputRow<'_>],
) -> std::result::Result<ArrayRef, ArrowError> {
    let byte_range = |row: &OutputRow<'_>, all: usize| {
        row.window.map_or(0..all, |window| {
            let (start, end) = window.bytes.expect("windows of text have byte positions");
            start as usize..end as usize
        })
    };
    match target {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let text = cast(column, &DataType::LargeUtf8)?;
            let text: &LargeStringArray = text.as_string();
            let slice = |row: &OutputRow<'_>| {
                let text = text.value(row.position);
                text.get(byte_range(row, text.len())).expect("the text is the one that was cut")
            };
            let slices = LargeStringArray::from_iter_values(rows.iter().map(slice));
            cast(&slices, target)
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            let bytes = cast(column, &DataType::LargeBinary)?;
            let bytes: &LargeBinaryArray = bytes.as_binary();
            let slice = |row: &OutputRow<'_>| {
                let bytes = bytes.value(row.position);
                &bytes[byte_range(row, bytes.len())]
            };
            let slices = LargeBinaryArray::from_iter_values(rows.iter().map(slice));
            cast(&slices, target)
        }
        _ => token_slices(column, target, rows),
    }
}

/// Slices the tokens of each sample's window, keeping the list type.
fn token_slices(
    column: &ArrayRef,
    target: &DataType,
    rows: &[OutputRow<'_>],
) -> std::result::Result<ArrayRef, ArrowError> {
    let as_list = |item: &Arc<Field>| DataType::LargeList(Arc::clone(item));
    let item = list_item(target)
        .ok_or_else(|| ArrowError::NotYetImplemented(format!("windows of {target}")))?;
    let lists = cast(column, &as_list(item))?;
    let lists = lists.as_list::<i64>();
    let pieces: Vec<ArrayRef> = rows
        .iter()
        .map(|row| {
            let tokens = lists.value(row.position);
            let (start, end) = row.window.map_or((0, tokens.len() as u64), |window| window.tokens);
            tokens.slice(start as usize, (end - start) as usize)
        })
        .collect();
    let values = concat(&pieces.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>())?;
    let offsets = OffsetBuffer::<i64>::from_lengths(pieces.iter().map(arrow_array::Array::len));
    let list = LargeListArray::try_new(Arc::clone(item), offsets, values, None)?;
    cast(&list, target)
}
