//! `longsift run`: score → select → write → commit, in a run directory that remembers.

mod carry_over;
mod finished;
mod missing;
mod shard;
mod write_shard;

use std::path::{Path, PathBuf};
use std::time::Instant;

use longsift_stages::first_layer_attention::FirstLayer;
use longsift_stages::model::known_digest;
use serde_json::{Map, Value, json};

use crate::commit::{self, Intent};
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::{self, Result};
use crate::events;
use crate::execute::{self, Scored, Tools};
use crate::files;
use crate::lock::{self, Lock};
use crate::manifest::Manifest;
use crate::output::{Staged, Writer};
use crate::plan::{Plan, Shard, explain::Done, identity};
use crate::progress::Progress;
use crate::report::{DeviceUse, LabelShares, Summary, TableUse, peak_memory_bytes};
use crate::run_directory::{RunDirectory, RunLock};
use crate::schedule::{Scheduler, Watch};
use crate::select::{self, Selection};
use crate::stop::Stop;
use crate::units::{self, UnitRecord};

pub use finished::finished;
use finished::{data_files, refuse_foreign_data, selection_fingerprint};

/// What the command line adds to a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Starts anew: removes what earlier runs left in the run directory and the data files they wrote.
    pub fresh: bool,
    /// Refuses anything that differs from the lock beside the pipeline file.
    pub locked: Option<PathBuf>,
    /// Which part of the run.
    pub phase: Phase,
    /// Tries the rows again that earlier runs set aside.
    pub only_quarantined: bool,
    /// Which units are written, in [`Phase::Write`]; the plan is that of all units.
    pub write_shard: Option<Shard>,
}

/// Which part of a run a process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Phase {
    /// Everything, alone in the run directory.
    #[default]
    All,
    /// Scores the work units of a shard, beside other processes.
    Score,
    /// Once every work unit has scores: writes what is kept of the work units of a shard, beside other processes. The
    /// selection uses it.
    Write,
    /// Once every work unit has scores: selects, writes what no shard has written, commits.
    Select,
}

/// What a run did.
#[derive(Debug)]
pub struct Outcome {
    /// Its summary.
    pub summary: Summary,
    /// The kept share per label, for `output.report_by`.
    pub labels: Option<LabelShares>,
    /// What a user should know.
    pub warnings: Vec<Diagnostic>,
}

/// A run that holds its directory.
struct Run<'a> {
    plan: &'a Plan,
    progress: &'a Progress,
    stop: &'a Stop,
    started: Instant,
    directory: &'a RunDirectory,
    /// Where scores are read from: this run's directory, or that of `--scores-from`.
    scores: RunDirectory,
    /// The first layer, once it was needed.
    layer: Option<OpenLayer>,
    /// What the devices did, once they were needed.
    device_use: Option<DeviceUse>,
}

/// The first layer, and where its table came from.
struct OpenLayer {
    layer: FirstLayer,
    from_cache: bool,
    checkpoint_bytes_read: u64,
}

impl OpenLayer {
    fn table_use(&self, row_bytes: u64) -> TableUse {
        let rows_used = self.layer.rows_used();
        TableUse {
            from_cache: self.from_cache,
            checkpoint_bytes_read: self.checkpoint_bytes_read,
            bytes: self.layer.table().bytes(),
            row_bytes,
            rows_used,
            bytes_used: rows_used * row_bytes,
        }
    }
}

/// Runs a plan.
pub fn run(plan: &Plan, options: &RunOptions, progress: &Progress, stop: &Stop) -> Result<Outcome> {
    let started = Instant::now();
    let directory = &plan.directory;
    let scores = match &plan.options.scores_from {
        Some(path) => RunDirectory::at(path)?,
        None => directory.clone(),
    };
    let run =
        |layer| Run { plan, progress, stop, started, directory, scores, layer, device_use: None };
    // Written whatever becomes of the run.
    let _events = events::Finish(directory);
    if options.phase == Phase::Score {
        let _shared = directory.share()?;
        return run(None).score_shard(options);
    }
    if options.phase == Phase::Write {
        let _shared = directory.share()?;
        return run(None).write_shard(options);
    }
    let alone = directory.take()?;
    events::mend(directory)?;
    let replayed = commit::replay(directory, &alone);
    // A damaged intent is no obstacle to a fresh start: everything it speaks of is removed.
    if !options.fresh {
        replayed?;
    }
    let done = run(None).go(options, &alone);
    // What another process does here meanwhile looks like damage.
    if done.as_ref().is_err_and(|failure| failure.exit_code() == error::DATA) {
        alone.check()?;
    }
    done
}

impl Run<'_> {
    fn go(mut self, options: &RunOptions, alone: &RunLock) -> Result<Outcome> {
        let plan = self.plan;
        let ours = data_files(self.directory, options.fresh)?;
        refuse_foreign_data(self.directory, &ours)?;
        if plan.units.is_empty() && !plan.dataset.bad_files.is_empty() {
            let files = plan.dataset.bad_files.len();
            let message = format!(
                "the input has no rows besides those of {files} files that cannot be opened"
            );
            return Err(Diagnostic::error(Blame::Data, message)
                .hint("write these files again, or take them out of the input")
                .into());
        }
        if plan.units.is_empty() {
            self.carry_over()?;
            return Ok(self.nothing(Summary::new("nothing_to_do", String::new())));
        }
        let digest = self.model_digest(options.fresh)?;
        let mut lock = Lock::of(plan, &digest)?.with_command(plan);
        if options.phase == Phase::Select && plan.options.kernel.is_none() {
            self.keep_kernel(&mut lock)?;
        }
        if let Some(pipeline) = &options.locked {
            lock.check(&lock::path_beside(pipeline))?;
        }
        // Only now: a run that is refused has removed nothing.
        if options.fresh {
            self.directory.clear(&ours)?;
            self.directory.prepare()?;
        }
        self.compare(&lock.score_settings)?;
        let fingerprint = identity::fingerprint(&lock.score_settings);
        let mut standing = execute::standing(plan, &self.scores, &fingerprint)?;
        if options.only_quarantined {
            let rows =
                execute::reopen_quarantined(plan, self.directory, &mut standing, &fingerprint)?;
            tracing::info!(rows, "quarantined rows are tried again");
        }
        let complete = standing.iter().all(Option::is_some);
        execute::check_standing(plan, &standing, &self.scores)?;
        if complete && let Some(summary) = finished(plan, &standing)? {
            self.tidy()?;
            self.restate(&lock.with_model(plan, &digest), &standing)?;
            return Ok(self.nothing(summary));
        }
        if options.phase == Phase::Select {
            missing::refuse_missing(plan, &standing)?;
        }
        self.write_plan(&standing)?;
        lock.clone().with_model(plan, &digest).write(&self.directory.lock_file())?;
        let facts =
            json!({ "units": plan.units.len(), "units_scored": standing.iter().flatten().count() });
        events::append(self.directory, "run_started", facts)?;
        let scored = self.score(standing, &fingerprint)?;
        self.progress.phase("select", 1);
        let selection = self.progress.timed("score", || {
            select::select(plan, &self.scores, &scored.records, &lock.score_settings)
        })?;
        self.write(&lock, &scored, selection, alone)
    }

    /// The digest of the tensors that matter: known for this folder from an earlier run or from the cache, else read.
    fn model_digest(&mut self, fresh: bool) -> Result<String> {
        let before = match Lock::read(&self.scores.lock_file()) {
            Err(_) if fresh => None,
            read => read?.and_then(|lock| lock.model),
        };
        if let Some(before) = before.filter(|before| before.identity == self.plan.model.identity())
        {
            return Ok(before.digest);
        }
        match known_digest(&self.plan.model, &self.plan.cache_folder) {
            Some(digest) => Ok(digest),
            None => self.open_model(),
        }
    }

    /// Opens the table, or builds it; returns the digest of the model.
    fn open_model(&mut self) -> Result<String> {
        let plan = self.plan;
        self.progress.phase("table", plan.model.bytes_to_read());
        let opened = self.progress.timed("load-partial-model", || plan.open_table())?;
        tracing::info!(
            from_cache = opened.from_cache,
            bytes_read = opened.bytes_read,
            digest = opened.model_digest,
            "layer-zero table ready"
        );
        let longest = plan.spec.tokenize().window_tokens as usize;
        let mask = plan.spec.first_layer_attention().mask;
        self.layer = Some(OpenLayer {
            layer: FirstLayer::new(plan.model.spec().clone(), opened.table, mask, longest),
            from_cache: opened.from_cache,
            checkpoint_bytes_read: opened.bytes_read,
        });
        Ok(opened.model_digest)
    }

    /// A selection measures nothing: the kernel is that of the machines that scored, not of this one.
    fn keep_kernel(&self, lock: &mut Lock) -> Result<()> {
        let before = Lock::read(&self.scores.lock_file())?;
        if let Some(kernel) = before.and_then(|lock| lock.score_settings.get("kernel").cloned()) {
            lock.score_settings.insert("kernel".to_owned(), kernel);
        }
        Ok(())
    }

    /// Refuses to mix scores of other settings with the ones that are already here.
    fn compare(&self, now: &Map<String, Value>) -> Result<()> {
        let path = self.scores.lock_file();
        let Some(before) = Lock::read(&path)? else {
            return match &self.plan.options.scores_from {
                Some(_) => Err(Diagnostic::error(
                    Blame::Pipeline,
                    format!("there is no lock `{}`", path.display()),
                )
                .hint("`--scores-from` takes the run directory of another run")
                .into()),
                None => Ok(()),
            };
        };
        let different = identity::differences(now, &before.score_settings);
        if different.is_empty()
            || (self.plan.options.scores_from.is_none()
                && files::list_if_present(&self.scores.units())?.is_empty())
        {
            return Ok(());
        }
        let what =
            format!("the scores in `{}` were made with other settings", self.scores.root.display());
        let mut problem = Diagnostic::error(Blame::Pipeline, what);
        for line in different {
            problem = problem.note(line);
        }
        Err(problem
            .hint("give this pipeline another `output.path`, or start anew with `--fresh`")
            .into())
    }

    fn score(&mut self, standing: Vec<Option<UnitRecord>>, fingerprint: &str) -> Result<Scored> {
        let plan = self.plan;
        let missing: Vec<String> = plan
            .units
            .iter()
            .zip(&standing)
            .filter(|(_, record)| record.is_none())
            .map(|(unit, _)| format!("{}, row groups {:?}", unit.file_path, unit.row_groups))
            .collect();
        if missing.is_empty() {
            return execute::reuse(plan, &self.scores, standing);
        }
        if plan.options.scores_from.is_some() {
            let mut problem = Diagnostic::error(
                Blame::Pipeline,
                format!(
                    "`{}` has no scores of {} work units of this input",
                    self.scores.root.display(),
                    missing.len()
                ),
            );
            for unit in missing.into_iter().take(5) {
                problem = problem.note(unit);
            }
            return Err(problem.hint("run the pipeline that makes these scores first").into());
        }
        if self.layer.is_none() {
            self.open_model()?;
        }
        self.progress.phase("score", plan.estimate.tokens);
        self.on_devices(fingerprint, |tools| execute::score(tools, standing))
    }

    /// Runs `work` with the scheduler of the plan's devices; the first layer is open.
    fn on_devices<T>(
        &mut self,
        score_fingerprint: &str,
        work: impl FnOnce(Tools<'_>) -> Result<T>,
    ) -> Result<T> {
        let plan = self.plan;
        let layer = &self.layer.as_ref().expect("opened before anything is measured").layer;
        let devices = &plan.devices.list;
        tracing::info!(
            devices = plan.devices.names(),
            why = plan.devices.why,
            kernel = plan.kernel().name(),
            "measuring windows"
        );
        let watch = Watch::new(self.directory, self.progress, devices);
        let done = Scheduler::run(devices, layer, plan.policy(), |scheduler| {
            let done = work(Tools {
                plan,
                directory: self.directory,
                scheduler,
                watch: &watch,
                score_fingerprint,
                progress: self.progress,
                stop: self.stop,
            });
            self.progress.took("first-layer-attention", scheduler.busy());
            watch.finish(scheduler)?;
            done
        });
        self.device_use = Some(watch.into_use());
        done
    }

    /// Writes the selection and commits it.
    fn write(
        self,
        lock: &Lock,
        scored: &Scored,
        selection: Selection,
        alone: &RunLock,
    ) -> Result<Outcome> {
        let (plan, directory) = (self.plan, self.directory);
        self.progress.phase("write", plan.units.len() as u64);
        alone.check()?;
        files::remove_folder(&directory.staging())?;
        let folder = directory.attempt();
        for part in ["data", "dropped", "quarantine"] {
            files::create_folder(&folder.join(part))?;
        }
        let select_settings = identity::select_settings(plan, lock.calibration.as_deref());
        let selection_fingerprint = selection_fingerprint(plan, &select_settings, &scored.records);
        let writer = self.writer(&scored.records, &selection, &selection_fingerprint);
        let staged =
            self.progress.timed("write", || writer.stage(&folder, |_| self.progress.step()))?;
        let labels = plan.spec.pipeline.output.report_by.as_ref().map(|_| staged.label_shares());
        let mut summary = self.summary(scored, &staged)?;
        summary.drift.clone_from(&selection.drift);
        let mut manifest =
            Manifest::new(plan, lock, scored, &staged, select_settings, selection_fingerprint);
        manifest.table.clone_from(&summary.table);
        alone.check()?;
        self.commit(&folder, &manifest, &staged, &selection, &summary, alone)?;
        Ok(Outcome { summary, labels, warnings: selection.warnings })
    }

    /// What writes a selection. Shards put their parts where only the same selection of the same version looks.
    fn writer<'b>(
        &'b self,
        records: &'b [UnitRecord],
        selection: &'b Selection,
        selection_fingerprint: &str,
    ) -> Writer<'b> {
        let identity = format!("{} {selection_fingerprint}", env!("CARGO_PKG_VERSION"));
        let written = &files::sha256_hex(identity.as_bytes())[..16];
        Writer {
            plan: self.plan,
            scores: &self.scores,
            records,
            selection,
            written: self.directory.written().join(written),
            stop: self.stop,
        }
    }

    fn summary(&self, scored: &Scored, staged: &Staged) -> Result<Summary> {
        let mut summary = self.figures("done");
        let counts = &scored.counts;
        summary.rows_in = counts.rows;
        summary.rows_kept = staged.fates.rows_kept;
        summary.rows_dropped.clone_from(&counts.rows_dropped);
        summary.windows_dropped.clone_from(&counts.windows_dropped);
        for (reasons, number) in [
            (&mut summary.rows_dropped, staged.fates.rows_not_selected),
            (&mut summary.windows_dropped, staged.fates.windows_not_selected),
        ] {
            if number > 0 {
                reasons.insert("not_selected".to_owned(), number);
            }
        }
        summary.quarantined = counts.quarantined_rows();
        summary.files_quarantined = self.plan.dataset.bad_files.len() as u64;
        summary.windows_total = counts.windows_total();
        summary.windows_scored = scored.windows_scored;
        summary.windows_reused = scored.windows_reused;
        summary.windows_kept = staged.fates.windows_kept;
        summary.kept = staged.fates.kept;
        summary.tokens_total = counts.tokens_total;
        summary.tokens_scored = counts.tokens_scored;
        summary.check().map_err(|violation| Diagnostic::error(Blame::Bug, violation))?;
        if summary.rows_in != self.plan.rows() {
            let violation = format!(
                "{} rows were planned, {} accounted for",
                self.plan.rows(),
                summary.rows_in
            );
            return Err(Diagnostic::error(Blame::Bug, violation).into());
        }
        Ok(summary)
    }

    /// A summary with what every run reports.
    fn figures(&self, status: &str) -> Summary {
        let mut summary = Summary::new(status, self.directory.absolute());
        summary.seconds = self.started.elapsed().as_secs_f64();
        summary.peak_memory_bytes = peak_memory_bytes();
        let row_bytes = self.plan.estimate.table_row_bytes;
        summary.table = self.layer.as_ref().map(|layer| layer.table_use(row_bytes));
        summary.devices.clone_from(&self.device_use);
        summary.kernel = Some(self.plan.kernel().name().to_owned());
        summary
    }

    /// The answer of a run that found everything done; `before` is the summary of the run that did it.
    fn nothing(&self, before: Summary) -> Outcome {
        let now = self.figures("nothing_to_do");
        let summary = Summary {
            status: now.status,
            run_dir: now.run_dir,
            seconds: now.seconds,
            peak_memory_bytes: now.peak_memory_bytes,
            table: now.table,
            devices: now.devices,
            windows_reused: before.windows_scored + before.windows_reused,
            windows_scored: 0,
            ..before
        };
        Outcome { summary, labels: None, warnings: Vec::new() }
    }

    /// Stages the records of the selection beside its parts, and moves everything into place together.
    fn commit(
        &self,
        folder: &Path,
        manifest: &Manifest,
        staged: &Staged,
        selection: &Selection,
        summary: &Summary,
        alone: &RunLock,
    ) -> Result<()> {
        let directory = self.directory;
        let before = Manifest::read(directory)?;
        let mut intent = Intent::default();
        for (from, to) in &staged.moves {
            intent.rename(directory, from, to);
        }
        for (name, json, target) in [
            ("calibration.json", pretty(&selection.calibration), directory.calibration()),
            ("manifest.json", pretty(manifest), directory.manifest()),
            ("summary.json", pretty(summary), directory.summary()),
        ] {
            files::write_atomic(&folder.join(name), &json)?;
            intent.rename(directory, &folder.join(name), &target);
        }
        let mut superseded = Vec::new();
        if let Some(before) = before {
            superseded.extend(before.data.iter().map(|part| directory.data().join(&part.path)));
            let parts = before.dropped.iter().chain(&before.quarantined_files);
            superseded.extend(parts.map(|part| directory.root.join(&part.path)));
        }
        if self.plan.options.limit_rows.is_none() && self.plan.options.scores_from.is_none() {
            for record in units::stale(directory, &self.plan.units)? {
                superseded.push(units::record_path(directory, &record.unit));
                superseded.extend(record.parts().map(|part| directory.root.join(&part.path)));
            }
        }
        intent.remove(directory, superseded.into_iter());
        files::create_folder(&directory.data())?;
        commit::commit(directory, &intent, alone)?;
        events::append(
            directory,
            "selection_committed",
            json!({ "kept": summary.kept, "files": staged.data.len() }),
        )?;
        self.tidy()
    }

    /// Removes what only an unfinished run needs, and one that was killed behind its commit may have left.
    fn tidy(&self) -> Result<()> {
        files::remove_folder(&self.directory.staging())?;
        files::remove_folder(&self.directory.written())?;
        Ok(files::remove_folder(&self.directory.journal())?)
    }

    /// A run with other settings that was killed has left its plan and its lock beside a selection that it did not
    /// replace: they say again what the selection was made with.
    fn restate(&self, lock: &Lock, standing: &[Option<UnitRecord>]) -> Result<()> {
        let path = self.directory.lock_file();
        let written = files::read_if_present(&self.directory.plan())?;
        let written: Option<Value> = written.and_then(|json| serde_json::from_slice(&json).ok());
        let now = self.plan_json(standing);
        let same = |before: &Value| ["settings", "input"].iter().all(|key| before[key] == now[key]);
        if !written.as_ref().is_some_and(same) {
            self.write_plan(standing)?;
        }
        if Lock::read(&path)?.as_ref() == Some(lock) { Ok(()) } else { lock.write(&path) }
    }

    fn plan_json(&self, standing: &[Option<UnitRecord>]) -> Value {
        let done = Done {
            units: standing.iter().flatten().count(),
            windows: standing.iter().flatten().map(|record| record.counts.windows).sum(),
            finished: false,
        };
        crate::plan::explain::json(self.plan, done)
    }

    /// What was planned, for `longsift status`.
    fn write_plan(&self, standing: &[Option<UnitRecord>]) -> Result<()> {
        files::write_atomic(&self.directory.plan(), &pretty(&self.plan_json(standing)))?;
        Ok(())
    }
}

fn pretty<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(value).expect("plain data");
    json.push(b'\n');
    json
}
