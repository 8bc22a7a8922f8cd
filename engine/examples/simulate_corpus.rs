//! Times the plan and the selection of a corpus of many work units, without measuring any: writes an input of tiny
//! documents and the score tables and records that a score phase would leave, with random values, then runs the real
//! plan, selection and accounting over them.
//!
//! ```sh
//! cargo run --release -p longsift-engine --example simulate_corpus -- \
//!     FOLDER [UNITS [WINDOWS_PER_UNIT [GROUPS [percentiles] [write | report]]]]
//! ```
//!
//! By default 1,000,000 units of 31 windows in 8 groups: 10^12 tokens in windows of 32,768 (31 of them have 4 MB, so that real
//! units are larger and fewer). `percentiles` takes the least of two percentiles as the score instead of LongAttn's. Takes
//! about 14 KB of FOLDER per unit, a file and a record each; `write` also writes and commits the output, as much again; `report`
//! does so with `output.report` and guards, and prints how large the report is and how long it took. What is in FOLDER already
//! is used.

#![expect(clippy::print_stdout, reason = "the table is what the program is for")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use longsift_engine::base::counts::Counts;
use longsift_engine::base::machine::peak_memory_bytes;
use longsift_engine::base::progress::Progress;
use longsift_engine::base::stop::Stop;
use longsift_engine::base::text;
use longsift_engine::base::text::{bytes, count};
use longsift_engine::dataset::documents::{DocumentContent, content_hash};
use longsift_engine::dataset::units::WorkUnit;
use longsift_engine::plan::Plan;
use longsift_engine::plan::identity::Digests;
use longsift_engine::plan::lock;
use longsift_engine::plan::options::PlanOptions;
use longsift_engine::run;
use longsift_engine::run::{Phase, RunOptions};
use longsift_engine::run_directory::facts::Fingerprints;
use longsift_engine::run_directory::pipeline_lock::PipelineLock;
use longsift_engine::run_directory::scores;
use longsift_engine::run_directory::scores::ScoreRow;
use longsift_engine::run_directory::units;
use longsift_engine::run_directory::units::{Part, UnitRecord};
use longsift_engine::score;
use longsift_engine::score::context::ScoreTotals;
use longsift_engine::select;
use longsift_engine::spec::Overrides;
use longsift_stages::contract::{StatisticValues, Value};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use rayon::prelude::*;
use testkit::Random;

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Units, a row group each, in one input file.
const UNITS_PER_FILE: u64 = 20;
/// Documents of a unit; its windows are spread over them.
const DOCUMENTS: u64 = 10;
/// Tokens of a simulated window: what is in it matters to nobody here.
const WINDOW_TOKENS: u64 = 4;
const HEADS: usize = 2;

fn main() -> Answer<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or(
        "usage: simulate_corpus FOLDER [UNITS [WINDOWS [GROUPS [percentiles] [write | report]]]]",
    )?);
    let units = arguments.next().map_or(Ok(1_000_000), |units| units.parse())?;
    let windows = arguments.next().map_or(Ok(31), |windows| windows.parse())?;
    let groups = arguments.next().map_or(Ok(8), |groups| groups.parse())?;
    let words: Vec<String> = arguments.collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    let (percentiles, report) = (has("percentiles"), has("report"));
    let write = report || has("write");
    println!("{:<28}{:>10}{:>14}{:>14}", "", "seconds", "of processors", "peak memory");
    let shape = Shape { units, windows, groups, percentiles };
    timed("input", || shape.write_input(&folder))?;
    let plan = timed("plan", || open_plan(&folder, report))?;
    assert_eq!(plan.units.len() as u64, units, "a row group is a work unit");
    let lock = lock::lock_with_models(&plan, &digests(&plan)?);
    let wanted = lock.identity.fingerprints();
    timed("scores (simulated)", || shape.write_scores(&plan, &lock, &wanted))?;
    let directory = &plan.directory;
    let standing = timed("records", || {
        Ok(units::valid_records(directory, &plan.dataset, &plan.units, &wanted)?)
    })?;
    let progress = Progress::new(false);
    let scored: ScoreTotals =
        timed("accounting", || Ok(score::reuse(&plan, directory, standing, &progress)?))?;
    scored.counts.check()?;
    assert_eq!((scored.counts.rows, scored.counts.windows), (plan.rows(), units * windows));
    let selection = timed("selection", || {
        Ok(select::select(&plan, directory, &scored.records, &lock.identity, &Stop::default())?)
    })?;
    let kept: u64 = selection.calibration.groups.iter().map(|group| group.kept).sum();
    drop((selection, scored));
    if write {
        let options = RunOptions { phase: Phase::Select, ..RunOptions::default() };
        let stop = Stop::on_signals()?;
        let outcome =
            timed("whole select phase", || Ok(run::run(&plan, &options, &progress, &stop)?))?;
        assert_eq!(outcome.summary.kept, kept, "what was selected was written");
        timed("once more: nothing to do", || Ok(run::run(&plan, &options, &progress, &stop)?))?;
        if report {
            print_report(&directory.root, &progress)?;
        }
    }
    println!(
        "{} units of {} files, {} windows, {} kept",
        count(units),
        count(plan.dataset.files.len() as u64),
        count(units * windows),
        count(kept)
    );
    Ok(())
}

/// Digests of the plan's files.
fn digests(plan: &Plan) -> Answer<Digests> {
    let attention = plan.needed_attention()?;
    let opened = plan.open_table(attention, &|_, _| {})?;
    Ok(Digests::new(plan, Some(opened.weights_digest), std::collections::BTreeMap::new())?)
}

/// Prints how long `work` took and the most memory that the process had meanwhile.
fn timed<T>(what: &str, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    // 5 makes the largest resident size the present one (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5")?;
    let (start, processors) = (Instant::now(), processor_seconds()?);
    let done = work()?;
    println!(
        "{what:<28}{:>10.1}{:>14.1}{:>14}",
        start.elapsed().as_secs_f64(),
        processor_seconds()? - processors,
        bytes(peak_memory_bytes().unwrap_or(0))
    );
    Ok(done)
}

/// Time that processors have worked for this process: user and system, which the kernel counts in hundredths.
fn processor_seconds() -> Answer<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/self/stat has no name")?;
    let ticks: Result<Vec<f64>, _> = fields.split(' ').skip(11).take(2).map(str::parse).collect();
    Ok(ticks?.iter().sum::<f64>() / 100.0)
}

/// Prints how large the report is and which part of the phase's time it took.
fn print_report(directory: &Path, progress: &Progress) -> Answer<()> {
    for name in ["report.html", "report.json"] {
        println!("{name:<28}{:>14} bytes", count(fs::metadata(directory.join(name))?.len()));
    }
    for (stage, time) in progress.times() {
        println!("  {stage:<26}{:>10.1}", time.as_secs_f64());
    }
    Ok(())
}

fn open_plan(folder: &Path, report: bool) -> Answer<Plan> {
    let pipeline = folder.join("pipeline.yaml");
    let mut overrides = Overrides::default();
    if report {
        // Uniform values: a tenth is refused.
        let guards =
            "[{statistic: dependency_strength, min: 0.3}, {statistic: far_variance, max: 0.9}]";
        overrides.set =
            vec!["output.report=true".to_owned(), format!("stages.filter.guards={guards}")];
    }
    Ok(longsift_engine::plan(&pipeline, &overrides, PlanOptions::default())?)
}

/// Size of the simulation.
#[derive(Clone, Copy)]
struct Shape {
    units: u64,
    windows: u64,
    groups: u64,
    percentiles: bool,
}

impl Shape {
    /// Windows of a document of a unit: the first ones have one more where they do not divide evenly.
    fn windows_of(self, document: u64) -> u64 {
        self.windows / DOCUMENTS + u64::from(document < self.windows % DOCUMENTS)
    }

    fn write_input(self, folder: &Path) -> Answer<()> {
        let model =
            fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../datasets/demo/model"))?;
        let terms = if self.percentiles {
            ", combine: least, terms: [{statistic: dependency_strength, standardise: percentile}, \
             {statistic: far_variance, weight: -1, standardise: percentile}]"
        } else {
            ""
        };
        let pipeline = format!(
            "version: 1\nname: simulated\n\
             input: {{path: input, id_column: id, tokens_column: tokens, unit_bytes: 1024}}\n\
             stages:\n  - {{stage: load-partial-model, model: {}, cache_folder: cache}}\n  \
             - {{stage: tokenize, window_tokens: 64, windows: disjoint, bos: 0}}\n  \
             - {{stage: first-layer-attention}}\n  - {{stage: score, within: source{terms}}}\n  \
             - {{stage: filter, keep_fraction: 0.25}}\noutput: {{path: out}}\n",
            model.display()
        );
        fs::create_dir_all(folder.join("input"))?;
        fs::write(folder.join("pipeline.yaml"), pipeline)?;
        (0..self.units.div_ceil(UNITS_PER_FILE)).into_par_iter().try_for_each(|file| {
            let path = folder.join(format!("input/{file:06}.parquet"));
            if path.exists() {
                return Ok(());
            }
            let units = file * UNITS_PER_FILE..self.units.min((file + 1) * UNITS_PER_FILE);
            Ok(fs::write(path, parquet(units.map(|unit| self.documents(unit)))?)?)
        })
    }

    /// The row group of a unit.
    fn documents(self, unit: u64) -> RecordBatch {
        let documents = 0..DOCUMENTS;
        let ids =
            documents.clone().map(|document| format!("document-of-unit-{unit:08}-{document:02}"));
        let groups = self.groups;
        let sources =
            documents.clone().map(|document| format!("source-{}", (unit + document) % groups));
        let mut tokens = ListBuilder::new(Int32Builder::new());
        for document in documents {
            tokens.append_value(self.tokens(unit, document).into_iter().map(|id| Some(id as i32)));
        }
        let columns: [(&str, ArrayRef); 3] = [
            ("id", Arc::new(StringArray::from_iter_values(ids))),
            ("source", Arc::new(StringArray::from_iter_values(sources))),
            ("tokens", Arc::new(tokens.finish())),
        ];
        RecordBatch::try_from_iter(columns).expect("the columns are equally long")
    }

    fn tokens(self, unit: u64, document: u64) -> Vec<u32> {
        let length = (self.windows_of(document) * WINDOW_TOKENS).max(1);
        (0..length).map(|token| ((unit + document + token) % 256) as u32).collect()
    }

    fn write_scores(self, plan: &Plan, lock: &PipelineLock, wanted: &Fingerprints) -> Answer<()> {
        let directory = &plan.directory;
        directory.prepare()?;
        lock.write(&directory.lock_file())?;
        plan.units.par_iter().try_for_each(|unit| {
            let record = units::record_path(directory, &unit.name());
            if record.exists() {
                return Ok(());
            }
            let rows = self.score_rows(unit);
            let table = parquet(std::iter::once(scores::to_batch(
                &unit.file_path,
                &rows,
                &plan.measures.columns,
            )))?;
            let scores = Part {
                path: format!("scores/part-{}.parquet", unit.name()),
                rows: rows.len() as u64,
                bytes: table.len() as u64,
                sha256: text::sha256_hex(&table),
            };
            fs::write(directory.root.join(&scores.path), table)?;
            let counts = Counts {
                rows: unit.rows,
                rows_scored: unit.rows,
                windows: scores.rows,
                tokens_total: scores.rows * WINDOW_TOKENS,
                tokens_scored: scores.rows * WINDOW_TOKENS,
                ..Counts::default()
            };
            let simulated = UnitRecord {
                unit: unit.name(),
                file: unit.file_path.clone(),
                row_groups: (unit.row_groups.start, unit.row_groups.end),
                first_row: unit.first_row,
                input: units::identity(&plan.dataset, unit),
                windows: wanted.windows.clone(),
                measures: wanted.measures.clone(),
                counts,
                scores,
                dropped: None,
                quarantine: None,
                unreadable: Vec::new(),
            };
            Ok(fs::write(record, serde_json::to_vec_pretty(&simulated)?)?)
        })
    }

    fn score_rows(self, unit: &WorkUnit) -> Vec<ScoreRow> {
        let (number, mut random) = (unit.index as u64, Random(unit.index as u64));
        let mut rows = Vec::new();
        for document in 0..DOCUMENTS {
            let tokens = self.tokens(number, document);
            let tokens_total = tokens.len() as u64;
            let hash = content_hash(&DocumentContent::Tokens(tokens));
            rows.extend((0..self.windows_of(document)).map(|window| ScoreRow {
                input_row: unit.first_row + document,
                id: format!("document-of-unit-{number:08}-{document:02}"),
                window: window as u32,
                windows: self.windows_of(document) as u32,
                tokens: (window * WINDOW_TOKENS, (window + 1) * WINDOW_TOKENS),
                bytes: None,
                tokens_total,
                tokens_scored: WINDOW_TOKENS,
                content_hash: hash.clone(),
                statistics: vec![values(&mut random)],
            }));
        }
        rows
    }
}

/// A Parquet file in memory, a row group for each batch. Uncompressed and without statistics: tiny pages gain nothing.
fn parquet(batches: impl Iterator<Item = RecordBatch>) -> Answer<Vec<u8>> {
    let mut batches = batches.peekable();
    let schema = batches.peek().ok_or("a file needs a row group")?.schema();
    let statistics = EnabledStatistics::None;
    let properties = WriterProperties::builder().set_statistics_enabled(statistics).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties))?;
    for batch in batches {
        writer.write(&batch)?;
        writer.flush()?;
    }
    Ok(writer.into_inner()?)
}

/// In the order of the columns of first-layer attention, with all rows measured and no histogram.
fn values(random: &mut Random) -> StatisticValues {
    let mut heads = || (0..HEADS).map(|_| random.uniform()).collect::<Vec<f64>>();
    let mean = |heads: &[f64]| Value::Number(heads.iter().sum::<f64>() / HEADS as f64);
    let (strengths, variances) = (heads(), heads());
    StatisticValues(vec![
        Value::Count(1),
        mean(&strengths),
        mean(&variances),
        Value::Null,
        Value::Null,
        Value::Numbers(strengths),
        Value::Numbers(variances),
        Value::Null,
    ])
}
