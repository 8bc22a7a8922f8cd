//! What can be wrong with an input or an output, in a form that a person can act on.

use std::fmt;

use longsift_stages::model::{self, ModelProblem};

use crate::storage::error::{ErrorKind, StorageError};

/// Who has to act on a problem. Decides the exit code: 1, 2, 3, 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The authors of longsift.
    Bug,
    /// The author of the pipeline file.
    Settings,
    /// The owner of the data.
    Data,
    /// The operator of the machine; a retry may help.
    Machine,
}

/// A problem with a data set: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataProblem {
    /// Who has to act.
    pub kind: ProblemKind,
    /// What happened and why, with the values involved; lower case, no full stop.
    pub message: String,
    /// The file, relative to the input root.
    pub file: Option<String>,
    /// The row group in the file, 0-based.
    pub row_group: Option<usize>,
    /// The row in the file, 0-based.
    pub row: Option<u64>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl DataProblem {
    /// A problem of the given kind, as yet without a place.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), file: None, row_group: None, row: None, hint: None }
    }

    /// A mistake in the pipeline file.
    pub fn settings(message: impl Into<String>) -> Self {
        Self::new(ProblemKind::Settings, message)
    }

    /// Data that cannot be used.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ProblemKind::Data, message)
    }

    /// A failure of the machine.
    pub fn machine(message: impl Into<String>) -> Self {
        Self::new(ProblemKind::Machine, message)
    }

    /// A file of the input that cannot be read. What is wrong with an address is the pipeline's.
    pub(super) fn unread(error: &StorageError) -> Self {
        let kind = match error.kind {
            ErrorKind::Changed => ProblemKind::Data,
            kind if kind.may_pass() || !error.at.is_address() => ProblemKind::Machine,
            _ => ProblemKind::Settings,
        };
        Self { hint: error.hint(), ..Self::new(kind, error.to_string()) }
    }

    /// The same problem, in `file`.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// The same problem, in this row group.
    #[must_use]
    pub fn in_row_group(mut self, row_group: usize) -> Self {
        self.row_group = Some(row_group);
        self
    }

    /// The same problem, at this row.
    #[must_use]
    pub fn at_row(mut self, row: u64) -> Self {
        self.row = Some(row);
        self
    }

    /// The same problem, with advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for DataProblem {
    /// `part-00017.parquet, row group 3, row 1204: …`, without the hint.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row_group = self.row_group.map(|row_group| format!("row group {row_group}"));
        let row = self.row.map(|row| format!("row {row}"));
        let place: Vec<String> =
            [self.file.clone(), row_group, row].into_iter().flatten().collect();
        if !place.is_empty() {
            write!(formatter, "{}: ", place.join(", "))?;
        }
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for DataProblem {}

impl From<StorageError> for DataProblem {
    /// A file operation that failed is the machine's, unless its caller knows better.
    fn from(error: StorageError) -> Self {
        Self { hint: error.hint(), ..Self::machine(error.to_string()) }
    }
}

impl From<ModelProblem> for DataProblem {
    /// What the hub says of a data set.
    fn from(problem: ModelProblem) -> Self {
        let ModelProblem { kind, message, hint } = problem;
        let kind = match kind {
            model::ProblemKind::Settings => ProblemKind::Settings,
            model::ProblemKind::Checkpoint => ProblemKind::Data,
            model::ProblemKind::Machine => ProblemKind::Machine,
        };
        Self { hint, ..Self::new(kind, message) }
    }
}

/// Why a row cannot be scored: what the quarantine table says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowProblem {
    /// `null_text`, `empty_text`, `invalid_utf8`, `null_tokens`, `empty_tokens`, `bad_token`, `unreadable` or the name of a
    /// limit.
    pub code: &'static str,
    /// The same for people, with the values involved.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_comes_before_the_message() {
        let problem = DataProblem::data("column `text` is null")
            .in_file("a.parquet")
            .in_row_group(3)
            .at_row(1204);
        assert_eq!(problem.to_string(), "a.parquet, row group 3, row 1204: column `text` is null");
        assert_eq!(DataProblem::data("no place").to_string(), "no place");
    }
}
