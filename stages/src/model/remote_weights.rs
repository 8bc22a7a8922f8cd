//! Access to remote weight files.

use std::ops::Range;

use super::problem::ModelProblem;

/// Remote weight files that are read by byte ranges.
pub trait RemoteWeights {
    fn length(&self, file: &str) -> Result<u64, ModelProblem>;
    /// Reads exactly these bytes of a file.
    fn read(&self, file: &str, bytes: Range<u64>) -> Result<Vec<u8>, ModelProblem>;
}
