//! Journal: finished statistics of an open work unit.
//!
//! An append-only file of checksummed records, synced by time: code that waits for windows calls [`Journal::sync_if_due`]. A
//! resumed run replays it and measures only what is missing; after the commit of the unit the journal is removed. Replay stops
//! at a partial or damaged record; everything before it is intact.
//!
//! ```text
//! header  [u32 length][u32 crc32][JSON: fingerprint of the unit's windows, each measure with its fingerprint and columns]
//! record  [u32 length][u32 crc32][row u64][window u32][measure u16][values]   little-endian
//! ```
//!
//! `measure` is an index into the header's lists. If the lists differ, statistics of measures that both have are kept. A record
//! without statistics marks a window that a retained measure did not measure: if the measure is planned again, it is computed.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longsift_stages::contract::{Column, StatisticValues};
use serde::{Deserialize, Serialize};

use crate::base::clock;
use crate::base::error::Result;
use crate::run_directory::facts::MeasuredBy;
use crate::run_directory::scores::MeasureColumns;
use crate::storage::marked::{self, Mark};
use crate::storage::{error, files};

/// Maximum time until finished statistics are synced.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

/// Window of a unit: its row in the file and its index in the document.
pub type WindowKey = (u64, u32);

/// Window, and index of the measure in the header.
pub type StatisticsKey = (WindowKey, u16);

/// Marks a window without statistics of a measure: excluded by a guard or by sampling, or nothing was retained.
pub const NOT_MEASURED: StatisticValues = StatisticValues(Vec::new());

/// Header of a journal: what its statistics depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Fingerprint of the unit's input and of what its windows depend on.
    pub windows: String,
    /// Measures of the plan in order, in the form in which they are retained if the next plan does not have them.
    pub measures: Vec<RetainedMeasure>,
    /// Measures after those of the plan, which the unit retains.
    #[serde(rename = "carried")]
    pub retained: Vec<RetainedMeasure>,
}

impl Header {
    fn all(&self) -> impl Iterator<Item = &RetainedMeasure> {
        self.measures.iter().chain(&self.retained)
    }

    /// Reads the measures of the journal at `path`; empty if it belongs to other windows.
    pub(super) fn measures_at(path: &Path, windows: &str) -> Result<Vec<RetainedMeasure>> {
        let bytes = files::read_if_present(path)?.unwrap_or_default();
        let header =
            next_record(&bytes).and_then(|(header, _)| serde_json::from_slice(header).ok());
        let header: Option<Self> = header.filter(|header: &Self| header.windows == windows);
        Ok(header.map_or(Vec::new(), |header| [header.measures, header.retained].concat()))
    }
}

/// Measure whose statistics stay in a unit even if the plan no longer has the measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedMeasure {
    /// Name in the pipeline that measured it.
    pub measure: String,
    pub by: MeasuredBy,
    /// Columns as declared in a score file, without rules.
    pub(super) columns: Vec<Column>,
}

impl RetainedMeasure {
    /// Returns a measure that lacks some statistics.
    pub fn unfinished(columns: MeasureColumns, fingerprint: String) -> Self {
        let MeasureColumns { measure, columns } = columns;
        let by = MeasuredBy { fingerprint, incomplete: true, ..MeasuredBy::default() };
        let declared = |Column { name, kind, unit, doc, .. }: Column| Column {
            kind,
            ..Column::number(name, unit, doc)
        };
        Self { measure, by, columns: columns.into_iter().map(declared).collect() }
    }

    fn is_same_measure(&self, other: &Self) -> bool {
        self.measure == other.measure && self.by.fingerprint == other.by.fingerprint
    }

    pub fn columns(&self) -> MeasureColumns {
        MeasureColumns { measure: self.measure.clone(), columns: self.columns.clone() }
    }
}

#[derive(Debug)]
pub struct Journal {
    pub(super) path: PathBuf,
    file: BufWriter<File>,
    /// Time of the first record that is not synced.
    unsynced: Option<Instant>,
    /// Locked while the journal is open: no other process writes to it.
    _claim: File,
}

impl Journal {
    /// Opens the journal of a unit and returns its statistics of the measures in the header.
    ///
    /// A journal of other windows is replaced. If another process writes to it, a separate journal is created. `exclusive`: the
    /// caller has exclusive access, which matters on a file system without locks.
    pub fn open(
        path: &Path,
        header: &Header,
        exclusive: bool,
    ) -> Result<(Self, HashMap<StatisticsKey, StatisticValues>)> {
        let (path, claim) = claim(path, exclusive)?;
        let bytes = files::read_if_present(&path)?.unwrap_or_default();
        let Replayed { finished, whole, same } = replay(&bytes, header);
        if same {
            let file = BufWriter::new(files::open_for_append(&path, whole as u64)?);
            return Ok((Self { path, file, unsynced: None, _claim: claim }, finished));
        }
        if finished.is_empty() {
            let mut journal = Self::begin(&path, header, claim)?;
            journal.sync()?;
            files::fsync_folder(path.parent().unwrap_or(&path))?;
            return Ok((journal, finished));
        }
        // The measures differ and some statistics are still needed: the new journal is synced before it replaces the old one.
        let new = unique_name(&path);
        let claim = files::open_read_write(&new)?;
        let _ = claim.try_lock();
        let mut journal = Self::begin(&new, header, claim)?;
        let mut kept: Vec<_> = finished.iter().collect();
        kept.sort_unstable_by_key(|(key, _)| **key);
        kept.into_iter().try_for_each(|(key, values)| journal.append(*key, values))?;
        journal.sync()?;
        files::rename(&new, &path)?;
        files::fsync_folder(path.parent().unwrap_or(&path))?;
        Ok((Self { path, ..journal }, finished))
    }

    fn begin(path: &Path, header: &Header, claim: File) -> Result<Self> {
        let file = BufWriter::new(files::open_for_append(path, 0)?);
        let mut journal = Self { path: path.to_owned(), file, unsynced: None, _claim: claim };
        journal.write(&serde_json::to_vec(header).expect("a header is plain data"))?;
        Ok(journal)
    }

    pub fn append(
        &mut self,
        ((row, window), measure): StatisticsKey,
        values: &StatisticValues,
    ) -> Result<()> {
        let mut payload = Vec::new();
        payload.extend(row.to_le_bytes());
        payload.extend(window.to_le_bytes());
        payload.extend(measure.to_le_bytes());
        values.encode(&mut payload);
        self.write(&payload)?;
        self.unsynced.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Syncs if the oldest unsynced record is old enough at `now`.
    pub fn sync_if_due(&mut self, now: Instant) -> Result<()> {
        let due = |since| now.saturating_duration_since(since) >= SYNC_INTERVAL;
        if self.unsynced.is_some_and(due) { self.sync() } else { Ok(()) }
    }

    pub fn sync(&mut self) -> Result<()> {
        self.unsynced = None;
        let done = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        done.map_err(|error| error::failed("write", &self.path)(error).into())
    }

    fn write(&mut self, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len()).expect("a record is a few kilobytes");
        let checksum = crc32fast::hash(payload);
        let head = [length.to_le_bytes(), checksum.to_le_bytes()].concat();
        let done = self.file.write_all(&head).and_then(|()| self.file.write_all(payload));
        done.map_err(|error| error::failed("write", &self.path)(error).into())
    }
}

pub fn check_own(path: &Path) -> Result<()> {
    marked::check(path, Mark::Contains("{\"windows\":\""))
}

pub fn is_claimed(path: &Path) -> Result<bool> {
    if files::size(path)?.is_none() {
        return Ok(false);
    }
    let file = files::open_read_write(path)?;
    Ok(matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Locks the journal at `path`, or a new one next to it with a unique name. On a file system without locks, other writers
/// cannot be detected: every process uses a separate journal unless it has exclusive access.
fn claim(path: &Path, exclusive: bool) -> Result<(PathBuf, File)> {
    // In the cache, another process may have removed the folder between two units.
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        marked::create_folder(folder)?;
    }
    let file = files::open_read_write(path)?;
    match file.try_lock() {
        Ok(()) => return Ok((path.to_owned(), file)),
        Err(TryLockError::Error(_)) if exclusive => return Ok((path.to_owned(), file)),
        Err(_) => {}
    }
    let own = unique_name(path);
    let file = files::open_read_write(&own)?;
    Ok((own, file))
}

fn unique_name(path: &Path) -> PathBuf {
    path.with_added_extension(format!("{}-{:x}", std::process::id(), clock::nanoseconds()))
}

/// Decodes the key of a record and returns the bytes of its statistics.
fn decode(payload: &[u8]) -> Option<(StatisticsKey, &[u8])> {
    let (row, rest) = payload.split_first_chunk()?;
    let (window, rest) = rest.split_first_chunk()?;
    let (measure, values) = rest.split_first_chunk()?;
    let key = (u64::from_le_bytes(*row), u32::from_le_bytes(*window));
    Some(((key, u16::from_le_bytes(*measure)), values))
}

struct Replayed {
    /// Statistics of measures of the current header, by their index there.
    finished: HashMap<StatisticsKey, StatisticValues>,
    whole: usize,
    same: bool,
}

fn replay(bytes: &[u8], now: &Header) -> Replayed {
    let mut replayed = Replayed { finished: HashMap::new(), whole: 0, same: false };
    let Some((header, mut rest)) = next_record(bytes) else { return replayed };
    let Ok(before) = serde_json::from_slice::<Header>(header) else { return replayed };
    if before.windows != now.windows {
        return replayed;
    }
    replayed.same = before == *now;
    let index = |of: &RetainedMeasure| now.all().position(|now| now.is_same_measure(of));
    let indexes: Vec<Option<usize>> = before.all().map(index).collect();
    let columns: Vec<MeasureColumns> = now.all().map(RetainedMeasure::columns).collect();
    while let Some((payload, after)) = next_record(rest) {
        let Some(((key, measure), values)) = decode(payload) else { break };
        match indexes.get(usize::from(measure)) {
            None => break,
            // The measure is no longer planned, or has changed.
            Some(None) => {}
            Some(&Some(index)) if values.is_empty() => {
                if index >= now.measures.len() {
                    replayed.finished.insert((key, index as u16), NOT_MEASURED);
                }
            }
            Some(&Some(index)) => {
                let Some(values) = StatisticValues::decode(values, &columns[index].columns) else {
                    break;
                };
                replayed.finished.insert((key, index as u16), values);
            }
        }
        rest = after;
    }
    replayed.whole = bytes.len() - rest.len();
    replayed
}

fn next_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let checksum = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
    let payload = bytes.get(8..8usize.checked_add(length)?)?;
    (crc32fast::hash(payload) == checksum).then(|| (payload, &bytes[8 + length..]))
}

#[cfg(test)]
mod tests {
    use longsift_stages::contract::{Kind, Value};

    use super::*;

    fn column(kind: Kind) -> Column {
        Column { kind, ..Column::number("x", "share", "a statistic") }
    }

    /// Returns one of two measures with different columns.
    fn measure(&(name, fingerprint): &(&str, &str)) -> RetainedMeasure {
        let columns = match name {
            "one" => vec![column(Kind::Number), column(Kind::Numbers)],
            _ => vec![column(Kind::Count)],
        };
        let columns = MeasureColumns { measure: name.to_owned(), columns };
        RetainedMeasure::unfinished(columns, fingerprint.to_owned())
    }

    fn header(windows: &str, measures: &[(&str, &str)]) -> Header {
        let measures = measures.iter().map(measure).collect();
        Header { windows: windows.to_owned(), measures, retained: Vec::new() }
    }

    fn two(windows: &str) -> Header {
        header(windows, &[("one", "1"), ("two", "2")])
    }

    fn open(path: &Path, header: &Header) -> (Journal, HashMap<StatisticsKey, StatisticValues>) {
        Journal::open(path, header, false).unwrap()
    }

    fn values(seed: f64) -> StatisticValues {
        StatisticValues(vec![
            Value::Number(seed / 3.0),
            Value::Numbers(vec![seed, f64::MIN_POSITIVE]),
        ])
    }

    #[test]
    fn journal_round_trips_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut journal, finished) = open(&path, &two("w1"));
        assert!(finished.is_empty());
        for window in 0..5 {
            journal.append(((7, window), 0), &values(f64::from(window) + 0.1)).unwrap();
            let count = StatisticValues(vec![Value::Count(u64::from(window) << 40)]);
            journal.append(((7, window), 1), &count).unwrap();
        }
        journal.sync().unwrap();
        drop(journal);
        let (_, finished) = open(&path, &two("w1"));
        assert_eq!(finished.len(), 10);
        assert_eq!(finished[&((7, 3), 0)], values(3.1));
        assert_eq!(finished[&((7, 3), 1)], StatisticValues(vec![Value::Count(3 << 40)]));
        let (_, finished) = open(&path, &two("w2"));
        assert!(finished.is_empty(), "other windows start afresh");
    }

    #[test]
    fn statistics_of_common_measures_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut journal, _) = open(&path, &two("w"));
        journal.append(((0, 0), 0), &values(0.5)).unwrap();
        journal.append(((0, 0), 1), &StatisticValues(vec![Value::Count(9)])).unwrap();
        journal.sync().unwrap();
        drop(journal);
        // The first has changed, a third was added, and the second is now the first.
        let now = header("w", &[("two", "2"), ("one", "changed")]);
        let opened = open(&path, &now);
        let kept = HashMap::from([(((0, 0), 0), StatisticValues(vec![Value::Count(9)]))]);
        assert_eq!(opened.1, kept);
        assert!(is_claimed(&path).unwrap(), "the file that replaces it is claimed as well");
        drop(opened);
        let again = open(&path, &now);
        assert_eq!(again.1, kept);
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1);
    }

    #[test]
    fn not_measured_markers_do_not_count_for_planned_measures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let retaining =
            Header { retained: vec![measure(&("two", "2"))], ..header("w", &[("one", "1")]) };
        let (mut journal, _) = open(&path, &retaining);
        journal.append(((0, 0), 1), &NOT_MEASURED).unwrap();
        journal.append(((0, 1), 1), &StatisticValues(vec![Value::Count(9)])).unwrap();
        journal.sync().unwrap();
        drop(journal);
        let names = |measures: Vec<RetainedMeasure>| -> Vec<String> {
            measures.into_iter().map(|of| of.measure).collect()
        };
        assert_eq!(names(Header::measures_at(&path, "w").unwrap()), ["one", "two"]);
        assert_eq!(Header::measures_at(&path, "other").unwrap(), []);
        let of_one = (((0, 1), 1), StatisticValues(vec![Value::Count(9)]));
        let both = HashMap::from([(((0, 0), 1), NOT_MEASURED), of_one.clone()]);
        assert_eq!(open(&path, &retaining).1, both, "still retained");
        assert_eq!(open(&path, &two("w")).1, HashMap::from([of_one]), "to be measured");
    }

    #[test]
    fn records_are_synced_by_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut journal, _) = open(&path, &two("w"));
        journal.append(((0, 0), 0), &values(0.5)).unwrap();
        let on_disk = || std::fs::read(&path).unwrap().len();
        let before = on_disk();
        journal.sync_if_due(Instant::now()).unwrap();
        assert_eq!(on_disk(), before, "not yet");
        journal.sync_if_due(Instant::now() + SYNC_INTERVAL).unwrap();
        assert!(on_disk() > before);
    }

    #[test]
    fn two_writers_have_a_journal_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("removed/unit");
        let (mut first, _) = open(&path, &two("w"));
        first.append(((0, 0), 0), &values(0.5)).unwrap();
        first.sync().unwrap();
        assert!(is_claimed(&path).unwrap());
        let (second, finished) = open(&path, &two("w"));
        assert!(finished.is_empty());
        assert_ne!(second.path, first.path);
        drop(first);
        assert!(!is_claimed(&path).unwrap());
        let (third, finished) = open(&path, &two("w"));
        assert_eq!((&third.path, finished.len()), (&path, 1));
    }

    #[test]
    fn a_journal_cut_or_damaged_anywhere_keeps_only_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unit");
        let (mut journal, _) = open(&path, &two("w"));
        for window in 0..3 {
            journal.append(((0, window), 0), &values(0.5)).unwrap();
        }
        journal.sync().unwrap();
        drop(journal);
        let bytes = std::fs::read(&path).unwrap();
        let now = two("w");
        let replayed = |bytes: &[u8]| replay(bytes, &now);
        for cut in 0..bytes.len() {
            let Replayed { finished, whole, .. } = replayed(&bytes[..cut]);
            assert!(whole <= cut);
            assert!(finished.len() < 3);
            let mut damaged = bytes.clone();
            damaged[cut] ^= 0x20;
            let finished = replayed(&damaged).finished;
            assert!(finished.values().all(|found| *found == values(0.5)));
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (mut journal, finished) = open(&path, &now);
        assert_eq!(finished.len(), 2);
        journal.append(((0, 2), 0), &values(0.5)).unwrap();
        journal.sync().unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            bytes,
            "a torn record is cut off before the next one"
        );
    }
}
