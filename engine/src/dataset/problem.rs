//! Actionable problems with inputs, outputs, checkpoints and storage.

use std::fmt;

use longsift_stages::model::{ModelProblem, ProblemKind};
use longsift_stages::tokenize::encoder::TokenizerProblem;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::storage::error::{ErrorKind, StorageError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataProblem {
    pub blame: Blame,
    /// Cause, with the values involved; lower case, no full stop.
    pub message: String,
    /// File (relative to the input root), row group and row, as far as they are known.
    pub(super) location: Vec<String>,
    pub hint: Option<String>,
}

impl DataProblem {
    pub fn new(blame: Blame, message: impl Into<String>) -> Self {
        Self { blame, message: message.into(), location: Vec::new(), hint: None }
    }

    pub fn settings(message: impl Into<String>) -> Self {
        Self::new(Blame::Pipeline, message)
    }

    pub fn data(message: impl Into<String>) -> Self {
        Self::new(Blame::Data, message)
    }

    pub fn machine(message: impl Into<String>) -> Self {
        Self::new(Blame::Machine, message)
    }

    /// Returns the problem of an input file that cannot be read. An unusable address is the pipeline's fault.
    pub(super) fn unread(error: &StorageError) -> Self {
        let blame = match error.kind {
            ErrorKind::Changed => Blame::Data,
            kind if kind.is_transient() || !error.at.is_address() => Blame::Machine,
            _ => Blame::Pipeline,
        };
        Self { hint: error.hint(), ..Self::new(blame, error.to_string()) }
    }

    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> Self {
        self.location.insert(0, file.into());
        self
    }

    #[must_use]
    pub fn in_row_group(mut self, row_group: usize) -> Self {
        self.location.push(format!("row group {row_group}"));
        self
    }

    #[must_use]
    pub fn at_row(mut self, row: u64) -> Self {
        self.location.push(format!("row {row}"));
        self
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for DataProblem {
    /// Formats `part-00017.parquet, row group 3, row 1204: …`, without the hint.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.location.is_empty() {
            write!(formatter, "{}: ", self.location.join(", "))?;
        }
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for DataProblem {}

impl From<StorageError> for DataProblem {
    /// Blames the machine; callers set another blame if it applies.
    fn from(error: StorageError) -> Self {
        Self { hint: error.hint(), ..Self::machine(error.to_string()) }
    }
}

impl From<ModelProblem> for DataProblem {
    fn from(problem: ModelProblem) -> Self {
        let blame = match problem.kind {
            ProblemKind::Settings => Blame::Pipeline,
            ProblemKind::Checkpoint => Blame::Data,
            ProblemKind::Machine | ProblemKind::Memory | ProblemKind::Device => Blame::Machine,
        };
        Self { hint: problem.hint, ..Self::new(blame, problem.message) }
    }
}

impl From<DataProblem> for Diagnostic {
    fn from(problem: DataProblem) -> Self {
        let diagnostic = Self::error(problem.blame, problem.to_string());
        match problem.hint {
            Some(hint) => diagnostic.hint(hint),
            None => diagnostic,
        }
    }
}

impl From<ModelProblem> for Diagnostic {
    fn from(problem: ModelProblem) -> Self {
        DataProblem::from(problem).into()
    }
}

impl From<StorageError> for Diagnostic {
    fn from(error: StorageError) -> Self {
        DataProblem::from(error).into()
    }
}

impl From<TokenizerProblem> for Diagnostic {
    fn from(problem: TokenizerProblem) -> Self {
        match &problem {
            TokenizerProblem::Unreadable { problem: error, .. }
                if ErrorKind::from_io(error).is_transient() =>
            {
                Self::error(Blame::Machine, problem.to_string())
            }
            TokenizerProblem::Invalid { .. } => {
                Self::error(Blame::Data, problem.to_string()).hint(problem.hint())
            }
            _ => Self::error(Blame::Pipeline, problem.to_string()).hint(problem.hint()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_location_precedes_the_message() {
        let problem = DataProblem::data("column `text` is null")
            .in_file("a.parquet")
            .in_row_group(3)
            .at_row(1204);
        assert_eq!(problem.to_string(), "a.parquet, row group 3, row 1204: column `text` is null");
        assert_eq!(DataProblem::data("no place").to_string(), "no place");
    }
}
