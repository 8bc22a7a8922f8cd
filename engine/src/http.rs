//! Ranges of files over HTTP, read with patience: redirects, links that expire, servers that ignore ranges, answers that
//! are cut off, and servers that are busy.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::header::HeaderMap;
use reqwest::{Response, StatusCode, Url, header};

use crate::stop::Stop;

/// Bytes that are asked for when a file is opened: most headers of weights are shorter.
const FIRST_BYTES: u64 = 256 << 10;

/// Redirects that are followed for one answer.
const MOST_REDIRECTS: usize = 10;

/// How long one is willing to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Before the second attempt; each further wait is twice as long.
    pub(crate) first_wait: Duration,
    /// The longest wait between two attempts.
    pub(crate) longest_wait: Duration,
    /// For the next byte of an answer.
    pub(crate) silence: Duration,
    /// Without any progress, over all attempts.
    pub(crate) deadline: Duration,
    /// Bytes of a file that may be read in vain from a server that ignores ranges.
    pub(crate) most_skipped_bytes: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            silence: Duration::from_secs(30),
            deadline: Duration::from_mins(5),
            most_skipped_bytes: 16 << 30,
        }
    }
}

/// Asks servers, one request at a time.
pub(crate) struct Client {
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    /// Whom a token may be shown to, and the token.
    token: Option<(Url, String)>,
    patience: Patience,
    stop: Stop,
    /// Bytes of answers that were read.
    received: Cell<u64>,
}

/// A small file.
pub(crate) struct Small {
    pub(crate) bytes: Vec<u8>,
    /// Headers of the server that was asked first.
    pub(crate) headers: HeaderMap,
}

/// A file that was found.
pub(crate) struct RemoteFile {
    url: Url,
    /// Where the server sent us the last time.
    location: RefCell<Option<Url>>,
    /// Bytes of the whole file.
    pub(crate) length: u64,
    /// Its first bytes.
    pub(crate) first: Vec<u8>,
}

/// Why an attempt failed.
enum Trouble {
    /// It may work later; perhaps the server says when.
    Again(String, Option<Duration>),
    /// The address that we were sent to does not hold any more.
    Expired(String),
    /// It will never work.
    Never(ModelProblem),
}

impl From<ModelProblem> for Trouble {
    fn from(problem: ModelProblem) -> Self {
        Self::Never(problem)
    }
}

type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ModelProblem>;

/// An answer, and how it was reached.
struct Answer {
    response: Response,
    first_headers: HeaderMap,
    location: Option<Url>,
}

impl Client {
    /// `token` is shown to the server of its address and to no other.
    pub(crate) fn new(
        token: Option<(Url, String)>,
        patience: Patience,
        stop: Stop,
    ) -> Result<Self, ModelProblem> {
        // Another part of the program may have chosen the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
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
        Ok(Self { http, runtime, token, patience, stop, received: Cell::new(0) })
    }

    /// Bytes of answers that were read so far, in vain or not.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
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
                    _ => Ok(Some(answer.first_headers)),
                }
            });
            match attempt {
                Ok(headers) => return Ok(headers.map(|headers| Small { bytes, headers })),
                Err(trouble) => patience.wait(url, trouble)?,
            }
        }
    }

    /// Finds a file: its length, and its first bytes. None where the server has none of that name.
    pub(crate) fn open(&self, url: &Url) -> Result<Option<RemoteFile>, ModelProblem> {
        let mut patience = Waiting::new(self);
        loop {
            let attempt = self.runtime.block_on(async {
                let Some(mut answer) = found(self.ask(url, None, Some(0..FIRST_BYTES)).await)?
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
                    .with_hint("download the model with the hub's own tools, and name its folder")
                    .into());
                };
                let wanted = length.min(FIRST_BYTES);
                let mut first = Vec::new();
                while (first.len() as u64) < wanted {
                    match self.piece(&mut answer.response).await? {
                        Some(piece) => first.extend_from_slice(&piece),
                        None => return Err(cut(first.len() as u64, wanted)),
                    }
                }
                first.truncate(wanted as usize);
                let location = RefCell::new(answer.location);
                Ok(Some(RemoteFile { url: url.clone(), location, length, first }))
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
        let mut left = Left(ranges.iter().filter(|range| !range.is_empty()).cloned().collect());
        let mut patience = Waiting::new(self);
        while let Some(wanted) = left.0.front().cloned() {
            let before = left.bytes();
            let attempt = self.runtime.block_on(self.attempt(file, wanted, &mut left, sink));
            if left.bytes() < before {
                patience = Waiting::new(self);
            }
            match attempt {
                Ok(()) => {}
                Err(trouble) => {
                    if let Trouble::Expired(_) = trouble {
                        *file.location.borrow_mut() = None;
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
        let location = file.location.borrow().clone();
        let answer = self.ask(&file.url, location.as_ref(), Some(wanted.clone())).await;
        let Some(mut answer) = found(answer)? else {
            let gone = format!("`{}` is gone", shown(&file.url));
            return Err(ModelProblem::checkpoint(gone).with_hint("run again").into());
        };
        file.location.replace(answer.location);
        let response = &mut answer.response;
        let changed = |length: u64| {
            let message = format!(
                "`{}` has {length} bytes, and had {} a moment ago",
                shown(&file.url),
                file.length
            );
            ModelProblem::checkpoint(message).with_hint("run again; name a commit, not a branch")
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
                return Err(ModelProblem::settings(message)
                    .with_hint("set HF_ENDPOINT to a server that knows ranges, or download the model and name its folder")
                    .into());
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
            self.received.set(self.received.get() + piece.len() as u64);
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
                place = redirected(&place, &response)?;
                continue;
            }
            let away = (place != *url).then_some(place);
            return match trouble(&response, url, away.is_some()) {
                None => Ok(Answer { response, first_headers: headers, location: away }),
                Some(trouble) => Err(trouble),
            };
        }
        let message = format!("`{}` redirects more than {MOST_REDIRECTS} times", shown(url));
        Err(ModelProblem::settings(message).with_hint("is HF_ENDPOINT right?").into())
    }

    fn check_stop(&self) -> Result<(), Trouble> {
        let stopped = |_| ModelProblem::machine("stopped by a signal; the same command carries on");
        Ok(self.stop.check().map_err(stopped)?)
    }
}

/// Ranges that have not arrived.
struct Left(VecDeque<Range<u64>>);

impl Left {
    fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    fn end(&self) -> u64 {
        self.0.back().map_or(0, |range| range.end)
    }

    /// Hands on what is wanted of a piece that begins at `position` of the file.
    fn feed(&mut self, position: u64, piece: &[u8], sink: Sink<'_>) -> Result<(), ModelProblem> {
        let end = position + piece.len() as u64;
        while let Some(range) = self.0.front_mut() {
            if range.start < position || range.start >= end {
                break;
            }
            let upto = range.end.min(end);
            sink(&piece[(range.start - position) as usize..(upto - position) as usize])?;
            range.start = upto;
            if range.is_empty() {
                self.0.pop_front();
            }
        }
        Ok(())
    }
}

/// The attempts at one thing.
struct Waiting<'a> {
    client: &'a Client,
    since: Instant,
    wait: Duration,
}

impl<'a> Waiting<'a> {
    fn new(client: &'a Client) -> Self {
        Self { client, since: Instant::now(), wait: client.patience.first_wait }
    }

    /// Waits before the next attempt, or says why there is none.
    fn wait(&mut self, url: &Url, trouble: Trouble) -> Result<(), ModelProblem> {
        let (why, asked) = match trouble {
            Trouble::Never(problem) => return Err(problem),
            Trouble::Again(why, asked) => (why, asked),
            Trouble::Expired(why) => (why, None),
        };
        let patience = &self.client.patience;
        let wait = asked.unwrap_or(self.wait).min(patience.longest_wait);
        if self.since.elapsed() + wait > patience.deadline {
            let message = format!(
                "`{}` cannot be read: {why}; tried for {} s",
                shown(url),
                self.since.elapsed().as_secs()
            );
            return Err(ModelProblem::machine(message)
                .with_hint("run again; with `--offline` only what is already here is used"));
        }
        tracing::warn!("`{}`: {why}; trying again in {:.1} s", shown(url), wait.as_secs_f64());
        let until = Instant::now() + wait;
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            if let Err(Trouble::Never(problem)) = self.client.check_stop() {
                return Err(problem);
            }
            std::thread::sleep(rest.min(Duration::from_millis(100)));
        }
        self.wait = (self.wait * 2).min(patience.longest_wait);
        Ok(())
    }
}

/// The answer, or none where there is no such file.
fn found(answer: Result<Answer, Trouble>) -> Result<Option<Answer>, Trouble> {
    match answer {
        Ok(answer) if answer.response.status() == StatusCode::NOT_FOUND => Ok(None),
        Ok(answer) => Ok(Some(answer)),
        Err(trouble) => Err(trouble),
    }
}

/// What a status means, where it is not the answer. `away`: it is not from the server that was asked first.
fn trouble(response: &Response, url: &Url, away: bool) -> Option<Trouble> {
    let status = response.status();
    let text = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
    let code = text("x-error-code").map(|code| format!(" ({code})")).unwrap_or_default();
    let answered = format!("the server answered {}{code}", status.as_u16());
    match status.as_u16() {
        200 | 206 => None,
        // Links to the stores behind the hub are signed and expire.
        400 | 401 | 403 | 404 | 410 if away => Some(Trouble::Expired(format!("a link expired: {answered}"))),
        404 if code.is_empty() || code.contains("EntryNotFound") => None,
        404 => Some(Trouble::Never(
            ModelProblem::settings(format!("`{}` is not there: {answered}", shown(url)))
                .with_hint("check the owner, the name and the revision"),
        )),
        401 | 403 => Some(Trouble::Never(
            ModelProblem::settings(format!("`{}` may not be read: {answered}", shown(url))).with_hint(
                "check owner and name; for a private or gated model set HF_TOKEN to a token of an account with access",
            ),
        )),
        408 | 425 | 429 | 500..=599 => {
            let wait = text("retry-after").and_then(|seconds| seconds.parse().ok());
            Some(Trouble::Again(answered, wait.map(Duration::from_secs)))
        }
        416 => Some(Trouble::Never(
            ModelProblem::checkpoint(format!("`{}` is shorter than it was", shown(url)))
                .with_hint("run again; name a commit, not a branch"),
        )),
        _ => Some(Trouble::Never(
            ModelProblem::settings(format!("`{}` cannot be read: {answered}", shown(url)))
                .with_hint("is HF_ENDPOINT right?"),
        )),
    }
}

/// Where a redirect leads; never from an encrypted connection to a plain one.
fn redirected(from: &Url, response: &Response) -> Result<Url, ModelProblem> {
    let place = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let place = place.and_then(|place| from.join(place).ok());
    match place {
        Some(place) if place.scheme() == "https" || place.scheme() == from.scheme() => Ok(place),
        place => {
            let place =
                place.map_or("nowhere".to_owned(), |place| format!("to `{}`", shown(&place)));
            let message = format!("`{}` redirects {place}", shown(from));
            Err(ModelProblem::settings(message).with_hint("is HF_ENDPOINT right?"))
        }
    }
}

/// First byte and length of the whole file, of `bytes 0-9/100`.
fn content_range(response: &Response) -> Option<(u64, Option<u64>)> {
    let text = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, length) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, length.parse().ok()))
}

fn cut(received: u64, wanted: u64) -> Trouble {
    Trouble::Again(format!("the answer was cut off after {received} of {wanted} bytes"), None)
}

fn again(error: &reqwest::Error) -> Trouble {
    let why = in_full(error);
    // As rustls says it; time does not help.
    if why.contains("invalid peer certificate") {
        return Trouble::Never(ModelProblem::settings(why).with_hint(
            "is HF_ENDPOINT right? SSL_CERT_FILE names a file with further certificates to trust",
        ));
    }
    Trouble::Again(why, None)
}

fn too_long(url: &Url, most: u64) -> ModelProblem {
    ModelProblem::checkpoint(format!("`{}` has more than {most} bytes", shown(url)))
}

/// An address without what is signed in it.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    let _ = url.set_password(None);
    url.to_string()
}

/// An error with its causes; the address, which may be a signed one, is left out.
fn in_full(error: &reqwest::Error) -> String {
    let mut text =
        if error.is_timeout() { "no answer in time" } else { "the connection failed" }.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
#[path = "../../tests/support/server.rs"]
mod server;
#[cfg(test)]
mod tests;
