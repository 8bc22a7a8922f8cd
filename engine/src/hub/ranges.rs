//! Ranges of the files of a data set, as the hub has them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::fetch::files_of;
use super::{Hub, Reference};
use crate::http::{Client, Patience, RemoteFile};
use crate::object_stores::Blocks;

/// Bytes of a file that are fetched at once.
const BLOCK_BYTES: u64 = 4 << 20;

/// Bytes at a file's end that are fetched first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// Bytes of a file that are read in vain for one block, from a server that ignores ranges.
const MOST_SKIPPED_BYTES: u64 = 64 << 20;

/// Files whose signed links are remembered.
const MOST_LINKS: usize = 4096;

/// The hub's files of one commit.
pub(super) struct Remote {
    client: Client,
    /// `…/resolve/<commit>/`
    base: Url,
    opened: Mutex<HashMap<String, Arc<RemoteFile>>>,
}

impl Hub {
    /// Where ranges of a commit's files are read; none without the network.
    pub(super) fn remote(&self, reference: &Reference) -> Result<Option<Remote>, ModelProblem> {
        if self.is_offline() {
            return Ok(None);
        }
        let patience = Patience { most_skipped_bytes: MOST_SKIPPED_BYTES, ..Patience::default() };
        let (client, endpoint) = self.client(patience)?;
        let base = files_of(&endpoint, reference);
        Ok(Some(Remote { client, base, opened: Mutex::default() }))
    }
}

impl Remote {
    /// Fills the beginning of `buffer` from `offset`; 0 at the end of the file.
    pub(super) fn read_at(
        &self,
        name: &str,
        length: u64,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, ModelProblem> {
        if offset >= length || buffer.is_empty() {
            return Ok(0);
        }
        let tail = length.saturating_sub(TAIL_BYTES);
        let (start, end) = if offset >= tail {
            (tail, length)
        } else {
            let start = offset / BLOCK_BYTES * BLOCK_BYTES;
            (start, (start + BLOCK_BYTES).min(length))
        };
        let file = self.file(name, length);
        let block = match Blocks::get(file.url().as_str(), start) {
            Some(block) => block,
            None => self.fetch(&file, start..end)?,
        };
        let rest = &block[(offset - start) as usize..];
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    /// Some bytes of a file, which are kept for a while.
    fn fetch(&self, file: &RemoteFile, range: Range<u64>) -> Result<Bytes, ModelProblem> {
        let start = range.start;
        let mut bytes = Vec::with_capacity((range.end - start) as usize);
        self.client.read(file, &[range], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let block = Bytes::from(bytes);
        Blocks::put(file.url().as_str(), start, block.clone());
        Ok(block)
    }

    /// A file, with the link that the hub redirected it to the last time.
    fn file(&self, name: &str, length: u64) -> Arc<RemoteFile> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = opened.get(name) {
            return Arc::clone(file);
        }
        if opened.len() >= MOST_LINKS {
            opened.clear();
        }
        let mut url = self.base.clone();
        let mut parts = url.path_segments_mut().expect("an http address has a path");
        parts.pop_if_empty().extend(name.split('/'));
        drop(parts);
        let file = Arc::new(RemoteFile::known(url, length));
        opened.insert(name.to_owned(), Arc::clone(&file));
        file
    }
}
