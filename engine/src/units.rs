//! The records of scored work units: a unit counts once its record stands.

use std::ops::Range;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::accounting::Counts;
use crate::dataset::{Dataset, WorkUnit, WrittenPart};
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files::{self, FileError};
use crate::parallel;
use crate::run_directory::RunDirectory;

/// What identifies the input of a unit: if any of it changes, the unit is scored anew.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InputIdentity {
    /// Size of the file in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
    /// SHA-256 of the Parquet footer.
    pub footer_hash: String,
}

/// A file that a unit wrote into the run directory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Part {
    /// Path below the run directory (or below `data/`).
    pub path: String,
    /// Rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
}

impl Part {
    /// The part behind a file that was just written.
    pub fn new(path: String, written: &WrittenPart) -> Self {
        Self { path, rows: written.rows, bytes: written.bytes, sha256: written.sha256.clone() }
    }

    /// Whether each part is below `folder`, with its size.
    pub fn all_in_place<'a>(
        parts: impl IntoIterator<Item = &'a Self>,
        folder: &Path,
    ) -> std::result::Result<bool, FileError> {
        for part in parts {
            if files::size(&folder.join(&part.path))? != Some(part.bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The record of a scored unit, `units/<unit>.json`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct UnitRecord {
    /// Name of the unit.
    pub unit: String,
    /// Input file, relative to the input root.
    pub file: String,
    /// First row group and the one behind the last.
    pub row_groups: (usize, usize),
    /// First row in the file.
    pub first_row: u64,
    /// The input as it was when it was read.
    pub input: InputIdentity,
    /// Everything a score depends on besides the input.
    pub score_fingerprint: String,
    /// Where the rows went.
    pub counts: Counts,
    /// The raw statistics.
    pub scores: Part,
    /// Rows without a window to score, if any.
    pub dropped: Option<Part>,
    /// Rows that could not be scored, if any.
    pub quarantine: Option<Part>,
    /// Runs of rows of the file that do not decode: the first row and the one behind the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<(u64, u64)>,
}

impl UnitRecord {
    /// The files of the record, below the run directory.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.scores).chain(&self.dropped).chain(&self.quarantine)
    }

    /// Where the counts do not add up, or are not those of the files. Each is a bug.
    pub fn violations(&self) -> Vec<String> {
        let rows = |part: &Option<Part>| part.as_ref().map_or(0, |part| part.rows);
        let counts = &self.counts;
        let mut violations: Vec<String> = [
            ("windows", counts.windows, self.scores.rows),
            ("dropped rows", counts.rows_dropped.values().sum(), rows(&self.dropped)),
            ("quarantined rows", counts.quarantined_rows(), rows(&self.quarantine)),
        ]
        .into_iter()
        .filter(|(_, counted, written)| counted != written)
        .map(|(what, counted, written)| {
            format!("{counted} {what} are counted, {written} are written")
        })
        .collect();
        violations.extend(counts.check().err());
        violations
    }

    /// The rows that do not decode, ascending and disjoint.
    pub fn unreadable_rows(&self) -> Vec<Range<u64>> {
        self.unreadable.iter().map(|(start, end)| *start..*end).collect()
    }

    /// Whether the record still describes `unit` as it is now, with all its files in place.
    fn stands(
        &self,
        directory: &RunDirectory,
        dataset: &Dataset,
        unit: &WorkUnit,
        fingerprint: &str,
    ) -> Result<bool> {
        if self.score_fingerprint != fingerprint || self.input != identity(dataset, unit) {
            return Ok(false);
        }
        Ok(Part::all_in_place(self.parts(), &directory.root)?)
    }
}

/// The identity of a unit's input as planned.
pub fn identity(dataset: &Dataset, unit: &WorkUnit) -> InputIdentity {
    let file = &dataset.files[unit.file];
    InputIdentity {
        size: file.size,
        modified_ns: i64::try_from(file.modified_ns).unwrap_or(i64::MAX),
        footer_hash: file.footer_hash.clone(),
    }
}

/// What a journal of a unit belongs to: the input, and everything its scores depend on.
pub fn fingerprint(dataset: &Dataset, unit: &WorkUnit, score_fingerprint: &str) -> String {
    let content = json!({ "unit": unit.name(), "input": identity(dataset, unit), "scores": score_fingerprint });
    files::sha256_hex(content.to_string().as_bytes())
}

/// The path of a unit's record.
pub fn record_path(directory: &RunDirectory, unit: &str) -> PathBuf {
    directory.units().join(format!("{unit}.json"))
}

/// For each unit, its record if it still stands.
pub fn standing(
    directory: &RunDirectory,
    dataset: &Dataset,
    units: &[WorkUnit],
    score_fingerprint: &str,
) -> Result<Vec<Option<UnitRecord>>> {
    let at_once = files::at_once(&directory.root, rayon::current_num_threads());
    parallel::in_order(units.len(), at_once, |unit| {
        standing_of(directory, dataset, &units[unit], score_fingerprint)
    })
}

/// The record of one unit if it still stands.
pub fn standing_of(
    directory: &RunDirectory,
    dataset: &Dataset,
    unit: &WorkUnit,
    score_fingerprint: &str,
) -> Result<Option<UnitRecord>> {
    let bytes = files::read_if_present(&record_path(directory, &unit.name()))?;
    let record = bytes.and_then(|bytes| serde_json::from_slice::<UnitRecord>(&bytes).ok());
    match record {
        Some(record) if record.stands(directory, dataset, unit, score_fingerprint)? => {
            Ok(Some(record))
        }
        _ => Ok(None),
    }
}

/// The records of units that the plan no longer has: their input file is gone, or cut differently.
pub fn stale(directory: &RunDirectory, units: &[WorkUnit]) -> Result<Vec<UnitRecord>> {
    let current: std::collections::HashSet<String> = units.iter().map(WorkUnit::name).collect();
    records(directory, |unit| !current.contains(unit))
}

/// The readable records of a run directory whose unit's name is `wanted`.
pub fn records(directory: &RunDirectory, wanted: impl Fn(&str) -> bool) -> Result<Vec<UnitRecord>> {
    let mut paths = files::list_if_present(&directory.units())?;
    paths.retain(|path| {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        name.filter(|name| is_unit(name)).is_some_and(&wanted)
    });
    let records = parallel::in_order(paths.len(), files::at_once(&directory.root, 1), |index| {
        let bytes = files::read_if_present(&paths[index])?.unwrap_or_default();
        Ok(serde_json::from_slice::<UnitRecord>(&bytes).ok())
    })?;
    Ok(records.into_iter().flatten().collect())
}

/// Whether a name is that of a unit. The temporary name of a record that could not be removed is another name of a record
/// that counts.
fn is_unit(name: &str) -> bool {
    !name.starts_with('.')
}

/// Makes a unit count: writes its record. If a record that stands is there already, that one counts and is returned:
/// of several processes that scored a unit the first to get here wins.
///
/// # Errors
/// The earlier record has other scores, although it was made from the same input with the same settings. Then neither
/// counts any more.
pub fn commit(
    directory: &RunDirectory,
    dataset: &Dataset,
    unit: &WorkUnit,
    record: &UnitRecord,
) -> Result<Option<UnitRecord>> {
    let json = serde_json::to_vec_pretty(record).expect("a record is plain data");
    let path = record_path(directory, &record.unit);
    if files::write_new(&path, &json)? {
        return Ok(None);
    }
    let Some(earlier) = standing_of(directory, dataset, unit, &record.score_fingerprint)? else {
        // A record of an earlier input or of other settings: it is replaced.
        files::write_atomic(&path, &json)?;
        return Ok(None);
    };
    if earlier == *record {
        return Ok(Some(earlier));
    }
    files::remove_file(&path)?;
    let message = format!(
        "two processes scored unit {} of `{}` and got different bytes ({} and {})",
        record.unit, record.file, earlier.scores.sha256, record.scores.sha256
    );
    Err(Diagnostic::error(Blame::Machine, message)
        .hint("neither counts; check the memory of the machines, and score the unit again")
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_under_a_temporary_name_is_not_that_of_a_unit_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::of_output(&folder.path().join("out"));
        let part = json!({ "path": "scores/part-u.parquet", "rows": 0, "bytes": 0, "sha256": "" });
        let record = json!({
            "unit": "u", "file": "a.parquet", "row_groups": [0, 1], "first_row": 0,
            "input": { "size": 1, "modified_ns": 0, "footer_hash": "" },
            "score_fingerprint": "", "counts": Counts::default(), "scores": part,
            "dropped": null, "quarantine": null,
        });
        files::create_folder(&directory.units()).unwrap();
        let path = record_path(&directory, "u");
        std::fs::write(&path, record.to_string()).unwrap();
        std::fs::write(path.with_file_name(".tmp-1-0-u.json"), record.to_string()).unwrap();
        let gone = stale(&directory, &[]).unwrap();
        assert_eq!(gone.len(), 1, "the record itself");
        assert_eq!(records(&directory, |unit| unit != "u").unwrap(), Vec::new());
    }
}
