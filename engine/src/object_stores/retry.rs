//! Patience with stores that are busy, slow or break off; what a failure means.

use std::error::Error as _;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use object_store::Error;

use crate::stop::Stop;

/// For one answer, from its first to its last byte.
pub(super) const ANSWER: Duration = Duration::from_mins(1);
/// For a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// For one thing, over all attempts.
pub(super) const DEADLINE: Duration = Duration::from_mins(4);
/// Before the second attempt; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// How often a signal is looked for meanwhile.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Tries until it works, cannot work, has taken too long, or a signal has come.
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
        let too_long = since.elapsed() + wait > DEADLINE;
        if kind(&error) != ErrorKind::TimedOut || too_long || Stop::has_come() {
            return Err(failure(&error));
        }
        tracing::warn!(
            "`{what}`: {}; trying again in {:.1} s",
            in_words(&error),
            wait.as_secs_f64()
        );
        let until = Instant::now() + wait;
        while Instant::now() < until && !Stop::has_come() {
            std::thread::sleep(STOP_INTERVAL.min(wait));
        }
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
        // Temporary credentials are renewed by whoever gave them.
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
            if in_words(error).contains("Expired") =>
        {
            ErrorKind::TimedOut
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            ErrorKind::PermissionDenied
        }
        Error::Precondition { .. } | Error::NotModified { .. } => ErrorKind::StaleNetworkFileHandle,
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => {
            ErrorKind::InvalidInput
        }
        Error::NotSupported { .. } | Error::NotImplemented { .. } => ErrorKind::Unsupported,
        _ => kind_of_answer(&in_words(error)),
    }
}

/// What the status says that an error tells only in words, as those of lists do.
fn kind_of_answer(words: &str) -> ErrorKind {
    // Another region, or a bucket that is elsewhere.
    if words.contains("redirect without LOCATION") {
        return ErrorKind::InvalidInput;
    }
    let answer = words.split_once("status code: ").map_or("", |(_, answer)| answer);
    // Credentials that are renewed, and an upload that was slow.
    if answer.contains("Expired") || answer.contains("RequestTimeout") {
        return ErrorKind::TimedOut;
    }
    match answer.split(' ').next().and_then(|status| status.parse().ok()) {
        Some(401 | 403) => ErrorKind::PermissionDenied,
        Some(404) => ErrorKind::NotFound,
        Some(408 | 429) => ErrorKind::TimedOut,
        Some(400..=499) => ErrorKind::InvalidInput,
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
    fn what_a_list_is_answered_decides_whether_it_is_asked_for_again() {
        let kind = |answer: &str| kind(&Error::Generic { store: "S3", source: answer.into() });
        let status = |status: &str| kind(&format!("Server returned non-2xx status code: {status}"));
        assert_eq!(status("403 Forbidden: SignatureDoesNotMatch"), ErrorKind::PermissionDenied);
        assert_eq!(status("404 Not Found: NoSuchBucket"), ErrorKind::NotFound);
        assert_eq!(status("400 Bad Request: InvalidArgument"), ErrorKind::InvalidInput);
        for passing in [
            "400 Bad Request: ExpiredToken",
            "403 Forbidden: ExpiredToken",
            "429 Too Many Requests",
            "503 Service Unavailable: SlowDown",
        ] {
            assert_eq!(status(passing), ErrorKind::TimedOut);
        }
        assert_eq!(kind("connection reset"), ErrorKind::TimedOut);
    }

    #[test]
    fn an_answer_in_xml_is_told_in_words() {
        let answer = "404: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>No \
                      bucket</Message></Error>";
        let error = Error::Generic { store: "S3", source: answer.into() };
        assert_eq!(in_words(&error), "Generic S3 error: 404: NoSuchBucket: No bucket");
    }
}
