//! Exclusive access to a run directory, and shared access to score a shard next to other processes.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::holder::{Holder, SHARDS, held_file, is_lock_content};
use super::layout::RunDirectory;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::storage::{error, files, marked, regular, store};

/// Maximum wait for shared locks, which `longsift status` holds briefly. A run's exclusive lock fails at once.
const SHARED_LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum wait for a process that has exclusive access only briefly, to finish the commit of an interrupted selection.
const EXCLUSIVE_LOCK_WAIT: Duration = Duration::from_secs(5);

/// Exclusive access to a run directory, until it is dropped.
#[derive(Debug)]
pub enum RunLock {
    File {
        locked: File,
        path: PathBuf,
    },
    #[cfg(feature = "cloud")]
    Lease(super::lease::Lease),
}

impl RunLock {
    /// Checks that this process still has exclusive access: a lease may have expired, a lock file may have been removed.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File { locked, path } => check_in_place(locked, path),
            #[cfg(feature = "cloud")]
            Self::Lease(lease) => lease.check(),
        }
    }

    /// Like [`Self::check`], but sends no request if the lease was renewed a moment ago.
    pub fn confirm(&self) -> Result<()> {
        match self {
            Self::File { locked, path } => check_in_place(locked, path),
            #[cfg(feature = "cloud")]
            Self::Lease(lease) => lease.confirm(),
        }
    }

    /// Removes a file, if it exists, while this process has exclusive access, which is checked between attempts.
    pub fn remove_file(&self, path: &Path) -> Result<()> {
        match self {
            Self::File { .. } => {
                self.check()?;
                Ok(files::remove_file(path)?)
            }
            #[cfg(feature = "cloud")]
            Self::Lease(lease) => lease.remove_file(path),
        }
    }
}

/// Fails if `path` and the locked file differ: another run may have locked a new file.
fn check_in_place(locked: &File, path: &Path) -> Result<()> {
    let inode = |found: Metadata| (found.dev(), found.ino());
    let held = locked.metadata().map(inode).map_err(error::failed("read", path))?;
    if fs::metadata(path).map(inode).is_ok_and(|found| found == held) {
        return Ok(());
    }
    let message =
        format!("the lock `{}` of this run was removed, moved or replaced", path.display());
    Err(Diagnostic::error(Blame::Machine, message)
        .hint("leave the lock to longsift; run again: the scores are kept")
        .into())
}

impl RunDirectory {
    /// Creates missing folders and acquires shared access, until the returned file is dropped; `None` in an object store. Does
    /// not touch files that other processes are writing. The caller must first finish the commit of an interrupted selection.
    ///
    /// # Errors
    /// Another process, a whole run or a selection, has exclusive access.
    pub fn lock_shared(&self) -> Result<Option<File>> {
        self.refuse_foreign()?;
        files::create_folder(&self.root)?;
        let path = self.lock_path();
        // In an object store, processes with shared access write no lease: a whole run at the same time only duplicates work.
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            super::lease::check_free(&path, &self.root)?;
            self.create_working_folders()?;
            return Ok(None);
        }
        let mut file = files::open_read_write(&path)?;
        self.wait_for(&mut file, EXCLUSIVE_LOCK_WAIT, File::try_lock_shared, |_| true)?;
        // Replaces the content of an ended run; all processes with shared access write the same bytes.
        file.rewind()
            .and_then(|()| file.write_all(SHARDS))
            .and_then(|()| file.set_len(SHARDS.len() as u64))
            .map_err(error::failed("write", &path))?;
        self.create_working_folders()?;
        Ok(Some(file))
    }

    /// Creates missing folders, locks the directory for this process and removes partial files of an interrupted run.
    pub fn lock_exclusive(&self) -> Result<RunLock> {
        self.refuse_foreign()?;
        files::create_folder(&self.root)?;
        let lock = self.lock()?;
        self.prepare()?;
        Ok(lock)
    }

    /// Creates the folders that a run writes to and removes partial files of an interrupted run. Requires the lock.
    pub fn prepare(&self) -> Result<()> {
        self.create_working_folders()?;
        for folder in self.working_folders() {
            files::remove_leftovers(&folder)?;
        }
        files::remove_leftovers(&self.root)?;
        Ok(())
    }

    fn create_working_folders(&self) -> Result<()> {
        if store::is_address(&self.root) {
            // The journal is in the cache folder of this machine.
            marked::create_folder(&self.journal())?;
        }
        Ok(self.working_folders().iter().try_for_each(|folder| files::create_folder(folder))?)
    }

    /// Refuses a folder that is not a run directory: its files would be mixed with those of a run, and later removed.
    pub fn refuse_foreign(&self) -> Result<()> {
        let names = files::list_if_present(&self.root)?;
        let is_run = names.is_empty()
            || files::read_if_present(&self.lock_path())?
                .is_some_and(|bytes| is_lock_content(&bytes))
            || marked::carries(&self.lock_file(), PipelineLock::MARK)?
            || marked::carries(&self.manifest(), Manifest::MARK)?
            || marked::carries(&self.plan(), Self::PLAN_MARK)?
            || marked::carries(&self.missing(), Self::MISSING_MARK)?
            || marked::carries(&self.footers(), Self::FOOTERS_MARK)?
            || store::is_address(&self.root) && names.contains(&self.events_by_process());
        if !is_run && !files::below_if_present(&self.root)?.is_empty() {
            return Err(marked::foreign(&self.root)
                .note(format!("it contains `{}`, but not a longsift run", names[0].display()))
                .into());
        }
        for folder in [self.staged_data(), self.written_data()] {
            if !marked::is_own_folder(&folder)? {
                return Err(marked::foreign(&folder).into());
            }
        }
        Ok(())
    }

    pub fn holder(&self) -> Result<Option<Holder>> {
        let path = self.lock_path();
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            return super::lease::read_holder(&path);
        }
        if files::size(&path)?.is_none() {
            return Ok(None);
        }
        let file = regular::open(&path)?;
        // A shared lock is refused only while a run holds the exclusive one.
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(_) => Ok(files::read_if_present(&path)?
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())),
        }
    }

    pub(crate) fn lock(&self) -> Result<RunLock> {
        let path = self.lock_path();
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            return Ok(RunLock::Lease(super::lease::Lease::acquire(&path, &self.root)?));
        }
        let mut file = files::open_read_write(&path)?;
        // Only shared locks are worth a wait.
        let may_wait = |file: &File| {
            let is_shared = file.try_lock_shared().is_ok();
            // If this fails, the lock is released when the file is closed.
            let _ = file.unlock();
            is_shared
        };
        self.wait_for(&mut file, SHARED_LOCK_WAIT, File::try_lock, may_wait)?;
        let content = serde_json::to_string(&Holder::this_process()).expect("plain data");
        let written = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(content.as_bytes()));
        written.map_err(|error| error::failed("write", &path)(error))?;
        let lock = RunLock::File { locked: file, path };
        lock.check()?;
        Ok(lock)
    }

    /// Locks the file with `lock`. If another process holds it, retries for at most `limit`, as long as `may_wait` is `true`.
    fn wait_for(
        &self,
        file: &mut File,
        limit: Duration,
        lock: impl Fn(&File) -> std::result::Result<(), TryLockError>,
        may_wait: impl Fn(&File) -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            match lock(file) {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if begun.elapsed() < limit && may_wait(file) => {
                    std::thread::sleep(LOCK_POLL_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => return Err(held_file(&self.root, file).into()),
                Err(TryLockError::Error(error)) => {
                    return Err(error::failed("lock", &self.lock_path())(error).into());
                }
            }
        }
    }
}
