//! Problems of the parts as diagnostics: what the parts call settings, data and machine is blamed accordingly.

use longsift_stages::model::{ModelProblem, ProblemKind as ModelKind};
use longsift_stages::tokenize::encoder::TokenizerProblem;

use super::problem::{DataProblem, ProblemKind};
use super::read::ReadError;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::storage::error::{ErrorKind, StorageError};

impl From<DataProblem> for Diagnostic {
    fn from(problem: DataProblem) -> Self {
        let blame = match problem.kind {
            ProblemKind::Bug => Blame::Bug,
            ProblemKind::Settings => Blame::Pipeline,
            ProblemKind::Data => Blame::Data,
            ProblemKind::Machine => Blame::Machine,
        };
        with_hint(Self::error(blame, problem.to_string()), problem.hint)
    }
}

impl From<ReadError> for Diagnostic {
    fn from(error: ReadError) -> Self {
        DataProblem::from(error).into()
    }
}

impl From<ModelProblem> for Diagnostic {
    fn from(problem: ModelProblem) -> Self {
        let blame = match problem.kind {
            ModelKind::Settings => Blame::Pipeline,
            ModelKind::Checkpoint => Blame::Data,
            ModelKind::Machine => Blame::Machine,
        };
        with_hint(Self::error(blame, problem.message), problem.hint)
    }
}

impl From<TokenizerProblem> for Diagnostic {
    fn from(problem: TokenizerProblem) -> Self {
        match &problem {
            TokenizerProblem::Unreadable { problem: error, .. }
                if ErrorKind::of(error).may_pass() =>
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

impl From<StorageError> for Diagnostic {
    fn from(error: StorageError) -> Self {
        with_hint(Self::error(Blame::Machine, error.to_string()), error.hint())
    }
}

fn with_hint(diagnostic: Diagnostic, hint: Option<String>) -> Diagnostic {
    match hint {
        Some(hint) => diagnostic.hint(hint),
        None => diagnostic,
    }
}
