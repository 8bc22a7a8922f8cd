//! The score phase: measures the windows of every work unit that has no valid record.

pub mod context;
pub(crate) mod documents;
pub(crate) mod journal;
pub(crate) mod measuring;
pub(crate) mod on_devices;
pub(crate) mod passes;
pub(crate) mod prepare;
pub(crate) mod programs;
pub(crate) mod reopen;
pub(crate) mod tolerance;
pub(crate) mod unit;
pub(crate) mod watch;

use std::sync::mpsc::sync_channel;

use serde_json::json;

use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::dataset::units::WorkUnit;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::units::UnitRecord;
use context::{ScoreContext, ScoreTotals, ScoredUnit};
use tolerance::check_quarantine;

type IndexedUnit<'u> = (usize, &'u WorkUnit);

/// Scores every unit without a record; the others are reused. `records`: valid records, by unit of the plan.
///
/// With exclusive access, units are scored in order and one reader reads ahead from unit to unit. With shared access, each unit
/// has its own reader, and units that another process is working on come last and are mostly finished by then: two processes
/// can share a shard, and if one of them hangs, the other finishes it.
pub fn score(
    context: ScoreContext<'_>,
    mut records: Vec<Option<UnitRecord>>,
) -> Result<ScoreTotals> {
    let mut scored = ScoreTotals::default();
    let mut open: Vec<IndexedUnit<'_>> = Vec::new();
    for (index, (unit, record)) in context.plan.units.iter().zip(&records).enumerate() {
        if let Some(record) = record {
            context.progress.unit_reused(&unit.name(), &unit.file_path, &record.counts);
            scored.reuse(&record.counts);
        } else {
            open.push((index, unit));
        }
    }
    let mut score =
        |units: &[IndexedUnit<'_>]| score_units(&context, units, &mut records, &mut scored);
    if context.exclusive {
        score(&open)?;
    } else {
        let mut claimed = Vec::new();
        for (index, unit) in open {
            if journal::is_claimed(&context.directory.journal().join(unit.name()))? {
                claimed.push((index, unit));
            } else {
                score(&[(index, unit)])?;
            }
        }
        claimed.into_iter().try_for_each(|unit| score(&[unit]))?;
    }
    scored.records = records.into_iter().flatten().collect();
    Ok(scored)
}

/// Scores units in order, while one thread reads and tokenizes the next documents.
fn score_units(
    context: &ScoreContext<'_>,
    units: &[IndexedUnit<'_>],
    records: &mut [Option<UnitRecord>],
    scored: &mut ScoreTotals,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (sender, batches) = sync_channel(1);
        scope.spawn(move || {
            let mut units = units.iter();
            let read = units.try_for_each(|(_, unit)| unit::read_unit(context, unit, &sender));
            if let Err(failure) = read {
                // A closed channel means that the receiver has stopped.
                let _ = sender.send(unit::FromReader::Batch(Err(failure)));
            }
        });
        let done = units.iter().try_for_each(|(index, unit)| {
            context.stop.check()?;
            let scored_unit = unit::score(context, unit, &batches)?;
            records[*index] = Some(account(context, scored_unit, scored)?);
            check_quarantine(context.plan, &scored.counts, context.directory)
        });
        if done.is_err() {
            context.programs.abandon();
        }
        // The reader stops when its receiver is dropped.
        drop(batches);
        done
    })
}

fn account(
    context: &ScoreContext<'_>,
    scored_unit: ScoredUnit,
    scored: &mut ScoreTotals,
) -> Result<UnitRecord> {
    let ScoredUnit { record, windows_measured, by_another } = scored_unit;
    if !by_another {
        context.progress.unit_done(&record.unit, &record.file, &record.counts);
        let facts = json!({ "unit": record.unit, "file": record.file, "counts": record.counts });
        context.append_event("unit_scored", facts)?;
        scored.units_scored += 1;
        scored.add(&record.counts, windows_measured);
        return Ok(record);
    }
    if windows_measured > 0 {
        tracing::warn!(
            unit = record.unit,
            file = record.file,
            windows = windows_measured,
            "another process committed this unit first; the results of this one are discarded"
        );
        let facts = json!({ "unit": record.unit, "windows": windows_measured });
        context.append_event("unit_late", facts)?;
    }
    context.progress.unit_reused(&record.unit, &record.file, &record.counts);
    scored.units_by_others += 1;
    scored.add(&record.counts, 0);
    Ok(record)
}

/// The score phase if every unit has a record: never runs the model.
pub fn reuse(
    plan: &Plan,
    directory: &RunDirectory,
    valid: Vec<Option<UnitRecord>>,
    progress: &Progress,
) -> Result<ScoreTotals> {
    let mut scored = ScoreTotals::default();
    for record in valid.into_iter().flatten() {
        scored.reuse(&record.counts);
        scored.records.push(record);
    }
    progress.add_counts(&scored.counts);
    check_quarantine(plan, &scored.counts, directory)?;
    Ok(scored)
}
