//! What a selection has written and not yet committed, and what became of every measured row and window.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::accounting::Counts;
use crate::report::LabelShares;
use crate::run_directory::RunDirectory;
use crate::select::Sample;
use crate::units::Part;

/// The parts of a selection, staged.
#[derive(Debug, Default)]
pub struct Staged {
    /// Files of `data/`, by their final name.
    pub data: Vec<Part>,
    /// Files of `dropped/` that belong to the selection, below the run directory.
    pub dropped: Vec<Part>,
    /// The records of input files that cannot be opened, if any.
    pub quarantined_files: Option<Part>,
    /// Where every part lies now, and where it will.
    pub moves: Vec<(PathBuf, PathBuf)>,
    /// What became of the measured rows and windows.
    pub fates: Fates,
    labels: Labels,
}

/// What a unit adds to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StagedUnit {
    pub(super) data: Option<Part>,
    pub(super) dropped: Option<Part>,
    pub(super) fates: Fates,
    pub(super) labels: LabelShares,
}

impl Staged {
    /// Adds the parts of a unit, which lie in `folder`, behind those of the units before it.
    pub(super) fn add(&mut self, unit: StagedUnit, folder: &Path, directory: &RunDirectory) {
        if let Some(part) = unit.data {
            self.add_data(part, folder, directory);
        }
        if let Some(part) = unit.dropped {
            self.moves.push((folder.join(&part.path), directory.root.join(&part.path)));
            self.dropped.push(part);
        }
        self.fates.add(unit.fates);
        for (label, samples, kept) in unit.labels {
            count(&mut self.labels, label, samples, kept);
        }
    }

    /// Adds a file of `data/`, which lies in that of `folder`.
    pub(super) fn add_data(&mut self, part: Part, folder: &Path, directory: &RunDirectory) {
        let from = folder.join("data").join(&part.path);
        self.moves.push((from, directory.data().join(&part.path)));
        self.data.push(part);
    }

    /// By label of `output.report_by`, ascending: all samples and those that are kept.
    pub fn label_shares(&self) -> LabelShares {
        shares(self.labels.clone())
    }
}

/// Samples and kept samples, by label.
pub(super) type Labels = BTreeMap<Option<String>, (u64, u64)>;

/// Adds to the counts of a label.
pub(super) fn count(labels: &mut Labels, label: Option<String>, samples: u64, kept: u64) {
    let counts = labels.entry(label).or_default();
    *counts = (counts.0 + samples, counts.1 + kept);
}

/// The counts, ascending by label.
pub(super) fn shares(labels: Labels) -> LabelShares {
    labels.into_iter().map(|(label, (samples, kept))| (label, samples, kept)).collect()
}

/// What became of measured rows and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    /// Rows with at least one kept sample.
    pub rows_kept: u64,
    /// Rows of which nothing is kept.
    pub rows_not_selected: u64,
    /// Samples kept.
    pub kept: u64,
    /// Windows of kept samples.
    pub windows_kept: u64,
    /// Windows that are not kept.
    pub windows_not_selected: u64,
}

impl Fates {
    /// Those of some samples; `windows_of`: the number of windows of a row.
    pub(super) fn of(samples: &[Sample], windows_of: impl Fn(u64) -> u64) -> Self {
        let mut fates = Self::default();
        for samples in samples.chunk_by(|a, b| a.row == b.row) {
            let kept = samples.iter().filter(|sample| sample.keep).count() as u64;
            let windows = windows_of(samples[0].row);
            let windows_kept = if samples[0].window.is_some() { kept } else { kept * windows };
            fates.add(Self {
                rows_kept: u64::from(kept > 0),
                rows_not_selected: u64::from(kept == 0),
                kept,
                windows_kept,
                windows_not_selected: windows - windows_kept,
            });
        }
        fates
    }

    /// Adds those of other samples.
    pub(super) fn add(&mut self, other: Self) {
        self.rows_kept += other.rows_kept;
        self.rows_not_selected += other.rows_not_selected;
        self.kept += other.kept;
        self.windows_kept += other.windows_kept;
        self.windows_not_selected += other.windows_not_selected;
    }

    /// That these are all rows and windows that a unit measured, and that what is kept was written. A violation is a
    /// bug.
    pub(super) fn check(&self, counts: &Counts, written: u64) -> Result<(), String> {
        for (what, kept, rest, all) in [
            ("rows", self.rows_kept, self.rows_not_selected, counts.rows_scored),
            ("windows", self.windows_kept, self.windows_not_selected, counts.windows),
        ] {
            if kept + rest != all {
                return Err(format!(
                    "{all} {what} were measured, but {kept} are kept and {rest} not selected"
                ));
            }
        }
        if self.kept != written {
            return Err(format!("{} samples are kept, {written} were written", self.kept));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_a_window_or_a_sample_that_went_nowhere_is_noticed() {
        let counts = Counts { rows_scored: 3, windows: 7, ..Counts::default() };
        let fates = Fates {
            rows_kept: 1,
            rows_not_selected: 2,
            kept: 2,
            windows_kept: 2,
            windows_not_selected: 5,
        };
        assert_eq!(fates.check(&counts, 2), Ok(()));
        assert!(fates.check(&counts, 1).unwrap_err().contains("1 were written"));
        let row = Fates { rows_kept: 0, ..fates };
        assert!(row.check(&counts, 2).unwrap_err().contains("3 rows were measured"));
        let window = Fates { windows_not_selected: 4, ..fates };
        assert!(window.check(&counts, 2).unwrap_err().contains("7 windows were measured"));
    }
}
