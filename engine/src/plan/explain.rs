//! A plan for people (one line per stage) and for programs (JSON).

use std::fmt::{self, Write};

use longsift_stages::contract::Decimal;
use longsift_stages::filter::KeepTokens;
use longsift_stages::first_layer_attention::{Mask, Rows};
use longsift_stages::score::Standardise;
use longsift_stages::tokenize::{Encoder, ShortDocuments, Windows};
use serde_json::{Value, json};

use super::Plan;
use super::absent::Absent;
use crate::dataset::Content;
use crate::diagnostic::quoted;
use crate::report::{bytes, count};
use crate::spec::pipeline::{Compression, Samples};

/// Work that an existing run directory has done for a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Units with a record that stands.
    pub units: usize,
    /// Windows in those units.
    pub windows: u64,
    /// Whether the run is finished and nothing has changed.
    pub finished: bool,
}

/// The text of `longsift plan`.
pub struct Explanation<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Work done before.
    pub done: Done,
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        writeln!(f, "pipeline {}", quoted(&plan.spec.pipeline.name))?;
        let (devices, memory) = match &plan.absent {
            Some(absent) => (absent_devices(plan, absent), absent.time()),
            None => (devices(plan), memory(plan)),
        };
        let memory_or_time = if plan.absent.is_some() { "time" } else { "memory" };
        for (name, text) in [
            ("input", input(plan)),
            ("load-partial-model", model(plan)),
            ("tokenize", tokenize(plan)),
            ("shard-across-devices", devices),
            ("first-layer-attention", attention(plan)),
            ("score", score(plan)),
            ("filter", filter(plan)),
            ("output", output(plan)),
            (memory_or_time, memory),
            ("disk", disk(plan)),
            ("done", done(plan, self.done)),
        ] {
            writeln!(f, "  {name:<22} {text}")?;
        }
        Ok(())
    }
}

fn input(plan: &Plan) -> String {
    let mut text = format!(
        "{} files, {} rows, {} columns → {} work units",
        count(plan.dataset.files.len() as u64),
        count(plan.rows()),
        plan.dataset.schema.fields().len(),
        count(plan.units.len() as u64)
    );
    if !plan.input_before.is_empty() {
        let before = count(plan.input_before.len() as u64);
        let _ = write!(text, ", without {before} files of before");
    }
    if let Some(shard) = plan.options.shard {
        let _ = write!(
            text,
            " (shard {shard} of {} work units, {} rows)",
            count(plan.whole.units),
            count(plan.whole.rows)
        );
    }
    if let Some(limit) = plan.options.limit_rows {
        let _ =
            write!(text, " (the first {} rows of {})", count(limit), count(plan.dataset.rows()));
    }
    text
}

fn model(plan: &Plan) -> String {
    let layer = plan.model.spec();
    format!(
        "{}{}, {} layers; layer 0: {} query and {} key heads of {}; reads {} of {} → {} table, {} rows of {} = {} at most{}",
        layer.model_type,
        if layer.unverified {
            " (unverified: never compared with the model's own code)"
        } else {
            ""
        },
        layer.layers,
        layer.query_heads,
        layer.key_heads,
        layer.head_dim,
        bytes(plan.model.bytes_to_read()),
        bytes(plan.model.checkpoint_bytes()),
        plan.spec.load_partial_model().precision.name(),
        count(layer.vocabulary_size),
        bytes(plan.estimate.table_row_bytes),
        bytes(plan.estimate.table_bytes),
        if plan.estimate.table_cached { " (cached)" } else { "" }
    )
}

fn tokenize(plan: &Plan) -> String {
    let settings = plan.spec.tokenize();
    let source = match &plan.columns.content {
        Content::Text(column) => format!("text {}", quoted(column)),
        Content::Tokens(column) => format!("tokens {}", quoted(column)),
    };
    let cut = match settings.windows {
        Windows::BothEnds => "both ends",
        Windows::Disjoint => "disjoint",
        Windows::WholeDocument => "whole documents",
    };
    let limit = if settings.windows == Windows::WholeDocument { "up to " } else { "" };
    let short = match (settings.windows, settings.short_documents) {
        (Windows::WholeDocument, _) => "longer ones are quarantined",
        (_, ShortDocuments::Drop) => "short documents are dropped",
        (_, ShortDocuments::Score) => "short documents are scored",
    };
    let whole = plan.encoder.as_ref().and_then(Encoder::whole_texts_because);
    let whole = whole.map_or(String::new(), |why| {
        let most = count(plan.largest_part_bytes());
        format!("; long texts are tokenised whole, up to {most} bytes, because {why}")
    });
    format!(
        "{source} → windows: {cut}, {limit}{} tokens, {} BOS, {short}; about {}{whole}",
        count(u64::from(settings.window_tokens)),
        plan.bos.count,
        count(plan.estimate.windows)
    )
}

fn devices(plan: &Plan) -> String {
    let devices = &plan.devices;
    let threads =
        if devices.is_cpu() { format!("{} threads, ", devices.threads) } else { String::new() };
    format!(
        "{} ({}): {threads}kernel {}, {} windows in flight",
        devices.names(),
        devices.why,
        devices.kernel.name(),
        plan.estimate.windows_in_flight
    )
}

fn absent_devices(plan: &Plan, absent: &Absent) -> String {
    let precision = plan.spec.load_partial_model().precision.name();
    let indent = format!("\n  {:<22} ", "");
    let cards = match absent.cards.len() {
        1 => "a card that is not here".to_owned(),
        number => format!("{number} cards that are not here"),
    };
    format!("{cards}, {precision}{indent}{}", absent.placement().join(&indent))
}

fn attention(plan: &Plan) -> String {
    let attention = plan.spec.first_layer_attention();
    let window = u64::from(plan.spec.tokenize().window_tokens);
    let rule = match (attention.min_distance_tokens, attention.min_distance_fraction) {
        (Some(_), _) => "as set".to_owned(),
        (None, fraction) => format!("{} of the window", fraction.unwrap_or(Decimal(0.25))),
    };
    let rows = match attention.rows {
        Rows::All(_) => "all rows".to_owned(),
        Rows::Sampled(sampled) => format!(
            "{} rows of a window at random (seed {})",
            count(u64::from(sampled.per_window)),
            sampled.seed
        ),
    };
    let mask = match attention.mask {
        Mask::Causal => "causal",
        Mask::Unmasked => "unmasked",
    };
    format!(
        "windows → statistics: {mask}, far from {} tokens ({rule}), {rows}",
        count(attention.distance(window))
    )
}

fn score(plan: &Plan) -> String {
    let score = plan.spec.score();
    let standardise = match score.standardise {
        Standardise::ZScore => "z-score",
        Standardise::MinMax => "min-max",
    };
    let within = score
        .within
        .as_ref()
        .map_or("over everything".to_owned(), |column| format!("within {}", quoted(column)));
    let calibration = score
        .calibration
        .as_ref()
        .map_or(String::new(), |path| format!(", calibrated by {}", quoted(path)));
    format!(
        "statistics → score: longattn, alpha {}, {standardise}, {within}{calibration}",
        score.alpha
    )
}

fn filter(plan: &Plan) -> String {
    let filter = plan.spec.filter();
    let group = if plan.spec.score().within.is_some() { " of each group" } else { "" };
    let rule = match (filter.keep_fraction, &filter.keep_tokens, filter.min_score) {
        _ if plan.spec.score().calibration.is_some() => {
            "from the calibrated threshold up".to_owned()
        }
        (Some(fraction), _, _) => format!("the best {fraction}{group}"),
        (_, Some(KeepTokens::Same(tokens)), _) => {
            format!("the best {} tokens{group}", count(*tokens))
        }
        (_, Some(KeepTokens::PerGroup(groups)), _) => {
            format!("a token budget for each of {} groups", groups.len())
        }
        (_, _, Some(score)) => format!("from score {score} up"),
        (None, None, None) => "everything".to_owned(),
    };
    format!("score → samples: keeps {rule}")
}

fn output(plan: &Plan) -> String {
    let output = &plan.spec.pipeline.output;
    let samples = match output.samples {
        Samples::Windows => "a row per window",
        Samples::Documents => "a row per document",
    };
    let compression = match output.compression {
        Compression::Zstd => "zstd",
        Compression::Snappy => "snappy",
        Compression::Lz4 => "lz4",
        Compression::None => "uncompressed",
    };
    format!(
        "samples → `{}/data`: {samples}, {} input columns + {} of longsift, {compression}",
        output.path,
        plan.dataset.schema.fields().len(),
        crate::output::COLUMNS.len()
    )
}

fn memory(plan: &Plan) -> String {
    let estimate = &plan.estimate;
    let packed = match estimate.packed_bytes {
        0 => String::new(),
        packed => format!(", {} of projections among it", bytes(packed)),
    };
    format!(
        "{}: at most {} besides the mapped table{packed}; {} per window in flight",
        if plan.devices.is_cpu() { "cpu" } else { "host" },
        bytes(estimate.memory_bytes),
        bytes(estimate.window_bytes)
    )
}

fn disk(plan: &Plan) -> String {
    let estimate = &plan.estimate;
    format!(
        "about {} of scores, {} of output; {} for the table cache",
        bytes(estimate.scores_bytes),
        bytes(estimate.output_bytes),
        bytes(estimate.cache_bytes)
    )
}

fn done(plan: &Plan, done: Done) -> String {
    if done.finished {
        return "everything; a run would do nothing".to_owned();
    }
    format!(
        "{} of {} work units scored, {} windows",
        count(done.units as u64),
        count(plan.units.len() as u64),
        count(done.windows)
    )
}

/// The JSON of `longsift plan --format json`.
pub fn json(plan: &Plan, done: Done) -> Value {
    let layer = plan.model.spec();
    let attention = plan.spec.first_layer_attention();
    json!({
        "pipeline": plan.spec.pipeline.name,
        "settings": plan.spec.resolved_json(),
        "input": {
            "files": plan.dataset.files.len(),
            "rows": plan.rows(),
            "columns": plan.dataset.schema.fields().iter().map(|field| field.name()).collect::<Vec<_>>(),
            "work_units": plan.units.len(),
        },
        "model": {
            "model_type": layer.model_type,
            "unverified": layer.unverified,
            "layers": layer.layers,
            "query_heads": layer.query_heads,
            "key_heads": layer.key_heads,
            "head_dim": layer.head_dim,
            "vocabulary_size": layer.vocabulary_size,
            "checkpoint_bytes": plan.model.checkpoint_bytes(),
            "bytes_to_read": plan.model.bytes_to_read(),
        },
        "bos": plan.bos.count,
        "distance": attention.distance(u64::from(plan.spec.tokenize().window_tokens)),
        "device": {
            "name": plan.devices.names(),
            "why": plan.devices.why,
            "kernel": plan.kernel().name(),
            "threads": plan.devices.threads,
            "workers": plan.devices.list.iter().map(|device| device.workers).collect::<Vec<_>>(),
        },
        "absent": plan.absent,
        "estimate": plan.estimate,
        "done": { "work_units": done.units, "windows": done.windows, "finished": done.finished },
        "warnings": plan.warnings.iter().map(|warning| &warning.message).collect::<Vec<_>>(),
    })
}
