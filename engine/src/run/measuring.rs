//! The score phase of a run: opens the model and the devices when they are needed.

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text;
use crate::plan::attention::Attention;
use crate::run::Run;
use crate::run_directory::facts::Fingerprints;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::summary::{DeviceUse, TableUse};
use crate::run_directory::units::UnitRecord;
use crate::score::context::{ScoreContext, ScoreTotals};
use crate::score::programs::Programs;
use crate::score::{self, on_devices};

impl Run<'_> {
    /// Opens the table, or builds it; returns the digest of the weights.
    pub(super) fn open_model(&mut self, attention: &Attention) -> Result<String> {
        let (plan, progress) = (self.plan, self.progress);
        progress.phase("table", attention.model.spec().vocabulary_size);
        let rows_built = |done, _| progress.reached(done);
        let opened =
            progress.timed("load-partial-model", || plan.open_table(attention, &rows_built))?;
        tracing::info!(
            from_cache = opened.from_cache,
            bytes_read = opened.bytes_read,
            digest = opened.weights_digest,
            "layer-zero table ready"
        );
        let table = TableUse {
            from_cache: opened.from_cache,
            checkpoint_bytes_read: opened.bytes_read,
            bytes: opened.table.bytes(),
            row_bytes: plan.estimate.table_row_bytes,
            ..TableUse::default()
        };
        let longest = plan.spec.tokenize().window_tokens as usize;
        self.layer = Some((attention.first_layer(opened.table, longest), table));
        Ok(opened.weights_digest)
    }

    /// Scores the units without a record. `exclusive`: this process has exclusive access to the run directory.
    pub(super) fn score(
        &mut self,
        valid: Vec<Option<UnitRecord>>,
        wanted: &Fingerprints,
        exclusive: bool,
    ) -> Result<ScoreTotals> {
        let plan = self.plan;
        let missing: Vec<String> = plan
            .units
            .iter()
            .zip(&valid)
            .filter(|(_, record)| record.is_none())
            .map(|(unit, _)| unit.described_rows())
            .collect();
        if missing.is_empty() {
            return score::reuse(plan, &self.scores, valid, self.progress);
        }
        if plan.options.scores_from.is_some() {
            let message = format!(
                "`{}` has no scores of {} of this input",
                self.scores.root.display(),
                text::counted(missing.len() as u64, "work unit")
            );
            return Err(Diagnostic::error(Blame::Pipeline, message)
                .notes(missing.into_iter().take(5))
                .hint("first run the pipeline of that run directory on this input")
                .into());
        }
        self.measure(valid, wanted, exclusive)
    }

    fn measure(
        &mut self,
        valid: Vec<Option<UnitRecord>>,
        wanted: &Fingerprints,
        exclusive: bool,
    ) -> Result<ScoreTotals> {
        let plan = self.plan;
        if let (Some(attention), None) = (&plan.attention, &self.layer) {
            self.open_model(attention)?;
        }
        self.progress.phase("score", plan.estimate.tokens);
        let (progress, stop) = (self.progress, self.stop);
        let programs = Programs::new(plan, &self.programs, stop)?;
        let committed = Manifest::committed_scores(&self.scores)?;
        let context = ScoreContext {
            plan,
            directory: &self.scores,
            devices: None,
            models: &[],
            programs: &programs,
            wanted,
            committed: &committed,
            calibrated: self.calibrated.as_ref(),
            exclusive,
            progress,
            stop,
        };
        let mut of_windows = None;
        let watched = Some((&plan.directory, progress));
        let (done, of_models) = on_devices::run_models(plan, stop, watched, |models| {
            let context = ScoreContext { models, ..context };
            let Some((attention, (layer, _))) = plan.attention.as_ref().zip(self.layer.as_ref())
            else {
                return score::score(context, valid);
            };
            let (done, device_use) =
                on_devices::run(context, attention, layer, |context| score::score(context, valid));
            of_windows = Some(device_use);
            done
        });
        self.device_use = of_windows.into_iter().chain(of_models).reduce(DeviceUse::merged_with);
        done.and_then(|done| programs.finish(plan).map(|()| done))
    }
}
