//! Publishes the reservations of a running longsift process, for `longsift devices` in another process.
//!
//! Each run that measures has a small file in the user's cache folder and locks it. The lock ends with its process, so a file
//! without a lock is a leftover.

use std::fs::{File, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::storage::{files, regular};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceClaim {
    pub pid: u32,
    /// UUID of the GPU, or the name of a device without one.
    pub device: String,
    pub reserved_bytes: u64,
    /// Windows and pieces that are running.
    pub in_flight: usize,
}

pub(crate) struct Presence {
    path: PathBuf,
    file: File,
}

impl Presence {
    /// Creates and locks the file; `None` if that fails, since nothing depends on it.
    pub(crate) fn begin() -> Option<Self> {
        let folder = folder()?;
        let path = folder.join(format!("{}.json", std::process::id()));
        let opened = files::create_folder(&folder).and_then(|()| files::open_read_write(&path));
        let file = opened.inspect_err(|error| tracing::debug!("{error}")).ok()?;
        file.try_lock().ok()?;
        Some(Self { path, file })
    }

    /// Publishes the current reservations; errors are only logged.
    pub(crate) fn publish(&mut self, claims: &[DeviceClaim]) {
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

/// Reads the current reservations of all running longsift processes of this user.
pub fn claims() -> Vec<DeviceClaim> {
    let listed = folder().map(|folder| files::list_if_present(&folder));
    let paths = listed.and_then(Result::ok).unwrap_or_default();
    paths.iter().filter(|path| is_held(path)).flat_map(|path| read(path)).collect()
}

/// Whether the process that wrote the file is alive.
fn is_held(path: &std::path::Path) -> bool {
    let Ok(file) = regular::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn read(path: &Path) -> Vec<DeviceClaim> {
    let bytes = files::read_if_present(path).ok().flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}
