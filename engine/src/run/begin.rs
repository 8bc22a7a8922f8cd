//! Start of every phase: computes the identity of the run and compares it with that of the existing scores.

use longsift_stages::model::known_weights_digest;

use super::incompatible_scores::incompatible_scores;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::plan::attention::Attention;
use crate::plan::identity::{Digests, Kernels, WholeModelDigests, whole_model_digests};
use crate::plan::lock;
use crate::run::{Phase, Run, RunOptions};
use crate::run_directory::borrowed::BorrowedScores;
use crate::run_directory::facts::{Fingerprints, Identity};
use crate::run_directory::manifest::Manifest;
use crate::run_directory::pipeline_lock::{self, ModelIdentity, PipelineLock};
use crate::run_directory::units::{self, UnitRecord};
use crate::select;
use crate::write::commit;

/// Identity of a run, and the records of units that are already scored.
pub(super) struct RunState {
    pub(super) lock: PipelineLock,
    pub(super) wanted: Fingerprints,
    pub(super) valid: Vec<Option<UnitRecord>>,
}

impl Run<'_> {
    /// Chooses the directory for scores. Refuses a pipeline that differs from the lock, and scores with other settings.
    pub(super) fn begin(&mut self, options: &RunOptions) -> Result<RunState> {
        let digests = self.digests(options)?;
        let lock = lock::lock_with_models(self.plan, &digests);
        if let Some(pipeline) = &options.locked {
            lock.check(&pipeline_lock::path_next_to(pipeline))?;
        }
        self.calibrated = select::check_calibration(self.plan, &lock.identity)?;
        self.choose_scores_directory(&lock.identity)?;
        if let Some(refused) =
            incompatible_scores(self.plan, &self.scores, &lock.identity, &options.remeasure)?
        {
            return Err(refused.into());
        }
        let wanted = lock.identity.fingerprints();
        let plan = self.plan;
        let read = || units::valid_records(&self.scores, &plan.dataset, &plan.units, &wanted);
        let valid = read()?;
        if self.plan.options.scores_from.is_some() {
            let borrowed = BorrowedScores::new(&self.scores, valid.iter().flatten())?;
            if read()? != valid {
                return Err(borrowed.changed("units"));
            }
            if self.scores.absolute() != self.directory.absolute() {
                Manifest::check_committed(&self.scores)?;
            }
            self.borrowed = Some(borrowed);
        }
        Ok(RunState { lock, wanted, valid })
    }

    /// Chooses the directory for scores. A fresh start has a nested one, where a later run with the same settings resumes it.
    fn choose_scores_directory(&mut self, now: &Identity) -> Result<()> {
        let fresh = self.directory.fresh();
        if self.plan.options.scores_from.is_some() {
            let is_own = self.scores.absolute() == self.directory.absolute();
            if self.plan.options.fresh && is_own {
                let message = "`--fresh` excludes `--scores-from` with the same run directory";
                return Err(Diagnostic::error(Blame::Pipeline, message)
                    .hint("omit `--fresh` to select from the scores of this run directory again")
                    .into());
            }
        } else if self.plan.options.fresh {
            self.directory.remove_fresh()?;
            fresh.prepare()?;
            self.scores = fresh;
        } else if let Some(before) = PipelineLock::read(&fresh.lock_file()).ok().flatten()
            && before.identity.differences_of_scores(now).is_empty()
        {
            tracing::info!("resuming the fresh start in `{}`", fresh.root.display());
            fresh.prepare()?;
            self.scores = fresh;
        }
        let is_fresh = self.plan.options.fresh || self.scores.root == self.directory.fresh().root;
        match &self.unfinishable {
            Some(failure) if !is_fresh => self.check_scores_are_complete(failure),
            _ => Ok(()),
        }
    }

    /// Fails if an interrupted commit that cannot be finished moves the scores of a fresh start: some may be lost, and older ones
    /// must not take their place.
    fn check_scores_are_complete(&self, failure: &Failure) -> Result<()> {
        let message = failure.to_string();
        let message = message.lines().next().unwrap_or_default();
        if commit::moves_fresh_scores(self.directory) {
            return Err(Diagnostic::error(Blame::Data, message)
                .note("it is the commit of a fresh start, whose scores may be incomplete")
                .hint("`--fresh` starts from scratch")
                .into());
        }
        tracing::warn!("{message}; selecting again");
        Ok(())
    }

    /// Computes the digests of files. The kernels of a selection, which measures nothing, are those in the lock.
    pub(super) fn digests(&mut self, options: &RunOptions) -> Result<Digests> {
        let before = match PipelineLock::read(&self.scores.lock_file()) {
            Err(_) if self.plan.options.fresh => None,
            read => read?,
        };
        let selects = matches!(options.phase, Phase::Select | Phase::Write);
        let recorded = before.as_ref().and_then(|lock| Kernels::recorded(&lock.identity));
        let model = before.as_ref().and_then(|lock| lock.model.clone());
        let attention = self.plan.attention.as_ref();
        let weights = attention.map(|of| self.weights_digest(of, model)).transpose()?;
        let known = before.as_ref().map(|lock| lock.whole_models.clone()).unwrap_or_default();
        let mut whole_models = self.progress.timed("model files", || {
            whole_model_digests(&self.plan.whole_models, &known, self.stop)
        })?;
        if let Some(before) = before.filter(|_| selects) {
            for (measure, digests) in &mut whole_models {
                if let Some(recorded) = WholeModelDigests::recorded(&before.identity, measure) {
                    digests.kernel = recorded.kernel;
                }
            }
        }
        let mut digests = Digests::new(self.plan, weights, whole_models)?;
        self.programs.clone_from(&digests.programs);
        if let (Some(attention), Some(recorded)) = (&mut digests.attention, recorded)
            && selects
            && self.plan.options.kernel.is_none()
        {
            attention.kernels = recorded;
        }
        self.kernel = digests.kernel();
        Ok(digests)
    }

    /// Returns the digest of the tensors that results depend on: from an earlier run or the cache, otherwise computed.
    fn weights_digest(
        &mut self,
        attention: &Attention,
        before: Option<ModelIdentity>,
    ) -> Result<String> {
        let model = &attention.model;
        if let Some(weights) = before.and_then(|before| before.weights_of(&model.identity())) {
            return Ok(weights);
        }
        match known_weights_digest(model, &self.plan.cache_folder) {
            Some(digest) => Ok(digest),
            None => self.open_model(attention),
        }
    }
}
