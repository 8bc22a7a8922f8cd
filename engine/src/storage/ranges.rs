//! Cache of recently read blocks, and coalescing of ranges into requests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Default limit of all cached blocks in bytes.
const DEFAULT_BYTES: u64 = 128 << 20;

/// Divisor of `memory_limit_bytes` that gives the memory of blocks.
const SHARE: u64 = 8;

/// Minimum number of blocks in the cache: a few readers with a few columns each.
const BLOCKS_AT_LEAST: u64 = 16;
const SMALLEST_BLOCK: u64 = 256 << 10;
const LARGEST_BLOCK: u64 = 4 << 20;

/// Maximum gap between ranges that are fetched together: a store sends so many bytes in the time of another request.
const CLOSE: u64 = 256 << 10;

/// Most recently used blocks of all files of this process.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Blocks with the time of their last use, by file version and offset.
    kept: BTreeMap<(String, u64), (Bytes, u64)>,
    /// Keys of `kept` by their unique time of last use.
    by_use: BTreeMap<u64, (String, u64)>,
    uses: u64,
    bytes: u64,
    most: u64,
}

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks::new(DEFAULT_BYTES));

impl Blocks {
    const fn new(most: u64) -> Self {
        Self { kept: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, most }
    }

    /// Limits the blocks of this process to their share of a run's memory.
    pub(crate) fn limit(memory_limit_bytes: u64) {
        let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.most = memory_limit_bytes / SHARE;
        blocks.make_room();
    }

    /// Returns the bytes of a file to fetch in one request.
    pub(super) fn block_bytes() -> u64 {
        let most = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).most;
        (most / BLOCKS_AT_LEAST).clamp(SMALLEST_BLOCK, LARGEST_BLOCK)
    }

    /// Returns the cached block with the byte at `offset`, and the block's offset.
    pub(super) fn around(file: &str, offset: u64) -> Option<(u64, Bytes)> {
        BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).find(file, offset)
    }

    /// Caches a block, replacing the least recently used ones.
    pub(super) fn put(file: &str, start: u64, block: Bytes) {
        BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).add(file, start, block);
    }

    fn find(&mut self, file: &str, offset: u64) -> Option<(u64, Bytes)> {
        let upto = (file.to_owned(), offset);
        let (key, (block, last_use)) = self.kept.range_mut(..=upto).next_back()?;
        let start = key.1;
        if key.0 != file || offset - start >= block.len() as u64 {
            return None;
        }
        self.uses += 1;
        self.by_use.remove(last_use);
        self.by_use.insert(self.uses, key.clone());
        *last_use = self.uses;
        Some((start, block.clone()))
    }

    fn add(&mut self, file: &str, start: u64, block: Bytes) {
        let key = (file.to_owned(), start);
        self.uses += 1;
        self.bytes += block.len() as u64;
        self.by_use.insert(self.uses, key.clone());
        if let Some((before, last_use)) = self.kept.insert(key, (block, self.uses)) {
            self.bytes -= before.len() as u64;
            self.by_use.remove(&last_use);
        }
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.bytes > self.most {
            let Some((_, key)) = self.by_use.pop_first() else { break };
            self.bytes -= self.kept.remove(&key).map_or(0, |(block, _)| block.len() as u64);
        }
    }
}

/// Joins close ranges and splits them into pieces of at most `most` bytes, one request each.
pub(super) fn coalesced(mut ranges: Vec<Range<u64>>, most: u64) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(CLOSE) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    let pieces = |range: Range<u64>| {
        let count = (range.end - range.start).div_ceil(most);
        (0..count).map(move |piece| {
            let start = range.start + piece * most;
            start..(start + most).min(range.end)
        })
    };
    joined.into_iter().flat_map(pieces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_that_were_not_used_for_longest_make_room() {
        let mut blocks = Blocks::new(25);
        for start in [0, 10, 10] {
            blocks.add("a", start, Bytes::from(vec![0; 10]));
        }
        assert_eq!(blocks.find("a", 9).map(|(start, _)| start), Some(0));
        blocks.add("a", 20, Bytes::from(vec![0; 10]));
        assert_eq!(blocks.bytes, 20);
        let kept: Vec<u64> = blocks.kept.keys().map(|(_, start)| *start).collect();
        assert_eq!(kept, [0, 20]);
        assert_eq!((blocks.find("a", 15), blocks.find("b", 5)), (None, None));
        assert_eq!(blocks.by_use.len(), blocks.kept.len());
    }

    #[test]
    fn a_block_larger_than_all_room_is_not_kept() {
        let mut blocks = Blocks::new(5);
        blocks.add("a", 0, Bytes::from(vec![0; 10]));
        assert_eq!((blocks.bytes, blocks.kept.len(), blocks.by_use.len()), (0, 0, 0));
    }

    #[test]
    fn ranges_that_are_close_are_one_request_and_long_ones_several() {
        let pieces = coalesced(vec![5_000_000..5_000_010, 0..10, 20..30, 15..15], 1_000_000);
        assert_eq!(pieces, [0..30, 5_000_000..5_000_010]);
        assert_eq!(coalesced(vec![0..5, 5..25], 10), [0..10, 10..20, 20..25]);
        assert_eq!(coalesced(Vec::new(), 10), []);
    }
}
