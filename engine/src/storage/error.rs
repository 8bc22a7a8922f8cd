//! Operations on files that failed, wherever the files are: which, on what, why, and whether they may succeed later.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use longsift_stages::contract::Location;
use longsift_stages::model::ModelProblem;

/// `EMFILE` and `ELOOP`, which have no kind of their own in the standard library.
const TOO_MANY_OPEN_FILES: i32 = rustix::io::Errno::MFILE.raw_os_error();

const TOO_MANY_LINKS: i32 = rustix::io::Errno::LOOP.raw_os_error();

/// What the operating system, a store or a server said.
pub type Cause = Box<dyn Error + Send + Sync>;

/// What kind of failure it is: who has to act follows from it, and whether the same may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is nothing of that name.
    NotFound,
    /// It may not be read or written.
    Denied,
    /// It will never work: a name that cannot be, a file that is too long or too short, an answer that means nothing.
    Invalid,
    /// There is another version than a moment ago.
    Changed,
    /// There is no room left.
    Full,
    /// The disk, the network or the system failed.
    Transient,
    /// A signal came.
    Stopped,
}

impl ErrorKind {
    /// What an error of the operating system is.
    pub fn of(error: &io::Error) -> Self {
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

    /// Whether the same may succeed later: the disk or the system failed, not the name or its permissions.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::Changed | Self::Full | Self::Transient | Self::Stopped)
    }
}

/// An operation on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} `{at}`: {source}")]
pub struct StorageError {
    /// What was tried: `open`, `write`, …
    pub operation: &'static str,
    /// On which file or folder.
    pub at: Location,
    /// What that means.
    pub kind: ErrorKind,
    /// What was said.
    pub source: Cause,
    /// What the user can do, where that is more than what follows from the kind.
    pub(super) hint: Option<&'static str>,
    /// After which time a server asks to be asked again.
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

    /// An error of the operating system; one that is of a file already stays as it is.
    fn of_system(operation: &'static str, path: &Path, error: io::Error) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(known) => return known,
            Err(error) => error,
        };
        let hint = match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("mount the disk for writing, or write to another one")
            }
            _ if error.raw_os_error() == Some(TOO_MANY_OPEN_FILES) => {
                Some("raise the limit of open files (`ulimit -n`)")
            }
            _ => None,
        };
        let kind = ErrorKind::of(&error);
        Self { hint, ..Self::new(operation, Location::of(path), kind, error) }
    }

    #[cfg(feature = "cloud")]
    #[must_use]
    pub(super) fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        let hint = match (self.kind, self.at.is_address()) {
            _ if self.hint.is_some() => self.hint?,
            (ErrorKind::Full, _) => {
                "free space on this disk, or write to another one; the run can then be resumed"
            }
            (ErrorKind::NotFound, true) if self.is_web() => "check the address",
            (ErrorKind::NotFound, true) => {
                "check the name of the bucket, and the store's region and endpoint (AWS_REGION, AWS_ENDPOINT_URL, …)"
            }
            (ErrorKind::Denied, true) => {
                "check the credentials (AWS_…, GOOGLE_…, AZURE_…) and what they may do; S3 says the same of a file that is not there to those who may not list the bucket"
            }
            (ErrorKind::Denied, false) => "check the owner and the mode of the file and its folder",
            (ErrorKind::Stopped, _) => "run the same command to resume",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    fn is_web(&self) -> bool {
        self.at.address().is_some_and(|address| address.scheme.is_web())
    }

    /// Whether the same operation may succeed later: see [`ErrorKind::may_pass`].
    pub fn may_pass(&self) -> bool {
        self.kind.may_pass()
    }
}

/// Whether links lead to each other in a circle.
pub(super) fn is_link_circle(error: &io::Error) -> bool {
    error.raw_os_error() == Some(TOO_MANY_LINKS)
}

/// Puts operation and path on an error of the operating system.
pub(crate) fn failed(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.to_path_buf();
    move |error| StorageError::of_system(operation, &path, error)
}

/// What was found; none where there is nothing of that name.
pub(super) fn if_present<T>(found: Result<T, StorageError>) -> Result<Option<T>, StorageError> {
    match found {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// For readers and writers of the standard library; [`failed`] gives back what is in it.
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

/// What is wrong with an address is the pipeline's; with a file of this machine, the machine's.
impl From<StorageError> for ModelProblem {
    fn from(error: StorageError) -> Self {
        let hint = error.hint();
        let problem = match error.kind {
            ErrorKind::Changed => {
                let StorageError { at, source, .. } = &error;
                Self::checkpoint(format!("`{at}` changed while it was fetched: {source}"))
            }
            kind if kind.may_pass() || !error.at.is_address() => Self::machine(error.to_string()),
            _ => Self::settings(error.to_string()),
        };
        match hint {
            Some(hint) => problem.with_hint(hint),
            None => problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_a_file_already_is_said_once() {
        let inner = failed("write", Path::new("/a"))(io::ErrorKind::StorageFull.into());
        let says = inner.to_string();
        let outer = failed("copy", Path::new("/b"))(inner.into());
        assert_eq!((outer.to_string(), outer.kind), (says, ErrorKind::Full));
        assert!(outer.hint().unwrap().starts_with("free space"));
    }

    #[test]
    fn who_has_to_act_follows_from_the_kind_and_the_place() {
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
