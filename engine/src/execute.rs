//! The score phase: measures the windows of every work unit that has no record yet.

pub mod journal;
mod prepare;
mod retry;
mod shared;
mod unit;

pub use prepare::{BadRow, Outcome, content_hash, prepare};
pub use retry::reopen_quarantined;
pub use shared::{SharedWork, score_shared};

use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::json;

use crate::accounting::Counts;
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::events;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::run_directory::RunDirectory;
use crate::schedule::{Scheduler, Watch};
use crate::spec::pipeline::OnBadRow;
use crate::stop::Stop;
use crate::units::{self, UnitRecord};

/// What the score phase did.
#[derive(Clone, Debug, Default)]
pub struct Scored {
    /// One record per unit, in the order of the plan.
    pub records: Vec<UnitRecord>,
    /// Where the rows of all units went.
    pub counts: Counts,
    /// Windows measured by this run.
    pub windows_scored: u64,
    /// Windows measured by an earlier run.
    pub windows_reused: u64,
}

impl Scored {
    fn add(&mut self, record: UnitRecord, windows_scored: u64) {
        self.counts.add(&record.counts);
        self.windows_scored += windows_scored;
        self.windows_reused += record.counts.windows.saturating_sub(windows_scored);
        self.records.push(record);
    }
}

/// What became of a unit.
#[derive(Debug)]
struct ScoredUnit {
    /// The record that counts.
    record: UnitRecord,
    /// Windows measured here, whether or not they count.
    windows_measured: u64,
    /// Whether the record is another process's.
    by_another: bool,
}

/// What all units are scored with.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Where the results go.
    pub directory: &'a RunDirectory,
    /// Where windows are measured.
    pub scheduler: &'a Scheduler<'a>,
    /// What is noted of the devices.
    pub watch: &'a Watch<'a>,
    /// Everything a score depends on besides the input.
    pub score_fingerprint: &'a str,
    /// What people see.
    pub progress: &'a Progress,
    /// Whether to stop.
    pub stop: &'a Stop,
}

/// Scores every unit without a record in `standing`; the others are taken as they are. Units are scored in order, the
/// windows of a unit in parallel, while the documents behind them are read and tokenised.
pub fn score(tools: Tools<'_>, standing: Vec<Option<UnitRecord>>) -> Result<Scored> {
    let units = tools.plan.units.iter().zip(&standing);
    let open: Vec<_> = units.filter(|(_, record)| record.is_none()).map(|(unit, _)| unit).collect();
    std::thread::scope(|scope| {
        let (sender, batches) = sync_channel(1);
        scope.spawn(move || unit::read_ahead(&tools, &open, &sender));
        let scored = score_all(&tools, standing, &batches);
        // Without a receiver the reader has nobody to read for, and ends.
        drop(batches);
        scored
    })
}

fn score_all(
    tools: &Tools<'_>,
    standing: Vec<Option<UnitRecord>>,
    batches: &Receiver<unit::Ahead>,
) -> Result<Scored> {
    let mut scored = Scored::default();
    for (unit, record) in tools.plan.units.iter().zip(standing) {
        tools.stop.check()?;
        if let Some(record) = record {
            tools.progress.unit_reused(unit, &record.counts);
            scored.add(record, 0);
        } else {
            let ScoredUnit { record, windows_measured, .. } =
                unit::score_from(tools, unit, batches)?;
            tools.progress.unit_done(unit, &record.counts);
            let facts =
                json!({ "unit": record.unit, "file": record.file, "counts": record.counts });
            events::append(tools.directory, "unit_scored", facts)?;
            scored.add(record, windows_measured);
        }
        check_quarantine(tools.plan, &scored.counts, tools.directory)?;
    }
    Ok(scored)
}

/// The score phase when every unit has a record: the model is not touched.
pub fn reuse(
    plan: &Plan,
    directory: &RunDirectory,
    standing: Vec<Option<UnitRecord>>,
) -> Result<Scored> {
    let mut scored = Scored::default();
    for record in standing.into_iter().flatten() {
        scored.add(record, 0);
    }
    check_quarantine(plan, &scored.counts, directory)?;
    Ok(scored)
}

/// That a pipeline accepts the rows which earlier runs have set aside.
pub fn check_standing(
    plan: &Plan,
    standing: &[Option<UnitRecord>],
    directory: &RunDirectory,
) -> Result<()> {
    let mut counts = Counts::default();
    standing.iter().flatten().for_each(|record| counts.add(&record.counts));
    check_quarantine(plan, &counts, directory)
}

/// More bad rows than the pipeline accepts end the run, at once and on every later attempt.
fn check_quarantine(plan: &Plan, counts: &Counts, directory: &RunDirectory) -> Result<()> {
    let input = &plan.spec.pipeline.input;
    let (bad, rows) = (counts.quarantined_rows(), plan.whole.rows);
    let (too_many, setting, remedy) = match input.on_bad_row {
        OnBadRow::Quarantine => (
            bad as f64 > input.max_quarantined_fraction * rows as f64,
            format!("`max_quarantined_fraction` {}", input.max_quarantined_fraction),
            "raise `input.max_quarantined_fraction`",
        ),
        OnBadRow::Fail => {
            (bad > 0, "`on_bad_row: fail`".to_owned(), "set `input.on_bad_row: quarantine`")
        }
    };
    if !too_many {
        return Ok(());
    }
    let reasons: Vec<String> =
        counts.quarantined.iter().map(|(code, count)| format!("{code}: {count}")).collect();
    let mut problem = Diagnostic::error(
        Blame::Data,
        format!(
            "{bad} of {rows} rows were quarantined ({}), more than {setting} allows",
            reasons.join(", ")
        ),
    )
    .hint(format!(
        "the rows and their reasons are in `{}`; mend the input or {remedy}",
        directory.quarantine().display()
    ));
    for first in crate::quarantine::first_messages(directory, 3)? {
        problem = problem.note(first);
    }
    Err(problem.into())
}

/// Records of `plan` that stand, for the score fingerprint of this run.
pub fn standing(
    plan: &Plan,
    directory: &RunDirectory,
    score_fingerprint: &str,
) -> Result<Vec<Option<UnitRecord>>> {
    units::standing(directory, &plan.dataset, &plan.units, score_fingerprint)
}
