//! Reopens finished units: to retry quarantined rows, and for measures that were added or changed. Statistics that are still
//! needed are kept, as if the unit had been stopped after computing them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use longsift_stages::contract::{StatisticValues, Value};

use super::journal::{Header, Journal, NOT_MEASURED, RetainedMeasure, StatisticsKey};
use crate::base::error::Result;
use crate::dataset::units::WorkUnit;
use crate::plan::Plan;
use crate::run_directory::facts::{Fingerprints, MeasuredBy};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::{self, MeasureColumns};
use crate::run_directory::units::{self, UnitRecord};
use crate::storage::files;

pub(super) struct OpenJournal {
    pub(super) journal: Journal,
    pub(super) finished: HashMap<StatisticsKey, StatisticValues>,
    /// Measures whose indexes follow those of the plan.
    pub(super) retained: Vec<RetainedMeasure>,
}

/// Opens the journal of a unit.
///
/// `retained`: measures to retain in addition to those of the plan and those in the journal. `None` if other processes are
/// active, which must produce the same parts; `Some` implies exclusive access.
pub(super) fn open_journal(
    plan: &Plan,
    directory: &RunDirectory,
    wanted: &Fingerprints,
    unit: &WorkUnit,
    retained: Option<Vec<RetainedMeasure>>,
) -> Result<OpenJournal> {
    let measures = plan.measures.columns.iter().map(|columns| {
        let fingerprint = wanted.measures[&columns.measure].fingerprint.clone();
        RetainedMeasure::unfinished(columns.clone(), fingerprint)
    });
    let windows = units::fingerprint(&plan.dataset, unit, &wanted.windows);
    let path = journal_path(directory, unit);
    let exclusive = retained.is_some();
    let retained = match retained {
        Some(more) => {
            let known = Header::measures_at(&path, &windows)?;
            without_conflicts(more.into_iter().chain(known), &plan.measures.columns)
        }
        None => Vec::new(),
    };
    let header = Header { windows, measures: measures.collect(), retained: retained.clone() };
    let (journal, finished) = Journal::open(&path, &header, exclusive)?;
    Ok(OpenJournal { journal, finished, retained })
}

fn journal_path(directory: &RunDirectory, unit: &WorkUnit) -> PathBuf {
    directory.journal().join(unit.name())
}

/// Reopens every unit with quarantined rows: its statistics go to its journal and are not computed again. Removes the records
/// of these units, so that a run that is stopped here resumes. Returns the number of rows to retry.
pub fn reopen_quarantined(
    plan: &Plan,
    directory: &RunDirectory,
    valid: &mut [Option<UnitRecord>],
    wanted: &Fingerprints,
) -> Result<u64> {
    let mut rows = 0;
    for (unit, slot) in plan.units.iter().zip(valid) {
        let Some(record) = slot.take_if(|record| record.counts.quarantined_rows() > 0) else {
            continue;
        };
        rows += record.counts.quarantined_rows();
        reopen(plan, directory, wanted, unit, &record, true)?;
        files::remove_file(&units::record_path(directory, &record.unit))?;
    }
    files::fsync_folder(&directory.units())?;
    Ok(rows)
}

/// Reopens every unit whose record has the wanted windows but not the statistics of all measures: the existing statistics go to
/// its journal, and only the others are computed. The record stays until the unit is scored: a run that fails before, for
/// example because a program does not start, loses nothing.
///
/// If other processes are active, only the process that has locked a unit's journal reopens the unit. With `exclusive` access,
/// statistics of measures that the plan does not have are retained as well.
pub fn reopen_for_measures(
    plan: &Plan,
    directory: &RunDirectory,
    valid: &[Option<UnitRecord>],
    wanted: &Fingerprints,
    exclusive: bool,
) -> Result<()> {
    for (unit, slot) in plan.units.iter().zip(valid) {
        if slot.is_some() {
            continue;
        }
        let must_reopen = |record: &UnitRecord| record.must_reopen(wanted);
        let found = units::usable_record(directory, &plan.dataset, unit, must_reopen)?;
        if let Some(record) = found {
            reopen(plan, directory, wanted, unit, &record, exclusive)?;
        }
    }
    Ok(())
}

/// Copies the wanted statistics of a record into the unit's journal and syncs it. Without `exclusive` access, does nothing if
/// another process has locked the journal, or has replaced the record since it was read.
fn reopen(
    plan: &Plan,
    directory: &RunDirectory,
    wanted: &Fingerprints,
    unit: &WorkUnit,
    record: &UnitRecord,
    exclusive: bool,
) -> Result<()> {
    let path = directory.root.join(&record.scores.path);
    // A damaged score file is measured again.
    let is_whole = record.scores.is_unchanged(&directory.root)?;
    let retained = match (exclusive, is_whole) {
        (true, true) => Some(retained_measures(&path, record, &plan.measures.columns)?),
        (true, false) => Some(Vec::new()),
        (false, _) => None,
    };
    let OpenJournal { mut journal, finished, retained } =
        open_journal(plan, directory, wanted, unit, retained)?;
    let record_path = units::record_path(directory, &record.unit);
    let is_current =
        || units::read(directory, &record_path).map(|now| now.as_ref() == Some(record));
    if !exclusive && (journal.path != journal_path(directory, unit) || !is_current()?) {
        if finished.is_empty() {
            files::remove_file(&journal.path)?;
        }
        return Ok(());
    }
    if is_whole {
        copy_statistics(plan, wanted, record, &path, &retained, &finished, &mut journal)?;
    }
    Ok(())
}

/// Copies statistics of a record's part into the journal, of measures that are planned or retained. For windows without any,
/// writes a marker for retained measures, which are not going to run. `finished`: statistics that the journal has already.
fn copy_statistics(
    plan: &Plan,
    wanted: &Fingerprints,
    record: &UnitRecord,
    path: &Path,
    retained: &[RetainedMeasure],
    finished: &HashMap<StatisticsKey, StatisticValues>,
    journal: &mut Journal,
) -> Result<()> {
    let planned = plan.measures.columns.iter();
    let planned =
        planned.map(|columns| (columns.clone(), &wanted.measures[&columns.measure].fingerprint));
    let retained = retained.iter().map(|measure| (measure.columns(), &measure.by.fingerprint));
    let mut kept = Vec::new();
    let mut kept_headers = Vec::new();
    for (header_index, (columns, fingerprint)) in planned.chain(retained).enumerate() {
        let measured = record.measures.get(&columns.measure);
        if let Some(measured) = measured.filter(|by| by.fingerprint == *fingerprint) {
            kept.push(columns);
            kept_headers.push((header_index, measured.covers_all_windows()));
        }
    }
    scores::read_statistics(path, &kept, |row, window, index, values| {
        let (header_index, covers_all_windows) = kept_headers[index];
        let has_values = covers_all_windows || values.0.iter().any(|value| *value != Value::Null);
        let key = ((row, window), header_index as u16);
        if finished.contains_key(&key) {
            Ok(())
        } else if has_values {
            journal.append(key, &values)
        } else if header_index >= plan.measures.columns.len() {
            journal.append(key, &NOT_MEASURED)
        } else {
            Ok(())
        }
    })?;
    journal.sync()
}

/// Returns the measures of a record that are not among `planned`, with their columns in the record's part `path`. A measure
/// that quarantined rows is incomplete: it lacks the statistics of those rows.
fn retained_measures(
    path: &Path,
    record: &UnitRecord,
    planned: &[MeasureColumns],
) -> Result<Vec<RetainedMeasure>> {
    let is_planned = |name: &str| planned.iter().any(|measure| measure.measure == name);
    if record.measures.keys().all(|name| is_planned(name)) {
        return Ok(Vec::new());
    }
    let retained =
        scores::measures(path)?.into_iter().filter_map(|MeasureColumns { measure, columns }| {
            let by = record.measures.get(&measure)?.clone();
            let by = MeasuredBy {
                incomplete: by.incomplete || by.quarantined > 0,
                quarantined: 0,
                ..by
            };
            Some(RetainedMeasure { measure, by, columns })
        });
    Ok(without_conflicts(retained, planned))
}

/// Drops duplicates and all measures whose name or columns collide with those of a planned measure.
fn without_conflicts(
    retained: impl IntoIterator<Item = RetainedMeasure>,
    planned: &[MeasureColumns],
) -> Vec<RetainedMeasure> {
    let mut taken: Vec<String> = Vec::new();
    for MeasureColumns { measure, columns } in planned {
        taken.push(measure.clone());
        taken.extend(columns.iter().map(|column| column.name.clone().into_owned()));
    }
    let mut left = Vec::new();
    for measure in retained {
        let names = measure.columns.iter().map(|column| column.name.clone().into_owned());
        let names: Vec<String> = names.chain([measure.measure.clone()]).collect();
        if names.iter().all(|name| !taken.contains(name)) {
            taken.extend(names);
            left.push(measure);
        }
    }
    left
}
