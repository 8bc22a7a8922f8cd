//! The command line: each command is a thin wrapper over the library.

pub(crate) mod answer;
pub(crate) mod cache;
pub mod commands;
pub(crate) mod devices;
pub(crate) mod evaluate;
pub(crate) mod explain;
pub(crate) mod fixtures;
pub(crate) mod init;
pub(crate) mod logging;
pub(crate) mod map;
pub(crate) mod observe;
pub(crate) mod planned;
pub(crate) mod ray;
pub(crate) mod run;
pub(crate) mod status;
pub(crate) mod terminal;
pub(crate) mod validate;

use std::path::PathBuf;

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::plan::shard::Shard;
use crate::run::Phase;

/// The command line of longsift.
#[derive(Debug, Parser)]
#[command(name = "longsift", version, about, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How logs are written to standard error.
    #[arg(long, global = true, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Only warnings and errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// More detail; twice for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// When to use colours.
    #[arg(long, global = true, default_value = "auto")]
    pub color: ColorChoice,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnswerFormat {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// How what is wrong with a pipeline is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValidateFormat {
    /// For people, on standard error.
    Text,
    /// One JSON document: whether the pipeline is valid, and every problem with its place.
    Json,
    /// Annotations of GitHub Actions, a line each, which appear beside the lines of a pull request.
    Github,
}

/// What the manual is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ManualFormat {
    /// Pages for `man`, one for each command: `longsift.1`, `longsift-run.1`, …
    Man,
    /// `pipeline.md`, `commands.md`, `summary.md` and `exit-codes.md`.
    Markdown,
}

/// Who runs the shards of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// This machine.
    Local,
    /// A Ray cluster.
    Ray,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a pipeline; run again, it resumes where it stopped.
    Run(RunArguments),
    /// Checks a pipeline file, opening nothing else.
    Validate {
        /// The pipeline.
        #[command(flatten)]
        arguments: PipelineArguments,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: ValidateFormat,
    },
    /// Runs a pipeline over rows of its own tests, and says which became something else than they were to. Exit code 6 where any did.
    Test(TestArguments),
    /// Shows what a run would do, reading no weights and a sample of the documents.
    Plan {
        /// The pipeline.
        #[command(flatten)]
        arguments: PlanArguments,
        /// Shows placement, memory and the least time on cards that are not here: `8xA800-80GB`, `2xNAME:GB`.
        #[arg(long, value_name = "CARDS")]
        devices: Option<String>,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Shows the devices of this machine, their memory, and what a running longsift has reserved.
    Devices(DevicesArguments),
    /// Finds the fastest number of windows in flight and of heads at a time, by measuring.
    Tune {
        /// The pipeline.
        #[command(flatten)]
        arguments: PlanArguments,
        /// Seconds to measure each setting.
        #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
        seconds: f64,
        /// Also draws what was measured as a page: one file that needs no network and no scripts.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Shows how far a run is; with `--watch` also how fast it goes and how long it will take.
    Status(StatusArguments),
    /// Checks that a run directory still holds what it recorded: digests, columns, accounting.
    Verify {
        /// The run directory.
        run_dir: PathBuf,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Says what differs between two runs, and which documents it changed. Exit code 5 where something does.
    Diff {
        /// The run directory of the first run.
        first: PathBuf,
        /// The run directory of the second run.
        second: PathBuf,
        /// How many changed documents are listed.
        #[arg(long, value_name = "N", default_value_t = 20)]
        documents: usize,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Shows what a finished run kept and why: rows, scores, statistics, samples as text, the machine.
    Report {
        /// The run directory.
        run_dir: PathBuf,
        /// Also writes a page to look at: one file that needs no network and is legible without scripts.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Shows no text of the corpus.
        #[arg(long)]
        no_text: bool,
        /// How to write the answer; `json` is `report.json`.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Says what other settings of the score or the filter would keep of a finished run: exactly, in seconds, writing nothing.
    Whatif {
        /// The run directory.
        run_dir: PathBuf,
        /// Changes a setting, by path: `--set stages.filter.keep_fraction=0.1`.
        #[arg(long, value_name = "PATH=VALUE")]
        set: Vec<String>,
        /// How many samples that enter, and that leave, are named.
        #[arg(long, value_name = "N", default_value_t = 0)]
        list: usize,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Prints a JSON Schema; without a name, lists them.
    Schema {
        /// Which one: `pipeline`, `summary`, …
        name: Option<String>,
    },
    /// Prints the reference page of a stage; without a name, lists the stages.
    Stages {
        /// Which one: `tokenize`, `score`, …
        name: Option<String>,
    },
    /// Writes a pipeline with comments: of given inputs one that runs, without them one to start from.
    Init(InitArguments),
    /// Shows what of a checkpoint is read and how much memory it takes.
    Inspect {
        /// The model folder, one with only a config.json, or a GGUF file.
        model_dir: PathBuf,
        /// A JSON list of token ids: shows what the whole model makes of this window, its losses first. Nothing is
        /// prepended, and no tokenizer is needed.
        #[arg(long, value_name = "IDS.json")]
        forward: Option<PathBuf>,
        /// How to write the answer.
        #[arg(long, value_enum, default_value = "text")]
        format: AnswerFormat,
    },
    /// Prints a completion script for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Lists what longsift keeps in caches, and old run directories; clears what is named.
    Cache(CacheArguments),
    /// Writes manual pages, or the reference as Markdown, into a folder.
    Manual {
        /// The folder; it is made.
        folder: PathBuf,
        /// What to write.
        #[arg(long, value_enum, default_value = "man")]
        format: ManualFormat,
    },
    /// Writes the lock of a pipeline: settings as resolved, model, tokenizer and kernel by content.
    Lock(PlanArguments),
    /// Measures this machine: kernels, and with a pipeline its tokenizer, its table and whole runs.
    Bench(BenchArguments),
    /// Says what each score of a pipeline tells apart in the pipeline's own corpus, before anything is filtered.
    Evaluate(EvaluateArguments),
    /// Measures one window again and shows where its figures come from: which tokens look far back, and what recurs where.
    Explain(ExplainArguments),
    /// Shows how the blocks of one document attend to each other in the first layer, or the messages of a conversation.
    Map(MapArguments),
    /// Prints the token windows of a pipeline as JSON lines, to see what is scored.
    Tokens {
        /// The pipeline.
        #[command(flatten)]
        arguments: PlanArguments,
        /// Print the token ids themselves, too.
        #[arg(long)]
        ids: bool,
    },
}

/// A pipeline and what the command line changes in it.
#[derive(Clone, Debug, Args)]
pub struct PipelineArguments {
    /// The pipeline file, or the run directory of a run to repeat.
    pub pipeline: PathBuf,
    /// Changes a setting, by path: `--set stages.filter.keep_fraction=0.25`.
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Sets a parameter that the pipeline declares: `--param date=2026-11-20`.
    #[arg(long, value_name = "NAME=VALUE")]
    pub param: Vec<String>,
}

/// A pipeline, and how it would be run.
#[derive(Clone, Debug, Args)]
pub struct PlanArguments {
    /// The pipeline.
    #[command(flatten)]
    pub pipeline: PipelineArguments,
    /// Only the first rows of the input.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Threads; by default as many as the process may use.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// The kernel: portable-f32, avx2-f32, avx512-f32, neon-f32, amx-bf16 or one for integers; by default the fastest that
    /// this machine supports for the pipeline's `precision`.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Selects from the scores of another run of the same score settings.
    #[arg(long, value_name = "RUN_DIR")]
    pub scores_from: Option<PathBuf>,
    /// Only the work units of one shard of many, numbered from 0: `--shard 3/16`. The cut depends on the input and
    /// on nothing else.
    #[arg(long, value_name = "INDEX/COUNT")]
    pub shard: Option<Shard>,
    /// Fetches nothing: models of the hub must be on this machine.
    #[arg(long)]
    pub offline: bool,
}

/// Input of a new pipeline.
#[derive(Clone, Debug, Args)]
pub struct InitArguments {
    /// Files of one folder, a folder, or a glob in quotes. The documents' column is found by its name, and windows are as long as
    /// half of the documents.
    pub inputs: Vec<PathBuf>,
    /// The pipeline file; an existing one is kept. `pipeline.schema.json`, for editors, is written into the same folder.
    #[arg(long, value_name = "FILE", default_value = "pipeline.yaml")]
    pub output: PathBuf,
    /// A folder with tokenizer.json, or a GGUF file; by default that of `--model`.
    #[arg(long, value_name = "FOLDER")]
    pub tokenizer: Option<String>,
    /// A model folder: its first-layer attention is measured as well.
    #[arg(long, value_name = "FOLDER")]
    pub model: Option<String>,
}

/// What to evaluate.
#[derive(Clone, Debug, Args)]
pub struct EvaluateArguments {
    /// The pipeline.
    #[command(flatten)]
    pub plan: PlanArguments,
    /// Tokens of the windows that are built: `2048,8192`; by default the pipeline's own and a quarter of it.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub windows: Vec<u32>,
    /// Chooses the documents and the places of all random steps.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Documents of each category and length.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub documents_per_category: u32,
    /// Categories (values of `score.within`) that are sampled at most.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_categories: u32,
    /// Only these kinds of windows, besides whole ones: `pieces_8,dup`.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Columns of the input that are scores of other tools.
    #[arg(long, value_name = "COLUMN", num_args = 1..)]
    pub scores: Vec<String>,
    /// Evaluate natural windows of documents whose class this column of the input says; others are built only for `--only` and
    /// `--heads`.
    #[arg(long, value_name = "COLUMN", requires = "good")]
    pub labels: Option<String>,
    /// Values of the column of labels that are worth keeping: `books papers`.
    #[arg(long, value_name = "VALUE", num_args = 1.., requires = "labels")]
    pub good: Vec<String>,
    /// Figures of every head of a whole model, too: layers × heads of the `attention_layers` of a stage `language-model`.
    #[arg(long)]
    pub heads: bool,
    /// The folder of figures already measured and of `evaluation.json`; by default `<output.path>.evaluate`.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Also writes a page to look at: one file, without scripts, that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Only says how many windows and tokens there would be, and how long each measure would take.
    #[arg(long)]
    pub dry_run: bool,
    /// Also print the figures behind the matrix: ladder, pairs, top fifth, guards, agreement, what is kept of each class.
    #[arg(long)]
    pub details: bool,
    /// How to write the answer.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// A run to look at.
#[derive(Clone, Debug, Args)]
pub struct StatusArguments {
    /// The run directory.
    pub run_dir: PathBuf,
    /// Looks again and again, a line each, until nobody works in the directory any more.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Ends after so many looks.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    pub looks: Option<u32>,
    /// How to write the answer; with `--watch` a JSON document a line.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// A pipeline and its tests.
#[derive(Clone, Debug, Args)]
pub struct TestArguments {
    /// The pipeline.
    #[command(flatten)]
    pub pipeline: PipelineArguments,
    /// The tests; by default beside the pipeline: `web.tests.yaml` of `web.yaml`.
    #[arg(long, value_name = "FILE")]
    pub tests: Option<PathBuf>,
    /// How to write the answer.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// What is kept, and what of it to clear.
#[derive(Clone, Debug, Args)]
pub struct CacheArguments {
    /// The cache folder; by default that of this user, `longsift` in `$XDG_CACHE_HOME` or `~/.cache`.
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Also lists the run directories below this folder.
    #[arg(long, value_name = "FOLDER")]
    pub runs: Option<PathBuf>,
    /// Removes these kinds: `tables,lines`; all of them are made again when they are needed. `runs` removes finished run
    /// directories: their output stays, and nothing can be selected from their scores any more.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub clear: Vec<String>,
    /// Removes only what nobody has used for so many days.
    #[arg(long, value_name = "DAYS", default_value_t = 0, requires = "clear")]
    pub unused_days: u64,
    /// How to write the answer.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// Which window to explain.
#[derive(Clone, Debug, Args)]
pub struct ExplainArguments {
    /// The pipeline, or a run directory: its recorded figures are shown beside those of now, and the window's rank.
    #[command(flatten)]
    pub plan: PlanArguments,
    /// The window, as `longsift_sample_id` has it: `ID#0`, or `FILE:ROW#0`.
    #[arg(value_name = "ID#WINDOW")]
    pub sample: String,
    /// Shows the blocks of this layer of the pipeline's whole model (`language-model`) instead of those of the first layer.
    #[arg(long, value_name = "N")]
    pub layer: Option<u32>,
    /// Also writes a page to look at: one file, without scripts, that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// How to write the answer.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// Which document to map, and how it is cut.
#[derive(Clone, Debug, Args)]
pub struct MapArguments {
    /// The pipeline.
    #[command(flatten)]
    pub plan: PlanArguments,
    /// The document: its id, or its place, `FILE:ROW`. It is looked at whole; the pipeline's windows do not count.
    #[arg(long, value_name = "ID")]
    pub document: String,
    /// Cuts it into blocks of so many tokens; by default into about 64 blocks, and a conversation into its messages.
    #[arg(long, value_name = "N", conflicts_with = "block_boundaries", value_parser = clap::value_parser!(u32).range(1..))]
    pub block_tokens: Option<u32>,
    /// Cuts it before these tokens: `0,10,29`. Its end may stand last.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub block_boundaries: Option<Vec<usize>>,
    /// A column of conversations, lists of `{role, content}` or `{from, value}`: their contents are joined by line breaks, and
    /// blocks begin where messages do.
    #[arg(long, value_name = "COLUMN")]
    pub messages: Option<String>,
    /// Renders the messages by the chat template of the tokenizer instead.
    #[arg(long, requires = "messages")]
    pub chat_template: bool,
    /// BOS tokens before the document, a block of their own.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=16))]
    pub bos: u8,
    /// A layer of the whole model of a stage `language-model`, numbered from 0; without it the first, from its table.
    #[arg(long, value_name = "N")]
    pub layer: Option<u32>,
    /// One query head, numbered from 0; without it the mean of all.
    #[arg(long, value_name = "H")]
    pub head: Option<u32>,
    /// Also writes a page to look at: one file, without scripts, that needs no network.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also writes a picture of the map.
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,
    /// Also writes a table with a row for each pair of blocks.
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// How to write the answer.
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// What of the devices to show.
#[derive(Clone, Debug, Args)]
pub struct DevicesArguments {
    /// Shows them again and again, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Ends after so many looks.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    pub looks: Option<u32>,
    /// Draws the looks so far, memory and work over time, on a page that is written anew after each.
    #[arg(long, value_name = "FILE", requires = "watch")]
    pub html: Option<PathBuf>,
    /// Appends every look to a CSV file.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// The share of a GPU's memory that a run would never use.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub headroom_fraction: f64,
    /// How to write the answer (not with `--watch`).
    #[arg(long, value_enum, default_value = "text")]
    pub format: AnswerFormat,
}

/// A pipeline, and how to run it.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct RunArguments {
    /// What to run.
    #[command(flatten)]
    pub plan: PlanArguments,
    /// Which part of the run: `score` and then `write` (with `--shard`, any number of processes at once), `select`, or
    /// `all`.
    #[arg(long, value_enum, default_value = "all")]
    pub phase: Phase,
    /// Who runs the shards: this machine, or a Ray cluster (the Python package with Ray: `pip install '.[ray]'` in a clone).
    #[arg(long, value_enum, default_value = "local")]
    pub engine: Engine,
    /// The Ray cluster: `auto`, `HOST:PORT`, `ray://…`; without it one is started on this machine.
    #[arg(long, requires = "engine")]
    pub address: Option<String>,
    /// How many shards a Ray cluster gets; by default four per worker that fits, at most one per work unit.
    #[arg(long, value_name = "N", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    pub shards: Option<u32>,
    /// A name of this run, for lineage and the summary; a scheduler makes it from the logical date, so that a retry is
    /// the same run.
    #[arg(long, value_name = "NAME")]
    pub run_id: Option<String>,
    /// Writes the summary there as well, however the run ends: Airflow's pod operator reads `/airflow/xcom/return.json`. A file that is there is removed when the run begins.
    #[arg(long, value_name = "PATH")]
    pub summary_file: Option<PathBuf>,
    /// Writes figures of the run there, for Prometheus' textfile collector (`*.prom`): every 15 seconds how far it is, and at
    /// its end how it went.
    #[arg(long, value_name = "PATH")]
    pub metrics_textfile: Option<PathBuf>,
    /// Footers of the input that the driver of a cluster has read.
    #[arg(long, value_name = "PATH", hide = true)]
    pub footers: Option<PathBuf>,
    /// The scores come from devices of other machines, with the kernel that `--kernel` names: none is looked for here.
    #[arg(long, hide = true)]
    pub devices_elsewhere: bool,
    /// Stops, as on SIGTERM, when the process that started this one ends.
    #[arg(long, hide = true)]
    pub stop_with_parent: bool,
    /// Start again from nothing. The result of earlier runs stays until the new one is committed in its place.
    #[arg(long)]
    pub fresh: bool,
    /// Refuses anything that differs from the lock beside the pipeline file.
    #[arg(long)]
    pub locked: bool,
    /// Tries the rows again that earlier runs set aside; what they measured is not measured again.
    #[arg(long)]
    pub only_quarantined: bool,
    /// Measures this again although its settings have changed since the scores were made; the figures of other measures
    /// are kept. May be given more than once.
    #[arg(long, value_name = "MEASURE")]
    pub remeasure: Vec<String>,
    /// Format of the summary on standard output. Default: `json` where that is not a terminal, nothing where it is one.
    #[arg(long, value_enum)]
    pub format: Option<AnswerFormat>,
    /// Exit code where there was nothing to do (Airflow: 99).
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub nothing_to_do_exit: u8,
}

/// What to measure.
#[derive(Clone, Debug, Args)]
pub struct BenchArguments {
    /// A pipeline to measure as well: tokenization, the table, and whole runs of it into a temporary folder.
    pub pipeline: Option<PathBuf>,
    /// Changes a setting of the pipeline, by path.
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Sets a parameter that the pipeline declares.
    #[arg(long, value_name = "NAME=VALUE")]
    pub param: Vec<String>,
    /// Window lengths in tokens; whole runs leave out those beyond the model's positions.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [4096, 8192, 16_384, 32_768])]
    pub windows: Vec<usize>,
    /// Widths of a head.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [64, 128])]
    pub head_dims: Vec<usize>,
    /// How often each figure is measured; the median is shown. Without it three times, long windows of kernels fewer times,
    /// so that kernels take less than a minute.
    #[arg(long, value_name = "N")]
    pub repeats: Option<usize>,
    /// Measures every kernel that this processor can run instead of those that a run would choose. Takes many minutes.
    #[arg(long)]
    pub all_kernels: bool,
    /// Writes the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draws the figures as an SVG.
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Draws and lists all figures on a page: one file that needs no network and no scripts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
