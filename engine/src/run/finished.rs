//! What a directory already holds: a finished selection, and files that are not ours.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files;
use crate::manifest::Manifest;
use crate::parallel;
use crate::plan::{Plan, identity};
use crate::report::Summary;
use crate::run_directory::RunDirectory;
use crate::units::{Part, UnitRecord};

/// What decides whether a finished selection is still the one the pipeline asks for.
pub(super) fn selection_fingerprint(
    plan: &Plan,
    select_settings: &Map<String, Value>,
    records: &[UnitRecord],
) -> String {
    let units: Vec<Value> = records
        .iter()
        .map(|record| json!([record.unit, record.input.footer_hash, record.scores.sha256]))
        .collect();
    let mut content = json!({ "settings": select_settings, "units": units });
    if !plan.dataset.bad_files.is_empty() {
        let bad = plan.dataset.bad_files.iter();
        content["bad_files"] =
            bad.map(|file| json!([file.path, file.size, file.problem.message])).collect();
    }
    files::sha256_hex(content.to_string().as_bytes())
}

/// The summary of the finished run, if this plan asks for exactly what it did and all its files are in place.
pub fn finished(plan: &Plan, standing: &[Option<UnitRecord>]) -> Result<Option<Summary>> {
    let directory = &plan.directory;
    let Some(manifest) = Manifest::read(directory)? else { return Ok(None) };
    let records: Vec<UnitRecord> = standing.iter().flatten().cloned().collect();
    let select_settings =
        identity::select_settings(plan, identity::calibration_digest(plan)?.as_deref());
    let same = records.len() == plan.units.len()
        && manifest.selection_fingerprint
            == selection_fingerprint(plan, &select_settings, &records)
        && are_in_place(&manifest.data, &directory.data())?
        && files::size(&directory.success())?.is_some();
    if !same {
        return Ok(None);
    }
    let Some(bytes) = files::read_if_present(&directory.summary())? else { return Ok(None) };
    Ok(serde_json::from_slice(&bytes).ok())
}

fn are_in_place(parts: &[Part], folder: &Path) -> Result<bool> {
    let in_place = parallel::in_order(parts.len(), files::at_once(folder, 1), |index| {
        Ok(Part::all_in_place([&parts[index]], folder)?)
    })?;
    Ok(in_place.into_iter().all(|in_place| in_place))
}

/// The names of the data files that runs of this directory wrote. A damaged manifest is no obstacle to a fresh start.
pub(super) fn data_files(directory: &RunDirectory, fresh: bool) -> Result<Vec<String>> {
    let manifest = match Manifest::read(directory) {
        Err(_) if fresh => None,
        read => read?,
    };
    Ok(manifest.map_or(Vec::new(), |manifest| manifest.data_names()))
}

/// Parquet files in `data/` that no run of this directory wrote would be mixed with the output.
pub(super) fn refuse_foreign_data(directory: &RunDirectory, ours: &[String]) -> Result<()> {
    let ours: HashSet<&String> = ours.iter().collect();
    let foreign: Vec<String> = files::list_if_present(&directory.data())?
        .iter()
        .filter_map(|path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned))
        .filter(|name| !name.starts_with('.') && !ours.contains(name))
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(Diagnostic::error(
        Blame::Pipeline,
        format!(
            "`{}` holds {} files that no run of this output wrote, `{}` for one",
            directory.data().display(),
            foreign.len(),
            foreign[0]
        ),
    )
    .hint("move them away, or give the pipeline another `output.path`")
    .into())
}
