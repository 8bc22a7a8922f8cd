//! Blocks of files that were read a moment ago, and which ranges are worth one request.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of all blocks that are kept where nothing else is set.
const DEFAULT_BYTES: u64 = 128 << 20;

/// Which part of `memory_limit_bytes` blocks may take.
const SHARE: u64 = 8;

/// How many blocks fit at least: a few writers with a few columns each.
const BLOCKS_AT_LEAST: u64 = 16;
const SMALLEST_BLOCK: u64 = 256 << 10;
const LARGEST_BLOCK: u64 = 4 << 20;

/// Bytes between two ranges that are fetched with them rather than asked around: what a store sends while it would begin
/// another answer.
const CLOSE: u64 = 256 << 10;

/// The blocks of all files of this process, those that were used last.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// By file and version, and by where they begin; with the time of their last use.
    kept: BTreeMap<(String, u64), (Bytes, u64)>,
    /// The same by the time of their last use, which tells them apart.
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

    /// Lets the blocks of this process take their part of a run's memory.
    pub(crate) fn limit(memory_limit_bytes: u64) {
        let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.most = memory_limit_bytes / SHARE;
        blocks.make_room();
    }

    /// Bytes of a file that are fetched at once.
    pub(super) fn block_bytes() -> u64 {
        let most = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).most;
        (most / BLOCKS_AT_LEAST).clamp(SMALLEST_BLOCK, LARGEST_BLOCK)
    }

    /// The block of a file that has the byte at `offset`, if it is kept, and where it begins.
    pub(super) fn around(file: &str, offset: u64) -> Option<(u64, Bytes)> {
        BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).find(file, offset)
    }

    /// Keeps a block, in the place of those that were not used for longest.
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

/// The same bytes in pieces of at most `most` bytes, each worth one request; what is close together is one piece.
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
