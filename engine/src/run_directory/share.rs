//! Shared access to a run directory, to score a shard next to other processes.

use std::fs::File;
use std::io::{Seek, Write};
use std::time::Duration;

use super::holder::SHARDS;
use super::layout::RunDirectory;
use crate::base::error::Result;
#[cfg(feature = "cloud")]
use crate::storage::store;
use crate::storage::{error, files};

/// Maximum wait for a process that has exclusive access only briefly, to finish the commit of an interrupted selection.
const EXCLUSIVE_LOCK_WAIT: Duration = Duration::from_secs(5);

/// Shared access to a run directory, until it is dropped.
#[derive(Debug)]
pub struct SharedLock {
    /// Locked file; `None` in an object store.
    _file: Option<File>,
}

impl RunDirectory {
    /// Creates missing folders and acquires shared access. Does not touch files that other processes are writing. The caller
    /// must first finish the commit of an interrupted selection.
    ///
    /// # Errors
    /// Another process, a whole run or a selection, has exclusive access.
    pub fn lock_shared(&self) -> Result<SharedLock> {
        self.refuse_foreign()?;
        files::create_folder(&self.root)?;
        let path = self.lock_path();
        // In an object store, processes with shared access write no lease: a whole run at the same time only duplicates work.
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            return match super::lease::current_use(&path)? {
                super::lease::Use::InUse(holder) => {
                    Err(super::holder::held(&self.root, holder).into())
                }
                super::lease::Use::Free => {
                    self.create_working_folders()?;
                    Ok(SharedLock { _file: None })
                }
            };
        }
        let mut file = files::open_read_write(&path)?;
        self.wait_for(&mut file, EXCLUSIVE_LOCK_WAIT, File::try_lock_shared, |_| true)?;
        // Replaces the content of an ended run; all processes with shared access write the same bytes.
        file.rewind()
            .and_then(|()| file.write_all(SHARDS))
            .and_then(|()| file.set_len(SHARDS.len() as u64))
            .map_err(error::failed("write", &path))?;
        self.create_working_folders()?;
        Ok(SharedLock { _file: Some(file) })
    }
}
