//! Benchmarks of a pipeline: tokenization, recurrence, building and opening the layer-zero table, and whole runs by window
//! length, threads and number of documents.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longsift_stages::measures::speed::{LEVEL, recurrence_speed};
use longsift_stages::model::LayerZeroTable;
use longsift_stages::tokenize::Encoder;

use super::measurements::{BenchOptions, Measurements, median, scratch};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::dataset::documents::{self, Document, DocumentContent};
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::run_directory::summary::Summary;
use crate::score::prepare::prepare;

const TEXT_BYTES: usize = 16 << 20;
/// Processor time for recurrence, and for each compressor, per window length.
const RECURRENCE_TIME: Duration = Duration::from_millis(500);

pub(super) fn measure_stages(plan: &Plan, measurements: &mut Measurements<'_>) -> Result<()> {
    if let Some(encoder) = &plan.encoder {
        let documents = first_documents(plan)?;
        tokenize(plan, &documents, measurements)?;
        recurrence(encoder, &documents, measurements)?;
    }
    plan.attention.as_ref().map_or(Ok(()), |attention| table(attention, measurements))
}

fn tokenize(
    plan: &Plan,
    documents: &[Document],
    measurements: &mut Measurements<'_>,
) -> Result<()> {
    let bytes: usize = documents.iter().map(text_bytes).sum();
    let all = rayon::current_num_threads();
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let pool = pool(threads)?;
        let seconds = median(measurements.options.repeats(), || {
            let documents = documents.to_vec();
            let start = Instant::now();
            pool.install(|| prepare(plan, "bench", documents));
            Ok(start.elapsed().as_secs_f64())
        })?;
        let series = "text into windows".to_owned();
        let at = (threads as f64, "threads");
        measurements.add("tokenize", series, at, bytes as f64 / seconds, "bytes/s");
    }
    Ok(())
}

/// Measures recurrence and a compressor on one core. Documents are joined, which gives windows of every length.
fn recurrence(
    encoder: &Encoder,
    documents: &[Document],
    measurements: &mut Measurements<'_>,
) -> Result<()> {
    let text: String = documents.iter().filter_map(text_of).collect();
    let encoded = encoder
        .encode(&text, Encoder::MAX_PART_BYTES)
        .map_err(|problem| Diagnostic::error(Blame::Data, problem.to_string()))?;
    for &tokens in &measurements.options.windows {
        let windows: Vec<(&[u32], &[u8])> = (0..encoded.ids.len() / tokens)
            .map(|window| {
                let (start, end) = (window * tokens, (window + 1) * tokens);
                let bytes = encoded.byte_range(start, end, text.len());
                (&encoded.ids[start..end], &text.as_bytes()[bytes])
            })
            .collect();
        if windows.is_empty() {
            let what = format!("recurrence of {tokens} tokens: the input's text is shorter");
            measurements.left_out.push(what);
            continue;
        }
        let speed = recurrence_speed(&windows, RECURRENCE_TIME);
        let mut add = |series: String, value, unit| {
            measurements.add("recurrence", series, (tokens as f64, "tokens"), value, unit);
        };
        add("tokens, 1 core".to_owned(), speed.tokens, "tokens/s");
        add("their text, 1 core".to_owned(), speed.text, "bytes/s");
        add(
            "time relative to that without statistics of the whole window".to_owned(),
            speed.window_counts,
            "times",
        );
        add(format!("zlib-rs, level {LEVEL}"), speed.zlib_rs, "bytes/s");
        add("as fast as zlib-rs".to_owned(), speed.text / speed.zlib_rs, "times");
    }
    Ok(())
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("cannot start {threads} threads: {error}")).into()
    })
}

/// Reads the first documents of the input, [`TEXT_BYTES`] in total.
fn first_documents(plan: &Plan) -> Result<Vec<Document>> {
    let (mut documents, mut bytes) = (Vec::new(), 0);
    read(plan, |document| {
        bytes += text_bytes(&document);
        documents.push(document);
        if bytes < TEXT_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(documents)
}

/// Returns the bytes of text in the first documents of the input, for each of the `counts`.
fn bytes_of_first<const N: usize>(plan: &Plan, counts: [u64; N]) -> Result<[u64; N]> {
    let (mut bytes, mut read_so_far) = ([0; N], 0);
    read(plan, |document| {
        read_so_far += 1;
        for (count, bytes) in counts.into_iter().zip(&mut bytes) {
            *bytes += if read_so_far <= count { text_bytes(&document) as u64 } else { 0 };
        }
        ControlFlow::Continue(())
    })?;
    Ok(bytes)
}

fn read(plan: &Plan, mut visit: impl FnMut(Document) -> ControlFlow<()>) -> Result<()> {
    for unit in &plan.units {
        let lost = plan.lost_row_groups(unit)?;
        let bytes = plan.batch_bytes();
        let batches = documents::read_documents(&plan.dataset, unit, &plan.columns, bytes, lost)?;
        for batch in batches {
            for document in batch? {
                if visit(document).is_break() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn text_of(document: &Document) -> Option<&str> {
    match &document.content {
        Ok(DocumentContent::Text(text)) => Some(text),
        _ => None,
    }
}

fn text_bytes(document: &Document) -> usize {
    text_of(document).map_or(0, str::len)
}

fn table(attention: &Attention, measurements: &mut Measurements<'_>) -> Result<()> {
    let (model, kernel) = (&attention.model, attention.kernel());
    let precision = attention.reading.precision;
    let rows = model.spec().vocabulary_size as f64;
    let mut opened = |series: &str, fresh: bool| -> Result<()> {
        let folder = scratch()?;
        let open = |folder: &Path| {
            LayerZeroTable::open_or_build(model, kernel, precision, folder, &|_, _| {})
        };
        if !fresh {
            open(folder.path())?;
        }
        let seconds = median(measurements.options.repeats(), || {
            let own = scratch()?;
            let start = Instant::now();
            open(if fresh { own.path() } else { folder.path() })?;
            Ok(start.elapsed().as_secs_f64())
        })?;
        measurements.add("table", series.to_owned(), (rows, "rows"), seconds, "s");
        Ok(())
    };
    opened("built", true)?;
    opened("opened from cache", false)
}

#[derive(Clone, Copy)]
struct RunParameters {
    group: &'static str,
    at: (f64, &'static str),
    window: Option<usize>,
    threads: usize,
    rows: u64,
    /// Bytes of text in the rows; 0 if the input has token ids.
    text_bytes: u64,
}

pub(super) fn measure_runs(
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
        .map(|(rows, text_bytes)| {
            let (group, at) = ("run by documents", (rows as f64, "documents"));
            RunParameters { group, at, window: None, threads, rows, text_bytes }
        })
        .collect();
    drop(plan);
    let whole = parts[2];
    let windows = options.windows.iter().filter(|window| **window as u64 <= longest);
    let windows = windows.map(|window| {
        let (group, at) = ("run by window", (*window as f64, "tokens"));
        RunParameters { group, at, window: Some(*window), ..whole }
    });
    let counts = std::iter::successors(Some(1), |count| Some(count * 2));
    let counts = counts.take_while(|count| *count <= threads).map(|threads| {
        let (group, at) = ("run by threads", (threads as f64, "threads"));
        RunParameters { group, at, threads, ..whole }
    });
    let all: Vec<RunParameters> = windows.chain(counts).chain(parts).collect();
    measurements.progress.phase("run", (all.len() * options.repeats().max(1)) as u64);
    all.into_iter().try_for_each(|setting| measure_run(pipeline, setting, measurements))
}

/// Runs the pipeline once per repetition and adds the median time, tokens per second and the peak memory.
fn measure_run(
    pipeline: &Path,
    setting: RunParameters,
    measurements: &mut Measurements<'_>,
) -> Result<()> {
    let mut summaries = Vec::new();
    for _ in 0..measurements.options.repeats().max(1) {
        summaries.push(run(pipeline, measurements.options, setting)?);
        measurements.progress.steps(1);
    }
    summaries.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = &summaries[summaries.len() / 2];
    if middle.windows_scored == 0 {
        return Ok(());
    }
    let memory = summaries.iter().filter_map(|summary| summary.peak_memory_bytes).max();
    let mut add = |series: &str, value: f64, unit| {
        measurements.add(setting.group, series.to_owned(), setting.at, value, unit);
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
fn run(pipeline: &Path, options: &BenchOptions, setting: RunParameters) -> Result<Summary> {
    let folder = scratch()?;
    let failed = |why: String| {
        let message = format!("a run of `{}` failed: {why}", pipeline.display());
        Diagnostic::error(Blame::Machine, message)
    };
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(program);
    command.arg("run").arg(pipeline).arg("--quiet");
    for set in &options.overrides.set {
        command.args(["--set", set]);
    }
    for param in &options.overrides.param {
        command.args(["--param", param]);
    }
    let output = folder.path().join("out");
    command.arg("--set").arg(format!("output.path={}", output.display()));
    if let Some(window) = setting.window {
        command.arg("--set").arg(format!("stages.tokenize.window_tokens={window}"));
    }
    let (threads, rows) = (setting.threads.to_string(), setting.rows.to_string());
    command.args(["--threads", &threads, "--limit", &rows]);
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
