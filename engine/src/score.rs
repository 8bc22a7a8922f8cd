//! The score phase: measures the windows of every work unit that has no valid record.

pub(crate) mod carried;
pub mod context;
pub(crate) mod documents;
pub(crate) mod journal;
pub(crate) mod measuring;
pub(crate) mod on_devices;
pub(crate) mod passes;
pub(crate) mod prepare;
pub(crate) mod programs;
pub(crate) mod reopen;
pub(crate) mod shared;
pub(crate) mod tolerance;
pub(crate) mod unit;
pub(crate) mod watch;

use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::json;

use crate::base::error::Result;
use crate::plan::Plan;
use crate::run_directory::events;
use crate::run_directory::facts::Fingerprints;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::units::{self, UnitRecord};
use context::{ScoreContext, Scored, ScoredUnit};
use tolerance::check_quarantine;

/// Scores every unit without a record in `valid`; the others are reused.
///
/// Units are scored in order and the windows of a unit in parallel, while the next documents are read and tokenised.
pub fn score(context: ScoreContext<'_>, valid: Vec<Option<UnitRecord>>) -> Result<Scored> {
    let units = context.plan.units.iter().zip(&valid);
    let open: Vec<_> = units.filter(|(_, record)| record.is_none()).map(|(unit, _)| unit).collect();
    std::thread::scope(|scope| {
        let (sender, batches) = sync_channel(1);
        scope.spawn(move || unit::read_ahead(&context, &open, &sender));
        let scored = score_all(&context, valid, &batches);
        if scored.is_err() {
            context.programs.abandon();
        }
        // The reader stops when its receiver is dropped.
        drop(batches);
        scored
    })
}

fn score_all(
    context: &ScoreContext<'_>,
    valid: Vec<Option<UnitRecord>>,
    batches: &Receiver<unit::FromReader>,
) -> Result<Scored> {
    let mut scored = Scored::default();
    for (unit, record) in context.plan.units.iter().zip(valid) {
        context.stop.check()?;
        if let Some(record) = record {
            context.reused(unit, &record.counts);
            scored.add(record, 0);
        } else {
            let ScoredUnit { record, windows_measured, .. } =
                unit::score_from(context, unit, batches)?;
            context.done(unit, &record.counts);
            let facts =
                json!({ "unit": record.unit, "file": record.file, "counts": record.counts });
            events::append(&context.plan.directory, "unit_scored", facts)?;
            scored.add(record, windows_measured);
        }
        check_quarantine(context.plan, &scored.counts, context.directory)?;
    }
    Ok(scored)
}

/// The score phase if every unit has a record: never runs the model.
pub fn reuse(
    plan: &Plan,
    directory: &RunDirectory,
    valid: Vec<Option<UnitRecord>>,
) -> Result<Scored> {
    let mut scored = Scored::default();
    for record in valid.into_iter().flatten() {
        scored.add(record, 0);
    }
    check_quarantine(plan, &scored.counts, directory)?;
    Ok(scored)
}

/// Valid records of the units of `plan`, for the wanted statistics.
pub fn valid_records(
    plan: &Plan,
    directory: &RunDirectory,
    wanted: &Fingerprints,
) -> Result<Vec<Option<UnitRecord>>> {
    units::valid_records(directory, &plan.dataset, &plan.units, wanted)
}
