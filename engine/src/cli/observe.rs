//! Run observers: the summary file (`--summary-file`), Prometheus' textfile collector and OpenLineage. The last two
//! never fail a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::text::quoted;
use crate::cli::RunArguments;
use crate::cli::answer::refuse_result_folder;
use crate::plan::Plan;
use crate::report::lineage::Lineage;
use crate::report::metrics;
use crate::run::Phase;
use crate::run_directory::summary::Summary;
use crate::storage::files;
use crate::storage::marked::{self, Mark};

/// Interval between two writes of the metrics of a running pipeline: the usual interval of a collector.
const METRICS_INTERVAL: Duration = Duration::from_secs(15);

pub(super) struct Observers<'a> {
    arguments: &'a RunArguments,
    pipeline: String,
    /// Thread that writes metrics until the sender is dropped.
    live: Option<(Sender<()>, JoinHandle<()>)>,
    lineage: Option<Lineage>,
}

impl<'a> Observers<'a> {
    /// Creates the requested observers, and removes the summary of an earlier run, which could be taken for that of this run.
    /// The pipeline is named by its file (`web` for `web.yaml`), so the name is known even if the file cannot be read.
    pub(super) fn from_arguments(arguments: &'a RunArguments) -> Result<Self> {
        for path in arguments.summary_file.iter().chain(&arguments.metrics_textfile) {
            refuse_result_folder(path)?;
        }
        if let Some(path) = &arguments.metrics_textfile {
            marked::check(path, Mark::METRICS)?;
        }
        if let Some(path) = &arguments.summary_file {
            prepare_summary_file(path)?;
        }
        let pipeline = pipeline_label(&arguments.plan.pipeline.pipeline);
        let job = match (arguments.phase, arguments.plan.shard) {
            (Phase::All, _) => pipeline.clone(),
            (Phase::Select, _) => format!("{pipeline}.select"),
            (Phase::Score, None) => format!("{pipeline}.score"),
            (Phase::Write, None) => format!("{pipeline}.write"),
            (Phase::Write, Some(shard)) => format!("{pipeline}.write.{}", shard.index),
            (Phase::Score, Some(shard)) => format!("{pipeline}.score.{}", shard.index),
        };
        Ok(Self {
            arguments,
            pipeline,
            live: None,
            lineage: Lineage::from_environment(&job, arguments.run_id.as_deref()),
        })
    }

    /// Begins to write metrics, except for shards, which would all write the same file.
    pub(super) fn started(&mut self, plan: &Plan, progress: &Arc<Progress>) {
        if let (Some(path), None) = (self.arguments.metrics_textfile.clone(), plan.options.shard) {
            self.live = write_live_metrics(path, &self.pipeline, progress, METRICS_INTERVAL);
        }
        if let Some(lineage) = &self.lineage {
            lineage.started(plan);
        }
    }

    pub(super) fn ended(&mut self, plan: Option<&Plan>, summary: &Summary) -> Result<()> {
        // First, so that the live metrics do not overwrite the final ones.
        if let Some((stop, thread)) = self.live.take() {
            drop(stop);
            let _ = thread.join();
        }
        if let Some(lineage) = &self.lineage {
            lineage.ended(plan, summary);
        }
        if let Some(path) = &self.arguments.metrics_textfile
            && let Err(failure) = metrics::write(path, &self.pipeline, summary)
        {
            tracing::warn!("cannot write metrics: {failure}");
        }
        if let Some(path) = &self.arguments.summary_file {
            marked::write(path, SUMMARY, format!("{}\n", summary.to_line()).as_bytes())?;
        }
        Ok(())
    }
}

/// Returns the label of a pipeline: its file's name without the extension. The Python package names the file of a mapping
/// `.longsift-RANDOM.NAME.json`; its label is `NAME`.
fn pipeline_label(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let name = stem.strip_prefix(".longsift-").and_then(|temporary| temporary.split_once('.'));
    name.map_or(&*stem, |(_, name)| name).to_owned()
}

const SUMMARY: Mark = Mark::Keys(&["status", "run_dir", "exit_code", "rows_in"]);

/// Checks that a summary can be written to `path`, and removes an earlier one, before the run begins.
fn prepare_summary_file(path: &Path) -> Result<()> {
    let problem = |why: String| {
        let message = format!("`--summary-file` {} {why}", quoted(&path.display().to_string()));
        Diagnostic::error(Blame::Pipeline, message).hint("name a file in a folder that exists")
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        return Err(problem("is in a folder that does not exist".to_owned()).into());
    }
    // A device or a pipe would be replaced by a file.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(problem("is not a regular file".to_owned()).into());
    }
    marked::check(path, SUMMARY)?;
    let removed = files::remove_file(path);
    removed.map_err(|error| problem(format!("cannot be replaced: {}", error.source)).into())
}

/// Starts a thread that writes the metrics of a running pipeline at once and then at intervals, until the sender is dropped.
fn write_live_metrics(
    path: PathBuf,
    pipeline: &str,
    progress: &Arc<Progress>,
    interval: Duration,
) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = mpsc::channel::<()>();
    let (pipeline, progress) = (pipeline.to_owned(), Arc::clone(progress));
    let write = move || {
        loop {
            // A failure to write is reported once, when the run ends.
            let _ = metrics::write_running(&path, &pipeline, progress.snapshot());
            if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("metrics".to_owned()).spawn(write).ok()?;
    Some((stop, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_named_by_its_file_and_a_mapping_by_its_name() {
        let files = [
            "in/web.yaml",
            "web.v2.yaml",
            ".longsift-k3_x.web.v2.json",
            ".longsift-web.yaml",
            "web",
        ];
        let labels = files.map(|file| pipeline_label(Path::new(file)));
        assert_eq!(labels, ["web", "web.v2", "web.v2", ".longsift-web", "web"]);
    }

    #[test]
    fn metrics_follow_a_run_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.prom");
        let progress = Arc::new(Progress::new(false));
        let interval = Duration::from_millis(1);
        let (stop, thread) = write_live_metrics(path.clone(), "web", &progress, interval).unwrap();
        progress.phase("score", 96);
        progress.windows_done(2, 64);
        let wanted = "longsift_running_windows{pipeline=\"web\"} 2\n";
        while !std::fs::read_to_string(&path).unwrap_or_default().contains(wanted) {
            thread::yield_now();
        }
        drop(stop);
        thread.join().unwrap();
        files::remove_file(&path).unwrap();
        assert!(!path.exists(), "the thread has ended");
    }
}
