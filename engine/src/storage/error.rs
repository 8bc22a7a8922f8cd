//! Failed file operations, local or remote: operation, location, cause, and whether a retry can succeed.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use longsift_stages::contract::Location;
use longsift_stages::model::ModelProblem;
use rustix::io::Errno;

pub type Cause = Box<dyn Error + Send + Sync>;

/// Kind of a failure, which determines who must act and whether a retry can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    Denied,
    /// Permanent failure: an invalid name, a wrong length, an unexpected answer.
    Invalid,
    Changed,
    Full,
    /// Failure of disk, network or system.
    Transient,
    Stopped,
}

impl ErrorKind {
    pub fn from_io(error: &io::Error) -> Self {
        use io::ErrorKind as Io;
        match error.kind() {
            Io::NotFound => Self::NotFound,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => Self::Denied,
            Io::IsADirectory
            | Io::NotADirectory
            | Io::InvalidInput
            | Io::InvalidData
            | Io::InvalidFilename
            | Io::FileTooLarge
            | Io::UnexpectedEof => Self::Invalid,
            Io::StaleNetworkFileHandle => Self::Changed,
            Io::StorageFull | Io::QuotaExceeded => Self::Full,
            _ if is_link_circle(error) => Self::Invalid,
            _ => Self::Transient,
        }
    }

    /// Whether a retry can succeed: the disk or the system failed, not the name or its permissions.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Changed | Self::Full | Self::Transient | Self::Stopped)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} `{at}`: {source}")]
pub struct StorageError {
    pub operation: &'static str,
    pub at: Location,
    pub kind: ErrorKind,
    pub source: Cause,
    /// Hint for the user, if more specific than that of the kind.
    pub(super) hint: Option<&'static str>,
    /// Delay before a retry that the server requests.
    pub(super) retry_after: Option<Duration>,
}

impl StorageError {
    pub(super) fn new(
        operation: &'static str,
        at: Location,
        kind: ErrorKind,
        source: impl Into<Cause>,
    ) -> Self {
        Self { operation, at, kind, source: source.into(), hint: None, retry_after: None }
    }

    #[cfg(feature = "cloud")]
    #[must_use]
    pub(super) fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    pub fn hint(&self) -> Option<String> {
        let is_web = || self.at.address().is_some_and(|address| address.scheme.is_web());
        let hint = match (self.kind, self.at.is_address()) {
            _ if self.hint.is_some() => self.hint?,
            (ErrorKind::Full, _) => {
                "free space on this disk, or write to another one; the run can then be resumed"
            }
            (ErrorKind::NotFound, true) if is_web() => "check the address",
            (ErrorKind::NotFound, true) => {
                "check the name of the bucket, and the store's region and endpoint (AWS_REGION, AWS_ENDPOINT_URL, …)"
            }
            (ErrorKind::Denied, true) => {
                "check the credentials (AWS_…, GOOGLE_…, AZURE_…) and their permissions; without permission to list the bucket, S3 reports missing files the same way"
            }
            (ErrorKind::Denied, false) => "check the owner and the mode of the file and its folder",
            (ErrorKind::Stopped, _) => "run the same command to resume",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

pub(super) fn is_link_circle(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Adds operation and path to an operating system error; an error that wraps a [`StorageError`] is unwrapped.
pub(crate) fn failed(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> StorageError {
    let at = Location::from_path(path);
    move |error| {
        let error = match error.downcast::<StorageError>() {
            Ok(known) => return known,
            Err(error) => error,
        };
        let hint = match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("mount the disk for writing, or write to another one")
            }
            _ if Errno::from_io_error(&error) == Some(Errno::MFILE) => {
                Some("raise the limit of open files (`ulimit -n`)")
            }
            _ => None,
        };
        let kind = ErrorKind::from_io(&error);
        StorageError { hint, ..StorageError::new(operation, at, kind, error) }
    }
}

pub(super) fn if_present<T>(found: Result<T, StorageError>) -> Result<Option<T>, StorageError> {
    match found {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// For readers and writers of the standard library; [`failed`] unwraps the error.
impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        let kind = match error.kind {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Denied => io::ErrorKind::PermissionDenied,
            ErrorKind::Invalid => io::ErrorKind::InvalidInput,
            ErrorKind::Changed => io::ErrorKind::StaleNetworkFileHandle,
            ErrorKind::Full => io::ErrorKind::StorageFull,
            ErrorKind::Transient | ErrorKind::Stopped => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Errors of addresses blame the pipeline, errors of local files the machine.
impl From<StorageError> for ModelProblem {
    fn from(error: StorageError) -> Self {
        let hint = error.hint();
        let problem = match error.kind {
            ErrorKind::Changed => {
                let StorageError { at, source, .. } = &error;
                Self::checkpoint(format!("`{at}` changed while it was fetched: {source}"))
            }
            kind if kind.is_transient() || !error.at.is_address() => {
                Self::machine(error.to_string())
            }
            _ => Self::settings(error.to_string()),
        };
        Self { hint, ..problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_file_error_is_not_repeated() {
        let inner = failed("write", Path::new("/a"))(io::ErrorKind::StorageFull.into());
        let message = inner.to_string();
        let outer = failed("copy", Path::new("/b"))(inner.into());
        assert_eq!((outer.to_string(), outer.kind), (message, ErrorKind::Full));
        assert!(outer.hint().unwrap().starts_with("free space"));
    }

    #[test]
    fn blame_follows_from_the_kind_and_the_location() {
        use longsift_stages::model::ProblemKind;
        let blamed = |at: &str, kind| {
            ModelProblem::from(StorageError::new("read", Location::parse(at), kind, "x")).kind
        };
        assert_eq!(blamed("s3://b/x", ErrorKind::Denied), ProblemKind::Settings);
        assert_eq!(blamed("s3://b/x", ErrorKind::Transient), ProblemKind::Machine);
        assert_eq!(blamed("s3://b/x", ErrorKind::Changed), ProblemKind::Checkpoint);
        assert_eq!(blamed("/x", ErrorKind::Denied), ProblemKind::Machine);
    }
}
