//! The run directory: what a run knows about itself, beside its output.
//!
//! ```text
//! out/name/data/train-00000-of-00012.parquet   the output, and nothing else
//! out/name.run/
//!   lock                 held by the operating system while a run works here; its content says who
//!   pipeline.lock        settings as resolved, and what model, tokenizer and kernel were used
//!   units/<unit>.json    the record that makes a scored work unit count
//!   scores/part-<unit>.parquet      raw statistics of a unit's windows
//!   dropped/score-<unit>.parquet    rows that had no window to score; select-<unit>: those not selected
//!   quarantine/part-<unit>.parquet  rows that could not be scored, with the reason
//!   journal/<unit>       finished windows of a unit that is still open
//!   staging/             the next selection, before it is committed
//!   intent.json          the renames of a commit that has begun
//!   plan.json            what the last run planned; missing.json: work units that a selection misses
//!   calibration.json, manifest.json, summary.json, events.jsonl, _SUCCESS
//! ```
//!
//! In an object store `lock` is a lease, events are files of each process below `events/`, and the journals stay on the
//! machine that writes them.

#[cfg(feature = "cloud")]
mod lease;
mod share;

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files;

pub use share::SharedLock;

/// Longer than anyone holds the lock only to see whether someone else does.
const GLANCE: Duration = Duration::from_millis(200);

/// The paths of a run directory and of the output it belongs to.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    /// `<output>.run`.
    pub root: PathBuf,
    /// The output folder; its `data/` holds the Parquet files.
    pub output: PathBuf,
}

/// Exclusive use of a run directory, until it is dropped.
#[derive(Debug)]
pub struct RunLock(Held);

#[derive(Debug)]
enum Held {
    File {
        _locked: File,
    },
    #[cfg(feature = "cloud")]
    Lease(lease::Lease),
}

impl RunLock {
    /// That the directory is still this process's: a file is, as long as it is open; a lease may have run out.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            Held::File { .. } => Ok(()),
            #[cfg(feature = "cloud")]
            Held::Lease(lease) => lease.check(),
        }
    }

    /// The same before a single step: a lease is asked after only where that was some time ago.
    pub fn confirm(&self) -> Result<()> {
        match &self.0 {
            Held::File { .. } => Ok(()),
            #[cfg(feature = "cloud")]
            Held::Lease(lease) => lease.confirm(),
        }
    }
}

/// Who holds a run directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    host: String,
    started: String,
}

impl Holder {
    fn this_process() -> Self {
        Self { pid: std::process::id(), host: host_name(), started: crate::clock::now_utc() }
    }
}

impl RunDirectory {
    /// The run directory of an output folder.
    pub fn of_output(output: &Path) -> Self {
        // Without a trailing slash.
        let output: PathBuf = match output.to_str() {
            Some(address) if files::is_address(output) => address.trim_end_matches('/').into(),
            _ => output.components().collect(),
        };
        let mut root = output.clone().into_os_string();
        root.push(".run");
        Self { root: root.into(), output }
    }

    /// The run directory at `root`, named on the command line.
    pub fn at(root: &Path) -> Result<Self> {
        let output = root.to_str().and_then(|path| path.trim_end_matches('/').strip_suffix(".run"));
        match output {
            Some(output) if files::is_folder(root)? => Ok(Self::of_output(Path::new(output))),
            _ => Err(Diagnostic::error(Blame::Pipeline, format!("`{}` is not a run directory", root.display()))
                .hint("a run directory is a folder named `<output.path>.run`; `longsift run` prints it as `run_dir`")
                .into()),
        }
    }

    /// The path of the run directory from the root, as the summary gives it.
    pub fn absolute(&self) -> String {
        let path = files::canonical(&self.root).or_else(|_| std::path::absolute(&self.root));
        path.unwrap_or_else(|_| self.root.clone()).display().to_string()
    }

    /// The folder of the output's Parquet files.
    pub fn data(&self) -> PathBuf {
        self.output.join("data")
    }
    /// The folder of raw statistics.
    pub fn scores(&self) -> PathBuf {
        self.root.join("scores")
    }
    /// The folder of unit records.
    pub fn units(&self) -> PathBuf {
        self.root.join("units")
    }
    /// The folder of rows that were dropped.
    pub fn dropped(&self) -> PathBuf {
        self.root.join("dropped")
    }
    /// The folder of rows that could not be scored.
    pub fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }
    /// The folder of journals of open units, on this machine: nothing can be appended to what is in an object store.
    pub fn journal(&self) -> PathBuf {
        if !files::is_address(&self.root) {
            return self.root.join("journal");
        }
        let cache = files::user_cache_folder().unwrap_or_else(|_| std::env::temp_dir());
        let name = files::sha256_hex(self.root.as_os_str().as_encoded_bytes());
        cache.join("journals").join(&name[..16])
    }
    /// The folder of a selection that is not committed yet.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }
    /// The folder to stage a selection in. In an object store, where no lock is certain, every attempt has its own: what a
    /// process writes that should no longer be here is never taken for another's.
    pub fn attempt(&self) -> PathBuf {
        if files::is_address(&self.root) {
            let name = format!("{:x}-{:x}", crate::clock::nanoseconds(), std::process::id());
            self.staging().join(name)
        } else {
            self.staging()
        }
    }
    /// The folder of what shards of the write phase have written.
    pub fn written(&self) -> PathBuf {
        self.root.join("written")
    }
    /// The record of a commit that has begun.
    pub fn intent(&self) -> PathBuf {
        self.root.join("intent.json")
    }
    /// Settings and identities of the run.
    pub fn lock_file(&self) -> PathBuf {
        self.root.join("pipeline.lock")
    }
    /// What the last run planned.
    pub fn plan(&self) -> PathBuf {
        self.root.join("plan.json")
    }
    /// The work units that a selection misses.
    pub fn missing(&self) -> PathBuf {
        self.root.join("missing.json")
    }
    /// What was read, run and written.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.json")
    }
    /// Figures of the last selection, for `score.calibration`.
    pub fn calibration(&self) -> PathBuf {
        self.root.join("calibration.json")
    }
    /// The summary of the last finished run.
    pub fn summary(&self) -> PathBuf {
        self.root.join("summary.json")
    }
    /// The marker of a finished run.
    pub fn success(&self) -> PathBuf {
        self.root.join("_SUCCESS")
    }
    /// What happened, a JSON line each.
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }
    /// In an object store, the folder of what happened, a file for each process.
    pub fn events_by_process(&self) -> PathBuf {
        self.root.join("events")
    }

    /// Makes the folders that do not exist and takes the directory for this process; clears what an interrupted run
    /// left half-written.
    pub fn take(&self) -> Result<RunLock> {
        files::create_folder(&self.root)?;
        let lock = self.lock()?;
        self.prepare()?;
        Ok(lock)
    }

    /// Makes the folders that a run writes to and clears what an interrupted run left half-written. The directory must
    /// be taken.
    pub fn prepare(&self) -> Result<()> {
        for folder in
            [self.scores(), self.units(), self.dropped(), self.quarantine(), self.journal()]
        {
            files::create_folder(&folder)?;
            files::remove_leftovers(&folder)?;
        }
        files::remove_leftovers(&self.root)?;
        Ok(())
    }

    /// Who works in the directory now, if anyone does.
    pub fn holder(&self) -> Result<Option<serde_json::Value>> {
        let path = self.lock_path();
        #[cfg(feature = "cloud")]
        if files::is_address(&self.root) {
            let holder = lease::said(&path)?;
            return Ok(holder.map(|holder| serde_json::to_value(holder).expect("plain data")));
        }
        if files::size(&path)?.is_none() {
            return Ok(None);
        }
        let file = files::open(&path)?;
        // A shared lock is refused only while a run holds the exclusive one.
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(_) => Ok(files::read_if_present(&path)?
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())),
        }
    }

    fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    fn lock(&self) -> Result<RunLock> {
        let path = self.lock_path();
        #[cfg(feature = "cloud")]
        if files::is_address(&self.root) {
            return Ok(RunLock(Held::Lease(lease::Lease::take(&path, &self.root)?)));
        }
        let mut file = files::open_read_write(&path)?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // `longsift status` holds it shared for a moment.
                Err(TryLockError::WouldBlock) if begun.elapsed() < GLANCE => {
                    std::thread::sleep(GLANCE / 20);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(held_file(&self.root, &mut file).into());
                }
                Err(TryLockError::Error(error)) => {
                    return Err(files::failed("lock", &path)(error).into());
                }
            }
        }
        let content = serde_json::to_string(&Holder::this_process()).expect("plain data");
        let written = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(content.as_bytes()));
        written.map_err(|error| files::failed("write", &path)(error))?;
        Ok(RunLock(Held::File { _locked: file }))
    }

    /// Removes everything a run has made here, for `--fresh`: the run directory's content but the lock, and the data
    /// files that the manifest lists.
    ///
    /// The marker of a finished run goes first, and the data files are gone from the disk before the manifest that names
    /// them: whatever stops this, a later run knows what it sees.
    pub fn clear(&self, data_files: &[String]) -> Result<()> {
        files::remove_file(&self.success())?;
        files::fsync_folder(&self.root)?;
        for name in data_files {
            files::remove_file(&self.data().join(name))?;
        }
        files::fsync_folder_if_present(&self.data())?;
        for folder in [
            self.scores(),
            self.units(),
            self.dropped(),
            self.quarantine(),
            self.journal(),
            self.staging(),
            self.written(),
            self.events_by_process(),
        ] {
            files::remove_folder(&folder)?;
        }
        for file in [
            self.intent(),
            self.lock_file(),
            self.manifest(),
            self.calibration(),
            self.summary(),
            self.events(),
            self.missing(),
        ] {
            files::remove_file(&file)?;
        }
        Ok(())
    }
}

/// Another process holds the directory. The content of the lock file is information, the lock is the system's.
fn held_file(root: &Path, file: &mut File) -> Diagnostic {
    let mut content = String::new();
    let read = file.take(4096).read_to_string(&mut content).ok();
    let holder = read.and_then(|_| serde_json::from_str::<Holder>(&content).ok());
    if holder.is_none() && content.as_bytes() == share::SHARDS {
        return in_use(root, "processes that work on shards of it");
    }
    held(root, holder)
}

/// Another process holds the directory; one that has just taken it has said nothing yet.
fn held(root: &Path, holder: Option<Holder>) -> Diagnostic {
    let who = holder.map_or_else(
        || "another process".to_owned(),
        |holder| format!("process {} on {}, started {}", holder.pid, holder.host, holder.started),
    );
    in_use(root, &who)
}

fn in_use(root: &Path, who: &str) -> Diagnostic {
    Diagnostic::error(
        Blame::Machine,
        format!("the run directory `{}` is in use by {who}", root.display()),
    )
    .hint("wait for that run to end, or give this one another `output.path`")
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
