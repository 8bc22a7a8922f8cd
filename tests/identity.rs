//! Effect of every setting on the identity: a table over all leaves of the pipeline's schema, compared with the
//! identity in a lock and with the work of a finished run that is run again with only that setting changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Map, Value, json};

use crate::external::child::write_program;
use crate::support::tables::{strings, table, token_lists, write_parquet};
use crate::support::{Workspace, copy_folder, demo_model, read_json, repository};

/// Part of the identity that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// This fact of the windows.
    Windows(&'static str),
    /// This fact of measures.
    Measure(&'static str),
    /// This fact of measures and the columns of the output.
    Columns(&'static str),
    /// The set of measures and the columns of the output.
    Renamed(&'static str),
    /// The selection.
    Selection,
    /// None, with the reason.
    Nothing(&'static str),
}
use Part::{Columns, Measure, Nothing, Renamed, Selection, Windows};

/// Leaf of the schema, its part, additions to the usual pipeline (`base`), and the change of that leaf. Stages are
/// identified by name; a null removes a key.
type Case = (&'static str, Part, &'static str, &'static str);

/// A program in addition to the usual pipeline.
const OWN: &str = r#"{"+": {"stage": "external", "name": "own", "command": ["./child.sh", "honest"], "version": "1", "statistics": [{"name": "bytes", "unit": "bytes", "doc": "length"}, {"name": "letters", "kind": "count", "unit": "letters", "doc": "letters"}]}}"#;
/// With losses of a whole model.
const LOSSES: &str = r#"{"+": "language-model", "language-model": {"short_context_tokens": 8}}"#;
/// With attention of its layers.
const LAYERS: &str =
    r#"{"+": "language-model", "language-model": {"losses": false, "attention_layers": [0, 1]}}"#;
/// With attention of one head.
const HEADS: &str = r#"{"+": "language-model", "language-model": {"losses": false, "attention_layers": [{"layer": 1, "heads": [1]}]}}"#;
/// With LADM's score.
const SPANS: &str = r#"{"+": "language-model", "language-model": {"losses": false, "attention_layers": [1], "ladm": {"span_tokens": 2}}}"#;

const CASES: &[Case] = &[
    ("version", Nothing("there is only one"), "{}", "{}"),
    ("name", Nothing("for display"), "{}", r#"{"name": "other"}"#),
    ("params", Nothing("their replacements count"), "{}", r#"{"params": {"x": {"default": "y"}}}"#),
    (
        "params.*.default",
        Nothing("its replacement counts"),
        r#"{"params": {"x": {"default": "y"}}}"#,
        r#"{"params": {"x": {"default": "z"}}}"#,
    ),
    (
        "params.*.description",
        Nothing("for display"),
        r#"{"params": {"x": {"default": "y"}}}"#,
        r#"{"params": {"x": {"default": "y", "description": "z"}}}"#,
    ),
    (
        "input.path",
        Nothing("the rows are in the records"),
        "{}",
        r#"{"input": {"path": "input/a.parquet"}}"#,
    ),
    (
        "input.since",
        Selection,
        r#"{"score": {"calibration": "before.run/calibration.json"}}"#,
        r#"{"input": {"since": "before.run"}}"#,
    ),
    (
        "input.format",
        Windows("schema"),
        r#"{"input": {"path": "lines/tabs.txt", "format": "jsonl"}}"#,
        r#"{"input": {"format": "tsv"}}"#,
    ),
    (
        "input.schema",
        Windows("schema"),
        r#"{"input": {"path": "lines/all.jsonl"}}"#,
        r#"{"input": {"schema": {"id": "string", "text": "string"}}}"#,
    ),
    ("input.id_column", Windows("id_column"), "{}", r#"{"input": {"id_column": "label"}}"#),
    ("input.text_column", Windows("content"), "{}", r#"{"input": {"text_column": "other"}}"#),
    (
        "input.tokens_column",
        Windows("content"),
        "{}",
        r#"{"input": {"text_column": null, "tokens_column": "tokens"}}"#,
    ),
    (
        "input.memory_limit_bytes",
        Nothing("only the memory in use"),
        "{}",
        r#"{"input": {"memory_limit_bytes": 67108864}}"#,
    ),
    (
        "input.max_document_bytes",
        Windows("max_document_bytes"),
        "{}",
        r#"{"input": {"max_document_bytes": 4096}}"#,
    ),
    (
        "input.unit_bytes",
        Nothing("the boundaries of units are in their names"),
        "{}",
        r#"{"input": {"unit_bytes": 1024}}"#,
    ),
    (
        "input.allow_empty",
        Nothing("only whether an input without files is rejected"),
        "{}",
        r#"{"input": {"allow_empty": true}}"#,
    ),
    (
        "input.on_bad_row",
        Nothing("only whether a run continues"),
        "{}",
        r#"{"input": {"on_bad_row": "fail"}}"#,
    ),
    (
        "input.on_bad_file",
        Nothing("only whether a run continues"),
        "{}",
        r#"{"input": {"on_bad_file": "quarantine"}}"#,
    ),
    (
        "input.max_quarantined_fraction",
        Nothing("only whether a run continues"),
        "{}",
        r#"{"input": {"max_quarantined_fraction": 0.5}}"#,
    ),
    (
        "load-partial-model.model",
        Measure("weights"),
        r#"{"tokenize": {"tokenizer": "model"}}"#,
        r#"{"load-partial-model": {"model": "model2"}}"#,
    ),
    (
        "load-partial-model.precision",
        Measure("precision"),
        "{}",
        r#"{"load-partial-model": {"precision": "bf16"}}"#,
    ),
    (
        "load-partial-model.rope_theta",
        Measure("layer"),
        "{}",
        r#"{"load-partial-model": {"rope_theta": 50000.0}}"#,
    ),
    (
        "load-partial-model.cache_folder",
        Nothing("only the path of the cache"),
        "{}",
        r#"{"load-partial-model": {"cache_folder": "cache/longsift"}}"#,
    ),
    (
        "load-partial-model.strict_positions",
        Nothing("only whether longer windows are rejected"),
        "{}",
        r#"{"load-partial-model": {"strict_positions": true}}"#,
    ),
    (
        "tokenize.window_tokens",
        Windows("window_tokens"),
        "{}",
        r#"{"tokenize": {"window_tokens": 24}}"#,
    ),
    ("tokenize.windows", Windows("windows"), "{}", r#"{"tokenize": {"windows": "both-ends"}}"#),
    (
        "tokenize.short_documents",
        Windows("short_documents"),
        "{}",
        r#"{"tokenize": {"short_documents": "score"}}"#,
    ),
    ("tokenize.bos", Windows("bos"), "{}", r#"{"tokenize": {"bos": 2}}"#),
    (
        "tokenize.tokenizer",
        Windows("tokenizer"),
        "{}",
        r#"{"tokenize": {"tokenizer": "tokenizer2"}}"#,
    ),
    (
        "tokenize.special_tokens_in_text",
        Windows("special_tokens_in_text"),
        "{}",
        r#"{"tokenize": {"special_tokens_in_text": "as-text"}}"#,
    ),
    (
        "shard-across-devices.devices",
        Nothing("the kernel matters, not the device"),
        "{}",
        r#"{"shard-across-devices": {"devices": "cpu"}}"#,
    ),
    (
        "shard-across-devices.headroom_fraction",
        Nothing("only the work at once"),
        "{}",
        r#"{"shard-across-devices": {"headroom_fraction": 0.5}}"#,
    ),
    (
        "shard-across-devices.workers_per_device",
        Nothing("only the work at once"),
        "{}",
        r#"{"shard-across-devices": {"workers_per_device": 1}}"#,
    ),
    (
        "shard-across-devices.by",
        Nothing("only the size of the pieces"),
        "{}",
        r#"{"shard-across-devices": {"by": "heads"}}"#,
    ),
    (
        "shard-across-devices.memory_wait_seconds",
        Nothing("only the time to wait for others"),
        "{}",
        r#"{"shard-across-devices": {"memory_wait_seconds": 1}}"#,
    ),
    (
        "shard-across-devices.key_heads_at_once",
        Nothing("only the size of the pieces"),
        "{}",
        r#"{"shard-across-devices": {"key_heads_at_once": 1}}"#,
    ),
    (
        "first-layer-attention.min_distance_fraction",
        Measure("min_distance"),
        "{}",
        r#"{"first-layer-attention": {"min_distance_fraction": 0.3}}"#,
    ),
    (
        "first-layer-attention.min_distance_tokens",
        Measure("min_distance"),
        "{}",
        r#"{"first-layer-attention": {"min_distance_tokens": 5}}"#,
    ),
    (
        "first-layer-attention.mask",
        Measure("mask"),
        "{}",
        r#"{"first-layer-attention": {"mask": "unmasked"}}"#,
    ),
    (
        "first-layer-attention.rows",
        Measure("rows"),
        "{}",
        r#"{"first-layer-attention": {"rows": {"per_window": 32, "seed": 1}}}"#,
    ),
    (
        "first-layer-attention.rows.per_window",
        Measure("rows"),
        r#"{"first-layer-attention": {"rows": {"per_window": 32, "seed": 1}}, "score": {"alpha": 0.0}}"#,
        r#"{"first-layer-attention": {"rows": {"per_window": 34, "seed": 1}}}"#,
    ),
    (
        "first-layer-attention.rows.seed",
        Measure("rows"),
        r#"{"first-layer-attention": {"rows": {"per_window": 32, "seed": 1}}, "score": {"alpha": 0.0}}"#,
        r#"{"first-layer-attention": {"rows": {"per_window": 32, "seed": 2}}}"#,
    ),
    (
        "recurrence.name",
        Renamed("recurrence"),
        r#"{"+": "recurrence"}"#,
        r#"{"recurrence": {"name": "near"}}"#,
    ),
    (
        "recurrence.min_distance_fraction",
        Measure("min_distance"),
        r#"{"+": "recurrence"}"#,
        r#"{"recurrence": {"min_distance_fraction": 0.3}}"#,
    ),
    (
        "recurrence.min_distance_tokens",
        Measure("min_distance"),
        r#"{"+": "recurrence"}"#,
        r#"{"recurrence": {"min_distance_tokens": 5}}"#,
    ),
    (
        "compression.name",
        Renamed("compression"),
        r#"{"+": "compression"}"#,
        r#"{"compression": {"name": "own"}}"#,
    ),
    (
        "compression.scope",
        Measure("scope"),
        r#"{"+": "compression"}"#,
        r#"{"compression": {"scope": "document"}}"#,
    ),
    ("lexical.text", Columns("text"), r#"{"+": "lexical"}"#, r#"{"lexical": {"text": false}}"#),
    ("external.name", Measure("own"), OWN, r#"{"external": {"name": "other"}}"#),
    (
        "external.command",
        Measure("command"),
        OWN,
        r#"{"external": {"command": ["./child.sh", "honest", "again"]}}"#,
    ),
    ("external.version", Measure("program_version"), OWN, r#"{"external": {"version": "2"}}"#),
    ("external.reads", Measure("reads"), OWN, r#"{"external": {"reads": "ids"}}"#),
    (
        "external.statistics",
        Measure("statistics"),
        OWN,
        r#"{"external": {"command": ["./child.sh", "only-bytes"], "statistics": [{"name": "bytes", "unit": "bytes", "doc": "length"}]}}"#,
    ),
    (
        "external.statistics[].name",
        Nothing("answers have the names that are declared, or the run fails"),
        OWN,
        "{}",
    ),
    (
        "external.statistics[].kind",
        Nothing("answers have the types that are declared, or the run fails"),
        OWN,
        "{}",
    ),
    ("external.statistics[].unit", Nothing("for display"), OWN, "{}"),
    ("external.statistics[].doc", Nothing("for display"), OWN, "{}"),
    (
        "external.statistics[].orientation",
        Nothing("only evaluations and reports use it"),
        OWN,
        r#"{"external": {"statistics": [{"name": "bytes", "unit": "bytes", "doc": "length", "orientation": "lower"}, {"name": "letters", "kind": "count", "unit": "letters", "doc": "letters"}]}}"#,
    ),
    (
        "external.statistics[].merge",
        Selection,
        OWN,
        r#"{"external": {"statistics": [{"name": "bytes", "unit": "bytes", "doc": "length", "merge": "max"}, {"name": "letters", "kind": "count", "unit": "letters", "doc": "letters"}]}}"#,
    ),
    ("external.files", Measure("file words.txt"), OWN, r#"{"external": {"files": ["words.txt"]}}"#),
    (
        "external.environment",
        Measure("environment"),
        OWN,
        r#"{"external": {"environment": {"LANG": "C"}}}"#,
    ),
    (
        "external.pass_environment",
        Nothing("declared to change no answer"),
        OWN,
        r#"{"external": {"pass_environment": ["HOME"]}}"#,
    ),
    (
        "external.timeout_seconds",
        Nothing("only when a program is ended"),
        OWN,
        r#"{"external": {"timeout_seconds": 60}}"#,
    ),
    (
        "external.memory_limit_bytes",
        Nothing("only when a program is ended"),
        OWN,
        r#"{"external": {"memory_limit_bytes": 2000000000}}"#,
    ),
    (
        "external.processes",
        Nothing("only the number of requests at once"),
        OWN,
        r#"{"external": {"processes": 2}}"#,
    ),
    (
        "external.batch_windows",
        Nothing("only the number of requests at once"),
        OWN,
        r#"{"external": {"batch_windows": 3}}"#,
    ),
    (
        "language-model.name",
        Renamed("language-model"),
        LOSSES,
        r#"{"language-model": {"name": "whole"}}"#,
    ),
    (
        "language-model.model",
        Measure("model_weights"),
        LOSSES,
        r#"{"language-model": {"model": "model2"}}"#,
    ),
    (
        "language-model.losses",
        Columns("losses"),
        LAYERS,
        r#"{"language-model": {"losses": true, "short_context_tokens": 0}}"#,
    ),
    (
        "language-model.short_context_tokens",
        Measure("short_context"),
        LOSSES,
        r#"{"language-model": {"short_context_tokens": 12}}"#,
    ),
    (
        "language-model.attention_layers",
        Columns("attention_layers"),
        LAYERS,
        r#"{"language-model": {"attention_layers": [1]}}"#,
    ),
    (
        "language-model.attention_layers[].layer",
        Columns("attention_layers"),
        HEADS,
        r#"{"language-model": {"attention_layers": [{"layer": 0, "heads": [1]}]}}"#,
    ),
    (
        "language-model.attention_layers[].heads",
        Columns("attention_layers"),
        HEADS,
        r#"{"language-model": {"attention_layers": [{"layer": 1, "heads": [2, 0]}]}}"#,
    ),
    (
        "language-model.sink_tokens",
        Measure("sink_tokens"),
        LAYERS,
        r#"{"language-model": {"sink_tokens": 3}}"#,
    ),
    (
        "language-model.min_distance_fraction",
        Measure("min_distance"),
        LAYERS,
        r#"{"language-model": {"min_distance_fraction": 0.5}}"#,
    ),
    (
        "language-model.min_distance_tokens",
        Measure("min_distance"),
        LAYERS,
        r#"{"language-model": {"min_distance_tokens": 9}}"#,
    ),
    (
        "language-model.ladm",
        Columns("ladm"),
        LAYERS,
        r#"{"language-model": {"ladm": {"span_tokens": 2}}}"#,
    ),
    (
        "language-model.ladm.span_tokens",
        Measure("ladm"),
        SPANS,
        r#"{"language-model": {"ladm": {"span_tokens": 1}}}"#,
    ),
    (
        "language-model.ladm.d_afs",
        Measure("ladm"),
        SPANS,
        r#"{"language-model": {"ladm": {"span_tokens": 2, "d_afs": 2}}}"#,
    ),
    (
        "language-model.ladm.d_cds",
        Measure("ladm"),
        SPANS,
        r#"{"language-model": {"ladm": {"span_tokens": 2, "d_cds": 1}}}"#,
    ),
    (
        "language-model.ladm.keep_at_start",
        Measure("ladm"),
        SPANS,
        r#"{"language-model": {"ladm": {"span_tokens": 2, "keep_at_start": 5}}}"#,
    ),
    (
        "language-model.sample_fraction",
        Measure("sample_fraction"),
        LOSSES,
        r#"{"language-model": {"sample_fraction": 0.5}}"#,
    ),
    (
        "language-model.sample_seed",
        Measure("sample_seed"),
        r#"{"+": "language-model", "language-model": {"short_context_tokens": 8, "sample_fraction": 0.5}}"#,
        r#"{"language-model": {"sample_seed": 1}}"#,
    ),
    #[cfg(feature = "candle")]
    (
        "language-model.precision",
        Measure("precision"),
        LOSSES,
        r#"{"language-model": {"precision": "bf16"}}"#,
    ),
    #[cfg(not(feature = "candle"))]
    (
        "language-model.precision",
        Nothing("the others need the backend candle"),
        LOSSES,
        r#"{"language-model": {"precision": "f32"}}"#,
    ),
    (
        "language-model.strict_positions",
        Nothing("only whether such windows are rejected"),
        LAYERS,
        r#"{"language-model": {"strict_positions": true}}"#,
    ),
    (
        "score.formula",
        Nothing("the others need a measure of recurrence"),
        "{}",
        r#"{"score": {"formula": "longattn"}}"#,
    ),
    (
        "score.terms",
        Selection,
        "{}",
        r#"{"score": {"terms": [{"statistic": "dependency_strength"}]}}"#,
    ),
    (
        "score.combine",
        Selection,
        r#"{"score": {"terms": [{"statistic": "dependency_strength"}]}}"#,
        r#"{"score": {"combine": "least"}}"#,
    ),
    ("score.alpha", Selection, "{}", r#"{"score": {"alpha": 3.0}}"#),
    ("score.seed", Selection, r#"{"score": {"formula": "random"}}"#, r#"{"score": {"seed": 2}}"#),
    (
        "score.terms[].statistic",
        Selection,
        r#"{"score": {"terms": [{"statistic": "dependency_strength"}]}}"#,
        r#"{"score": {"terms": [{"statistic": "distance"}]}}"#,
    ),
    (
        "score.terms[].weight",
        Selection,
        r#"{"score": {"terms": [{"statistic": "dependency_strength"}]}}"#,
        r#"{"score": {"terms": [{"statistic": "dependency_strength", "weight": 2}]}}"#,
    ),
    (
        "score.terms[].offset",
        Selection,
        r#"{"score": {"terms": [{"statistic": "dependency_strength"}]}}"#,
        r#"{"score": {"terms": [{"statistic": "dependency_strength", "offset": 1}]}}"#,
    ),
    (
        "score.terms[].standardise",
        Selection,
        r#"{"score": {"terms": [{"statistic": "dependency_strength"}]}}"#,
        r#"{"score": {"terms": [{"statistic": "dependency_strength", "standardise": "percentile"}]}}"#,
    ),
    ("score.standardise", Selection, "{}", r#"{"score": {"standardise": "min-max"}}"#),
    ("score.max_relative_error", Selection, "{}", r#"{"score": {"max_relative_error": 0.5}}"#),
    ("score.within", Selection, "{}", r#"{"score": {"within": "label"}}"#),
    (
        "score.document_score",
        Selection,
        r#"{"output": {"samples": "documents"}}"#,
        r#"{"score": {"document_score": "max"}}"#,
    ),
    (
        "score.calibration",
        Selection,
        "{}",
        r#"{"score": {"calibration": "before.run/calibration.json"}}"#,
    ),
    (
        "score.on_drift",
        Nothing("accepts or rejects the result without changing it"),
        r#"{"score": {"calibration": "before.run/calibration.json"}}"#,
        r#"{"score": {"calibration": "before.run/calibration.json", "on_drift": "warn"}}"#,
    ),
    ("filter.keep_fraction", Selection, "{}", r#"{"filter": {"keep_fraction": 0.25}}"#),
    (
        "filter.keep_tokens",
        Selection,
        "{}",
        r#"{"filter": {"keep_fraction": null, "keep_tokens": 70}}"#,
    ),
    (
        "filter.min_score",
        Selection,
        "{}",
        r#"{"filter": {"keep_fraction": null, "min_score": 0.5}}"#,
    ),
    ("filter.not_measured", Selection, "{}", r#"{"filter": {"not_measured": "keep"}}"#),
    ("filter.mark_only", Selection, "{}", r#"{"filter": {"mark_only": true}}"#),
    (
        "filter.guards",
        Selection,
        "{}",
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5}]}}"#,
    ),
    (
        "filter.guards[].statistic",
        Selection,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5}]}}"#,
        r#"{"filter": {"guards": [{"statistic": "distance", "max": 0.5}]}}"#,
    ),
    (
        "filter.guards[].min",
        Selection,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5}]}}"#,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5, "min": 0}]}}"#,
    ),
    (
        "filter.guards[].max",
        Selection,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5}]}}"#,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.25}]}}"#,
    ),
    (
        "filter.guards[].min_quantile",
        Selection,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5}]}}"#,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5, "min_quantile": 0.1}]}}"#,
    ),
    (
        "filter.guards[].max_quantile",
        Selection,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5}]}}"#,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5, "max_quantile": 0.9}]}}"#,
    ),
    (
        "filter.guards[].weigh",
        Selection,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5, "max_quantile": 0.9}]}}"#,
        r#"{"filter": {"guards": [{"statistic": "far_variance", "max": 0.5, "max_quantile": 0.9, "weigh": "tokens"}]}}"#,
    ),
    ("filter.guards[].before", Nothing("a single measure has no order"), "{}", "{}"),
    (
        "filter.budgets",
        Selection,
        r#"{"filter": {"keep_fraction": null, "keep_tokens": 70}}"#,
        r#"{"filter": {"keep_tokens": null, "budgets": [{"keep_tokens": 70}]}}"#,
    ),
    (
        "filter.budgets[].group",
        Selection,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70}]}, "score": {"within": "label"}}"#,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70, "group": "label-1"}]}}"#,
    ),
    (
        "filter.budgets[].min_tokens",
        Selection,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70}]}}"#,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70, "min_tokens": 2}]}}"#,
    ),
    (
        "filter.budgets[].max_tokens",
        Selection,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70}]}}"#,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70, "max_tokens": 48}]}}"#,
    ),
    (
        "filter.budgets[].keep_tokens",
        Selection,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 70}]}}"#,
        r#"{"filter": {"keep_fraction": null, "budgets": [{"keep_tokens": 90}]}}"#,
    ),
    (
        "checks",
        Nothing("checks only accept or reject the result"),
        "{}",
        r#"{"checks": [{"figure": "rows_in", "min": 1}]}"#,
    ),
    (
        "checks[].figure",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"figure": "rows_in", "min": 1}]}"#,
        r#"{"checks": [{"figure": "windows_kept", "min": 1}]}"#,
    ),
    (
        "checks[].reason",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"figure": "rows_dropped", "min": 0}]}"#,
        r#"{"checks": [{"figure": "rows_dropped", "reason": "too_short", "min": 0}]}"#,
    ),
    (
        "checks[].statistic",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"statistic": "score", "max": 1000000}]}"#,
        r#"{"checks": [{"statistic": "far_variance", "max": 1000000}]}"#,
    ),
    (
        "checks[].take",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"statistic": "score", "max": 1000000}]}"#,
        r#"{"checks": [{"statistic": "score", "take": "max", "max": 1000000}]}"#,
    ),
    (
        "checks[].of",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"statistic": "score", "max": 1000000}]}"#,
        r#"{"checks": [{"statistic": "score", "of": "all", "max": 1000000}]}"#,
    ),
    (
        "checks[].group",
        Nothing("checks only accept or reject the result"),
        r#"{"score": {"within": "label"}, "checks": [{"figure": "samples", "min": 1}]}"#,
        r#"{"checks": [{"figure": "samples", "group": "label-1", "min": 1}]}"#,
    ),
    (
        "checks[].min",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"figure": "rows_in", "min": 1}]}"#,
        r#"{"checks": [{"figure": "rows_in", "min": 2}]}"#,
    ),
    (
        "checks[].max",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"figure": "rows_in", "min": 1}]}"#,
        r#"{"checks": [{"figure": "rows_in", "min": 1, "max": 1000}]}"#,
    ),
    (
        "checks[].severity",
        Nothing("checks only accept or reject the result"),
        r#"{"checks": [{"figure": "rows_in", "min": 1}]}"#,
        r#"{"checks": [{"figure": "rows_in", "min": 1, "severity": "warn"}]}"#,
    ),
    (
        "output.path",
        Nothing("only the path of the output"),
        "{}",
        r#"{"output": {"path": "elsewhere"}}"#,
    ),
    ("output.samples", Selection, "{}", r#"{"output": {"samples": "documents"}}"#),
    ("output.compression", Selection, "{}", r#"{"output": {"compression": "none"}}"#),
    ("output.card", Selection, "{}", r#"{"output": {"card": true}}"#),
    ("output.format", Selection, "{}", r#"{"output": {"format": "jsonl-zst"}}"#),
    (
        "output.sequence_tokens",
        Selection,
        r#"{"output": {"format": "megatron"}}"#,
        r#"{"output": {"sequence_tokens": 96}}"#,
    ),
    (
        "output.end_token",
        Selection,
        r#"{"output": {"format": "megatron"}}"#,
        r#"{"output": {"end_token": 3}}"#,
    ),
    (
        "output.compare",
        Selection,
        r#"{"output": {"report_by": "label"}}"#,
        r#"{"output": {"compare": ["longattn"]}}"#,
    ),
    ("output.part_bytes", Selection, "{}", r#"{"output": {"part_bytes": 2048}}"#),
    ("output.mirror", Selection, "{}", r#"{"output": {"mirror": true}}"#),
    (
        "output.report",
        Nothing("a report describes the result"),
        "{}",
        r#"{"output": {"report": true}}"#,
    ),
    ("output.report_by", Selection, "{}", r#"{"output": {"report_by": "label"}}"#),
];

/// Other values of the leaves above, if each value has its own code.
const OTHER_VALUES: &[Case] = &[
    (
        "load-partial-model.precision",
        Measure("precision"),
        "{}",
        r#"{"load-partial-model": {"precision": "int16"}}"#,
    ),
    (
        "load-partial-model.precision",
        Measure("precision"),
        r#"{"load-partial-model": {"precision": "bf16"}}"#,
        r#"{"load-partial-model": {"precision": "int16"}}"#,
    ),
];

/// Every leaf of the pipeline's schema, stages by their names, members of a map as `*`, items of a list as `[]`.
fn leaves() -> BTreeSet<String> {
    fn add(root: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.strip_prefix("#/$defs/").unwrap();
            return add(root, &root["$defs"][name], path, found);
        }
        let join = |key: &str| {
            if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
        };
        for (key, value) in schema["properties"].as_object().into_iter().flatten() {
            if key == "stage" {
                continue;
            }
            let (mut below, name) = (BTreeSet::new(), join(key));
            add(root, value, &name, &mut below);
            let is_section = ["input", "output", "stages"].contains(&name.as_str());
            if !is_section {
                found.insert(name);
            }
            found.extend(below);
        }
        if schema["additionalProperties"].is_object() {
            add(root, &schema["additionalProperties"], &join("*"), found);
        }
        let stages = path == "stages";
        if schema["items"].is_object() {
            let items = if stages { path.to_owned() } else { format!("{path}[]") };
            add(root, &schema["items"], &items, found);
        }
        for choice in ["oneOf", "anyOf", "allOf"] {
            for schema in schema[choice].as_array().into_iter().flatten() {
                match schema["properties"]["stage"]["const"].as_str() {
                    Some(stage) => add(root, schema, stage, found),
                    None => add(root, schema, path, found),
                }
            }
        }
    }
    let schema = read_json(&repository().join("schemas/pipeline.schema.json"));
    let mut found = BTreeSet::new();
    add(&schema, &schema, "", &mut found);
    found
}

/// The usual pipeline with the changes of `all`, one after the other.
fn pipeline(all: &[&str]) -> Value {
    let mut pipeline = json!({
        "version": 1,
        "name": "test",
        "input": { "path": "input", "id_column": "id", "text_column": "text" },
        "stages": [
            { "stage": "load-partial-model", "model": "model" },
            { "stage": "tokenize", "window_tokens": 48, "bos": 1 },
            { "stage": "shard-across-devices" },
            { "stage": "first-layer-attention" },
            { "stage": "score" },
            { "stage": "filter", "keep_fraction": 0.5 },
        ],
        "output": { "path": "out" },
    });
    for change in all {
        let change: Map<String, Value> = serde_json::from_str(change).unwrap();
        for (section, value) in change {
            let stages = pipeline["stages"].as_array_mut().unwrap();
            if section == "+" {
                let index = stages.iter().position(|stage| stage["stage"] == "score").unwrap();
                let stage = if value.is_object() { value } else { json!({ "stage": value }) };
                stages.insert(index, stage);
            } else if let Some(stage) = stages.iter_mut().find(|stage| stage["stage"] == section) {
                merge(stage, value);
            } else {
                merge(&mut pipeline[section], value);
            }
        }
    }
    pipeline
}

fn merge(into: &mut Value, change: Value) {
    match (into.as_object_mut(), change) {
        (Some(into), Value::Object(change)) => {
            for (key, value) in change {
                if value.is_null() {
                    into.shift_remove(&key);
                } else {
                    into.insert(key, value);
                }
            }
        }
        (_, change) => *into = change,
    }
}

/// Two files of four documents, two models, two tokenizers, and an earlier run over the first file.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    copy_folder(&demo_model(), &workspace.path("model"));
    copy_folder(&demo_model(), &workspace.path("model2"));
    let weights = workspace.path("model2/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let mut tokenizer = fs::read(workspace.path("model/tokenizer.json")).unwrap();
    tokenizer.push(b'\n');
    workspace.write("tokenizer2/tokenizer.json", tokenizer);
    for (file, first) in [("a", 0), ("b", 4)] {
        let documents = first..first + 4;
        let columns = [
            ("id", strings(documents.clone().map(|document| format!("document-{document}")))),
            ("text", strings(documents.clone().map(|document| text(document, 60 + 30 * document)))),
            ("other", strings(documents.clone().map(|document| text(document + 9, 90)))),
            ("label", strings(documents.clone().map(|document| format!("label-{}", document % 2)))),
            ("tokens", token_lists(&documents.map(tokens).collect::<Vec<_>>())),
        ];
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &table(&columns), 2);
    }
    let line = |row: usize| {
        let (id, text) = (format!("document-{row}"), text(row, 60 + 30 * row));
        format!("\t{}\n", json!({ "id": id, "text": text, "number": row }))
    };
    let lines: String = (0..8).map(line).collect();
    workspace.write("lines/tabs.txt", &lines);
    workspace.write("lines/all.jsonl", lines);
    write_program(&workspace);
    workspace.write("words.txt", "some words");
    let before =
        pipeline(&[r#"{"input": {"path": "input/a.parquet"}, "output": {"path": "before"}}"#]);
    run(&workspace, &before).expect("the earlier run");
    workspace
}

fn text(seed: usize, words: usize) -> String {
    const WORDS: [&str; 12] = [
        "the", "river", "house", "before", "answer", "garden", "morning", "letter", "window",
        "remember", "old", "light",
    ];
    let word = |index: usize| WORDS[(index * index + 7 * seed + index / 5) % WORDS.len()];
    let words: Vec<&str> = (0..words).map(word).collect();
    format!("{} <|endoftext|> {}", words.join(" "), words[..words.len() / 3].join(" "))
}

fn tokens(seed: usize) -> Vec<u32> {
    (0..150).map(|index| ((index * index + 31 * seed) % 400 + 3) as u32).collect()
}

/// Writes and runs a pipeline; returns an error if it is rejected.
fn run(workspace: &Workspace, pipeline: &Value) -> Result<Value, String> {
    workspace.write("pipeline.json", pipeline.to_string());
    let answer = workspace.longsift(&["run", "pipeline.json", "-q"]);
    match answer.code {
        0 => Ok(answer.summary()),
        2 => Err(answer.stderr),
        _ => panic!("{}", answer.to_text()),
    }
}

/// Hashes of all tables of a pipeline's output and its run directory.
fn results(workspace: &Workspace, pipeline: &Value) -> BTreeMap<String, String> {
    let output = pipeline["output"]["path"].as_str().unwrap();
    let folder = |name: &str| format!("{output}{name}");
    let folders = ["/data", ".run/scores", ".run/dropped", ".run/selection", ".run/quarantine"];
    let folders = folders.map(folder);
    let hashes = workspace.hashes(&folders.each_ref().map(String::as_str));
    assert!(!hashes.is_empty());
    hashes
}

fn identity(workspace: &Workspace, pipeline: &Value) -> Value {
    workspace.write("locked.json", pipeline.to_string());
    workspace.longsift(&["lock", "locked.json", "-q"]).success();
    read_json(&workspace.path("locked.lock"))["identity"].clone()
}

/// Names of the facts of a part that differ.
fn changed<'v>(before: &'v Value, now: &'v Value) -> BTreeSet<&'v str> {
    let (before, now) = (before.as_object().unwrap(), now.as_object().unwrap());
    let names = before.keys().chain(now.keys());
    names.filter(|name| before.get(*name) != now.get(*name)).map(String::as_str).collect()
}

#[test]
fn every_leaf_of_the_schema_is_in_the_table_once() {
    let listed: Vec<String> = CASES.iter().map(|(leaf, ..)| (*leaf).to_owned()).collect();
    let set: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(set.len(), listed.len());
    let leaves = leaves();
    assert!(leaves.len() > 50, "{leaves:?}");
    let missing: Vec<_> = leaves.difference(&set).collect();
    assert!(missing.is_empty(), "add these settings to the table: {missing:?}");
    let unknown: Vec<_> = set.difference(&leaves).collect();
    assert!(unknown.is_empty(), "no such settings: {unknown:?}");
}

#[test]
fn a_setting_changes_only_its_part_of_the_identity() {
    let workspace = workspace();
    let mut bases: BTreeMap<&str, Value> = BTreeMap::new();
    for (leaf, part, base, change) in CASES.iter().chain(OTHER_VALUES) {
        let before =
            bases.entry(base).or_insert_with(|| identity(&workspace, &pipeline(&[base]))).clone();
        let now = identity(&workspace, &pipeline(&[base, change]));
        let windows = changed(&before["windows"], &now["windows"]);
        let names = changed(&before["measures"], &now["measures"]);
        let facts = |identity: &Value, name: &str| identity["measures"][name]["facts"].clone();
        let mut measure = BTreeSet::new();
        for name in names {
            let (before, now) = (facts(&before, name), facts(&now, name));
            if before.is_null() || now.is_null() {
                measure.insert(name.to_owned());
            } else {
                measure.extend(changed(&before, &now).into_iter().map(str::to_owned));
            }
        }
        let selection = changed(&before["selection"], &now["selection"]);
        let parts = [!windows.is_empty(), !measure.is_empty(), !selection.is_empty()];
        let context = || format!("{leaf}: {windows:?} {measure:?} {selection:?}");
        match part {
            Windows(fact) => {
                assert!(windows.contains(fact), "{}", context());
                assert!(!parts[1] && !parts[2], "{}", context());
            }
            // The minimum window length of a measure is a fact of windows as well.
            Measure(fact) => {
                assert!(measure.contains(*fact) && !parts[2], "{}", context());
                assert!(windows.iter().all(|fact| *fact == "min_tokens"), "{}", context());
            }
            Columns(fact) => {
                let columns = BTreeSet::from(["output.statistics"]);
                assert!(measure.contains(*fact) && windows.is_empty(), "{}", context());
                assert_eq!(selection, columns, "{}", context());
            }
            Renamed(name) => {
                let columns = BTreeSet::from(["output.statistics"]);
                assert!(measure.contains(*name) && windows.is_empty(), "{}", context());
                assert_eq!(selection, columns, "{}", context());
            }
            Selection => assert_eq!(parts, [false, false, true], "{}", context()),
            Nothing(_) => assert_eq!(parts, [false; 3], "{}", context()),
        }
    }
}

#[test]
fn a_run_with_a_changed_setting_equals_a_fresh_run_or_names_the_setting() {
    let workspace = workspace();
    let mut bases: BTreeMap<&str, Workspace> = BTreeMap::new();
    for (leaf, part, base, change) in CASES.iter().chain(OTHER_VALUES) {
        let finished = bases.entry(base).or_insert_with(|| {
            let finished = Workspace::copy_of(&workspace);
            run(&finished, &pipeline(&[base])).unwrap_or_else(|why| panic!("{leaf}: {why}"));
            finished
        });
        let again = Workspace::copy_of(finished);
        let changed = pipeline(&[base, change]);
        let answer = run(&again, &changed);
        match (part, answer) {
            (Windows(fact) | Measure(fact) | Columns(fact), Err(message)) => {
                assert!(message.contains(&format!("{fact}: ")), "{leaf}: {message}");
                let before = pipeline(&[base]);
                let kept = (results(&again, &before), results(finished, &before));
                assert_eq!(kept.0, kept.1, "{leaf}: a refused run removes nothing");
            }
            (Windows(_) | Columns(_), Ok(summary)) => panic!("{leaf} was not refused: {summary}"),
            (Renamed(_) | Selection | Nothing(_), Err(message)) => {
                panic!("{leaf} was refused: {message}")
            }
            (Measure(_) | Renamed(_) | Selection | Nothing(_), Ok(_)) => {
                let fresh = Workspace::copy_of(&workspace);
                run(&fresh, &changed).unwrap();
                let results = |workspace: &Workspace| {
                    let mut results = results(workspace, &changed);
                    // Statistics under the earlier name stay in the scores.
                    let is_scores = |path: &String| path.contains(".run/scores/");
                    results.retain(|path, _| !(matches!(part, Renamed(_)) && is_scores(path)));
                    results
                };
                assert_eq!(results(&again), results(&fresh), "{leaf}");
            }
        }
    }
}
