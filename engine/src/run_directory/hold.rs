//! Taking a run directory for this process alone.

use std::fs::{File, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::holder::{Holder, held_file, is_of_holder};
use super::layout::RunDirectory;
use crate::base::error::Result;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::storage::{error, files, marked, regular, store};

/// Longer than anyone holds the lock only to see whether someone else does.
const STATUS_LOCK_WAIT: Duration = Duration::from_millis(200);

/// Exclusive use of a run directory, until it is dropped.
#[derive(Debug)]
pub struct RunLock(Held);

impl RunLock {
    /// That the directory is still this process's: a file is, as long as it is open; a lease may have run out.
    #[cfg_attr(not(feature = "cloud"), expect(clippy::unnecessary_wraps, reason = "a lease fails"))]
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            Held::File { .. } => Ok(()),
            #[cfg(feature = "cloud")]
            Held::Lease(lease) => lease.check(),
        }
    }

    /// The same before a single step: a lease is asked after only where that was some time ago.
    #[cfg_attr(not(feature = "cloud"), expect(clippy::unnecessary_wraps, reason = "a lease fails"))]
    pub fn confirm(&self) -> Result<()> {
        match &self.0 {
            Held::File { .. } => Ok(()),
            #[cfg(feature = "cloud")]
            Held::Lease(lease) => lease.confirm(),
        }
    }
}

#[derive(Debug)]
enum Held {
    File {
        _locked: File,
    },
    #[cfg(feature = "cloud")]
    Lease(super::lease::Lease),
}

impl RunDirectory {
    /// Makes the folders that do not exist and takes the directory for this process; clears what an interrupted run
    /// left half-written.
    ///
    /// # Errors
    /// Somebody else's folder; another process holds the directory.
    pub fn take(&self) -> Result<RunLock> {
        self.refuse_foreign()?;
        files::create_folder(&self.root)?;
        let lock = self.lock()?;
        self.prepare()?;
        Ok(lock)
    }

    /// Makes the folders that a run writes to and clears what an interrupted run left half-written. The directory must
    /// be taken.
    pub fn prepare(&self) -> Result<()> {
        self.create_working_folders()?;
        for folder in self.working_folders() {
            files::remove_leftovers(&folder)?;
        }
        files::remove_leftovers(&self.root)?;
        Ok(())
    }

    /// Makes the folders that a run writes to while it scores.
    pub(super) fn create_working_folders(&self) -> Result<()> {
        if store::is_address(&self.root) {
            // In the cache folder of this machine.
            marked::create_folder(&self.journal())?;
        }
        Ok(self.working_folders().iter().try_for_each(|folder| files::create_folder(folder))?)
    }

    /// Refuses a folder that is not a run directory: its files would be mixed with those of a run, and removed as such.
    pub fn refuse_foreign(&self) -> Result<()> {
        let names = files::list_if_present(&self.root)?;
        let is_run = names.is_empty()
            || files::read_if_present(&self.lock_path())?.is_some_and(|bytes| is_of_holder(&bytes))
            || marked::carries(&self.lock_file(), PipelineLock::MARK)?
            || marked::carries(&self.manifest(), Manifest::MARK)?
            || marked::carries(&self.missing(), Self::MISSING_MARK)?
            || marked::carries(&self.footers(), Self::FOOTERS_MARK)?
            || store::is_address(&self.root) && names.contains(&self.events_by_process());
        if !is_run && !files::below_if_present(&self.root)?.is_empty() {
            return Err(marked::foreign(&self.root)
                .note(format!("it holds `{}`, and no run of longsift", names[0].display()))
                .into());
        }
        for folder in [self.staged_data(), self.written_data()] {
            if !marked::is_own_folder(&folder)? {
                return Err(marked::foreign(&folder).into());
            }
        }
        Ok(())
    }

    /// Who works in the directory now, if anyone does.
    pub fn holder(&self) -> Result<Option<serde_json::Value>> {
        let path = self.lock_path();
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            let holder = super::lease::said(&path)?;
            return Ok(holder.map(|holder| serde_json::to_value(holder).expect("plain data")));
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

    pub(super) fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn lock(&self) -> Result<RunLock> {
        let path = self.lock_path();
        #[cfg(feature = "cloud")]
        if store::is_address(&self.root) {
            return Ok(RunLock(Held::Lease(super::lease::Lease::take(&path, &self.root)?)));
        }
        let mut file = files::open_read_write(&path)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // `longsift status` holds it shared for a moment.
                Err(TryLockError::WouldBlock) if begun.elapsed() < STATUS_LOCK_WAIT => {
                    std::thread::sleep(STATUS_LOCK_WAIT / 20);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(held_file(&self.root, &mut file).into());
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error::failed("lock", &path)(error).into());
                }
            }
        }
        let content = serde_json::to_string(&Holder::this_process()).expect("plain data");
        let written = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(content.as_bytes()));
        written.map_err(|error| error::failed("write", &path)(error))?;
        Ok(RunLock(Held::File { _locked: file }))
    }
}
