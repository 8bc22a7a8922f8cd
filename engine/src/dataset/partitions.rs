//! Columns from the names of folders: `key=value`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::formats::decode::{Decode, DecodeError, DecodeRequest, Decoded};
use super::problem::DataProblem;

/// Value that Hive and Spark write for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Returns the keys in the folder names of paths, in order of appearance.
pub(super) fn keys<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in paths.flat_map(keys_and_values) {
        if !keys.iter().any(|known| known == key) {
            keys.push(key.to_owned());
        }
    }
    keys
}

pub(super) fn column(key: &str) -> Arc<Field> {
    Arc::new(Field::new(key, DataType::Utf8, true))
}

/// Returns the value of a key in the folder names of a path; `None` for null or a missing key.
///
/// # Errors
/// Two folders have different values.
pub(super) fn value(path: &str, key: &str) -> Result<Option<String>, DataProblem> {
    let mut values = keys_and_values(path).filter(|(name, _)| *name == key).map(|(_, value)| value);
    let Some(value) = values.next() else { return Ok(None) };
    if let Some(other) = values.find(|other| *other != value) {
        let message = format!(
            "two of its folders have different values of `{key}`: `{key}={value}` and `{key}={other}`"
        );
        return Err(DataProblem::settings(message)
            .in_file(path)
            .with_hint("rename one of the folders, or exclude the file with a glob"));
    }
    Ok((value != NULL).then(|| unescaped(value)))
}

/// Returns the keys and values in the folder names of a path, the outermost first.
fn keys_and_values(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').filter_map(|folder| {
        let (key, value) = folder.split_once('=')?;
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
        (!key.is_empty() && key.chars().all(is_name)).then_some((key, value))
    })
}

/// Decodes the escapes (`%2F`) that writers use in folder names.
fn unescaped(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let escaped = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(text).unwrap_or_else(|_| value.to_owned())
}

/// Returns the request for the columns stored in the file itself, which are the first `own`.
pub(super) fn own_columns(wanted: &DecodeRequest, own: usize) -> DecodeRequest {
    let kept = |(position, _): &(&usize, &DataType)| **position < own;
    let pairs = || wanted.positions.iter().zip(&wanted.types).filter(kept);
    let mut wanted = DecodeRequest {
        rows: wanted.rows.clone(),
        positions: pairs().map(|(position, _)| *position).collect(),
        types: pairs().map(|(_, data_type)| data_type.clone()).collect(),
        ..*wanted
    };
    if wanted.positions.is_empty() && own > 0 {
        // One column is read to count its rows.
        wanted.positions.push(0);
        wanted.types.push(DataType::Null);
    }
    wanted
}

/// Decoder that adds constant columns to the batches of a file.
pub(super) struct WithPartitions {
    pub(super) file: Box<dyn Decode>,
    /// Number of requested columns stored in the file itself.
    pub(super) own: usize,
    /// Name and value of each requested partition, in file order.
    pub(super) partitions: Vec<(String, Option<String>)>,
}

impl Decode for WithPartitions {
    fn next(&mut self) -> Result<Option<Decoded>, DecodeError> {
        let Some(Decoded { batch, bad }) = self.file.next()? else { return Ok(None) };
        let rows = batch.num_rows();
        let schema = batch.schema();
        let own = schema.fields().iter().take(self.own).cloned();
        let added = self.partitions.iter();
        let added = added.map(|(key, _)| column(key));
        let schema = Schema::new(own.chain(added).collect::<Vec<_>>());
        let constant = |value: &Option<String>| {
            let values: StringArray = std::iter::repeat_n(value.as_deref(), rows).collect();
            Arc::new(values) as ArrayRef
        };
        let columns = batch.columns().iter().take(self.own).cloned();
        let columns = columns.chain(self.partitions.iter().map(|(_, value)| constant(value)));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch =
            RecordBatch::try_new_with_options(Arc::new(schema), columns.collect(), &options);
        Ok(Some(Decoded { batch: batch.map_err(|error| error.to_string())?, bad }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_name_keys_and_values_with_escapes() {
        let pairs = |path| keys_and_values(path).collect::<Vec<_>>();
        assert_eq!(pairs("lang=en/year=2024/a=b.parquet"), [("lang", "en"), ("year", "2024")]);
        assert_eq!(pairs("=x/(a=c/a b=/plain/f.parquet"), [("a b", "")]);
        let paths = ["a=1/b=2/a=3/x", "c=__HIVE_DEFAULT_PARTITION__/x"];
        assert_eq!(keys(paths.into_iter()), ["a", "b", "c"]);
        let value = |path, key| value(path, key).map_err(|problem| problem.message);
        assert_eq!(value(paths[0], "b"), Ok(Some("2".to_owned())));
        assert_eq!((value(paths[0], "c"), value(paths[1], "c")), (Ok(None), Ok(None)));
        assert_eq!(value("a=1/b=2/a=1/x", "a"), Ok(Some("1".to_owned())));
        assert!(value(paths[0], "a").unwrap_err().contains("values of `a`: `a=1` and `a=3`"));
        assert_eq!(unescaped("a%2Fb%20%zz%"), "a/b %zz%");
    }
}
