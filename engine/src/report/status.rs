//! `longsift status`: progress of a run, read from its directory during the run or afterwards.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::base::counts::Counts;
use crate::base::error::{Failure, Result};
use crate::base::text::{count, line_safe};
use crate::run_directory::events;
use crate::run_directory::holder::Holder;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::summary::Summary;
use crate::run_directory::units::{self, PlannedScores};
use crate::storage::files;

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// `finished`, `running`, `unfinished`, `empty`, or `damaged` if the manifest of a finished run cannot be read.
    pub state: &'static str,
    /// Process that works in the directory, if any.
    pub holder: Option<Holder>,
    /// Work units with a record; of a finished run, those of its selection.
    pub units_scored: u64,
    /// Work units that are started and have no record; their results so far are in journals.
    pub units_open: u64,
    /// Planned work units.
    pub units: Option<u64>,
    pub rows: Option<u64>,
    /// Counts of the scored units.
    pub counts: Counts,
    /// Reason why the last run failed or was stopped; `None` during a run and after a successful one.
    pub error: Option<String>,
    /// Summary of the last committed selection.
    pub summary: Option<Summary>,
}

pub fn read(directory: &RunDirectory) -> Result<Status> {
    let scored = directory.last_scored()?;
    let holder = directory.holder()?;
    let (selection, damage) = match Manifest::read_last_selection(directory) {
        Ok(selection) => (selection, None),
        Err(Failure::Problems(problems)) => (None, Some(problems[0].message.clone())),
        Err(stopped) => return Err(stopped),
    };
    // With a later input or later settings, an interrupted run has scored units that the selection does not have.
    let finished = match selection {
        Some(manifest) if holder.is_none() && !manifest.has_later_scores(directory)? => {
            Some(manifest)
        }
        _ => None,
    };
    let is_finished = finished.is_some();
    let records = if let Some(manifest) = finished {
        manifest.units
    } else {
        let planned = PlannedScores::read(directory)?;
        let mut records = units::records(&scored)?;
        records.retain(|record| planned.contains(record));
        records
    };
    let mut counts = Counts::default();
    for record in &records {
        counts.add(&record.counts);
    }
    let (units, rows) = if is_finished {
        (Some(records.len() as u64), Some(counts.rows))
    } else {
        let plan: Option<Value> = directory.read_json(&directory.plan())?;
        let planned = |key: &str| plan.as_ref()?["input"][key].as_u64();
        (planned("work_units"), planned("rows"))
    };
    let units_open = scored.journals()?.len() as u64;
    let is_begun =
        !records.is_empty() || units_open > 0 || files::size(&scored.lock_file())?.is_some();
    let state = match (&holder, is_finished, is_begun) {
        (Some(_), ..) => "running",
        (None, ..) if damage.is_some() => "damaged",
        (None, true, _) => "finished",
        (None, false, false) => "empty",
        (None, false, true) => "unfinished",
    };
    let error = if holder.is_none() { damage.or(events::last_error(directory)?) } else { None };
    Ok(Status {
        state,
        error,
        holder,
        units_scored: records.len() as u64,
        units_open,
        units,
        rows,
        counts,
        summary: directory.read_json(&directory.summary())?,
    })
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |total: Option<u64>| total.map_or("?".to_owned(), count);
        writeln!(f, "{}", self.state)?;
        if let Some(error) = &self.error {
            writeln!(f, "  reason    {}", line_safe(error))?;
        }
        if let Some(Holder { pid, host, started }) = &self.holder {
            writeln!(f, "  held by   process {pid} on {host}, since {started}")?;
        }
        writeln!(f, "  units     {} of {} scored", count(self.units_scored), of(self.units))?;
        writeln!(f, "  rows      {} of {} read", count(self.counts.rows), of(self.rows))?;
        write!(f, "  windows   {} measured", count(self.counts.windows))?;
        match self.units_open {
            0 => writeln!(f)?,
            1 => writeln!(f, " in these units; 1 more unit is partly measured")?,
            open => writeln!(f, " in these units; {} more units are partly measured", count(open))?,
        }
        if self.counts.quarantined_rows() > 0 {
            writeln!(f, "  bad rows  {} quarantined", count(self.counts.quarantined_rows()))?;
        }
        if let Some(files) = self.summary.as_ref().map(|summary| summary.files_quarantined)
            && files > 0
        {
            writeln!(f, "  bad files {} could not be opened", count(files))?;
        }
        if let Some(summary) = &self.summary {
            let [samples, rows] = [summary.kept, summary.rows_kept].map(count);
            let last = if self.state == "finished" { "" } else { " in the last selection" };
            writeln!(f, "  kept      {samples} samples of {rows} rows{last}")?;
        }
        Ok(())
    }
}
