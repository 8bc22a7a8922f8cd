//! The select phase: scores of all windows → what is kept, and the calibration that says why.
//!
//! Needs 64 bytes of memory per window and reads the light columns of the score tables once.

mod calibration;
mod drift;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use longsift_stages::filter::keep_above;
use longsift_stages::score::Score;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::dataset;
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::plan::Plan;
use crate::run_directory::RunDirectory;
use crate::scores::{self, ScoredWindow};
use crate::spec::pipeline::Samples;
use crate::units::UnitRecord;

pub use calibration::{CalibratedGroup, Calibration};
use calibration::{own_calibration, saved_calibration};
pub use drift::GroupDrift;

/// A window, or a document, that has a score.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Row of the document in its file.
    pub row: u64,
    /// Index of the window; none for a document.
    pub window: Option<u32>,
    /// Tokens of the output that it would be.
    pub tokens: u64,
    /// Mean over heads (and windows, for a document).
    pub dependency_strength: f64,
    /// Mean over heads (and windows, for a document).
    pub far_variance: f64,
    /// Index of its group.
    group: usize,
    /// The score.
    pub score: f64,
    /// Whether it is kept.
    pub keep: bool,
}

/// What is kept.
#[derive(Debug)]
pub struct Selection {
    samples: Vec<Sample>,
    units: Vec<Range<usize>>,
    /// Figures and thresholds of the groups.
    pub calibration: Calibration,
    /// With a saved calibration: how far each group has moved from it.
    pub drift: Vec<GroupDrift>,
    /// Hashes of ids that occur more than once.
    repeated_ids: HashSet<u128>,
    /// What a user should know.
    pub warnings: Vec<Diagnostic>,
}

impl Selection {
    /// The samples of a unit, in input order.
    pub fn of_unit(&self, unit: usize) -> &[Sample] {
        &self.samples[self.units[unit].clone()]
    }

    /// Whether another document has the same id.
    pub fn is_repeated(&self, id: &str) -> bool {
        self.repeated_ids.contains(&hash(id))
    }
}

/// Scores and ranks the samples of all units, whose score tables are in `directory`.
pub fn select(
    plan: &Plan,
    directory: &RunDirectory,
    records: &[UnitRecord],
    score_settings: &Map<String, Value>,
) -> Result<Selection> {
    let mut table = Table::default();
    for (index, record) in records.iter().enumerate() {
        table.read(plan, directory, index, record)?;
    }
    table.variance_errors.check(plan.spec.score())?;
    let mut warnings = table.warnings();
    let calibration = match &plan.spec.score().calibration {
        Some(path) => saved_calibration(plan, path, score_settings, &table)?,
        None => own_calibration(plan, score_settings, &mut table),
    };
    let mut drift = Vec::new();
    if plan.spec.score().calibration.is_some() {
        drift = table.apply(plan, &calibration);
        warnings.extend(drift.iter().filter_map(much_drift));
    }
    warnings.extend(table.empty_groups());
    let Table { samples, units, repeated_ids, .. } = table;
    Ok(Selection { samples, units, calibration, drift, repeated_ids, warnings })
}

/// How far the sampled variances may be off.
#[derive(Default)]
struct VarianceErrors {
    windows: u64,
    squares: f64,
}

impl VarianceErrors {
    fn add(&mut self, window: &ScoredWindow) {
        if let Some(error) = window.far_variance_error
            && window.far_variance > 0.0
        {
            self.windows += 1;
            self.squares += (error / window.far_variance).powi(2);
        }
    }

    /// Refuses a uniformity term that is mostly noise.
    fn check(&self, score: &Score) -> Result<()> {
        let error = (self.squares / self.windows.max(1) as f64).sqrt();
        if score.alpha == 0.0 || error <= score.max_variance_error {
            return Ok(());
        }
        let message = format!(
            "the far variance of sampled rows is off by {:.0} % (root mean square over {} windows), and \
             `score.max_variance_error` allows {:.0} %",
            100.0 * error,
            crate::report::count(self.windows),
            100.0 * score.max_variance_error
        );
        Err(Diagnostic::error(Blame::Pipeline, message)
            .hint(
                "the scores are kept: set `alpha: 0` to rank by dependency strength alone, or raise \
                 `max_variance_error` to accept the noise; more rows or `rows: all` measure again",
            )
            .into())
    }
}

/// The samples of all units while they are being selected from.
#[derive(Default)]
struct Table {
    samples: Vec<Sample>,
    units: Vec<Range<usize>>,
    groups: BTreeMap<Option<String>, usize>,
    lengths: HashMap<usize, (u64, u64)>,
    windows: u64,
    overlapping: u64,
    variance_errors: VarianceErrors,
    seen_ids: HashSet<u128>,
    repeated_ids: HashSet<u128>,
}

impl Table {
    fn read(
        &mut self,
        plan: &Plan,
        directory: &RunDirectory,
        index: usize,
        record: &UnitRecord,
    ) -> Result<()> {
        let unit = &plan.units[index];
        let labels = match &plan.spec.score().within {
            Some(column) if record.counts.windows > 0 => {
                let unreadable = record.unreadable_rows();
                Some(dataset::read_labels(&plan.dataset, unit, column, &unreadable)?)
            }
            _ => None,
        };
        let start = self.samples.len();
        let mut document: Vec<ScoredWindow> = Vec::new();
        scores::read(&directory.root.join(&record.scores.path), |window| {
            if document.first().is_some_and(|first| first.input_row != window.input_row) {
                self.document(plan, &document, labels.as_deref(), unit.first_row);
                document.clear();
            }
            document.push(window);
            Ok(())
        })?;
        self.document(plan, &document, labels.as_deref(), unit.first_row);
        self.units.push(start..self.samples.len());
        Ok(())
    }

    /// Adds the samples of one document, given all its windows.
    fn document(
        &mut self,
        plan: &Plan,
        windows: &[ScoredWindow],
        labels: Option<&[Option<String>]>,
        first_row: u64,
    ) {
        let Some(first) = windows.first() else { return };
        let label =
            labels.and_then(|labels| labels[(first.input_row - first_row) as usize].clone());
        let next = self.groups.len();
        let group = *self.groups.entry(label).or_insert(next);
        let id = hash(&first.id);
        if !self.seen_ids.insert(id) {
            self.repeated_ids.insert(id);
        }
        self.windows += windows.len() as u64;
        self.overlapping +=
            windows.windows(2).filter(|pair| pair[1].tokens.0 < pair[0].tokens.1).count() as u64;
        for window in windows {
            self.variance_errors.add(window);
            let (shortest, longest) =
                self.lengths.entry(group).or_insert((window.tokens_scored, window.tokens_scored));
            (*shortest, *longest) =
                ((*shortest).min(window.tokens_scored), (*longest).max(window.tokens_scored));
        }
        let sample = |window, tokens, dependency_strength, far_variance| Sample {
            row: first.input_row,
            window,
            tokens,
            dependency_strength,
            far_variance,
            group,
            score: f64::NAN,
            keep: false,
        };
        match plan.spec.pipeline.output.samples {
            Samples::Windows => self.samples.extend(windows.iter().map(|window| {
                let tokens = window.tokens.1 - window.tokens.0;
                sample(Some(window.window), tokens, window.dependency_strength, window.far_variance)
            })),
            Samples::Documents => {
                let how = plan.spec.score().document_score.unwrap_or_default();
                let aggregate = |figure: &dyn Fn(&ScoredWindow) -> f64| {
                    how.of(&windows.iter().map(figure).collect::<Vec<f64>>())
                };
                let strength = aggregate(&|window| window.dependency_strength);
                let variance = aggregate(&|window| window.far_variance);
                self.samples.push(sample(None, first.tokens_total, strength, variance));
            }
        }
    }

    /// The indices of a group's samples, in input order.
    fn members(&self) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.groups.len()];
        for (index, sample) in self.samples.iter().enumerate() {
            members[sample.group].push(index);
        }
        members
    }

    fn columns(&self, members: &[usize]) -> (Vec<f64>, Vec<f64>) {
        members
            .iter()
            .map(|&index| {
                (self.samples[index].dependency_strength, self.samples[index].far_variance)
            })
            .unzip()
    }

    /// Scores by stored figures, keeps by stored thresholds. Every group is known by now. Returns how far each has moved.
    fn apply(&mut self, plan: &Plan, calibration: &Calibration) -> Vec<GroupDrift> {
        let mut drift = Vec::new();
        let members = self.members();
        for (value, group) in &self.groups {
            let known = calibration.groups.iter().find(|known| known.value == *value);
            let known = known.expect("unknown groups were refused");
            let figures = &known.figures;
            let members = &members[*group];
            let (strengths, variances) = self.columns(members);
            let scores = plan.spec.score().scores(figures, &strengths, &variances);
            let keep = figures.threshold.map_or_else(
                || vec![false; scores.len()],
                |threshold| keep_above(&scores, threshold),
            );
            let now = plan.spec.score().figures(&strengths, &variances);
            drift.push(GroupDrift::of(known, &now, &scores, &keep));
            for ((&index, score), keep) in members.iter().zip(scores).zip(keep) {
                (self.samples[index].score, self.samples[index].keep) = (score, keep);
            }
        }
        drift
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        let mut warnings = Vec::new();
        for (value, group) in &self.groups {
            let Some((shortest, longest)) = self.lengths.get(group) else { continue };
            if shortest != longest {
                warnings.push(
                    Diagnostic::warning(Blame::Pipeline, format!(
                        "{} has windows of {shortest} to {longest} tokens: scores of different lengths do not compare",
                        if self.is_one_group() {
                            "the input".to_owned()
                        } else {
                            format!("group {}", name(value.as_deref()))
                        }
                    ))
                    .hint("use `windows: disjoint` or `both-ends` with `short_documents: drop`, or `score.within` a length class"),
                );
            }
        }
        if self.overlapping > 0 {
            let share = 100.0 * self.overlapping as f64 / self.windows as f64;
            warnings.push(
                Diagnostic::warning(Blame::Pipeline, format!(
                    "{} of {} windows ({share:.1} %) share tokens with the window before them, as `both-ends` cuts them",
                    self.overlapping, self.windows
                ))
                .hint("where a training token must not come twice, use `windows: disjoint`"),
            );
        }
        if !self.repeated_ids.is_empty() {
            warnings.push(
                Diagnostic::warning(Blame::Pipeline, format!(
                    "{} ids occur more than once; their `longsift_sample_id` gets the file and the row",
                    self.repeated_ids.len()
                ))
                .hint("a unique `input.id_column` makes sample ids shorter and joins safe"),
            );
        }
        warnings
    }

    /// Whether there is only the group of a run without `within` (or of rows without a value).
    fn is_one_group(&self) -> bool {
        self.groups.keys().all(Option::is_none)
    }

    fn empty_groups(&self) -> Vec<Diagnostic> {
        let mut kept = vec![false; self.groups.len()];
        for sample in &self.samples {
            kept[sample.group] |= sample.keep;
        }
        let empty: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, group)| !kept[**group])
            .map(|(value, _)| name(value.as_deref()))
            .collect();
        if empty.is_empty() {
            return Vec::new();
        }
        let message = if self.is_one_group() {
            "nothing was kept".to_owned()
        } else {
            format!("nothing was kept of group {}", empty.join(", "))
        };
        vec![Diagnostic::warning(Blame::Pipeline, message)]
    }
}

/// A warning where the threshold of a calibration no longer means what it meant.
fn much_drift(drift: &GroupDrift) -> Option<Diagnostic> {
    let index = drift.stability_index.filter(|&index| index > drift::MUCH && drift.count >= 100)?;
    let group = drift.value.as_ref().map_or(String::new(), |value| format!(" of group `{value}`"));
    let message = format!(
        "the scores{group} have moved from the calibration: stability index {index:.2}, much from {} on",
        drift::MUCH
    );
    let hint = "look at what has changed in the input; to accept it, calibrate anew over a corpus that has it";
    Some(Diagnostic::warning(Blame::Data, message).hint(hint))
}

/// A group as people call it.
fn name(value: Option<&str>) -> String {
    value.map_or("(null)".to_owned(), |value| format!("`{value}`"))
}

/// 128 bits of an id: two of a thousand million ids coincide with a probability of 10^-21.
fn hash(id: &str) -> u128 {
    let digest = Sha256::digest(id);
    u128::from_le_bytes(digest[..16].try_into().expect("a SHA-256 has 32 bytes"))
}
