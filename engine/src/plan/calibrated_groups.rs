//! Groups of a saved calibration. Samples of another group cannot be scored with it.

use std::collections::HashSet;

use longsift_stages::contract::Location;

use crate::base::diagnostic::Diagnostic;
use crate::run_directory::calibration::Calibration;
use crate::spec::Spec;

/// Groups of the calibration that a pipeline names.
#[derive(Debug)]
pub struct CalibratedGroups {
    path: String,
    groups: HashSet<Option<String>>,
}

impl CalibratedGroups {
    pub fn new(path: &Location, calibration: &Calibration) -> Self {
        let groups = calibration.groups.iter().map(|group| group.value.clone()).collect();
        Self { path: path.to_string(), groups }
    }

    pub fn contains(&self, group: &Option<String>) -> bool {
        self.groups.contains(group)
    }

    /// Returns the error for groups that the calibration lacks, given their names or one name with its location.
    pub fn missing(&self, spec: &Spec, groups: &str) -> Diagnostic {
        let message =
            format!("the calibration `{}` has no statistics for group {groups}", self.path);
        let hint =
            "calibrate again on a corpus that has all groups, or leave these rows out of the input";
        spec.error("stages.score.calibration", message).hint(hint)
    }
}
