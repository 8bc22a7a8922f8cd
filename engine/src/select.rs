//! The select phase: scores of all windows → what is kept, and the calibration that says why.
//!
//! Reads the light columns of the score tables once, units in parallel. Memory, at most: 20 bytes per sample (28 with a
//! budget of tokens) and 16 per document while they are read, about 60 per sample while a group of nearly all is
//! ranked. 9 per sample stay.

mod calibration;
mod drift;
mod samples;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use longsift_stages::filter::keep_above;
use serde_json::{Map, Value};

use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::plan::Plan;
use crate::run_directory::RunDirectory;
use crate::scores::ScoredWindow;
use crate::units::UnitRecord;

pub use calibration::{CalibratedGroup, Calibration};
use calibration::{own_calibration, saved_calibration};
pub use drift::GroupDrift;
pub use samples::Sample;
use samples::{ByGroup, Table, hash};

/// What is kept.
#[derive(Debug)]
pub struct Selection {
    /// By sample, in input order.
    scores: Vec<f64>,
    keep: Vec<bool>,
    /// By unit, its samples.
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
    /// Whether anything of a unit is kept.
    pub fn keeps_any(&self, unit: usize) -> bool {
        self.keep[self.units[unit].clone()].contains(&true)
    }

    /// The samples of a unit in input order, given its measured windows by row.
    ///
    /// # Errors
    /// These are not the windows that were selected from.
    pub fn of_unit(
        &self,
        plan: &Plan,
        unit: usize,
        windows: &BTreeMap<u64, Vec<ScoredWindow>>,
    ) -> Result<Vec<Sample>> {
        let range = self.units[unit].clone();
        let mut samples: Vec<Sample> =
            windows.values().flat_map(|document| Sample::of_document(plan, document)).collect();
        if samples.len() != range.len() {
            let message = format!(
                "the scores of unit {} of `{}` changed while they were selected from: {} samples, before {}",
                plan.units[unit].name(),
                plan.units[unit].file_path,
                samples.len(),
                range.len()
            );
            let hint = "let no other program write into the run directory, and run again";
            return Err(Diagnostic::error(Blame::Machine, message).hint(hint).into());
        }
        let decided = self.scores[range.clone()].iter().zip(&self.keep[range]);
        for (sample, (&score, &keep)) in samples.iter_mut().zip(decided) {
            (sample.score, sample.keep) = (score, keep);
        }
        Ok(samples)
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
    let mut table = Table::read(plan, directory, records)?;
    table.variance_errors.check(plan.spec.score())?;
    let repeated_ids = table.take_repeated_ids();
    let mut warnings = warnings(&table, repeated_ids.len());
    let samples = table.by_group();
    let mut decided = Decided::of(&samples);
    let mut drift = Vec::new();
    let calibration = match &plan.spec.score().calibration {
        Some(path) => {
            let calibration = saved_calibration(plan, path, score_settings, &table)?;
            drift = apply(plan, &calibration, &table, &samples, &mut decided);
            warnings.extend(drift.iter().filter_map(much_drift));
            calibration
        }
        None => own_calibration(plan, score_settings, &table, &samples, &mut decided),
    };
    warnings.extend(empty_groups(&table, &samples, &decided));
    let ByGroup { order, .. } = samples;
    let (scores, keep) = (order.spread(decided.scores), order.spread(decided.keep));
    let units = table.units;
    Ok(Selection { scores, keep, units, calibration, drift, repeated_ids, warnings })
}

/// What was decided of every sample, group by group.
struct Decided {
    scores: Vec<f64>,
    keep: Vec<bool>,
}

impl Decided {
    /// Nothing yet.
    fn of(samples: &ByGroup) -> Self {
        Self { scores: vec![f64::NAN; samples.len()], keep: vec![false; samples.len()] }
    }

    fn set(&mut self, range: Range<usize>, scores: &[f64], keep: &[bool]) {
        self.scores[range.clone()].copy_from_slice(scores);
        self.keep[range].copy_from_slice(keep);
    }
}

/// Scores by stored figures, keeps by stored thresholds. Every group is known by now. Returns how far each has moved.
fn apply(
    plan: &Plan,
    calibration: &Calibration,
    table: &Table,
    samples: &ByGroup,
    decided: &mut Decided,
) -> Vec<GroupDrift> {
    let score = plan.spec.score();
    let mut drift = Vec::new();
    for (value, &group) in &table.groups {
        let known = calibration.groups.iter().find(|known| known.value == *value);
        let known = known.expect("unknown groups were refused");
        let figures = &known.figures;
        let (strengths, variances, _) = samples.of(group);
        let scores = score.scores(figures, strengths, variances);
        let keep = figures
            .threshold
            .map_or_else(|| vec![false; scores.len()], |threshold| keep_above(&scores, threshold));
        let now = score.figures(strengths, variances);
        drift.push(GroupDrift::of(known, &now, &scores, &keep));
        decided.set(samples.order.range(group), &scores, &keep);
    }
    drift
}

fn warnings(table: &Table, repeated_ids: usize) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    for (value, group) in &table.groups {
        let (shortest, longest) = table.lengths[*group as usize];
        if shortest != longest {
            warnings.push(
                Diagnostic::warning(Blame::Pipeline, format!(
                    "{} has windows of {shortest} to {longest} tokens: scores of different lengths do not compare",
                    if table.is_one_group() {
                        "the input".to_owned()
                    } else {
                        format!("group {}", name(value.as_deref()))
                    }
                ))
                .hint("use `windows: disjoint` or `both-ends` with `short_documents: drop`, or `score.within` a length class"),
            );
        }
    }
    if table.overlapping > 0 {
        let share = 100.0 * table.overlapping as f64 / table.windows as f64;
        warnings.push(
            Diagnostic::warning(Blame::Pipeline, format!(
                "{} of {} windows ({share:.1} %) share tokens with the window before them, as `both-ends` cuts them",
                table.overlapping, table.windows
            ))
            .hint("where a training token must not come twice, use `windows: disjoint`"),
        );
    }
    if repeated_ids > 0 {
        warnings.push(
            Diagnostic::warning(Blame::Pipeline, format!(
                "{repeated_ids} ids occur more than once; their `longsift_sample_id` gets the file and the row"
            ))
            .hint("a unique `input.id_column` makes sample ids shorter and joins safe"),
        );
    }
    warnings
}

fn empty_groups(table: &Table, samples: &ByGroup, decided: &Decided) -> Option<Diagnostic> {
    let keeps_none = |group: u32| !decided.keep[samples.order.range(group)].contains(&true);
    let empty: Vec<String> = table
        .groups
        .iter()
        .filter(|(_, group)| keeps_none(**group))
        .map(|(value, _)| name(value.as_deref()))
        .collect();
    if empty.is_empty() {
        return None;
    }
    let message = if table.is_one_group() {
        "nothing was kept".to_owned()
    } else {
        format!("nothing was kept of group {}", empty.join(", "))
    };
    Some(Diagnostic::warning(Blame::Pipeline, message))
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
