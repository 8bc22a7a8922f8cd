//! Open file that is read by ranges, local or remote.

#![cfg_attr(
    not(feature = "cloud"),
    allow(dead_code, reason = "only a build with stores opens remote files")
)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use longsift_stages::contract::FileStamp;

use super::error::{StorageError, failed};
use super::ranges::{BLOCKS, BlockCache, coalesced};
use super::regular;
use crate::base::parallel::lock;

/// Bytes at the end of a file that are fetched in one request: most footers are shorter.
pub(super) const TAIL_BYTES: u64 = 64 << 10;

/// Fetches exactly these bytes of the opened version of a file.
type FetchRange = dyn Fn(Range<u64>) -> Result<Bytes, StorageError> + Send + Sync;

/// Open file. Blocks of remote files are cached in memory, because columns are read in parallel.
pub(crate) struct RangeFile {
    pub(crate) length: u64,
    /// Stamp of a file that does not change, or whose reads fail after a change.
    stamp: Option<Stamp>,
    content: RangeSource,
}

enum RangeSource {
    Local(File, PathBuf),
    Remote(Remote),
}

struct Remote {
    fetch: Box<FetchRange>,
    /// Cache key of blocks: address, NUL, version.
    key: String,
    /// End of the file, as far as it was received on opening.
    tail: Bytes,
    /// Announced pieces, each fetched in one request: ascending, disjoint.
    wanted: OnceLock<Vec<Range<u64>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    /// Modification time in nanoseconds since 1970; 0 if unknown.
    pub(crate) modified_ns: i128,
    /// Status change time, which programs cannot set; 0 if unknown.
    pub(crate) changed_ns: i128,
    /// Hash of a remote file's entity tag or commit; 0 without one.
    pub(crate) version: u32,
}

impl Stamp {
    /// Returns the stamp of a remote or immutable file.
    pub(crate) fn new(size: u64, modified_ns: i128) -> Self {
        Self { size, modified_ns, changed_ns: 0, version: 0 }
    }

    /// Whether the file was certainly last changed before `other`: `false` if both have the same time.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        let is_remote = self.changed_ns == 0 && other.changed_ns == 0;
        self.modified_ns != 0
            && self.modified_ns < other.modified_ns
            && (is_remote || self.changed_ns < other.changed_ns)
    }

    pub(super) fn from_metadata(status: &std::fs::Metadata) -> Self {
        let time = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        let modified_ns = time(status.mtime(), status.mtime_nsec());
        let changed_ns = time(status.ctime(), status.ctime_nsec());
        Self { changed_ns, ..Self::new(status.len(), modified_ns) }
    }
}

pub(super) fn hash_of(version: &str) -> u32 {
    let digest = Sha256::digest(version.as_bytes());
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

impl RangeFile {
    pub(super) fn open_local(path: &Path) -> Result<Self, StorageError> {
        let file = regular::open(path)?;
        let status = file.metadata().map_err(failed("read", path))?;
        let content = RangeSource::Local(file, path.to_owned());
        Ok(Self { length: status.len(), stamp: None, content })
    }

    /// Marks a file that `version` identifies, wherever it is.
    pub(super) fn into_immutable(self, version: &str) -> Self {
        let stamp = Stamp { version: hash_of(version), ..Stamp::new(self.length, 0) };
        Self { stamp: Some(stamp), ..self }
    }

    /// Creates a remote file. `key`: address and version; `tail`: end of the file, as far as received.
    pub(super) fn remote(
        fetch: impl Fn(Range<u64>) -> Result<Bytes, StorageError> + Send + Sync + 'static,
        key: String,
        stamp: Stamp,
        tail: Bytes,
    ) -> Self {
        let version = key.split_once('\0').map_or(0, |(_, version)| hash_of(version));
        let stamp = Stamp { version, ..stamp };
        let (fetch, wanted) = (Box::new(fetch), OnceLock::new());
        let content = RangeSource::Remote(Remote { fetch, key, tail, wanted });
        Self { length: stamp.size, stamp: Some(stamp), content }
    }

    /// Returns the current stamp of a local file, and that at opening of a remote file, whose reads fail after a change.
    pub(crate) fn stamp(&self) -> Result<Stamp, StorageError> {
        match (&self.content, self.stamp) {
            (RangeSource::Local(file, path), None) => {
                let status = file.metadata().map_err(failed("read", path))?;
                Ok(Stamp::from_metadata(&status))
            }
            (_, stamp) => Ok(stamp.unwrap_or(Stamp::new(self.length, 0))),
        }
    }

    /// Announces, at most once, the parts that will be read from a remote file. Otherwise whole blocks are fetched.
    pub(crate) fn hint_ranges(&self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        match &self.content {
            RangeSource::Local(..) => drop(ranges),
            RangeSource::Remote(file) => {
                let range = |(start, length): (u64, u64)| {
                    start..self.length.min(start.saturating_add(length))
                };
                let ranges = ranges.into_iter().map(range).collect();
                let _ = file.wanted.set(coalesced(ranges, BlockCache::block_bytes()));
            }
        }
    }

    /// Reads exactly these bytes without caching them.
    pub(crate) fn range(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        match &self.content {
            RangeSource::Local(file, path) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut bytes, range.start).map_err(failed("read", path))?;
                Ok(bytes.into())
            }
            RangeSource::Remote(file) => (file.fetch)(range),
        }
    }

    /// Returns an identifier of this version among all at the same location. Without one, nothing may be cached.
    pub(crate) fn version(&self) -> Option<String> {
        match &self.content {
            RangeSource::Local(file, _) => {
                FileStamp::from_file(file).ok().map(|stamp| stamp.to_string())
            }
            RangeSource::Remote(file) => {
                let version = file.key.split_once('\0').map_or("", |(_, version)| version);
                (!version.is_empty()).then(|| format!("{} {version}", self.length))
            }
        }
    }

    /// Fills the beginning of `buffer` from `offset`; returns 0 at the end of the file.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, StorageError> {
        match &self.content {
            RangeSource::Local(file, path) => loop {
                match file.read_at(buffer, offset) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read.map_err(failed("read", path)),
                }
            },
            RangeSource::Remote(_) if offset >= self.length || buffer.is_empty() => Ok(0),
            RangeSource::Remote(file) => {
                let (start, block) = file.block(offset, self.length)?;
                let rest = &block[(offset - start) as usize..];
                let length = rest.len().min(buffer.len());
                buffer[..length].copy_from_slice(&rest[..length]);
                Ok(length)
            }
        }
    }
}

impl Remote {
    fn block(&self, offset: u64, length: u64) -> Result<(u64, Bytes), StorageError> {
        let tail_start = length - self.tail.len() as u64;
        if offset >= tail_start {
            return Ok((tail_start, self.tail.clone()));
        }
        if let Some(found) = lock(&BLOCKS).find(&self.key, offset) {
            return Ok(found);
        }
        let range = self.piece(offset, length);
        let start = range.start;
        let block = (self.fetch)(range)?;
        lock(&BLOCKS).add(&self.key, start, block.clone());
        Ok((start, block))
    }

    /// Returns the range to fetch for `offset`: the end of the file, an announced piece, else a block.
    fn piece(&self, offset: u64, length: u64) -> Range<u64> {
        let tail_start = length.saturating_sub(TAIL_BYTES);
        if offset >= tail_start {
            return tail_start..length;
        }
        let wanted = self.wanted.get().map_or(&[][..], Vec::as_slice);
        let next = wanted.partition_point(|piece| piece.end <= offset);
        if let Some(piece) = wanted.get(next).filter(|piece| piece.contains(&offset)) {
            return piece.clone();
        }
        let block = BlockCache::block_bytes();
        let start = offset / block * block;
        start..(start + block).min(length)
    }
}

#[cfg(test)]
#[cfg(feature = "cloud")]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type RecordedRanges = Arc<Mutex<Vec<Range<u64>>>>;

    fn file(name: &str, length: u64) -> (RangeFile, RecordedRanges) {
        let requested = RecordedRanges::default();
        let recorded = Arc::clone(&requested);
        let fetch = move |range: Range<u64>| {
            recorded.lock().unwrap().push(range.clone());
            Ok(range.map(|position| (position % 251) as u8).collect())
        };
        let stamp = Stamp::new(length, 0);
        (RangeFile::remote(fetch, name.to_owned(), stamp, Bytes::new()), requested)
    }

    fn read(file: &RangeFile, range: Range<u64>) {
        let mut at = range.start;
        let mut buffer = vec![0; 100_000];
        while at < range.end {
            let max = (range.end - at).min(buffer.len() as u64) as usize;
            let read = file.read_at(&mut buffer[..max], at).unwrap();
            for (byte, position) in buffer[..read].iter().zip(at..) {
                assert_eq!(u64::from(*byte), position % 251);
            }
            at += read as u64;
        }
    }

    #[test]
    fn hinted_ranges_are_fetched_once_without_the_gaps_between_them() {
        const MB: u64 = 1 << 20;
        let (file, requested) = file("two columns", 40 * MB);
        // Two columns of six megabytes, ten megabytes apart, and a small one directly after the first.
        file.hint_ranges([(MB, 6 * MB), (17 * MB, 6 * MB), (7 * MB + 10, 1000)]);
        for _pass in 0..2 {
            for step in 0..6 {
                read(&file, (1 + step) * MB..(2 + step) * MB);
                read(&file, (17 + step) * MB..(18 + step) * MB);
            }
            read(&file, 7 * MB + 10..7 * MB + 1010);
        }
        let mut requested = requested.lock().unwrap().clone();
        let bytes: u64 = requested.iter().map(|range| range.end - range.start).sum();
        assert_eq!(bytes, 12 * MB + 1010);
        requested.sort_unstable_by_key(|range| range.start);
        assert!(requested.windows(2).all(|pair| pair[0].end <= pair[1].start), "{requested:?}");
    }

    #[test]
    fn the_end_of_a_file_is_one_piece() {
        let (file, requested) = file("a footer", 10 << 20);
        read(&file, (10 << 20) - 8..10 << 20);
        read(&file, (10 << 20) - 60_000..(10 << 20) - 8);
        let tail = (10 << 20) - TAIL_BYTES..10 << 20;
        assert_eq!(*requested.lock().unwrap(), std::slice::from_ref(&tail));
        assert_eq!(file.read_at(&mut [0; 8], 10 << 20).unwrap(), 0);
    }
}
