//! Settings of a pipeline file other than its stages. The JSON Schema and the reference page are generated from the doc
//! comments.

use std::collections::BTreeMap;

use longsift_stages::StageSettings;
use longsift_stages::contract::{Decimal, Location};
use longsift_stages::score::presets::Formula;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::assertions::Check;

/// A longsift pipeline: where documents come from, the stages they pass, where the best go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Version of the pipeline format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// Name of the pipeline, for people and logs.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Parameters that may be used as `${name}` in any string of this file and set by `--param name=value`. The
    /// environment is never read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Param>,
    /// Where documents come from.
    pub input: Input,
    /// The stages, in order: `tokenize`, one or more measures (`first-layer-attention`, `recurrence`, `compression`,
    /// `lexical`, `language-model`, `external`), `score`, `filter`. An `external` that reads documents comes before `tokenize`. With `first-layer-attention` also `load-partial-model` at the beginning, and
    /// `shard-across-devices` before the measures, which may be left out; without it neither, and no device is used.
    #[schemars(length(min = 1))]
    pub stages: Vec<StageSettings>,
    /// Where the samples that are kept go.
    pub output: Output,
    /// What must hold of the result before it takes its place in the output. Default: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

/// A parameter of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// The value used when `--param` does not set one. Without a default the parameter must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// What the parameter is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Where documents come from: files with one document a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// A file, a folder, or a glob such as `data/**/*.parquet`. Relative to this file's folder. Parquet, Arrow IPC (`.arrow`,
    /// `.feather`), JSON Lines (`.jsonl`, `.ndjson`, `.json`) or tables with JSON in their second column (`.tsv`), the last two
    /// also as `.gz` and `.zst`. Of a
    /// folder the Parquet files are read or, where it has none, the files of the one other format; a plain `.json` is read
    /// where a file or a glob names it. Files are read in the order of their path's bytes. Builds with the feature `cloud`
    /// read the same of `s3://`, `gs://`, `az://` and `hf://datasets/owner/name@commit/…`, and single files of `http://` and
    /// `https://`.
    #[schemars(extend("x-schemes" = ["hf", "s3", "gs", "az", "http", "https"]))]
    pub path: Location,
    /// What the files are: `auto` (default) goes by their names, and reads what has no known ending as Parquet; `parquet`,
    /// `jsonl`, `tsv` and `arrow` say it for files of any name. `.gz` and `.zst` at the end of a name count in any case.
    #[serde(default, skip_serializing_if = "InputFormat::is_auto")]
    pub format: InputFormat,
    /// The columns of JSON lines, by name, with their types: `string`, `bool`, `int8` to `int64`, `uint8` to `uint64`,
    /// `float32`, `float64`, `date`, `timestamp`, `list<type>`, `map<string, type>`, `struct<name: type, …>`. Fields that are
    /// not named are left out. By default the first 1,000 lines of each file say what the columns are: `longsift plan` prints
    /// it, a lock states it, and a run whose scores were made with other columns is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<BTreeMap<String, String>>,
    /// Whether an input without any file is fine: then there is nothing to do. By default it is refused, since a mistyped
    /// path would filter nothing for weeks. Files that `since` leaves out have been found.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
    /// The run directory of an earlier run over the same growing folder: the files that it, and the runs before it,
    /// have filtered are left out. Needs `score.calibration`, so that the threshold stays. Relative to this file's
    /// folder; in builds with the feature `cloud` it may be in an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = ["s3", "gs", "az"]))]
    pub since: Option<Location>,
    /// The column that names a document; any type that casts to string. Default: a document is named
    /// `<file>:<row>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_column: Option<String>,
    /// The column that holds a document's text. Default `text`, unless `tokens_column` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_column: Option<String>,
    /// The column that holds a document's token ids (`list<int32 | uint32 | int64>`), instead of `text_column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_column: Option<String>,
    /// Host memory that a run aims to stay below, in bytes, besides the memory-mapped layer-zero table (64 MiB to
    /// 16 TiB). Default 4 GiB. It bounds batches and windows in flight; a quarter bounds the caches of tokenization (20 MiB
    /// a thread at most), an eighth what is kept of files in stores. It changes no score and no output byte. Documents near
    /// `max_document_bytes` take up to 16 times their bytes, whatever this says.
    #[serde(default = "default_memory_limit_bytes")]
    #[schemars(range(min = 67_108_864, max = 17_592_186_044_416_u64))]
    pub memory_limit_bytes: u64,
    /// The largest document that is scored, in bytes of its text (4 KiB to 1 GiB). Default 256 MiB. A larger one is
    /// quarantined as `document_too_large`, and so are the rows of a Parquet page that decompresses to more than four
    /// times as much. A long stretch of text that the tokenizer must see at once may have 8 MiB, with any setting.
    #[serde(default = "default_max_document_bytes")]
    #[schemars(range(min = 4096, max = 1_073_741_824_u64))]
    pub max_document_bytes: u64,
    /// Uncompressed bytes of documents in one work unit (1 KiB to 1 TiB); a unit is whole row groups of one Parquet file,
    /// whole lines of a plain file of lines (stretches of at least 4 KiB), and all of a compressed one.
    /// Default 64 MiB: small enough that units are even, large enough that a corpus of terabytes has thousands of
    /// them and not millions.
    #[serde(default = "default_unit_bytes")]
    #[schemars(range(min = 1024, max = 1_099_511_627_776_u64))]
    pub unit_bytes: u64,
    /// What a row that cannot be scored does: `quarantine` (default) sets it aside with the reason and counts it,
    /// `fail` stops the run.
    #[serde(default)]
    pub on_bad_row: OnBadRow,
    /// Effect of a damaged file: `fail` (default) stops the run, `quarantine` goes on without what cannot be read.
    /// Damage costs its row group: if a page of any column does not decode, all rows of its row group (in Arrow files:
    /// of its record batch) are quarantined and counted one by one, with the column and the reason. Other row groups
    /// are read. A page or record batch over the limit that follows from `max_document_bytes` costs its row group as
    /// well, and the reason names the limit. A file that cannot be opened at all (cut off, empty, encrypted, not
    /// Parquet) has no known rows and is listed in `quarantine/files.parquet` and counted as `files_quarantined`. A run
    /// without any readable file fails in any case.
    #[serde(default)]
    pub on_bad_file: OnBadFile,
    /// The share of rows that may be quarantined before the run fails, 0 to 1. Default 0.01: more than one bad row in
    /// a hundred is a broken input, not bad luck.
    #[serde(default = "default_max_quarantined_fraction")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_quarantined_fraction: Decimal,
}

fn default_memory_limit_bytes() -> u64 {
    4 << 30
}

fn default_max_document_bytes() -> u64 {
    256 << 20
}

fn default_unit_bytes() -> u64 {
    64 << 20
}

fn default_max_quarantined_fraction() -> Decimal {
    Decimal(0.01)
}

/// What input files are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputFormat {
    /// What their names say, else Parquet.
    #[default]
    Auto,
    /// Parquet.
    Parquet,
    /// A JSON object a line.
    Jsonl,
    /// A key, a tab and a JSON object a line.
    Tsv,
    /// Arrow IPC: a file or a stream.
    Arrow,
}

impl InputFormat {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// What a row that cannot be scored does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBadRow {
    /// It is set aside with the reason, and counted.
    #[default]
    Quarantine,
    /// It stops the run.
    Fail,
}

/// What a damaged file does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBadFile {
    /// It stops the run.
    #[default]
    Fail,
    /// What cannot be read of it is set aside, and counted.
    Quarantine,
}

/// Where the samples that are kept go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Folder of the output, relative to this file's folder. `data/` in it holds Parquet and nothing else; what the
    /// run knows about itself goes to `<path>.run`. In builds with the feature `cloud` it may be in `s3://`, `gs://` or
    /// `az://`.
    #[schemars(extend("x-schemes" = ["s3", "gs", "az"]))]
    pub path: Location,
    /// What a row of the output is: `windows` (default: one row per kept window, its text in the text column) or
    /// `documents` (one row per kept document, whole).
    #[serde(default)]
    pub samples: Samples,
    /// What the files of `data/` are. `parquet` (default) has all columns in their types. `jsonl-zst` is a JSON object a line with
    /// the same columns, compressed with Zstandard. `megatron` is token ids alone, by the pipeline's tokenizer and without BOS:
    /// `.bin` and `.idx` as Megatron-LM reads them, a document for each sample or packed sequence.
    #[serde(default, skip_serializing_if = "OutputFormat::is_parquet")]
    pub format: OutputFormat,
    /// With `format: megatron`, the length that samples are packed to, in tokens (2 to 2^24): several share a sequence, by best
    /// fit, and longer ones are cut. `.cu_seqlens.npy` beside each `.bin` says where they begin. By default every sample is a
    /// sequence of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16_777_216))]
    pub sequence_tokens: Option<u32>,
    /// With `format: megatron`, the id of a token that is put behind every sample. By default there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 2_147_483_647))]
    pub end_token: Option<u32>,
    /// Whether a dataset card, `README.md` with the header that the Hugging Face hub reads, is written beside `data/`. Default
    /// false. A `README.md` there that longsift did not write is never replaced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub card: bool,
    /// Compression of Parquet files. `zstd` (default, level 3) is the smallest at a reading speed that no trainer notices.
    #[serde(default)]
    pub compression: Compression,
    /// The size that files of `data/` aim at, in compressed bytes, 0 to 1 TiB. Default 256 MiB: few enough that a trainer
    /// opens them all, small enough to be read in parallel. Units that add less share a file, a unit that adds more is
    /// split; the cuts follow from the selection and the input alone, and how many processes write changes none. With 0
    /// every unit of which anything is kept has a file.
    #[serde(default = "default_part_bytes")]
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64))]
    pub part_bytes: u64,
    /// Whether the output has the folders and files of the input. Default false: rows of all files go to `train-…` together. With
    /// true those of `a/b/x.jsonl` go to `data/a/b/x.parquet` or, where they give several files of `part_bytes`, to
    /// `x-00000-of-00003.parquet` and on; paths are those below the folder that `input.path` names, or below the part of a glob
    /// without wildcards. Every input file that was read has its file, one without rows where nothing of it is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// A label column of the input: at the end, the share of its rows or windows that was kept is printed per label,
    /// against the share kept overall. It changes no score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_by: Option<String>,
    /// Named scores to print beside the selection, by label of `report_by`: what each would keep with the pipeline's groups
    /// and amount and none of its guards. They are selected from the statistics that are there: nothing is measured or
    /// written for them. Not with `score.calibration`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Formula>,
    /// Whether `report.html`, a page to look at, and its figures `report.json` are written into the run directory with the
    /// selection. Default false: the page shows pieces of some samples' texts, which not everybody who may see the figures of
    /// a run may read. It changes no other file. `longsift report` makes the same of any finished run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub report: bool,
}

fn default_part_bytes() -> u64 {
    256 << 20
}

/// What the files of the output are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// Parquet, all columns.
    #[default]
    Parquet,
    /// JSON lines, compressed with Zstandard.
    JsonlZst,
    /// Token ids, as Megatron-LM reads them.
    Megatron,
}

impl OutputFormat {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    fn is_parquet(&self) -> bool {
        *self == Self::Parquet
    }

    /// File extensions of one part, the one with the rows first. `packed`: with `sequence_tokens`.
    pub fn endings(self, packed: bool) -> &'static [&'static str] {
        const TOKENS: [&str; 3] = [".bin", ".idx", ".cu_seqlens.npy"];
        match self {
            Self::Parquet => &[".parquet"],
            Self::JsonlZst => &[".jsonl.zst"],
            Self::Megatron if packed => &TOKENS,
            Self::Megatron => &TOKENS[..2],
        }
    }
}

/// What a row of the output is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Samples {
    /// A window of a document.
    #[default]
    Windows,
    /// A whole document.
    Documents,
}

/// Compression of Parquet pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Zstandard, level 3.
    #[default]
    Zstd,
    /// Snappy.
    Snappy,
    /// LZ4, raw blocks.
    Lz4,
    /// None.
    None,
}
