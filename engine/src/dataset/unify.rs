//! Determines the common columns of all files of an input.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use super::formats::line_format::LineFormat;
use super::formats::shape::JsonShape;
use super::formats::type_names;
use super::input_file::InputFile;
use super::partitions;
use super::problem::DataProblem;
use super::types;

/// Forms and columns that line files are read with, which they do not record themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinesSchema {
    /// Forms of the lines: `jsonl`, `tsv`.
    pub forms: Vec<&'static str>,
    /// Columns in the notation of `input.schema`.
    pub columns: String,
    pub inferred: bool,
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
    let columns = if let Some(columns) = named {
        columns.clone()
    } else {
        let seen = of_lines().map(|lines| lines.survey.shape.clone());
        let seen = seen.fold(JsonShape::default(), JsonShape::merge);
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
    };
    let columns = Arc::new(Schema::new(columns));
    for file in files.iter_mut().filter(|file| file.lines().is_some()) {
        file.positions = (0..columns.fields().len()).collect();
        file.schema = Arc::clone(&columns);
    }
    Ok(Some(lines))
}

/// Adds string columns for folders named `key=value`, unless any file has a column of that name.
pub(super) fn add_partitions(files: &mut [InputFile]) -> Result<(), Vec<DataProblem>> {
    let mut problems = Vec::new();
    let mut keys = partitions::keys(files.iter().map(|file| file.path.as_str()));
    keys.retain(|key| files.iter().all(|file| file.schema.column_with_name(key).is_none()));
    for file in files.iter_mut().filter(|_| !keys.is_empty()) {
        let added = keys.iter().map(|key| Arc::new(Field::new(key, DataType::Utf8, true)));
        let fields: Vec<FieldRef> = file.schema.fields().iter().cloned().chain(added).collect();
        let metadata = file.schema.metadata().clone();
        file.positions = (0..fields.len()).collect();
        file.schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        file.partitions = Vec::with_capacity(keys.len());
        for key in &keys {
            match partitions::value(&file.path, key) {
                Ok(value) => file.partitions.push(value),
                Err(problem) => problems.push(problem),
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
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
                    .with_hint("all files of an input must have the same columns; only string width and encoding may differ"),
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
