//! Limits on the number of quarantined rows.

use crate::base::counts::Counts;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::units::UnitRecord;
use crate::spec::pipeline::OnBadFile;

/// Checks that the pipeline accepts the rows that earlier runs quarantined.
pub fn check_valid_records(
    plan: &Plan,
    valid: &[Option<UnitRecord>],
    directory: &RunDirectory,
) -> Result<()> {
    let damaged = valid.iter().flatten().find(|record| !record.unreadable.is_empty());
    if let (Some(record), OnBadFile::Fail) = (damaged, plan.spec.pipeline.input.on_bad_file) {
        let message = format!(
            "an earlier run quarantined unreadable parts of `{}`, but `on_bad_file: fail` accepts no damaged file",
            record.file
        );
        let hint = "replace the file, or set `input.on_bad_file: quarantine`";
        return Err(Diagnostic::error(Blame::Data, message).hint(hint).into());
    }
    let mut counts = Counts::default();
    valid.iter().flatten().for_each(|record| counts.add(&record.counts));
    check_quarantine(plan, &counts, directory)
}

/// Ends the run if more rows are quarantined than the pipeline accepts, on this and every later attempt.
pub(super) fn check_quarantine(
    plan: &Plan,
    counts: &Counts,
    directory: &RunDirectory,
) -> Result<()> {
    let (bad, rows) = (counts.quarantined_rows(), plan.whole_rows);
    let limit = plan.spec.pipeline.input.quarantine_limit(rows);
    if bad <= limit.rows {
        return Ok(());
    }
    let so_far = if counts.rows < rows { " so far" } else { "" };
    let reasons: Vec<String> =
        counts.quarantined.iter().map(|(code, count)| format!("{code}: {count}")).collect();
    let message = format!(
        "{bad} of {rows} rows were quarantined{so_far} ({}), more than {} allows",
        reasons.join(", "),
        limit.setting
    );
    let hint = format!(
        "the rows and their reasons are in `{}`; fix the input or {}",
        directory.quarantine().display(),
        limit.remedy
    );
    let first = crate::run_directory::quarantine::first_messages(directory, 3)?;
    Err(Diagnostic::error(Blame::Data, message).hint(hint).notes(first).into())
}
