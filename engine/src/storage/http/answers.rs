//! Interprets answers and failures of servers, and provides hints for users.

use std::error::Error;
use std::ops::Range;

use longsift_stages::contract::Location;
use reqwest::header::{self, HeaderMap};
use reqwest::{Response, StatusCode, Url};

use crate::base::{secrets, text};
use crate::storage::error::{Cause, ErrorKind, StorageError};
use crate::storage::retry::retry_after;

/// Kind of a server: its use of redirects, and hints for users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerKind {
    /// Whether it redirects existing files to other servers by signed, expiring links.
    pub(super) signs: bool,
    pub(super) refused: &'static str,
    /// Hint for answers that no server of this kind sends.
    pub(super) address: &'static str,
    pub(super) changed: &'static str,
    pub(super) ranges: &'static str,
}

impl ServerKind {
    pub(crate) const HUB: Self = Self {
        signs: true,
        refused: "check owner and name; for a private or gated repository set HF_TOKEN to a token of an account with access",
        address: "check HF_ENDPOINT",
        changed: "run again, with a commit instead of a branch",
        ranges: "set HF_ENDPOINT to a server that supports ranges, or download it and use its folder",
    };

    pub(crate) const WEB: Self = Self {
        signs: false,
        refused: "write `https://user:password@host/…` or a presigned address, which are never stored, or download it",
        address: "check the address",
        changed: "run again after it has stopped changing",
        ranges: "download it and use its folder",
    };
}

/// Answer, with the redirect that led to it.
pub(super) struct HttpAnswer {
    pub(super) response: Response,
    /// Headers of the redirects before it.
    pub(super) redirects: Vec<HeaderMap>,
    pub(super) location: Option<Url>,
}

pub(super) fn found(
    answer: Result<HttpAnswer, StorageError>,
) -> Result<Option<HttpAnswer>, StorageError> {
    Ok(Some(answer?).filter(|answer| answer.response.status() != StatusCode::NOT_FOUND))
}

/// Returns the error of a status; `None` for success. `expires`: the request used a link that may have expired.
pub(super) fn refusal(
    response: &Response,
    url: &Url,
    expires: bool,
    kind: ServerKind,
) -> Option<StorageError> {
    let status = response.status();
    let text = |name: &str| response.headers().get(name)?.to_str().ok();
    // A code is a word: other texts may repeat parts of the request.
    let code =
        text("x-error-code").filter(|code| code.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let code = code.map(secrets::without_credentials);
    let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
    let answered = format!("the server answered {}{code}", status.as_u16());
    let refused = |kind, hint| Some(failed(url, kind, answered.clone()).with_hint(hint));
    match status.as_u16() {
        200 | 206 => None,
        // Links to the stores of the hub are signed and expire.
        400 | 401 | 403 | 404 | 410 if expires && code.is_empty() => {
            Some(failed(url, ErrorKind::Transient, format!("a link expired: {answered}")))
        }
        404 if code.is_empty() || code.contains("EntryNotFound") => None,
        404 => refused(ErrorKind::NotFound, "check the owner, the name and the revision"),
        401 | 403 => refused(ErrorKind::Denied, kind.refused),
        // The server will not accept the same request later.
        501 | 505 => refused(ErrorKind::Invalid, kind.address),
        408 | 425 | 429 | 500..=599 => {
            let retry_after = retry_after(text("retry-after"));
            let busy = failed(url, ErrorKind::Transient, answered);
            Some(StorageError { retry_after, ..busy })
        }
        416 => {
            let shorter = failed(url, ErrorKind::Changed, "it is shorter than it was");
            Some(shorter.with_hint(kind.changed))
        }
        _ => refused(ErrorKind::Invalid, kind.address),
    }
}

/// Returns the target of a redirect. Redirects from encrypted to plain connections are errors. The user of `url` is
/// sent only to the same server.
pub(super) fn redirected(
    from: &Url,
    url: &Url,
    response: &Response,
    kind: ServerKind,
) -> Result<Url, StorageError> {
    let target = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let target = target.and_then(|target| from.join(target).ok());
    match target {
        Some(target) if target.scheme() == "https" || target.scheme() == from.scheme() => {
            Ok(with_user_of(url, target))
        }
        target => {
            let target = target.map(|target| secrets::without_credentials(&shown(&target)));
            let target = target.map_or("nowhere".to_owned(), |target| format!("to `{target}`"));
            let why = format!("it redirects {target}");
            Err(failed(from, ErrorKind::Invalid, why).with_hint(kind.address))
        }
    }
}

/// Returns `target` with the user of `url` if it is on the same server, and without a user otherwise.
pub(in crate::storage) fn with_user_of(url: &Url, mut target: Url) -> Url {
    let is_same = target.origin() == url.origin();
    let (user, password) = if is_same { (url.username(), url.password()) } else { ("", None) };
    let _ = target.set_username(user).and_then(|()| target.set_password(password));
    target
}

/// Returns the range of bytes, and the length of the whole file, from `bytes 0-9/100`; `None` if they contradict each other.
pub(super) fn content_range(response: &Response) -> Option<(Range<u64>, Option<u64>)> {
    let text = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, length) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last) = (start.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let length = length.parse().ok();
    let end = last.checked_add(1)?;
    (start < end && length.is_none_or(|length| end <= length)).then_some((start..end, length))
}

/// Returns the length of the file in an answer without the range that was asked for: `bytes */1000`.
pub(super) fn unsatisfied_length(response: &Response) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes */")?.parse().ok()
}

/// Returns the error for an answer that ended too early. A compressed answer always does; many servers mark files with the ending
/// `.gz` as compressed and send all their bytes.
pub(super) fn cut(url: &Url, response: &Response, received: u64, wanted: u64) -> StorageError {
    let (received, wanted) = (text::count(received), text::count(wanted));
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    if let Some(encoding) = encoding.and_then(|encoding| encoding.to_str().ok())
        && encoding != "identity"
    {
        let why = format!(
            "the server compressed its answer (`Content-Encoding: {}`) to {received} of {wanted} bytes",
            text::line_safe(&secrets::without_credentials(encoding))
        );
        return failed(url, ErrorKind::Invalid, why)
            .with_hint("turn off compression in the server, or download the file");
    }
    let why = format!("the answer was truncated after {received} of {wanted} bytes");
    failed(url, ErrorKind::Transient, why)
}

pub(super) fn unanswered(url: &Url, error: &reqwest::Error) -> StorageError {
    let why = with_causes(error);
    // Message of rustls; a retry cannot succeed.
    if why.contains("invalid peer certificate") {
        return failed(url, ErrorKind::Invalid, why).with_hint(
            "check the server; SSL_CERT_FILE can name a file of trusted certificates, which replaces those of the system",
        );
    }
    // The request has an invalid header or address and was not sent.
    if error.is_builder() {
        return failed(url, ErrorKind::Invalid, why);
    }
    failed(url, ErrorKind::Transient, why)
        .with_hint("run again; with `--offline` only local copies are used")
}

pub(super) fn failed(url: &Url, kind: ErrorKind, why: impl Into<Cause>) -> StorageError {
    StorageError::new("read", Location::parse(&shown(url)), kind, why)
}

/// Returns an address without user and query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    secrets::shown(url.as_str()).into_owned()
}

/// Formats an error with its causes, without the address, which may be signed.
pub(in crate::storage) fn with_causes(error: &reqwest::Error) -> String {
    let mut text =
        if error.is_timeout() { "no answer in time" } else { "the connection failed" }.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
