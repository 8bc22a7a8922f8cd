//! Problems of a model folder, and their causes.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde::Serialize;
use thiserror::Error;

use crate::contract::Signature;

/// A problem that makes a model folder unusable. Messages are lower case and name the file or the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Error)]
#[error("{message}")]
pub struct ModelProblem {
    /// Cause, which determines the exit code.
    pub kind: ProblemKind,
    pub message: String,
    pub hint: Option<String>,
}

/// Cause of a [`ModelProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProblemKind {
    /// The pipeline names a model that this program does not support (exit code 2).
    Settings,
    /// The checkpoint is damaged, incomplete or contradicts itself (exit code 3).
    Checkpoint,
    /// A machine failure: reading or writing failed, or the disk is full (exit code 4, a retry may help).
    Machine,
    /// A device has too little free memory; fewer windows at a time may fit (otherwise exit code 4).
    Memory,
    /// A device failed for another reason; another device may not (otherwise exit code 4).
    Device,
}

impl ModelProblem {
    pub fn settings(message: impl Into<String>) -> Self {
        Self { kind: ProblemKind::Settings, message: message.into(), hint: None }
    }

    pub fn checkpoint(message: impl Into<String>) -> Self {
        Self { kind: ProblemKind::Checkpoint, message: message.into(), hint: None }
    }

    pub fn machine(message: impl Into<String>) -> Self {
        Self { kind: ProblemKind::Machine, message: message.into(), hint: None }
    }

    /// Creates the problem of a file with an invalid content, or by its first bytes with the content of another type than
    /// `expected`, such as a Git LFS pointer.
    pub(crate) fn invalid(file: &str, expected: &str, start: &[u8], what: &str) -> Self {
        match Signature::detect(start).filter(|found| found.name != expected) {
            None => Self::checkpoint(format!("`{file}` is not {what}")),
            Some(found) => Self::checkpoint(format!("`{file}` is {}, not {expected}", found.name))
                .with_hint(found.remedy),
        }
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Creates the problem of a checkpoint file that could not be read: `Machine` if a retry may help.
    pub(crate) fn reading(path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot read `{}`: {error}", path.display());
        if Errno::from_io_error(error) == Some(Errno::LOOP) {
            return Self::checkpoint(message);
        }
        match error.kind() {
            // Permissions are set outside the checkpoint and can be corrected while the job waits.
            io::ErrorKind::PermissionDenied => Self::machine(message)
                .with_hint("check owner and permissions of the file and its folder"),
            io::ErrorKind::NotFound
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory => Self::checkpoint(message),
            _ => Self::machine(message),
        }
    }

    pub(crate) fn writing(path: &Path, error: &io::Error) -> Self {
        Self::machine(format!("cannot write `{}`: {error}", path.display())).with_hint(
            "set `cache_folder` of `load-partial-model` to a writable folder with enough space",
        )
    }
}

/// Lists the first `max` names of a message, and the number of the others.
pub(crate) fn listed<T: AsRef<str>>(names: &[T], max: usize) -> String {
    let shown: Vec<&str> = names.iter().take(max).map(T::as_ref).collect();
    match names.len() - shown.len() {
        0 => format!("`{}`", shown.join("`, `")),
        more => format!("`{}` and {more} more", shown.join("`, `")),
    }
}

/// Hint for a checkpoint without some of its files or tensors.
pub(crate) const INCOMPLETE: &str = "the download may be incomplete: download the checkpoint again";

/// Adds default hints to problems without one; `of_checkpoint` to those of a checkpoint.
pub(crate) fn with_remedies(problems: Vec<ModelProblem>, of_checkpoint: &str) -> Vec<ModelProblem> {
    let advised = |problem: ModelProblem| match problem.kind {
        _ if problem.hint.is_some() => problem,
        ProblemKind::Settings => {
            problem.with_hint("this model cannot be scored: choose another one")
        }
        ProblemKind::Checkpoint => problem.with_hint(of_checkpoint),
        ProblemKind::Machine | ProblemKind::Memory | ProblemKind::Device => {
            problem.with_hint("run again; finished work is kept")
        }
    };
    problems.into_iter().map(advised).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_failures_are_machine_problems() {
        let kind = |kind: io::ErrorKind| ModelProblem::reading(Path::new("x"), &kind.into()).kind;
        assert_eq!(kind(io::ErrorKind::NotFound), ProblemKind::Checkpoint);
        assert_eq!(kind(io::ErrorKind::UnexpectedEof), ProblemKind::Checkpoint);
        assert_eq!(kind(io::ErrorKind::TimedOut), ProblemKind::Machine);
        assert_eq!(kind(io::ErrorKind::PermissionDenied), ProblemKind::Machine);
    }
}
