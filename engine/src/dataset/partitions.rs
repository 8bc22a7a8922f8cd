//! Columns from the names of folders: `key=value`.

use std::sync::Arc;

use arrow_array::{ArrayRef, StringArray};

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

/// Returns the value of a key in the folder names of a path; `None` for null or a missing key. Two values are an error.
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
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(text).unwrap_or_else(|_| value.to_owned())
}

pub(super) fn constant(value: Option<&str>, rows: usize) -> ArrayRef {
    Arc::new(std::iter::repeat_n(value, rows).collect::<StringArray>())
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
        assert_eq!(unescaped("a%2Fb%20%zz%+f%"), "a/b %zz%+f%");
    }
}
