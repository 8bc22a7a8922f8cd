//! The columns that all files of an input share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::{FieldRef, Schema, SchemaRef};

use super::footer::InputFile;
use super::problem::DataProblem;
use super::types;

/// Finds the schema of the output and, for each file, where its columns are.
///
/// # Errors
/// For each file that does not fit, one problem with everything that differs from the first.
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
                    .with_hint("files of one input have the same columns; only string width and encoding may differ"),
            ),
        }
    }
    if problems.is_empty() { Ok(Arc::new(Schema::new(fields))) } else { Err(problems) }
}

/// Widens `fields` by those of `file`; returns where in the file each is, or everything that differs.
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
        match types::widest_field(field, &own) {
            Some(wider) => {
                *field = wider;
                positions.push(position);
            }
            None => differences.push(format!(
                "column `{}` is {} here and {} there",
                field.name(),
                own.data_type(),
                field.data_type()
            )),
        }
    }
    let extra = file.schema.fields().iter().filter(|field| !known.contains(field.name()));
    differences
        .extend(extra.map(|field| format!("column `{}` is not in the first file", field.name())));
    if differences.is_empty() { Ok(positions) } else { Err(differences) }
}
