//! Files of weights that lie elsewhere.

use std::ops::Range;

use super::problem::ModelProblem;

/// Files of weights that are asked for ranges of their bytes.
pub trait RemoteWeights {
    /// Bytes of a file.
    fn length(&self, file: &str) -> Result<u64, ModelProblem>;
    /// Exactly these bytes of a file.
    fn read(&self, file: &str, bytes: Range<u64>) -> Result<Vec<u8>, ModelProblem>;
}
