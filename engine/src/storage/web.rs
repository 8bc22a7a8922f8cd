//! Reads ranges of files on web servers (`http://`, `https://`). Lists and writes are not supported.
//!
//! The user and query of an address ([`secrets`]) are used only in its requests.

use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;
use longsift_stages::contract::Location;
use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::error::{ErrorKind, StorageError};
use super::http::answers::ServerKind;
use super::http::{HttpClient, MAX_DISCARDED_PER_BLOCK, RemoteFile};
use super::range_file::{FetchRange, RangeFile, Stamp};
use super::retry::RetryPolicy;
use crate::base::secrets;
use crate::base::stop::Stop;

pub(super) fn open(address: &str) -> Result<RangeFile, StorageError> {
    let Some(file) = client(address)?.open(&url(address)?)? else {
        let why = "the server has no such file";
        return Err(StorageError::new("open", Location::parse(address), ErrorKind::NotFound, why));
    };
    let stamp = Stamp::new(file.length, file.modified_ns);
    let key = format!("{address}\0{}", file.version);
    Ok(RangeFile::remote(file, key, stamp, Bytes::new()))
}

/// Returns the length and modification time of a file; `None` if it is missing.
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
    let client = HttpClient::new(None, ServerKind::WEB, RetryPolicy::default(), Stop::global());
    let client = client.map_err(|problem: ModelProblem| {
        StorageError::new("open", Location::parse(address), ErrorKind::Transient, problem.message)
    })?;
    Ok(CLIENT.get_or_init(|| client.with_max_discarded_bytes(MAX_DISCARDED_PER_BLOCK)))
}

impl FetchRange for RemoteFile {
    fn fetch(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        if let Some(first) = self.first.get(range.start as usize..range.end as usize) {
            return Ok(Bytes::copy_from_slice(first));
        }
        client(self.url.as_str())?.read_range(self, range)
    }
}
