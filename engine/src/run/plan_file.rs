//! Plan file, as read by `longsift status` and later runs.

use serde_json::Value;

use crate::base::error::Result;
use crate::plan::explain::{self, CompletedWork, PlanExplanation};
use crate::run::Run;
use crate::run_directory::keep::sealed;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::units::UnitRecord;

impl Run<'_> {
    /// Restores the plan and the lock of the current selection, after a run with other settings was killed before it replaced
    /// the selection.
    pub(super) fn restore_plan_and_lock(
        &self,
        lock: &PipelineLock,
        valid: &[Option<UnitRecord>],
    ) -> Result<()> {
        let (path, plan) = (self.directory.lock_file(), self.directory.plan());
        let written: Option<Value> = self.directory.read_intact(&plan)?;
        let now = self.plan_json(valid);
        let same = |before: &Value| ["settings", "input"].iter().all(|key| before[key] == now[key]);
        if !written.as_ref().is_some_and(same) {
            self.write_plan(valid)?;
        }
        match PipelineLock::read(&path) {
            Ok(Some(before))
                if before == *lock && self.directory.read_intact::<Value>(&path)?.is_some() =>
            {
                Ok(())
            }
            _ => lock.write(&path),
        }
    }

    fn plan_json(&self, valid: &[Option<UnitRecord>]) -> Value {
        let done = CompletedWork {
            units: valid.iter().flatten().count(),
            windows: valid.iter().flatten().map(|record| record.counts.windows).sum(),
            ..CompletedWork::default()
        };
        explain::json(&PlanExplanation::new(self.plan, done))
    }

    /// Writes the plan for `longsift status`.
    pub(super) fn write_plan(&self, valid: &[Option<UnitRecord>]) -> Result<()> {
        let plan = sealed(&self.plan_json(valid));
        self.directory.write_json(&self.directory.plan(), &plan).map(drop)
    }
}
