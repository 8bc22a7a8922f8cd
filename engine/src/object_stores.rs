//! Files of object stores (`s3://`, `gs://`, `az://`) and web servers (`http://`, `https://`). Those of input are read by
//! ranges; those of a run directory and an output, which have to be in a store, are written, too.
//!
//! Who asks and where is described by the variables of each store's own tools (`AWS_…`, `GOOGLE_…`, `AZURE_…`). What is
//! read is kept for a while in blocks, in memory: a work unit is looked through before it is read, and its columns are
//! read side by side.

mod blocks;
mod retry;
mod stored;
mod upload;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    RetryConfig,
};
use tokio::runtime::Runtime;

pub(crate) use blocks::Blocks;
use retry::patiently;
pub(crate) use stored::{Stores, Version, read_version, write_version};

/// Bytes of a file that are fetched at once.
const BLOCK_BYTES: u64 = 4 << 20;

/// Bytes at a file's end that come with the first answer: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// An open file of a store.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// The address, and the version where the store tells: what blocks are kept under.
    key: String,
    e_tag: Option<String>,
    /// Length, in bytes.
    pub(crate) length: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub(crate) modified_ns: i128,
    tail: Bytes,
}

/// Opens a file by its address.
///
/// # Errors
/// Of the kinds of an ordinary file: `NotFound`, `PermissionDenied`, …
pub(crate) fn open(url: &str) -> io::Result<RemoteFile> {
    let Place { store, path, .. } = place(url)?;
    let (meta, tail) = patiently(url, || {
        runtime().block_on(async {
            let range = Some(GetRange::Suffix(TAIL_BYTES));
            let options = GetOptions { range, ..GetOptions::default() };
            match store.get_opts(&path, options).await {
                Ok(answer) => {
                    let meta = answer.meta.clone();
                    Ok((meta, answer.bytes().await?))
                }
                // Azure has no such ranges, and no store has a range of an empty file.
                Err(Error::NotSupported { .. } | Error::Generic { .. }) => {
                    Ok((store.head(&path).await?, Bytes::new()))
                }
                Err(error) => Err(error),
            }
        })
    })?;
    let tail = if tail.len() as u64 > meta.size { Bytes::new() } else { tail };
    let ObjectMeta { size, last_modified, e_tag, .. } = meta;
    let version = e_tag.clone().unwrap_or_else(|| last_modified.to_rfc3339());
    let modified_ns = last_modified.timestamp_nanos_opt().map_or(0, i128::from);
    let key = format!("{url}\0{version}");
    Ok(RemoteFile { store, path, key, e_tag, length: size, modified_ns, tail })
}

impl RemoteFile {
    /// Fills the beginning of `buffer` from `offset`; 0 at the end of the file.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.length || buffer.is_empty() {
            return Ok(0);
        }
        let tail_start = self.length - self.tail.len() as u64;
        let (block, start) = if offset >= tail_start {
            (self.tail.clone(), tail_start)
        } else {
            let start = offset / BLOCK_BYTES * BLOCK_BYTES;
            (self.block(start)?, start)
        };
        let rest = &block[(offset - start) as usize..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    /// The block that begins at `start`.
    fn block(&self, start: u64) -> io::Result<Bytes> {
        if let Some(block) = Blocks::get(&self.key, start) {
            return Ok(block);
        }
        let block = self.range(start..(start + BLOCK_BYTES).min(self.length))?;
        Blocks::put(&self.key, start, block.clone());
        Ok(block)
    }

    /// What tells its version: its length, and an entity tag or a time.
    pub(crate) fn version(&self) -> String {
        let version = self.key.split_once('\0').map_or("", |(_, version)| version);
        format!("{} {version}", self.length)
    }

    /// Exactly these bytes, of the version that was opened.
    pub(crate) fn range(&self, range: Range<u64>) -> io::Result<Bytes> {
        let Range { start, end } = range;
        let options = || GetOptions {
            range: Some(GetRange::Bounded(start..end)),
            if_match: self.e_tag.clone(),
            ..GetOptions::default()
        };
        let block = patiently(self.path.as_ref(), || {
            runtime()
                .block_on(async { self.store.get_opts(&self.path, options()).await?.bytes().await })
        })?;
        if block.len() as u64 != end - start {
            let why = format!("{} bytes came where {} were asked for", block.len(), end - start);
            return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
        }
        Ok(block)
    }
}

/// The names of all files below an address (without the address itself and a slash), sorted.
pub(crate) fn list(url: &str) -> io::Result<Vec<String>> {
    let Place { store, path, .. } = place(url)?;
    let prefix = (!path.as_ref().is_empty()).then_some(&path);
    let found = patiently(url, || {
        runtime().block_on(async {
            use futures_util::TryStreamExt;
            store.list(prefix).try_collect::<Vec<ObjectMeta>>().await
        })
    })?;
    let below = |meta: &ObjectMeta| {
        let rest = meta.location.as_ref().strip_prefix(path.as_ref())?;
        Some(rest.trim_start_matches('/').to_owned())
    };
    let mut names: Vec<String> =
        found.iter().filter_map(below).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    Ok(names)
}

/// A file's store, and its name there.
struct Place {
    store: Arc<dyn ObjectStore>,
    /// The store's own address.
    root: String,
    path: Path,
}

fn place(url: &str) -> io::Result<Place> {
    let wrong = |why: String| io::Error::new(ErrorKind::InvalidInput, why);
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it is no address".into()))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = match scheme {
        "http" | "https" => Path::from_url_path(path),
        _ => Path::parse(path.trim_matches('/')),
    };
    let path = path.map_err(|error| wrong(error.to_string()))?;
    let root = format!("{scheme}://{authority}");
    let store = store(scheme, &root).map_err(|error| wrong(error.to_string()))?;
    Ok(Place { store, root, path })
}

/// The store of a bucket or a server; made once.
fn store(scheme: &str, root: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    static STORES: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>> = Mutex::new(BTreeMap::new());
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = stores.get(root) {
        return Ok(Arc::clone(store));
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new()
        .with_timeout(retry::ANSWER)
        .with_connect_timeout(retry::CONNECT)
        .with_allow_http(matches!(scheme, "http"));
    let retry = RetryConfig { retry_timeout: retry::DEADLINE, ..RetryConfig::default() };
    let store: Arc<dyn ObjectStore> = match scheme {
        "gs" => Arc::new(
            GoogleCloudStorageBuilder::from_env().with_url(root).with_retry(retry).build()?,
        ),
        "az" => {
            Arc::new(MicrosoftAzureBuilder::from_env().with_url(root).with_retry(retry).build()?)
        }
        "http" | "https" => Arc::new(
            HttpBuilder::new()
                .with_url(root)
                .with_client_options(options)
                .with_retry(retry)
                .build()?,
        ),
        _ => {
            let store = AmazonS3Builder::from_env().with_url(root).with_retry(retry);
            // Who names a plain address means it.
            let plain = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().any(|name| {
                std::env::var(name).is_ok_and(|endpoint| endpoint.starts_with("http://"))
            });
            Arc::new(if plain { store.with_allow_http(true).build()? } else { store.build()? })
        }
    };
    stores.insert(root.to_owned(), Arc::clone(&store));
    Ok(store)
}

/// Where requests are worked on.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        runtime.expect("a process may have two more threads")
    })
}
