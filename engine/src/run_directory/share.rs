//! Taking part in a run directory beside other processes, to score a shard.

use std::fs::{File, TryLockError};
use std::io::{Seek, Write};
use std::time::{Duration, Instant};

use super::holder::{SHARDS, held_file};
use super::layout::RunDirectory;
use crate::base::error::Result;
#[cfg(feature = "cloud")]
use crate::storage::store;
use crate::storage::{error, files};

/// How long to wait for a process that holds the directory alone for a moment: one that finishes a commit that an
/// interrupted selection has begun.
const PATIENCE: Duration = Duration::from_secs(5);

/// Use of a run directory beside others, until it is dropped.
#[derive(Debug)]
pub struct SharedLock {
    /// Locked; none in an object store.
    _file: Option<File>,
}

impl RunDirectory {
    /// Makes the folders that do not exist and takes part in the directory. What other processes are writing is left
    /// alone. A commit that an interrupted selection has begun is to be finished before.
    ///
    /// # Errors
    /// A process that holds the directory alone: a whole run, or a selection.
    pub fn share(&self) -> Result<SharedLock> {
        self.refuse_foreign()?;
        files::create_folder(&self.root)?;
        let path = self.lock_path();
        // In an object store the processes say nothing: a whole run beside them wastes work, and no more.
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            return match super::lease::look(&path)? {
                super::lease::Use::By(holder) => {
                    Err(super::holder::held(&self.root, holder).into())
                }
                super::lease::Use::Over => {
                    self.create_working_folders()?;
                    Ok(SharedLock { _file: None })
                }
            };
        }
        let mut file = files::open_read_write(&path)?;
        let begun = Instant::now();
        loop {
            match file.try_lock_shared() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(held_file(&self.root, &mut file).into());
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error::failed("lock", &path)(error).into());
                }
            }
        }
        // What it says is of a run that has ended, or the same of another process beside this one.
        file.rewind()
            .and_then(|()| file.write_all(SHARDS))
            .and_then(|()| file.set_len(SHARDS.len() as u64))
            .map_err(error::failed("write", &path))?;
        self.create_working_folders()?;
        Ok(SharedLock { _file: Some(file) })
    }
}
