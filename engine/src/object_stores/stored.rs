//! Folders and files of object stores, as the rest of the engine uses those of a disk. A folder is what names begin with;
//! a file appears whole.

use std::io::{self, ErrorKind, Read};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::retry::patiently;
use super::upload::{self, Uploading};
use super::{Place, RemoteFile, open, place, runtime};
use crate::files::{Store, Upload};

/// The largest object that a store copies by itself; larger ones are read and written.
const LARGEST_COPY: u64 = 5_000_000_000;

/// All object stores.
#[derive(Debug)]
pub(crate) struct Stores;

/// What tells the versions of an object apart.
pub(crate) type Version = object_store::UpdateVersion;

impl Store for Stores {
    fn read(&self, address: &str) -> io::Result<Vec<u8>> {
        Ok(read_version(address)?.0)
    }

    fn reader(&self, address: &str) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(ReadOn { file: open(address)?, at: 0 }))
    }

    fn write_new(&self, address: &str, bytes: &[u8]) -> io::Result<bool> {
        Ok(write_version(address, bytes, None)?.is_some())
    }

    fn upload(&self, address: &str) -> io::Result<Box<dyn Upload>> {
        Ok(Box::new(Uploading::new(address)?))
    }

    fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let (source, target) = (place(from)?, place(to)?);
        let size = self.size(from)?.ok_or(ErrorKind::NotFound)?;
        if size > LARGEST_COPY || source.root != target.root {
            return upload::copy(from, to);
        }
        patiently(from, || runtime().block_on(source.store.copy(&source.path, &target.path)))
    }

    fn remove(&self, address: &str) -> io::Result<()> {
        let Place { store, path, .. } = place(address)?;
        patiently(address, || match runtime().block_on(store.delete(&path)) {
            Err(Error::NotFound { .. }) => Ok(()),
            done => done,
        })
    }

    fn remove_folder(&self, address: &str) -> io::Result<()> {
        let Place { store, path, .. } = place(address)?;
        patiently(address, || {
            runtime().block_on(async {
                let found: Vec<ObjectMeta> = store.list(Some(&path)).try_collect().await?;
                let paths = found.into_iter().map(|object| Ok(object.location));
                let removed = store.delete_stream(futures_util::stream::iter(paths).boxed());
                removed.try_for_each(|_| async { Ok(()) }).await.or_else(|error| match error {
                    Error::NotFound { .. } => Ok(()),
                    error => Err(error),
                })
            })
        })
    }

    fn size(&self, address: &str) -> io::Result<Option<u64>> {
        let Place { store, path, .. } = place(address)?;
        let found = patiently(address, || runtime().block_on(store.head(&path)));
        if_present(found.map(|object| object.size))
    }

    fn list(&self, address: &str) -> io::Result<Vec<String>> {
        let Place { store, path, .. } = place(address)?;
        let found = patiently(address, || {
            runtime().block_on(store.list_with_delimiter((!path.is_root()).then_some(&path)))
        })?;
        let files = found.objects.iter().map(|object| &object.location);
        let names = files.chain(&found.common_prefixes).filter_map(Path::filename);
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn is_folder(&self, address: &str) -> io::Result<bool> {
        let Place { store, path, .. } = place(address)?;
        patiently(address, || {
            runtime().block_on(async { store.list(Some(&path)).next().await.transpose() })
        })
        .map(|found| found.is_some())
    }
}

/// A whole object, and which version it is.
pub(crate) fn read_version(address: &str) -> io::Result<(Vec<u8>, Version)> {
    let Place { store, path, .. } = place(address)?;
    patiently(address, || {
        runtime().block_on(async {
            let answer = store.get(&path).await?;
            let (e_tag, version) = (answer.meta.e_tag.clone(), answer.meta.version.clone());
            Ok((answer.bytes().await?.into(), Version { e_tag, version }))
        })
    })
}

/// Writes an object in the place of one version, or of none. Returns the version written; none where another one is there.
pub(crate) fn write_version(
    address: &str,
    bytes: &[u8],
    instead_of: Option<Version>,
) -> io::Result<Option<Version>> {
    match put(address, bytes, &instead_of.map_or(PutMode::Create, PutMode::Update)) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::AlreadyExists | ErrorKind::StaleNetworkFileHandle
            ) => {}
        written => return written.map(Some),
    }
    // An answer that got lost has left our own bytes.
    match read_version(address) {
        Ok((found, version)) if found == bytes => Ok(Some(version)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a whole object in one piece.
pub(super) fn put(address: &str, bytes: &[u8], mode: &PutMode) -> io::Result<Version> {
    let Place { store, path, .. } = place(address)?;
    let payload = Bytes::copy_from_slice(bytes);
    let written = patiently(address, || {
        let options = PutOptions::from(mode.clone());
        runtime().block_on(store.put_opts(&path, PutPayload::from_bytes(payload.clone()), options))
    })?;
    Ok(Version { e_tag: written.e_tag, version: written.version })
}

fn if_present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Reads a file on from a place.
struct ReadOn {
    file: RemoteFile,
    at: u64,
}

impl Read for ReadOn {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
