//! Interprets failures of object stores.

use std::error::Error as _;

use longsift_stages::contract::Location;
use object_store::Error;

use crate::storage::error::{ErrorKind, StorageError};

/// Message prefix of an endless or truncated list.
const INCOMPLETE: &str = "the list of objects is not complete";

pub(super) fn incomplete(why: &str) -> Error {
    Error::Generic { store: "store", source: format!("{INCOMPLETE}: {why}").into() }
}

/// Converts an error of an object store, with a hint for known causes.
pub(super) fn failure(operation: &'static str, address: &str, error: &Error) -> StorageError {
    let failure =
        StorageError::new(operation, Location::parse(address), kind(error), in_words(error));
    match error {
        Error::Precondition { .. } | Error::NotModified { .. } => {
            failure.with_hint("run again after it has stopped changing")
        }
        _ if failure.source.to_string().contains("status code: 501") => failure.with_hint(
            "this server does not support the call: run directories require conditional writes, as supported by Amazon S3, MinIO, Ceph, Google Cloud Storage and Azure",
        ),
        _ if failure.source.to_string().contains(INCOMPLETE) => failure.with_hint(
            "the server must list objects by version 2 of the call (ListObjectsV2), with a new token for each page",
        ),
        _ => failure,
    }
}

pub(super) fn kind(error: &Error) -> ErrorKind {
    let words = || in_words(error);
    match error {
        Error::NotFound { .. } => ErrorKind::NotFound,
        // Concurrent conditional writes: S3 neither executed nor rejected this one.
        Error::AlreadyExists { .. } if words().contains("ConditionalRequestConflict") => {
            ErrorKind::Transient
        }
        // Temporary credentials are renewed by their provider.
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
            if words().contains("Expired") =>
        {
            ErrorKind::Transient
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => ErrorKind::Denied,
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
            ErrorKind::Changed
        }
        Error::InvalidPath { .. }
        | Error::UnknownConfigurationKey { .. }
        | Error::NotSupported { .. }
        | Error::NotImplemented { .. } => ErrorKind::Invalid,
        _ => kind_of_answer(&words()),
    }
}

/// Returns the kind of an error that contains the status only in its message, as for lists.
fn kind_of_answer(words: &str) -> ErrorKind {
    // Another region, a moved bucket, or a list that will stay incomplete.
    if words.contains("redirect without LOCATION") || words.contains(INCOMPLETE) {
        return ErrorKind::Invalid;
    }
    let answer = words.split_once("status code: ").map_or("", |(_, answer)| answer);
    // Credentials that are renewed, or a slow upload.
    if answer.contains("Expired") || answer.contains("RequestTimeout") {
        return ErrorKind::Transient;
    }
    match answer.split(' ').next().and_then(|status| status.parse().ok()) {
        Some(401 | 403) => ErrorKind::Denied,
        Some(404) => ErrorKind::NotFound,
        Some(408 | 429) => ErrorKind::Transient,
        Some(300..=499 | 501 | 505) => ErrorKind::Invalid,
        _ => ErrorKind::Transient,
    }
}

/// Formats an error with its causes, without repetitions.
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
    let element = |tag: &str| {
        let (_, rest) = text[answer..].split_once(&format!("<{tag}>"))?;
        Some(rest.split_once("</")?.0.to_owned())
    };
    let words: Vec<String> = ["Code", "Message"].into_iter().filter_map(element).collect();
    format!("{}{}", &text[..answer], words.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_errors_are_retried_by_their_answer() {
        let kind = |answer: &str| kind(&Error::Generic { store: "S3", source: answer.into() });
        let status = |status: &str| kind(&format!("Server returned non-2xx status code: {status}"));
        assert_eq!(status("403 Forbidden: SignatureDoesNotMatch"), ErrorKind::Denied);
        assert_eq!(status("404 Not Found: NoSuchBucket"), ErrorKind::NotFound);
        assert_eq!(status("400 Bad Request: InvalidArgument"), ErrorKind::Invalid);
        assert_eq!(status("501 Not Implemented: NotImplemented"), ErrorKind::Invalid);
        for passing in [
            "400 Bad Request: ExpiredToken",
            "403 Forbidden: ExpiredToken",
            "429 Too Many Requests",
            "503 Service Unavailable: SlowDown",
        ] {
            assert_eq!(status(passing), ErrorKind::Transient);
        }
        assert_eq!(kind("connection reset"), ErrorKind::Transient);
    }

    #[test]
    fn xml_answers_are_converted_to_text() {
        let answer = "404: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>No \
                      bucket</Message></Error>";
        let error = Error::Generic { store: "S3", source: answer.into() };
        assert_eq!(in_words(&error), "Generic S3 error: 404: NoSuchBucket: No bucket");
    }
}
