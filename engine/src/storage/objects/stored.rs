//! Implements [`Store`] for object stores. A folder is a name prefix; files appear atomically.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use longsift_stages::contract::{Address, Location};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode};

use super::upload::{Uploading, confirm_size};
use crate::storage;
use crate::storage::error::{ErrorKind, StorageError, failed, if_present};
use crate::storage::objects::{
    ObjectLocation, ObjectReader, Version, answered, list, locate, put, request, runtime, stamp,
};
use crate::storage::range_file::Stamp;
use crate::storage::retry::RetryPolicy;
use crate::storage::store::{Store, Upload};
use crate::storage::web;

/// Largest object that a store can copy by itself; larger ones are read and written.
const MAX_COPY_BYTES: u64 = 5_000_000_000;

#[derive(Debug)]
pub(crate) struct ObjectStores;

impl Store for ObjectStores {
    fn read(&self, address: &str) -> Result<Vec<u8>, StorageError> {
        Ok(read_version(address, RetryPolicy::default())?.0)
    }

    fn reader(&self, address: &str) -> Result<Box<dyn Read>, StorageError> {
        let file = storage::open(&Location::parse(address))?;
        Ok(Box::new(ObjectReader { file, at: 0 }))
    }

    fn write_new(&self, address: &str, bytes: &[u8]) -> Result<bool, StorageError> {
        Ok(write_version(address, bytes, None, RetryPolicy::default())?.is_some())
    }

    fn upload(&self, address: &str) -> Result<Box<dyn Upload>, StorageError> {
        Ok(Box::new(Uploading::new(address)?))
    }

    fn copy(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let (source, target) = (locate("copy", from)?, locate("copy", to)?);
        let opened = request("copy", from, || source.client.objects.head(&source.path))?;
        if opened.size > MAX_COPY_BYTES || source.root != target.root {
            let mut upload = Uploading::new(to)?;
            io::copy(&mut self.reader(from)?, &mut upload)
                .map_err(failed("copy", from.as_ref()))?;
            return upload.complete();
        }
        request("copy", from, || source.client.objects.copy(&source.path, &target.path))?;
        // Azure may copy later, and some servers ignore the source.
        confirm_size("copy", to, &target, opened.size)
    }

    fn remove(&self, address: &str, deadline: Option<Duration>) -> Result<(), StorageError> {
        let default = RetryPolicy::default();
        let policy = RetryPolicy { deadline: deadline.unwrap_or(default.deadline), ..default };
        let ObjectLocation { client, path, .. } = locate("remove", address)?;
        let since = Instant::now();
        let removed = answered("remove", address, policy, || async {
            // The process may have been suspended while it waited.
            if deadline.is_some_and(|deadline| since.elapsed() > deadline) {
                let source = "no time is left".into();
                return Err(Error::Generic { store: "deadline", source });
            }
            client.objects.delete(&path).await
        });
        if_present(runtime().block_on(removed)).map(drop)
    }

    fn remove_matching(
        &self,
        address: &str,
        removes: &dyn Fn(&str) -> bool,
    ) -> Result<(), StorageError> {
        let mut names = list(address)?;
        names.retain(|name| removes(name));
        if names.is_empty() {
            return Ok(());
        }
        let ObjectLocation { client, path, .. } = locate("remove", address)?;
        request("remove", address, || async {
            let paths = names.iter().map(|name| Path::parse(format!("{path}/{name}")));
            let paths: Vec<_> = paths.map(|path| path.map_err(Error::from)).collect();
            let removed = client.objects.delete_stream(futures_util::stream::iter(paths).boxed());
            let is_failure =
                |removed: &Result<Path, Error>| !matches!(removed, Err(Error::NotFound { .. }));
            let failures = removed.filter(|removed| std::future::ready(is_failure(removed)));
            failures.try_for_each(|_| async { Ok(()) }).await
        })
    }

    fn stamp(&self, address: &str) -> Result<Option<Stamp>, StorageError> {
        if Address::parse(address).is_some_and(|address| address.scheme.is_web()) {
            return web::stamp(address);
        }
        let ObjectLocation { client, path, .. } = locate("read", address)?;
        let found = if_present(request("read", address, || client.objects.head(&path)))?;
        Ok(found.as_ref().map(stamp))
    }

    fn list(&self, address: &str) -> Result<Vec<String>, StorageError> {
        let ObjectLocation { client, path, .. } = locate("list", address)?;
        let prefix = (!path.is_root()).then_some(&path);
        let found = request("list", address, || client.objects.list_with_delimiter(prefix))?;
        let files = found.objects.iter().map(|object| &object.location);
        let names = files.chain(&found.common_prefixes).filter_map(Path::filename);
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn list_below(&self, address: &str) -> Result<Vec<String>, StorageError> {
        list(address)
    }

    fn is_folder(&self, address: &str) -> Result<bool, StorageError> {
        let ObjectLocation { client, path, .. } = locate("list", address)?;
        let first = request("list", address, || async {
            client.objects.list(Some(&path)).next().await.transpose()
        });
        first.map(|found| found.is_some())
    }
}

pub(crate) fn read_version(
    address: &str,
    policy: RetryPolicy,
) -> Result<(Vec<u8>, Version), StorageError> {
    let ObjectLocation { client, path, .. } = locate("read", address)?;
    runtime().block_on(answered("read", address, policy, || async {
        let answer = client.objects.get(&path).await?;
        let (e_tag, version) = (answer.meta.e_tag.clone(), answer.meta.version.clone());
        Ok((answer.bytes().await?.into(), Version { e_tag, version }))
    }))
}

/// Writes an object if its version is `instead_of` (`None`: if it is missing). Returns the new version, or `None` if not written.
pub(crate) fn write_version(
    address: &str,
    bytes: &[u8],
    instead_of: Option<Version>,
    policy: RetryPolicy,
) -> Result<Option<Version>, StorageError> {
    match put(address, bytes, &instead_of.map_or(PutMode::Create, PutMode::Update), policy) {
        Err(error) if error.kind == ErrorKind::Changed => {}
        written => return written.map(Some),
    }
    // If the answer to an earlier attempt was lost, the object already has these bytes.
    let found = if_present(read_version(address, policy))?;
    Ok(found.filter(|(found, _)| found == bytes).map(|(_, version)| version))
}
