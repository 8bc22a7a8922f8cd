//! Interprets failures of object stores.

use std::error::Error as _;

use longsift_stages::contract::Location;
use object_store::Error;

use crate::base::secrets;
use crate::storage::error::{ErrorKind, StorageError};

/// Message of the client for an answer to a range request with the whole object.
const IGNORES_RANGES: &str = "Received non-partial response";

/// Parts of messages about answers that do not follow the protocol. The client reports them without a status.
const INVALID_ANSWERS: [&str; 12] = [
    // Another region, or a moved bucket.
    "redirect without LOCATION",
    INCOMPLETE,
    IGNORES_RANGES,
    "Content-Range header not present",
    "Failed to parse value for CONTENT_RANGE",
    "Wanted range starting at",
    "Requested ",
    "Invalid last modified",
    "Invalid content length",
    "contained non UTF-8 characters",
    "Header missing from response",
    "Got invalid",
];

/// Codes of S3 and Azure for objects in an archive.
const ARCHIVED: [&str; 2] = [": InvalidObjectState", ": BlobArchived"];

/// Message prefix of an endless or truncated list.
const INCOMPLETE: &str = "the list of objects is not complete";

pub(super) fn incomplete(why: &str) -> Error {
    Error::Generic { store: "store", source: format!("{INCOMPLETE}: {why}").into() }
}

pub(super) fn failure(operation: &'static str, address: &str, error: &Error) -> StorageError {
    let words = without_credentials(in_words(error));
    let failure = StorageError::new(operation, Location::parse(address), kind(error), words);
    let words = failure.source.to_string();
    match error {
        Error::Precondition { .. } | Error::NotModified { .. } => {
            failure.with_hint("run again after it has stopped changing")
        }
        _ if is_archived(&words) => {
            failure.with_hint("restore the object from its archive, and run again when it can be read")
        }
        _ if words.contains("status code: 501") => failure.with_hint(
            "this server does not support the call: run directories require conditional writes, as supported by Amazon S3, MinIO, Ceph, Google Cloud Storage and Azure",
        ),
        _ if words.contains(INCOMPLETE) => failure.with_hint(
            "the server must list objects by version 2 of the call (ListObjectsV2), with a new token for each page",
        ),
        _ if words.contains(IGNORES_RANGES) => {
            failure.with_hint("use a store that supports range requests, or copy the files to a disk")
        }
        _ => failure,
    }
}

pub(super) fn kind(error: &Error) -> ErrorKind {
    let words = || in_words(error);
    match error {
        _ if is_archived(&words()) => ErrorKind::Invalid,
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

fn is_archived(words: &str) -> bool {
    ARCHIVED.iter().any(|code| words.contains(code))
}

/// Returns the kind of an error that contains the status only in its message, as for lists.
fn kind_of_answer(words: &str) -> ErrorKind {
    if INVALID_ANSWERS.iter().any(|part| words.contains(part)) {
        return ErrorKind::Invalid;
    }
    // An answer about several objects has the status of success, and codes of single objects.
    match words.rsplit_once("(code: ").map_or("", |(_, code)| code.trim_end_matches(')')) {
        "AccessDenied" | "AllAccessDisabled" => return ErrorKind::Denied,
        "InvalidRequest" | "MethodNotAllowed" | "NotImplemented" => return ErrorKind::Invalid,
        _ => {}
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

/// Returns the text of the first element with a tag in an XML document.
pub(super) fn element<'a>(xml: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once("</")?.0)
}

/// Replaces credentials in the answer of the server, which follows the status.
fn without_credentials(words: String) -> String {
    match words.find("status") {
        Some(status) => {
            let (request, answer) = words.split_at(status);
            format!("{request}{}", secrets::without_credentials(answer))
        }
        None => words,
    }
}

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
    let text = secrets::without_quotes(&text);
    let Some(answer) = text.find("<?xml").or_else(|| text.find("<Error>")) else { return text };
    let words = ["Code", "Message"].into_iter().filter_map(|tag| element(&text[answer..], tag));
    let words: Vec<&str> = words.collect();
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
        for permanent in [
            "Received non-partial response when range requested",
            "Got invalid list response: missing field `LastModified`",
            "ETag Header missing from response",
            "Failed to parse value for CONTENT_RANGE header: \"bytes 0-9/*\"",
            "Invalid last modified 'yesterday': input contains invalid characters",
        ] {
            assert_eq!(kind(permanent), ErrorKind::Invalid);
        }
        let deleted = |code: &str| {
            kind(&format!("DeleteObjects request failed for key a: reason (code: {code})"))
        };
        assert_eq!(deleted("AccessDenied"), ErrorKind::Denied);
        assert_eq!(deleted("InternalError"), ErrorKind::Transient);
    }

    #[test]
    fn an_archived_object_is_to_be_restored() {
        let path = "x".to_owned();
        let s3 = "Server returned non-2xx status code: 403 Forbidden: <Error><Code>InvalidObjectState</Code></Error>";
        let azure = "Server returned non-2xx status code: 409 Conflict: <?xml?><Error><Code>BlobArchived</Code></Error>";
        for error in [
            Error::PermissionDenied { path: path.clone(), source: s3.into() },
            Error::AlreadyExists { path, source: azure.into() },
        ] {
            let failure = failure("read", "s3://b/x", &error);
            assert_eq!(failure.kind, ErrorKind::Invalid, "{failure}");
            assert!(failure.hint().unwrap().starts_with("restore the object"), "{failure}");
        }
    }

    #[test]
    fn xml_answers_are_converted_to_text() {
        let answer = "404: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>No \
                      bucket</Message></Error>";
        let error = Error::Generic { store: "S3", source: answer.into() };
        assert_eq!(in_words(&error), "Generic S3 error: 404: NoSuchBucket: No bucket");
    }
}
