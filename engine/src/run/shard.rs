//! Scores one shard, next to other processes in the same run directory.

use serde_json::json;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::shard::Shard;
use crate::plan::{explain, lock};
use crate::run::{Run, RunOptions, RunOutcome};
use crate::run_directory::events;
use crate::run_directory::keep::sealed;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::summary::ShardSummary;
use crate::score::{self, context, journal, reopen};

impl Run<'_> {
    /// Scores the units of one shard, the only ones in the plan.
    pub(super) fn score_shard(mut self, options: &RunOptions) -> Result<RunOutcome> {
        let (plan, directory) = (self.plan, self.directory);
        let shard = plan.options.shard.unwrap_or(Shard::WHOLE);
        if plan.units.is_empty() {
            let mut summary = self.score_summary("nothing_to_do", &context::ScoreTotals::default());
            summary.shard = Some(shard_summary(shard, &context::ScoreTotals::default()));
            return Ok(RunOutcome::new(summary));
        }
        let before = PipelineLock::read(&directory.lock_file())?;
        let state = self.begin(options)?;
        let (valid, wanted) = (state.valid, state.wanted);
        if valid.iter().any(Option::is_none) {
            plan.check_output()?;
        }
        let lock = lock::with_model(state.lock, plan, &state.digests);
        self.write_shared_lock(&lock, before.as_ref())?;
        self.write_whole_plan(shard)?;
        reopen::reopen_for_measures(plan, directory, &valid, &wanted, false)?;
        let missing = valid.iter().filter(|record| record.is_none()).count();
        let facts =
            json!({ "shard": shard.to_string(), "units": plan.units.len(), "missing": missing });
        events::append_shared(directory, "shard_started", facts)?;
        let scored = if missing > 0 {
            self.measure(valid, &wanted, false)?
        } else {
            score::reuse(plan, directory, valid, self.progress)?
        };
        self.check_shared_lock(&lock)?;
        scored.counts.check().map_err(|violation| Diagnostic::error(Blame::Bug, violation))?;
        let status = if scored.units_scored > 0 { "scored" } else { "nothing_to_do" };
        let mut summary = self.score_summary(status, &scored);
        summary.shard = Some(shard_summary(shard, &scored));
        let facts = json!({ "shard": summary.shard });
        events::append_shared(directory, "shard_finished", facts)?;
        Ok(RunOutcome::new(summary))
    }

    /// Writes the lock of this shard, unless another shard that has started meanwhile uses a different one.
    fn write_shared_lock(&self, lock: &PipelineLock, before: Option<&PipelineLock>) -> Result<()> {
        let path = self.directory.lock_file();
        if lock.write_new(&path)? {
            return Ok(());
        }
        // An old lock whose scores are gone is replaced; one that other shards use is not.
        let journals = self.directory.journals()?;
        let is_old = PipelineLock::read(&path)?.as_ref() == before
            && !self.directory.has_units()?
            && !journals.iter().any(|path| journal::is_claimed(path).unwrap_or(false));
        if !is_old {
            self.check_shared_lock(lock)?;
        }
        lock.write(&path)
    }

    /// Checks that the other shards use the same score settings.
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

    /// Writes the plan of all shards together, for `longsift status` and the selection.
    fn write_whole_plan(&self, shard: Shard) -> Result<()> {
        let mut json = explain::json(&explain::PlanExplanation::new(
            self.plan,
            explain::CompletedWork::default(),
        ));
        json["input"]["rows"] = json!(self.plan.whole.rows);
        json["input"]["work_units"] = json!(self.plan.whole.units);
        json["shards"] = json!(shard.count);
        self.directory.write_json(&self.directory.plan(), &sealed(&json)).map(drop)
    }
}

fn shard_summary(shard: Shard, scored: &context::ScoreTotals) -> ShardSummary {
    ShardSummary {
        index: shard.index,
        count: shard.count,
        units: scored.units_scored + scored.units_reused + scored.units_by_others,
        units_scored: scored.units_scored,
        units_reused: scored.units_reused,
        units_by_others: scored.units_by_others,
        rows_scored: scored.counts.rows_scored,
        units_written: 0,
    }
}
