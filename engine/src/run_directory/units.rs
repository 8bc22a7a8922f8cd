//! Records of scored work units: a unit counts once its record exists.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::facts::{Fingerprints, MeasuredBy};
use super::layout::RunDirectory;
use super::seal::sealed;
use crate::base::counts::{Counts, is_zero};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::base::{parallel, text};
use crate::dataset::input::Dataset;
use crate::dataset::part::WrittenPart;
use crate::dataset::units::WorkUnit;
use crate::storage::error::StorageError;
use crate::storage::files::FileDigest;
use crate::storage::{atomic, files};

/// Identity of the input of a unit: after any change, the unit is scored again.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InputIdentity {
    /// Size of the file in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
    /// SHA-256 of the Parquet footer.
    pub footer_hash: String,
    /// Hash of the entity tag of a remote file or of its commit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub version: u64,
}

/// Whether a relative path names something inside its folder.
pub fn is_inside(path: &Path) -> bool {
    let mut components = path.components().peekable();
    components.peek().is_some() && components.all(|part| matches!(part, Component::Normal(_)))
}

/// File that a unit wrote into the run directory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Part {
    /// Path relative to the run directory (or to `data/`).
    pub path: String,
    /// Number of rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
}

impl Part {
    pub fn new(path: String, written: &WrittenPart) -> Self {
        Self { path, rows: written.rows, bytes: written.bytes, sha256: written.sha256.clone() }
    }

    /// Describes a file without rows, called `name` in the run directory.
    pub fn without_rows(name: &str, FileDigest { bytes, sha256 }: FileDigest) -> Self {
        Self { path: name.to_owned(), rows: 0, bytes, sha256 }
    }

    pub fn is_inside(&self) -> bool {
        is_inside(Path::new(&self.path))
    }

    /// Whether the bytes of the part in `folder` are those that were written.
    pub fn is_unchanged(&self, folder: &Path) -> std::result::Result<bool, StorageError> {
        Ok(files::digest(&folder.join(&self.path))?.sha256 == self.sha256)
    }

    /// Whether the part in `folder` has its bytes. Reads them unless `is_recorded`: its size and times are those after the commit.
    pub(crate) fn is_original(
        &self,
        folder: &Path,
        is_recorded: bool,
    ) -> std::result::Result<bool, StorageError> {
        let has_size = || Ok(files::size(&folder.join(&self.path))? == Some(self.bytes));
        Ok(is_recorded || has_size()? && self.is_unchanged(folder)?)
    }

    pub fn all_in_place<'a>(
        parts: impl IntoIterator<Item = &'a Self>,
        folder: &Path,
    ) -> std::result::Result<bool, StorageError> {
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
    /// Range of row groups: the first, and the end (exclusive).
    pub row_groups: (usize, usize),
    /// First row in the file.
    pub first_row: u64,
    /// Identity of the input when it was read.
    pub input: InputIdentity,
    /// Fingerprint of the facts that its windows depend on, except the input.
    pub windows: String,
    /// Measures of its windows, by name.
    pub measures: BTreeMap<String, MeasuredBy>,
    /// Accounting of its rows.
    pub counts: Counts,
    /// Raw statistics.
    pub scores: Part,
    /// Rows without a window to score, if any.
    pub dropped: Option<Part>,
    /// Rows that could not be scored, if any.
    pub quarantine: Option<Part>,
    /// Ranges of rows of the file that cannot be decoded: the first row, and the end (exclusive).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<(u64, u64)>,
}

impl UnitRecord {
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.scores).chain(&self.dropped).chain(&self.quarantine)
    }

    /// Lists counts that do not add up or do not match the files. Each is a bug.
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
        .map(|(what, counted, written)| format!("{what}: {counted} counted, {written} written"))
        .collect();
        violations.extend(counts.check().err());
        violations
    }

    /// Rows that cannot be decoded, ascending and disjoint.
    pub fn unreadable_rows(&self) -> Vec<Range<u64>> {
        self.unreadable.iter().map(|(start, end)| *start..*end).collect()
    }

    /// SHA-256 of the record as committed, on which a selection depends.
    pub fn digest(&self) -> String {
        text::sha256_hex(&serde_json::to_vec(&self.committed()).expect("a record is plain data"))
    }

    /// Returns the record with the names that its files have after the commit of a selection.
    #[must_use]
    pub fn committed(&self) -> Self {
        let mut record = self.clone();
        let more = record.dropped.iter_mut().chain(&mut record.quarantine);
        for part in std::iter::once(&mut record.scores).chain(more) {
            let name = part.path.strip_suffix(".parquet").and_then(|name| name.strip_suffix(NEXT));
            if let Some(name) = name {
                part.path = format!("{name}.parquet");
            }
        }
        record
    }

    /// Whether the record describes the same rows of the same input as a planned unit.
    pub fn is_of(&self, dataset: &Dataset, unit: &WorkUnit) -> bool {
        let rows = (self.row_groups, self.first_row);
        rows == ((unit.row_groups.start, unit.row_groups.end), unit.first_row)
            && self.unit == unit.name()
            && self.input == identity(dataset, unit)
    }

    /// Whether the record has all `wanted` statistics, and no rows were quarantined by other measures.
    pub fn serves(&self, wanted: &Fingerprints) -> bool {
        let has = |(name, measure): (&String, &MeasuredBy)| {
            self.measures.get(name).is_some_and(|own| own.has_statistics(measure))
        };
        let mut others =
            self.measures.iter().filter(|(name, _)| !wanted.measures.contains_key(*name));
        self.windows == wanted.windows
            && wanted.measures.iter().all(has)
            && others.all(|(_, own)| own.quarantined == 0)
    }

    /// Whether the record has the wanted windows but lacks statistics.
    pub fn must_reopen(&self, wanted: &Fingerprints) -> bool {
        self.windows == wanted.windows && !self.serves(wanted)
    }

    /// Upper bound of the windows without statistics, by wanted measure.
    pub fn missing(&self, wanted: &Fingerprints) -> BTreeMap<String, u64> {
        let missing = |(name, measure): (&String, &MeasuredBy)| {
            let own = self.measures.get(name).filter(|own| own.fingerprint == measure.fingerprint);
            let windows = match own {
                Some(own) if own.has_statistics(measure) => 0,
                Some(own) if !own.incomplete => own.not_measured,
                Some(_) | None => self.counts.windows,
            };
            (windows > 0).then(|| (name.clone(), windows))
        };
        wanted.measures.iter().filter_map(missing).collect()
    }
}

/// Planned units, the versions of their input and the settings of their scores, in `plan.json`. Before the first selection, only
/// records that match it count: those of earlier input or settings may exist as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedScores {
    /// Fingerprints of windows and measures.
    pub scores: Fingerprints,
    /// Input of each planned unit, by name.
    pub units: BTreeMap<String, InputIdentity>,
}

impl PlannedScores {
    pub fn new(dataset: &Dataset, units: &[WorkUnit], wanted: &Fingerprints) -> Self {
        let units = units.iter().map(|unit| (unit.name(), identity(dataset, unit)));
        Self { scores: wanted.clone(), units: units.collect() }
    }

    /// Reads the plan of the last run; no units if it is missing or damaged.
    pub fn read(directory: &RunDirectory) -> Result<Self> {
        let plan: Option<WithPlannedScores> = directory.read_intact(&directory.plan())?;
        Ok(plan.map(|plan| plan.planned).unwrap_or_default())
    }

    /// Whether a record is that of a planned unit and has the planned statistics.
    pub fn contains(&self, record: &UnitRecord) -> bool {
        self.units.get(&record.unit) == Some(&record.input) && record.serves(&self.scores)
    }
}

#[derive(Deserialize)]
struct WithPlannedScores {
    planned: PlannedScores,
}

/// Suffix of the names of new files as long as a committed selection needs the old ones. The next commit renames them.
pub(super) const NEXT: &str = "-next";

/// Returns the name of the files that a scoring of `unit` writes. `committed`: paths of the score tables that the committed
/// selection was made from.
pub fn files_name(unit: &WorkUnit, committed: &BTreeSet<String>) -> String {
    let name = unit.name();
    if committed.contains(&scores_path(&name)) { name + NEXT } else { name }
}

pub fn scores_path(files_name: &str) -> String {
    format!("scores/part-{files_name}.parquet")
}

/// Identity of the input of a planned unit.
pub fn identity(dataset: &Dataset, unit: &WorkUnit) -> InputIdentity {
    let file = &dataset.files[unit.file];
    InputIdentity {
        size: file.stamp.size,
        modified_ns: i64::try_from(file.stamp.modified_ns).unwrap_or(i64::MAX),
        footer_hash: file.footer_hash.clone(),
        version: u64::from(file.stamp.version),
    }
}

/// Fingerprint of the windows of a unit: its input, and `windows`, the fingerprint of everything else they depend on.
pub fn fingerprint(dataset: &Dataset, unit: &WorkUnit, windows: &str) -> String {
    let content =
        json!({ "unit": unit.name(), "input": identity(dataset, unit), "windows": windows });
    text::sha256_hex(content.to_string().as_bytes())
}

/// Returns the content of the file of a record.
pub fn to_json(record: &UnitRecord) -> Vec<u8> {
    serde_json::to_vec_pretty(&sealed(record)).expect("a record is plain data")
}

pub fn record_path(directory: &RunDirectory, unit: &str) -> PathBuf {
    directory.units().join(format!("{unit}.json"))
}

/// Reads a record; `None` if it does not exist, is damaged, has no digest or has the name of another unit. Its unit is then
/// scored again.
pub fn read(directory: &RunDirectory, path: &Path) -> Result<Option<UnitRecord>> {
    let record: Option<UnitRecord> = directory.read_intact(path)?;
    Ok(record.filter(|record| record_path(directory, &record.unit).file_name() == path.file_name()))
}

/// Removes the record of a unit whose tables with this name will be replaced, so that a run killed in between scores the unit
/// again. A record that serves stays: another process committed it meanwhile, and its tables have the same bytes.
pub fn remove_record(
    directory: &RunDirectory,
    dataset: &Dataset,
    unit: &WorkUnit,
    wanted: &Fingerprints,
    files_name: &str,
) -> Result<()> {
    let path = record_path(directory, &unit.name());
    let Some(before) = read(directory, &path)? else { return Ok(()) };
    if before.scores.path == scores_path(files_name)
        && !(before.serves(wanted) && is_in_place(directory, dataset, unit, &before)?)
    {
        files::remove_file(&path)?;
    }
    Ok(())
}

/// Returns the records of `units` that have the wanted windows and measures, in order.
pub fn valid_records(
    directory: &RunDirectory,
    dataset: &Dataset,
    units: &[WorkUnit],
    wanted: &Fingerprints,
) -> Result<Vec<Option<UnitRecord>>> {
    let concurrency = directory.concurrency(rayon::current_num_threads());
    parallel::in_order(units.len(), concurrency, |unit| {
        usable_record(directory, dataset, &units[unit], |record| record.serves(wanted))
    })
}

/// Checks the digests of the tables of units, which may be older than this run.
pub fn check_tables(directory: &RunDirectory, records: &[UnitRecord], stop: &Stop) -> Result<()> {
    let concurrency = directory.concurrency(rayon::current_num_threads());
    let parts: Vec<&Part> = records.iter().flat_map(UnitRecord::parts).collect();
    parallel::in_order(parts.len(), concurrency, |index| {
        stop.check()?;
        let part = parts[index];
        let path = directory.root.join(&part.path);
        let found = files::digest(&path)?.sha256;
        if found == part.sha256 {
            return Ok(());
        }
        let message = format!(
            "the table `{}` has changed since it was written: expected SHA-256 {}, got {found}",
            path.display(),
            part.sha256
        );
        let hint = "remove the file and run again: its rows are then scored again";
        Err(Diagnostic::error(Blame::Data, message).hint(hint).into())
    })?;
    Ok(())
}

/// Returns the record of a unit if it has this input, all its files exist, and `accepts` returns `true`.
pub fn usable_record(
    directory: &RunDirectory,
    dataset: &Dataset,
    unit: &WorkUnit,
    accepts: impl Fn(&UnitRecord) -> bool,
) -> Result<Option<UnitRecord>> {
    let record = read(directory, &record_path(directory, &unit.name()))?;
    match record.filter(accepts) {
        Some(record) if is_in_place(directory, dataset, unit, &record)? => Ok(Some(record)),
        _ => Ok(None),
    }
}

/// Whether a record has the input of a unit, and all its files exist.
fn is_in_place(
    directory: &RunDirectory,
    dataset: &Dataset,
    unit: &WorkUnit,
    record: &UnitRecord,
) -> Result<bool> {
    Ok(record.is_of(dataset, unit) && Part::all_in_place(record.parts(), &directory.root)?)
}

/// Lists the records and tables of units that are not among `records`: of earlier input or settings, or of an interrupted run.
pub fn unlisted_files<'r>(
    directory: &RunDirectory,
    records: impl Iterator<Item = &'r UnitRecord>,
) -> Result<Vec<PathBuf>> {
    let files = records.flat_map(|record| {
        let parts = record.parts().map(|part| directory.root.join(&part.path));
        parts.chain([record_path(directory, &record.unit)])
    });
    let listed: HashSet<PathBuf> = files.collect();
    let mut found = directory.unit_files()?;
    found.retain(|path| !listed.contains(path));
    Ok(found)
}

pub fn remove_unlisted_files<'r>(
    directory: &RunDirectory,
    records: impl Iterator<Item = &'r UnitRecord>,
) -> Result<()> {
    let files = unlisted_files(directory, records)?;
    Ok(files.iter().try_for_each(|path| files::remove_file(path))?)
}

/// Reads the records of units; skips records that are damaged.
pub fn records(directory: &RunDirectory) -> Result<Vec<UnitRecord>> {
    Ok(read_all(directory)?.into_iter().filter_map(|(_, record)| record).collect())
}

/// Reads the records of units, each with its path; `None` for records that are damaged.
pub fn read_all(directory: &RunDirectory) -> Result<Vec<(PathBuf, Option<UnitRecord>)>> {
    let mut paths = files::list_if_present(&directory.units())?;
    // A temporary name that could not be removed is a second name of a valid record.
    paths.retain(|path| {
        path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
    });
    let read = parallel::in_order(paths.len(), directory.concurrency(1), |index| {
        read(directory, &paths[index])
    })?;
    Ok(paths.into_iter().zip(read).collect())
}

/// Commits a unit by writing its record. If a valid record exists already, that one counts and is returned: the first of
/// several processes that scored the unit wins.
///
/// # Errors
/// The existing record has other scores, although input and settings are the same. It is removed, and neither counts.
pub fn commit(
    directory: &RunDirectory,
    dataset: &Dataset,
    unit: &WorkUnit,
    wanted: &Fingerprints,
    record: &UnitRecord,
) -> Result<Option<UnitRecord>> {
    let json = to_json(record);
    let path = record_path(directory, &record.unit);
    if atomic::write_new(&path, &json)? {
        return Ok(None);
    }
    let serves = |earlier: &UnitRecord| earlier.serves(wanted);
    let Some(earlier) = usable_record(directory, dataset, unit, serves)? else {
        // A record of an earlier input or of other settings is replaced.
        atomic::write_atomic(&path, &json)?;
        return Ok(None);
    };
    // The tables of one may have the names for a later commit.
    if earlier.committed() == record.committed() {
        return Ok(Some(earlier));
    }
    files::remove_file(&path)?;
    let message = format!(
        "two processes scored unit {} of `{}` and got different bytes ({} and {})",
        record.unit, record.file, earlier.scores.sha256, record.scores.sha256
    );
    Err(Diagnostic::error(Blame::Machine, message)
        .hint("both results are discarded; this may be faulty memory: check the machines, and score the unit again")
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_record_names_are_not_units() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let part = json!({ "path": "scores/part-u.parquet", "rows": 0, "bytes": 0, "sha256": "" });
        let record = json!({
            "unit": "u", "file": "a.parquet", "row_groups": [0, 1], "first_row": 0,
            "input": { "size": 1, "modified_ns": 0, "footer_hash": "" },
            "windows": "", "measures": {}, "counts": Counts::default(), "scores": part,
            "dropped": null, "quarantine": null,
        });
        files::create_folder(&directory.units()).unwrap();
        let path = record_path(&directory, "u");
        let record = sealed(&record).to_string();
        std::fs::write(&path, &record).unwrap();
        std::fs::write(path.with_file_name(".tmp-1-0-u.json"), &record).unwrap();
        assert_eq!(records(&directory).unwrap().len(), 1, "the record itself");
    }
}
