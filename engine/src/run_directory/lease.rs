//! Use of a run directory in an object store, where nothing can be locked: an object says who works there, and is written
//! anew every few seconds. One that stays the same for a while is of a process that is gone.
//!
//! A lease keeps runs from wasting each other's work; that nothing is lost or mixed without it is up to the commit protocol
//! (see [`crate::write::commit`]): a process that was asleep for longer than a lease may wake up beside another.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::holder::Holder;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::{clock, machine};
use crate::storage::error::ErrorKind;
use crate::storage::files;
use crate::storage::objects::Version;
use crate::storage::objects::stored::{read_version, write_version};
use crate::storage::retry::RetryPolicy;

/// How often a lease is written anew.
const BEAT: Duration = Duration::from_secs(5);
/// A lease that stays the same for so long has nobody: three beats that did not come, and one that is late.
const PATIENCE: Duration = Duration::from_secs(20);
/// For so long a lease that was written is this process's without another look: shorter than anyone's patience.
const SURE: Duration = Duration::from_secs(2);
/// How often a lease of another process is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the object says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claim {
    #[serde(flatten)]
    holder: Holder,
    /// Where the process number means something.
    place: String,
    /// Tells leases of the same process apart.
    number: u64,
    /// How often it was written.
    beats: u64,
}

/// A lease of this process, until it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    path: PathBuf,
    root: PathBuf,
    shared: Arc<Shared>,
    end: Option<Sender<()>>,
    heart: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// What the object says, and which version it is. Held while it is written: of two writers at a time the second would
    /// take the first for another process.
    object: Mutex<(Claim, Version)>,
    /// What is known without a request; never held during one.
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// When the last writing of the lease began that succeeded.
    written: Instant,
    lost: bool,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// Takes the lease at `path`.
    ///
    /// # Errors
    /// Another process has it, and writes it anew.
    pub(super) fn take(path: &Path, root: &Path) -> Result<Self> {
        let number = clock::nanoseconds() as u64;
        let claim = Claim { holder: Holder::this_process(), place: place(), number, beats: 0 };
        let (version, written) = loop {
            let begun = Instant::now();
            if let Some(version) = write(path, &claim, None, RetryPolicy::default())? {
                break (version, begun);
            }
            let Some((before, version)) = read(path)? else { continue };
            if let Use::By(holder) = wait_for_end(path, before.as_ref(), &version)? {
                return Err(super::holder::held(root, holder).into());
            }
            let begun = Instant::now();
            if let Some(version) = write(path, &claim, Some(version), RetryPolicy::default())? {
                break (version, begun);
            }
        };
        let known = Mutex::new(Known { written, lost: false });
        let shared = Arc::new(Shared { object: Mutex::new((claim, version)), known });
        let (end, ended) = channel::<()>();
        let heart = {
            let (path, shared) = (path.to_owned(), Arc::clone(&shared));
            std::thread::spawn(move || {
                while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    beat(&path, &shared);
                }
            })
        };
        Ok(Self {
            path: path.to_owned(),
            root: root.to_owned(),
            shared,
            end: Some(end),
            heart: Some(heart),
        })
    }

    /// The same as [`Lease::check`], without a request where the lease was written a moment ago.
    pub(super) fn confirm(&self) -> Result<()> {
        let known = self.shared.known();
        let sure = !known.lost && known.written.elapsed() < SURE;
        drop(known);
        if sure { Ok(()) } else { self.check() }
    }

    /// That no other process has taken the directory meanwhile.
    pub(super) fn check(&self) -> Result<()> {
        beat(&self.path, &self.shared);
        if !self.shared.known().lost {
            return Ok(());
        }
        Err(Diagnostic::error(
            Blame::Machine,
            format!(
                "this process lost the lease of the run directory `{}`: it was not renewed in time, and another process took it",
                self.root.display()
            ),
        )
        .hint("nothing of the other run is lost; run again once it has ended")
        .into())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(heart) = self.heart.take() {
            let _ = heart.join();
        }
        let lost = self.shared.known().lost;
        // What cannot be removed ends by itself.
        if !lost && let Err(error) = files::remove_file(&self.path) {
            tracing::debug!("{error}");
        }
    }
}

/// Writes the lease anew. What fails is tried again with the next beat.
fn beat(path: &Path, shared: &Shared) {
    let mut object = shared.object.lock().unwrap_or_else(PoisonError::into_inner);
    let (claim, version) = &mut *object;
    claim.beats += 1;
    let begun = Instant::now();
    // A beat that takes longer than the time to the next one is too late.
    let policy = RetryPolicy { deadline: BEAT, ..RetryPolicy::default() };
    match write(path, claim, Some(version.clone()), policy) {
        Ok(Some(written)) => {
            *version = written;
            shared.known().written = begun;
        }
        Ok(None) => shared.known().lost = true,
        Err(error) => tracing::warn!("{error}"),
    }
}

/// Whether a directory is in use.
pub(super) enum Use {
    /// By nobody.
    Over,
    /// By a living process, which may say nothing of itself.
    By(Option<Holder>),
}

/// Whether the directory whose lease is at `path` is in use: see [`wait_for_end`].
pub(super) fn look(path: &Path) -> Result<Use> {
    match read(path)? {
        Some((claim, version)) => wait_for_end(path, claim.as_ref(), &version),
        None => Ok(Use::Over),
    }
}

/// What a lease says, without waiting to see whether it is of a living process.
pub(super) fn said(path: &Path) -> Result<Option<Holder>> {
    let claim = read(path)?.and_then(|(claim, _)| claim);
    Ok(claim.filter(|claim| !is_over(claim)).map(|claim| claim.holder))
}

/// Looks at a lease until it is written anew, goes, or has been the same for too long.
fn wait_for_end(path: &Path, before: Option<&Claim>, version: &Version) -> Result<Use> {
    if before.is_some_and(is_over) {
        return Ok(Use::Over);
    }
    let since = Instant::now();
    tracing::info!("lease `{}` exists: waiting to see whether its owner is alive", path.display());
    while since.elapsed() < PATIENCE {
        std::thread::sleep(LOOK_INTERVAL);
        match read(path)? {
            None => return Ok(Use::Over),
            Some((claim, now)) if now != *version => {
                return Ok(Use::By(claim.map(|claim| claim.holder)));
            }
            Some(_) => {}
        }
    }
    Ok(Use::Over)
}

/// Whether the process is known to be gone: one of this machine that does not run, or this one, in an earlier life.
fn is_over(claim: &Claim) -> bool {
    let pid = claim.holder.pid;
    claim.place == place() && (pid == std::process::id() || !is_running(pid))
}

/// Whether a process of this machine runs. A zombie counts as dead.
fn is_running(pid: u32) -> bool {
    if let Some(stat) = machine::read_system(&format!("/proc/{pid}/stat")) {
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        return !matches!(state, Some('Z' | 'X'));
    }
    let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    number
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Names the numbering of processes: that of this boot of this machine, or of a container.
fn place() -> String {
    let boot = machine::read_system("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

fn write(
    path: &Path,
    claim: &Claim,
    instead_of: Option<Version>,
    policy: RetryPolicy,
) -> Result<Option<Version>> {
    let text = serde_json::to_vec(claim).expect("plain data");
    Ok(write_version(address(path), &text, instead_of, policy)?)
}

/// A lease may be damaged: then it says nothing, but it is there.
fn read(path: &Path) -> Result<Option<(Option<Claim>, Version)>> {
    match read_version(address(path), RetryPolicy::default()) {
        Ok((bytes, version)) => Ok(Some((serde_json::from_slice(&bytes).ok(), version))),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn address(path: &Path) -> &str {
    path.to_str().expect("an address is text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_just_written_is_sure_while_the_next_beat_waits_for_its_store() {
        let claim = Claim { holder: Holder::this_process(), place: place(), number: 1, beats: 0 };
        let version = Version { e_tag: None, version: None };
        let known = Mutex::new(Known { written: Instant::now(), lost: true });
        let shared = Arc::new(Shared { object: Mutex::new((claim, version)), known });
        let (path, root) = ("s3://bucket/out.run/lease".into(), "s3://bucket/out.run".into());
        let lease = Lease { path, root, shared: Arc::clone(&shared), end: None, heart: None };
        // As while a beat is under way.
        let _beat = shared.object.lock().unwrap();
        shared.known().lost = false;
        assert!(lease.confirm().is_ok());
        // What is lost is not removed when it is dropped.
        shared.known().lost = true;
    }
}
