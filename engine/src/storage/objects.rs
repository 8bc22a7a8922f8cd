//! Files of object stores (`s3://`, `gs://`, `az://`). Inputs are read by ranges; run directories and outputs are also
//! written.
//!
//! Credentials and endpoints come from the variables of each store's own tools (`AWS_…`, `GOOGLE_…`, `AZURE_…`). Blocks
//! are cached in memory for a while: a work unit is checked before it is read, and its columns are read in parallel.

pub(crate) mod connector;
pub(crate) mod failure;
pub(crate) mod stored;
pub(crate) mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use futures_util::TryStreamExt;
use longsift_stages::contract::{Address, Location, Scheme};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig,
};
use reqwest::Url;
use tokio::runtime::Runtime;

use super::error::{ErrorKind, StorageError};
use super::http::is_strong_tag;
use super::range_file::{RangeFile, Stamp, TAIL_BYTES, hash_of};
use super::retry::{RetryPolicy, retry};
use crate::base::parallel::lock;
use crate::base::stop::Stop;
use crate::base::{environment, secrets, text};
use connector::Connector;
use failure::{failure, kind};

pub(super) fn open(url: &str) -> Result<RangeFile, StorageError> {
    let ObjectLocation { client, path, .. } = locate("open", url)?;
    let store = client.objects;
    let (meta, tail) = request("open", url, || async {
        let range = Some(GetRange::Suffix(TAIL_BYTES));
        let options = GetOptions { range, ..GetOptions::default() };
        match store.get_opts(&path, options).await {
            Ok(answer) => {
                let meta = answer.meta.clone();
                Ok((meta, answer.bytes().await?))
            }
            // Azure does not support suffix ranges, and an empty file has no ranges.
            Err(error) if kind(&error) == ErrorKind::Invalid => {
                Ok((store.head(&path).await?, Bytes::new()))
            }
            Err(error) => Err(error),
        }
    })?;
    // A server without ranges sends the whole object.
    let (received, expected) = (tail.len() as u64, meta.size.min(TAIL_BYTES));
    if !tail.is_empty() && received != expected && received != meta.size {
        return Err(other_length("open", url, expected, received));
    }
    let stamp = stamp(&meta);
    let Some(tag) = meta.e_tag.as_deref().filter(|tag| is_strong_tag(tag)) else {
        let why = "the store sends no strong ETag, so changes of the object during reading would go unnoticed";
        return Err(StorageError::new("open", Location::parse(url), ErrorKind::Invalid, why));
    };
    let key = format!("{url}\0{tag}");
    let address = url.to_owned();
    let fetch = move |range| fetch(&*store, &path, &address, &meta, range);
    Ok(RangeFile::remote(fetch, key, stamp, tail))
}

pub(super) fn stamp(meta: &ObjectMeta) -> Stamp {
    let version = meta.e_tag.as_deref().map_or(0, hash_of);
    let modified_ns = meta.last_modified.timestamp_nanos_opt().map_or(0, i128::from);
    Stamp { version, ..Stamp::new(meta.size, modified_ns) }
}

/// Fetches bytes of an object, in the version that was `opened`.
fn fetch(
    store: &dyn ObjectStore,
    path: &Path,
    address: &str,
    opened: &ObjectMeta,
    Range { start, end }: Range<u64>,
) -> Result<Bytes, StorageError> {
    let options = || GetOptions {
        range: Some(GetRange::Bounded(start..end)),
        if_match: opened.e_tag.clone(),
        ..GetOptions::default()
    };
    let (now, block) = request("read", address, || async {
        let answer = store.get_opts(path, options()).await?;
        let now = answer.meta.clone();
        Ok((now, answer.bytes().await?))
    })?;
    let version = |meta: &ObjectMeta| (meta.size, meta.e_tag.clone(), meta.last_modified);
    let wrong = |kind, why: &str| StorageError::new("read", Location::parse(address), kind, why);
    // Some servers ignore preconditions.
    if version(&now) != version(opened) {
        return Err(wrong(ErrorKind::Changed, "the store now has another version")
            .with_hint("run again after it has stopped changing"));
    }
    let (received, expected) = (block.len() as u64, end - start);
    if received == expected {
        Ok(block)
    } else {
        Err(other_length("read", address, expected, received))
    }
}

fn other_length(operation: &'static str, url: &str, expected: u64, received: u64) -> StorageError {
    let (expected, received) = (text::count(expected), text::count(received));
    let why = format!("expected {expected} bytes, got {received}");
    StorageError::new(operation, Location::parse(url), ErrorKind::Invalid, why).with_hint(
        "the server does not answer as S3 does: use another one, or copy the files to a disk",
    )
}

/// Returns the names of all files below an address (without the address and its slash), sorted.
pub(crate) fn list(url: &str) -> Result<Vec<String>, StorageError> {
    let ObjectLocation { client, path, .. } = locate("list", url)?;
    let prefix = (!path.as_ref().is_empty()).then_some(&path);
    let below = |name: &str| {
        let rest = name.strip_prefix(path.as_ref())?.trim_start_matches('/');
        (!rest.is_empty()).then(|| rest.to_owned())
    };
    let names = request("list", url, || async {
        let (mut names, mut objects) = (BTreeSet::new(), client.objects.list(prefix));
        while let Some(object) = objects.try_next().await? {
            let name = object.location.as_ref();
            // A server that repeats pages would never finish.
            if below(name).is_some_and(|below| !names.insert(below)) {
                return Err(failure::incomplete(&format!("it contains `{name}` twice")));
            }
        }
        Ok(names)
    })?;
    Ok(names.into_iter().collect())
}

/// Sends a request with retries, until it succeeds, fails permanently, times out, or a signal is received.
fn request<T, F: Future<Output = object_store::Result<T>>>(
    operation: &'static str,
    address: &str,
    attempt: impl FnMut() -> F,
) -> Result<T, StorageError> {
    runtime().block_on(answered(operation, address, RetryPolicy::default(), attempt))
}

async fn answered<T, F: Future<Output = object_store::Result<T>>>(
    operation: &'static str,
    address: &str,
    policy: RetryPolicy,
    mut attempt: impl FnMut() -> F,
) -> Result<T, StorageError> {
    let stopped = || {
        let (at, why) = (Location::parse(address), "stopped by a signal");
        StorageError::new(operation, at, ErrorKind::Stopped, why)
    };
    retry(&Stop::global(), &policy, stopped, || {
        let answer = attempt();
        async {
            let (answer, retry_after) = connector::with_retry_after(answer).await;
            answer.map_err(|error| StorageError {
                retry_after,
                ..failure(operation, address, &error)
            })
        }
    })
    .await
}

#[derive(Clone)]
struct BucketClient {
    objects: Arc<dyn ObjectStore>,
    /// Same store, for multipart uploads.
    parts: Arc<dyn MultipartStore>,
}

impl BucketClient {
    fn new<S: ObjectStore + MultipartStore>(store: S) -> Self {
        let store = Arc::new(store);
        Self { objects: Arc::<S>::clone(&store), parts: store }
    }
}

struct ObjectLocation {
    client: BucketClient,
    root: String,
    path: Path,
}

fn locate(operation: &'static str, url: &str) -> Result<ObjectLocation, StorageError> {
    let wrong =
        |why: String| StorageError::new(operation, Location::parse(url), ErrorKind::Invalid, why);
    let address = Address::parse(url).ok_or_else(|| wrong("it is not an address".into()))?;
    if address.scheme.is_web() {
        return Err(wrong("web servers support neither lists nor writes".into()));
    }
    if address.authority().contains('@') {
        return Err(wrong("a bucket has no user; credentials come from the environment".into()));
    }
    let path = Path::parse(address.name().trim_matches('/'));
    let path = path.map_err(|error| wrong(error.to_string()))?;
    let root = address.root().to_string();
    let client = client(address.scheme, &root).map_err(wrong)?;
    Ok(ObjectLocation { client, root, path })
}

/// Returns the client of a bucket. Retries are done here, because the library's respect neither `Retry-After` nor signals.
fn client(scheme: Scheme, root: &str) -> Result<BucketClient, String> {
    static CLIENTS: Mutex<BTreeMap<String, BucketClient>> = Mutex::new(BTreeMap::new());
    let mut clients = lock(&CLIENTS);
    if let Some(client) = clients.get(root) {
        return Ok(client.clone());
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let in_words = |error: object_store::Error| secrets::without_quotes(&error.to_string());
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    macro_rules! client {
        ($builder:expr) => {{
            let builder = $builder.with_url(root).with_retry(once).with_http_connector(Connector);
            BucketClient::new(builder.build().map_err(in_words)?)
        }};
    }
    let client = match scheme {
        Scheme::Gs => {
            let builder = GoogleCloudStorageBuilder::new();
            let builder = match environment::variable("SERVICE_ACCOUNT") {
                Some(path) => builder.with_service_account_path(path),
                None => builder,
            };
            for name in ["GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"] {
                // The client reads these variables itself.
                if let Ok(host) = std::env::var(name)
                    && !(host.trim().is_empty() && has_any(&GOOGLE_KEYS))
                {
                    environment::check_header(name, &host)?;
                    // A path or a scheme does not belong to a host.
                    check_endpoint(name, &format!("http://{}", host.replace('/', " ")))?;
                }
            }
            client!(configured("GOOGLE_", builder, GoogleCloudStorageBuilder::with_config)?)
        }
        Scheme::Az => {
            let builder = MicrosoftAzureBuilder::new();
            let builder = match environment::variable("IDENTITY_ENDPOINT") {
                Some(endpoint) => {
                    check_endpoint("IDENTITY_ENDPOINT", &endpoint)?;
                    builder.with_msi_endpoint(endpoint)
                }
                None => builder,
            };
            if !has_any(&AZURE_KEYS) {
                check_token_file("AZURE_FEDERATED_TOKEN_FILE", false)?;
            }
            let emulator = "AZURITE_BLOB_STORAGE_URL";
            if let Some(address) = environment::variable(emulator) {
                environment::check_address(emulator, &address)?;
                check_endpoint(emulator, &address)?;
            }
            let header = "IDENTITY_HEADER";
            environment::variable(header);
            // The client reads this variable itself.
            environment::check_header(header, &std::env::var(header).unwrap_or_default())?;
            client!(configured("AZURE_", builder, MicrosoftAzureBuilder::with_config)?)
        }
        _ => {
            // The client reads these files only with the other variables.
            if !has_any(&["AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"]) {
                if has_any(&["AWS_CONTAINER_CREDENTIALS_FULL_URI"]) {
                    check_token_file("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", true)?;
                }
                if has_any(&["AWS_ROLE_ARN"]) {
                    check_token_file("AWS_WEB_IDENTITY_TOKEN_FILE", false)?;
                }
            }
            client!(configured("AWS_", AmazonS3Builder::new(), AmazonS3Builder::with_config)?)
        }
    };
    clients.insert(root.to_owned(), client.clone());
    Ok(client)
}

/// Variables with keys that the client uses instead of a token file.
const AZURE_KEYS: [&str; 7] = [
    "AZURE_SKIP_SIGNATURE",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_USE_EMULATOR",
];

/// Variables with keys that the client uses instead of the metadata server.
const GOOGLE_KEYS: [&str; 6] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
    "SERVICE_ACCOUNT",
];

fn has_any(names: &[&str]) -> bool {
    names.iter().any(|name| environment::variable(name).is_some())
}

/// Refuses a token file that cannot be read, or that cannot be part of a header.
fn check_token_file(name: &str, is_header: bool) -> Result<(), String> {
    let Some(path) = environment::variable(name) else { return Ok(()) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the file of {name} cannot be read: {error}"))?;
    let text = if is_header { &*text } else { "" };
    environment::check_header(&format!("the file of {name}"), text)
}

/// Configures a builder from all variables with a prefix, as the builder's `from_env` does.
fn configured<B, K: FromStr>(
    prefix: &str,
    builder: B,
    with: impl Fn(B, K, String) -> B,
) -> Result<B, String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| name.starts_with(prefix)).try_fold(builder, |builder, name| {
        let key = name.to_ascii_lowercase().parse().ok();
        let Some((key, value)) = key.zip(environment::variable(&name)) else { return Ok(builder) };
        // Account keys (JSON) and certificates (PEM) contain line breaks.
        if !value.starts_with(['{', '-']) {
            environment::check_header(&name, &value)?;
        }
        if !name.contains("PROXY") {
            environment::check_address(&name, &value)?;
        }
        if name == "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI" {
            if !value.starts_with('/') {
                return Err(format!("{name} is not a path: expected `/path`"));
            }
            check_endpoint(&name, &format!("http://host{value}"))?;
        } else if is_endpoint(&name) {
            check_endpoint(&name, &value)?;
        }
        Ok(with(builder, key, value))
    })
}

/// Whether a variable contains the address of a server that is not a proxy.
fn is_endpoint(name: &str) -> bool {
    let ends = |end: &&str| name.ends_with(*end);
    name.contains("ENDPOINT") && !name.contains("_USE_")
        || !name.contains("PROXY") && ["_URL", "_URI", "AUTHORITY_HOST"].iter().any(ends)
}

/// Refuses an endpoint without a scheme or a host, with which signing of requests panics. The error does not show the value.
fn check_endpoint(name: &str, value: &str) -> Result<(), String> {
    let is_web = |url: Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    // The client does not encode the text.
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c);
    if value.chars().all(is_plain) && Url::parse(value).is_ok_and(is_web) {
        return Ok(());
    }
    Err(format!("{name} is not an address like `https://host:9000`"))
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        runtime.expect("a process may have two more threads")
    })
}

pub(crate) type Version = object_store::UpdateVersion;

pub(super) fn put(
    address: &str,
    bytes: &[u8],
    mode: &PutMode,
    policy: RetryPolicy,
) -> Result<Version, StorageError> {
    let ObjectLocation { client, path, .. } = locate("write", address)?;
    let payload = PutPayload::from_bytes(Bytes::copy_from_slice(bytes));
    let written = runtime().block_on(answered("write", address, policy, || {
        client.objects.put_opts(&path, payload.clone(), PutOptions::from(mode.clone()))
    }))?;
    Ok(Version { e_tag: written.e_tag, version: written.version })
}

pub(super) struct ObjectReader {
    pub(super) file: RangeFile,
    pub(super) at: u64,
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_web_address() {
        for value in ["http://127.0.0.1:9", "https://s3.example.com/base"] {
            assert_eq!(check_endpoint("AWS_ENDPOINT_URL", value), Ok(()));
        }
        for value in ["minio:9000", "minio", "http:///", "http://host:notaport", "ftp://x", ""] {
            let why = check_endpoint("AWS_ENDPOINT_URL", value).unwrap_err();
            assert!(why.starts_with("AWS_ENDPOINT_URL is not an address"), "{value}: {why}");
        }
    }
}
