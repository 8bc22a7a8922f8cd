//! `longsift explain RUN_DIR ID#WINDOW`: explains the statistics of one window, token by token.
//!
//! The window is measured again, except with external programs, and the results are checked against the score table.

mod gains;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::ops::Range;

use longsift_kernels::BlockShares;
use longsift_stages::StageSettings;
use longsift_stages::contract::{Evidence, Measure, Request, RowError, Value, Window};
use longsift_stages::filter::guards::{Bounds, Guard, Verdict};
use longsift_stages::first_layer_attention::FirstLayer;
use longsift_stages::measures::recurrence::Link;
use longsift_stages::score::terms::{Combine, Term};
use longsift_stages::tokenize::windows::TokenWindow;
use serde::Serialize;

use super::document::{FinishedRun, FoundDocument};
use super::map::blocks::{BlockAttentionMatrix, equal_ends};
use super::map::layer::{MappedLayer, processor_kernel};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::base::text::{count, line_safe, quoted, quoted_value};
use crate::dataset::documents::DocumentContent;
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::plan::identity::{Digests, identity, whole_model_digests};
use crate::report::overview::choice::SelectionSettings;
use crate::report::page::text;
use crate::report::passages::{Passage, find_passages};
use crate::run_directory::calibration::CalibratedGroup;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores;
use crate::run_directory::selected::{self, SelectedRow};
use crate::score::passes;
use crate::score::prepare::{CutDocument, Preparation, prepare};

#[derive(Clone, Debug, Serialize)]
struct ExplainedStatistic {
    statistic: String,
    unit: String,
    doc: String,
    /// Value measured now; null if the measure was not repeated.
    now: Value,
    /// Value in the score table of the run; null without a run.
    recorded: Value,
}

/// Outcome of the sample that is the window, or contains it.
#[derive(Clone, Debug, Serialize)]
struct SelectionOutcome {
    group: Option<String>,
    score: Option<f64>,
    percentile: Option<f64>,
    /// Reason for which it is not kept; null if it is kept.
    reason: Option<String>,
    /// Rank by score, starting at 1, among the samples of its group that pass every guard; null if it does not pass.
    rank: Option<u64>,
    /// Number of samples of its group that pass every guard and have a score.
    of: u64,
    /// Combination of the terms: `sum` or `min`.
    combine: Combine,
    /// Terms of the score after standardisation, weight and offset; empty without a score.
    terms: Vec<TermValue>,
    /// If the score is the minimum of its terms, the statistic of the term that limits it.
    weakest: Option<String>,
    #[serde(skip)]
    bounds: Vec<Bounds>,
    /// Statistic of the document by guard; `None` for windows.
    #[serde(skip)]
    of_document: Option<Vec<Option<f64>>>,
}

#[derive(Clone, Debug, Serialize)]
struct GuardVerdict {
    setting: String,
    statistic: String,
    /// Bounds as written, and as numbers; the number of a quantile is that of the window's group, null without a run.
    bounds: String,
    low: Option<f64>,
    high: Option<f64>,
    /// Statistic of the window; for a document, aggregated over its windows.
    value: Option<f64>,
    rejects: bool,
    /// Passages that the statistic counts most.
    passages: Vec<Passage>,
}

#[derive(Clone, Debug, Serialize)]
struct TermValue {
    statistic: String,
    value: f64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Explanation {
    version: u32,
    pipeline: String,
    id: String,
    input_file: String,
    input_row: u64,
    window: u32,
    windows: usize,
    /// Token range in the document, BOS not included.
    token_start: u64,
    token_end: u64,
    /// Tokens of the scored sequence, BOS included.
    tokens: u64,
    bos: u8,
    kernel: Option<&'static str>,
    notes: Vec<String>,
    selected: Option<SelectionOutcome>,
    #[serde(rename = "figures")]
    statistics: Vec<ExplainedStatistic>,
    guards: Vec<GuardVerdict>,
    /// Distance from which attention is far; null without a measure of attention.
    far_distance: Option<u64>,
    /// `[tokens]`: attention of each token to tokens at least this distance before it, mean over heads.
    far_mass: Vec<f64>,
    /// `[tokens - 1]`: loss of each token but the first, in nats; empty without a measure of losses.
    token_losses: Vec<f64>,
    /// `[tokens]`: gain in nats over the loss with the short context; null for tokens of the short context.
    token_gains: Vec<Option<f64>>,
    links: Vec<Link>,
    layer: Option<u32>,
    /// Attention between blocks, as in `longsift map`.
    #[serde(flatten)]
    matrix: BlockAttentionMatrix,
    /// Text of each token, BOS first; ids if documents are token ids.
    #[serde(skip)]
    pieces: Vec<String>,
}

/// Explains a window. `run`: run whose recorded statistics and rank are shown. `blocks_of`: layer of the pipeline's whole model
/// whose blocks are shown instead of those of the first layer.
pub(crate) fn explain(
    plan: &Plan,
    run: Option<&RunDirectory>,
    sample: &str,
    blocks_of: Option<u32>,
) -> Result<Explanation> {
    let mapped = blocks_of.map(|layer| MappedLayer::open(plan, Some(layer))).transpose()?;
    let (id, number) = parts(sample)?;
    let source = FoundDocument::read(plan, id)?;
    let document = source.document(plan)?;
    let text = match &document.content {
        Ok(DocumentContent::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let run = run.map(FinishedRun::read).transpose()?;
    if let Some(run) = &run {
        run.check_unchanged(&source.file, &document)?;
    }
    let outcome = prepare(plan, &source.file, vec![document]).remove(0).outcome;
    let cut = cut_of(outcome, &source.id)?;
    let window = window_of(&cut, number, &source.id)?;
    let ids = plan.bos.prepend_to(cut.ids_of(&window));
    let bos = usize::from(plan.bos.count);
    let mut found = Explanation {
        version: 1,
        pipeline: plan.spec.pipeline.name.clone(),
        id: source.id,
        input_file: source.file,
        input_row: source.row,
        window: window.index,
        windows: cut.windows.len(),
        token_start: window.token_start,
        token_end: window.token_end,
        tokens: ids.len() as u64,
        bos: plan.bos.count,
        links: links(plan, &ids),
        pieces: pieces(&cut, &window, text.as_deref(), bos),
        ..Explanation::default()
    };
    let opened = plan.attention.as_ref().map(|attention| -> Result<_> {
        let opened = plan.open_table(attention, &|_, _| {})?;
        Ok(((attention, attention.first_layer(opened.table, ids.len())), opened.weights_digest))
    });
    let (layer, weights) = opened.transpose()?.unzip();
    found.measure(plan, &cut, &window, &ids, layer.as_ref().map(|(of, layer)| (*of, layer)))?;
    if let Some((attention, layer)) = &layer {
        found.measure_far_attention(attention, layer, &ids);
    }
    let ends = equal_ends(ids.len(), None)?;
    if let Some(mapped) = &mapped {
        let shares = mapped.shares(plan, &ids, &ends, None, None, &Progress::new(false))?;
        found.set_blocks(mapped.number, &ends, &shares);
    } else if let Some((attention, layer)) = &layer {
        let kernel = processor_kernel(attention);
        found.set_blocks(0, &ends, &layer.block_attention(kernel, &ids, &ends, None, None));
    }
    if let Some(run) = &run {
        found.compare(plan, run, weights)?;
        run.manifest.check_current(&run.directory)?;
    }
    let text = text.as_deref().zip(cut.bytes_of(&window)).map(|(text, bytes)| &text[bytes]);
    found.guards = found.guarded(plan, &ids, text);
    Ok(found)
}

/// Splits `ID#WINDOW`. The id may contain `#`.
fn parts(sample: &str) -> Result<(&str, u32)> {
    let found = sample.rsplit_once('#').and_then(|(id, window)| Some((id, window.parse().ok()?)));
    found.ok_or_else(|| {
        let message = format!("expected ID#WINDOW, got {}", quoted(sample));
        let hint = format!(
            "add the number of a window, from 0, to the id of its document: {}",
            quoted(&format!("{}#0", sample.split('#').next().unwrap_or_default()))
        );
        Diagnostic::error(Blame::Pipeline, message).hint(hint).into()
    })
}

fn cut_of(outcome: Preparation, id: &str) -> Result<CutDocument> {
    let why = match outcome {
        Preparation::Measure(cut) => return Ok(cut),
        Preparation::TimedOut(failure) => return Err(failure),
        Preparation::Drop { reason, tokens_total, .. } => {
            format!("dropped as `{reason}` with {} tokens", count(tokens_total))
        }
        Preparation::Quarantine(bad) => bad.error.message,
    };
    let message = format!("document {} has no windows: {why}", quoted(id));
    Err(Diagnostic::error(Blame::Data, message).into())
}

fn window_of(cut: &CutDocument, number: u32, id: &str) -> Result<TokenWindow> {
    let found = cut.windows.iter().find(|window| window.index == number);
    found.copied().ok_or_else(|| {
        let last = cut.windows.iter().map(|window| window.index).max().unwrap_or(0);
        let id = quoted(id);
        let message = format!("document {id} has no window {number}: its last window is {last}");
        Diagnostic::error(Blame::Pipeline, message).into()
    })
}

/// Returns the recurring tokens found by the first `recurrence` of the pipeline.
fn links(plan: &Plan, ids: &[u32]) -> Vec<Link> {
    let recurrence = plan.spec.pipeline.stages.iter().find_map(|stage| match stage {
        StageSettings::Recurrence(recurrence) => Some(recurrence),
        _ => None,
    });
    recurrence.map(|recurrence| recurrence.links(ids)).unwrap_or_default()
}

fn pieces(cut: &CutDocument, window: &TokenWindow, text: Option<&str>, bos: usize) -> Vec<String> {
    let (start, end) = (window.token_start as usize, window.token_end as usize);
    let piece = |token: usize| match (text, &cut.ends) {
        (Some(text), Some(ends)) => text[ends.byte_range(token, token + 1, text.len())].to_owned(),
        _ => format!("{} ", cut.ids[token]),
    };
    let first = (0..bos).map(|_| "[BOS]".to_owned());
    first.chain((start..end).map(piece)).collect()
}

impl Explanation {
    fn guarded(&self, plan: &Plan, ids: &[u32], text: Option<&str>) -> Vec<GuardVerdict> {
        let text_of = |tokens: Range<usize>| self.text(tokens);
        let guarded = |(index, guard): (usize, &Guard)| {
            let of_group = self.selected.as_ref().and_then(|outcome| outcome.bounds.get(index));
            let bounds = of_group.copied().unwrap_or_else(|| guard.bounds(None, None));
            let own = self.statistics.iter().find(|own| own.statistic == guard.statistic);
            let of_window = own.and_then(|own| own.now.finite().or(own.recorded.finite()));
            let of_document =
                self.selected.as_ref().and_then(|outcome| outcome.of_document.as_ref());
            let value = of_document
                .map_or(of_window, |statistics| statistics.get(index).copied().flatten());
            GuardVerdict {
                setting: format!("stages.filter.guards.{index}"),
                statistic: guard.statistic.clone(),
                bounds: guard.in_words(),
                low: bounds.low,
                high: bounds.high,
                value,
                rejects: value.is_some_and(|value| bounds.judge(value) == Verdict::Refused),
                passages: find_passages(plan, &guard.statistic, ids, text, &text_of),
            }
        };
        plan.spec.filter().guards.iter().enumerate().map(guarded).collect()
    }

    fn measure(
        &mut self,
        plan: &Plan,
        cut: &CutDocument,
        window: &TokenWindow,
        ids: &[u32],
        layer: Option<(&Attention, &FirstLayer)>,
    ) -> Result<()> {
        let (text, text_half) = cut.text_of(window, plan.bos);
        for ((measure_index, measure), columns) in plan.measures().zip(&plan.measures.columns) {
            let unmeasured = |why: RowError| {
                let message = format!("document {}: {}", quoted(&self.id), why.message);
                Diagnostic::error(Blame::Data, message)
            };
            let evidence = evidence(measure, ids, layer)?;
            let shared = match &cut.text {
                Some(text) if measure.needs().document_text => measure.document(text.as_bytes()),
                _ => Vec::new(),
            };
            let values = if let Some(evidence) = &evidence {
                let window = Window { ids, text, text_half, document: &shared, evidence };
                measure.statistics(&window).map_err(unmeasured)?.0
            } else if let Some(whole) = plan.whole_models.get(&measure_index) {
                let made = passes::forward(whole, ids, &Stop::global())?.map_err(unmeasured)?;
                let evidence = Evidence::Forward(made.clone());
                let values = passes::statistics(measure, ids, evidence).map_err(unmeasured)?.0;
                self.note_losses(&made);
                values
            } else {
                self.notes.push(format!("`{}` was not run again", columns.measure));
                vec![Value::Null; columns.columns.len()]
            };
            let of_column =
                columns.columns.iter().zip(values).map(|(column, now)| ExplainedStatistic {
                    statistic: column.name.to_string(),
                    unit: column.unit.to_string(),
                    doc: column.doc.to_string(),
                    now,
                    recorded: Value::Null,
                });
            self.statistics.extend(of_column);
        }
        Ok(())
    }

    fn measure_far_attention(&mut self, attention: &Attention, layer: &FirstLayer, ids: &[u32]) {
        let kernel = processor_kernel(attention);
        let request = attention.measure.request();
        let distance = request.distance.in_window(ids.len() as u64);
        self.kernel = Some(kernel.name());
        self.far_distance = Some(distance);
        self.far_mass = layer.measure_rows(kernel, ids, distance).row_far_mass;
        if request.rows_of(ids).is_some() {
            self.notes.push(
                "statistics use sampled rows; tokens and blocks are shown for all rows".to_owned(),
            );
        }
    }

    fn set_blocks(&mut self, layer: u32, ends: &[usize], shares: &BlockShares) {
        self.layer = Some(layer);
        let uniform_attention = Vec::new();
        self.matrix =
            BlockAttentionMatrix { uniform_attention, ..BlockAttentionMatrix::new(ends, shares) };
    }

    /// Adds the recorded statistics, and the outcome of the sample in the run.
    fn compare(&mut self, plan: &Plan, run: &FinishedRun, weights: Option<String>) -> Result<()> {
        let guards = serde_json::json!(plan.spec.filter().guards);
        let recorded = run.manifest.lock.identity.selection.get("filter.guards");
        if recorded.map_or(!plan.spec.filter().guards.is_empty(), |recorded| *recorded != guards) {
            let message = "the guards differ from those of the run";
            return Err(Diagnostic::error(Blame::Pipeline, message)
                .hint("omit `--set`; `longsift whatif` selects with other settings")
                .into());
        }
        let (row, tokens) = (self.input_row, (self.token_start, self.token_end));
        let key = (row, self.window);
        let mut scored = None;
        for record in run.records(&self.input_file, row..row + 1) {
            scores::read(&run.scores.root.join(&record.scores.path), &[], |window| {
                if (window.input_row, window.window) == key && window.tokens == tokens {
                    scored = Some(record);
                }
                Ok(())
            })?;
        }
        let Some(record) = scored else {
            let [start, end] = [self.token_start, self.token_end].map(count);
            let message = format!(
                "the run did not score tokens {start} to {end} of document {} as its window {}",
                quoted(&self.id),
                self.window
            );
            let hint =
                "name the pipeline file instead of the run directory to explain it without the run";
            let problem = Diagnostic::error(Blame::Data, message).hint(hint);
            return Err(problem.notes(changes(plan, run, weights)?).into());
        };
        let path = run.scores.root.join(&record.scores.path);
        let measures = scores::measures(&path)?;
        let mut measured = BTreeSet::new();
        scores::read_statistics(&path, &measures, |row, window, measure, values| {
            // If all are null, the window was not measured.
            if (row, window) == key && values.0.iter().any(|value| *value != Value::Null) {
                for (column, value) in measures[measure].columns.iter().zip(values.0) {
                    measured.insert(column.name.to_string());
                    if let Some(own) =
                        self.statistics.iter_mut().find(|own| own.statistic == column.name)
                    {
                        own.recorded = value;
                    }
                }
            }
            Ok(())
        })?;
        let known = self.statistics.iter().filter(|own| own.now != Value::Null);
        let (known, unmeasured): (Vec<_>, Vec<_>) =
            known.partition(|own| measured.contains(&own.statistic));
        let listed = |own: &[&ExplainedStatistic]| {
            own.iter().map(|own| own.statistic.as_str()).collect::<Vec<_>>().join(", ")
        };
        let different: Vec<_> = known.into_iter().filter(|own| own.now != own.recorded).collect();
        let (different, unmeasured) = (listed(&different), listed(&unmeasured));
        if !unmeasured.is_empty() {
            self.notes.push(format!("values that the run did not measure: {unmeasured}"));
        }
        if !different.is_empty() {
            self.notes.push(format!("values that differ from the recorded ones: {different}"));
            self.notes.extend(changes(plan, run, weights)?);
        }
        self.selected = rank(run, &record.unit, key)?;
        Ok(())
    }
}

/// Lists the differences from models, kernels and settings of the run. `weights`: digest of the first layer's weights.
fn changes(plan: &Plan, run: &FinishedRun, weights: Option<String>) -> Result<Vec<String>> {
    let whole = whole_model_digests(&plan.whole_models, &BTreeMap::new(), &Stop::global())?;
    let mut digests = Digests::new(plan, weights, whole)?;
    if let Some((attention, digests)) = plan.attention.as_ref().zip(digests.attention.as_mut()) {
        // A window that a GPU measured is measured again on the processor.
        processor_kernel(attention).name().clone_into(&mut digests.kernels.windows);
    }
    let lines = identity(plan, &digests).differences_of_scores(&run.manifest.lock.identity);
    Ok(lines.into_iter().map(|line| format!("changed since the run: {line}")).collect())
}

/// Computes the evidence that a measure needs in addition to token ids; `None` if it calls a program.
fn evidence(
    measure: &dyn Measure,
    ids: &[u32],
    layer: Option<(&Attention, &FirstLayer)>,
) -> Result<Option<Vec<Evidence>>> {
    let mut made = Vec::new();
    for request in measure.needs().evidence {
        let (Request::Attention(request), Some((attention, layer))) = (request, layer) else {
            return Ok(None);
        };
        let spec = attention.model.spec();
        let window = request.window(ids.to_vec(), spec.vocabulary_size);
        let window = window.map_err(|why| Diagnostic::error(Blame::Data, why.message))?;
        let heads = 0..spec.key_heads as usize;
        let sums = layer.measure_heads(processor_kernel(attention), &window, heads);
        made.push(Evidence::Attention(sums));
    }
    Ok(Some(made))
}

/// Returns the outcome of a sample and its rank, in two passes over the selection.
fn rank(
    run: &FinishedRun,
    unit: &str,
    (row, window): (u64, u32),
) -> Result<Option<SelectionOutcome>> {
    let FinishedRun { directory, manifest, scores } = run;
    let choice = SelectionSettings::from_manifest(manifest, scores)?;
    let calibration = manifest.read_calibration(directory)?;
    let mut outcome = None;
    for part in manifest.selection.iter().filter(|part| part.path.contains(unit)) {
        let path = directory.root.join(&part.path);
        let names = selected::statistics(&path)?;
        selected::read(&path, |sample| {
            if sample.input_row == row && sample.window.is_none_or(|index| index == window) {
                let group =
                    calibration.groups.iter().find(|of| of.value.as_deref() == sample.group);
                outcome = Some(SelectionOutcome {
                    group: sample.group.map(str::to_owned),
                    score: (!sample.score.is_nan()).then_some(sample.score),
                    percentile: sample.percentile,
                    reason: sample.reason.map(str::to_owned),
                    rank: None,
                    of: 0,
                    combine: choice.combine,
                    terms: terms(&choice, group, sample),
                    weakest: None,
                    bounds: group.map_or(Vec::new(), |group| group.guards.clone()),
                    of_document: sample.window.is_none().then(|| {
                        let guarded = choice.filter.guards.iter().map(|guard| &guard.statistic);
                        let value = |name: &String| {
                            let index = names.iter().position(|known| known == name)?;
                            sample.statistics.get(index).copied().filter(|value| !value.is_nan())
                        };
                        guarded.map(value).collect()
                    }),
                });
            }
            Ok(())
        })?;
    }
    let Some(mut outcome) = outcome else { return Ok(None) };
    let mut above = 0;
    for part in &manifest.selection {
        selected::read(&directory.root.join(&part.path), |sample| {
            // Only samples that pass have a percentile.
            if sample.group == outcome.group.as_deref() && sample.percentile.is_some() {
                outcome.of += 1;
                above += u64::from(outcome.score.is_some_and(|score| sample.score > score));
            }
            Ok(())
        })?;
    }
    outcome.rank = outcome.percentile.map(|_| above + 1);
    if outcome.combine == Combine::Least {
        let min = outcome.terms.iter().min_by(|one, other| one.value.total_cmp(&other.value));
        outcome.weakest = min.map(|term| term.statistic.clone());
    }
    Ok(Some(outcome))
}

fn terms(
    choice: &SelectionSettings,
    group: Option<&CalibratedGroup>,
    sample: &SelectedRow<'_>,
) -> Vec<TermValue> {
    let scorer = group.filter(|_| !sample.score.is_nan()).and_then(|group| choice.scorer(group));
    let values = scorer.iter().flat_map(|scorer| scorer.terms(sample.statistics));
    let term = |(term, value): (&Term, f64)| TermValue { statistic: term.statistic.clone(), value };
    choice.terms.iter().zip(values).filter(|(_, value)| !value.is_nan()).map(term).collect()
}

impl Explanation {
    /// Returns the mean far attention of a token range; `None` if it was not measured.
    fn mean_mass(&self, tokens: Range<usize>) -> Option<f64> {
        mean(self.far_mass.get(tokens)?.iter().copied())
    }

    fn text(&self, tokens: Range<usize>) -> String {
        let end = tokens.end.min(self.pieces.len());
        self.pieces[tokens.start.min(end)..end].concat()
    }

    fn verdict(&self) -> Option<String> {
        let outcome = self.selected.as_ref()?;
        let result = match &outcome.reason {
            None => "kept".to_owned(),
            Some(reason) => format!("not kept: {}", line_safe(reason)),
        };
        let score =
            outcome.score.map_or("no score".to_owned(), |score| format!("score {score:.6}"));
        let mut verdict = format!("{result}; {score}");
        if let Some(rank) = outcome.rank {
            let _ = write!(verdict, ", rank {} of {} samples", count(rank), count(outcome.of));
            let group =
                outcome.group.as_deref().map(|group| format!(" of {}", quoted_value(group)));
            verdict += &group.unwrap_or_default();
        }
        let weakest = outcome.weakest.as_ref().map(|name| format!("; score limited by {name}"));
        Some(verdict + &weakest.unwrap_or_default())
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::Number(number) => format!("{number:.6}"),
        Value::Count(number) => count(*number),
        Value::Numbers(numbers) => format!("{} numbers", numbers.len()),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, last) = (quoted(&self.id), self.windows.saturating_sub(1));
        writeln!(formatter, "{id}, window {} of 0–{last}", self.window)?;
        let [start, end, scored] = [self.token_start, self.token_end, self.tokens].map(count);
        let (file, row) = (&self.input_file, self.input_row);
        writeln!(formatter, "  {file} row {row}, tokens {start} to {end}, {scored} scored")?;
        if let Some(verdict) = self.verdict() {
            writeln!(formatter, "  {verdict}")?;
        }
        formatter.write_str(&text::text(&self.sections(), false))
    }
}
