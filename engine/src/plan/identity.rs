//! Identity of a run: the settings and contents that windows, statistics and samples depend on.
//!
//! Every settings struct is destructured by field, those of measures in their
//! [`facts`](longsift_stages::contract::Measure::facts). A new setting does not compile until it is assigned to one of
//! the three parts, or a comment at its `_` states why nothing depends on it. `tests/identity.rs` contains the same
//! decisions as a table of the pipeline schema's leaves.

use std::collections::BTreeMap;

use longsift_kernels::Kernel;
use longsift_stages::contract::{Location, Measure, Request};
use longsift_stages::filter::NotMeasured;
use longsift_stages::measures::external::StatisticMerge;
use longsift_stages::score::SELECTION_VERSION;
use longsift_stages::score::presets::{DEFAULT_ALPHA, DEFAULT_SEED, Formula};
use longsift_stages::tokenize::encoder::Encoder;
use longsift_stages::tokenize::{ShortDocuments, WINDOWS_VERSION, Windows};
use longsift_stages::{Filter, LoadPartialModel, Reads, Role, Score, ShardAcrossDevices, Tokenize};
use serde_json::{Value, json};

use super::columns;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::stop::Stop;
use crate::base::text;
use crate::dataset::documents::ContentColumn;
use crate::plan::Plan;
use crate::plan::whole_models::WholeModelPlan;
use crate::run_directory::calibration;
use crate::run_directory::facts::{DOCUMENTS_PREFIX, Facts, Identity, MeasureFacts};
use crate::run_directory::pipeline_lock::ModelIdentity;

use crate::spec::pipeline::{Input, Output, OutputFormat, Pipeline};

/// Digests of file contents and names of kernels, which an identity requires in addition to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Digests of the first-layer model; `None` if no measure needs it.
    pub attention: Option<AttentionDigests>,
    pub whole_models: BTreeMap<String, WholeModelDigests>,
    pub calibration: Option<String>,
    /// Digests of the files that a program's answers depend on, by `external` stage.
    pub programs: BTreeMap<String, BTreeMap<String, String>>,
}

/// Inputs, except settings, that determine the bits of a whole model's statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeModelDigests {
    pub weights: String,
    /// Kernel or backend that multiplies the weights.
    pub kernel: String,
}

impl WholeModelDigests {
    /// Returns the recorded digests of a measure's statistics, possibly from another machine.
    pub fn recorded(identity: &Identity, measure: &str) -> Option<Self> {
        let fact = |name| {
            let facts = &identity.measures.get(measure)?.facts;
            Some(facts.get(name)?.as_str()?.to_owned())
        };
        Some(Self { weights: fact("model_weights")?, kernel: fact("model_kernel")? })
    }
}

/// Inputs, except settings, that determine the bits of attention statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionDigests {
    pub weights: String,
    pub kernels: Kernels,
}

/// Names of the kernels that determine the bits of attention statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernels {
    pub windows: String,
    /// Kernel that multiplies weights and built the table.
    pub weights: String,
}

impl Kernels {
    /// Returns the recorded kernels of existing scores, possibly from another machine.
    pub fn recorded(identity: &Identity) -> Option<Self> {
        let name = |fact| Some(identity.find_in_measures(fact)?.as_str()?.to_owned());
        Some(Self { windows: name("kernel")?, weights: name("table_kernel")? })
    }
}

impl Digests {
    /// Creates the digests of a plan. `weights`: those of the first layer, if a measure needs it.
    pub fn new(
        plan: &Plan,
        weights: Option<String>,
        whole_models: BTreeMap<String, WholeModelDigests>,
    ) -> Result<Self> {
        let digest = |path| {
            let bytes = calibration::bytes(&plan.spec.resolve(path).to_path_buf())?;
            Ok::<_, Failure>(text::sha256_hex(&bytes))
        };
        let calibration = plan.spec.score().calibration.as_ref().map(digest).transpose()?;
        let attention = plan.attention.as_ref().zip(weights).map(|(attention, digest)| {
            let kernel = attention.kernel();
            let [windows, weights] = [kernel, kernel.for_weights()].map(|of| of.name().to_owned());
            AttentionDigests { weights: digest, kernels: Kernels { windows, weights } }
        });
        let programs = plan.program_digests()?;
        Ok(Self { attention, whole_models, calibration, programs })
    }

    /// Returns the kernel that measures windows, or that multiplies the weights of the first whole model.
    pub fn kernel(&self) -> Option<Kernel> {
        let whole = || self.whole_models.values().next().map(|model| &model.kernel);
        let name = self.attention.as_ref().map(|attention| &attention.kernels.windows);
        Kernel::from_name(name.or_else(whole)?)
    }
}

/// Returns the digests by measure: from `known` if the files are the same, otherwise by reading them.
pub fn whole_model_digests(
    models: &BTreeMap<u16, WholeModelPlan>,
    known: &BTreeMap<String, ModelIdentity>,
    stop: &Stop,
) -> Result<BTreeMap<String, WholeModelDigests>> {
    let mut digests = BTreeMap::new();
    for WholeModelPlan { measure, model, .. } in models.values() {
        let known = known.get(measure).and_then(|known| known.weights_of(&model.identity()));
        let weights = if let Some(weights) = known {
            weights
        } else {
            let digest = model.weights_digest(&|| stop.check().is_ok());
            let digest = digest.map_err(|why| Failure::from(Diagnostic::from(why)))?;
            stop.check()?;
            digest.expect("a signal would have returned an error")
        };
        let kernel = model.backend_name();
        digests.insert(measure.clone(), WholeModelDigests { weights, kernel });
    }
    Ok(digests)
}

#[derive(Default)]
struct IdentityParts {
    windows: Value,
    /// Facts that attention depends on, except its own settings.
    attention: Value,
    selection: Value,
}

/// Returns the identity of a run of `plan`, which covers everything except the rows of its input.
pub fn identity(plan: &Plan, digests: &Digests) -> Identity {
    // Excluded: the format has one version, and parameters are already replaced in the settings.
    let Pipeline {
        version: _,
        name,
        params: _,
        input,
        stages,
        output,
        // Checks do not change a result; a finished run is checked again.
        checks: _,
    } = &plan.spec.pipeline;
    let mut parts = IdentityParts::default();
    input_facts(plan, input, &mut parts);
    for stage in stages {
        match stage.role() {
            Role::Model(stage) => model_facts(plan, stage, digests, &mut parts),
            Role::Windows(stage) => tokenize_facts(plan, stage, &mut parts),
            Role::Devices(stage) => device_facts(stage, digests, &mut parts),
            // Measures state their own facts, below.
            Role::Measure(_) => {}
            Role::Rows(stage) => {
                let facts = measure_facts(stage, digests, Value::Null);
                for (fact, value) in facts.as_object().into_iter().flatten() {
                    parts.windows[format!("{DOCUMENTS_PREFIX}{}.{fact}", stage.name)] =
                        json!(value);
                }
            }
            Role::Score(stage) => score_facts(stage, digests, &mut parts),
            Role::Filter(stage) => filter_facts(stage, &mut parts),
        }
    }
    output_facts(output, &mut parts);
    // Otherwise the name is only a label.
    if output.card {
        parts.selection["name"] = json!(name);
    }
    for program in &plan.programs {
        let merged = program.settings.statistics.iter();
        let largest: Vec<&str> = merged
            .filter(|statistic| statistic.merge == StatisticMerge::Max)
            .map(|statistic| statistic.name.as_str())
            .collect();
        if !largest.is_empty() && program.settings.reads != Reads::Document {
            parts.selection[format!("{}.merged_by_max", program.settings.name)] = json!(largest);
        }
    }
    let statistics = plan.measures.statistics();
    let written: Vec<&str> =
        columns::output_statistics(&statistics).map(|column| &*column.name).collect();
    parts.selection["output.statistics"] = json!(written);
    let IdentityParts { windows, attention, selection } = parts;
    let facts_of = |index: u16| {
        let measure = plan.measure(index);
        let needs_attention = measure.needs().attention().is_some();
        let mut all = if needs_attention { attention.clone() } else { Value::Null };
        if let Some(whole) = plan.whole_models.get(&index) {
            all["model"] = json!(whole.model.description_digest());
            if let Some(digests) = digests.whole_models.get(&whole.measure) {
                all["model_weights"] = json!(digests.weights);
                all["model_kernel"] = json!(digests.kernel);
            }
        }
        Facts::new(measure_facts(measure, digests, all))
    };
    let fingerprint = |index| facts_of(index).fingerprint();
    let measures = plan.measures.indices().zip(&plan.measures.columns).map(|(index, columns)| {
        let only = plan.cascade.conditions(index, &fingerprint);
        (columns.measure.clone(), MeasureFacts { facts: facts_of(index), only })
    });
    let measures = measures.collect();
    Identity { windows: Facts::new(windows), measures, selection: Facts::new(selection) }
}

/// Returns the facts that the statistics of a measure depend on; `all`: facts outside its settings.
fn measure_facts(measure: &dyn Measure, digests: &Digests, mut all: Value) -> Value {
    let needs = measure.needs();
    let versions = needs.evidence.iter().flat_map(Request::versions);
    for (name, version) in versions.copied().chain([("version", measure.version())]) {
        all[name] = json!(version);
    }
    if let Value::Object(facts) = measure.facts() {
        facts.into_iter().for_each(|(fact, value)| all[fact] = value);
    }
    if needs.answers().is_some() {
        let files = measure.name().and_then(|name| digests.programs.get(name));
        for (file, digest) in files.into_iter().flatten() {
            all[format!("file {file}")] = json!(digest);
        }
    }
    all
}

fn input_facts(plan: &Plan, input: &Input, parts: &mut IdentityParts) {
    let Input {
        // The rows are in the records of the work units; names of files do not matter.
        path: _,
        // Format and columns of line files follow from names or settings and are recorded below.
        format: _,
        schema: _,
        // Decides only whether an empty run is an error.
        allow_empty: _,
        // The manifest records the excluded files; their list is added below.
        since: _,
        id_column,
        // Together they select the document's column.
        text_column: _,
        tokens_column: _,
        max_document_bytes,
        // Batch size and number of windows in flight change neither statistics nor rows.
        memory_limit_bytes: _,
        // The names of work units contain their boundaries.
        unit_bytes: _,
        // These decide whether a run continues and are checked against the counts of all records each time.
        on_bad_row: _,
        on_bad_file: _,
        max_quarantined_fraction: _,
    } = input;
    let content = match &plan.columns.content {
        ContentColumn::Text(column) => format!("text `{column}`"),
        ContentColumn::Tokens(column) => format!("tokens `{column}`"),
    };
    parts.windows["content"] = json!(content);
    if let Some(lines) = &plan.dataset.lines {
        parts.windows["schema"] =
            json!(format!("{}: {}", lines.forms.join(" and "), lines.columns));
    }
    parts.windows["id_column"] = json!(id_column);
    parts.windows["max_document_bytes"] = json!(max_document_bytes);
    if !plan.input_before.is_empty() {
        let list = serde_json::to_vec(&plan.input_before).expect("plain data");
        parts.selection["input.since"] = json!(text::sha256_hex(&list));
    }
}

fn model_facts(
    plan: &Plan,
    stage: &LoadPartialModel,
    digests: &Digests,
    parts: &mut IdentityParts,
) {
    let LoadPartialModel {
        // The content matters, not the name.
        model: _,
        precision,
        // Part of the digest of the layer, as interpreted by the model family.
        rope_theta: _,
        // The location of tables does not change them.
        cache_folder: _,
        // Decides only whether such windows are an error; measured windows have the same statistics.
        strict_positions: _,
    } = stage;
    if let Some(digests) = &digests.attention {
        parts.attention["weights"] = json!(digests.weights);
    }
    let layer = plan.attention.as_ref().map(|attention| attention.model.spec().digest());
    parts.attention["layer"] = json!(layer);
    parts.attention["precision"] = json!(precision.name());
}

fn tokenize_facts(plan: &Plan, stage: &Tokenize, parts: &mut IdentityParts) {
    let Tokenize {
        window_tokens,
        windows,
        short_documents,
        // Recorded below as the resolved number and token.
        bos: _,
        // The content matters, not the name.
        tokenizer: _,
        special_tokens_in_text,
    } = stage;
    parts.windows["windows_version"] = json!(WINDOWS_VERSION);
    parts.windows["window_tokens"] = json!(window_tokens);
    parts.windows["windows"] = json!(windows);
    parts.windows["short_documents"] = json!(short_documents);
    parts.windows["bos"] = json!(plan.bos.count);
    parts.windows["bos_id"] = json!((plan.bos.count > 0).then_some(plan.bos.id));
    parts.windows["tokenizer"] = json!(plan.encoder.as_ref().map(Encoder::digest));
    if plan.encoder.is_some() {
        parts.windows["special_tokens_in_text"] = json!(special_tokens_in_text);
    }
    // If all windows are full, none is too short for a measure, so another measure does not change them.
    if *short_documents == ShortDocuments::Score || *windows == Windows::WholeDocument {
        parts.windows["min_tokens"] = json!(plan.measures.min_tokens);
    }
}

fn device_facts(stage: &ShardAcrossDevices, digests: &Digests, parts: &mut IdentityParts) {
    let ShardAcrossDevices {
        // Devices do not change statistics; their kernels may, and are recorded below.
        devices: _,
        // Parallelism and order do not change statistics.
        headroom_fraction: _,
        workers_per_device: _,
        by: _,
        key_heads_at_once: _,
        // Waiting for other programs does not change statistics.
        memory_wait_seconds: _,
    } = stage;
    if let Some(AttentionDigests { kernels, .. }) = &digests.attention {
        parts.attention["kernel"] = json!(kernels.windows);
        parts.attention["table_kernel"] = json!(kernels.weights);
    }
}

fn score_facts(stage: &Score, digests: &Digests, parts: &mut IdentityParts) {
    let Score {
        formula,
        alpha,
        seed,
        terms,
        combine,
        standardise,
        max_relative_error,
        within,
        document_score,
        // The content matters, not the name.
        calibration: _,
        // Decides only whether a result is an error; accepted results are the same.
        on_drift: _,
    } = stage;
    if terms.is_some() {
        parts.selection["score.terms"] = json!(terms);
        parts.selection["score.combine"] = json!(combine.unwrap_or_default());
    } else {
        let formula = formula.unwrap_or_default();
        parts.selection["score.formula"] = json!(formula.name());
        if let Some(version) = formula.version() {
            parts.selection["score.formula_version"] = json!(version);
        }
        if formula == Formula::Longattn {
            parts.selection["score.alpha"] = json!(alpha.unwrap_or(DEFAULT_ALPHA));
        }
        if formula == Formula::Random {
            parts.selection["score.seed"] = json!(seed.unwrap_or(DEFAULT_SEED));
        }
    }
    parts.selection[SELECTION] = json!(SELECTION_VERSION);
    parts.selection["score.standardise"] = json!(standardise);
    parts.selection["score.max_relative_error"] = json!(max_relative_error);
    parts.selection["score.within"] = json!(within);
    parts.selection["score.document_score"] = json!(document_score);
    parts.selection[CALIBRATION] = json!(digests.calibration);
}

fn filter_facts(stage: &Filter, parts: &mut IdentityParts) {
    let Filter { guards, keep_fraction, keep_tokens, budgets, min_score, mark_only, not_measured } =
        stage;
    if !guards.is_empty() {
        parts.selection["filter.guards"] = json!(guards);
        parts.selection["score.standardised_over"] = json!("passing");
    }
    parts.selection["filter.keep_fraction"] = json!(keep_fraction);
    parts.selection["filter.keep_tokens"] = json!(keep_tokens);
    if budgets.is_some() {
        parts.selection["filter.budgets"] = json!(budgets);
    }
    parts.selection["filter.min_score"] = json!(min_score);
    if not_measured.unwrap_or_default() != NotMeasured::Drop {
        parts.selection["filter.not_measured"] = json!(not_measured);
    }
    if *mark_only {
        parts.selection["filter.mark_only"] = json!(true);
    }
}

fn output_facts(output: &Output, parts: &mut IdentityParts) {
    let Output {
        // The location does not change the content.
        path: _,
        format,
        sequence_tokens,
        end_token,
        card,
        samples,
        compression,
        part_bytes,
        mirror,
        report_by,
        compare,
        // The page describes the run; `longsift report` creates it for any finished run.
        report: _,
    } = output;
    if *format != OutputFormat::Parquet {
        parts.selection["output.format"] = json!(format);
        parts.selection["output.sequence_tokens"] = json!(sequence_tokens);
        parts.selection["output.end_token"] = json!(end_token);
    }
    if *card {
        parts.selection["output.card"] = json!(true);
    }
    parts.selection["output.samples"] = json!(samples);
    parts.selection["output.compression"] = json!(compression);
    parts.selection["output.part_bytes"] = json!(part_bytes);
    if *mirror {
        parts.selection["output.mirror"] = json!(true);
    }
    parts.selection["output.report_by"] = json!(report_by);
    if !compare.is_empty() {
        parts.selection["output.compare"] = json!(compare);
    }
}

/// Facts of windows that are column names: a calibration depends on the contents of columns, not on their names.
const COLUMN_NAME_FACTS: [&str; 3] = ["content", "id_column", "schema"];
/// Facts of a measure that affect only rounding, which a calibration ignores.
const ROUNDING_FACTS: [&str; 3] = ["kernel", "table_kernel", "model_kernel"];
/// Facts of the selection that scores depend on; a calibration contains the thresholds.
const SCORE_FACTS: [&str; 13] = [
    SELECTION,
    "score.formula",
    "score.formula_version",
    "score.alpha",
    "score.seed",
    "score.standardised_over",
    "score.terms",
    "score.combine",
    "filter.guards",
    "score.standardise",
    "score.within",
    "score.document_score",
    "output.samples",
];

pub fn calibration_bytes(plan: &Plan, path: &Location, identity: &Identity) -> Result<Vec<u8>> {
    let bytes = calibration::bytes(&plan.spec.resolve(path).to_path_buf())?;
    let digest = text::sha256_hex(&bytes);
    if identity.selection.get(CALIBRATION).and_then(Value::as_str) == Some(&*digest) {
        return Ok(bytes);
    }
    let message = format!("the calibration `{path}` was replaced while this run used it");
    Err(Diagnostic::error(Blame::Machine, message)
        .hint("run again: the run then uses the current calibration")
        .into())
}

/// Fact of a selection that contains the version of its arithmetic.
const SELECTION: &str = "selection_version";
/// Fact of a selection that contains the digest of its calibration.
const CALIBRATION: &str = "score.calibration";

/// Returns the part of an identity that an increment must share with the corpus whose calibration it uses.
pub fn calibration_identity(identity: &Identity) -> Identity {
    let measure = |facts: &MeasureFacts| MeasureFacts {
        facts: facts.facts.without(&ROUNDING_FACTS),
        only: facts.only.clone(),
    };
    Identity {
        windows: identity.windows.without(&COLUMN_NAME_FACTS),
        measures: identity.measures.iter().map(|(name, of)| (name.clone(), measure(of))).collect(),
        selection: identity.selection.only(&SCORE_FACTS),
    }
}
