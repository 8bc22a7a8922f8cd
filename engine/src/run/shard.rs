//! Scores or writes one shard, next to other processes in the same run directory.

use serde_json::json;

use super::answers::note_kept;
use super::finished::{finished, selection_fingerprint};
use super::missing::refuse_missing;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::shard::{self, Shard};
use crate::run::{Run, RunOptions, RunOutcome};
use crate::run_directory::events;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::summary::{ShardSummary, Summary};
use crate::score::context::ScoreTotals;
use crate::score::{self, journal, reopen};
use crate::select;

impl Run<'_> {
    /// Scores the units of one shard, the only ones in the plan.
    pub(super) fn score_shard(mut self, options: &RunOptions) -> Result<RunOutcome> {
        let (plan, directory) = (self.plan, self.directory);
        let shard = plan.options.shard.unwrap_or(Shard::WHOLE);
        if plan.units.is_empty() {
            let summary = self.shard_summary("nothing_to_do", shard, &ScoreTotals::default());
            return Ok(RunOutcome::new(summary));
        }
        let before = PipelineLock::read(&directory.lock_file())?;
        let state = self.begin(options)?;
        let (valid, wanted) = (state.valid, state.wanted);
        if valid.iter().any(Option::is_none) {
            plan.check_output()?;
        }
        let lock = state.lock;
        self.write_shared_lock(&lock, before.as_ref(), !options.remeasure.is_empty())?;
        let mut whole = self.plan_json(&[], &wanted);
        whole["shards"] = json!(shard.count);
        self.write_plan(&whole)?;
        reopen::reopen_for_measures(plan, directory, &valid, &wanted, false)?;
        let missing = valid.iter().filter(|record| record.is_none()).count();
        let facts =
            json!({ "shard": shard.to_string(), "units": plan.units.len(), "missing": missing });
        events::append_shared(directory, "shard_started", facts)?;
        let scored = self.score(valid, &wanted, false)?;
        self.check_shared_lock(&lock)?;
        scored.counts.check().map_err(|violation| Diagnostic::error(Blame::Bug, violation))?;
        let status = if scored.units_scored > 0 { "scored" } else { "nothing_to_do" };
        let summary = self.shard_summary(status, shard, &scored);
        let facts = json!({ "shard": summary.shard });
        events::append_shared(directory, "shard_finished", facts)?;
        Ok(RunOutcome::new(summary))
    }

    /// Writes the lock of this shard, unless another shard that has started meanwhile uses a different one. `remeasures`: the
    /// scores may be of other settings.
    fn write_shared_lock(
        &self,
        lock: &PipelineLock,
        before: Option<&PipelineLock>,
        remeasures: bool,
    ) -> Result<()> {
        let path = self.directory.lock_file();
        if lock.write_new(&path)? {
            return Ok(());
        }
        // An old lock whose scores are gone or measured again is replaced; one that other shards use is not.
        let journals = self.directory.journals()?;
        let is_old = PipelineLock::read(&path)?.as_ref() == before
            && (remeasures || !self.directory.has_units()?)
            && !journals.iter().any(|path| journal::is_claimed(path).unwrap_or(false));
        if !is_old {
            self.check_shared_lock(lock)?;
        }
        lock.write(&path)
    }

    fn check_shared_lock(&self, lock: &PipelineLock) -> Result<()> {
        let Some(now) = PipelineLock::read(&self.directory.lock_file())? else { return Ok(()) };
        let different = lock.identity.differences_of_scores(&now.identity);
        if different.is_empty() {
            return Ok(());
        }
        let message = format!(
            "another shard scores in `{}` with other settings",
            self.directory.root.display()
        );
        let hint = "start all shards with the same pipeline and settings, and on different machines with the same \
                    `--kernel NAME`";
        Err(Diagnostic::error(Blame::Pipeline, message).notes(different).hint(hint).into())
    }

    fn shard_summary(&self, status: &str, shard: Shard, scored: &ScoreTotals) -> Summary {
        let shard = ShardSummary {
            index: shard.index,
            count: shard.count,
            units: scored.units_scored + scored.units_reused + scored.units_by_others,
            units_scored: scored.units_scored,
            units_reused: scored.units_reused,
            units_by_others: scored.units_by_others,
            rows_scored: scored.counts.rows_scored,
            units_written: 0,
        };
        Summary { shard: Some(shard), ..self.score_summary(status, scored) }
    }

    /// Writes the kept samples of the units of `options.write_shard`. Every process computes the same selection.
    pub(super) fn write_shard(&mut self, options: &RunOptions) -> Result<RunOutcome> {
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
            return Ok(self.nothing_to_write(0, shard));
        }
        let state = self.begin(options)?;
        let (lock, valid) = (state.lock, state.valid);
        refuse_missing(plan, &valid, &state.wanted)?;
        if finished(plan, &lock.identity, &valid)?.is_some() {
            shard.units_reused = shard.units;
            let rows_in = own.iter().map(|&unit| plan.units[unit].rows).sum();
            return Ok(self.nothing_to_write(rows_in, shard));
        }
        plan.check_output()?;
        let scored = score::reuse(plan, &self.scores, valid, self.progress)?;
        self.note_tables(&scored.records)?;
        self.progress.phase("select", 1);
        let selection =
            select::select(plan, &self.scores, &scored.records, &lock.identity, self.stop)?;
        if let Some(borrowed) = &self.borrowed {
            borrowed.check()?;
        }
        self.progress.phase("write", own.len() as u64);
        let fingerprint = selection_fingerprint(plan, &lock.identity, &scored.records);
        let writer = self.writer(&scored.records, &selection, &fingerprint);
        let done = writer.write_shard(own_shard, |_| self.progress.steps(1))?;
        shard.units = done.written + done.before;
        (shard.units_written, shard.units_reused) = (done.written, done.before);
        events::append_shared(self.directory, "shard_written", json!({ "shard": shard }))?;
        let status = if done.written > 0 { "written" } else { "nothing_to_do" };
        let mut summary =
            Summary { rows_in: done.rows, shard: Some(shard), ..self.base_summary(status) };
        note_kept(&mut summary, &done.outcomes);
        Ok(RunOutcome { warnings: selection.warnings, ..RunOutcome::new(summary) })
    }

    fn nothing_to_write(&self, rows_in: u64, shard: ShardSummary) -> RunOutcome {
        let summary = self.base_summary("nothing_to_do");
        RunOutcome::new(Summary { rows_in, shard: Some(shard), ..summary })
    }
}
