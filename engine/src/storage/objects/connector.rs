//! HTTP connector of the stores' clients. Records `Retry-After` and detects what the clients ignore: lists that continue
//! without a new continuation token, and failures with the status of success. Redirects are not followed: a request is signed
//! for one server, and its headers contain credentials.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Error};
use reqwest::{Method, StatusCode, Url};

use super::failure::{element, incomplete};
use crate::base::secrets;
use crate::base::text::{self, count, quoted};
use crate::storage::http::READ_TIMEOUT;
use crate::storage::retry::retry_after;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum upload speed that is not a timeout.
const MIN_BYTES_PER_SECOND: u64 = 20_000;
/// Maximum bytes of a page of a list: 1,000 keys on S3, 5,000 blobs on Azure, each with a name of at most 1,024 bytes.
const MAX_PAGE_BYTES: usize = 64 << 20;

/// Maximum number of successive pages of a list without an entry: stores send some for removed objects.
const MAX_EMPTY_PAGES: usize = 1_000;
/// Maximum bytes of an answer with credentials.
const MAX_CREDENTIALS_BYTES: u64 = 64 << 10;
/// Parameters of requests for tokens with the credentials of the client.
const CREDENTIAL_PARAMETERS: [&str; 5] =
    ["WebIdentityToken", "assertion", "client_assertion", "client_secret", "refresh_token"];

/// Schemes of the header `Authorization` with a signature of S3 or Azure.
const SIGNATURE_SCHEMES: [&str; 2] = ["AWS4-", "SharedKey"];

/// Headers of requests that copy an object.
const COPY_SOURCES: [&str; 2] = ["x-amz-copy-source", "x-goog-copy-source"];

tokio::task_local! {
    /// `Retry-After` of this attempt's last answer.
    static RETRY_AFTER: Cell<Option<Duration>>;
    /// Pages of the list of this attempt.
    static PAGES: RefCell<Pages>;
}

/// Pages of a list, to notice that it does not end.
#[derive(Debug, Default)]
struct Pages {
    /// Digests of the addresses of the pages, and of the names on them.
    known: BTreeSet<String>,
    /// Successive pages without an entry.
    empty: usize,
}

impl Pages {
    /// Adds a page; returns why the list would not end.
    fn add(&mut self, address: &str, page: &str) -> Option<&'static str> {
        let tags = ["<Contents>", "<CommonPrefixes>", "<Blob>", "<BlobPrefix>"];
        let is_empty = !tags.iter().any(|tag| page.contains(tag));
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        let names = ["<Key>", "<Name", "<Prefix>"].iter().flat_map(|tag| page.split(tag).skip(1));
        let names: Vec<&str> = names.filter_map(|name| name.split("</").next()).collect();
        let names = (!is_empty).then(|| format!("names\n{}", names.join("\n")));
        let mut keys = names.into_iter().chain([address.to_owned()]);
        if !keys.all(|key| self.known.insert(text::sha256_hex(key.as_bytes()))) {
            return Some("the server repeats an earlier page or its token");
        }
        (self.empty > MAX_EMPTY_PAGES).then_some("the server sends pages without entries only")
    }
}

/// Returns an attempt's answer, and the delay before a retry that the server requests.
pub(super) async fn with_retry_after<T>(attempt: impl Future<Output = T>) -> (T, Option<Duration>) {
    let recorded = async { (attempt.await, RETRY_AFTER.with(Cell::get)) };
    PAGES.scope(RefCell::default(), RETRY_AFTER.scope(Cell::new(None), recorded)).await
}

#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let wrong = |error: reqwest::Error| Error::Generic { store: "store", source: error.into() };
        let option = |key| options.get_config_value(&key);
        let builder = || {
            let builder = reqwest::Client::builder()
                .user_agent(concat!("longsift/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .danger_accept_invalid_certs(
                    option(ClientConfigKey::AllowInvalidCertificates).as_deref() == Some("true"),
                );
            let Some(proxy) = option(ClientConfigKey::ProxyUrl) else { return Ok(builder) };
            let proxy = reqwest::Proxy::all(proxy)?;
            let excluded = option(ClientConfigKey::ProxyExcludes).unwrap_or_default();
            Ok(builder.proxy(proxy.no_proxy(reqwest::NoProxy::from_string(&excluded))))
        };
        // A read timeout also ends a request that is still being sent.
        let reads = builder().and_then(|builder| builder.read_timeout(READ_TIMEOUT).build());
        let writes = builder().and_then(reqwest::ClientBuilder::build);
        Ok(HttpClient::new(RetryAfterService {
            reads: HttpClient::new(reads.map_err(wrong)?),
            writes: HttpClient::new(writes.map_err(wrong)?),
        }))
    }
}

#[derive(Debug)]
struct RetryAfterService {
    reads: HttpClient,
    writes: HttpClient,
}

#[async_trait]
impl HttpService for RetryAfterService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let address = request.uri().to_string();
        let token = continuation_token(&address);
        hide_tokens(&request);
        let is_signed = request.headers().contains_key("x-amz-date");
        let result = if COPY_SOURCES.iter().any(|name| request.headers().contains_key(*name)) {
            Some("<CopyObjectResult")
        } else {
            let completes = request.method() == Method::POST
                && request.uri().query().is_some_and(|query| query.contains("uploadId="));
            completes.then_some("<CompleteMultipartUploadResult")
        };
        let bytes = request.body().content_length() as u64;
        let answer = if bytes == 0 {
            self.reads.execute(request).await?
        } else {
            let limit = READ_TIMEOUT + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND);
            let sent = tokio::time::timeout(limit, self.writes.execute(request)).await;
            sent.map_err(|error| HttpError::new(HttpErrorKind::Timeout, error))??
        };
        let text = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let requested = retry_after(text);
        // Credentials are also requested outside attempts.
        let _ = RETRY_AFTER.try_with(|recorded| recorded.set(requested));
        match (token, result) {
            _ if !answer.status().is_success() => Ok(answer),
            (Some(token), _) => check_list(answer, &token, &address).await,
            (None, Some(result)) => check_result(answer, result).await,
            (None, None) if !is_signed => hide_keys(answer).await,
            (None, None) => Ok(answer),
        }
    }
}

/// Hides the tokens of a request in answers: some come from a provider and not from a variable.
fn hide_tokens(request: &HttpRequest) {
    let text = |name: &str| request.headers().get(name)?.to_str().ok();
    // Signatures differ for each request and reveal nothing.
    let token = text("authorization").and_then(|value| match value.split_once(' ') {
        Some((scheme, _)) if SIGNATURE_SCHEMES.iter().any(|of| scheme.starts_with(of)) => None,
        Some((_, token)) => Some(token),
        None => Some(value),
    });
    let session = ["x-amz-security-token", "x-aws-ec2-metadata-token"].into_iter().filter_map(text);
    for token in session.chain(token) {
        secrets::hide_in_answers(token);
    }
    // Requests for tokens have parameters instead of this header.
    if request.headers().contains_key("authorization") {
        return;
    }
    let parameters =
        [request.uri().query().map(str::as_bytes), request.body().as_bytes().map(|body| &body[..])];
    // Objects are not read as parameters.
    for text in
        parameters.into_iter().flatten().filter(|text| text.len() as u64 <= MAX_CREDENTIALS_BYTES)
    {
        let Ok(url) = Url::parse(&format!("http://host/?{}", String::from_utf8_lossy(text))) else {
            continue;
        };
        for (_, value) in
            url.query_pairs().filter(|(name, _)| CREDENTIAL_PARAMETERS.contains(&&**name))
        {
            secrets::hide_in_answers(&value);
        }
    }
}

/// Hides the secret keys in an answer of a provider of credentials, which no request contains.
async fn hide_keys(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let length = answer.headers().get("content-length").and_then(|length| length.to_str().ok());
    if length
        .and_then(|length| length.parse().ok())
        .is_none_or(|length: u64| length > MAX_CREDENTIALS_BYTES)
    {
        return Ok(answer);
    }
    let (parts, body) = answer.into_parts();
    let bytes = read_page(body).await?;
    let text = String::from_utf8_lossy(&bytes);
    for after in text.split("SecretAccessKey").skip(1) {
        // `": "<key>"` or `><key></`.
        let key = after.trim_start_matches(['"', ':', ' ', '>', '\n', '\t', '\r']);
        let key = key.split(['"', '<']).next().unwrap_or_default();
        let decoded: Option<String> = serde_json::from_str(&format!("\"{key}\"")).ok();
        secrets::hide_in_answers(&unescaped(&decoded.unwrap_or_else(|| key.to_owned())));
    }
    Ok(HttpResponse::from_parts(parts, bytes.into()))
}

/// Returns the continuation token of a list request, empty for the first page; `None` for other requests.
fn continuation_token(uri: &str) -> Option<String> {
    let url = Url::parse(uri).ok()?;
    let value = |names: &[&str]| {
        let mut pairs = url.query_pairs();
        pairs.find(|(name, _)| names.contains(&&**name)).map(|(_, value)| value.into_owned())
    };
    let is_list = value(&["list-type"]).is_some() || value(&["comp"]).as_deref() == Some("list");
    is_list.then(|| value(&["continuation-token", "marker"]).unwrap_or_default())
}

/// Reads the body of an answer.
async fn read_page(body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    let (mut bytes, mut pieces) = (Vec::new(), body.bytes_stream());
    while let Some(piece) = pieces.try_next().await? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > MAX_PAGE_BYTES {
            let max = count(MAX_PAGE_BYTES as u64);
            let why = format!("a page has more than {max} bytes");
            return Err(HttpError::new(HttpErrorKind::Unknown, incomplete(&why)));
        }
    }
    Ok(bytes)
}

/// Returns an answer with the status of its error if it lacks the element `result`: a store sends the status before it copies an
/// object or joins its parts.
async fn check_result(answer: HttpResponse, result: &str) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = answer.into_parts();
    let bytes = read_page(body).await?;
    let page = String::from_utf8_lossy(&bytes);
    if !page.contains(result) {
        parts.status = match element(&page, "Code") {
            Some("AccessDenied" | "AllAccessDisabled") => StatusCode::FORBIDDEN,
            Some("NoSuchBucket" | "NoSuchKey" | "NoSuchUpload") => StatusCode::NOT_FOUND,
            Some(
                "InternalError" | "OperationAborted" | "RequestTimeout" | "ServiceUnavailable"
                | "SlowDown",
            ) => StatusCode::SERVICE_UNAVAILABLE,
            Some(_) => StatusCode::BAD_REQUEST,
            // A server that does not know the call.
            None => StatusCode::NOT_IMPLEMENTED,
        };
    }
    Ok(HttpResponse::from_parts(parts, bytes.into()))
}

/// Returns a page of a list, or an error if it does not state whether it is the last one.
async fn check_list(
    answer: HttpResponse,
    token: &str,
    address: &str,
) -> Result<HttpResponse, HttpError> {
    let wrong = |why: &str| HttpError::new(HttpErrorKind::Unknown, incomplete(why));
    let (parts, body) = answer.into_parts();
    let bytes = read_page(body).await?;
    let page = String::from_utf8_lossy(&bytes);
    if !is_list(&page) {
        return Err(wrong("the server answered with something other than a list"));
    }
    let endless = || PAGES.try_with(|pages| pages.borrow_mut().add(address, &page)).ok().flatten();
    if let Some(why) = page_error(&page, token).or_else(endless) {
        return Err(wrong(why));
    }
    let (page, left_out) = with_usable_names(&page);
    if let [first, more @ ..] = &left_out[..] {
        let more =
            if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        tracing::warn!("left out {}{more}: not a valid path", quoted(first));
    }
    Ok(HttpResponse::from_parts(parts, page.into_bytes().into()))
}

/// Whether a page is a list, and not an error or a login page with the status of success.
fn is_list(page: &str) -> bool {
    ["ListBucketResult", "EnumerationResults"].iter().any(|root| {
        page.contains(&format!("<{root}")) && page.trim_end().ends_with(&format!("</{root}>"))
    })
}

/// Removes entries whose names are invalid paths, and returns these names. Also removes empty objects that mark
/// folders. One such entry would make the client reject the whole page.
fn with_usable_names(page: &str) -> (String, Vec<String>) {
    let mut left_out = Vec::new();
    let mut page = page.to_owned();
    for (tag, name, size) in [
        ("Contents", "Key", "Size"),
        ("CommonPrefixes", "Prefix", ""),
        ("Blob", "Name", "Content-Length"),
        ("BlobPrefix", "Name", ""),
    ] {
        let (start, end) = (format!("<{tag}>"), format!("</{tag}>"));
        let mut kept = String::with_capacity(page.len());
        let mut rest = page.as_str();
        while let Some((before, opened)) = rest.split_once(&start) {
            let (entry, after) = opened.split_once(&end).unwrap_or((opened, ""));
            let name = element(entry, name).unwrap_or_default();
            let is_marker =
                !size.is_empty() && name.ends_with('/') && element(entry, size) == Some("0");
            let name = unescaped(name);
            let mut parts = name.strip_suffix('/').unwrap_or(&name).split('/');
            let is_usable = !name.chars().any(char::is_control)
                && parts.all(|part| !matches!(part, "" | "." | ".."));
            kept.push_str(before);
            if !is_usable {
                left_out.push(name);
            } else if !is_marker {
                kept.extend([&*start, entry, &*end]);
            }
            rest = after;
        }
        kept.push_str(rest);
        page = kept;
    }
    (page, left_out)
}

/// Decodes the XML escapes that make a name an invalid path.
fn unescaped(name: &str) -> String {
    let mut parts = name.split('&');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let escape = part.split_once(';').and_then(|(code, rest)| {
            let digits = code.strip_prefix('#')?;
            let code = match digits.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => digits.parse().ok()?,
            };
            // Invalid characters are shown as NUL.
            Some((char::from_u32(code).unwrap_or('\0'), rest))
        });
        if let Some((character, rest)) = escape {
            text.push(character);
            text.push_str(rest);
        } else {
            text.push('&');
            text.push_str(part);
        }
    }
    text
}

/// Returns why more pages could be missing after a page. Lists of S3 and Google state in `IsTruncated` whether a page is the
/// last one; those of Azure have an empty `NextMarker`.
fn page_error(page: &str, token: &str) -> Option<&'static str> {
    let element = |name: &str| element(page, name).map(str::trim);
    let is_azure = page.contains("<EnumerationResults");
    let next = element(if is_azure { "NextMarker" } else { "NextContinuationToken" });
    let flag = element("IsTruncated").map(str::to_ascii_lowercase);
    match (next.filter(|next| !next.is_empty()), flag.as_deref()) {
        (Some(next), _) if next == token => {
            Some("the server repeats the token of the previous page")
        }
        (None, Some("true")) => Some("the server announces another page without a token"),
        (None, flag) if flag != Some("false") && page.contains("<ListBucketResult") => {
            Some("the server does not state whether a page is the last one (`IsTruncated`)")
        }
        (None, _) if is_azure && !page.contains("<NextMarker") => {
            Some("the server does not state whether a page is the last one (`NextMarker`)")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_not_the_last_requires_a_new_token() {
        let wrong = |page: &str, token: &str| page_error(page, token).is_some();
        let next =
            "<IsTruncated>true</IsTruncated><NextContinuationToken>b</NextContinuationToken>";
        assert!(!wrong(next, "") && !wrong(next, "a") && wrong(next, "b"));
        for lost in ["", "<NextContinuationToken></NextContinuationToken>", "<Marker>a</Marker>"] {
            assert!(wrong(&format!("<IsTruncated> True</IsTruncated>{lost}"), ""), "{lost}");
            assert!(!wrong(&format!("<IsTruncated>false</IsTruncated>{lost}"), "a"), "{lost}");
        }
        let azure = |next: &str| format!("<EnumerationResults>{next}</EnumerationResults>");
        assert!(
            wrong(&azure("<NextMarker>m</NextMarker>"), "m")
                && !wrong(&azure("<NextMarker />"), "m")
        );
        let version_1 = "<IsTruncated>true</IsTruncated><NextMarker>m</NextMarker>";
        assert!(wrong(version_1, ""), "the client does not read it");
        assert!(
            wrong("<ListBucketResult></ListBucketResult>", ""),
            "S3 always sends `IsTruncated`"
        );
        assert!(wrong("<EnumerationResults></EnumerationResults>", ""), "and Azure `NextMarker`");
    }

    #[test]
    fn a_list_that_does_not_end_is_refused() {
        let mut pages = Pages::default();
        let entry = |name: &str| format!("<Contents><Key>{name}</Key></Contents>");
        for token in ["", "a", "b"] {
            assert_eq!(pages.add(token, &entry(token)), None);
        }
        for (token, name) in [("a", "c"), ("d", "b")] {
            let why = Some("the server repeats an earlier page or its token");
            assert_eq!(pages.add(token, &entry(name)), why);
        }
        let mut pages = Pages::default();
        let ends = (0..=MAX_EMPTY_PAGES).find_map(|page| pages.add(&page.to_string(), ""));
        assert_eq!(ends, Some("the server sends pages without entries only"));
    }

    #[test]
    fn only_lists_are_read_as_lists() {
        assert!(is_list(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Name>b</Name></ListBucketResult>\n"
        ));
        assert!(is_list("<EnumerationResults></EnumerationResults>"));
        for other in [
            "",
            "<Error><Code>SlowDown</Code></Error>",
            "<html>log in</html>",
            "<ListBucketResult><Contents>",
        ] {
            assert!(!is_list(other), "{other}");
        }
    }

    #[test]
    fn invalid_names_and_folder_markers_are_left_out() {
        let object = |key: &str, size: u64| {
            format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>")
        };
        let good = [object("d/a&amp;b.parquet", 0), object("d/sub/x", 9)].concat();
        let bad = [object("d//x", 1), object("d/&#x1;x", 1), object("/d", 1), object("d/../x", 1)];
        let page = format!("<X>{}{good}{}{}</X>", object("d/", 0), bad.concat(), object("d/s/", 0));
        let (kept, left_out) = with_usable_names(&page);
        assert_eq!(kept, format!("<X>{good}</X>"));
        assert_eq!(left_out, ["d//x", "d/\u{1}x", "/d", "d/../x"]);
    }

    #[test]
    fn list_requests_are_detected() {
        let token = |query: &str| continuation_token(&format!("http://host/bucket{query}"));
        assert_eq!(token("/x.parquet"), None);
        assert_eq!(token("?list-type=2&prefix=d%2F").as_deref(), Some(""));
        assert_eq!(token("?list-type=2&continuation-token=a%2Bb").as_deref(), Some("a+b"));
        assert_eq!(token("?restype=container&comp=list&marker=m").as_deref(), Some("m"));
    }
}
