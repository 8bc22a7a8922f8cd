//! Describes a plan as text (one line per stage) and as JSON.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use longsift_kernels::{ElementType, Kernel};
use longsift_stages::contract::{Column, Decimal, Kind};
use longsift_stages::filter::KeepTokens;
use longsift_stages::first_layer_attention::{FirstLayer, Rows};
use longsift_stages::load_partial_model::Precision;
use longsift_stages::score::terms::Term;
use longsift_stages::tokenize::{Encoder, ShortDocuments, Windows};
use longsift_stages::{Filter, Reads, Score};
use serde_json::{Value, json};

use super::attention::Attention;
use super::document_sample::DocumentSample;
use super::preset;
use super::programs::Program;
use super::sizing::Sizing;
use super::whole_models::WholeModelPlan;
use crate::base::diagnostic::Diagnostic;
use crate::base::text::{bytes, count, counted, percent, quoted};
use crate::dataset::documents::ContentColumn;
use crate::plan::Plan;
use crate::run_directory::scores::MeasureColumns;
use crate::spec::assertions::written;
use crate::spec::pipeline::{OutputFormat, ParquetCompression, Samples};

/// Work that an existing run directory has completed for a plan.
#[derive(Clone, Debug, Default)]
pub struct CompletedWork {
    pub units: usize,
    pub windows: u64,
    /// Whether the run is finished and unchanged.
    pub finished: bool,
    pub refused: Option<Diagnostic>,
}

pub struct PlanExplanation<'a> {
    pub plan: &'a Plan,
    pub done: CompletedWork,
    /// Sizing for devices that this machine does not have, if requested.
    pub sizing: Option<Sizing>,
    pub sample: DocumentSample,
}

impl fmt::Display for PlanExplanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        writeln!(f, "pipeline {}", quoted(&plan.spec.pipeline.name))?;
        let (memory_or_time, memory) = match &self.sizing {
            Some(absent) => ("time", absent.time()),
            None => ("memory", memory(plan)),
        };
        let mut lines = vec![("input", input(plan))];
        lines.extend(columns(plan).map(|columns| ("", columns)));
        if let Some(needed) = &plan.attention {
            lines.push(("load-partial-model", model(plan, needed)));
        }
        let programs = plan.programs.iter();
        let programs = programs.filter(|program| program.settings.reads == Reads::Document);
        lines.extend(programs.map(|program| (&*program.settings.name, documents(program))));
        lines.push(("tokenize", tokenize(plan)));
        lines.extend(self.sample.in_words().map(|documents| ("documents", documents)));
        if let Some(needed) = &plan.attention {
            let devices = match &self.sizing {
                Some(absent) => absent_devices(needed, absent),
                None => devices(plan, needed),
            };
            lines.push(("shard-across-devices", devices));
        }
        for (of, index) in plan.measures.columns.iter().zip(plan.measures.indices()) {
            let needs = plan.measure(index).needs();
            if needs.answers() == Some(Reads::Document) {
                continue;
            }
            let what = match &plan.attention {
                Some(needed) if needs.attention().is_some() => attention(plan, needed),
                _ => measure(plan, of),
            };
            let whole =
                plan.whole_models.get(&index).map(|whole| format!("; {}", whole.in_words()));
            let whole = whole.unwrap_or_default();
            lines.push((&*of.measure, what + &skip_conditions(plan, index) + &whole));
        }
        lines.push(("score", score(plan)));
        lines.extend(preset::components(plan).into_iter().map(|components| ("", components)));
        lines.extend([
            ("filter", filter(plan)),
            ("output", output(plan)),
            (memory_or_time, memory),
        ]);
        lines.extend(map_memory_bytes(plan).map(|max| {
            let text = format!(
                "of a document of {} tokens in {MAP_BLOCKS} blocks (`longsift map`): at most {} in addition to the mapped table",
                count(MAP_TOKENS),
                bytes(max)
            );
            ("map", text)
        }));
        lines.extend([("disk", disk(plan)), ("done", done(plan, &self.done))]);
        for (name, text) in lines {
            writeln!(f, "  {name:<22} {text}")?;
        }
        Ok(())
    }
}

fn input(plan: &Plan) -> String {
    let mut text = format!(
        "{}, {}, {} → {}",
        counted(plan.dataset.files.len() as u64, "file"),
        counted(plan.rows(), "row"),
        counted(plan.dataset.schema.fields().len() as u64, "column"),
        counted(plan.units.len() as u64, "work unit")
    );
    if !plan.input_before.is_empty() {
        let before = counted(plan.input_before.len() as u64, "file");
        let _ = write!(text, ", excluding {before} processed by earlier runs");
    }
    if let Some(shard) = plan.options.shard {
        let _ = write!(
            text,
            " (shard {shard} of {} work units, {} rows)",
            count(plan.whole_units),
            count(plan.whole_rows)
        );
    }
    if let Some(limit) = plan.options.limit_rows {
        let _ =
            write!(text, " (the first {} rows of {})", count(limit), count(plan.dataset.rows()));
    }
    text
}

/// Returns a line about the columns of line files, which do not record them.
fn columns(plan: &Plan) -> Option<String> {
    let lines = plan.dataset.lines.as_ref()?;
    let from = if lines.inferred { "inferred from the first lines" } else { "as named" };
    Some(format!("columns of {}, {from}: {}", lines.forms.join(" and "), lines.columns))
}

fn model(plan: &Plan, attention: &Attention) -> String {
    let Attention { model, reading, .. } = attention;
    let layer = model.spec();
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
        bytes(model.bytes_to_read()),
        bytes(model.checkpoint_bytes()),
        reading.precision.name(),
        count(layer.vocabulary_size),
        bytes(plan.estimate.table_row_bytes),
        bytes(plan.estimate.table_bytes),
        if plan.estimate.table_cached { " (cached)" } else { "" }
    )
}

fn tokenize(plan: &Plan) -> String {
    let settings = plan.spec.tokenize();
    let source = match &plan.columns.content {
        ContentColumn::Text(column) => format!("text {}", quoted(column)),
        ContentColumn::Tokens(column) => format!("tokens {}", quoted(column)),
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
    let whole = plan.encoder.as_ref().and_then(Encoder::unsplittable_reason);
    let whole = whole.map_or(String::new(), |why| {
        let max = count(Encoder::MAX_PART_BYTES as u64);
        format!("; long texts are tokenized whole, up to {max} bytes, because {why}")
    });
    let library = plan.encoder.as_ref().and_then(Encoder::library_reason);
    let library = library.map_or(String::new(), |why| {
        format!("; encoded by the `tokenizers` library, at about a tenth of the usual speed, because {why}")
    });
    format!(
        "{source} → windows: {cut}, {limit}{} tokens, {} BOS, {short}; about {}{whole}{library}",
        count(u64::from(settings.window_tokens)),
        plan.bos.count,
        counted(plan.estimate.windows, "window")
    )
}

fn devices(plan: &Plan, attention: &Attention) -> String {
    let devices = &attention.devices;
    let threads =
        if devices.is_cpu() { format!("{} threads, ", devices.threads) } else { String::new() };
    format!(
        "{} ({}): {threads}kernel {}{}, {} windows in flight",
        devices.names(),
        devices.why,
        devices.kernel.name(),
        float32_for_bf16(plan, attention),
        plan.estimate.windows_in_flight
    )
}

/// Returns why the processor multiplies float32 under `precision: bf16` unless `--kernel` requests it.
fn float32_for_bf16(plan: &Plan, attention: &Attention) -> String {
    let kernel = attention.kernel();
    let widened = attention.reading.precision == Precision::Bf16
        && kernel.element_type() == ElementType::F32
        && !kernel.is_cuda()
        && plan.options.kernel.is_none();
    let reason = Kernel::AmxBf16.unsupported_reason().filter(|_| widened);
    reason.map_or_else(String::new, |reason| format!(" (float32 for `precision: bf16`: {reason})"))
}

fn absent_devices(attention: &Attention, absent: &Sizing) -> String {
    let precision = attention.reading.precision.name();
    let indent = format!("\n  {:<22} ", "");
    let cards = match absent.cards.len() {
        1 => "1 GPU that this machine does not have".to_owned(),
        number => format!("{number} GPUs that this machine does not have"),
    };
    format!("{cards}, {precision}{indent}{}", absent.placement().join(&indent))
}

fn measure(plan: &Plan, of: &MeasureColumns) -> String {
    let single = of.columns.iter().filter(|column| column.kind != Kind::Numbers);
    let names: Vec<&str> = single.map(|column| column.name.as_ref()).collect();
    let mut programs = plan.programs.iter();
    let program = programs.find(|program| program.settings.name == of.measure);
    let by = program.map_or(String::new(), computed_by);
    format!("windows → {}{by}", names.join(", "))
}

/// Describes a program that receives documents before they are tokenized.
fn documents(program: &Program) -> String {
    let names = program.settings.statistics.iter().map(|statistic| statistic.name.as_str());
    let all: Vec<&str> = std::iter::once("kept documents").chain(names).collect();
    format!("documents → {}{}", all.join(", "), computed_by(program))
}

fn computed_by(program: &Program) -> String {
    format!(", computed by {}", quoted(&program.settings.command.join(" ")))
}

fn skip_conditions(plan: &Plan, index: u16) -> String {
    let samples = plan.spec.pipeline.output.samples.name();
    let guards = plan.cascade.in_words(index);
    let guards =
        guards.map_or(String::new(), |guards| format!(", only for {samples} with {guards}"));
    let sample = plan.measure(index).sample().map_or(String::new(), |sample| {
        format!(", for {} of all windows", percent(sample.fraction.0))
    });
    sample + &guards
}

fn attention(plan: &Plan, attention: &Attention) -> String {
    let attention = &attention.measure;
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
    format!(
        "windows → statistics: {}, far from {} tokens ({rule}), {rows}",
        written(&attention.mask),
        count(attention.far_distance().in_window(window))
    )
}

fn score(plan: &Plan) -> String {
    let score = plan.spec.score();
    let (terms, _) = score.terms(&plan.measures.statistics());
    let formula = score.in_words(&plan.measures.statistics());
    let formula = match score.terms {
        Some(_) => formula,
        None => format!("{} = {formula}", score.formula.unwrap_or_default().name()),
    };
    let filter = plan.spec.filter();
    let scale = match scale(score, filter, &terms) {
        Some(scale) => format!("standardised by {scale}"),
        None => "not standardised".to_owned(),
    };
    let groups = match &score.within {
        Some(column) => format!("groups by {}", quoted(column)),
        None => "all samples in one group".to_owned(),
    };
    let calibration = score
        .calibration
        .as_ref()
        .map_or(String::new(), |path| format!(", calibrated by {}", quoted(&path.to_string())));
    format!("statistics → score: {formula}; {scale}; {groups}{calibration}")
}

/// Describes the scale of the terms of a score: `percentile among the samples that pass the guards`. `None` without terms.
pub(crate) fn scale(score: &Score, filter: &Filter, terms: &[Term]) -> Option<String> {
    let scales = terms.iter().map(|term| term.standardise.unwrap_or(score.standardise));
    let scales: BTreeSet<String> = scales.map(|scale| written(&scale)).collect();
    let scales = scales.into_iter().collect::<Vec<_>>().join(" and ");
    match (scales.is_empty(), filter.guards.is_empty()) {
        (true, _) => None,
        (false, true) => Some(scales),
        (false, false) => Some(format!("{scales} among the samples that pass the guards")),
    }
}

pub(crate) fn amount(score: &Score, filter: &Filter) -> String {
    let of = if score.within.is_some() { "each group" } else { "all" };
    if score.calibration.is_some() {
        return "scores from the calibrated threshold".to_owned();
    }
    match (filter.keep_fraction, &filter.keep_tokens, &filter.budgets, filter.min_score) {
        (Some(fraction), ..) => format!("the best {} of {of}", percent(fraction.0)),
        (_, Some(KeepTokens::Same(tokens)), ..) => {
            format!("the best {} tokens of {of}", count(*tokens))
        }
        (_, Some(KeepTokens::PerGroup(groups)), ..) => {
            format!("a token budget for each of {} groups", groups.len())
        }
        (_, _, Some(budgets), _) => {
            format!("{} by group and length", counted(budgets.len() as u64, "token budget"))
        }
        (.., Some(score)) => format!("scores from {score}"),
        (None, None, None, None) => "everything that passes the guards".to_owned(),
    }
}

fn filter(plan: &Plan) -> String {
    let filter = plan.spec.filter();
    let rule = amount(plan.spec.score(), filter);
    let guards: Vec<&str> = filter.guards.iter().map(|guard| &*guard.statistic).collect();
    let guards = match &guards[..] {
        [] => String::new(),
        guards => format!(", guarded by {}", guards.join(", ")),
    };
    format!("score → samples: keeps {rule}{guards}")
}

fn output(plan: &Plan) -> String {
    let output = &plan.spec.pipeline.output;
    let samples = match output.samples {
        Samples::Windows => "a row per window",
        Samples::Documents => "a row per document",
    };
    let mirrored = match (output.mirror, plan.dataset.files.len()) {
        (false, _) => String::new(),
        (true, files) => {
            format!(", in the folders and files of {} input files", count(files as u64))
        }
    };
    if output.format == OutputFormat::Megatron {
        let packed = output.sequence_tokens.map_or(String::new(), |tokens| {
            format!(", packed to sequences of {} tokens", count(u64::from(tokens)))
        });
        return format!(
            "samples → `{}/data`: token ids for Megatron{packed}{mirrored}",
            output.path
        );
    }
    let compression = match output.compression {
        _ if output.format == OutputFormat::JsonlZst => "JSON lines, zstd".to_owned(),
        ParquetCompression::None => "uncompressed".to_owned(),
        compression => written(&compression),
    };
    format!(
        "samples → `{}/data`: {samples}, {} input columns + {} longsift columns, {compression}{mirrored}",
        output.path,
        plan.dataset.schema.fields().len(),
        super::columns::added(plan).len()
    )
}

/// Length of the document for which map memory is estimated: that of long-context models.
const MAP_TOKENS: u64 = 131_072;
const MAP_BLOCKS: usize = 128;

/// Returns the maximum memory of a map of such a document on the processor; `None` without first-layer attention.
fn map_memory_bytes(plan: &Plan) -> Option<u64> {
    let attention = plan.attention.as_ref().filter(|attention| !attention.kernel().is_cuda())?;
    let spec = attention.model.spec();
    let (tokens, threads) = (MAP_TOKENS as usize, attention.devices.threads);
    let kernel = attention.kernel();
    Some(FirstLayer::block_attention_bytes(spec, kernel, tokens, MAP_BLOCKS, threads))
}

fn memory(plan: &Plan) -> String {
    let estimate = &plan.estimate;
    let whole = match estimate.whole_model_bytes {
        0 => String::new(),
        whole => format!(", including {} for a whole model", bytes(whole)),
    };
    let Some(attention) = &plan.attention else {
        let is_limit = estimate.memory_bytes == plan.spec.pipeline.input.memory_limit_bytes;
        let limit = if is_limit { " (`memory_limit_bytes`)" } else { "" };
        return format!("cpu: at most {}{whole}{limit}", bytes(estimate.memory_bytes));
    };
    let packed = match estimate.packed_bytes {
        0 => String::new(),
        packed => format!(", including {} for projections", bytes(packed)),
    };
    format!(
        "{}: at most {} in addition to the mapped table{packed}{whole}; {} per window in flight",
        if attention.devices.is_cpu() { "cpu" } else { "host" },
        bytes(estimate.memory_bytes),
        bytes(estimate.window_bytes)
    )
}

fn disk(plan: &Plan) -> String {
    let estimate = &plan.estimate;
    let cache = match &plan.attention {
        Some(_) => format!("; {} for the table cache", bytes(estimate.cache_bytes)),
        None => String::new(),
    };
    format!(
        "up to {} of scores, {} of output{cache}",
        bytes(estimate.scores_bytes),
        bytes(estimate.output_bytes)
    )
}

fn done(plan: &Plan, done: &CompletedWork) -> String {
    if let Some(refused) = &done.refused {
        return format!("nothing: a run would fail: {}", refusal(refused).join("; "));
    }
    if done.finished {
        return "everything is done; a run would do nothing".to_owned();
    }
    format!(
        "{} of {} work units scored, {} windows",
        count(done.units as u64),
        count(plan.units.len() as u64),
        count(done.windows)
    )
}

fn refusal(refused: &Diagnostic) -> Vec<String> {
    let Diagnostic { message, notes, hint, .. } = refused;
    std::iter::once(message).chain(notes).chain(hint).cloned().collect()
}

/// Returns the JSON of `longsift plan --format json`. Parts that the pipeline does not need are null.
pub fn json(explanation: &PlanExplanation<'_>) -> Value {
    let PlanExplanation { plan, done, sizing, sample } = explanation;
    let window = u64::from(plan.spec.tokenize().window_tokens);
    let distance =
        plan.attention.as_ref().map(|attention| attention.measure.far_distance().in_window(window));
    json!({
        "pipeline": plan.spec.pipeline.name,
        "settings": plan.spec.resolved_json(),
        "input": {
            "files": plan.dataset.files.len(),
            "rows": plan.rows(),
            "columns": plan.dataset.schema.fields().iter().map(|field| field.name()).collect::<Vec<_>>(),
            "work_units": plan.units.len(),
        },
        "model": plan.attention.as_ref().map(model_json),
        "whole_models": plan.whole_models.values().map(whole_model_json).collect::<Vec<_>>(),
        "bos": plan.bos.count,
        "measures": plan.measures.columns.iter().map(measure_json).collect::<Vec<_>>(),
        "distance": distance,
        "device": plan.attention.as_ref().map(device_json),
        "absent": sizing,
        "sample": sample.json(),
        "estimate": plan.estimate,
        "map_memory_bytes": map_memory_bytes(plan),
        "done": {
            "work_units": done.units,
            "windows": done.windows,
            "finished": done.finished,
            "refused": done.refused.as_ref().map(refusal),
        },
        "warnings": plan.warnings.iter().map(|warning| &warning.message).collect::<Vec<_>>(),
    })
}

fn model_json(attention: &Attention) -> Value {
    let (model, layer) = (&attention.model, attention.model.spec());
    json!({
        "model_type": layer.model_type,
        "unverified": layer.unverified,
        "layers": layer.layers,
        "query_heads": layer.query_heads,
        "key_heads": layer.key_heads,
        "head_dim": layer.head_dim,
        "vocabulary_size": layer.vocabulary_size,
        "checkpoint_bytes": model.checkpoint_bytes(),
        "bytes_to_read": model.bytes_to_read(),
    })
}

fn whole_model_json(whole: &WholeModelPlan) -> Value {
    let spec = whole.model.spec();
    json!({
        "measure": whole.measure,
        "model_type": spec.model_type,
        "unverified": spec.unverified,
        "layers": spec.layers,
        "layers_computed": whole.request.depth(spec.layers),
        "vocabulary_size": spec.vocabulary_size,
        "backend": whole.model.backend_name(),
        "devices": whole.devices.names(),
        "weights_bytes": whole.model.weights_bytes(),
        "window_bytes": whole.memory_of()(whole.window_tokens as usize, 1).peak_bytes,
        "windows_at_once": whole.windows_at_once,
        "memory": whole.memory,
    })
}

fn device_json(attention: &Attention) -> Value {
    let devices = &attention.devices;
    json!({
        "name": devices.names(),
        "why": devices.why,
        "kernel": devices.kernel.name(),
        "threads": devices.threads,
        "workers": devices.list.iter().map(|device| device.workers).collect::<Vec<_>>(),
    })
}

fn measure_json(of: &MeasureColumns) -> Value {
    let column = |column: &Column| json!({ "name": column.name, "unit": column.unit });
    json!({ "name": of.measure, "columns": of.columns.iter().map(column).collect::<Vec<_>>() })
}
