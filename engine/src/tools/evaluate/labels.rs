//! Natural windows of labelled documents: the share of real text that each score keeps.
//!
//! Windows are slices of the input's documents. Documents are sampled by class; good
//! and other classes each have half of the total weight, divided equally between their classes.

pub(crate) mod classes;
mod kept;
pub(crate) mod page;
pub(crate) mod report;

use std::collections::{BTreeMap, HashMap};

use longsift_stages::score::presets::DEFAULT_SEED;

use super::Evaluator;
use super::estimates::bootstrap::Bootstrap;
use super::sample::{self, EvaluationSample, InputRow, SampleOptions, SampledDocument};
use super::statistics::{MeasuredWindows, OrientedStatistic, free_name};
use super::windows::{WindowLength, WindowOrigin, starts, windows_per_document};
use crate::base::error::Result;
use classes::LabelClasses;
use kept::LabelledWindows;
use report::{LabelLength, LabelResults, RANDOM};

const DOCUMENTS_AT_A_TIME: usize = 32;

impl Evaluator<'_> {
    pub(super) fn labels(
        &mut self,
        classes: &LabelClasses,
        wanted: &SampleOptions,
        sample: &EvaluationSample,
    ) -> Result<LabelResults> {
        let tokens = |tokens: &usize| self.count_natural(sample, *tokens).1 * *tokens as u64;
        self.progress.phase("measure", wanted.lengths.iter().map(tokens).sum());
        let scores = self.options.scores.len();
        let new = |tokens: &usize| MeasuredWindows::new(self.plan, *tokens, scores, Vec::new());
        let mut lengths: Vec<MeasuredWindows> = wanted.lengths.iter().map(new).collect();
        let mut groups: HashMap<Option<String>, usize> = HashMap::new();
        for (class, sampled) in &sample.categories {
            let mut chosen: Vec<BTreeMap<InputRow, usize>> = Vec::new();
            for length in &mut lengths {
                let found = wanted.for_length(length.tokens, sampled);
                chosen.push(found.iter().enumerate().map(|(index, of)| (of.row, index)).collect());
                if !found.is_empty() {
                    self.add_category(length, class, &found)?;
                }
            }
            let is_chosen = |sampled: &&SampledDocument| {
                chosen.iter().any(|rows| rows.contains_key(&sampled.row))
            };
            let documents: Vec<&SampledDocument> = sampled.iter().filter(is_chosen).collect();
            for batch in documents.chunks(DOCUMENTS_AT_A_TIME) {
                let read = sample::read_batch(self.plan, batch)?;
                for (length, chosen) in lengths.iter_mut().zip(&chosen) {
                    let tokens = length.tokens;
                    let mut windows = Vec::new();
                    for (sampled, natural) in batch.iter().zip(&read) {
                        let Some(document) = chosen.get(&sampled.row) else { continue };
                        let next = groups.len();
                        let group = *groups.entry(natural.group.clone()).or_insert(next);
                        let category = length.categories.len() - 1;
                        let starts = starts(sampled.tokens, tokens, windows_per_document(tokens));
                        windows.extend(starts.map(|start| {
                            let origin =
                                WindowOrigin { category, document: *document, start, kind: 0 };
                            (origin, group, natural.window(start, tokens, self.needs_text))
                        }));
                    }
                    self.measure_windows(length, windows.into_iter())?;
                }
            }
        }
        let estimates = |length: &MeasuredWindows| {
            (WindowLength(length.tokens as u64), self.label_results(classes, length))
        };
        Ok(LabelResults {
            column: classes.column.clone(),
            good: classes.good.iter().cloned().collect(),
            rows_without_label: classes.null_rows,
            lengths: lengths.iter().map(estimates).collect(),
        })
    }

    fn label_results(&self, labels: &LabelClasses, measured: &MeasuredWindows) -> LabelLength {
        let (classes, documents) = (&measured.categories, measured.sizes());
        let rejections = measured.rejections(self.plan);
        let passes = rejections.passes();
        let passes = passes.as_deref();
        let mut statistics = measured.statistics(self.plan, passes);
        let seed = self.plan.spec.score().random_seed().unwrap_or(DEFAULT_SEED);
        // The random control, which depends only on ids and windows.
        let control_name = free_name(&statistics, "control", RANDOM);
        let doc = format!("Random number by document and window, seed {seed}: the control.");
        let random = measured.random(seed);
        statistics.push(OrientedStatistic::new(control_name.clone(), doc, random));
        for (column, values) in self.options.scores.iter().zip(&measured.scores) {
            // Statistics of the pipeline take precedence over columns with the same name.
            let name = free_name(&statistics, "input", column);
            let value = |origin: &WindowOrigin| values[origin.category][origin.document];
            let values = measured.origins.iter().map(value).collect();
            let doc = format!("The column `{column}` of the input, a document score.");
            statistics.push(OrientedStatistic::new(name, doc, values));
        }
        let good: Vec<bool> = classes.iter().map(|class| labels.good.contains(class)).collect();
        let bootstrap = Bootstrap::new(self.options.seed, &documents);
        let windows = LabelledWindows { measured, good: &good, passes, bootstrap: &bootstrap };
        let mut notes = rejections.notes();
        let is_comparable = good.contains(&true) && good.contains(&false);
        if !is_comparable {
            let side = if good.contains(&true) { "other" } else { "good" };
            notes.push(format!(
                "no results: no document of the {side} classes has {} tokens",
                measured.tokens
            ));
            statistics.clear();
        }
        notes.extend(self.notes(measured.tokens as u64, documents.iter().sum(), true));
        let reports: BTreeMap<_, _> =
            statistics.iter().map(|of| (of.name.clone(), windows.report(of))).collect();
        let cells = reports.iter().map(|(name, report)| (name.clone(), windows.cells(report)));
        let matrix: BTreeMap<_, _> = cells.filter(|(_, cells)| !cells.is_empty()).collect();
        let score = statistics.iter().find(|statistic| statistic.name == "score");
        let without = labels.rows.keys().filter(|class| !classes.contains(class));
        let classes_by_name = windows.sizes();
        LabelLength {
            tokens: measured.tokens as u64,
            sentence: reports.get("score").zip(reports.get(&control_name)).and_then(
                |(score, control)| {
                    report::sentence(score, control, matrix.get("score"), &classes_by_name)
                },
            ),
            classes: classes_by_name,
            classes_without_windows: without.cloned().collect(),
            statistics: statistics.iter().map(|of| (of.name.clone(), of.doc.clone())).collect(),
            guards: rejections.counted(|window| &classes[measured.origins[window].category]),
            best: score.map(|score| windows.best(score)).unwrap_or_default(),
            reports,
            matrix,
            notes,
        }
    }
}
