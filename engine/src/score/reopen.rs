//! Units opened again: as if they had been stopped behind the figures that they have and that are still wanted. For
//! quarantined rows that are tried again, and for measures that have come or changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use longsift_stages::contract::{Figures, Value};

use super::carried::{self, Carried};
use super::journal::{FigureKey, Header, Journal, NOT_MEASURED};
use crate::base::error::Result;
use crate::dataset::units::WorkUnit;
use crate::plan::Plan;
use crate::run_directory::facts::Fingerprints;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores;
use crate::run_directory::units::{self, UnitRecord};
use crate::storage::files;

/// The journal of a unit.
pub(super) struct OpenJournal {
    pub(super) journal: Journal,
    /// The figures that it holds.
    pub(super) finished: HashMap<FigureKey, Figures>,
    /// The measures whose places are behind those of the plan.
    pub(super) carried: Vec<Carried>,
}

/// Opens the journal of a unit. `carried`: what it is to keep besides the measures of the plan and what it keeps already; none
/// beside other processes, whose parts of a unit must be the same: that there is a list says that this one is alone.
pub(super) fn open_journal(
    plan: &Plan,
    directory: &RunDirectory,
    wanted: &Fingerprints,
    unit: &WorkUnit,
    carried: Option<Vec<Carried>>,
) -> Result<OpenJournal> {
    let measures = plan.measures.columns.iter().map(|columns| {
        let fingerprint = wanted.measures[&columns.measure].fingerprint.clone();
        Carried::unfinished(columns.clone(), fingerprint)
    });
    let windows = units::fingerprint(&plan.dataset, unit, &wanted.windows);
    let path = journal_path(directory, unit);
    let alone = carried.is_some();
    let carried = match carried {
        Some(more) => {
            let known = Header::measures_at(&path, &windows)?;
            carried::left(more.into_iter().chain(known), &plan.measures.columns)
        }
        None => Vec::new(),
    };
    let header = Header { windows, measures: measures.collect(), carried: carried.clone() };
    let (journal, finished) = Journal::open(&path, &header, alone)?;
    Ok(OpenJournal { journal, finished, carried })
}

fn journal_path(directory: &RunDirectory, unit: &WorkUnit) -> PathBuf {
    directory.journal().join(unit.name())
}

/// Opens every unit with quarantined rows again; what it measured goes to its journal and is not measured twice. The
/// records of these units go, so that a run which is stopped here resumes by itself. Returns how many rows are tried.
pub fn reopen_quarantined(
    plan: &Plan,
    directory: &RunDirectory,
    standing: &mut [Option<UnitRecord>],
    wanted: &Fingerprints,
) -> Result<u64> {
    let mut rows = 0;
    for (unit, slot) in plan.units.iter().zip(standing) {
        let Some(record) = slot.take_if(|record| record.counts.quarantined_rows() > 0) else {
            continue;
        };
        rows += record.counts.quarantined_rows();
        reopen(plan, directory, wanted, unit, &record, true, None)?;
    }
    files::fsync_folder(&directory.units())?;
    Ok(rows)
}

/// Opens every unit again whose record has the windows that are wanted, but not the figures of all measures: those that it
/// has go to its journal, and only the others are measured. Beside other processes: whoever has the journal of a unit opens
/// it again or works on it, and leaves a record that is not to be opened again. `alone`: there are no others, and figures of
/// measures that the plan does not have are kept, too.
pub fn reopen_for_measures(
    plan: &Plan,
    directory: &RunDirectory,
    standing: &[Option<UnitRecord>],
    wanted: &Fingerprints,
    alone: bool,
) -> Result<()> {
    let mut any = false;
    for (unit, slot) in plan.units.iter().zip(standing) {
        if slot.is_some() {
            continue;
        }
        let found = || units::to_reopen(directory, &plan.dataset, unit, wanted);
        if let Some(record) = found()? {
            let still_stands = || Ok(found()?.as_ref() == Some(&record));
            any |= reopen(plan, directory, wanted, unit, &record, alone, Some(&still_stands))?;
        }
    }
    if any { Ok(files::fsync_folder(&directory.units())?) } else { Ok(()) }
}

/// Puts those figures of a record that are wanted into the unit's journal, durably, and removes the record. Beside other
/// processes it does nothing, and says so, where one of them has the journal or has had it since the record was read.
fn reopen(
    plan: &Plan,
    directory: &RunDirectory,
    wanted: &Fingerprints,
    unit: &WorkUnit,
    record: &UnitRecord,
    alone: bool,
    still_stands: Option<&dyn Fn() -> Result<bool>>,
) -> Result<bool> {
    let path = directory.root.join(&record.scores.path);
    // Figures that changed since they were written are measured again.
    let is_whole = files::digest(&path)?.sha256 == record.scores.sha256;
    let carried = match (alone, is_whole) {
        (true, true) => Some(carried::of_record(&path, record, &plan.measures.columns)?),
        (true, false) => Some(Vec::new()),
        (false, _) => None,
    };
    let OpenJournal { mut journal, finished, carried } =
        open_journal(plan, directory, wanted, unit, carried)?;
    if let Some(still_stands) = still_stands
        && (journal.path() != journal_path(directory, unit) || !still_stands()?)
    {
        if finished.is_empty() {
            files::remove_file(journal.path())?;
        }
        return Ok(false);
    }
    if is_whole {
        copy_figures(plan, wanted, record, &path, &carried, &mut journal)?;
    }
    files::remove_file(&units::record_path(directory, &record.unit))?;
    Ok(true)
}

/// Puts the figures of a record's part into the journal, of measures that are planned or carried. Of windows without any it
/// says so where nobody is to measure them.
fn copy_figures(
    plan: &Plan,
    wanted: &Fingerprints,
    record: &UnitRecord,
    path: &Path,
    carried: &[Carried],
    journal: &mut Journal,
) -> Result<()> {
    let planned = plan.measures.columns.iter();
    let planned = planned.map(|of| (of.clone(), &wanted.measures[&of.measure].fingerprint));
    let behind = carried.iter().map(|of| (of.columns(), &of.by.fingerprint));
    let mut kept = Vec::new();
    let mut places = Vec::new();
    for (place, (columns, fingerprint)) in planned.chain(behind).enumerate() {
        let own = record.measures.get(&columns.measure);
        if let Some(own) = own.filter(|own| own.fingerprint == *fingerprint) {
            kept.push(columns);
            places.push((place, own.is_of_all()));
        }
    }
    scores::read_figures(path, &kept, |row, window, index, figures| {
        let (place, is_of_all) = places[index];
        let has_figures = is_of_all || figures.0.iter().any(|value| *value != Value::Null);
        let key = ((row, window), place as u16);
        if has_figures {
            journal.append(key, &figures)
        } else if place >= plan.measures.columns.len() {
            journal.append(key, &NOT_MEASURED)
        } else {
            Ok(())
        }
    })?;
    journal.sync()
}
