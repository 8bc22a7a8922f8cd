//! The score phase: measures the windows of every work unit that has no record yet.

mod carried;
pub mod context;
pub(crate) mod journal;
pub(crate) mod measuring;
pub(crate) mod on_devices;
pub(crate) mod prepare;
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
use context::{Scored, ScoredUnit, Tools};
use tolerance::check_quarantine;

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
            tools.reused(unit, &record.counts);
            scored.add(record, 0);
        } else {
            let ScoredUnit { record, windows_measured, .. } =
                unit::score_from(tools, unit, batches)?;
            tools.done(unit, &record.counts);
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

/// Records of `plan` that stand, for the figures that it asks for.
pub fn standing(
    plan: &Plan,
    directory: &RunDirectory,
    wanted: &Fingerprints,
) -> Result<Vec<Option<UnitRecord>>> {
    units::standing(directory, &plan.dataset, &plan.units, wanted)
}
