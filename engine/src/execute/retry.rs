//! Quarantined rows, tried again: a unit that has some is opened as if it had been stopped behind its last good window.

use super::journal::Journal;
use crate::error::Result;
use crate::plan::Plan;
use crate::run_directory::RunDirectory;
use crate::units::{self, UnitRecord};
use crate::{files, scores};

/// Opens every unit with quarantined rows again; what it measured goes to its journal and is not measured twice. The
/// records of these units go, so that a run which is stopped here carries on by itself. Returns how many rows are tried.
pub fn reopen_quarantined(
    plan: &Plan,
    directory: &RunDirectory,
    standing: &mut [Option<UnitRecord>],
    score_fingerprint: &str,
) -> Result<u64> {
    let mut rows = 0;
    for (unit, slot) in plan.units.iter().zip(standing) {
        let Some(record) = slot.take_if(|record| record.counts.quarantined_rows() > 0) else {
            continue;
        };
        rows += record.counts.quarantined_rows();
        let path = directory.root.join(&record.scores.path);
        // Figures that changed since they were written are measured again.
        if files::digest(&path)?.sha256 == record.scores.sha256 {
            let fingerprint = units::fingerprint(&plan.dataset, unit, score_fingerprint);
            let (mut journal, _) =
                Journal::open(&directory.journal().join(unit.name()), &fingerprint)?;
            scores::read_statistics(&path, |row, window, statistics| {
                journal.append((row, window), &statistics)
            })?;
            journal.sync()?;
        }
        files::remove_file(&units::record_path(directory, &record.unit))?;
    }
    files::fsync_folder(&directory.units())?;
    Ok(rows)
}
