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
        if kind(&error) != ErrorKind::TimedOut || since.elapsed() + wait > DEADLINE {
            return Err(failure(&error));
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

/// The failure as one of an ordinary file.
pub(super) fn failure(error: &Error) -> io::Error {
    io::Error::new(kind(error), in_words(error))
}

/// What of an ordinary file a failure would be; `TimedOut` is what may pass.
fn kind(error: &Error) -> ErrorKind {
    match error {
        Error::NotFound { .. } => ErrorKind::NotFound,
        Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
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

/// An error with its causes, each said once; of a store's answer what it says in words.
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
    let Some(answer) = text.find("<?xml").or_else(|| text.find("<Error>")) else { return text };
    let said = |tag: &str| {
        let (_, rest) = text[answer..].split_once(&format!("<{tag}>"))?;
        Some(rest.split_once("</")?.0.to_owned())
    };
    let words: Vec<String> = ["Code", "Message"].into_iter().filter_map(said).collect();
    format!("{}{}", &text[..answer], words.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_xml_is_told_in_words() {
        let answer = "404: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>No \
                      bucket</Message></Error>";
        let error = Error::Generic { store: "S3", source: answer.into() };
        assert_eq!(in_words(&error), "Generic S3 error: 404: NoSuchBucket: No bucket");
    }
}
