//! Finds ids that more than one document has: hashes them and sorts the hashes.

use sha2::{Digest, Sha256};

use super::sort::Sorter;
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

const BYTES: usize = size_of::<[u64; 2]>();

/// Repeated hashes per block; the first of each block is in memory.
const BLOCK: usize = 1024;

/// Hashes of ids that more than one document has, ascending, in a file.
#[derive(Debug)]
pub(super) struct RepeatedIds {
    file: AnonymousFile,
    /// First hash of every block.
    first: Vec<[u64; 2]>,
    pub(super) count: u64,
    /// Number of documents that share their id with another.
    pub(super) documents: u64,
}

impl RepeatedIds {
    pub(super) fn new(directory: &RunDirectory) -> Result<Self> {
        let file = AnonymousFile::create(directory)?;
        Ok(Self { file, first: Vec::new(), count: 0, documents: 0 })
    }

    /// Adds the repeated ones of the hashes of all ids.
    pub(super) fn fill(&mut self, hashes: Sorter<'_, 2>, stop: &Stop) -> Result<()> {
        let (mut last, mut equal) = ([0; 2], 0_u64);
        hashes.for_each(stop, |hash| {
            equal = if equal > 0 && hash == last { equal + 1 } else { 1 };
            last = hash;
            match equal {
                1 => {}
                2 => {
                    self.documents += 2;
                    self.append(hash)?;
                }
                _ => self.documents += 1,
            }
            Ok(())
        })?;
        self.file.flush()
    }

    fn append(&mut self, hash: [u64; 2]) -> Result<()> {
        if self.count.is_multiple_of(BLOCK as u64) {
            self.first.push(hash);
        }
        self.count += 1;
        self.file.append(hash.map(u64::to_be_bytes).as_flattened()).map(drop)
    }

    /// Whether another document has the same id.
    pub(super) fn contains(&self, id: &str) -> Result<bool> {
        if self.count == 0 {
            return Ok(false);
        }
        let hash = hash(id);
        let Some(block) = self.first.partition_point(|first| *first <= hash).checked_sub(1) else {
            return Ok(false);
        };
        let start = (block * BLOCK) as u64;
        let mut bytes = vec![0; (self.count - start).min(BLOCK as u64) as usize * BYTES];
        self.file.read(&mut bytes, start * BYTES as u64)?;
        let hash = hash.map(u64::to_be_bytes);
        let found = |bytes: &[u8; BYTES]| bytes[..].cmp(hash.as_flattened());
        Ok(bytes.as_chunks::<BYTES>().0.binary_search_by(found).is_ok())
    }
}

/// 128 bits of an id: two of 10^9 ids collide with a probability of 10^-21.
pub(super) fn hash(id: &str) -> [u64; 2] {
    let digest = Sha256::digest(id);
    let hash = u128::from_le_bytes(digest[..16].try_into().expect("a SHA-256 has 32 bytes"));
    [(hash >> 64) as u64, hash as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(ids: impl Iterator<Item = String>) -> RepeatedIds {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut all = Sorter::new(&directory);
        ids.for_each(|id| all.push(hash(&id)).unwrap());
        let mut repeated = RepeatedIds::new(&directory).unwrap();
        repeated.fill(all, &Stop::default()).unwrap();
        repeated
    }

    #[test]
    fn repeated_ids_are_listed_once() {
        let ids = repeated(["a", "b", "a", "c", "a"].map(str::to_owned).into_iter());
        assert_eq!((ids.count, ids.documents), (1, 3));
        let found = ["a", "b", "c", "d"].map(|id| ids.contains(id).unwrap());
        assert_eq!(found, [true, false, false, false]);
        assert!(!repeated(std::iter::empty()).contains("a").unwrap());
    }

    #[test]
    fn many_repeated_ids_are_found_block_by_block() {
        let name = |number: u32| format!("id-{number}");
        let ids = repeated((0..9000).chain(3000..6000).map(name));
        assert_eq!(ids.count, 3000);
        assert!((0..9000).all(|number| {
            ids.contains(&name(number)).unwrap() == (3000..6000).contains(&number)
        }));
    }
}
