//! Groups of a saved calibration. Samples of another group cannot be scored with it.

use std::collections::HashSet;

use crate::base::diagnostic::Diagnostic;
use crate::spec::Spec;

/// Groups of the calibration that a pipeline names.
pub type CalibratedGroups = HashSet<Option<String>>;

/// Returns the error for groups that the calibration lacks, given their names or one name with its location.
pub fn missing(spec: &Spec, groups: &str) -> Diagnostic {
    let path = spec.score().calibration.as_ref().map(ToString::to_string).unwrap_or_default();
    let message = format!("the calibration `{path}` has no statistics for group {groups}");
    let hint =
        "calibrate again on a corpus that has all groups, or leave these rows out of the input";
    spec.error("stages.score.calibration", message).hint(hint)
}
