//! Lease of a run directory in an object store, which has no locks. The lease is an object that names its process and that the
//! process rewrites every few seconds. If it stays unchanged for [`EXPIRY`], the process is considered dead.
//!
//! A lease only prevents duplicate work. Correctness does not depend on it but on the commit protocol (see
//! [`crate::write::commit`]): a suspended process may resume after its lease has expired, while another process is active. One
//! gap remains, because stores have no removal that depends on another object: a process that is suspended between a check and
//! the request that it allows (some microseconds), for longer than [`EXPIRY`], can remove a file that another process has just
//! committed under the same name. `longsift verify` finds it.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::holder::Holder;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::parallel::lock;
use crate::base::{clock, machine};
use crate::storage::error::{ErrorKind, StorageError};
use crate::storage::files;
use crate::storage::objects::Version;
use crate::storage::objects::stored::{read_version, write_version};
use crate::storage::retry::RetryPolicy;

type StorageResult<T> = std::result::Result<T, StorageError>;

const RENEWAL_INTERVAL: Duration = Duration::from_secs(5);
/// A lease that stays unchanged for this long has expired: three missed renewals and a late one.
const EXPIRY: Duration = Duration::from_secs(20);
/// The owner of a lease of this age does not run, even if the clocks of this machine and of the store differ by minutes.
const ABANDONED: Duration = Duration::from_mins(10);
/// A lease renewed this recently is valid without a request. Must be much shorter than [`EXPIRY`].
const RECENT: Duration = Duration::from_secs(2);
/// A lease whose renewal fails is still valid for this long. Must be much shorter than [`EXPIRY`].
const CERTAIN: Duration = Duration::from_secs(10);
/// Maximum time between a check and a removal that depends on it. With [`CERTAIN`] shorter than [`EXPIRY`].
const REMOVAL_DEADLINE: Duration = Duration::from_secs(5);
/// Interval between reads of another process's lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of refusals to replace the version that the store returns.
const MAX_REFUSALS: usize = 5;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LeaseRecord {
    #[serde(flatten)]
    holder: Holder,
    /// Namespace of the process number.
    place: String,
    /// Distinguishes leases of the same process.
    number: u64,
    beats: u64,
}

/// Lease of this process, released when it is dropped.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    root: PathBuf,
    shared: Arc<Shared>,
    end: Option<Sender<()>>,
    heart: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Last written content and its version. Locked during writes, so only one thread writes at a time.
    object: Mutex<(LeaseRecord, Version)>,
    /// State that is known without a request; never locked during a request.
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Start of the last successful renewal.
    written: Instant,
    lost: bool,
}

impl Lease {
    /// Acquires the lease at `path`; an error if another process renews it.
    pub(super) fn acquire(path: &Path, root: &Path) -> Result<Self> {
        let number = clock::nanoseconds() as u64;
        let mut claim = LeaseRecord {
            holder: Holder::this_process(),
            place: process_namespace(),
            number,
            beats: 0,
        };
        let mut refused = Vec::new();
        let (version, written) = loop {
            let begun = Instant::now();
            if let Some(mut version) = write(path, &claim, None, RetryPolicy::default())? {
                // Tests that the store honours conditions: creating the object again with other content must fail. It can
                // succeed once, if this process was suspended and another one removed the lease. A third success means that the
                // store ignores conditions.
                let other = LeaseRecord { number: !number, ..claim.clone() };
                if let Some(second) = write(path, &other, None, RetryPolicy::default())? {
                    if write(path, &claim, None, RetryPolicy::default())?.is_some() {
                        return Err(unconditional(root, "If-None-Match"));
                    }
                    (claim, version) = (other, second);
                }
                break (version, begun);
            }
            let Some((before, version)) = read(path)? else { continue };
            wait_for_end(path, root, before.as_ref(), &version)?;
            let begun = Instant::now();
            let replaced = write(path, &claim, Some(version.clone()), RetryPolicy::default())?;
            if let Some(version) = replaced {
                break (version, begun);
            }
            refused.retain(|other| *other == version);
            refused.push(version);
            if refused.len() >= MAX_REFUSALS {
                return Err(irreplaceable(path, root));
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        // Tests the condition of replacing an object: replacing a version that never existed must fail.
        let probe = LeaseRecord { number: !claim.number, beats: 1, ..claim.clone() };
        if write(path, &probe, Some(no_version()), RetryPolicy::default())?.is_some() {
            return Err(unconditional(root, "If-Match"));
        }
        let known = Mutex::new(Known { written, lost: false });
        let shared = Arc::new(Shared { object: Mutex::new((claim, version)), known });
        let (end, ended) = channel::<()>();
        let heart = {
            let (path, shared) = (path.to_owned(), Arc::clone(&shared));
            std::thread::spawn(move || {
                while ended.recv_timeout(RENEWAL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    if let Err(error) = renew(&path, &shared) {
                        tracing::warn!("{error}");
                    }
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

    /// Like [`Lease::check`], but without a request if the lease was renewed a moment ago.
    pub(super) fn confirm(&self) -> Result<()> {
        let known = lock(&self.shared.known);
        let sure = !known.lost && known.written.elapsed() < RECENT;
        drop(known);
        if sure { Ok(()) } else { self.check() }
    }

    /// Removes a file of a commit, and checks the lease before each attempt.
    pub(super) fn remove_file(&self, path: &Path) -> Result<()> {
        let since = Instant::now();
        loop {
            self.confirm()?;
            match files::remove_file_within(path, Some(REMOVAL_DEADLINE)) {
                Err(error) if is_worth_retrying(&error, since) => {}
                done => return Ok(done?),
            }
        }
    }

    /// Renews the lease; an error if another process has acquired it, or may have while the store was not available.
    pub(super) fn check(&self) -> Result<()> {
        let since = Instant::now();
        while !lock(&self.shared.known).lost {
            let renewed = renew(&self.path, &self.shared);
            let known = lock(&self.shared.known);
            if !known.lost && known.written.elapsed() < CERTAIN {
                return Ok(());
            }
            drop(known);
            if let Err(error) = renewed
                && !is_worth_retrying(&error, since)
            {
                return Err(error.into());
            }
        }
        Err(Diagnostic::error(
            Blame::Machine,
            format!(
                "this process lost the lease of the run directory `{}`: it was not renewed in time, and another process acquired it",
                self.root.display()
            ),
        )
        .hint("run again after the other run has ended; its results are kept")
        .into())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(heart) = self.heart.take() {
            let _ = heart.join();
        }
        let lost = lock(&self.shared.known).lost;
        // A lease that cannot be removed expires.
        if !lost && let Err(error) = files::remove_file(&self.path) {
            tracing::debug!("{error}");
        }
    }
}

/// Renews the lease, or learns that another process has acquired it.
fn renew(path: &Path, shared: &Shared) -> StorageResult<()> {
    let mut object = lock(&shared.object);
    let (claim, version) = &mut *object;
    claim.beats += 1;
    let begun = Instant::now();
    // A renewal that takes longer than the interval is too late.
    let policy = RetryPolicy { deadline: RENEWAL_INTERVAL, ..RetryPolicy::default() };
    match write(path, claim, Some(version.clone()), policy)? {
        Some(written) => {
            *version = written;
            lock(&shared.known).written = begun;
        }
        None => lock(&shared.known).lost = true,
    }
    Ok(())
}

fn is_worth_retrying(error: &StorageError, since: Instant) -> bool {
    error.kind == ErrorKind::Transient && since.elapsed() < RetryPolicy::default().deadline
}

/// Returns a version that no object has: an `ETag` that is not a hash of any content, and a generation before all others.
fn no_version() -> Version {
    Version { e_tag: Some(format!("\"{:032}\"", 0)), version: Some("1".to_owned()) }
}

/// Error: the store does not replace the version of a lease that it returns.
fn irreplaceable(path: &Path, root: &Path) -> Failure {
    let message = format!(
        "the store of `{}` returns a version of `{}`, but refuses to replace this version",
        root.display(),
        path.display()
    );
    Diagnostic::error(Blame::Machine, message)
        .hint("a proxy may change its `ETag` headers: use the store directly, or write to a local folder")
        .into()
}

/// Error: the store ignores conditions of writes.
fn unconditional(root: &Path, header: &str) -> Failure {
    let message = format!(
        "the store of `{}` ignores `{header}`: two runs would overwrite each other's files",
        root.display()
    );
    Diagnostic::error(Blame::Pipeline, message)
        .hint("write to a store with conditional writes (AWS S3, Google Cloud Storage, Azure, recent MinIO and Ceph), or to a disk")
        .into()
}

/// Checks that no live process uses the directory with the lease at `path`: see [`wait_for_end`].
pub(super) fn check_free(path: &Path, root: &Path) -> Result<()> {
    match read(path)? {
        Some((claim, version)) => wait_for_end(path, root, claim.as_ref(), &version),
        None => Ok(()),
    }
}

/// Reads the holder of a lease, without waiting to see whether it is alive. `None` if the lease was not renewed for long.
pub(super) fn read_holder(path: &Path) -> Result<Option<Holder>> {
    let claim = read(path)?.and_then(|(claim, _)| claim);
    let Some(claim) = claim.filter(|claim| !has_ended(claim)) else { return Ok(None) };
    let renewed = files::stamp(path)?.and_then(|stamp| u64::try_from(stamp.modified_ns).ok());
    let renewed =
        renewed.filter(|ns| *ns > 0).map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
    let age = renewed.and_then(|renewed| SystemTime::now().duration_since(renewed).ok());
    Ok(age.is_none_or(|age| age < ABANDONED).then_some(claim.holder))
}

/// Polls a lease until it is removed or has expired; an error if it is renewed.
fn wait_for_end(
    path: &Path,
    root: &Path,
    before: Option<&LeaseRecord>,
    version: &Version,
) -> Result<()> {
    if before.is_some_and(has_ended) {
        return Ok(());
    }
    let since = Instant::now();
    tracing::info!("lease `{}` exists: waiting to see whether its owner is alive", path.display());
    while since.elapsed() < EXPIRY {
        std::thread::sleep(POLL_INTERVAL);
        match read(path)? {
            None => return Ok(()),
            Some((claim, now)) if now != *version => {
                return Err(super::holder::held(root, claim.map(|claim| claim.holder)).into());
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Whether the process has certainly ended: it ran on this machine and no longer exists, or it had the number of this process.
fn has_ended(claim: &LeaseRecord) -> bool {
    let pid = claim.holder.pid;
    claim.place == process_namespace() && (pid == std::process::id() || !is_running(pid))
}

/// Whether a process of this machine runs. A zombie counts as ended.
fn is_running(pid: u32) -> bool {
    if let Some(stat) = machine::read_system(&format!("/proc/{pid}/stat")) {
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        return !matches!(state, Some('Z' | 'X'));
    }
    let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    number
        .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Identifies the namespace of process numbers: this boot of this machine, and the container.
fn process_namespace() -> String {
    let boot = machine::read_system("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

fn write(
    path: &Path,
    claim: &LeaseRecord,
    instead_of: Option<Version>,
    policy: RetryPolicy,
) -> StorageResult<Option<Version>> {
    let text = serde_json::to_vec(claim).expect("plain data");
    write_version(address(path), &text, instead_of, policy)
}

/// Reads a lease; the content is `None` if it is damaged.
fn read(path: &Path) -> Result<Option<(Option<LeaseRecord>, Version)>> {
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
    fn recent_lease_is_valid_while_a_renewal_waits_for_the_store() {
        let claim = LeaseRecord {
            holder: Holder::this_process(),
            place: process_namespace(),
            number: 1,
            beats: 0,
        };
        let version = Version { e_tag: None, version: None };
        let known = Mutex::new(Known { written: Instant::now(), lost: true });
        let shared = Arc::new(Shared { object: Mutex::new((claim, version)), known });
        let (path, root) = ("s3://bucket/out.run/lease".into(), "s3://bucket/out.run".into());
        let lease = Lease { path, root, shared: Arc::clone(&shared), end: None, heart: None };
        // As during a renewal.
        let _beat = shared.object.lock().unwrap();
        lock(&shared.known).lost = false;
        assert!(lease.confirm().is_ok());
        // A lost lease is not removed on drop.
        lock(&shared.known).lost = true;
    }
}
