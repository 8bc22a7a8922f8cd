//! Reads ranges of files on web servers (`http://`, `https://`), and posts documents. Lists and writes are not supported.
//!
//! The user and query of an address ([`secrets`]) are used only in its requests.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use longsift_stages::contract::Location;
use reqwest::Url;

use super::error::{ErrorKind, StorageError};
use super::http::answers::{ServerKind, with_causes};
use super::http::{FIRST_BYTES, HttpClient, MAX_DISCARDED_PER_BLOCK};
use super::range_file::{RangeFile, Stamp};
use crate::base::secrets;
use crate::base::stop::Stop;

pub(super) fn open(address: &str) -> Result<RangeFile, StorageError> {
    let client = client(address)?;
    let Some(file) = client.open(&url(address)?, FIRST_BYTES)? else {
        let why = "the server has no such file";
        return Err(StorageError::new("open", Location::parse(address), ErrorKind::NotFound, why));
    };
    let stamp = Stamp::new(file.length, file.modified_ns);
    let key = format!("{address}\0{}", file.version);
    let fetch =
        move |range: Range<u64>| match file.first.get(range.start as usize..range.end as usize) {
            Some(first) => Ok(Bytes::copy_from_slice(first)),
            None => client.read_range(&file, range),
        };
    Ok(RangeFile::remote(fetch, key, stamp, Bytes::new()))
}

pub(super) fn stamp(address: &str) -> Result<Option<Stamp>, StorageError> {
    let file = client(address)?.open(&url(address)?, 1)?;
    Ok(file.map(|file| Stamp::new(file.length, file.modified_ns)))
}

/// Returns an address with its user and query, for requests.
pub(crate) fn url(address: &str) -> Result<Url, StorageError> {
    let wrong = |why: &str| {
        StorageError::new("open", Location::parse(address), ErrorKind::Invalid, why.to_owned())
    };
    let (scheme, rest) = address.split_once("://").ok_or_else(|| wrong("it is not an address"))?;
    if rest.is_empty() || rest.starts_with(['/', ':']) {
        return Err(wrong("it names no host"));
    }
    let secrets = secrets::recall(address);
    if secrets.query.contains('#') {
        return Err(wrong(
            "it has a fragment (`#`), which is not part of a request; write `%23` for a number sign",
        ));
    }
    let user = if secrets.user.is_empty() { "" } else { "@" };
    let text = format!("{scheme}://{}{user}{rest}", secrets.user);
    let mut url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
    if !secrets.query.is_empty() {
        url.set_query(Some(&secrets.query));
    }
    Ok(url)
}

fn client(address: &str) -> Result<&'static HttpClient, StorageError> {
    static CLIENT: OnceLock<HttpClient> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    let mut client = HttpClient::new(None, ServerKind::WEB, Stop::global()).map_err(|problem| {
        StorageError::new("open", Location::parse(address), ErrorKind::Transient, problem.message)
    })?;
    client.max_discarded_bytes = MAX_DISCARDED_PER_BLOCK;
    Ok(CLIENT.get_or_init(|| client))
}

/// Posts JSON, with `key` as bearer token, and returns the status. Follows no redirects. Errors are texts for a log.
pub(crate) fn post(
    url: &str,
    key: Option<&str>,
    body: String,
    timeout: Duration,
) -> Result<u16, String> {
    // Another part of the program may have installed the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let client = reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .build();
    let client = client.map_err(|error| with_causes(&error))?;
    let mut request = client.post(url).header("Content-Type", "application/json").body(body);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    // `send` starts a timer immediately, which panics outside a running runtime.
    let answer = runtime.block_on(async { request.send().await });
    Ok(answer.map_err(|error| with_causes(&error))?.status().as_u16())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Posts to a server that answers `status`; returns the request that it received, and the result.
    fn sent(status: &'static str) -> (String, Result<u16, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/events", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut arrived = Vec::new();
            let mut buffer = [0; 4096];
            while !arrived.ends_with(b"{}") {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "{}", String::from_utf8_lossy(&arrived));
                arrived.extend(&buffer[..read]);
            }
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            String::from_utf8(arrived).unwrap().to_lowercase()
        });
        let result = post(&url, Some("key"), "{}".to_owned(), Duration::from_mins(1));
        (server.join().unwrap(), result)
    }

    #[test]
    fn a_document_arrives_with_its_type_and_key() {
        let (arrived, result) = sent("201 Created");
        assert_eq!(result, Ok(201));
        assert!(arrived.starts_with("post /events http/1.1\r\n"), "{arrived}");
        assert!(arrived.contains("content-type: application/json\r\n"), "{arrived}");
        assert!(arrived.contains("authorization: bearer key\r\n"), "{arrived}");
    }

    #[test]
    fn a_refusal_and_a_missing_server_are_reported() {
        assert_eq!(sent("503 Busy").1, Ok(503));
        let elsewhere = "302 Found\r\nLocation: http://127.0.0.1:9/stolen";
        assert_eq!(sent(elsewhere).1, Ok(302), "no other server gets the key");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        assert!(post(&url, None, "{}".to_owned(), Duration::from_mins(1)).is_err());
    }
}
