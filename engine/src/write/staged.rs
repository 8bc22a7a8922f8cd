//! Staged parts of a selection, and the outcome of every measured row and window.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::base::counts::{self, Counts};
use crate::run_directory::dropped::NOT_SELECTED;
use crate::run_directory::layout::{PartFolders, RunDirectory};
use crate::run_directory::summary::{LabelCounts, LabelShares};
use crate::run_directory::units::Part;
use crate::select::Sample;

/// Staged parts of a range of units, or of the whole selection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StagedFiles {
    /// Files of `data/`, by their final names.
    pub data: Vec<Part>,
    /// Files of `dropped/` that belong to the selection, relative to the run directory.
    pub dropped: Vec<Part>,
    /// Files of `selection/`, relative to the run directory.
    pub selection: Vec<Part>,
    #[serde(rename = "fates")]
    pub outcomes: Outcomes,
    /// Samples and kept samples by label of `output.report_by`.
    pub labels: LabelShares,
    /// Records of input files that cannot be opened.
    #[serde(skip)]
    pub quarantined_files: Option<Part>,
    /// Current and final path of every part.
    #[serde(skip)]
    pub moves: Vec<(PathBuf, PathBuf)>,
}

impl StagedFiles {
    /// Adds the parts of a range, which are in `folders`, after those of earlier ranges; not its labels.
    pub(super) fn add(&mut self, range: Self, folders: &PartFolders, directory: &RunDirectory) {
        for part in &range.data {
            self.moves.push((folders.data.join(&part.path), directory.data().join(&part.path)));
        }
        for part in range.dropped.iter().chain(&range.selection) {
            self.moves.push((folders.records.join(&part.path), directory.root.join(&part.path)));
        }
        self.data.extend(range.data);
        self.dropped.extend(range.dropped);
        self.selection.extend(range.selection);
        self.outcomes.add(&range.outcomes);
    }
}

pub type Labels = BTreeMap<Option<String>, LabelCounts>;

pub(super) fn count(labels: &mut Labels, label: Option<String>, more: &LabelCounts) {
    let counts = labels.entry(label).or_default();
    counts.samples += more.samples;
    counts.kept += more.kept;
    counts.compared.resize(more.compared.len(), 0);
    counts.compared.iter_mut().zip(&more.compared).for_each(|(kept, more)| *kept += more);
}

/// Outcomes of measured rows and windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Rows with at least one kept sample.
    pub rows_kept: u64,
    /// Rows without kept samples, by reason.
    pub rows_dropped: BTreeMap<String, u64>,
    pub kept: u64,
    pub windows_kept: u64,
    /// Windows of kept samples without a score, because sampling excluded them from a measure.
    #[serde(default)]
    pub windows_kept_not_measured: u64,
    /// Windows that are not kept, by reason.
    pub windows_dropped: BTreeMap<String, u64>,
}

impl Outcomes {
    /// Counts the outcomes of samples. `row_windows` returns the number of windows of a row.
    ///
    /// A row without kept samples has the reason [`NOT_SELECTED`] if any of its samples has, otherwise that of the first
    /// sample.
    pub(super) fn count(samples: &[Sample], row_windows: impl Fn(u64) -> u64) -> Self {
        let mut outcomes = Self::default();
        for samples in samples.chunk_by(|a, b| a.row == b.row) {
            // A document is one sample, however many windows it has.
            let windows = if samples[0].window.is_some() { 1 } else { row_windows(samples[0].row) };
            for sample in samples {
                match &sample.reason {
                    None => {
                        outcomes.windows_kept += windows;
                        outcomes.windows_kept_not_measured +=
                            if sample.score.is_nan() { windows } else { 0 };
                    }
                    Some(reason) => counts::count(&mut outcomes.windows_dropped, reason, windows),
                }
            }
            let kept = samples.iter().filter(|sample| sample.keep()).count() as u64;
            outcomes.kept += kept;
            if kept > 0 {
                outcomes.rows_kept += 1;
                continue;
            }
            let mut reasons = samples.iter().filter_map(|sample| sample.reason.as_deref());
            let first = reasons.clone().next().unwrap_or(NOT_SELECTED);
            let ranked = reasons.any(|reason| reason == NOT_SELECTED);
            let reason = if ranked { NOT_SELECTED } else { first };
            counts::count(&mut outcomes.rows_dropped, reason, 1);
        }
        outcomes
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.rows_kept += other.rows_kept;
        self.kept += other.kept;
        self.windows_kept += other.windows_kept;
        self.windows_kept_not_measured += other.windows_kept_not_measured;
        for (own, others) in [
            (&mut self.rows_dropped, &other.rows_dropped),
            (&mut self.windows_dropped, &other.windows_dropped),
        ] {
            for (reason, number) in others {
                counts::count(own, reason, *number);
            }
        }
    }

    /// Checks that outcomes cover all that a unit measured, and that `expected` rows were written. A violation is a bug.
    pub(super) fn check(&self, counts: &Counts, expected: u64, written: u64) -> Result<(), String> {
        for (what, kept, rest, all) in [
            ("rows", self.rows_kept, &self.rows_dropped, counts.rows_scored),
            ("windows", self.windows_kept, &self.windows_dropped, counts.windows),
        ] {
            let rest: u64 = rest.values().sum();
            if kept + rest != all {
                return Err(format!(
                    "{all} {what} were measured, but {kept} are kept and {rest} not selected"
                ));
            }
        }
        if expected != written {
            return Err(format!("expected {expected} rows in the output, {written} were written"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaccounted_rows_windows_and_samples_are_detected() {
        let counts = Counts { rows_scored: 3, windows: 7, ..Counts::default() };
        let reasons = |reasons: &[(&str, u64)]| {
            reasons.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
        };
        let outcomes = Outcomes {
            rows_kept: 1,
            rows_dropped: reasons(&[(NOT_SELECTED, 2)]),
            kept: 2,
            windows_kept: 2,
            windows_kept_not_measured: 0,
            windows_dropped: reasons(&[("guard_copy_share", 1), (NOT_SELECTED, 4)]),
        };
        assert_eq!(outcomes.check(&counts, 2, 2), Ok(()));
        assert!(outcomes.check(&counts, 2, 1).unwrap_err().contains("1 were written"));
        let row = Outcomes { rows_kept: 0, ..outcomes.clone() };
        assert!(row.check(&counts, 2, 2).unwrap_err().contains("3 rows were measured"));
        let window = Outcomes { windows_dropped: reasons(&[(NOT_SELECTED, 4)]), ..outcomes };
        assert!(window.check(&counts, 2, 2).unwrap_err().contains("7 windows were measured"));
    }

    #[test]
    fn a_row_that_was_ranked_is_not_counted_for_a_guard() {
        let sample = |row, reason: Option<&str>| Sample {
            row,
            window: Some(0),
            tokens: 1,
            group: None,
            used: Vec::new(),
            statistics: Vec::new(),
            percentile: None,
            compared: Vec::new(),
            score: 0.0,
            reason: reason.map(Into::into),
        };
        let (guard, missing) = (Some("guard_copy_share"), Some("no_copy_share"));
        let samples = [
            sample(0, guard),
            sample(0, Some(NOT_SELECTED)),
            sample(1, guard),
            sample(1, missing),
            sample(2, missing),
            sample(2, None),
        ];
        let outcomes = Outcomes::count(&samples, |_| 2);
        let count = |reasons: &BTreeMap<String, u64>, reason: &str| reasons.get(reason).copied();
        assert_eq!((outcomes.rows_kept, outcomes.kept, outcomes.windows_kept), (1, 1, 1));
        assert_eq!(count(&outcomes.rows_dropped, NOT_SELECTED), Some(1));
        assert_eq!(count(&outcomes.rows_dropped, "guard_copy_share"), Some(1));
        assert_eq!(count(&outcomes.windows_dropped, "guard_copy_share"), Some(2));
        assert_eq!(count(&outcomes.windows_dropped, "no_copy_share"), Some(2));
    }
}
