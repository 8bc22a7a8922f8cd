//! Reads ranges of files over HTTP, with retries. Handles redirects, expiring links, servers that ignore ranges,
//! truncated answers, and busy servers.

pub(crate) mod answers;
pub(crate) mod remaining;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};

use super::error::{ErrorKind, StorageError};
use super::retry::{Retry, RetryPolicy, retry, unless_stopped};
use crate::base::parallel::lock;
use crate::base::stop::Stop;
use crate::base::text;
use answers::{
    HttpAnswer, ServerKind, content_range, cut, failed, found, redirected, refusal, unanswered,
    unsatisfied_length, with_causes,
};
use remaining::{Remaining, Sink};

/// Bytes requested when a file is opened: most headers of weights are shorter.
pub(crate) const FIRST_BYTES: u64 = 256 << 10;

/// Timeout of connecting and of waiting for the next byte of an answer.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes to discard from a server that ignores ranges.
const MAX_DISCARDED_BYTES: u64 = 16 << 30;

/// Maximum bytes to discard per block of a data file.
pub(super) const MAX_DISCARDED_PER_BLOCK: u64 = 64 << 20;

const MAX_REDIRECTS: usize = 10;

pub(crate) struct HttpClient {
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    /// Token, and the server that may receive it.
    token: Option<(Url, String)>,
    kind: ServerKind,
    policy: RetryPolicy,
    stop: Stop,
    pub(super) max_discarded_bytes: u64,
    received: AtomicU64,
}

pub(crate) struct SmallFile {
    pub(crate) bytes: Vec<u8>,
    /// Address of the answer, after redirects.
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Headers of the redirects before it.
    pub(crate) redirects: Vec<HeaderMap>,
    pub(crate) version: String,
}

pub(crate) struct RemoteFile {
    pub(super) url: Url,
    location: Mutex<Option<Url>>,
    pub(crate) length: u64,
    /// First bytes, as far as they were requested and sent.
    pub(crate) first: Vec<u8>,
    /// Version: length, entity tag and time. Empty for a file that never changes.
    pub(crate) version: String,
    /// Modification time in nanoseconds since 1970; 0 if unknown.
    pub(crate) modified_ns: i128,
}

impl RemoteFile {
    pub(crate) fn immutable(url: Url, length: u64) -> Self {
        let (location, first, version) = (Mutex::default(), Vec::new(), String::new());
        Self { url, location, length, first, version, modified_ns: 0 }
    }
}

impl HttpClient {
    /// Creates a client. Only the server of the token's address receives the token.
    pub(crate) fn new(
        token: Option<(Url, String)>,
        kind: ServerKind,
        stop: Stop,
    ) -> Result<Self, ModelProblem> {
        // Another part of the program may have installed the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let unusable =
            |why: String| ModelProblem::machine(format!("the network cannot be used: {why}"));
        let runtime = runtime.worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| unusable(error.to_string()))?;
        let http = reqwest::Client::builder()
            .user_agent(concat!("longsift/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(READ_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .build()
            .map_err(|error| unusable(with_causes(&error)))?;
        let (policy, received) = (RetryPolicy::default(), AtomicU64::new(0));
        let max_discarded_bytes = MAX_DISCARDED_BYTES;
        Ok(Self { http, runtime, token, kind, policy, stop, max_discarded_bytes, received })
    }

    /// Returns the received bytes, including discarded ones.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Reads a whole file of at most `max` bytes; `None` if it does not exist.
    pub(crate) fn small(&self, url: &Url, max: u64) -> Result<Option<SmallFile>, StorageError> {
        self.retried(url, || async {
            let Some(mut answer) = found(self.send(url, None, None).await)? else {
                return Ok(None);
            };
            let stated = answer.response.content_length();
            let mut bytes = Vec::new();
            let mut is_too_long = stated.is_some_and(|length| length > max);
            while !is_too_long && let Some(piece) = self.piece(url, &mut answer.response).await? {
                bytes.extend_from_slice(&piece);
                is_too_long = bytes.len() as u64 > max;
            }
            if is_too_long {
                let why = format!("it has more than {} bytes", text::count(max));
                return Err(failed(url, ErrorKind::Invalid, why));
            }
            let length = bytes.len() as u64;
            if let Some(stated) = stated.filter(|stated| *stated != length) {
                return Err(cut(url, &answer.response, length, stated));
            }
            let version = self.version(url, length, answer.response.headers())?;
            let (headers, redirects) = (answer.response.headers().clone(), answer.redirects);
            let url = answer.location.unwrap_or_else(|| url.clone());
            Ok(Some(SmallFile { bytes, url, headers, redirects, version }))
        })
    }

    /// Requests length, version and first bytes (at least one) of a file; `None` if it does not exist.
    pub(crate) fn open(
        &self,
        url: &Url,
        first_bytes: u64,
    ) -> Result<Option<RemoteFile>, StorageError> {
        self.retried(url, || async {
            let Some(mut answer) = found(self.send(url, None, Some(0..first_bytes)).await)? else {
                return Ok(None);
            };
            // A server may send less than the range that was asked for.
            let mut sent = first_bytes;
            let length = match answer.response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    content_range(&answer.response).and_then(|(range, length)| {
                        sent = sent.min(range.end);
                        length.filter(|_| range.start == 0)
                    })
                }
                StatusCode::RANGE_NOT_SATISFIABLE => match unsatisfied_length(&answer.response) {
                    Some(1..) => {
                        let why = "the server refuses the range of its first bytes";
                        return Err(
                            failed(url, ErrorKind::Invalid, why).with_hint(self.kind.ranges)
                        );
                    }
                    length => length,
                },
                _ => answer.response.content_length(),
            };
            let Some(length) = length else {
                let why = "the server does not send its length";
                return Err(failed(url, ErrorKind::Invalid, why).with_hint(self.kind.ranges));
            };
            let wanted = length.min(sent);
            let mut first = Vec::new();
            while (first.len() as u64) < wanted {
                match self.piece(url, &mut answer.response).await? {
                    Some(piece) => first.extend_from_slice(&piece),
                    None => return Err(cut(url, &answer.response, first.len() as u64, wanted)),
                }
            }
            first.truncate(wanted as usize);
            let headers = answer.response.headers();
            let (version, modified_ns) =
                (self.version(url, length, headers)?, modified_ns(headers));
            let (url, location) = (url.clone(), Mutex::new(answer.location));
            Ok(Some(RemoteFile { url, location, length, first, version, modified_ns }))
        })
    }

    fn retried<T, F: Future<Output = Result<T, StorageError>>>(
        &self,
        url: &Url,
        attempt: impl FnMut() -> F,
    ) -> Result<T, StorageError> {
        let stopped = || stopped(url);
        self.runtime.block_on(retry(&self.stop, &self.policy, stopped, attempt))
    }

    /// Returns the version of a file that may change. It is identified by a strong `ETag`, or by a `Last-Modified` at least a
    /// second before the answer: earlier, the file may change again within the same second (RFC 9110, 8.8.2.2).
    fn version(&self, url: &Url, length: u64, headers: &HeaderMap) -> Result<String, StorageError> {
        let is_strong = |tag: &HeaderValue| is_strong_tag(&String::from_utf8_lossy(tag.as_bytes()));
        let age = || {
            let answered = time(headers, header::DATE).unwrap_or_else(SystemTime::now);
            answered.duration_since(time(headers, header::LAST_MODIFIED)?).ok()
        };
        if self.kind.signs || headers.get(header::ETAG).is_some_and(is_strong) {
            return Ok(version(length, headers));
        }
        match age() {
            Some(age) if age >= Duration::from_secs(1) => Ok(version(length, headers)),
            Some(_) => Err(failed(url, ErrorKind::Transient, "it changed less than a second ago")
                .with_hint("run again after it has stopped changing")),
            None => {
                let why = "the server sends neither a strong ETag nor a Last-Modified in the past, so changes of the file during reading would go unnoticed";
                Err(failed(url, ErrorKind::Invalid, why).with_hint(
                    "configure the server to send one of these headers, or download the file",
                ))
            }
        }
    }

    /// Passes the bytes of ascending, disjoint ranges to `sink`, in order.
    ///
    /// Received bytes are not requested again. From a server that ignores ranges, the file is read once up to the end
    /// of the last range.
    pub(crate) fn read(
        &self,
        file: &RemoteFile,
        ranges: &[Range<u64>],
        sink: Sink<'_>,
    ) -> Result<(), StorageError> {
        let mut remaining = Remaining::new(ranges);
        let mut retry = Retry::new(&self.policy, &self.stop);
        while let Some(wanted) = remaining.first() {
            let before = remaining.bytes();
            let stopped = || stopped(&file.url);
            let attempt = self.attempt(file, wanted, &mut remaining, sink);
            let attempt = self.runtime.block_on(unless_stopped(&self.stop, stopped, attempt));
            if remaining.bytes() < before {
                retry = Retry::new(&self.policy, &self.stop);
            }
            if let Err(error) = attempt {
                // The link of the last redirect may have expired.
                *lock(&file.location) = None;
                self.runtime.block_on(retry.wait(error))?;
            }
        }
        Ok(())
    }

    pub(crate) fn read_range(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
    ) -> Result<Bytes, StorageError> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        self.read(file, &[range], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes.into())
    }

    /// Processes one answer to a request for the first remaining range.
    async fn attempt(
        &self,
        file: &RemoteFile,
        wanted: Range<u64>,
        remaining: &mut Remaining,
        sink: Sink<'_>,
    ) -> Result<(), StorageError> {
        let (url, location) = (&file.url, lock(&file.location).clone());
        let answer = self.send(url, location.as_ref(), Some(wanted.clone())).await;
        let Some(mut answer) = found(answer)? else {
            return Err(
                failed(url, ErrorKind::Changed, "it no longer exists").with_hint("run again")
            );
        };
        *lock(&file.location) = answer.location;
        let response = &mut answer.response;
        let changed =
            |why: String| failed(url, ErrorKind::Changed, why).with_hint(self.kind.changed);
        let resized = |length: u64| {
            let (expected, length) = (text::count(file.length), text::count(length));
            changed(format!("expected {expected} bytes, it now has {length}"))
        };
        // Immutable files are copied between servers, each with its own entity tag.
        if !self.kind.signs
            && !file.version.is_empty()
            && version(file.length, response.headers()) != file.version
        {
            return Err(changed("the server now has another version".to_owned()));
        }
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        let (mut position, end) = if partial {
            match content_range(response) {
                Some((_, Some(length))) if length != file.length => return Err(resized(length)),
                Some((range, _)) if range.start == wanted.start => (range.start, wanted.end),
                _ => {
                    let why = "the server sent another range";
                    return Err(failed(url, ErrorKind::Invalid, why).with_hint(self.kind.ranges));
                }
            }
        } else {
            if let Some(length) = response.content_length().filter(|length| *length != file.length)
            {
                return Err(resized(length));
            }
            let end = remaining.end();
            let skipped = end - remaining.bytes();
            if skipped > self.max_discarded_bytes {
                let skipped = text::count(skipped);
                let why = format!("the server ignores ranges: {skipped} bytes would be discarded");
                return Err(failed(url, ErrorKind::Invalid, why).with_hint(self.kind.ranges));
            }
            (0, end)
        };
        while position < end {
            let Some(piece) = self.piece(url, response).await? else {
                return Err(cut(url, response, position, end));
            };
            remaining.feed(position, &piece, sink)?;
            position += piece.len() as u64;
        }
        Ok(())
    }

    async fn piece(
        &self,
        url: &Url,
        response: &mut Response,
    ) -> Result<Option<Bytes>, StorageError> {
        if self.stop.check().is_err() {
            return Err(stopped(url));
        }
        let piece = response.chunk().await.map_err(|error| unanswered(url, &error))?;
        if let Some(piece) = &piece {
            self.received.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok(piece)
    }

    /// Requests `url`, or directly the `location` of its last redirect, and follows redirects.
    async fn send(
        &self,
        url: &Url,
        location: Option<&Url>,
        range: Option<Range<u64>>,
    ) -> Result<HttpAnswer, StorageError> {
        let mut target = location.unwrap_or(url).clone();
        let mut redirects = Vec::new();
        for _ in 0..=MAX_REDIRECTS {
            let mut request =
                self.http.get(target.clone()).header(header::ACCEPT_ENCODING, "identity");
            if let Some(range) = &range {
                let text = format!("bytes={}-{}", range.start, range.end - 1);
                request = request.header(header::RANGE, text);
            }
            if let Some((known, token)) = &self.token
                && known.origin() == target.origin()
            {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.map_err(|error| unanswered(url, &error))?;
            if response.status().is_redirection() {
                target = redirected(&target, url, &response, self.kind)?;
                redirects.push(response.headers().clone());
                continue;
            }
            let away = (target != *url).then_some(target);
            let elsewhere = self.kind.signs && response.url().origin() != url.origin();
            let expires = away.is_some() && (location.is_some() || elsewhere);
            // An empty file has no first byte.
            let empty = range.as_ref().is_some_and(|range| range.start == 0)
                && response.status() == StatusCode::RANGE_NOT_SATISFIABLE;
            let refusal = refusal(&response, url, expires, self.kind).filter(|_| !empty);
            return match refusal {
                None => Ok(HttpAnswer { response, redirects, location: away }),
                Some(refusal) => Err(refusal),
            };
        }
        let why = format!("it redirects more than {MAX_REDIRECTS} times");
        Err(failed(url, ErrorKind::Invalid, why).with_hint(self.kind.address))
    }
}

fn version(length: u64, headers: &HeaderMap) -> String {
    let values = [header::ETAG, header::LAST_MODIFIED].map(|name| headers.get(name));
    let values =
        values.into_iter().flatten().map(|value| String::from_utf8_lossy(value.as_bytes()));
    format!("{length} {}", values.collect::<Vec<_>>().join(" "))
}

/// Whether an `ETag` identifies the bytes of a file: a weak one only identifies their meaning, an empty one nothing.
pub(super) fn is_strong_tag(tag: &str) -> bool {
    !tag.starts_with("W/") && !tag.trim().trim_matches('"').is_empty()
}

fn time(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

fn modified_ns(headers: &HeaderMap) -> i128 {
    time(headers, header::LAST_MODIFIED)
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(0))
}

fn stopped(url: &Url) -> StorageError {
    failed(url, ErrorKind::Stopped, "stopped by a signal")
}

#[cfg(test)]
mod tests;
