//! The command line: each command is a thin wrapper over the library.

pub(crate) mod answer;
pub(crate) mod cache;
pub mod commands;
pub(crate) mod devices;
pub(crate) mod fixtures;
pub(crate) mod init;
pub(crate) mod logging;
pub(crate) mod observe;
pub(crate) mod planned;
pub(crate) mod ray;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod validate;

use std::path::PathBuf;

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use longsift_stages::model::BackendName;

use crate::plan::shard::Shard;
use crate::run::Phase;
use crate::spec::Overrides;
use crate::tools::bench::measurements::BenchOptions;
use crate::tools::evaluate::EvaluateOptions;
use crate::tools::map::MapOptions;
use crate::tools::starter::StarterOptions;

/// Arguments of the command line.
#[derive(Debug, Parser)]
#[command(name = "longsift", version, about, max_term_width = 110)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Format of logs on standard error.
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log only warnings and errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Log more detail; twice for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// When to use colours.
    #[arg(long, global = true, default_value = "auto")]
    pub color: ColorChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// `candle` on a GPU or for `precision: bf16`, otherwise `own`.
    Auto,
    /// The kernels of longsift, on processors.
    Own,
    /// The candle library, in builds with the feature `candle` or `candle-cuda`.
    Candle,
}

impl BackendChoice {
    pub(crate) fn name(self) -> Option<BackendName> {
        match self {
            Self::Auto => None,
            Self::Own => Some(BackendName::Own),
            Self::Candle => Some(BackendName::Candle),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnswerFormat {
    /// Plain text.
    Text,
    /// One JSON document.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValidateFormat {
    /// Plain text on standard error.
    Text,
    /// One JSON document: whether the pipeline is valid, and every problem with its location.
    Json,
    /// Annotations of GitHub Actions, which appear in the diff of a pull request.
    Github,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ManualFormat {
    /// Pages for `man`, one for each command: `longsift.1`, `longsift-run.1`, …
    Man,
    /// `pipeline.md`, `commands.md`, `summary.md` and `exit-codes.md`.
    Markdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// This machine.
    Local,
    /// A Ray cluster.
    Ray,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a pipeline. An interrupted run resumes where it stopped.
    Run(RunArguments),
    /// Check a pipeline file without opening any other file.
    Validate {
        #[command(flatten)]
        arguments: PipelineArguments,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: ValidateFormat,
    },
    /// Run the tests of a pipeline: rows with their expected outcomes. Exit code 6 if an outcome differs.
    Test(TestArguments),
    /// Show what a run would do. Reads a sample of the documents and no weights.
    Plan {
        #[command(flatten)]
        arguments: PlanArguments,
        /// Show placement, memory and minimum time on GPUs that this machine does not have: `8xA800-80GB`, or `2xNAME:GB`.
        #[arg(long, value_name = "GPUS")]
        devices: Option<String>,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Show the devices of this machine, their memory, and the part that running longsift processes have reserved.
    Devices(DevicesArguments),
    /// Find the fastest number of windows in flight (`workers_per_device`) and of heads at a time (`key_heads_at_once`).
    Tune {
        #[command(flatten)]
        arguments: PlanArguments,
        /// Seconds of measurement per setting.
        #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
        seconds: f64,
        /// Also write the results as an HTML page: one file without scripts that works offline.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Show the progress of a run; with `--watch` also its speed and remaining time.
    Status(StatusArguments),
    /// Check the files of a run directory against its records: digests, columns, counts.
    Verify {
        /// The run directory.
        run_dir: PathBuf,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Compare two runs and list the documents that changed. Exit code 5 if the runs differ.
    Diff {
        /// Run directory of the first run.
        first: PathBuf,
        /// Run directory of the second run.
        second: PathBuf,
        /// Maximum number of changed documents to list.
        #[arg(long, value_name = "N", default_value_t = 20)]
        documents: usize,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Show what a finished run kept and why: rows, scores, statistics, sample texts, devices.
    Report {
        /// The run directory.
        run_dir: PathBuf,
        /// Also write an HTML page: one file that works offline and is legible without scripts.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Leave out the text of the corpus.
        #[arg(long)]
        no_text: bool,
        /// Output format; `json` prints `report.json`.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Preview other score or filter settings of a finished run (exact, read-only).
    Whatif {
        /// The run directory.
        run_dir: PathBuf,
        /// Change a setting by its path: `--set stages.filter.keep_fraction=0.1`.
        #[arg(long, value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// List up to N samples that would be added and up to N that would be dropped.
        #[arg(long, value_name = "N", default_value_t = 0)]
        list: usize,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Print a JSON Schema, or list all of them.
    Schema {
        /// Name of the schema: `pipeline`, `summary`, …
        name: Option<String>,
    },
    /// Print the reference page of a stage, or list all stages.
    Stages {
        /// Name of the stage: `tokenize`, `score`, …
        name: Option<String>,
    },
    /// Write a commented pipeline: one that runs over the given inputs, or an example to edit.
    Init(StarterOptions),
    /// Show which tensors of a checkpoint are read and how much memory they take.
    Inspect {
        /// Model folder, folder with only a config.json, or GGUF file.
        model_dir: PathBuf,
        /// Run the whole model on the token ids in this file, a JSON list, and show their losses. Nothing is prepended, and no
        /// tokenizer is needed.
        #[arg(long, value_name = "IDS.json")]
        forward: Option<PathBuf>,
        /// Backend that runs the model.
        #[arg(long, value_enum, default_value = "auto", requires = "forward")]
        backend: BackendChoice,
        /// Output format.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Print a completion script for a shell.
    Completions {
        /// Shell to write the script for.
        shell: Shell,
    },
    /// List caches and run directories, or clear some of them.
    Cache(CacheArguments),
    /// Write manual pages, or the reference as Markdown, into a folder.
    Manual {
        /// The folder, which is created if it is missing.
        folder: PathBuf,
        /// Format of the manual.
        #[arg(long, value_enum, default_value = "man")]
        format: ManualFormat,
    },
    /// Write the lock of a pipeline: resolved settings, and digests of model, tokenizer and kernel.
    Lock(PlanArguments),
    /// Measure this machine: kernels, and with a pipeline also its tokenizer, its table and whole runs.
    Bench(BenchArguments),
    /// Measure how well the scores of a pipeline separate good windows of its corpus from worse ones, by labels or with
    /// constructed windows, before anything is filtered.
    Evaluate(EvaluateArguments),
    /// Explain the statistics of one window: which tokens attend far back, and which repeat earlier text.
    Explain(ExplainArguments),
    /// Show the attention between the blocks of one document, or the messages of a conversation.
    Map(MapArguments),
    /// Print the token windows of a pipeline as JSON lines, exactly as they are scored.
    Tokens {
        #[command(flatten)]
        arguments: PlanArguments,
        /// Print the token ids.
        #[arg(long)]
        ids: bool,
    },
}

/// A pipeline and its overrides.
#[derive(Clone, Debug, Args)]
pub struct PipelineArguments {
    /// Pipeline file or, except for `validate` and `test`, a run directory, to use its recorded settings.
    pub pipeline: PathBuf,
    #[command(flatten)]
    pub overrides: Overrides,
}

/// A pipeline and options of its plan.
#[derive(Clone, Debug, Args)]
pub struct PlanArguments {
    #[command(flatten)]
    pub pipeline: PipelineArguments,
    /// Use only the first ROWS rows of the input.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Number of threads; by default all that the process may use.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Kernel: portable-f32, avx2-f32, avx512-f32, neon-f32, amx-bf16, portable-int16, avx2-int16, avx512-int16 or, on GPUs,
    /// cuda-f32, cuda-v1-bf16, cuda-v2-bf16 or cuda-v3-bf16; by default the fastest that this machine supports for the pipeline's
    /// `precision`.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Backend of whole models.
    #[arg(long, value_enum, default_value = "auto")]
    pub backend: BackendChoice,
    /// Select from the scores of another run with the same score settings.
    #[arg(long, value_name = "RUN_DIR")]
    pub scores_from: Option<PathBuf>,
    /// Process only the work units of one shard, numbered from 0: `--shard 3/16`. Shards depend only on the input.
    #[arg(long, value_name = "INDEX/COUNT")]
    pub shard: Option<Shard>,
    /// Download no models and nothing from the hub: they must already be on this machine. Inputs of stores and web servers are read.
    #[arg(long)]
    pub offline: bool,
}

#[derive(Clone, Debug, Args)]
pub struct EvaluateArguments {
    #[command(flatten)]
    pub plan: PlanArguments,
    #[command(flatten)]
    pub options: EvaluateOptions,
    /// Also write an HTML page: one file without scripts that works offline.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show only the number of windows and tokens, and the estimated time of each measure.
    #[arg(long)]
    pub dry_run: bool,
    /// Also print detailed tables: ladder, pairs, top fifth, guards, agreement, kept share of each class.
    #[arg(long)]
    pub details: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

#[derive(Clone, Debug, Args)]
pub struct StatusArguments {
    /// The run directory.
    pub run_dir: PathBuf,
    /// Print the status as one line, repeatedly until the run stops.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two refreshes.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Stop after N refreshes.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Former name of `--count`: refused with the new name.
    #[arg(long, value_name = "N", hide = true, value_parser = renamed_to_count)]
    pub looks: Option<String>,
    /// Output format; with `--watch` one JSON document per line.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

fn renamed_to_count(_: &str) -> Result<String, &'static str> {
    Err("the option was renamed: use `--count N`")
}

#[derive(Clone, Debug, Args)]
pub struct TestArguments {
    #[command(flatten)]
    pub pipeline: PipelineArguments,
    /// Tests file; by default next to the pipeline: `web.tests.yaml` for `web.yaml`.
    #[arg(long, value_name = "FILE")]
    pub tests: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

#[derive(Clone, Debug, Args)]
pub struct CacheArguments {
    /// Cache folder; by default that of this user: `longsift` in `$XDG_CACHE_HOME` or `~/.cache`.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Also list the run directories below this folder.
    #[arg(long, value_name = "FOLDER")]
    pub runs: Option<PathBuf>,
    /// Remove entries of these kinds: `tables,lines`. Caches are rebuilt when they are needed. `runs` removes finished
    /// run directories: their output stays, but their scores are lost.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub clear: Vec<String>,
    /// Remove only entries that have not been used for N days.
    #[arg(long, value_name = "DAYS", default_value_t = 0, requires = "clear")]
    pub unused_days: u64,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

#[derive(Clone, Debug, Args)]
pub struct ExplainArguments {
    #[command(flatten)]
    pub plan: PlanArguments,
    /// Window, as in the column `longsift_sample_id`: `ID#0`, or `FILE:ROW#0`.
    #[arg(value_name = "ID#WINDOW")]
    pub sample: String,
    /// Show the blocks of this layer of the pipeline's whole model (`language-model`) instead of those of the first
    /// layer.
    #[arg(long, value_name = "N")]
    pub layer: Option<u32>,
    /// Also write an HTML page: one file without scripts that works offline.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

#[derive(Clone, Debug, Args)]
pub struct MapArguments {
    #[command(flatten)]
    pub plan: PlanArguments,
    #[command(flatten)]
    pub options: MapOptions,
    /// Also write an HTML page: one file without scripts that works offline.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write the map as a PNG image.
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,
    /// Also write a Parquet table with a row for each pair of blocks.
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

#[derive(Clone, Debug, Args)]
pub struct DevicesArguments {
    /// Refresh until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two refreshes.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Stop after N refreshes.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Former name of `--count`: refused with the new name.
    #[arg(long, value_name = "N", hide = true, value_parser = renamed_to_count)]
    pub looks: Option<String>,
    /// Also write charts of memory and load over time as an HTML page, updated at each refresh.
    #[arg(long, value_name = "FILE", requires = "watch")]
    pub html: Option<PathBuf>,
    /// Append every refresh to a CSV file.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Share of a GPU's memory that runs never use.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub headroom_fraction: f64,
    /// Output format (not with `--watch`).
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct RunArguments {
    #[command(flatten)]
    pub plan: PlanArguments,
    /// Phase to run: `all`; or `score`, `write` and `select`, one after the other. With `--shard`, any number of processes may
    /// run `score` or `write` at once.
    #[arg(long, value_enum, default_value = "all")]
    pub phase: Phase,
    /// Executor of the shards: this machine, or a Ray cluster (requires the Python package with Ray: `pip install
    /// '.[ray]'` in a clone).
    #[arg(long, value_enum, default_value = "local")]
    pub engine: Engine,
    /// Address of the Ray cluster: `auto`, `HOST:PORT`, `ray://…`; by default a cluster is started on this machine.
    #[arg(long, requires = "engine")]
    pub address: Option<String>,
    /// Number of shards for a Ray cluster; by default four for each task that the cluster runs at once (to write, one), at most one
    /// per work unit.
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub shards: Option<u32>,
    /// Name of this run in lineage events and in the summary. In a scheduler, derive it from the logical date, so that a retry
    /// has the same name.
    #[arg(long, value_name = "NAME")]
    pub run_id: Option<String>,
    /// Also write the summary to this file, even if the run fails: Airflow's pod operator reads
    /// `/airflow/xcom/return.json`. An existing file is removed when the run starts.
    #[arg(long, value_name = "PATH")]
    pub summary_file: Option<PathBuf>,
    /// Write metrics of the run to this file (`*.prom`) for Prometheus' textfile collector: its progress every 15 seconds, and
    /// its result at the end.
    #[arg(long, value_name = "PATH")]
    pub metrics_textfile: Option<PathBuf>,
    /// Footers of the input, as read by the driver of a cluster.
    #[arg(long, value_name = "PATH", hide = true)]
    pub footers: Option<PathBuf>,
    /// Plan without devices: scores come from other machines, with the kernel of `--kernel`.
    #[arg(long, hide = true)]
    pub devices_elsewhere: bool,
    /// Stop, as on SIGTERM, when the parent process ends.
    #[arg(long, hide = true)]
    pub stop_with_parent: bool,
    /// Discard the scores and start again. The result of earlier runs stays until the new one is committed. To resume an
    /// interrupted fresh start, run without this flag.
    #[arg(long)]
    pub fresh: bool,
    /// Fail if anything differs from the lock next to the pipeline file.
    #[arg(long)]
    pub locked: bool,
    /// Retry only the rows that earlier runs quarantined.
    #[arg(long)]
    pub only_quarantined: bool,
    /// Recompute the statistics of this measure after its settings have changed; those of other measures are reused. May
    /// be repeated.
    #[arg(long, value_name = "MEASURE")]
    pub remeasure: Vec<String>,
    /// Format of the summary on standard output. Default: `json`, or nothing on a terminal.
    #[arg(long, value_enum)]
    pub format: Option<AnswerFormat>,
    /// Exit code of a run that has nothing to do, for example 99 for Airflow.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub nothing_to_do_exit: u8,
}

#[derive(Clone, Debug, Args)]
pub struct BenchArguments {
    #[command(flatten)]
    pub options: BenchOptions,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write charts of the results as an SVG.
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Write charts and a table of all results as an HTML page: one file without scripts that works offline.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
