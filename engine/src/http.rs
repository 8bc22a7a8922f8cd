//! Ranges of files over HTTP, read with patience: redirects, links that expire, servers that ignore ranges, answers that
//! are cut off, and servers that are busy.

mod answers;
mod left;
mod patience;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::header::HeaderMap;
use reqwest::{Response, StatusCode, Url, header};

use self::answers::{
    Answer, Trouble, again, content_range, cut, found, in_full, redirected, too_long, trouble,
};
pub(crate) use self::answers::{ServerKind, shown};
use self::left::Left;
pub(crate) use self::patience::Patience;
use self::patience::Waiting;
use crate::stop::Stop;

/// Bytes that are asked for when a file is opened: most headers of weights are shorter.
const FIRST_BYTES: u64 = 256 << 10;

/// Redirects that are followed for one answer.
const MOST_REDIRECTS: usize = 10;

/// Asks servers, for any number of threads.
pub(crate) struct Client {
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    /// Whom a token may be shown to, and the token.
    token: Option<(Url, String)>,
    kind: ServerKind,
    patience: Patience,
    stop: Stop,
    /// Bytes of answers that were read.
    received: AtomicU64,
}

/// A small file.
pub(crate) struct Small {
    pub(crate) bytes: Vec<u8>,
    /// Headers of the server that was asked first.
    pub(crate) headers: HeaderMap,
    /// As of an opened file.
    pub(crate) version: String,
}

/// A file that was found.
pub(crate) struct RemoteFile {
    url: Url,
    /// Where the server sent us the last time.
    location: Mutex<Option<Url>>,
    /// Bytes of the whole file.
    pub(crate) length: u64,
    /// Its first bytes, as far as they were asked for.
    pub(crate) first: Vec<u8>,
    /// What tells its version: its length, and an entity tag or a time where the server gives one.
    pub(crate) version: String,
}

impl RemoteFile {
    /// A file whose length is known from elsewhere.
    pub(crate) fn known(url: Url, length: u64) -> Self {
        Self { url, location: Mutex::default(), length, first: Vec::new(), version: String::new() }
    }

    /// Its address, without what is signed.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    fn location(&self) -> Option<Url> {
        self.location.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_location(&self, location: Option<Url>) {
        *self.location.lock().unwrap_or_else(PoisonError::into_inner) = location;
    }
}

/// What takes the pieces of a file.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ModelProblem>;

impl Client {
    /// `token` is shown to the server of its address and to no other.
    pub(crate) fn new(
        token: Option<(Url, String)>,
        kind: ServerKind,
        patience: Patience,
        stop: Stop,
    ) -> Result<Self, ModelProblem> {
        // Another part of the program may have chosen the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| {
            ModelProblem::machine(format!("the network cannot be used: {error}"))
        })?;
        let http = reqwest::Client::builder()
            .user_agent(concat!("longsift/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(patience.silence)
            .read_timeout(patience.silence)
            .build()
            .map_err(|error| {
                ModelProblem::machine(format!("the network cannot be used: {}", in_full(&error)))
            })?;
        Ok(Self { http, runtime, token, kind, patience, stop, received: AtomicU64::new(0) })
    }

    /// Bytes of answers that were read so far, in vain or not.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// A whole file of at most `most` bytes; none where the server has none of that name.
    pub(crate) fn small(&self, url: &Url, most: u64) -> Result<Option<Small>, ModelProblem> {
        let mut patience = Waiting::new(self);
        loop {
            let mut bytes = Vec::new();
            let attempt = self.runtime.block_on(async {
                let Some(mut answer) = found(self.ask(url, None, None).await)? else {
                    return Ok(None);
                };
                let stated = answer.response.content_length();
                let too_long = || too_long(url, most);
                if stated.is_some_and(|length| length > most) {
                    return Err(too_long().into());
                }
                while let Some(piece) = self.piece(&mut answer.response).await? {
                    bytes.extend_from_slice(&piece);
                    if bytes.len() as u64 > most {
                        return Err(too_long().into());
                    }
                }
                match stated {
                    Some(length) if length != bytes.len() as u64 => {
                        Err(cut(bytes.len() as u64, length))
                    }
                    _ => {
                        let version = version(bytes.len() as u64, answer.response.headers());
                        Ok(Some((answer.first_headers, version)))
                    }
                }
            });
            match attempt {
                Ok(None) => return Ok(None),
                Ok(Some((headers, version))) => return Ok(Some(Small { bytes, headers, version })),
                Err(trouble) => patience.wait(url, trouble)?,
            }
        }
    }

    /// Finds a file: its length, and its first bytes. None where the server has none of that name.
    pub(crate) fn open(&self, url: &Url) -> Result<Option<RemoteFile>, ModelProblem> {
        self.find(url, FIRST_BYTES)
    }

    /// Finds a file: its length and its version, with its first byte. None where the server has none of that name.
    pub(crate) fn status(&self, url: &Url) -> Result<Option<RemoteFile>, ModelProblem> {
        self.find(url, 1)
    }

    fn find(&self, url: &Url, first_bytes: u64) -> Result<Option<RemoteFile>, ModelProblem> {
        let mut patience = Waiting::new(self);
        loop {
            let attempt = self.runtime.block_on(async {
                let Some(mut answer) = found(self.ask(url, None, Some(0..first_bytes)).await)?
                else {
                    return Ok(None);
                };
                let length = match answer.response.status() {
                    StatusCode::PARTIAL_CONTENT => content_range(&answer.response)
                        .and_then(|(start, length)| length.filter(|_| start == 0)),
                    _ => answer.response.content_length(),
                };
                let Some(length) = length else {
                    return Err(ModelProblem::settings(format!(
                        "`{}` does not say how long it is",
                        shown(url)
                    ))
                    .with_hint(self.kind.ranges)
                    .into());
                };
                let wanted = length.min(first_bytes);
                let mut first = Vec::new();
                while (first.len() as u64) < wanted {
                    match self.piece(&mut answer.response).await? {
                        Some(piece) => first.extend_from_slice(&piece),
                        None => return Err(cut(first.len() as u64, wanted)),
                    }
                }
                first.truncate(wanted as usize);
                let version = version(length, answer.response.headers());
                let location = Mutex::new(answer.location);
                Ok(Some(RemoteFile { url: url.clone(), location, length, first, version }))
            });
            match attempt {
                Ok(file) => return Ok(file),
                Err(trouble) => patience.wait(url, trouble)?,
            }
        }
    }

    /// Hands the bytes of some ranges to `sink`, in order. The ranges are ascending and do not overlap.
    ///
    /// What has arrived is not asked for again. Of a server that ignores ranges the file is read once from its start, as
    /// far as the last range.
    pub(crate) fn read(
        &self,
        file: &RemoteFile,
        ranges: &[Range<u64>],
        sink: Sink<'_>,
    ) -> Result<(), ModelProblem> {
        let mut left = Left::of(ranges);
        let mut patience = Waiting::new(self);
        while let Some(wanted) = left.first() {
            let before = left.bytes();
            let attempt = self.runtime.block_on(self.attempt(file, wanted, &mut left, sink));
            if left.bytes() < before {
                patience = Waiting::new(self);
            }
            match attempt {
                Ok(()) => {}
                Err(trouble) => {
                    if let Trouble::Expired(_) = trouble {
                        file.set_location(None);
                    }
                    patience.wait(&file.url, trouble)?;
                }
            }
        }
        Ok(())
    }

    /// One answer to the first range that is left.
    async fn attempt(
        &self,
        file: &RemoteFile,
        wanted: Range<u64>,
        left: &mut Left,
        sink: Sink<'_>,
    ) -> Result<(), Trouble> {
        let location = file.location();
        let answer = self.ask(&file.url, location.as_ref(), Some(wanted.clone())).await;
        let Some(mut answer) = found(answer)? else {
            let gone = format!("`{}` is gone", shown(&file.url));
            return Err(ModelProblem::checkpoint(gone).with_hint("run again").into());
        };
        file.set_location(answer.location);
        let response = &mut answer.response;
        let changed = |length: u64| {
            let message = format!(
                "`{}` has {length} bytes, and had {} a moment ago",
                shown(&file.url),
                file.length
            );
            ModelProblem::checkpoint(message).with_hint(self.kind.changed)
        };
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        let (mut position, end) = if partial {
            match content_range(response) {
                Some((_, Some(length))) if length != file.length => {
                    return Err(changed(length).into());
                }
                Some((start, _)) if start == wanted.start => (start, wanted.end),
                _ => return Err(Trouble::Again("the server sent another range".to_owned(), None)),
            }
        } else {
            if let Some(length) = response.content_length().filter(|length| *length != file.length)
            {
                return Err(changed(length).into());
            }
            let end = left.end();
            let skipped = end - left.bytes();
            if skipped > self.patience.most_skipped_bytes {
                let message = format!(
                    "the server of `{}` ignores ranges: {skipped} bytes would be read in vain",
                    shown(&file.url)
                );
                return Err(ModelProblem::settings(message).with_hint(self.kind.ranges).into());
            }
            (0, end)
        };
        while position < end {
            let Some(piece) = self.piece(response).await? else {
                return Err(cut(position, end));
            };
            left.feed(position, &piece, sink)?;
            position += piece.len() as u64;
        }
        Ok(())
    }

    /// The next piece of an answer; none at its end.
    async fn piece(&self, response: &mut Response) -> Result<Option<Bytes>, Trouble> {
        self.check_stop()?;
        let piece = response.chunk().await.map_err(|error| again(&error))?;
        if let Some(piece) = &piece {
            self.received.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok(piece)
    }

    /// Asks `url`, or at once the `location` it led to before, and follows redirects.
    async fn ask(
        &self,
        url: &Url,
        location: Option<&Url>,
        range: Option<Range<u64>>,
    ) -> Result<Answer, Trouble> {
        let mut place = location.unwrap_or(url).clone();
        let mut first_headers = None;
        for _ in 0..=MOST_REDIRECTS {
            let mut request =
                self.http.get(place.clone()).header(header::ACCEPT_ENCODING, "identity");
            if let Some(range) = &range {
                let text = format!("bytes={}-{}", range.start, range.end - 1);
                request = request.header(header::RANGE, text);
            }
            if let Some((known, token)) = &self.token
                && known.origin() == place.origin()
            {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.map_err(|error| again(&error))?;
            let headers = first_headers.get_or_insert_with(|| response.headers().clone()).clone();
            if response.status().is_redirection() {
                place = redirected(&place, &response, self.kind)?;
                continue;
            }
            let away = (place != *url).then_some(place);
            let elsewhere = self.kind.signs && response.url().origin() != url.origin();
            let expires = away.is_some() && (location.is_some() || elsewhere);
            return match trouble(&response, url, expires, self.kind) {
                None => Ok(Answer { response, first_headers: headers, location: away }),
                Some(trouble) => Err(trouble),
            };
        }
        let message = format!("`{}` redirects more than {MOST_REDIRECTS} times", shown(url));
        Err(ModelProblem::settings(message).with_hint(self.kind.address).into())
    }

    fn check_stop(&self) -> Result<(), Trouble> {
        let stopped = |_| ModelProblem::machine("stopped by a signal; the same command carries on");
        Ok(self.stop.check().map_err(stopped)?)
    }
}

/// What tells the version of a file.
fn version(length: u64, headers: &HeaderMap) -> String {
    let value = headers.get(header::ETAG).or_else(|| headers.get(header::LAST_MODIFIED));
    let value = value.map(|value| String::from_utf8_lossy(value.as_bytes()));
    format!("{length} {}", value.unwrap_or_default())
}

#[cfg(test)]
#[path = "../../tests/support/server.rs"]
mod server;
#[cfg(test)]
mod tests;
