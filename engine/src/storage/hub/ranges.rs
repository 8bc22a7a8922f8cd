//! Ranges of the files of a data set, as the hub has them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::commits::files_of;
use super::reference::Reference;
use crate::storage::error::StorageError;
use crate::storage::http::{Client, RemoteFile};
use crate::storage::hub::Hub;
use crate::storage::range_file::{FetchRange, RangeFile, Stamp};
use crate::storage::retry::RetryPolicy;

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
    pub(super) fn remote(
        &self,
        reference: &Reference,
    ) -> Result<Option<Arc<Remote>>, ModelProblem> {
        if self.is_offline() {
            return Ok(None);
        }
        let (client, endpoint) = self.client(RetryPolicy::default())?;
        let client = client.skipping_at_most(MOST_SKIPPED_BYTES);
        let base = files_of(&endpoint, reference);
        Ok(Some(Arc::new(Remote { client, base, opened: Mutex::default() })))
    }
}

/// A file of a data set.
struct HubFile {
    remote: Arc<Remote>,
    name: String,
    length: u64,
}

impl fmt::Debug for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HubFile").field(&self.name).finish()
    }
}

impl FetchRange for HubFile {
    fn fetch(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        let file = self.remote.file(&self.name, self.length);
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        self.remote.client.read(&file, &[range], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes.into())
    }
}

impl Remote {
    /// Opens a file. Nothing is asked for before something is read.
    pub(super) fn open(self: &Arc<Self>, name: &str, length: u64) -> RangeFile {
        // The address names a commit, which is all the version there is.
        let key = format!("{}\0commit", self.file(name, length).url());
        let file = HubFile { remote: Arc::clone(self), name: name.to_owned(), length };
        // A commit never changes.
        RangeFile::elsewhere(file, key, Stamp::new(length, 0), Bytes::new())
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
