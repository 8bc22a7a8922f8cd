//! `longsift evaluate`: what each score of a pipeline tells apart in the pipeline's own corpus, before anything is filtered.
//!
//! Documents are sampled, windows are built of them in eighteen ways, every measure of the pipeline sees every window, and the
//! figures say which side each statistic prefers. `docs/evaluation.md` has the protocol.

mod columns;
mod constructions;
mod figures;
mod heads;
mod measure;
mod page;
mod random;
mod report;
mod sample;
mod selection;
mod statistics;
mod tables;
mod verdicts;
mod windows;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use longsift_stages::contract::hex;
use longsift_stages::first_layer_attention::FirstLayer;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::base::text::suggest;
use crate::devices::scheduler::Scheduler;
use crate::plan::Plan;
use crate::plan::identity::{Digests, identity, whole_model_digests};
use crate::run_directory::facts::Identity;
use crate::score::programs::Programs;
use constructions::{KINDS, Kind, Pool};
use figures::bootstrap::Bootstrap;
use heads::{Asked, HeadValues, HeadsOf};
use measure::Measurer;
use report::{Report, Windows};
use sample::{LeftOut, Sample, Wanted};
use selection::Selection;
use statistics::{Measured, Statistic};
use verdicts::Verdict;
use windows::{Category, Place};

/// Tokens of the windows that are measured at a time, as far as one window and `memory_limit_bytes` allow: with ids, text and
/// figures some sixteen bytes each.
const BATCH_TOKENS: u64 = 4 << 20;

/// Windows that a dry run measures of each length.
const TIMED_WINDOWS: usize = 16;
/// A dry run measures only the first window where that takes at least this long: starting threads and filling caches is little
/// beside it.
const LONG_WINDOW: Duration = Duration::from_secs(1);

/// What is evaluated.
#[derive(Clone, Debug)]
pub struct EvaluateOptions {
    /// Tokens of a window; empty: the pipeline's own and a quarter of it.
    pub windows: Vec<u32>,
    /// Chooses documents and places.
    pub seed: u64,
    /// Documents of a category and length.
    pub documents_per_category: usize,
    /// Categories at most.
    pub max_categories: usize,
    /// Kinds of windows; empty: all.
    pub only: Vec<String>,
    /// Columns of the input that are scores of documents.
    pub scores: Vec<String>,
    /// Whether each head of whole models has figures of its own.
    pub heads: bool,
    /// The evaluation's folder; none: beside the output.
    pub folder: Option<PathBuf>,
}

/// What the statistics of a pipeline separate.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// The pipeline's name.
    pub(crate) pipeline: String,
    pub(crate) seed: u64,
    pub(crate) documents_per_category: usize,
    /// Rows left out because another of their category has the same id.
    pub(crate) equal_ids_left_out: u64,
    pub(crate) categories_left_out: LeftOut,
    /// `S2048` and so on.
    #[serde(flatten)]
    pub(crate) lengths: BTreeMap<Tokens, OfLength>,
}

/// The tokens of a window; `S2048` as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tokens(pub(crate) u64);

impl Serialize for Tokens {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("S{}", self.0))
    }
}

/// The figures of one length.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OfLength {
    /// Tokens of a window.
    #[serde(rename = "S")]
    pub(crate) tokens: u64,
    pub(crate) seed: u64,
    /// Documents by category.
    pub(crate) documents: BTreeMap<String, u64>,
    pub(crate) kinds: BTreeMap<&'static str, KindOf>,
    /// What each statistic is, in one sentence.
    pub(crate) statistics: BTreeMap<String, String>,
    pub(crate) reports: BTreeMap<String, Report>,
    pub(crate) agreement: BTreeMap<String, BTreeMap<String, Option<f64>>>,
    /// 5, 50 and 95 % over whole windows.
    pub(crate) quantiles_of_whole: BTreeMap<String, [f64; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selection: Option<Selection>,
    /// What each head of whole models tells apart, by measure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) heads: Vec<HeadsOf>,
    pub(crate) verdicts: Vec<Verdict>,
    /// What could not be measured, and why.
    pub(crate) notes: Vec<String>,
}

/// The windows of a kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KindOf {
    pub(crate) windows: u64,
    /// Of the ids of all of them in their order, four bytes each, little-endian.
    pub(crate) sha256: String,
}

/// What an evaluation would take.
#[derive(Clone, Debug, Serialize)]
pub struct DryRun {
    /// By length, in tokens.
    pub lengths: BTreeMap<u64, DryLength>,
}

/// What one length would take.
#[derive(Clone, Debug, Serialize)]
pub struct DryLength {
    /// Documents that are long enough.
    pub documents: u64,
    /// Windows of all kinds, at most.
    pub windows: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Seconds for each measure, from a few windows.
    pub seconds: BTreeMap<String, f64>,
}

/// Evaluates the statistics of a plan.
///
/// # Errors
/// Options that mean nothing; an input, a model or devices that cannot be used.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method is of one lifetime, the closure of any"
)]
pub fn evaluate(
    plan: &Plan,
    options: &EvaluateOptions,
    progress: &Progress,
    stop: &Stop,
) -> Result<Evaluation> {
    with_evaluator(plan, options, progress, stop, |evaluator| evaluator.evaluate())
}

/// Says what an evaluation would take, from the sample and a few measured windows.
///
/// # Errors
/// As [`evaluate`].
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the method is of one lifetime, the closure of any"
)]
pub fn dry_run(
    plan: &Plan,
    options: &EvaluateOptions,
    progress: &Progress,
    stop: &Stop,
) -> Result<DryRun> {
    with_evaluator(plan, options, progress, stop, |evaluator| evaluator.dry_run())
}

/// The evaluation's folder.
pub fn folder(plan: &Plan, options: &EvaluateOptions) -> Result<PathBuf> {
    if let Some(folder) = &options.folder {
        return Ok(folder.clone());
    }
    let output = plan.directory.data();
    let beside = |path: PathBuf| {
        let mut name = path.into_os_string();
        name.push(".evaluate");
        PathBuf::from(name)
    };
    output.parent().map(|output| beside(output.to_owned())).ok_or_else(|| {
        Diagnostic::error(Blame::Pipeline, "the output has no folder to evaluate beside")
            .hint("name one with `--out`")
            .into()
    })
}

fn with_evaluator<T>(
    plan: &Plan,
    options: &EvaluateOptions,
    progress: &Progress,
    stop: &Stop,
    work: impl FnOnce(&mut Evaluator<'_>) -> Result<T>,
) -> Result<T> {
    let wanted = wanted(plan, options)?;
    let kinds = chosen_kinds(&options.only)?;
    columns::check(plan, &options.scores)?;
    let heads = if options.heads { heads::asked(plan)? } else { Vec::new() };
    let folder = folder(plan, options)?;
    measure::refuse_another(&folder)?;
    let needs_text = plan.measures.text || plan.programs.iter().any(|program| program.reads_text);
    let bytes = match &plan.encoder {
        Some(encoder) if needs_text => encoder.token_bytes(),
        _ => None,
    };
    let programs = Programs::new(plan, stop);
    let run = |scheduler: Option<&Scheduler<'_>>, identity: &Identity| {
        let bytes = bytes.as_ref();
        let measurer = Measurer::open(plan, identity, &folder, scheduler, bytes, &programs, stop)?;
        let mut evaluator = Evaluator {
            plan,
            options,
            wanted: &wanted,
            kinds: &kinds,
            heads: &heads,
            measurer,
            has_bytes: bytes.is_some(),
            progress,
            stop,
        };
        let done = work(&mut evaluator);
        evaluator.measurer.finish()?;
        done.and_then(|done| programs.finish(plan).map(|()| done))
    };
    let whole = whole_model_digests(&plan.whole_models, &BTreeMap::new(), stop)?;
    let Some(attention) = &plan.attention else {
        return run(None, &identity(plan, &Digests::new(plan, None, whole)?));
    };
    let opened = plan.open_table(attention, &|_, _| {})?;
    let identity = identity(plan, &Digests::new(plan, Some(opened.weights_digest), whole)?);
    let longest = wanted.lengths.last().copied().unwrap_or_default();
    let mask = attention.measure.mask;
    let layer = FirstLayer::new(attention.model.spec().clone(), opened.table, mask, longest);
    let devices = &attention.devices.list;
    Scheduler::run(devices, &layer, attention.policy(), |scheduler| run(Some(scheduler), &identity))
}

fn wanted(plan: &Plan, options: &EvaluateOptions) -> Result<Wanted> {
    let own = plan.spec.tokenize().window_tokens;
    let mut lengths: Vec<usize> = match &options.windows[..] {
        [] => vec![own as usize / 4, own as usize],
        windows => windows.iter().map(|tokens| *tokens as usize).collect(),
    };
    lengths.sort_unstable();
    lengths.dedup();
    lengths.retain(|tokens| *tokens > 0);
    if lengths.is_empty() {
        let message = "a window of 0 tokens has nothing to measure";
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .hint("give `--windows` in tokens: 2048,8192")
            .into());
    }
    Ok(Wanted {
        lengths,
        documents: options.documents_per_category,
        categories: options.max_categories,
        seed: options.seed,
    })
}

/// The kinds of windows that are built. Whole ones are what all others are compared with.
fn chosen_kinds(only: &[String]) -> Result<Vec<&'static str>> {
    let names = || KINDS.iter().map(|kind| kind.name);
    if let Some(unknown) = only.iter().find(|name| !names().any(|kind| kind == *name)) {
        let message = format!("there is no kind of window `{unknown}`");
        let all: Vec<&str> = names().collect();
        let hint = match suggest(unknown, names()) {
            Some(meant) => format!("did you mean `{meant}`? There are {}", all.join(", ")),
            None => format!("there are {}", all.join(", ")),
        };
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    let chosen =
        |name: &&str| only.is_empty() || *name == "whole" || only.iter().any(|kind| kind == name);
    Ok(names().filter(chosen).collect())
}

/// The measured windows of one length, while categories are added.
struct Length {
    measured: Measured,
    /// By measure that looks at heads.
    heads: Vec<HeadValues>,
    hashes: Vec<(u64, Sha256)>,
    document_tokens: Vec<u64>,
    categories: Vec<String>,
    documents: Vec<usize>,
    /// By column of the input, category and document.
    scores: Vec<Vec<Vec<Option<f64>>>>,
}

struct Evaluator<'a> {
    plan: &'a Plan,
    options: &'a EvaluateOptions,
    wanted: &'a Wanted,
    kinds: &'a [&'static str],
    heads: &'a [Asked],
    measurer: Measurer<'a>,
    has_bytes: bool,
    progress: &'a Progress,
    stop: &'a Stop,
}

impl Evaluator<'_> {
    fn sample(&self) -> Result<Sample> {
        self.progress.phase("sample", 1);
        let sample =
            self.progress.timed("sample", || sample::find(self.plan, self.wanted, self.stop))?;
        let long_enough = sample.categories.values().any(|of| !of.documents.is_empty());
        if !long_enough {
            let shortest = self.wanted.lengths[0];
            let message = format!("no document of the input has {shortest} tokens");
            return Err(Diagnostic::error(Blame::Data, message)
                .hint("evaluate shorter windows with `--windows`")
                .into());
        }
        Ok(sample)
    }

    fn builds(&self, kind: &Kind) -> bool {
        self.kinds.contains(&kind.name)
    }

    fn evaluate(&mut self) -> Result<Evaluation> {
        let sample = self.sample()?;
        let categories = sample.categories.len();
        let mut lengths: Vec<Length> = self
            .wanted
            .lengths
            .iter()
            .map(|tokens| Length {
                measured: Measured::new(self.plan, *tokens, categories),
                heads: self.heads.iter().map(Asked::values).collect(),
                hashes: vec![(0, Sha256::new()); KINDS.len()],
                document_tokens: Vec::new(),
                categories: Vec::new(),
                documents: Vec::new(),
                scores: vec![Vec::new(); self.options.scores.len()],
            })
            .collect();
        self.progress.phase("measure", self.windows_at_most(&sample));
        for (name, sampled) in &sample.categories {
            for length in &mut lengths {
                let tokens = length.measured.tokens;
                let found = sampled.of_length(tokens, self.wanted);
                let index = length.categories.len();
                if found.is_empty() {
                    continue;
                }
                let documents = sample::read(self.plan, &found, self.stop)?;
                for (column, values) in self.options.scores.iter().zip(&mut length.scores) {
                    values.push(columns::read(self.plan, column, &found)?);
                }
                length.categories.push(name.clone());
                length.documents.push(documents.len());
                let category = Category { name, index, documents: documents.iter().collect() };
                self.measure(&category, length)?;
            }
        }
        let of = |length: Length| (Tokens(length.measured.tokens as u64), self.figures(length));
        Ok(Evaluation {
            pipeline: self.plan.spec.pipeline.name.clone(),
            seed: self.options.seed,
            documents_per_category: self.options.documents_per_category,
            equal_ids_left_out: sample.equal_ids,
            categories_left_out: sample.left_out,
            lengths: lengths.into_iter().map(of).collect(),
        })
    }

    /// Builds and measures the windows of a category.
    fn measure(&mut self, category: &Category<'_>, length: &mut Length) -> Result<()> {
        let tokens = length.measured.tokens;
        let names = self.kinds;
        let limit = self.plan.spec.pipeline.input.memory_limit_bytes / 64;
        let at_a_time = (BATCH_TOKENS.min(limit) as usize / tokens).max(1);
        let mut built = windows::windows(category, tokens, self.options.seed, |kind| {
            names.contains(&kind.name)
        });
        loop {
            let batch: Vec<(Place, Vec<u32>)> = built.by_ref().take(at_a_time).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let (places, ids): (Vec<Place>, Vec<Vec<u32>>) = batch.into_iter().unzip();
            let figures = self.measurer.measure(&ids)?;
            for ((place, ids), figures) in places.iter().zip(&ids).zip(&figures) {
                let (windows, hash) = &mut length.hashes[place.kind];
                *windows += 1;
                for id in ids {
                    hash.update(id.to_le_bytes());
                }
                let of = category.documents[place.document].ids.len();
                length.document_tokens.push(of as u64);
                length.measured.push(self.plan, *place, figures);
                for (asked, values) in self.heads.iter().zip(&mut length.heads) {
                    asked.push(values, figures);
                }
            }
            self.progress.windows_done(ids.len() as u64, (ids.len() * tokens) as u64);
        }
    }

    fn figures(&self, length: Length) -> OfLength {
        let Length { measured, heads, hashes, document_tokens, categories, documents, scores } =
            length;
        let statistics = measured.statistics(self.plan);
        let bootstrap = Bootstrap::new(self.options.seed, &documents);
        let below_copy_cap = measured.below_copy_cap();
        let guards = measured.passes(self.plan);
        let passes: Option<Vec<bool>> = guards.iter().any(Option::is_some).then(|| {
            let all = |window: usize| guards.iter().flatten().all(|of| of[window]);
            (0..measured.places.len()).map(all).collect()
        });
        let is_built = |pool: &Pool| {
            KINDS.iter().all(|kind| !kind.pools.contains(pool) || self.builds(kind))
        };
        let pools: Vec<Pool> = [Pool::Fixed, Pool::Jittered].into_iter().filter(is_built).collect();
        let windows = Windows {
            places: &measured.places,
            categories: &categories,
            bootstrap: &bootstrap,
            document_tokens: &document_tokens,
            pools: &pools,
            below_copy_cap: below_copy_cap.as_deref(),
            passes_guards: passes.as_deref(),
        };
        let mut reports: BTreeMap<String, Report> = statistics
            .iter()
            .map(|statistic| (statistic.name.clone(), windows.report(&statistic.values)))
            .collect();
        let mut verdicts = self.verdicts(&statistics, &reports, &windows, &documents, &guards);
        let mut agreement = windows.agreement(&statistics);
        let mut notes = self.notes(measured.tokens as u64, documents.iter().sum());
        notes.extend(verdicts::too_few(&categories, &documents));
        for (guard, of) in self.plan.spec.filter().guards.iter().zip(&guards) {
            if of.is_none() {
                let name = &guard.statistic;
                notes.push(format!(
                    "the guard on `{name}` is left out: no window of this length has it"
                ));
            }
        }
        if pools.is_empty() {
            notes.push(
                "no figures of the top fifth: not all kinds of a pool were built".to_owned(),
            );
        }
        let mut with_columns = statistics.clone();
        for (column, values) in self.options.scores.iter().zip(&scores) {
            // The pipeline's own figures keep their names.
            let taken = statistics.iter().any(|statistic| statistic.name == *column);
            let name = if taken { format!("input:{column}") } else { column.clone() };
            let of = columns::figures(&windows, &statistics, values);
            for (statistic, value) in &of.agreement {
                agreement.entry(statistic.clone()).or_default().insert(name.clone(), *value);
            }
            agreement.insert(name.clone(), of.agreement);
            agreement.entry(name.clone()).or_default().insert(name.clone(), of.own);
            reports.insert(name.clone(), of.report);
            with_columns.push(Statistic {
                name: name.clone(),
                doc: String::new(),
                values: of.values,
            });
            notes.push(format!(
                "`{name}` is a column of the input: it has figures of agreement and of what explains it; the others are not \
                 measurable, they need the text of built windows"
            ));
        }
        verdicts.sort_by_key(|verdict| verdict.of != "score");
        let score = statistics.iter().find(|statistic| statistic.name == "score");
        let selection = score.map(|score| {
            let tokens = measured.tokens as u64;
            selection::consequences(self.plan.spec.filter(), &windows, tokens, score, &with_columns)
        });
        let of_heads =
            self.heads.iter().zip(&heads).map(|(of, values)| of.figures(values, &windows));
        let kinds = KINDS.iter().zip(hashes).filter(|(kind, _)| self.builds(kind));
        OfLength {
            tokens: measured.tokens as u64,
            seed: self.options.seed,
            documents: categories
                .iter()
                .cloned()
                .zip(documents.iter().map(|n| *n as u64))
                .collect(),
            kinds: kinds
                .map(|(kind, (windows, hash))| {
                    (kind.name, KindOf { windows, sha256: hex(&hash.finalize()) })
                })
                .collect(),
            statistics: statistics.iter().map(|of| (of.name.clone(), of.doc.clone())).collect(),
            quantiles_of_whole: with_columns
                .iter()
                .filter_map(|of| Some((of.name.clone(), windows.quantiles(&of.values)?)))
                .collect(),
            reports,
            agreement,
            selection,
            heads: of_heads.collect(),
            verdicts,
            notes,
        }
    }

    fn verdicts(
        &self,
        statistics: &[Statistic],
        reports: &BTreeMap<String, Report>,
        windows: &Windows<'_>,
        documents: &[usize],
        guards: &[Option<Vec<bool>>],
    ) -> Vec<Verdict> {
        if documents.iter().sum::<usize>() < verdicts::LEAST_DOCUMENTS {
            return Vec::new();
        }
        let of_statistics = statistics
            .iter()
            .flat_map(|of| verdicts::of_statistic(of, &reports[&of.name], windows, documents));
        let of_guards = self
            .plan
            .spec
            .filter()
            .guards
            .iter()
            .zip(guards)
            .filter_map(|(guard, passes)| Some((guard, passes.as_ref()?)))
            .flat_map(|(guard, passes)| verdicts::of_guard(&guard.statistic, windows, passes));
        of_statistics.chain(of_guards).collect()
    }

    /// What could not be measured of windows of this length.
    fn notes(&self, tokens: u64, documents: usize) -> Vec<String> {
        let mut notes = Vec::new();
        if documents == 0 {
            notes.push(format!(
                "no document has {tokens} tokens: evaluate shorter windows with `--windows`"
            ));
        }
        if self.plan.spec.score().calibration.is_some() {
            notes.push(
                "`score.calibration` is not used: scales and guards are those of the whole windows"
                    .to_owned(),
            );
        }
        for ((_, measure), columns) in self.plan.measures().zip(&self.plan.measures.columns) {
            let name = &columns.measure;
            let needs = measure.needs();
            if (needs.window_text || needs.document_text) && !self.has_bytes {
                notes.push(format!(
                    "`{name}` is not measured: the tokenizer's tokens do not say which bytes they stand for, and a built window \
                     has no other text"
                ));
            }
            if measure.min_tokens() > tokens {
                notes.push(format!(
                    "`{name}` is not measured: it needs windows of {} tokens",
                    measure.min_tokens()
                ));
            }
        }
        for (place, columns) in self.plan.measures.places().zip(&self.plan.measures.columns) {
            if let Some((number, why)) = self.measurer.unmeasured.get(&(tokens, place)) {
                let name = &columns.measure;
                notes
                    .push(format!("{number} windows have no figures of `{name}`: {}", why.message));
            }
        }
        notes
    }

    fn windows_at_most(&self, sample: &Sample) -> u64 {
        let each = |tokens: usize| self.count(sample, tokens).1;
        self.wanted.lengths.iter().map(|tokens| each(*tokens)).sum()
    }

    /// Documents, and windows of all kinds.
    fn count(&self, sample: &Sample, tokens: usize) -> (u64, u64) {
        let found = sample.categories.values().flat_map(|of| of.of_length(tokens, self.wanted));
        found.fold((0, 0), |(documents, windows), found| {
            let starts = windows::starts(found.tokens, tokens).count();
            (documents + 1, windows + (starts * self.kinds.len()) as u64)
        })
    }

    fn dry_run(&mut self) -> Result<DryRun> {
        let sample = self.sample()?;
        let mut lengths = BTreeMap::new();
        for tokens in self.wanted.lengths.clone() {
            let (of_length, windows) = self.count(&sample, tokens);
            // A few windows of as many documents as it takes. The first one warms caches up; where it takes long, as with a whole
            // model, it tells the time as well.
            let found = sample.categories.values().flat_map(|of| of.of_length(tokens, self.wanted));
            let mut ids: Vec<Vec<u32>> = Vec::new();
            for found in found {
                let documents = sample::read(self.plan, &[found], self.stop)?;
                let windows = documents[0].ids.chunks_exact(tokens).map(<[u32]>::to_vec);
                ids.extend(windows.take(TIMED_WINDOWS - ids.len()));
                if ids.len() == TIMED_WINDOWS {
                    break;
                }
            }
            self.measurer.only_timed = true;
            let first = &ids[..ids.len().min(1)];
            self.measurer.measure(first)?;
            if self.measurer.took.iter().map(|(time, _)| *time).sum::<Duration>() < LONG_WINDOW {
                self.measurer.took.iter_mut().for_each(|took| *took = (Duration::ZERO, 0));
                self.measurer.measure(&ids)?;
            }
            let seconds = self.plan.measures.columns.iter().zip(&self.measurer.took).filter_map(
                |(of, (time, measured))| {
                    let each = time.as_secs_f64() / *measured as f64;
                    (*measured > 0).then(|| (of.measure.clone(), each * windows as f64))
                },
            );
            let seconds = seconds.collect();
            lengths.insert(
                tokens as u64,
                DryLength {
                    documents: of_length,
                    windows,
                    tokens: windows * tokens as u64,
                    seconds,
                },
            );
        }
        Ok(DryRun { lengths })
    }
}
