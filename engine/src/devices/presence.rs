//! What a running longsift has reserved, for `longsift devices` in another process.
//!
//! Each run that measures keeps a small file in the user's cache folder and a lock on it. The lock dies with its process, so a
//! file that nobody locks is left over and means nothing.

use std::fs::{File, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::storage::{files, regular};

/// What one run has reserved on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The process.
    pub pid: u32,
    /// The GPU's own name, or that of the device where it has none.
    pub device: String,
    /// Bytes reserved.
    pub reserved_bytes: u64,
    /// Windows and pieces under way.
    pub in_flight: usize,
}

/// The file of this process.
pub(crate) struct Presence {
    path: PathBuf,
    file: File,
}

impl Presence {
    /// Begins to tell. `None` where there is no place for it: nothing depends on it.
    pub(crate) fn begin() -> Option<Self> {
        let folder = folder()?;
        let path = folder.join(format!("{}.json", std::process::id()));
        let opened = files::create_folder(&folder).and_then(|()| files::open_read_write(&path));
        let file = opened.inspect_err(|error| tracing::debug!("{error}")).ok()?;
        file.try_lock().ok()?;
        Some(Self { path, file })
    }

    /// Tells what is reserved now. What cannot be written is not told.
    pub(crate) fn tell(&mut self, claims: &[Claim]) {
        let text = serde_json::to_vec(claims).expect("plain data");
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .and_then(|_| self.file.write_all(&text));
        if let Err(error) = written {
            tracing::debug!("{}: {error}", self.path.display());
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Err(error) = files::remove_file(&self.path) {
            tracing::debug!("{error}");
        }
    }
}

fn folder() -> Option<PathBuf> {
    files::user_cache_folder().ok().map(|cache| cache.join("running"))
}

/// What every running longsift of this user has reserved now.
pub fn claims() -> Vec<Claim> {
    let listed = folder().map(|folder| files::list_if_present(&folder));
    let paths = listed.and_then(Result::ok).unwrap_or_default();
    paths.iter().filter(|path| is_held(path)).flat_map(|path| read(path)).collect()
}

/// Whether the process that wrote it is alive.
fn is_held(path: &std::path::Path) -> bool {
    let Ok(file) = regular::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn read(path: &Path) -> Vec<Claim> {
    let bytes = files::read_if_present(path).ok().flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}
