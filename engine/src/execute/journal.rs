//! The finished windows of a work unit that is still open.
//!
//! An append-only file of checksummed records, made durable at least every ten seconds. A resumed run replays it and
//! measures only what is missing; once the unit is committed the journal is removed. A torn or damaged tail ends the
//! replay: what stands before it is whole.
//!
//! ```text
//! header  [u32 length][u32 crc32][fingerprint of the unit, text]
//! record  [u32 length][u32 crc32][row u64][window u32][heads u32][bins u32][f64 …][standard errors, f64, f64]   little-endian
//! ```

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longsift_stages::first_layer_attention::{StandardErrors, WindowStatistics};

use crate::clock;
use crate::error::Result;
use crate::files;

/// The longest time a finished window is not yet durable.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

/// A window of a unit: its row in the file and its index in the document.
pub type WindowKey = (u64, u32);

/// The open journal of one unit.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: BufWriter<File>,
    synced: Instant,
    /// Locked as long as the journal is open: no other process writes to it.
    _claim: File,
}

impl Journal {
    /// Opens the journal of a unit and returns what it already holds. A journal of another fingerprint is started
    /// afresh. Where another process writes to it, this one gets a journal of its own.
    pub fn open(
        path: &Path,
        fingerprint: &str,
    ) -> Result<(Self, HashMap<WindowKey, WindowStatistics>)> {
        let (path, claim) = claim(path)?;
        let path = path.as_path();
        let bytes = files::read_if_present(path)?.unwrap_or_default();
        let (finished, whole) = replay(&bytes, fingerprint);
        let file = files::open_for_append(path, whole as u64)?;
        let mut journal = Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
            synced: Instant::now(),
            _claim: claim,
        };
        if whole == 0 {
            journal.write(fingerprint.as_bytes())?;
            journal.sync()?;
            files::fsync_folder(path.parent().unwrap_or(path))?;
        }
        Ok((journal, finished))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a finished window.
    pub fn append(&mut self, key: WindowKey, statistics: &WindowStatistics) -> Result<()> {
        self.write(&encode(key, statistics))?;
        if self.synced.elapsed() >= SYNC_INTERVAL { self.sync() } else { Ok(()) }
    }

    /// Makes everything added so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.synced = Instant::now();
        let done = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        done.map_err(|error| files::failed("write", &self.path)(error).into())
    }

    fn write(&mut self, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len()).expect("a record is a few kilobytes");
        let checksum = crc32fast::hash(payload);
        let done = self
            .file
            .write_all(&length.to_le_bytes())
            .and_then(|()| self.file.write_all(&checksum.to_le_bytes()))
            .and_then(|()| self.file.write_all(payload));
        done.map_err(|error| files::failed("write", &self.path)(error).into())
    }
}

/// Whether another process is writing to the journal of a unit now.
pub fn is_claimed(path: &Path) -> Result<bool> {
    if files::size(path)?.is_none() {
        return Ok(false);
    }
    let file = files::open_read_write(path)?;
    Ok(matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Locks the journal at `path`, or one beside it whose name no other process uses. A file system without locks cannot
/// say who else writes: there every process has its own.
fn claim(path: &Path) -> Result<(PathBuf, File)> {
    let file = files::open_read_write(path)?;
    if file.try_lock().is_ok() {
        return Ok((path.to_owned(), file));
    }
    let mut own = path.to_owned().into_os_string();
    own.push(format!(".{}-{:x}", std::process::id(), clock::nanoseconds()));
    let own = PathBuf::from(own);
    let file = files::open_read_write(&own)?;
    Ok((own, file))
}

fn encode((row, window): WindowKey, statistics: &WindowStatistics) -> Vec<u8> {
    let heads =
        u32::try_from(statistics.dependency_strength_by_head.len()).expect("heads fit 32 bits");
    let bins = u32::try_from(statistics.distance_histogram.len()).expect("bins fit 32 bits");
    let mut payload = Vec::with_capacity(20 + 8 * (2 * heads as usize + bins as usize));
    payload.extend(row.to_le_bytes());
    payload.extend(window.to_le_bytes());
    payload.extend(heads.to_le_bytes());
    payload.extend(bins.to_le_bytes());
    let figures = statistics
        .dependency_strength_by_head
        .iter()
        .chain(&statistics.far_variance_by_head)
        .chain(&statistics.distance_histogram);
    let errors = statistics.standard_errors;
    let errors = errors.map(|errors| [errors.dependency_strength, errors.far_variance]);
    for figure in figures.chain(errors.as_ref().into_iter().flatten()) {
        payload.extend(figure.to_le_bytes());
    }
    payload
}

fn decode(payload: &[u8]) -> Option<(WindowKey, WindowStatistics)> {
    let row = u64::from_le_bytes(payload.get(..8)?.try_into().ok()?);
    let word = |at: usize| Some(u32::from_le_bytes(payload.get(at..at + 4)?.try_into().ok()?));
    let (window, heads, bins) = (word(8)?, word(12)? as usize, word(16)? as usize);
    let figures: Vec<f64> = payload[20..]
        .chunks_exact(8)
        .map(|bytes| f64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes")))
        .collect();
    let whole = heads.checked_mul(2)?.checked_add(bins)?;
    let standard_errors = match figures.get(whole..)? {
        [] => None,
        [dependency_strength, far_variance] => Some(StandardErrors {
            dependency_strength: *dependency_strength,
            far_variance: *far_variance,
        }),
        _ => return None,
    };
    let statistics = WindowStatistics {
        dependency_strength_by_head: figures[..heads].to_vec(),
        far_variance_by_head: figures[heads..2 * heads].to_vec(),
        distance_histogram: figures[2 * heads..whole].to_vec(),
        standard_errors,
    };
    Some(((row, window), statistics))
}

/// The windows in the whole records of `bytes`, and how many bytes those records take.
fn replay(bytes: &[u8], fingerprint: &str) -> (HashMap<WindowKey, WindowStatistics>, usize) {
    let mut finished = HashMap::new();
    let Some((header, mut rest)) = next_record(bytes) else { return (finished, 0) };
    if header != fingerprint.as_bytes() {
        return (finished, 0);
    }
    while let Some((payload, after)) = next_record(rest) {
        let Some((key, statistics)) = decode(payload) else { break };
        finished.insert(key, statistics);
        rest = after;
    }
    (finished, bytes.len() - rest.len())
}

fn next_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let checksum = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
    let payload = bytes.get(8..8usize.checked_add(length)?)?;
    (crc32fast::hash(payload) == checksum).then(|| (payload, &bytes[8 + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(seed: f64) -> WindowStatistics {
        WindowStatistics {
            dependency_strength_by_head: vec![seed, seed / 3.0],
            far_variance_by_head: vec![seed * 1e-9, f64::MIN_POSITIVE],
            distance_histogram: vec![0.1, 0.2, 0.7],
            standard_errors: (seed > 1.5)
                .then_some(StandardErrors { dependency_strength: 0.01, far_variance: seed }),
        }
    }

    #[test]
    fn a_journal_gives_back_what_was_added_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut journal, finished) = Journal::open(&path, "f1").unwrap();
        assert!(finished.is_empty());
        for window in 0..5 {
            journal.append((7, window), &statistics(f64::from(window) + 0.1)).unwrap();
        }
        journal.sync().unwrap();
        drop(journal);
        let (_, finished) = Journal::open(&path, "f1").unwrap();
        assert_eq!(finished.len(), 5);
        assert_eq!(finished[&(7, 3)], statistics(3.1));
        let (_, finished) = Journal::open(&path, "f2").unwrap();
        assert!(finished.is_empty(), "another fingerprint starts afresh");
    }

    #[test]
    fn two_writers_have_a_journal_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut first, _) = Journal::open(&path, "f").unwrap();
        first.append((0, 0), &statistics(0.5)).unwrap();
        first.sync().unwrap();
        assert!(is_claimed(&path).unwrap());
        let (second, finished) = Journal::open(&path, "f").unwrap();
        assert!(finished.is_empty());
        assert_ne!(second.path(), first.path());
        drop(first);
        assert!(!is_claimed(&path).unwrap());
        let (third, finished) = Journal::open(&path, "f").unwrap();
        assert_eq!((third.path(), finished.len()), (path.as_path(), 1));
    }

    #[test]
    fn a_journal_cut_or_damaged_anywhere_keeps_only_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut journal, _) = Journal::open(&path, "f").unwrap();
        for window in 0..3 {
            journal.append((0, window), &statistics(0.5)).unwrap();
        }
        journal.sync().unwrap();
        drop(journal);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            let (finished, whole) = replay(&bytes[..cut], "f");
            assert!(whole <= cut);
            assert!(finished.len() < 3);
            let mut damaged = bytes.clone();
            damaged[cut] ^= 0x20;
            let (finished, _) = replay(&damaged, "f");
            assert!(finished.values().all(|figures| *figures == statistics(0.5)));
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (mut journal, finished) = Journal::open(&path, "f").unwrap();
        assert_eq!(finished.len(), 2);
        journal.append((0, 2), &statistics(0.5)).unwrap();
        journal.sync().unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            bytes,
            "a torn record is cut off before the next one"
        );
    }
}
