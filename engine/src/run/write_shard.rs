//! One shard of the write phase, beside other processes in the same run directory: every process selects for itself, to
//! the same end, and writes what is kept of its own units.

use serde_json::json;

use super::{Outcome, Run, RunOptions, finished, missing, selection_fingerprint};
use crate::error::Result;
use crate::events;
use crate::execute;
use crate::lock::{self, Lock};
use crate::plan::{Shard, identity, shard};
use crate::report::{ShardSummary, Summary};
use crate::select;

impl Run<'_> {
    /// Writes what is kept of the units of `options.write_shard`.
    pub(super) fn write_shard(mut self, options: &RunOptions) -> Result<Outcome> {
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
            return Ok(outcome(Summary { shard: Some(shard), ..self.figures("nothing_to_do") }));
        }
        let digest = self.model_digest(false)?;
        let mut lock = Lock::of(plan, &digest)?;
        if plan.options.kernel.is_none() {
            self.keep_kernel(&mut lock)?;
        }
        if let Some(pipeline) = &options.locked {
            lock.check(&lock::path_beside(pipeline))?;
        }
        self.compare(&lock.score_settings)?;
        let fingerprint = identity::fingerprint(&lock.score_settings);
        let standing = execute::standing(plan, &self.scores, &fingerprint)?;
        missing::refuse_missing(plan, &standing)?;
        let mut summary = self.figures("nothing_to_do");
        summary.rows_in = own.iter().map(|&unit| plan.units[unit].rows).sum();
        if finished(plan, &standing)?.is_some() {
            shard.units_reused = shard.units;
            return Ok(outcome(Summary { shard: Some(shard), ..summary }));
        }
        let scored = execute::reuse(plan, &self.scores, standing)?;
        self.progress.phase("select", 1);
        let selection = select::select(plan, &self.scores, &scored.records, &lock.score_settings)?;
        self.progress.phase("write", own.len() as u64);
        let settings = identity::select_settings(plan, lock.calibration.as_deref());
        let fingerprint = selection_fingerprint(plan, &settings, &scored.records);
        let writer = self.writer(&scored.records, &selection, &fingerprint);
        let done = writer.write_shard(&own, |_| self.progress.step())?;
        (shard.units_written, shard.units_reused) = (done.written, done.before);
        events::append_shared(self.directory, "shard_written", json!({ "shard": shard }))?;
        if done.written > 0 {
            "written".clone_into(&mut summary.status);
        }
        let now = self.figures(&summary.status);
        (summary.seconds, summary.peak_memory_bytes) = (now.seconds, now.peak_memory_bytes);
        (summary.rows_kept, summary.kept) = (done.fates.rows_kept, done.fates.kept);
        summary.windows_kept = done.fates.windows_kept;
        Ok(Outcome {
            warnings: selection.warnings,
            ..outcome(Summary { shard: Some(shard), ..summary })
        })
    }
}

fn outcome(summary: Summary) -> Outcome {
    Outcome { summary, labels: None, warnings: Vec::new() }
}
