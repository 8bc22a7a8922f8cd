//! One shard of the score phase, beside other processes in the same run directory.

use serde_json::json;

use super::{Outcome, Run, pretty};
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::events;
use crate::execute::{self, SharedWork};
use crate::files;
use crate::lock::{self, Lock};
use crate::plan::{Shard, explain, identity};
use crate::report::{ShardSummary, Summary};

use super::RunOptions;

impl Run<'_> {
    /// Scores the plan's units, which are those of one shard.
    pub(super) fn score_shard(mut self, options: &RunOptions) -> Result<Outcome> {
        let (plan, directory) = (self.plan, self.directory);
        let shard = plan.options.shard.unwrap_or(Shard::WHOLE);
        if plan.units.is_empty() {
            let mut summary = self.shard_figures("nothing_to_do", &execute::Scored::default());
            summary.shard = Some(shard_summary(shard, SharedWork::default(), 0));
            return Ok(Outcome { summary, labels: None, warnings: Vec::new() });
        }
        let digest = self.model_digest(false)?;
        let lock = Lock::of(plan, &digest)?;
        if let Some(pipeline) = &options.locked {
            lock.check(&lock::path_beside(pipeline))?;
        }
        self.compare(&lock.score_settings)?;
        let fingerprint = identity::fingerprint(&lock.score_settings);
        let standing = execute::standing(plan, directory, &fingerprint)?;
        lock.with_model(plan, &digest).write(&directory.lock_file())?;
        self.write_whole_plan(shard)?;
        let missing = standing.iter().filter(|record| record.is_none()).count();
        let facts =
            json!({ "shard": shard.to_string(), "units": plan.units.len(), "missing": missing });
        events::append_shared(directory, "shard_started", facts)?;
        if missing > 0 && self.layer.is_none() {
            self.open_model()?;
        }
        let (scored, work) = if missing > 0 {
            self.progress.phase("score", plan.estimate.tokens);
            self.on_devices(&fingerprint, |tools| execute::score_shared(tools, standing))?
        } else {
            let reused = plan.units.len() as u64;
            let work = SharedWork { reused, ..SharedWork::default() };
            (execute::reuse(plan, directory, standing)?, work)
        };
        scored.counts.check().map_err(|violation| Diagnostic::error(Blame::Bug, violation))?;
        let status = if work.scored > 0 { "scored" } else { "nothing_to_do" };
        let mut summary = self.shard_figures(status, &scored);
        summary.shard = Some(shard_summary(shard, work, scored.counts.rows_scored));
        let facts = json!({ "shard": summary.shard });
        events::append_shared(directory, "shard_finished", facts)?;
        Ok(Outcome { summary, labels: None, warnings: Vec::new() })
    }

    /// A summary of scored units: nothing is selected yet.
    fn shard_figures(&self, status: &str, scored: &execute::Scored) -> Summary {
        let counts = &scored.counts;
        Summary {
            rows_in: counts.rows,
            rows_dropped: counts.rows_dropped.clone(),
            quarantined: counts.quarantined_rows(),
            windows_total: counts.windows_total(),
            windows_dropped: counts.windows_dropped.clone(),
            windows_scored: scored.windows_scored,
            windows_reused: scored.windows_reused,
            tokens_total: counts.tokens_total,
            tokens_scored: counts.tokens_scored,
            ..self.figures(status)
        }
    }

    /// What all shards have planned together, for `longsift status` and the selection.
    fn write_whole_plan(&self, shard: Shard) -> Result<()> {
        let mut json = explain::json(self.plan, explain::Done::default());
        json["input"]["rows"] = json!(self.plan.whole.rows);
        json["input"]["work_units"] = json!(self.plan.whole.units);
        json["shards"] = json!(shard.count);
        files::write_atomic(&self.directory.plan(), &pretty(&json))?;
        Ok(())
    }
}

fn shard_summary(shard: Shard, work: SharedWork, rows_scored: u64) -> ShardSummary {
    ShardSummary {
        index: shard.index,
        count: shard.count,
        units: work.scored + work.reused + work.by_others,
        units_scored: work.scored,
        units_reused: work.reused,
        units_by_others: work.by_others,
        rows_scored,
        units_written: 0,
    }
}
