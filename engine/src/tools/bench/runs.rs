//! Benchmarks of whole runs: time and memory by window length, threads and number of documents.

use std::path::Path;
use std::process::{Command, Stdio};

use super::measurements::{Measurements, scratch};
use super::stages::bytes_of_first;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::Plan;
use crate::run_directory::summary::Summary;

#[derive(Clone, Copy)]
struct RunParameters {
    window: Option<usize>,
    threads: usize,
    rows: u64,
    /// Bytes of text in the rows; 0 if the input has token ids.
    text_bytes: u64,
}

pub(super) fn measure(
    plan: Plan,
    pipeline: &Path,
    measurements: &mut Measurements<'_>,
) -> Result<()> {
    let options = measurements.options;
    let (rows, threads) = (plan.rows(), rayon::current_num_threads());
    let mut longest = u64::MAX;
    if let Some(attention) = &plan.attention {
        longest = attention.model.spec().trained_positions().unwrap_or(u64::MAX);
        // The table is built before the measurements.
        plan.open_table(attention, &|_, _| {})?;
    }
    let counts = [4, 2, 1].map(|part| rows.div_ceil(part));
    let parts = counts.into_iter().zip(bytes_of_first(&plan, counts)?);
    let parts: Vec<_> = parts
        .map(|(rows, text_bytes)| RunParameters { window: None, threads, rows, text_bytes })
        .collect();
    drop(plan);
    let whole = parts[2];
    let windows = options.windows.iter().filter(|window| **window as u64 <= longest);
    let windows = windows.map(|window| {
        let setting = RunParameters { window: Some(*window), ..whole };
        ("run by window", (*window as f64, "tokens"), setting)
    });
    let counts = std::iter::successors(Some(1), |count| Some(count * 2));
    let counts = counts.take_while(|count| *count <= threads).map(|threads| {
        ("run by threads", (threads as f64, "threads"), RunParameters { threads, ..whole })
    });
    let parts = parts
        .iter()
        .map(|setting| ("run by documents", (setting.rows as f64, "documents"), *setting));
    let all: Vec<_> = windows.chain(counts).chain(parts).collect();
    measurements.progress.phase("run", (all.len() * options.repeats().max(1)) as u64);
    let mut runs = Runs { pipeline, measurements };
    for (group, at, setting) in all {
        runs.measure(group, at, setting)?;
    }
    Ok(())
}

struct Runs<'a, 'b> {
    pipeline: &'a Path,
    measurements: &'a mut Measurements<'b>,
}

impl Runs<'_, '_> {
    /// Runs the pipeline once per repetition and adds the median time, tokens per second and the peak memory.
    fn measure(
        &mut self,
        group: &'static str,
        at: (f64, &'static str),
        setting: RunParameters,
    ) -> Result<()> {
        let mut summaries = Vec::new();
        for _ in 0..self.measurements.options.repeats().max(1) {
            summaries.push(self.run(setting)?);
            self.measurements.progress.step();
        }
        summaries.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let middle = &summaries[summaries.len() / 2];
        if middle.windows_scored == 0 {
            return Ok(());
        }
        let memory = summaries.iter().filter_map(|summary| summary.peak_memory_bytes).max();
        let mut add = |series: &str, value: f64, unit| {
            self.measurements.add(group, series.to_owned(), at, value, unit);
        };
        add("time", middle.seconds, "s");
        add("scored", middle.tokens_scored as f64 / middle.seconds, "tokens/s");
        if setting.text_bytes > 0 {
            add("text", setting.text_bytes as f64 / middle.seconds, "bytes/s");
        }
        if let Some(memory) = memory {
            add("peak memory", memory as f64, "bytes");
        }
        Ok(())
    }

    /// Runs the pipeline in a child process, into a temporary folder.
    fn run(&self, setting: RunParameters) -> Result<Summary> {
        let folder = scratch()?;
        let output = folder.path().join("out");
        let failed = |why: String| {
            let message = format!("a run of `{}` failed: {why}", self.pipeline.display());
            Diagnostic::error(Blame::Machine, message)
        };
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(program);
        command.arg("run").arg(self.pipeline).arg("--quiet");
        for set in &self.measurements.options.overrides.set {
            command.args(["--set", set]);
        }
        for param in &self.measurements.options.overrides.param {
            command.args(["--param", param]);
        }
        command.arg("--set").arg(format!("output.path={}", output.display()));
        if let Some(window) = setting.window {
            command.arg("--set").arg(format!("stages.tokenize.window_tokens={window}"));
        }
        command.args([
            "--threads",
            &setting.threads.to_string(),
            "--limit",
            &setting.rows.to_string(),
        ]);
        let answer =
            command.stderr(Stdio::piped()).output().map_err(|error| failed(error.to_string()))?;
        if !answer.status.success() {
            let errors = String::from_utf8_lossy(&answer.stderr);
            return Err(failed(errors.trim().to_owned()).into());
        }
        let text = String::from_utf8_lossy(&answer.stdout);
        serde_json::from_str(text.lines().last().unwrap_or_default())
            .map_err(|error| failed(format!("its summary cannot be read: {error}")).into())
    }
}
