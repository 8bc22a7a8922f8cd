//! Blocks of files that were read a moment ago.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Bytes of all blocks that are kept.
const MOST_BYTES: usize = 128 << 20;

/// The blocks of all files of this process, those that were put last.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    kept: BTreeMap<(String, u64), Bytes>,
    order: VecDeque<(String, u64)>,
    bytes: usize,
}

static BLOCKS: Mutex<Blocks> =
    Mutex::new(Blocks { kept: BTreeMap::new(), order: VecDeque::new(), bytes: 0 });

impl Blocks {
    /// The block of a file that begins at `start`, if it is kept.
    pub(crate) fn get(file: &str, start: u64) -> Option<Bytes> {
        let blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.kept.get(&(file.to_owned(), start)).cloned()
    }

    /// Keeps a block, in the place of the oldest ones.
    pub(crate) fn put(file: &str, start: u64, block: Bytes) {
        BLOCKS.lock().unwrap_or_else(PoisonError::into_inner).add(
            (file.to_owned(), start),
            block,
            MOST_BYTES,
        );
    }

    fn add(&mut self, key: (String, u64), block: Bytes, most: usize) {
        let length = block.len();
        if self.kept.insert(key.clone(), block).is_some() {
            return;
        }
        self.bytes += length;
        self.order.push_back(key);
        while self.bytes > most {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.kept.remove(&oldest).map_or(0, |block| block.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_blocks_make_room() {
        let mut blocks = Blocks::default();
        let mut put = |start| blocks.add(("a".to_owned(), start), Bytes::from(vec![0; 10]), 25);
        for start in [0, 10, 10, 20] {
            put(start);
        }
        assert_eq!(blocks.bytes, 20);
        let kept: Vec<u64> = blocks.kept.keys().map(|(_, start)| *start).collect();
        assert_eq!(kept, [10, 20]);
    }
}
