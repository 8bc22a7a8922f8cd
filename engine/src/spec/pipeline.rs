//! The settings of a pipeline file outside its stages. The doc comments are the manual: the JSON Schema and the
//! reference page come from them.

use std::collections::BTreeMap;

use longsift_stages::StageSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The stages, in order: `load-partial-model`, `tokenize`, `shard-across-devices` (may be left out),
    /// `first-layer-attention`, `score`, `filter`.
    #[schemars(length(min = 1))]
    pub stages: Vec<StageSettings>,
    /// Where the samples that are kept go.
    pub output: Output,
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

/// Where documents come from: Parquet files with one document a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// A Parquet file, a folder (every `*.parquet` below it), or a glob such as `data/**/*.parquet`. Relative to this
    /// file's folder. Files are read in the order of their path's bytes. Builds with the feature `cloud` read the same of
    /// `s3://`, `gs://`, `az://` and `hf://datasets/owner/name@commit/…`, and single files of `http://` and `https://`.
    pub path: String,
    /// The run directory of an earlier run over the same growing folder: the files that it, and the runs before it,
    /// have filtered are left out. Needs `score.calibration`, so that the threshold stays. Relative to this file's
    /// folder; in builds with the feature `cloud` it may be in an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
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
    /// 16 TiB). Default 4 GiB. It bounds batches and windows in flight; it changes no score and no output byte, but for
    /// one thing: a text beyond a 16th of it (268 MB by default) is quarantined as `document_too_large`, because scoring
    /// it would not fit; so is one with a stretch beyond a 240th (17 MB) that the tokenizer must see at once, which is a
    /// single word or run of blanks with most tokenizers (`longsift plan` names the others).
    #[serde(default = "default_memory_limit_bytes")]
    #[schemars(range(min = 67_108_864, max = 17_592_186_044_416_u64))]
    pub memory_limit_bytes: u64,
    /// Uncompressed bytes of documents in one work unit (1 KiB to 1 TiB); a unit is whole row groups of one file.
    /// Default 64 MiB: small enough that units are even, large enough that a corpus of terabytes has thousands of
    /// them and not millions.
    #[serde(default = "default_unit_bytes")]
    #[schemars(range(min = 1024, max = 1_099_511_627_776_u64))]
    pub unit_bytes: u64,
    /// What a row that cannot be scored does: `quarantine` (default) sets it aside with the reason and counts it,
    /// `fail` stops the run.
    #[serde(default)]
    pub on_bad_row: OnBadRow,
    /// What a damaged file does: `fail` (default) stops the run, `quarantine` goes on without what cannot be read. Rows
    /// of pages that do not decode are quarantined and counted like other bad rows; a file that cannot be opened at all
    /// (cut off, empty, encrypted, not Parquet) has no known rows and is listed in `quarantine/files.parquet` and
    /// counted as `files_quarantined`. A run without any readable file fails in any case.
    #[serde(default)]
    pub on_bad_file: OnBadFile,
    /// The share of rows that may be quarantined before the run fails, 0 to 1. Default 0.01: more than one bad row in
    /// a hundred is a broken input, not bad luck.
    #[serde(default = "default_max_quarantined_fraction")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_quarantined_fraction: f64,
}

fn default_memory_limit_bytes() -> u64 {
    4 << 30
}

fn default_unit_bytes() -> u64 {
    64 << 20
}

fn default_max_quarantined_fraction() -> f64 {
    0.01
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
    pub path: String,
    /// What a row of the output is: `windows` (default: one row per kept window, its text in the text column) or
    /// `documents` (one row per kept document, whole).
    #[serde(default)]
    pub samples: Samples,
    /// Compression of the output. `zstd` (default, level 3) is the smallest at a reading speed that no trainer notices.
    #[serde(default)]
    pub compression: Compression,
    /// A label column of the input: at the end, the share of its rows or windows that was kept is printed per label,
    /// against the share kept overall. It changes no score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_by: Option<String>,
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
