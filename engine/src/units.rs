//! The records of scored work units: a unit counts once its record stands.

use std::ops::Range;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::accounting::Counts;
use crate::dataset::{Dataset, WorkUnit, WrittenPart};
use crate::error::Result;
use crate::files;
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
    ) -> bool {
        self.score_fingerprint == fingerprint
            && self.input == identity(dataset, unit)
            && self
                .parts()
                .all(|part| files::size(&directory.root.join(&part.path)) == Some(part.bytes))
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
    units
        .iter()
        .map(|unit| {
            let bytes = files::read_if_present(&record_path(directory, &unit.name()))?;
            let record = bytes.and_then(|bytes| serde_json::from_slice::<UnitRecord>(&bytes).ok());
            Ok(record.filter(|record| record.stands(directory, dataset, unit, score_fingerprint)))
        })
        .collect()
}

/// The records of units that the plan no longer has: their input file is gone, or cut differently.
pub fn stale(directory: &RunDirectory, units: &[WorkUnit]) -> Result<Vec<UnitRecord>> {
    let current: std::collections::HashSet<String> = units.iter().map(WorkUnit::name).collect();
    records(directory, |unit| !current.contains(unit))
}

/// The readable records of a run directory whose unit's name is `wanted`.
pub fn records(directory: &RunDirectory, wanted: impl Fn(&str) -> bool) -> Result<Vec<UnitRecord>> {
    let mut records = Vec::new();
    for path in files::list_if_present(&directory.units())? {
        if path.file_stem().and_then(|stem| stem.to_str()).is_some_and(&wanted) {
            let bytes = files::read_if_present(&path)?.unwrap_or_default();
            records.extend(serde_json::from_slice::<UnitRecord>(&bytes).ok());
        }
    }
    Ok(records)
}

/// Makes a unit count: writes its record.
pub fn commit(directory: &RunDirectory, record: &UnitRecord) -> Result<()> {
    let json = serde_json::to_vec_pretty(record).expect("a record is plain data");
    files::write_atomic(&record_path(directory, &record.unit), &json)?;
    Ok(())
}
