//! Writes one shard, next to other processes in the same run directory: every process computes the same selection and writes
//! the kept samples of its own units.

use serde_json::json;

use super::answers::note_kept;
use super::finished::{finished, selection_fingerprint};
use super::missing;
use crate::base::error::Result;
use crate::plan::shard::{self, Shard};
use crate::run::{Run, RunOptions, RunOutcome};
use crate::run_directory::events;
use crate::run_directory::summary::{ShardSummary, Summary};
use crate::{score, select};

impl Run<'_> {
    /// Writes the kept samples of the units of `options.write_shard`.
    pub(super) fn write_shard(mut self, options: &RunOptions) -> Result<RunOutcome> {
        let plan = self.plan;
        let own_shard = options.write_shard.unwrap_or(Shard::WHOLE);
        let shards = shard::shards_of(&plan.units, own_shard.count);
        let own: Vec<usize> =
            (0..plan.units.len()).filter(|&unit| shards[unit] == own_shard.index).collect();
        let mut shard = ShardSummary {
            index: own_shard.index,
            count: own_shard.count,
            units: own.len() as u64,
            ..ShardSummary::default()
        };
        if own.is_empty() {
            return Ok(RunOutcome::new(Summary {
                shard: Some(shard),
                ..self.base_summary("nothing_to_do")
            }));
        }
        let state = self.begin(options)?;
        let (lock, valid) = (state.lock, state.valid);
        missing::refuse_missing(plan, &valid, &state.wanted)?;
        let mut summary = self.base_summary("nothing_to_do");
        summary.rows_in = own.iter().map(|&unit| plan.units[unit].rows).sum();
        if finished(plan, &lock.identity, &valid)?.is_some() {
            shard.units_reused = shard.units;
            return Ok(RunOutcome::new(Summary { shard: Some(shard), ..summary }));
        }
        plan.check_output()?;
        let scored = score::reuse(plan, &self.scores, valid, self.progress)?;
        self.progress.phase("select", 1);
        let selection =
            select::select(plan, &self.scores, &scored.records, &lock.identity, self.stop)?;
        self.progress.phase("write", own.len() as u64);
        let fingerprint = selection_fingerprint(plan, &lock.identity, &scored.records);
        let writer = self.writer(&scored.records, &selection, &fingerprint);
        let done = writer.write_shard(own_shard, |_| self.progress.step())?;
        (shard.units, summary.rows_in) = (done.written + done.before, done.rows);
        (shard.units_written, shard.units_reused) = (done.written, done.before);
        if let Some(borrowed) = &self.borrowed {
            borrowed.check()?;
        }
        events::append_shared(self.directory, "shard_written", json!({ "shard": shard }))?;
        if done.written > 0 {
            "written".clone_into(&mut summary.status);
        }
        let now = self.base_summary(&summary.status);
        (summary.seconds, summary.peak_memory_bytes) = (now.seconds, now.peak_memory_bytes);
        summary.peak_memory_by_phase = now.peak_memory_by_phase;
        note_kept(&mut summary, &done.outcomes);
        Ok(RunOutcome {
            warnings: selection.warnings,
            ..RunOutcome::new(Summary { shard: Some(shard), ..summary })
        })
    }
}
