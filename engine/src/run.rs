//! `longsift run`: score → select → write → commit, resumable by its run directory.

mod answers;
mod begin;
mod committing;
pub(crate) mod finished;
mod incompatible_scores;
mod measuring;
pub(crate) mod missing;
pub(crate) mod shard;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use longsift_kernels::Kernel;
use longsift_stages::first_layer_attention::FirstLayer;
use serde_json::{Value, json};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::plan::calibrated_groups::CalibratedGroups;
use crate::plan::document_sample::DocumentSample;
use crate::plan::explain::{self, CompletedWork, PlanExplanation};
use crate::plan::shard::Shard;
use crate::plan::{Plan, lock};
use crate::run_directory::borrowed::BorrowedScores;
use crate::run_directory::events;
use crate::run_directory::facts::Fingerprints;
use crate::run_directory::hold::RunLock;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::seal::sealed;
use crate::run_directory::summary::{DeviceUse, LabelShares, Summary, TableUse};
use crate::run_directory::units::{self, Part, PlannedScores, UnitRecord};
use crate::score::{reopen, tolerance};
use crate::select::{self};
use crate::write::commit::{self};
use finished::{data_files, refuse_foreign_data, refuse_foreign_pages, refuse_unreadable_input};

pub use finished::finished;

#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Pipeline file whose lock the run must match (`--locked`).
    pub locked: Option<PathBuf>,
    pub phase: Phase,
    /// Whether to score rows again that earlier runs quarantined.
    pub only_quarantined: bool,
    /// Names of measures that are measured again if their settings have changed (`--remeasure`).
    pub remeasure: Vec<String>,
    /// Units to write in [`Phase::Write`]; the plan has all units.
    pub write_shard: Option<Shard>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Phase {
    /// Run all phases, with exclusive access to the run directory.
    #[default]
    All,
    /// Score the work units of a shard. Other processes may score other shards at the same time.
    Score,
    /// After all work units are scored: write the kept samples of a shard's work units. Other processes may write other shards
    /// at the same time.
    Write,
    /// After all work units are scored: select, write what no shard has written, and commit.
    Select,
}

#[derive(Debug)]
pub struct RunOutcome {
    pub summary: Summary,
    /// Kept share by label, for `output.report_by`.
    pub labels: Option<LabelShares>,
    pub warnings: Vec<Diagnostic>,
    /// Kept samples of the selection that this one replaced, if its settings differ.
    pub replaced: Option<u64>,
    /// Error if the result was not committed to the output; the summary describes the refused result.
    pub refused: Option<Failure>,
}

impl RunOutcome {
    fn new(summary: Summary) -> Self {
        Self { summary, labels: None, warnings: Vec::new(), replaced: None, refused: None }
    }
}

struct Run<'a> {
    plan: &'a Plan,
    progress: &'a Progress,
    stop: &'a Stop,
    started: Instant,
    directory: &'a RunDirectory,
    /// Directory with the scores: this run's, the nested one of a fresh start, or the one of `--scores-from`.
    scores: RunDirectory,
    /// Score tables of the selection, once they are chosen.
    borrowed: Option<BorrowedScores>,
    /// Digests of the files of programs, once they are computed.
    programs: BTreeMap<String, BTreeMap<String, String>>,
    /// Kernel of the scores, once the digests are computed; `None` if no measure uses one.
    kernel: Option<Kernel>,
    /// Data files that runs of this directory wrote.
    ours: Vec<Part>,
    /// Reason why an interrupted commit cannot be finished; the commit of this run replaces it.
    unfinishable: Option<Failure>,
    /// Whether this run has begun to move files into place.
    has_begun_commit: AtomicBool,
    /// Groups of the pipeline's calibration, once it is read; `None` without groups.
    calibrated: Option<CalibratedGroups>,
    /// First layer of the model, once it is needed, and its table without the use by windows.
    layer: Option<(FirstLayer, TableUse)>,
    device_use: Option<DeviceUse>,
}

/// Finishes the commit of an interrupted run, whose settings its run directory records only then.
pub fn finish_commit(directory: &RunDirectory) -> Result<()> {
    commit::finish(directory)
}

pub fn run(
    plan: &Plan,
    options: &RunOptions,
    progress: &Progress,
    stop: &Stop,
) -> Result<RunOutcome> {
    let started = Instant::now();
    let directory = &plan.directory;
    let scores = match plan.other_scores() {
        Some(path) => RunDirectory::open(path)?,
        None => directory.clone(),
    };
    let mut run = Run {
        plan,
        progress,
        stop,
        started,
        directory,
        scores,
        borrowed: None,
        programs: BTreeMap::new(),
        kernel: None,
        ours: Vec::new(),
        unfinishable: None,
        has_begun_commit: AtomicBool::new(false),
        calibrated: None,
        layer: None,
        device_use: None,
    };
    // Writes the buffered events even if the run fails.
    let _events = events::Finish(directory);
    if matches!(options.phase, Phase::Score | Phase::Write) {
        commit::finish_interrupted(directory)?;
        let _shared = directory.lock_shared()?;
        return match options.phase {
            Phase::Score => run.score_shard(options),
            _ => run.write_shard(options).or_else(|failure| run.tables_changed(failure)),
        };
    }
    let run_lock = directory.lock_exclusive()?;
    events::cut_torn_line(directory)?;
    match commit::replay(directory, &run_lock) {
        Err(failure) if failure.exit_code() == Blame::Data.exit_code() => {
            run.unfinishable = Some(failure);
        }
        replayed => drop(replayed?),
    }
    let done = run.all_phases(options, &run_lock);
    if done.is_ok() && directory.has_fresh_start()? {
        tracing::warn!(
            "the fresh start in `{}` has other settings and is not finished; run it again, or remove the folder",
            directory.fresh().root.display()
        );
    }
    let done = done.or_else(|failure| run.tables_changed(failure));
    // Concurrent writes of another process can look like corruption or foreign files, so recheck the lock.
    let suspicious = [Blame::Data, Blame::Pipeline].map(Blame::exit_code);
    if done.as_ref().is_err_and(|failure| suspicious.contains(&failure.exit_code())) {
        run_lock.check()?;
    }
    done
}

impl Run<'_> {
    /// Runs all phases with exclusive access: score → select → write → commit. Skips phases that are already done.
    fn all_phases(&mut self, options: &RunOptions, run_lock: &RunLock) -> Result<RunOutcome> {
        let plan = self.plan;
        // Before anything is read, so that a later change is noticed by the next run.
        let is_finished = self.directory.is_finished()?;
        let states = is_finished.then(|| self.directory.states()).transpose()?;
        let is_replaced = plan.options.fresh || self.unfinishable.is_some();
        self.ours = data_files(self.directory, is_replaced)?;
        refuse_foreign_data(self.directory, &self.ours, plan.options.fresh)?;
        refuse_foreign_pages(plan)?;
        refuse_unreadable_input(plan, &self.ours)?;
        // An increment without new files has nothing to filter. Any other input without rows is processed as usual.
        if plan.units.is_empty() && !plan.input_before.is_empty() && self.ours.is_empty() {
            if let Some(failure) = self.unfinishable.take_if(|_| !plan.options.fresh) {
                return Err(failure);
            }
            self.record_empty_increment()?;
            let files_quarantined = plan.dataset.bad_files.len() as u64;
            let before = Summary::new("nothing_to_do", String::new());
            return Ok(self.nothing_to_do(Summary { files_quarantined, ..before }));
        }
        let directory = self.directory;
        // Nothing is written if the existing result is up to date.
        let may_be_done = !plan.options.fresh && is_finished;
        if !may_be_done {
            plan.check_output()?;
        }
        let mut state = self.begin(options)?;
        let lock = lock::with_command(state.lock, plan);
        if options.only_quarantined {
            let rows =
                reopen::reopen_quarantined(plan, &self.scores, &mut state.valid, &state.wanted)?;
            tracing::info!(rows, "scoring quarantined rows again");
        }
        let valid = state.valid;
        let complete = valid.iter().all(Option::is_some);
        tolerance::check_valid_records(plan, &valid, &self.scores).inspect_err(|_| {
            valid.iter().flatten().for_each(|record| self.progress.add_counts(&record.counts));
        })?;
        if complete
            && !plan.options.fresh
            && self.scores.root != directory.fresh().root
            && let Some(summary) = finished(plan, &lock.identity, &valid)?
        {
            self.directory.remove_working_files()?;
            if self.unfinishable.is_some() {
                directory.remove_intent()?;
            }
            if plan.other_scores().is_none() {
                units::remove_unlisted_files(directory, valid.iter().flatten())?;
            }
            self.restore_plan_and_lock(&lock, &valid)?;
            // All files were read if the states differ, as in a copy.
            if let Some(states) =
                states.filter(|states| directory.recorded_states().ok().as_ref() != Some(states))
            {
                directory.mark_finished(&states)?;
            }
            let done = self.finished_outcome(summary);
            self.record_failure(&done);
            return done;
        }
        if may_be_done {
            plan.check_output()?;
        }
        if options.phase == Phase::Select {
            missing::refuse_missing(plan, &valid, &state.wanted)?;
        }
        self.write_plan(&self.plan_json(&valid, &state.wanted))?;
        self.write_lock(&lock)?;
        let facts =
            json!({ "units": plan.units.len(), "units_scored": valid.iter().flatten().count() });
        events::append(self.directory, "run_started", facts)?;
        let done = self.score_to_commit(valid, &state.wanted, &lock, run_lock);
        self.record_failure(&done);
        done
    }

    fn score_to_commit(
        &mut self,
        valid: Vec<Option<UnitRecord>>,
        wanted: &Fingerprints,
        lock: &PipelineLock,
        run_lock: &RunLock,
    ) -> Result<RunOutcome> {
        let plan = self.plan;
        if plan.options.scores_from.is_none() {
            reopen::reopen_for_measures(plan, &self.scores, &valid, wanted, true)?;
        }
        let scored = self.score(valid, wanted, true)?;
        self.note_tables(&scored.records)?;
        self.progress.phase("select", 1);
        let selection = self.progress.timed("score", || {
            select::select(plan, &self.scores, &scored.records, &lock.identity, self.stop)
        })?;
        self.write(lock, &scored, selection, run_lock)
    }

    /// Notes the versions of the score tables before the selection reads them.
    fn note_tables(&mut self, records: &[UnitRecord]) -> Result<()> {
        if self.borrowed.is_none() {
            self.borrowed = Some(BorrowedScores::new(&self.scores, records)?);
        }
        Ok(())
    }

    /// Returns the failure of a run, or that its score tables were replaced, which can look like corruption. A commit that has
    /// begun replaces them itself.
    fn tables_changed<T>(&self, failure: Failure) -> Result<T> {
        if self.has_begun_commit.load(Ordering::Relaxed) {
            return Err(failure);
        }
        match self.borrowed.as_ref().map(BorrowedScores::check) {
            Some(Err(replaced)) => Err(replaced),
            _ => Err(failure),
        }
    }

    /// Records why a run failed or was stopped, for `longsift status`, or that the run after it did not fail.
    fn record_failure(&self, done: &Result<RunOutcome>) {
        let recorded = match done {
            Err(failure) | Ok(RunOutcome { refused: Some(failure), .. }) => {
                let message = failure.to_string();
                let reason = message.lines().next().unwrap_or_default();
                let facts = json!({ "exit_code": failure.exit_code(), "error": reason });
                events::append_last(self.directory, "run_failed", facts)
            }
            Ok(_) => match events::last_error(self.directory) {
                Ok(Some(_)) => events::append_last(self.directory, events::UP_TO_DATE, json!({})),
                read => read.map(drop),
            },
        };
        if let Err(lost) = recorded {
            tracing::warn!("cannot record the end of the run in `events.jsonl`: {lost}");
        }
    }

    /// Writes the lock before scoring. If a finished selection exists and its lock has the same score settings, that lock is
    /// replaced only together with the selection.
    fn write_lock(&self, lock: &PipelineLock) -> Result<()> {
        let from_other = self.plan.other_scores().is_some();
        let here = if from_other { self.directory } else { &self.scores };
        let before = PipelineLock::read(&here.lock_file()).ok().flatten();
        let scores_as_before = || {
            let before = &before.as_ref()?.identity;
            let now = &lock.identity;
            let is_known = |name| before.measures.contains_key(name);
            let same = now.differences_of_scores(before).is_empty();
            Some(same && now.measures.keys().all(is_known))
        };
        if here.is_finished()? && (from_other || scores_as_before() == Some(true)) {
            return Ok(());
        }
        lock.write(&here.lock_file())
    }

    /// Restores the plan and the lock of the current selection, after a killed run with other settings replaced them.
    fn restore_plan_and_lock(
        &self,
        lock: &PipelineLock,
        valid: &[Option<UnitRecord>],
    ) -> Result<()> {
        let (path, plan) = (self.directory.lock_file(), self.directory.plan());
        let written: Option<Value> = self.directory.read_intact(&plan)?;
        let now = self.plan_json(valid, &lock.identity.fingerprints());
        let same = |before: &Value| {
            ["settings", "input", "planned"].iter().all(|key| before[key] == now[key])
        };
        if !written.as_ref().is_some_and(same) {
            self.write_plan(&now)?;
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

    /// Returns the plan of all shards together.
    fn plan_json(&self, valid: &[Option<UnitRecord>], wanted: &Fingerprints) -> Value {
        let done = CompletedWork {
            units: valid.iter().flatten().count(),
            windows: valid.iter().flatten().map(|record| record.counts.windows).sum(),
            ..CompletedWork::default()
        };
        let (plan, sample) = (self.plan, DocumentSample::default());
        let mut json = explain::json(&PlanExplanation { plan, done, sizing: None, sample });
        let units = plan.units_of_all_shards();
        json["input"]["rows"] = json!(plan.whole_rows);
        json["input"]["work_units"] = json!(plan.whole_units);
        json["planned"] = json!(PlannedScores::new(&plan.dataset, &units, wanted));
        json
    }

    /// Writes the plan, as read by `longsift status` and later runs.
    fn write_plan(&self, plan: &Value) -> Result<()> {
        self.directory.write_json(&self.directory.plan(), &sealed(plan)).map(drop)
    }
}
