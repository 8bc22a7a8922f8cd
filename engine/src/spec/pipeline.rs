//! Settings of a pipeline file other than its stages. The JSON Schema and the reference page are generated from the doc
//! comments.

use std::collections::BTreeMap;

use longsift_stages::StageSettings;
use longsift_stages::contract::{Decimal, Location};
use longsift_stages::score::presets::Formula;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::assertions::{Check, is_default};

/// A longsift pipeline: the source of documents, the stages that process them, and the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Version of the pipeline format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// Name of the pipeline, for people and logs.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Parameters: `${name}` in any string of this file is replaced by a parameter's value, which `--param name=value` sets.
    /// Environment variables are never substituted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Param>,
    /// Source of documents.
    pub input: Input,
    /// Stages, in order: `load-partial-model` (only for `first-layer-attention`, or as the model of `language-model`),
    /// `external` with `reads: document`, `tokenize`, `shard-across-devices` (optional, only with `first-layer-attention` or
    /// `language-model`), one or more measures (`first-layer-attention`, `recurrence`, `compression`, `lexical`, `language-model`, `external`),
    /// `score`, `filter`.
    #[schemars(length(min = 1))]
    pub stages: Vec<StageSettings>,
    /// Destination of the kept samples.
    pub output: Output,
    /// Checks of the result before it replaces the previous output, for example `{figure: rows_kept_share, min: 0.01}`.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

/// A parameter of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Value if `--param` does not set one. A parameter without a default must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Purpose of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Source of documents: files with one document per row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// A file, a folder, or a glob such as `data/**/*.parquet`, relative to this file's folder. Formats: Parquet, Arrow IPC
    /// (`.arrow`, `.feather`), JSON Lines (`.jsonl`, `.ndjson`, `.json`) or tables with JSON in their second column (`.tsv`),
    /// the last two also as `.gz` and `.zst`. In a folder, the Parquet files are read or, if it has none, the files of the only
    /// other format; a plain `.json` is read only if a file or a glob names it. Files are read in byte order of their paths.
    /// Builds with the feature `cloud` also read `s3://`, `gs://`, `az://` and `hf://datasets/owner/name@commit/…`, and single
    /// files of `http://` and `https://`.
    #[schemars(extend("x-schemes" = ["hf", "s3", "gs", "az", "http", "https"]))]
    pub path: Location,
    /// Format of the files. `auto` (default) detects it by name, and reads files with an unknown extension as Parquet;
    /// `parquet`, `jsonl`, `tsv` and `arrow` override detection by name. Compression (`.gz`, `.zst`) is always detected by
    /// name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: InputFormat,
    /// Columns of JSON lines by name, with their types: `string`, `bool`, `int8` to `int64`, `uint8` to `uint64`, `float32`,
    /// `float64`, `date`, `timestamp`, `timestamptz`, `list<type>`, `map<string, type>`, `struct<name: type, …>`. Other fields
    /// are left out. By default the columns are inferred from the first 1,000 lines of each file. `longsift plan` prints the
    /// columns, `longsift lock` records them, and a run is refused if its existing scores were made with other columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<BTreeMap<String, String>>,
    /// Whether an input without files is accepted: the run then does nothing. Default false, because a mistyped path could
    /// otherwise go unnoticed for weeks. Files that `since` leaves out count as found.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
    /// Run directory of an earlier run over the same, growing folder: files that it or the runs before it have filtered are
    /// left out. Requires `score.calibration`, so that the threshold stays the same. Relative to this file's folder; in builds
    /// with the feature `cloud` it may be in an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = ["s3", "gs", "az"]))]
    pub since: Option<Location>,
    /// Column with the id of a document, of any type that casts to string. Default: none; the id is then `<file>:<row>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_column: Option<String>,
    /// Column with the text of a document. Default `text`, unless `tokens_column` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_column: Option<String>,
    /// Column with the token ids of a document (`list<int32 | uint32 | int64>`), instead of `text_column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_column: Option<String>,
    /// Target for the host memory of a run in bytes (64 MiB to 16 TiB), in addition to the memory-mapped layer-zero table.
    /// Default 4 GiB. It limits batches and the windows in flight; a quarter limits the caches of tokenization (40 MiB per
    /// thread at most), an eighth the cache of files in stores. It changes no score and no output byte. A document near
    /// `max_document_bytes` takes up to 16 times its size, regardless of this target.
    #[serde(default = "mebibytes::<4096>")]
    #[schemars(range(min = 67_108_864, max = 17_592_186_044_416_u64))]
    pub memory_limit_bytes: u64,
    /// Maximum size of a document's text in bytes (4 KiB to 1 GiB). Default 256 MiB, which takes up to 4 GiB of memory. A
    /// larger document is quarantined as `document_too_large`, and so are all rows of a Parquet page that decompresses to more
    /// than four times this size. Text that the tokenizer cannot split is limited to 8 MiB, regardless of this setting.
    #[serde(default = "mebibytes::<256>")]
    #[schemars(range(min = 4096, max = 1_073_741_824_u64))]
    pub max_document_bytes: u64,
    /// Uncompressed bytes of documents in one work unit (1 KiB to 1 TiB). A unit consists of whole row groups of one Parquet
    /// file, of whole lines of an uncompressed file of lines (ranges of at least 4 KiB), or of an entire compressed file.
    /// Default 64 MiB: small enough that units have similar sizes, large enough that a corpus of terabytes has thousands of
    /// units and not millions.
    #[serde(default = "mebibytes::<64>")]
    #[schemars(range(min = 1024, max = 1_099_511_627_776_u64))]
    pub unit_bytes: u64,
    /// Effect of a row that cannot be scored: `quarantine` (default, since one bad row should not end a run of days) records it
    /// with the reason and counts it, `fail` stops the run.
    #[serde(default)]
    pub on_bad_row: OnBadRow,
    /// Effect of a damaged file: `fail` (default, since a file can usually be copied again) stops the run, `quarantine`
    /// continues without the damaged parts. If a page of any column cannot be decoded, or exceeds the limit that follows from
    /// `max_document_bytes`, all rows of its row group (in Arrow files, its record batch) are quarantined and counted one by
    /// one, with the column and the reason; other row groups are read. A file that cannot be opened (truncated, empty,
    /// encrypted, not Parquet) has no known rows: it is listed in `quarantine/files.parquet` and counted as
    /// `files_quarantined`. A run without any readable file always fails.
    #[serde(default)]
    pub on_bad_file: OnBadFile,
    /// Maximum share of quarantined rows before the run fails, 0 to 1. Default 0.01: more than one bad row in a hundred points
    /// to a broken input.
    #[serde(default = "default_max_quarantined_fraction")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_quarantined_fraction: Decimal,
}

#[derive(Clone, Debug)]
pub struct QuarantineLimit {
    pub rows: u64,
    pub path: &'static str,
    /// Setting with its value, for messages.
    pub setting: String,
    /// How to accept more rows, for hints.
    pub remedy: &'static str,
}

impl Input {
    pub fn quarantine_limit(&self, rows: u64) -> QuarantineLimit {
        match self.on_bad_row {
            OnBadRow::Quarantine => QuarantineLimit {
                rows: self.max_quarantined_fraction.floor_of(rows),
                path: "input.max_quarantined_fraction",
                setting: format!("`max_quarantined_fraction` {}", self.max_quarantined_fraction),
                remedy: "raise `input.max_quarantined_fraction`",
            },
            OnBadRow::Fail => QuarantineLimit {
                rows: 0,
                path: "input.on_bad_row",
                setting: "`on_bad_row: fail`".to_owned(),
                remedy: "set `input.on_bad_row: quarantine`",
            },
        }
    }
}

fn mebibytes<const COUNT: u64>() -> u64 {
    COUNT << 20
}

fn default_max_quarantined_fraction() -> Decimal {
    Decimal(0.01)
}

/// Format of input files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InputFormat {
    /// By file name; Parquet if the extension is unknown.
    #[default]
    Auto,
    /// Parquet.
    Parquet,
    /// One JSON object per line.
    Jsonl,
    /// A key, a tab and a JSON object per line.
    Tsv,
    /// Arrow IPC: a file or a stream.
    Arrow,
}

/// Effect of a row that cannot be scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBadRow {
    /// The row is quarantined with the reason, and counted.
    #[default]
    Quarantine,
    /// The run stops.
    Fail,
}

/// Effect of a damaged file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBadFile {
    /// The run stops.
    #[default]
    Fail,
    /// Parts that cannot be read are quarantined and counted.
    Quarantine,
}

/// Destination of the kept samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Folder of the output, relative to this file's folder. Its `data/` contains only the output files; records of the run go
    /// to `<path>.run`. In builds with the feature `cloud` it may be in `s3://`, `gs://` or `az://`.
    #[schemars(extend("x-schemes" = ["s3", "gs", "az"]))]
    pub path: Location,
    /// Kind of output rows: `windows` (default: one row per kept window, its text in the text column) or `documents` (one row
    /// per kept document, whole).
    #[serde(default)]
    pub samples: Samples,
    /// Format of the files of `data/`. `parquet` (default) has all columns with their types. `jsonl-zst` has one JSON object
    /// per line with the same columns, compressed with Zstandard. `megatron` has only token ids, without BOS, as `.bin` and
    /// `.idx` for Megatron-LM: one document per sample or packed sequence.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: OutputFormat,
    /// With `format: megatron`, the length of packed sequences in tokens (2 to 2^24): several samples share a sequence, by best
    /// fit, and longer samples are cut. `.cu_seqlens.npy` next to each `.bin` lists where samples start. Default: no packing,
    /// one sequence per sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16_777_216))]
    pub sequence_tokens: Option<u32>,
    /// With `format: megatron`, the id of a token that is appended to every sample. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 2_147_483_647))]
    pub end_token: Option<u32>,
    /// Whether to write a dataset card for the Hugging Face hub, `README.md` next to `data/`. Default false. A `README.md` that
    /// longsift did not write is never replaced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub card: bool,
    /// Compression of Parquet files. Default `zstd` at level 3: it gives the smallest files, which any trainer reads fast enough.
    #[serde(default)]
    pub compression: ParquetCompression,
    /// Target size of an output file in compressed bytes, 0 to 1 TiB. Default 256 MiB: few files to open, each small enough to
    /// read in parallel. Small work units share a file, large ones are split. The division depends only on the input and the
    /// selection, not on the number of processes. 0 writes one file per work unit with kept samples.
    #[serde(default = "mebibytes::<256>")]
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64))]
    pub part_bytes: u64,
    /// Whether the output has the folders and files of the input. Default false: rows of all files go to `train-…`. If true,
    /// the rows of `a/b/x.jsonl` go to `data/a/b/x.parquet` or, if they exceed `part_bytes`, to `x-00000-of-00003.parquet` and
    /// so on. Paths are relative to the folder in `input.path`, or to the part of its glob before the first wildcard. Every
    /// input file has an output file, even if none of its rows is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// Label column of the input. At the end, the run prints the kept share of rows or windows for each label, compared with
    /// the overall share. It changes no score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_by: Option<String>,
    /// Named scores to compare with the selection. For each label of `report_by`, the run prints what each of them would keep
    /// with the pipeline's groups and amount but without its guards. They use the pipeline's statistics: nothing more is
    /// measured or written. Not with `score.calibration`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compare: Vec<Formula>,
    /// Whether to write a report (`report.html`, and its content as `report.json`) into the run directory. Default false,
    /// because it quotes texts of samples, which may be more confidential than the run's counts. `longsift report` writes it
    /// for any finished run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub report: bool,
}

/// Format of the output files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// Parquet, all columns.
    #[default]
    Parquet,
    /// JSON lines, compressed with Zstandard.
    JsonlZst,
    /// Token ids, for Megatron-LM.
    Megatron,
}

impl OutputFormat {
    pub const ALL: [Self; 3] = [Self::Parquet, Self::JsonlZst, Self::Megatron];

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

/// Kind of output rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Samples {
    /// A window of a document.
    #[default]
    Windows,
    /// A whole document.
    Documents,
}

impl Samples {
    pub fn name(self) -> &'static str {
        match self {
            Self::Windows => "windows",
            Self::Documents => "documents",
        }
    }

    /// Splits the windows of a document into samples.
    pub fn split<W>(self, document: &[W]) -> std::slice::Chunks<'_, W> {
        document.chunks(if self == Self::Windows { 1 } else { document.len().max(1) })
    }
}

/// Compression of Parquet pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Compression")]
pub enum ParquetCompression {
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
