//! Objects that are written in parts, several of them under way at a time.

use std::fmt;
use std::io::{self, Write};

use longsift_stages::contract::hex;
use object_store::{Error, MultipartUpload, ObjectStoreExt, PutMode};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use super::retry::{failure, patiently};
use super::stored::{Stores, put};
use super::{Place, place, runtime};
use crate::files::{self, Store, Upload};

/// Bytes of a part. A store takes 10,000 of them, so that an object has at most 80 GB.
const PART_BYTES: usize = 8 << 20;
/// Parts that are under way while the next one is written: 32 MiB of memory for an upload.
const PARTS_AT_ONCE: usize = 4;

/// An object that is being written; what fits into one part is sent in one piece when it is complete.
pub(super) struct Uploading {
    address: String,
    place: Place,
    parts: Option<Parts>,
    buffer: Vec<u8>,
    hash: Sha256,
}

struct Parts {
    upload: Box<dyn MultipartUpload>,
    under_way: JoinSet<object_store::Result<()>>,
}

impl Uploading {
    pub(super) fn new(address: &str) -> io::Result<Self> {
        let place = place(address)?;
        let (buffer, hash) = (Vec::new(), Sha256::new());
        Ok(Self { address: address.to_owned(), place, parts: None, buffer, hash })
    }

    /// Sends what is in the buffer as a part.
    fn send(&mut self) -> io::Result<()> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            none => {
                let Place { store, path, .. } = &self.place;
                let begun =
                    patiently(&self.address, || runtime().block_on(store.put_multipart(path)))?;
                none.insert(Parts { upload: begun, under_way: JoinSet::new() })
            }
        };
        let part = parts.upload.put_part(std::mem::take(&mut self.buffer).into());
        parts.under_way.spawn_on(part, runtime().handle());
        parts.wait(PARTS_AT_ONCE)
    }

    /// Whether the object is there with the bytes that were written: an answer may have got lost.
    fn is_complete(&self) -> io::Result<bool> {
        let found = files::digest(self.address.as_ref()).map_err(|error| error.source)?;
        Ok(found.sha256 == hex(&self.hash.clone().finalize()))
    }
}

impl Parts {
    /// Waits until fewer than `most` parts are under way.
    fn wait(&mut self, most: usize) -> io::Result<()> {
        runtime().block_on(async {
            while self.under_way.len() >= most.max(1) {
                let Some(done) = self.under_way.join_next().await else { break };
                done.expect("a request does not panic").map_err(|error| failure(&error))?;
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
    fn complete(&mut self) -> io::Result<()> {
        if self.parts.is_none() {
            return put(&self.address, &self.buffer, &PutMode::Overwrite).map(drop);
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        let parts = self.parts.as_mut().expect("parts were sent");
        parts.wait(1)?;
        // The client tries more than once by itself; it has no parts left for a second call.
        let done = match runtime().block_on(parts.upload.complete()) {
            // To a store that has completed it, an upload is gone.
            Err(Error::NotFound { .. }) => Ok(false),
            done => done.map(|_| true).map_err(|error| failure(&error)),
        };
        if !matches!(done, Ok(true)) && !self.is_complete().unwrap_or(false) {
            let why = "the store lost the upload before it was complete";
            let lost = io::Error::new(io::ErrorKind::TimedOut, why);
            return Err(done.err().unwrap_or(lost));
        }
        // There is nothing to give up any more.
        self.parts = None;
        Ok(())
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        // Best effort: a process that is killed leaves its parts, too; the store's own rules remove them.
        runtime().block_on(async {
            parts.under_way.shutdown().await;
            let _ = parts.upload.abort().await;
        });
    }
}

impl fmt::Debug for Uploading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Uploading").field(&self.address).finish()
    }
}

/// Copies an object that is too large for the store to copy.
pub(super) fn copy(from: &str, to: &str) -> io::Result<()> {
    let mut target = Uploading::new(to)?;
    io::copy(&mut Stores.reader(from)?, &mut target)?;
    target.complete()
}
