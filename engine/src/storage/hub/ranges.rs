//! Reads ranges of a data set's files from the hub.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::reference::HubReference;
use super::requests::files_of;
use crate::base::parallel::lock;
use crate::storage::http::{HttpClient, MAX_DISCARDED_PER_BLOCK, RemoteFile};
use crate::storage::hub::Hub;
use crate::storage::range_file::{RangeFile, Stamp};

const MAX_LINKS: usize = 4096;

pub(super) struct HubFiles {
    client: HttpClient,
    /// Address `…/resolve/<commit>/`.
    base: Url,
    opened: Mutex<HashMap<String, Arc<RemoteFile>>>,
}

impl Hub {
    /// Returns the files of a commit on the hub; `None` without the network.
    pub(super) fn remote(
        &self,
        reference: &HubReference,
    ) -> Result<Option<Arc<HubFiles>>, ModelProblem> {
        if self.is_offline() {
            return Ok(None);
        }
        let (mut client, endpoint) = self.client()?;
        client.max_discarded_bytes = MAX_DISCARDED_PER_BLOCK;
        let base = files_of(&endpoint, reference);
        Ok(Some(Arc::new(HubFiles { client, base, opened: Mutex::default() })))
    }
}

impl HubFiles {
    /// Opens a file of `commit`, the data set with its commit.
    pub(super) fn open(self: &Arc<Self>, name: &str, length: u64, commit: &str) -> RangeFile {
        let key = format!("{}\0{commit}", self.file(name, length).url);
        let (files, name) = (Arc::clone(self), name.to_owned());
        let fetch = move |range| files.client.read_range(&files.file(&name, length), range);
        // A commit never changes.
        RangeFile::remote(fetch, key, Stamp::new(length, 0), Bytes::new())
    }

    fn file(&self, name: &str, length: u64) -> Arc<RemoteFile> {
        let mut opened = lock(&self.opened);
        if let Some(file) = opened.get(name) {
            return Arc::clone(file);
        }
        if opened.len() >= MAX_LINKS {
            opened.clear();
        }
        let mut url = self.base.clone();
        let mut parts = url.path_segments_mut().expect("an http address has a path");
        parts.pop_if_empty().extend(name.split('/'));
        drop(parts);
        let file = Arc::new(RemoteFile::immutable(url, length));
        opened.insert(name.to_owned(), Arc::clone(&file));
        file
    }
}
