//! Cache of Parquet footers that one process writes for all others of a job, so that they plan without opening every
//! file.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::text::sha256_hex;
use crate::storage::files;
use crate::storage::range_file::Stamp;
use crate::storage::store::is_address;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CachedFooter {
    pub(super) path: String,
    pub(super) stamp: Stamp,
    pub(super) sha256: String,
    pub(super) footer_bytes: usize,
}

/// Footers read by another process. The cache file is `{"files": […]}` in one line, followed by the footers.
#[derive(Debug)]
pub struct FooterCache {
    bytes: Vec<u8>,
    files: HashMap<String, (CachedFooter, Range<usize>)>,
}

impl FooterCache {
    /// Reads a cache file; `None` if it is incomplete, so that footers are read from the files themselves.
    pub fn read(path: &Path) -> Option<Self> {
        let bytes = files::read_if_present(path).ok()??;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let mut header: HashMap<String, Vec<CachedFooter>> =
            serde_json::from_slice(&bytes[..end]).ok()?;
        let mut start = end + 1;
        let mut files = HashMap::new();
        for entry in header.remove("files")? {
            let range = start..start.checked_add(entry.footer_bytes)?;
            start = range.end;
            files.insert(entry.path.clone(), (entry, range));
        }
        (start == bytes.len()).then_some(Self { bytes, files })
    }

    /// Returns stamp and footer; `None` for a local file that has changed. Files in stores are checked when they are read.
    pub(super) fn get(&self, root: &Path, path: &str) -> Option<(Stamp, &[u8])> {
        let (entry, range) = self.files.get(path)?;
        let footer = &self.bytes[range.clone()];
        let is_current =
            || files::stamp(&root.join(path)).is_ok_and(|now| now == Some(entry.stamp));
        ((is_address(root) || is_current()) && sha256_hex(footer) == entry.sha256)
            .then_some((entry.stamp, footer))
    }
}
