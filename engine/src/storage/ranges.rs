//! Cache of recently read blocks, and coalescing of ranges into requests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;

use crate::base::parallel::lock;

const DEFAULT_CACHE_BYTES: u64 = 128 << 20;

/// Divisor of `memory_limit_bytes`; the quotient is the memory of blocks.
const MEMORY_DIVISOR: u64 = 8;

/// Minimum number of blocks in the cache: a few readers with a few columns each.
const MIN_BLOCKS: u64 = 16;
const MIN_BLOCK_BYTES: u64 = 256 << 10;
const MAX_BLOCK_BYTES: u64 = 4 << 20;

/// Maximum gap between ranges that are fetched together: sending the gap takes a store no longer than another request.
const MAX_GAP_BYTES: u64 = 256 << 10;

/// Most recently used blocks of all files of this process.
#[derive(Debug)]
pub(crate) struct BlockCache {
    /// Blocks with the time of their last use, by file version and offset.
    kept: BTreeMap<(String, u64), (Bytes, u64)>,
    uses: u64,
    bytes: u64,
    max_bytes: u64,
}

pub(super) static BLOCKS: Mutex<BlockCache> = Mutex::new(BlockCache::new(DEFAULT_CACHE_BYTES));

impl BlockCache {
    const fn new(max_bytes: u64) -> Self {
        Self { kept: BTreeMap::new(), uses: 0, bytes: 0, max_bytes }
    }

    pub(crate) fn limit(memory_limit_bytes: u64) {
        let mut blocks = lock(&BLOCKS);
        blocks.max_bytes = memory_limit_bytes / MEMORY_DIVISOR;
        blocks.evict();
    }

    pub(super) fn block_bytes() -> u64 {
        (lock(&BLOCKS).max_bytes / MIN_BLOCKS).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_BYTES)
    }

    pub(super) fn find(&mut self, file: &str, offset: u64) -> Option<(u64, Bytes)> {
        let upto = (file.to_owned(), offset);
        let (key, (block, last_use)) = self.kept.range_mut(..=upto).next_back()?;
        let start = key.1;
        if key.0 != file || offset - start >= block.len() as u64 {
            return None;
        }
        self.uses += 1;
        *last_use = self.uses;
        Some((start, block.clone()))
    }

    pub(super) fn add(&mut self, file: &str, start: u64, block: Bytes) {
        let key = (file.to_owned(), start);
        self.uses += 1;
        self.bytes += block.len() as u64;
        if let Some((before, _)) = self.kept.insert(key, (block, self.uses)) {
            self.bytes -= before.len() as u64;
        }
        self.evict();
    }

    fn evict(&mut self) {
        while self.bytes > self.max_bytes {
            let oldest = self.kept.iter().min_by_key(|(_, (_, last_use))| *last_use);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { break };
            self.bytes -= self.kept.remove(&key).map_or(0, |(block, _)| block.len() as u64);
        }
    }
}

/// Joins close ranges and splits them into pieces of at most `max_bytes` bytes, one request each.
pub(super) fn coalesced(mut ranges: Vec<Range<u64>>, max_bytes: u64) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(MAX_GAP_BYTES) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    let pieces = |range: Range<u64>| {
        let count = (range.end - range.start).div_ceil(max_bytes);
        (0..count).map(move |piece| {
            let start = range.start + piece * max_bytes;
            start..(start + max_bytes).min(range.end)
        })
    };
    joined.into_iter().flat_map(pieces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_blocks_are_evicted() {
        let mut blocks = BlockCache::new(25);
        for start in [0, 10, 10] {
            blocks.add("a", start, Bytes::from(vec![0; 10]));
        }
        assert_eq!(blocks.find("a", 9).map(|(start, _)| start), Some(0));
        blocks.add("a", 20, Bytes::from(vec![0; 10]));
        assert_eq!(blocks.bytes, 20);
        let kept: Vec<u64> = blocks.kept.keys().map(|(_, start)| *start).collect();
        assert_eq!(kept, [0, 20]);
        assert_eq!((blocks.find("a", 15), blocks.find("b", 5)), (None, None));
    }

    #[test]
    fn a_block_larger_than_the_cache_is_not_kept() {
        let mut blocks = BlockCache::new(5);
        blocks.add("a", 0, Bytes::from(vec![0; 10]));
        assert_eq!((blocks.bytes, blocks.kept.len()), (0, 0));
    }

    #[test]
    fn close_ranges_are_one_request_and_long_ranges_several() {
        let pieces = coalesced(vec![5_000_000..5_000_010, 0..10, 20..30, 15..15], 1_000_000);
        assert_eq!(pieces, [0..30, 5_000_000..5_000_010]);
        assert_eq!(coalesced(vec![0..5, 5..25], 10), [0..10, 10..20, 20..25]);
        assert_eq!(coalesced(Vec::new(), 10), []);
    }
}
