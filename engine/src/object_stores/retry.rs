//! Patience with stores that are busy, slow or break off; what a failure means.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use object_store::Error;

/// For one answer, from its first to its last byte.
pub(super) const ANSWER: Duration = Duration::from_mins(1);
/// For a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// For one thing, over all attempts.
pub(super) const DEADLINE: Duration = Duration::from_mins(4);
/// Before the second attempt; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Tries until it works, cannot work, or has taken too long.
pub(super) fn patiently<T>(
    what: &str,
    mut attempt: impl FnMut() -> object_store::Result<T>,
) -> io::Result<T> {
    let (since, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let kind = kind(&error);
        if kind != ErrorKind::TimedOut || since.elapsed() + wait > DEADLINE {
            return Err(io::Error::new(kind, in_words(&error)));
        }
        tracing::warn!(
            "`{what}`: {}; trying again in {:.1} s",
            in_words(&error),
            wait.as_secs_f64()
        );
        std::thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// What of an ordinary file a failure would be; `TimedOut` is what may pass.
fn kind(error: &Error) -> ErrorKind {
    match error {
        Error::NotFound { .. } => ErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            ErrorKind::PermissionDenied
        }
        Error::Precondition { .. } | Error::NotModified { .. } => ErrorKind::StaleNetworkFileHandle,
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => {
            ErrorKind::InvalidInput
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::TimedOut,
    }
}

/// An error with its causes, each said once.
fn in_words(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
