//! Builds the run summary.

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::machine::peak_memory_bytes;
use crate::report::checked::{self, CheckResults};
use crate::run::{Run, RunOutcome};
use crate::run_directory::manifest::Manifest;
use crate::run_directory::summary::{Summary, TableUse};
use crate::score::context::ScoreTotals;
use crate::write::staged::{Outcomes, StagedFiles};

impl Run<'_> {
    pub(super) fn summary(&self, scored: &ScoreTotals, staged: &StagedFiles) -> Result<Summary> {
        let mut summary = self.score_summary("done", scored);
        summary.rows_dropped.extend(staged.outcomes.rows_dropped.clone());
        summary.windows_dropped.extend(staged.outcomes.windows_dropped.clone());
        summary.files_quarantined = self.plan.dataset.bad_files.len() as u64;
        note_kept(&mut summary, &staged.outcomes);
        summary.check().map_err(|violation| Diagnostic::error(Blame::Bug, violation))?;
        if summary.rows_in != self.plan.rows() {
            let violation = format!(
                "{} rows were planned, {} accounted for",
                self.plan.rows(),
                summary.rows_in
            );
            return Err(Diagnostic::error(Blame::Bug, violation).into());
        }
        Ok(summary)
    }

    pub(super) fn score_summary(&self, status: &str, scored: &ScoreTotals) -> Summary {
        let mut summary = Summary {
            windows_scored: scored.windows_scored,
            windows_reused: scored.windows_reused,
            windows_not_measured: scored.by_measure(self.plan, |by| by.not_measured),
            windows_not_sampled: scored.by_measure(self.plan, |by| by.not_sampled),
            ..self.base_summary(status)
        };
        summary.set_counts(scored.counts.clone());
        summary
    }

    pub(super) fn base_summary(&self, status: &str) -> Summary {
        let mut summary = Summary::new(status, self.directory.absolute());
        summary.seconds = self.started.elapsed().as_secs_f64();
        let peaks = self.progress.peaks().into_iter();
        summary.peak_memory_by_phase =
            peaks.map(|(phase, bytes)| (phase.to_owned(), bytes)).collect();
        summary.peak_memory_bytes = peak_memory_bytes();
        summary.table = self.layer.as_ref().map(|(layer, table)| {
            let rows_used = layer.rows_used();
            TableUse { rows_used, bytes_used: rows_used * table.row_bytes, ..*table }
        });
        summary.devices.clone_from(&self.device_use);
        summary.kernel = self.kernel.map(|kernel| kernel.name().to_owned());
        summary
    }

    /// Returns the outcome of a run whose result is up to date. Evaluates the checks again, which may have changed.
    pub(super) fn finished_outcome(&self, before: Summary) -> Result<RunOutcome> {
        let tables = || {
            let manifest = Manifest::read_finished(self.directory)?;
            let tables = manifest.selection.iter().map(|part| self.directory.root.join(&part.path));
            Ok(tables.collect())
        };
        let CheckResults { checks, warnings, refused } =
            checked::check(self.plan, &before, tables)?;
        let done = self.nothing_to_do(Summary { checks, ..before });
        Ok(RunOutcome { warnings, refused, ..done })
    }

    /// Returns the outcome of a run with nothing to do; `before` is the summary of the run that wrote the result.
    pub(super) fn nothing_to_do(&self, before: Summary) -> RunOutcome {
        let now = self.base_summary("nothing_to_do");
        let summary = Summary {
            status: now.status,
            run_dir: now.run_dir,
            seconds: now.seconds,
            peak_memory_bytes: now.peak_memory_bytes,
            peak_memory_by_phase: now.peak_memory_by_phase,
            table: now.table,
            devices: now.devices,
            windows_reused: before.windows_scored + before.windows_reused,
            windows_scored: 0,
            ..before
        };
        RunOutcome::new(summary)
    }
}

pub(super) fn note_kept(summary: &mut Summary, outcomes: &Outcomes) {
    summary.rows_kept = outcomes.rows_kept;
    summary.kept = outcomes.kept;
    summary.windows_kept = outcomes.windows_kept;
    summary.windows_kept_not_measured = outcomes.windows_kept_not_measured;
}
