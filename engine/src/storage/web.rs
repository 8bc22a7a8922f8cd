//! Reads ranges of files on web servers (`http://`, `https://`). Lists and writes are not supported.
//!
//! The user and query of an address ([`secrets`]) are used only in its requests.

use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;
use longsift_stages::contract::Location;
use reqwest::Url;

use super::error::{ErrorKind, StorageError};
use super::http::answers::ServerKind;
use super::http::{HttpClient, MAX_DISCARDED_PER_BLOCK};
use super::range_file::{RangeFile, Stamp};
use crate::base::secrets;
use crate::base::stop::Stop;

pub(super) fn open(address: &str) -> Result<RangeFile, StorageError> {
    let client = client(address)?;
    let Some(file) = client.open(&url(address)?)? else {
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
    let file = client(address)?.status(&url(address)?)?;
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
