//! Files of object stores (`s3://`, `gs://`, `az://`) and web servers (`http://`, `https://`). Those of input are read by
//! ranges; those of a run directory and an output, which have to be in a store, are written, too.
//!
//! Who asks and where is described by the variables of each store's own tools (`AWS_…`, `GOOGLE_…`, `AZURE_…`). What is
//! read is kept for a while in blocks, in memory: a work unit is looked through before it is read, and its columns are
//! read side by side.

pub(crate) mod connector;
pub(crate) mod failure;
pub(crate) mod stored;
pub(crate) mod upload;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longsift_stages::contract::{Address, Location, Scheme};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, RetryConfig,
};
use tokio::runtime::Runtime;

use super::error::{ErrorKind, StorageError};
use super::range_file::{FetchRange, RangeFile, Stamp, TAIL_BYTES};
use super::retry::{RetryPolicy, retry};
use crate::base::stop::Stop;
use connector::Connector;
use failure::{failure, kind};

/// For one answer, from its first to its last byte.
const ANSWER: Duration = Duration::from_mins(1);

/// For a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Where a file of a store is, and which version was opened.
#[derive(Debug)]
struct ObjectFile {
    store: Arc<dyn ObjectStore>,
    path: Path,
    address: String,
    e_tag: Option<String>,
}

/// Opens a file by its address.
pub(super) fn open(url: &str) -> Result<RangeFile, StorageError> {
    let Place { client, path, .. } = place("open", url)?;
    let store = client.objects;
    let (meta, tail) = ask("open", url, || async {
        let range = Some(GetRange::Suffix(TAIL_BYTES));
        let options = GetOptions { range, ..GetOptions::default() };
        match store.get_opts(&path, options).await {
            Ok(answer) => {
                let meta = answer.meta.clone();
                Ok((meta, answer.bytes().await?))
            }
            // Azure has no such ranges, and no store has a range of an empty file.
            Err(error) if kind(&error) == ErrorKind::Invalid => {
                Ok((store.head(&path).await?, Bytes::new()))
            }
            Err(error) => Err(error),
        }
    })?;
    let tail = if tail.len() as u64 > meta.size { Bytes::new() } else { tail };
    let ObjectMeta { size, last_modified, e_tag, .. } = meta;
    let version = e_tag.clone().unwrap_or_else(|| last_modified.to_rfc3339());
    let modified_ns = last_modified.timestamp_nanos_opt().map_or(0, i128::from);
    let key = format!("{url}\0{version}");
    let file = ObjectFile { store, path, address: url.to_owned(), e_tag };
    Ok(RangeFile::elsewhere(file, key, Stamp::new(size, modified_ns), tail))
}

impl FetchRange for ObjectFile {
    fn fetch(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        let Range { start, end } = range;
        let options = || GetOptions {
            range: Some(GetRange::Bounded(start..end)),
            if_match: self.e_tag.clone(),
            ..GetOptions::default()
        };
        let block = ask("read", &self.address, || async {
            self.store.get_opts(&self.path, options()).await?.bytes().await
        })?;
        if block.len() as u64 != end - start {
            let why = format!("{} bytes came where {} were asked for", block.len(), end - start);
            return Err(StorageError::new(
                "read",
                Location::parse(&self.address),
                ErrorKind::Invalid,
                why,
            ));
        }
        Ok(block)
    }
}

/// The names of all files below an address (without the address itself and a slash), sorted.
pub(crate) fn list(url: &str) -> Result<Vec<String>, StorageError> {
    let Place { client, path, .. } = place("list", url)?;
    let prefix = (!path.as_ref().is_empty()).then_some(&path);
    let found = ask("list", url, || async {
        use futures_util::TryStreamExt;
        client.objects.list(prefix).try_collect::<Vec<ObjectMeta>>().await
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

/// Asks a store until it answers, cannot, has taken too long, or a signal has come.
fn ask<T, F: Future<Output = object_store::Result<T>>>(
    operation: &'static str,
    address: &str,
    attempt: impl FnMut() -> F,
) -> Result<T, StorageError> {
    runtime().block_on(answered(operation, address, RetryPolicy::default(), attempt))
}

/// The same on a thread that may not wait.
async fn answered<T, F: Future<Output = object_store::Result<T>>>(
    operation: &'static str,
    address: &str,
    policy: RetryPolicy,
    mut attempt: impl FnMut() -> F,
) -> Result<T, StorageError> {
    retry(&Stop::of_process(), &policy, || {
        let answer = attempt();
        async {
            let (answer, retry_after) = connector::listening(answer).await;
            answer.map_err(|error| StorageError {
                retry_after,
                ..failure(operation, address, &error)
            })
        }
    })
    .await
}

/// Who asks a bucket or a server.
#[derive(Clone)]
struct Client {
    objects: Arc<dyn ObjectStore>,
    /// Where objects can be written in parts; nothing is written to web servers.
    parts: Option<Arc<dyn MultipartStore>>,
}

impl Client {
    fn new<S: ObjectStore + MultipartStore>(store: S) -> Self {
        let store = Arc::new(store);
        Self { objects: Arc::<S>::clone(&store), parts: Some(store) }
    }
}

/// A file's store, and its name there.
struct Place {
    client: Client,
    /// The store's own address.
    root: String,
    path: Path,
}

fn place(operation: &'static str, url: &str) -> Result<Place, StorageError> {
    let wrong =
        |why: String| StorageError::new(operation, Location::parse(url), ErrorKind::Invalid, why);
    let address = Address::parse(url).ok_or_else(|| wrong("it is not an address".into()))?;
    let path = if address.scheme.is_web() {
        Path::from_url_path(address.name())
    } else {
        Path::parse(address.name().trim_matches('/'))
    };
    let path = path.map_err(|error| wrong(error.to_string()))?;
    let root = address.root().to_string();
    let client = client(address.scheme, &root).map_err(|error| wrong(error.to_string()))?;
    Ok(Place { client, root, path })
}

/// Who asks a bucket or a server; made once. Attempts are repeated here ([`ask`]) and not by the client, which does not
/// hear a server that says when to come again, nor a signal.
fn client(scheme: Scheme, root: &str) -> object_store::Result<Client> {
    static CLIENTS: Mutex<BTreeMap<String, Client>> = Mutex::new(BTreeMap::new());
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(root) {
        return Ok(client.clone());
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new()
        .with_timeout(ANSWER)
        .with_connect_timeout(CONNECT)
        .with_allow_http(scheme == Scheme::Http);
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let client = match scheme {
        Scheme::Gs => Client::new(
            GoogleCloudStorageBuilder::from_env()
                .with_url(root)
                .with_retry(once)
                .with_http_connector(Connector)
                .build()?,
        ),
        Scheme::Az => Client::new(
            MicrosoftAzureBuilder::from_env()
                .with_url(root)
                .with_retry(once)
                .with_http_connector(Connector)
                .build()?,
        ),
        Scheme::Http | Scheme::Https => {
            let store = HttpBuilder::new()
                .with_url(root)
                .with_client_options(options)
                .with_retry(once)
                .with_http_connector(Connector)
                .build()?;
            Client { objects: Arc::new(store), parts: None }
        }
        Scheme::S3 | Scheme::Hub => {
            let store = AmazonS3Builder::from_env()
                .with_url(root)
                .with_retry(once)
                .with_http_connector(Connector);
            // Who names a plain address means it.
            let plain = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().any(|name| {
                let endpoint = std::env::var(name).ok().and_then(|text| Address::parse(&text));
                endpoint.is_some_and(|endpoint| endpoint.scheme == Scheme::Http)
            });
            Client::new(if plain { store.with_allow_http(true) } else { store }.build()?)
        }
    };
    clients.insert(root.to_owned(), client.clone());
    Ok(client)
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

/// What tells the versions of an object apart.
pub(crate) type Version = object_store::UpdateVersion;

/// Writes a whole object in one piece.
pub(super) fn put(
    address: &str,
    bytes: &[u8],
    mode: &PutMode,
    policy: RetryPolicy,
) -> Result<Version, StorageError> {
    let Place { client, path, .. } = place("write", address)?;
    let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
    let written = runtime().block_on(answered("write", address, policy, || {
        client.objects.put_opts(&path, payload.clone(), PutOptions::from(mode.clone()))
    }))?;
    Ok(Version { e_tag: written.e_tag, version: written.version })
}

/// Reads a file on from a place.
pub(super) struct ReadOn {
    pub(super) file: RangeFile,
    pub(super) at: u64,
}

impl Read for ReadOn {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
