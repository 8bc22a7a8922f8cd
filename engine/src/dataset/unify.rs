//! Determines the common columns of all files of an input.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Scalar, StringArray};
use arrow_cast::{CastOptions, cast, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow_select::zip::zip;

use super::formats::line_format::LineFormat;
use super::formats::shape::JsonShape;
use super::formats::type_names;
use super::input_file::InputFile;
use super::problem::DataProblem;
use super::types;
use crate::base::text;

/// Value that Hive and Spark write for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Forms and columns that line files are read with, which they do not record themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinesSchema {
    /// Forms of the lines: `jsonl`, `tsv`.
    pub forms: Vec<&'static str>,
    /// Columns in the notation of `input.schema`.
    pub columns: String,
    pub inferred: bool,
    /// Named columns and fields that are absent from the first lines, and similar names in these lines.
    pub unseen: Vec<(String, Option<String>)>,
}

/// Sets and returns the columns of line files: those in the pipeline, else inferred ones. `None` without line files.
pub(super) fn set_line_columns(
    files: &mut [InputFile],
    named: Option<&Fields>,
) -> Result<Option<LinesSchema>, DataProblem> {
    let of_lines = || files.iter().filter_map(InputFile::lines);
    let forms: BTreeSet<LineFormat> = of_lines().map(|lines| lines.line_format).collect();
    if forms.is_empty() {
        return Ok(None);
    }
    let seen = of_lines().map(|lines| lines.survey.shape.clone());
    let seen = seen.fold(JsonShape::default(), JsonShape::merge);
    let columns = if let Some(columns) = named {
        columns.clone()
    } else {
        if seen.is_too_wide() {
            return Err(DataProblem::settings(
                "the first lines have too many fields to infer columns: field names seem to be data",
            )
            .with_hint("list the columns that you need in `input.schema`, for example `{id: string, text: string}`"));
        }
        seen.columns()
    };
    let lines = LinesSchema {
        forms: forms.into_iter().map(LineFormat::name).collect(),
        columns: type_names::written(&columns),
        inferred: named.is_none(),
        unseen: named.map_or_else(Vec::new, |named| seen.unseen(named)),
    };
    let columns = Arc::new(Schema::new(columns));
    for file in files.iter_mut().filter(|file| file.lines().is_some()) {
        file.positions = (0..columns.fields().len()).collect();
        file.schema = Arc::clone(&columns);
    }
    Ok(Some(lines))
}

/// Adds string columns for folders named `key=value`, unless any file has a column of that name. Nulls in lines get the values of
/// their folders.
pub(super) fn add_partitions(
    files: &mut [InputFile],
    lines: Option<&mut LinesSchema>,
) -> Result<(), Vec<DataProblem>> {
    let mut keys = partition_keys(files.iter().map(|file| file.path.as_str()));
    let mut problems = Vec::new();
    for file in files.iter_mut() {
        match folder_values(file, &keys) {
            Ok(values) => file.folder_values = values,
            Err(problem) => problems.push(problem),
        }
    }
    let columns = files.first().map(|file| Arc::clone(&file.schema));
    let columns = columns.iter().flat_map(|schema| schema.fields()).map(|field| field.name());
    let columns: Vec<&String> = columns.collect();
    for (index, key) in keys.iter().enumerate() {
        let is_same =
            |other: &&&String| ***other != *key && other.to_lowercase() == key.to_lowercase();
        let mut others = columns.iter().copied().chain(&keys[..index]);
        if let Some(other) = others.find(|other| is_same(&other)) {
            let message = format!(
                "folders are named `{key}=…`, which differs only in case from `{other}`: each would be a column of its own"
            );
            problems.push(DataProblem::settings(message).with_hint("rename the folders"));
        }
    }
    if let Some(lines) = lines {
        lines.unseen.retain(|(name, _)| !keys.contains(name));
    }
    keys.retain(|key| files.iter().all(|file| file.schema.column_with_name(key).is_none()));
    for file in files.iter_mut().filter(|_| !keys.is_empty()) {
        let added = keys.iter().map(|key| Arc::new(Field::new(key, DataType::Utf8, true)));
        let fields: Vec<FieldRef> = file.schema.fields().iter().cloned().chain(added).collect();
        let metadata = file.schema.metadata().clone();
        file.positions = (0..fields.len()).collect();
        file.schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        file.partitions = Vec::with_capacity(keys.len());
        for key in &keys {
            match partition_value(&file.path, key) {
                Ok(value) => file.partitions.push(value),
                Err(problem) => problems.push(problem),
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns the values that replace nulls in a file of lines, by position of their column: those of its folders.
fn folder_values(file: &InputFile, keys: &[String]) -> Result<Vec<(usize, ArrayRef)>, DataProblem> {
    let mut values = Vec::new();
    let Some(lines) = file.lines() else { return Ok(values) };
    for key in keys {
        let Some((position, column)) = file.schema.column_with_name(key) else { continue };
        let Some(value) = partition_value(&file.path, key)? else { continue };
        match value_of_line(&value, column) {
            Some(value) => values.push((position, value)),
            // The column is another one of the same name.
            None if lines.survey.shape.may_have(key) => {}
            None => {
                let data_type = type_names::name(column.data_type());
                let message =
                    format!("the folder `{key}={value}` does not fit its column, {data_type}");
                return Err(DataProblem::settings(message)
                    .in_file(&file.path)
                    .with_hint("correct `input.schema`, or rename the folder"));
            }
        }
    }
    Ok(values)
}

/// Returns the schema of the output and sets each file's column positions, or describes all differences from the first file.
pub(super) fn unify(files: &mut [InputFile]) -> Result<SchemaRef, Vec<DataProblem>> {
    let mut problems = Vec::new();
    let Some((first, others)) = files.split_first_mut() else {
        return Ok(Arc::new(Schema::empty()));
    };
    let mut fields: Vec<FieldRef> = first.schema.fields().iter().map(types::output_field).collect();
    for file in others {
        match merge(&mut fields, file) {
            Ok(positions) => file.positions = positions,
            Err(differences) => problems.push(
                DataProblem::settings(format!("its columns differ from `{}`: {}", first.path, differences.join("; ")))
                    .in_file(&file.path)
                    .with_hint("all files of an input must have the same columns; only the encoding and the width of strings and lists may differ"),
            ),
        }
    }
    if problems.is_empty() { Ok(Arc::new(Schema::new(fields))) } else { Err(problems) }
}

/// Widens `fields` to hold those of `file`. Returns their positions in the file, or all differences.
fn merge(fields: &mut [FieldRef], file: &InputFile) -> Result<Vec<usize>, Vec<String>> {
    let found: BTreeMap<&str, usize> = file
        .schema
        .fields()
        .iter()
        .enumerate()
        .map(|(position, field)| (field.name().as_str(), position))
        .collect();
    let known: BTreeSet<String> = fields.iter().map(|field| field.name().clone()).collect();
    let (mut positions, mut differences) = (Vec::new(), Vec::new());
    for field in fields.iter_mut() {
        let Some(&position) = found.get(field.name().as_str()) else {
            differences.push(format!("column `{}` is missing", field.name()));
            continue;
        };
        let own = types::output_field(&file.schema.fields()[position]);
        if let Some(wider) = types::widest_field(field, &own) {
            *field = wider;
            positions.push(position);
        } else {
            let [mut own_type, mut first] = [&own, &*field].map(types::described);
            if own_type == first {
                [own_type, first] = [&own, &*field].map(|field| field.data_type().to_string());
            }
            differences.push(format!("column `{}` is {own_type} instead of {first}", field.name()));
        }
    }
    let extra = file.schema.fields().iter().filter(|field| !known.contains(field.name()));
    differences
        .extend(extra.map(|field| format!("column `{}` is not in the first file", field.name())));
    if differences.is_empty() { Ok(positions) } else { Err(differences) }
}

/// Returns the keys in the folder names of paths, in order of appearance.
fn partition_keys<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in paths.flat_map(keys_and_values) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Returns the value of a key in the folder names of a path; `None` for null or a missing key. Two values are an error.
fn partition_value(path: &str, key: &str) -> Result<Option<String>, DataProblem> {
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
    Ok((value != NULL).then(|| text::unescaped(value)))
}

/// Returns the keys and values in the folder names of a path, the outermost first.
fn keys_and_values(path: &str) -> impl Iterator<Item = (String, &str)> {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders.split('/').filter_map(|folder| {
        let (key, value) = folder.split_once('=')?;
        (!key.is_empty()).then(|| (text::unescaped(key), value))
    })
}

pub(super) fn partition_column(value: Option<&str>, rows: usize) -> ArrayRef {
    Arc::new(std::iter::repeat_n(value, rows).collect::<StringArray>())
}

/// Converts the value of a folder to the type of a column, if a line could have it there. Nested columns take none.
fn value_of_line(value: &str, column: &Field) -> Option<ArrayRef> {
    if column.data_type().is_nested() {
        return None;
    }
    let columns = Fields::from(vec![column.clone()]);
    let fits = |value: &str| {
        let line = format!("{{{}: {value}}}", serde_json::Value::from(column.name().as_str()));
        LineFormat::Json.fits(&line, &columns)
    };
    let quoted = serde_json::Value::from(value).to_string();
    let is_number = value != "null" && fits(value);
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let text = partition_column(Some(value), 1);
    let converted = cast_with_options(&text, column.data_type(), &strict).ok()?;
    (fits(&quoted) || is_number).then_some(converted)
}

/// Replaces the nulls of an array by the value of a row.
pub(super) fn without_nulls(array: &ArrayRef, value: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let Some(nulls) = array.logical_nulls().filter(|nulls| nulls.null_count() > 0) else {
        return Ok(Arc::clone(array));
    };
    let value = cast(value, array.data_type())?;
    zip(&BooleanArray::new(!nulls.inner(), None), &Scalar::new(value), array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_folders_fit_their_columns_like_those_of_lines() {
        let fits = |value: &str, data_type: &str| {
            let data_type = type_names::parse(data_type).unwrap();
            value_of_line(value, &Field::new("k", data_type, true)).is_some()
        };
        for (value, data_type) in [
            ("en", "string"),
            ("null", "string"),
            ("7", "int8"),
            ("-1", "int64"),
            ("0.5", "float32"),
            ("1", "float64"),
            ("true", "bool"),
            ("2024-02-29", "date"),
            ("2024-02-29T12:00:00", "timestamp"),
        ] {
            assert!(fits(value, data_type), "{value} {data_type}");
        }
        for (value, data_type) in [
            ("300", "int8"),
            ("1.5", "int64"),
            ("null", "int64"),
            ("16777217", "float32"),
            ("1e999", "float64"),
            ("yes", "bool"),
            ("1", "bool"),
            ("2024-02-30", "date"),
            ("2024-02-29T12:00:00+02:00", "timestamp"),
            ("2024-02-29T12:00:00", "timestamptz"),
            ("x", "struct<a: string>"),
            ("[\"a\"]", "list<string>"),
        ] {
            assert!(!fits(value, data_type), "{value} {data_type}");
        }
    }

    #[test]
    fn folders_name_keys_and_values_with_escapes() {
        let is = |path, expected: &[(&str, &str)]| {
            let found = keys_and_values(path).collect::<Vec<_>>();
            found.iter().map(|(key, value)| (key.as_str(), *value)).eq(expected.iter().copied())
        };
        assert!(is("lang=en/year=2024/a=b.parquet", &[("lang", "en"), ("year", "2024")]));
        assert!(is("=x/size (MB)=c/a b=/plain/f.parquet", &[("size (MB)", "c"), ("a b", "")]));
        assert!(is("a%3Ab=1/f.parquet", &[("a:b", "1")]));
        let paths = ["a=1/b=2/a=3/x", "c=__HIVE_DEFAULT_PARTITION__/x"];
        assert_eq!(partition_keys(paths.into_iter()), ["a", "b", "c"]);
        let value = |path, key| partition_value(path, key).map_err(|problem| problem.message);
        assert_eq!(value(paths[0], "b"), Ok(Some("2".to_owned())));
        assert_eq!((value(paths[0], "c"), value(paths[1], "c")), (Ok(None), Ok(None)));
        assert_eq!(value("a=1/b=2/a=1/x", "a"), Ok(Some("1".to_owned())));
        assert!(value(paths[0], "a").unwrap_err().contains("values of `a`: `a=1` and `a=3`"));
        assert_eq!(text::unescaped("a%2Fb%20%zz%+f%"), "a/b %zz%+f%");
    }
}
