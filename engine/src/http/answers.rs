//! What answers and failures of a server mean, and what a user can do about them.

use std::error::Error;
use std::time::Duration;

use longsift_stages::model::ModelProblem;
use reqwest::header::HeaderMap;
use reqwest::{Response, StatusCode, Url, header};

/// What a server is: how its redirects are meant, and what a user can do about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerKind {
    /// It redirects to other servers by links that are signed and expire, and only for what is there.
    pub(super) signs: bool,
    /// It may not be read.
    pub(super) refused: &'static str,
    /// It answers in a way that no server of its kind does.
    pub(super) address: &'static str,
    /// It has another version of a file than a moment ago.
    pub(super) changed: &'static str,
    /// It cannot be read by ranges.
    pub(super) ranges: &'static str,
}

impl ServerKind {
    /// For the hub and its mirrors.
    pub(crate) const HUB: Self = Self {
        signs: true,
        refused: "check owner and name; for a private or gated repository set HF_TOKEN to a token of an account with access",
        address: "is HF_ENDPOINT right?",
        changed: "run again; name a commit, not a branch",
        ranges: "set HF_ENDPOINT to a server that knows ranges, or download it whole and name its folder",
    };

    /// For any other server.
    pub(crate) const WEB: Self = Self {
        signs: false,
        refused: "no credentials are sent to web servers; download it whole and name its folder",
        address: "check the address",
        changed: "run again when it does not change any more",
        ranges: "download it whole and name its folder",
    };
}

/// Why an attempt failed.
pub(super) enum Trouble {
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

/// An answer, and how it was reached.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) first_headers: HeaderMap,
    pub(super) location: Option<Url>,
}

/// The answer, or none where there is no such file.
pub(super) fn found(answer: Result<Answer, Trouble>) -> Result<Option<Answer>, Trouble> {
    match answer {
        Ok(answer) if answer.response.status() == StatusCode::NOT_FOUND => Ok(None),
        Ok(answer) => Ok(Some(answer)),
        Err(trouble) => Err(trouble),
    }
}

/// What a status means, where it is not the answer. `expires`: it was reached by a link that may have expired.
pub(super) fn trouble(
    response: &Response,
    url: &Url,
    expires: bool,
    kind: ServerKind,
) -> Option<Trouble> {
    let status = response.status();
    let text = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
    let code = text("x-error-code").map(|code| format!(" ({code})")).unwrap_or_default();
    let answered = format!("the server answered {}{code}", status.as_u16());
    match status.as_u16() {
        200 | 206 => None,
        // Links to the stores behind the hub are signed and expire.
        400 | 401 | 403 | 404 | 410 if expires && code.is_empty() => {
            Some(Trouble::Expired(format!("a link expired: {answered}")))
        }
        404 if code.is_empty() || code.contains("EntryNotFound") => None,
        404 => Some(Trouble::Never(
            ModelProblem::settings(format!("`{}` is not there: {answered}", shown(url)))
                .with_hint("check the owner, the name and the revision"),
        )),
        401 | 403 => Some(Trouble::Never(
            ModelProblem::settings(format!("`{}` may not be read: {answered}", shown(url)))
                .with_hint(kind.refused),
        )),
        408 | 425 | 429 | 500..=599 => {
            let wait = text("retry-after").and_then(|seconds| seconds.parse().ok());
            Some(Trouble::Again(answered, wait.map(Duration::from_secs)))
        }
        416 => Some(Trouble::Never(
            ModelProblem::checkpoint(format!("`{}` is shorter than it was", shown(url)))
                .with_hint(kind.changed),
        )),
        _ => Some(Trouble::Never(
            ModelProblem::settings(format!("`{}` cannot be read: {answered}", shown(url)))
                .with_hint(kind.address),
        )),
    }
}

/// Where a redirect leads; never from an encrypted connection to a plain one.
pub(super) fn redirected(
    from: &Url,
    response: &Response,
    kind: ServerKind,
) -> Result<Url, ModelProblem> {
    let place = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let place = place.and_then(|place| from.join(place).ok());
    match place {
        Some(place) if place.scheme() == "https" || place.scheme() == from.scheme() => Ok(place),
        place => {
            let place =
                place.map_or("nowhere".to_owned(), |place| format!("to `{}`", shown(&place)));
            let message = format!("`{}` redirects {place}", shown(from));
            Err(ModelProblem::settings(message).with_hint(kind.address))
        }
    }
}

/// First byte and length of the whole file, of `bytes 0-9/100`.
pub(super) fn content_range(response: &Response) -> Option<(u64, Option<u64>)> {
    let text = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, length) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, length.parse().ok()))
}

pub(super) fn cut(received: u64, wanted: u64) -> Trouble {
    Trouble::Again(format!("the answer was cut off after {received} of {wanted} bytes"), None)
}

pub(super) fn again(error: &reqwest::Error) -> Trouble {
    let why = in_full(error);
    // As rustls says it; time does not help.
    if why.contains("invalid peer certificate") {
        return Trouble::Never(ModelProblem::settings(why).with_hint(
            "is it the right server? SSL_CERT_FILE names a file with further certificates to trust",
        ));
    }
    Trouble::Again(why, None)
}

pub(super) fn too_long(url: &Url, most: u64) -> ModelProblem {
    ModelProblem::checkpoint(format!("`{}` has more than {most} bytes", shown(url)))
}

/// An address without what is signed in it.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    let _ = url.set_password(None);
    url.to_string()
}

/// An error with its causes; the address, which may be a signed one, is left out.
pub(super) fn in_full(error: &reqwest::Error) -> String {
    let mut text =
        if error.is_timeout() { "no answer in time" } else { "the connection failed" }.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
