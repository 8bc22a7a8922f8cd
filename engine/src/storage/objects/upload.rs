//! Uploads objects in several concurrent parts.

use std::io::{self, Read, Write};
use std::sync::Arc;

use object_store::multipart::{MultipartStore, PartId};
use object_store::{Error, MultipartId, ObjectStoreExt, PutMode, PutPayload};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use crate::storage::error::StorageError;
use crate::storage::objects::{
    ObjectLocation, ObjectReader, answered, locate, open, put, request, runtime,
};
use crate::storage::retry::RetryPolicy;
use crate::storage::store::Upload;

/// Bytes of a part. A store accepts 10,000 parts, so an object has at most 80 GB.
const PART_BYTES: usize = 8 << 20;
/// Maximum concurrent parts: 32 MiB of memory per upload.
const MAX_PARTS: usize = 4;

/// Upload of an object. An object that fits into one part is sent in one request when it is complete.
pub(super) struct Uploading {
    address: Arc<str>,
    location: ObjectLocation,
    parts: Option<UploadParts>,
    buffer: Vec<u8>,
    written: u64,
    hash: Sha256,
}

struct UploadParts {
    store: Arc<dyn MultipartStore>,
    id: Arc<MultipartId>,
    begun: usize,
    pending: JoinSet<Result<(usize, PartId), StorageError>>,
    done: Vec<(usize, PartId)>,
}

impl Uploading {
    pub(super) fn new(address: &str) -> Result<Self, StorageError> {
        let location = locate("create", address)?;
        let (buffer, hash) = (Vec::new(), Sha256::new());
        Ok(Self { address: address.into(), location, parts: None, buffer, written: 0, hash })
    }

    fn send(&mut self) -> Result<(), StorageError> {
        let path = &self.location.path;
        let parts = match &mut self.parts {
            Some(parts) => parts,
            none => {
                let store = Arc::clone(&self.location.client.parts);
                let id =
                    Arc::new(request("write", &self.address, || store.create_multipart(path))?);
                let (pending, done) = (JoinSet::new(), Vec::new());
                none.insert(UploadParts { store, id, begun: 0, pending, done })
            }
        };
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        let (store, id) = (Arc::clone(&parts.store), Arc::clone(&parts.id));
        let (address, path, index) = (Arc::clone(&self.address), path.clone(), parts.begun);
        let part = async move {
            let sent = answered("write", &address, RetryPolicy::default(), || {
                store.put_part(&path, &id, index, payload.clone())
            });
            Ok((index, sent.await?))
        };
        parts.pending.spawn_on(part, runtime().handle());
        parts.begun += 1;
        parts.wait(MAX_PARTS)
    }

    /// Whether the object exists with the written bytes, although the answer to the last request was lost.
    fn is_complete(&self) -> io::Result<bool> {
        let (mut found, mut hash) =
            (ObjectReader { file: open(&self.address)?, at: 0 }, Sha256::new());
        let mut piece = vec![0; 1 << 20];
        loop {
            match found.read(&mut piece)? {
                0 => return Ok(hash.finalize() == self.hash.clone().finalize()),
                read => hash.update(&piece[..read]),
            }
        }
    }
}

impl UploadParts {
    fn wait(&mut self, max: usize) -> Result<(), StorageError> {
        runtime().block_on(async {
            while self.pending.len() >= max.max(1) {
                let Some(done) = self.pending.join_next().await else { break };
                self.done.push(done.expect("a request does not panic")?);
            }
            Ok(())
        })
    }
}

impl Write for Uploading {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(PART_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..length]);
        self.hash.update(&bytes[..length]);
        self.written += length as u64;
        if self.buffer.len() == PART_BYTES {
            self.send()?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Upload for Uploading {
    fn complete(&mut self) -> Result<(), StorageError> {
        if self.parts.is_none() {
            let policy = RetryPolicy::default();
            return put(&self.address, &self.buffer, &PutMode::Overwrite, policy).map(drop);
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        let parts = self.parts.as_mut().expect("parts were sent");
        parts.wait(1)?;
        parts.done.sort_unstable_by_key(|(index, _)| *index);
        let ids: Vec<PartId> = parts.done.iter().map(|(_, id)| id.clone()).collect();
        let path = &self.location.path;
        let done = request("write", &self.address, || {
            parts.store.complete_multipart(path, &parts.id, ids.clone())
        });
        // If the store has already completed it, the upload no longer exists.
        if let Err(error) = done
            && !self.is_complete().unwrap_or(false)
        {
            return Err(error);
        }
        // The upload is complete, so drop must not abort it.
        self.parts = None;
        confirm_size("write", &self.address, &self.location, self.written)
    }
}

/// Waits until an object has the expected size in bytes.
pub(super) fn confirm_size(
    operation: &'static str,
    address: &str,
    ObjectLocation { client, path, .. }: &ObjectLocation,
    expected: u64,
) -> Result<(), StorageError> {
    request(operation, address, || async {
        let size = match client.objects.head(path).await {
            // Some stores deny an object for a moment after it was written.
            Err(Error::NotFound { .. }) => 0,
            found => found?.size,
        };
        let source = || format!("the object has {size} of {expected} bytes").into();
        let incomplete = || Error::Generic { store: "store", source: source() };
        if size == expected { Ok(()) } else { Err(incomplete()) }
    })
}

impl Drop for Uploading {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        // Best effort: parts of a killed process remain until the store's own rules remove them.
        runtime().block_on(async {
            parts.pending.shutdown().await;
            let _ = parts.store.abort_multipart(&self.location.path, &parts.id).await;
        });
    }
}
