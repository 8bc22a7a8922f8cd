//! Settings for reading the pipeline's input.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{Field, Fields};

use super::Plan;
use super::findings::Findings;
use crate::base::diagnostic::Diagnostic;
use crate::base::error::Result;
use crate::dataset::footer_cache::FooterCache;
use crate::dataset::formats::type_names;
use crate::dataset::input::Dataset;
use crate::dataset::input_file::ReadSettings;
use crate::run_directory::layout::RunDirectory;
use crate::storage::files;

/// Returns the settings for reading the input; `None` if they are invalid.
pub(super) fn reading(
    cache_folder: &Path,
    footers: Option<&Path>,
    found: &mut Findings<'_>,
) -> Option<ReadSettings> {
    let spec = found.spec;
    let input = &spec.pipeline.input;
    let columns = match &input.schema {
        Some(columns) => Some(fields(columns, found)?),
        None => None,
    };
    let output = spec.resolve(&spec.pipeline.output.path).to_path_buf();
    let directory = RunDirectory::for_output(&output);
    Some(ReadSettings {
        on_bad_file: input.on_bad_file,
        format: input.format,
        columns,
        // Lines or values longer than any document are useless, and compressed bytes, values and a copy of them are in
        // memory at once. The limit must not depend on the machine, because it decides which rows are quarantined.
        max_part_bytes: 4 * input.max_document_bytes,
        cache_folder: Some(cache_folder.to_owned()),
        footers: footers.and_then(FooterCache::read).map(Arc::new),
        results: vec![directory.data(), directory.root],
    })
}

impl Plan {
    /// Writes the footers of the input for other processes of the same job ([`super::options::PlanOptions::footers`])
    /// and returns the file's path. Cost: reads every footer again.
    pub fn write_footer_cache(&self) -> Result<PathBuf> {
        files::create_folder(&self.directory.root)?;
        let path = self.directory.footers();
        self.dataset.write_footers(&path).map_err(Diagnostic::from)?;
        Ok(files::canonical(&path)?)
    }
}

/// Returns the columns of JSON lines in the pipeline; `None` if a type is invalid.
fn fields(columns: &BTreeMap<String, String>, found: &mut Findings<'_>) -> Option<Fields> {
    let fields = columns.iter().map(|(name, data_type)| match type_names::parse(data_type) {
        Ok(data_type) => Some(Field::new(name, data_type, true)),
        Err(why) => {
            found.add([found.spec.error(&format!("input.schema.{name}"), why)]);
            None
        }
    });
    // All columns are parsed, to report each mistake.
    fields.collect::<Vec<_>>().into_iter().collect()
}

pub(super) fn check(dataset: &Dataset, found: &mut Findings<'_>) {
    if dataset.files.is_empty() {
        return;
    }
    if found.spec.pipeline.input.schema.is_some() && dataset.lines.is_none() {
        let message = "no file of the input has lines of JSON";
        found.error(
            "input.schema",
            message,
            "remove `schema`: Parquet files contain their columns",
        );
    }
    if dataset.lines.is_some() && dataset.schema.fields().is_empty() {
        let message = "the input has no lines, so its columns are unknown";
        let hint = "list the columns in `input.schema`, or exclude empty files";
        found.error("input.path", message, hint);
    }
}
