//! `longsift evaluate`: measures how well each score of a pipeline separates windows of its own corpus.
//!
//! Documents are sampled, windows are constructed from them in eighteen ways, and every measure of the pipeline measures every
//! window. `docs/evaluation.md` describes the protocol.

mod columns;
mod constructions;
mod drawings;
mod estimates;
pub(crate) mod evaluation;
mod heads;
mod labels;
mod measure;
mod page;
mod report;
mod sample;
mod statistics;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use longsift_stages::contract::hex;
use sha2::Digest;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::text::{count, suggest};
use crate::devices::scheduler::Scheduler;
use crate::plan::Plan;
use crate::plan::identity::{Digests, identity, whole_model_digests};
use crate::run_directory::facts::Identity;
use crate::score::on_devices;
use crate::score::passes::ModelOnDevices;
use crate::score::programs::Programs;
use constructions::{KINDS, Pool, WindowKind};
use estimates::bootstrap::Bootstrap;
pub use evaluation::{DryLength, DryRun, Evaluation};
use evaluation::{KindResults, LengthResults};
use heads::HeadColumn;
use labels::classes::LabelClasses;
use measure::{Measurer, WindowContent};
use report::{Cell, MIN_DOCUMENTS, Matrix, Outcome, Report, ResultInput, shortcomings};
use sample::{EvaluationSample, SampleOptions, SampledDocument};
use statistics::{MeasuredWindows, OrientedStatistic, free_name};
use windows::{Category, WINDOWS_PER_DOCUMENT, WindowLength, WindowOrigin, windows_per_document};

/// Maximum tokens of the windows measured at a time. Ids, text and results take about sixteen bytes per token.
const BATCH_TOKENS: u64 = 4 << 20;

/// Windows of each length that a dry run measures.
const TIMED_WINDOWS: usize = 16;
/// Duration above which a dry run measures only one window, because starting threads and filling caches is negligible.
const LONG_WINDOW: Duration = Duration::from_secs(1);

/// Options of an evaluation.
#[derive(Clone, Debug, clap::Args)]
pub struct EvaluateOptions {
    /// Window lengths in tokens: `2048,8192`; by default the pipeline's length and a quarter of that length.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub windows: Vec<u32>,
    /// Seed of the sample of documents and of all random steps.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Maximum number of documents of each category, for each window length. Categories are the classes of `--labels`,
    /// otherwise the values of `score.within`.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub documents_per_category: u32,
    /// Maximum number of categories to sample without `--labels`.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_categories: u32,
    /// Construct only these kinds of windows: `pieces_8,dup`. Whole windows are always evaluated.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Columns of the input with scores of other tools, which are evaluated like the pipeline's.
    #[arg(long, value_name = "COLUMN", num_args = 1..)]
    pub scores: Vec<String>,
    /// Evaluate labelled documents: column of the input with the class of each document. Windows are then constructed only for
    /// `--only` and `--heads`.
    #[arg(long, value_name = "COLUMN", requires = "good")]
    pub labels: Option<String>,
    /// Values of the label column that are worth keeping: `books papers`.
    #[arg(long, value_name = "VALUE", num_args = 1.., requires = "labels")]
    pub good: Vec<String>,
    /// Also evaluate every head of the `attention_layers` of a stage `language-model`.
    #[arg(long)]
    pub heads: bool,
    /// Folder for cached measurements and `evaluation.json`; by default `<output.path>.evaluate`.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

pub fn folder(plan: &Plan, options: &EvaluateOptions) -> PathBuf {
    options.out.clone().unwrap_or_else(|| {
        let data = plan.directory.data();
        let mut name = data.parent().unwrap_or(&data).as_os_str().to_owned();
        name.push(".evaluate");
        name.into()
    })
}

/// Calls `work`, which is [`evaluate`] or [`dry_run`], with the measures and devices of a plan.
pub fn with_evaluator<T>(
    plan: &Plan,
    options: &EvaluateOptions,
    progress: &Progress,
    work: impl FnOnce(&mut Evaluator<'_>) -> Result<T>,
) -> Result<T> {
    let (wanted, stop) = (wanted(plan, options), &plan.options.stop);
    let kinds = chosen_kinds(&options.only)?;
    columns::check(plan, &options.scores)?;
    let classes = |column: &String| labels::classes::classes(plan, column, &options.good);
    let classes = options.labels.as_ref().map(classes).transpose()?;
    let heads = if options.heads { heads::head_columns(plan)? } else { Vec::new() };
    let folder = folder(plan, options);
    measure::refuse_another(&folder)?;
    let needs_text = plan.measures.text || plan.programs.iter().any(|program| program.reads_text);
    let bytes = match &plan.encoder {
        Some(encoder) if needs_text => encoder.token_bytes(),
        _ => None,
    };
    let programs = Programs::new(plan, &plan.program_digests()?, stop)?;
    let run = |scheduler: Option<&Scheduler<'_>>, identity: &Identity| {
        let with_models = |models: &[ModelOnDevices<'_>]| {
            let (bytes, devices) = (bytes.as_ref(), (scheduler, models));
            let measurer = Measurer::open(plan, identity, &folder, devices, bytes, &programs)?;
            let mut evaluator = Evaluator {
                plan,
                options,
                wanted: &wanted,
                kinds: &kinds,
                heads: &heads,
                classes: classes.as_ref(),
                measurer,
                needs_text,
                progress,
            };
            let done = work(&mut evaluator);
            evaluator.measurer.finish()?;
            done.and_then(|done| programs.finish(plan).map(|()| done))
        };
        on_devices::run_models(plan, stop, None, with_models).0
    };
    let whole = whole_model_digests(&plan.whole_models, &BTreeMap::new(), stop)?;
    let Some(attention) = &plan.attention else {
        return run(None, &identity(plan, &Digests::new(plan, None, whole)?));
    };
    let opened = plan.open_table(attention, &|_, _| {})?;
    let identity = identity(plan, &Digests::new(plan, Some(opened.weights_digest), whole)?);
    let longest = wanted.lengths.last().copied().unwrap_or_default();
    let layer = attention.first_layer(opened.table, longest);
    let devices = &attention.devices.list;
    Scheduler::run(devices, &layer, attention.policy(), |scheduler| run(Some(scheduler), &identity))
}

fn wanted(plan: &Plan, options: &EvaluateOptions) -> SampleOptions {
    let whole = plan.spec.tokenize().window_tokens as usize;
    let lengths: BTreeSet<usize> = match &options.windows[..] {
        [] => [whole / 4, whole].into(),
        windows => windows.iter().map(|tokens| *tokens as usize).collect(),
    };
    SampleOptions {
        lengths: lengths.into_iter().filter(|tokens| *tokens > 0).collect(),
        documents: options.documents_per_category as usize,
        categories: options.max_categories as usize,
        seed: options.seed,
        by: plan.spec.score().within.clone(),
        null_is_category: true,
    }
}

/// Returns the kinds of windows to build. Whole ones are always included, because all others are compared with them.
fn chosen_kinds(only: &[String]) -> Result<Vec<&'static str>> {
    let names = || KINDS.iter().map(|kind| kind.name);
    if let Some(unknown) = only.iter().find(|name| !names().any(|kind| kind == *name)) {
        let message = format!("unknown kind of window `{unknown}`");
        let all: Vec<&str> = names().collect();
        let hint = match suggest(unknown, names()) {
            Some(meant) => format!("did you mean `{meant}`? Kinds: {}", all.join(", ")),
            None => format!("expected one of: {}", all.join(", ")),
        };
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    let chosen =
        |name: &&str| only.is_empty() || *name == "whole" || only.iter().any(|kind| kind == name);
    Ok(names().filter(chosen).collect())
}

pub struct Evaluator<'a> {
    plan: &'a Plan,
    options: &'a EvaluateOptions,
    wanted: &'a SampleOptions,
    kinds: &'a [&'static str],
    heads: &'a [HeadColumn],
    classes: Option<&'a LabelClasses>,
    measurer: Measurer<'a>,
    needs_text: bool,
    progress: &'a Progress,
}

impl Evaluator<'_> {
    fn sample(&self, wanted: &SampleOptions) -> Result<EvaluationSample> {
        self.progress.phase("sample", 1);
        let sample = self.progress.timed("sample", || sample::find(self.plan, wanted))?;
        let long_enough = sample.categories.values().any(|documents| !documents.is_empty());
        if !long_enough {
            let shortest = wanted.lengths[0];
            let message = format!("no document of the input has {} tokens", count(shortest as u64));
            let hint = "evaluate shorter windows with `--windows`";
            return Err(Diagnostic::error(Blame::Data, message).hint(hint).into());
        }
        Ok(sample)
    }

    fn builds(&self, kind: &WindowKind) -> bool {
        self.kinds.contains(&kind.name)
    }

    /// Returns whether windows are constructed; with labels only on request.
    fn constructs_windows(&self) -> bool {
        self.classes.is_none() || !self.options.only.is_empty() || self.options.heads
    }

    fn class_sample_options(&self, classes: &LabelClasses) -> SampleOptions {
        SampleOptions {
            by: Some(classes.column.clone()),
            null_is_category: false,
            categories: usize::MAX,
            ..self.wanted.clone()
        }
    }

    /// Adds a category, and reads the scores of its documents.
    fn add_category(
        &self,
        measured: &mut MeasuredWindows,
        name: &str,
        documents: &[&SampledDocument],
    ) -> Result<()> {
        for (column, values) in self.options.scores.iter().zip(&mut measured.scores) {
            values.push(columns::read(self.plan, column, documents)?);
        }
        measured.documents.push(documents.iter().copied().cloned().collect());
        measured.categories.push(name.to_owned());
        Ok(())
    }

    /// Builds and measures windows of every length and category.
    fn constructed(
        &mut self,
        sample: &EvaluationSample,
    ) -> Result<BTreeMap<WindowLength, LengthResults>> {
        let (scores, seed, names) = (self.options.scores.len(), self.options.seed, self.kinds);
        let new = |tokens: &usize| {
            let heads = self.heads.iter().map(HeadColumn::values).collect();
            MeasuredWindows::new(self.plan, *tokens, scores, heads)
        };
        let mut lengths: Vec<MeasuredWindows> = self.wanted.lengths.iter().map(new).collect();
        let tokens = |tokens: &usize| self.count_built(sample, *tokens).1 * *tokens as u64;
        self.progress.phase("measure", self.wanted.lengths.iter().map(tokens).sum());
        for (name, sampled) in &sample.categories {
            for length in &mut lengths {
                let chosen = self.wanted.for_length(length.tokens, sampled);
                let index = length.categories.len();
                if chosen.is_empty() {
                    continue;
                }
                let documents = sample::read(self.plan, &chosen)?;
                self.add_category(length, name, &chosen)?;
                let category = Category { name, index, documents: &documents };
                let is_wanted = |kind: &WindowKind| names.contains(&kind.name);
                let built = windows::windows(&category, length.tokens, seed, is_wanted);
                let built = built.map(|(origin, ids)| {
                    (origin, origin.category, WindowContent::from_tokens(ids))
                });
                self.measure_windows(length, built)?;
            }
        }
        let results = |length: &MeasuredWindows| {
            (WindowLength(length.tokens as u64), self.length_results(length))
        };
        Ok(lengths.iter().map(results).collect())
    }

    /// Measures windows, each given with its scaling group.
    fn measure_windows(
        &mut self,
        measured: &mut MeasuredWindows,
        mut windows: impl Iterator<Item = (WindowOrigin, usize, WindowContent)>,
    ) -> Result<()> {
        let memory_limit_bytes = self.plan.spec.pipeline.input.memory_limit_bytes;
        let at_a_time = BATCH_TOKENS.min(memory_limit_bytes / 64) as usize / measured.tokens;
        loop {
            let batch = windows.by_ref().take(at_a_time.max(1));
            let (origins, contents): (Vec<_>, Vec<_>) =
                batch.map(|(origin, group, content)| ((origin, group), content)).unzip();
            if origins.is_empty() {
                return Ok(());
            }
            let window_values = self.measurer.measure(&contents)?;
            for (((origin, group), content), values) in
                origins.iter().zip(&contents).zip(&window_values)
            {
                measured.push(self.plan, *origin, *group, &content.ids, values);
                for (head, of_head) in self.heads.iter().zip(&mut measured.heads) {
                    head.push(of_head, values);
                }
            }
            let windows = contents.len();
            self.progress.windows_done(windows as u64, (windows * measured.tokens) as u64);
        }
    }

    fn length_results(&self, measured: &MeasuredWindows) -> LengthResults {
        let (tokens, documents) = (measured.tokens as u64, measured.sizes());
        let rejections = measured.rejections(self.plan);
        let passes = rejections.passes();
        let statistics = measured.statistics(self.plan, passes.as_deref());
        let bootstrap = Bootstrap::new(self.options.seed, &documents);
        let below_copy_cap = measured.below_copy_cap();
        let is_built =
            |pool: &Pool| KINDS.iter().all(|kind| !kind.pools.contains(pool) || self.builds(kind));
        let pools: Vec<Pool> = [Pool::Fixed, Pool::Jittered].into_iter().filter(is_built).collect();
        let windows = ResultInput {
            measured,
            bootstrap: &bootstrap,
            pools: &pools,
            below_copy_cap: below_copy_cap.as_deref(),
            passes_guards: passes.as_deref(),
        };
        let mut reports: BTreeMap<String, Report> = statistics
            .iter()
            .map(|statistic| (statistic.name.clone(), windows.report(statistic)))
            .collect();
        let documents_of_all: usize = documents.iter().sum();
        let matrix: Matrix = match documents_of_all {
            0..MIN_DOCUMENTS => Matrix::new(),
            _ => reports.iter().map(|(name, report)| (name.clone(), report.cells())).collect(),
        };
        let sentence = reports.get("score").map(|report| sentence(report, matrix.get("score")));
        let mut agreement = windows.agreement(&statistics);
        let mut notes = self.notes(tokens, documents_of_all, false);
        notes.extend(rejections.notes());
        if (1..MIN_DOCUMENTS).contains(&documents_of_all) {
            notes.push(format!(
                "no matrix: {documents_of_all} documents are long enough, {MIN_DOCUMENTS} are required"
            ));
        }
        if pools.is_empty() {
            notes.push("no top-fifth results: not all kinds of a pool were constructed".to_owned());
        }
        let mut with_columns = statistics.clone();
        for (column, values) in self.options.scores.iter().zip(&measured.scores) {
            // Statistics of the pipeline take precedence over columns with the same name.
            let name = free_name(&statistics, "input", column);
            let (report, of_column, values) =
                columns::results(&windows, &name, &statistics, values);
            for (statistic, value) in &of_column {
                agreement.entry(statistic.clone()).or_default().insert(name.clone(), *value);
            }
            agreement.insert(name.clone(), of_column);
            reports.insert(name.clone(), report);
            with_columns.push(OrientedStatistic::new(name.clone(), String::new(), values));
            notes.push(format!(
                "`{name}` is a column of the input: only agreement and confounders are reported, because constructed windows \
                 have no value"
            ));
        }
        let score = statistics.iter().find(|statistic| statistic.name == "score");
        let selection = score.map(|score| {
            evaluation::consequences(self.plan.spec.filter(), &windows, score, &with_columns)
        });
        let of_heads = self
            .heads
            .iter()
            .zip(&measured.heads)
            .map(|(head, values)| head.results(values, &windows));
        let kinds = KINDS.iter().zip(&measured.kinds).filter(|(kind, _)| self.builds(kind));
        let sizes = documents.iter().map(|documents| *documents as u64);
        LengthResults {
            tokens,
            seed: self.options.seed,
            sentence,
            documents: measured.categories.iter().cloned().zip(sizes).collect(),
            kinds: kinds
                .map(|(kind, (windows, hash))| {
                    let sha256 = hex(&hash.clone().finalize());
                    (kind.name, KindResults { windows: *windows, sha256 })
                })
                .collect(),
            statistics: statistics.iter().map(|of| (of.name.clone(), of.doc.clone())).collect(),
            quantiles_of_whole: with_columns
                .iter()
                .filter_map(|of| Some((of.name.clone(), windows.quantiles(&of.values)?)))
                .collect(),
            guards: rejections.counted(|window| measured.origins[window].kind().name),
            matrix,
            reports,
            agreement,
            selection,
            heads: of_heads.collect(),
            notes,
        }
    }

    /// Returns notes about what could not be measured for windows of this length.
    fn notes(&self, tokens: u64, documents: usize, are_slices: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if documents == 0 {
            notes.push(format!(
                "no document has {tokens} tokens: evaluate shorter windows with `--windows`"
            ));
        }
        if self.plan.spec.score().calibration.is_some() {
            notes.push(
                "`score.calibration` is not used: scales and guards are computed from the whole windows"
                    .to_owned(),
            );
        }
        for ((_, measure), columns) in self.plan.measures().zip(&self.plan.measures.columns) {
            let name = &columns.measure;
            let needs = measure.needs();
            let needs_text = needs.window_text || needs.document_text;
            if needs_text && self.measurer.bytes.is_none() && !are_slices {
                notes.push(format!(
                    "`{name}` is not measured: it requires text, and the tokenizer does not map tokens to bytes"
                ));
            }
            if measure.min_tokens() > tokens {
                notes.push(format!(
                    "`{name}` is not measured: it requires windows of at least {} tokens",
                    measure.min_tokens()
                ));
            }
        }
        for (index, columns) in self.plan.measures.indices().zip(&self.plan.measures.columns) {
            if let Some((number, why)) = self.measurer.unmeasured.get(&(tokens, index)) {
                let name = &columns.measure;
                notes.push(format!("{number} windows have no result of `{name}`: {}", why.message));
            }
        }
        notes
    }

    fn count_built(&self, sample: &EvaluationSample, tokens: usize) -> (u64, u64) {
        let (documents, windows) = self.count(sample, tokens, WINDOWS_PER_DOCUMENT);
        (documents, windows * self.kinds.len() as u64)
    }

    fn count_natural(&self, sample: &EvaluationSample, tokens: usize) -> (u64, u64) {
        self.count(sample, tokens, windows_per_document(tokens))
    }

    fn count(&self, sample: &EvaluationSample, tokens: usize, max: usize) -> (u64, u64) {
        let sampled = sample
            .categories
            .values()
            .flat_map(|category| self.wanted.for_length(tokens, category));
        sampled.fold((0, 0), |(documents, windows), document| {
            let starts = windows::starts(document.tokens, tokens, max).count();
            (documents + 1, windows + starts as u64)
        })
    }
}

pub fn evaluate(evaluator: &mut Evaluator<'_>) -> Result<Evaluation> {
    let mut evaluation = Evaluation {
        pipeline: evaluator.plan.spec.pipeline.name.clone(),
        seed: evaluator.options.seed,
        documents_per_category: evaluator.options.documents_per_category as usize,
        ..Evaluation::default()
    };
    if let Some(classes) = evaluator.classes {
        let wanted = evaluator.class_sample_options(classes);
        let sample = evaluator.sample(&wanted)?;
        evaluation.equal_ids_left_out = sample.equal_ids;
        evaluation.labels = Some(evaluator.labels(classes, &wanted, &sample)?);
    }
    if evaluator.constructs_windows() {
        let sample = evaluator.sample(evaluator.wanted)?;
        evaluation.lengths = evaluator.constructed(&sample)?;
        evaluation.equal_ids_left_out = evaluation.equal_ids_left_out.max(sample.equal_ids);
        evaluation.categories_left_out = sample.left_out;
    }
    Ok(evaluation)
}

/// Estimates the size of an evaluation from the sample and a few measured windows.
pub fn dry_run(evaluator: &mut Evaluator<'_>) -> Result<DryRun> {
    let classes =
        evaluator.classes.map(|classes| evaluator.sample(&evaluator.class_sample_options(classes)));
    let natural = classes.transpose()?;
    let built = evaluator.constructs_windows().then(|| evaluator.sample(evaluator.wanted));
    let built = built.transpose()?;
    let sample =
        natural.as_ref().or(built.as_ref()).expect("at least one of the two samples exists");
    let mut lengths = BTreeMap::new();
    for tokens in evaluator.wanted.lengths.clone() {
        let natural = natural.as_ref().map(|sample| evaluator.count_natural(sample, tokens));
        let built = built.as_ref().map(|sample| evaluator.count_built(sample, tokens));
        let counts = natural.iter().chain(&built);
        let windows: u64 = counts.clone().map(|(_, windows)| windows).sum();
        let most_documents = counts.map(|(documents, _)| *documents).max().unwrap_or_default();
        // Measures a few windows. The first one fills caches; if it takes long, as with a whole model, its time is
        // used as well.
        let mut ids: Vec<WindowContent> = Vec::new();
        let sampled = sample
            .categories
            .values()
            .flat_map(|category| evaluator.wanted.for_length(tokens, category));
        for document in sampled {
            let documents = sample::read(evaluator.plan, &[document])?;
            let windows = documents[0].ids.chunks_exact(tokens);
            let windows = windows.map(|ids| WindowContent::from_tokens(ids.to_vec()));
            ids.extend(windows.take(TIMED_WINDOWS - ids.len()));
            if ids.len() == TIMED_WINDOWS {
                break;
            }
        }
        let measurer = &mut evaluator.measurer;
        measurer.only_timed = true;
        let first = &ids[..ids.len().min(1)];
        for ids in [first, &ids] {
            measurer.took.fill((Duration::ZERO, 0));
            measurer.measure(ids)?;
            if measurer.took.iter().map(|(time, _)| *time).sum::<Duration>() >= LONG_WINDOW {
                break;
            }
        }
        let measures = evaluator.plan.measures.columns.iter().zip(&measurer.took);
        let seconds = measures.filter_map(|(columns, (time, measured))| {
            let each = time.as_secs_f64() / *measured as f64;
            (*measured > 0).then(|| (columns.measure.clone(), each * windows as f64))
        });
        let length = DryLength {
            documents: most_documents,
            windows,
            tokens: windows * tokens as u64,
            seconds: seconds.collect(),
        };
        lengths.insert(tokens as u64, length);
    }
    Ok(DryRun { lengths })
}

/// Summarises the result for the pipeline's score on constructed windows.
fn sentence(report: &Report, cells: Option<&BTreeMap<String, Cell>>) -> String {
    let mut text = match cells {
        Some(cells) => {
            let passes = cells.values().filter(|cell| cell.outcome == Outcome::Pass);
            format!(
                "the score passes {} of {} kinds of constructed windows{}",
                passes.count(),
                cells.len(),
                shortcomings(cells)
            )
        }
        None => "too few documents to judge the score".to_owned(),
    };
    let shares = &report.top_fifth_real_share;
    let share = shares.guarded.as_ref().unwrap_or(&shares.plain).value;
    if let (Some(share), Some(chance)) = (share, shares.by_chance) {
        let (share, chance) = (100.0 * share, 100.0 * chance);
        let share =
            format!("; {share:.0} % of the top fifth are whole windows ({chance:.0} by chance)");
        text.push_str(&share);
    }
    text
}
