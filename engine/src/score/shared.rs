//! The score phase next to other processes: scores the units of a shard, with shared access to the run directory.

use serde_json::json;

use super::context::{ScoreContext, Scored, ScoredUnit};
use super::tolerance::check_quarantine;
use super::{journal, unit};
use crate::base::error::Result;
use crate::dataset::units::WorkUnit;
use crate::run_directory::events;
use crate::run_directory::units::UnitRecord;

/// Work of several processes on the units of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedWork {
    /// Units measured and committed by this process.
    pub scored: u64,
    /// Units that already had a record.
    pub reused: u64,
    /// Units that another process committed first, including units that this process was measuring.
    pub by_others: u64,
}

/// Scores every unit without a record in `valid`. Units that another process is working on come last and are mostly finished
/// by then: two processes share a shard, and if one hangs the other finishes.
pub fn score_shared(
    context: ScoreContext<'_>,
    valid: Vec<Option<UnitRecord>>,
) -> Result<(Scored, SharedWork)> {
    let (mut scored, mut work) = (Scored::default(), SharedWork::default());
    let mut open = Vec::new();
    for (unit, record) in context.plan.units.iter().zip(valid) {
        match record {
            Some(record) => {
                context.reused(unit, &record.counts);
                scored.add(record, 0);
                work.reused += 1;
            }
            None => open.push(unit),
        }
    }
    let mut claimed = Vec::new();
    for unit in open {
        if journal::is_claimed(&context.directory.journal().join(unit.name()))? {
            claimed.push(unit);
        } else {
            score_one(&context, unit, &mut scored, &mut work)?;
        }
    }
    for unit in claimed {
        score_one(&context, unit, &mut scored, &mut work)?;
    }
    check_quarantine(context.plan, &scored.counts, context.directory)?;
    Ok((scored, work))
}

fn score_one(
    context: &ScoreContext<'_>,
    unit: &WorkUnit,
    scored: &mut Scored,
    work: &mut SharedWork,
) -> Result<()> {
    context.stop.check()?;
    let ScoredUnit { record, windows_measured, by_another } = unit::score(context, unit)?;
    if by_another {
        work.by_others += 1;
        if windows_measured > 0 {
            tracing::warn!(
                unit = record.unit,
                file = record.file,
                windows = windows_measured,
                "another process committed this unit first; the results of this one are discarded"
            );
            let facts = json!({ "unit": record.unit, "windows": windows_measured });
            events::append_shared(&context.plan.directory, "unit_late", facts)?;
        }
        context.reused(unit, &record.counts);
        scored.add(record, 0);
    } else {
        work.scored += 1;
        context.done(unit, &record.counts);
        let facts = json!({ "unit": record.unit, "file": record.file, "counts": record.counts });
        events::append_shared(&context.plan.directory, "unit_scored", facts)?;
        scored.add(record, windows_measured);
    }
    check_quarantine(context.plan, &scored.counts, context.directory)
}
