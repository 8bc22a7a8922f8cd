//! Windows of a column: byte-exact slices of texts, slices of token lists.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, LargeBinaryArray, LargeListArray, LargeStringArray, StringArray,
    StringViewArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;

use super::Kept;

/// The text or the tokens of each sample's window.
pub(super) fn slices(
    column: &ArrayRef,
    target: &DataType,
    samples: &[Kept<'_>],
) -> std::result::Result<ArrayRef, ArrowError> {
    let window = |kept: &Kept<'_>| kept.window.expect("samples of windows have a window").clone();
    match target {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let text = cast(column, &DataType::LargeUtf8)?;
            let text: &LargeStringArray = text.as_string();
            let slice = |kept: &Kept<'_>| {
                let (start, end) = window(kept).bytes.expect("windows of text have byte positions");
                text.value(kept.position)
                    .get(start as usize..end as usize)
                    .expect("the text is the one that was cut")
                    .to_owned()
            };
            let slices: Vec<String> = samples.iter().map(slice).collect();
            Ok(match target {
                DataType::Utf8 => Arc::new(StringArray::from(slices)),
                DataType::LargeUtf8 => Arc::new(LargeStringArray::from(slices)),
                _ => Arc::new(StringViewArray::from_iter_values(slices)),
            })
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            let bytes = cast(column, &DataType::LargeBinary)?;
            let bytes: &LargeBinaryArray = bytes.as_binary();
            let slice = |kept: &Kept<'_>| {
                let (start, end) = window(kept).bytes.expect("windows of text have byte positions");
                &bytes.value(kept.position)[start as usize..end as usize]
            };
            let slices = LargeBinaryArray::from_iter_values(samples.iter().map(slice));
            cast(&slices, target)
        }
        _ => token_slices(column, target, samples),
    }
}

/// The tokens of each sample's window, as the same list type.
fn token_slices(
    column: &ArrayRef,
    target: &DataType,
    samples: &[Kept<'_>],
) -> std::result::Result<ArrayRef, ArrowError> {
    let as_list = |item: &Arc<Field>| DataType::LargeList(Arc::clone(item));
    let item = match target {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item,
        other => {
            return Err(ArrowError::NotYetImplemented(format!("windows of {other}")));
        }
    };
    let lists = cast(column, &as_list(item))?;
    let lists = lists.as_list::<i64>();
    let pieces: Vec<ArrayRef> = samples
        .iter()
        .map(|kept| {
            let (start, end) = kept.window.expect("samples of windows have a window").tokens;
            lists.value(kept.position).slice(start as usize, (end - start) as usize)
        })
        .collect();
    let values = concat(&pieces.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>())?;
    let offsets = OffsetBuffer::<i64>::from_lengths(pieces.iter().map(arrow::array::Array::len));
    let list = LargeListArray::try_new(Arc::clone(item), offsets, values, None)?;
    cast(&list, target)
}

/// The type of a column of windows: a dictionary of documents is no dictionary of windows, and windows have no fixed
/// length.
pub(super) fn sliced(documents: &DataType) -> DataType {
    match documents {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        DataType::FixedSizeList(item, _) => DataType::List(Arc::clone(item)),
        other => other.clone(),
    }
}
