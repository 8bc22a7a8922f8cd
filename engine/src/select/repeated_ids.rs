//! Finds ids that more than one document has: hashes them and sorts the hashes through a file.

use sha2::{Digest, Sha256};

use super::runs::Runs;
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

/// Number of parts, by first byte, that hashes are sorted in.
const PARTS: usize = 256;

/// Bytes of a hash.
const BYTES: usize = size_of::<u128>();

/// Repeated hashes per block; the first of each block is in memory.
const BLOCK: usize = 1024;

/// Hashes of ids that are being collected.
#[derive(Debug)]
pub(super) struct Ids {
    hashes: Runs,
    /// File for the repeated hashes.
    repeated: AnonymousFile,
}

impl Ids {
    pub(super) fn new(directory: &RunDirectory) -> Result<Self> {
        Ok(Self {
            hashes: Runs::new(directory, BYTES)?,
            repeated: AnonymousFile::create(directory)?,
        })
    }

    /// Adds the hash of a document's id.
    pub(super) fn push(&mut self, hash: u128) -> Result<()> {
        let bytes = hash.to_be_bytes();
        self.hashes.push(usize::from(bytes[0]), &bytes)
    }

    /// Returns the repeated hashes. Memory: one part of the hashes at a time.
    pub(super) fn repeated(self, stop: &Stop) -> Result<RepeatedIds> {
        let hashes = self.hashes.finish()?;
        let (first, count, documents) = (Vec::new(), 0, 0);
        let mut repeated = RepeatedIds { file: self.repeated, first, count, documents };
        for part in 0..PARTS {
            let mut sorted: Vec<u128> = Vec::new();
            hashes.visit(part, stop, |bytes| sorted.extend(hash_of(bytes)))?;
            sorted.sort_unstable();
            let several =
                sorted.chunk_by(|one, other| one == other).filter(|equal| equal.len() > 1);
            let mut documents = 0;
            let several = several.inspect(|equal| documents += equal.len() as u64);
            repeated.append(several.map(|equal| equal[0]))?;
            repeated.documents += documents;
        }
        Ok(repeated)
    }
}

fn hash_of(bytes: &[u8]) -> Option<u128> {
    Some(u128::from_be_bytes(bytes.try_into().ok()?))
}

/// Hashes of ids that more than one document has, ascending, in a file.
#[derive(Debug)]
pub(super) struct RepeatedIds {
    file: AnonymousFile,
    /// First hash of every block.
    first: Vec<u128>,
    count: u64,
    /// Number of documents with any of these ids.
    documents: u64,
}

impl RepeatedIds {
    /// Number of repeated ids.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Number of documents that share their id with another.
    pub(super) fn documents(&self) -> u64 {
        self.documents
    }

    fn append(&mut self, hashes: impl Iterator<Item = u128>) -> Result<()> {
        let mut bytes = Vec::new();
        for hash in hashes {
            if self.count.is_multiple_of(BLOCK as u64) {
                self.first.push(hash);
            }
            self.count += 1;
            bytes.extend(hash.to_be_bytes());
        }
        self.file.append(&bytes)
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
        Ok(bytes.as_chunks::<BYTES>().0.binary_search(&hash.to_be_bytes()).is_ok())
    }
}

/// 128 bits of an id: two of 10^9 ids collide with a probability of 10^-21.
pub(super) fn hash(id: &str) -> u128 {
    let digest = Sha256::digest(id);
    u128::from_le_bytes(digest[..16].try_into().expect("a SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(ids: impl Iterator<Item = String>) -> RepeatedIds {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut all = Ids::new(&directory).unwrap();
        ids.for_each(|id| all.push(hash(&id)).unwrap());
        all.repeated(&Stop::default()).unwrap()
    }

    #[test]
    fn repeated_ids_are_listed_once() {
        let ids = repeated(["a", "b", "a", "c", "a"].map(str::to_owned).into_iter());
        assert_eq!((ids.count(), ids.documents()), (1, 3));
        let found = ["a", "b", "c", "d"].map(|id| ids.contains(id).unwrap());
        assert_eq!(found, [true, false, false, false]);
        assert!(!repeated(std::iter::empty()).contains("a").unwrap());
    }

    #[test]
    fn many_repeated_ids_are_found_block_by_block() {
        let name = |number: u32| format!("id-{number}");
        let ids = repeated((0..9000).chain(3000..6000).map(name));
        assert_eq!(ids.count(), 3000);
        assert!((0..9000).all(|number| {
            ids.contains(&name(number)).unwrap() == (3000..6000).contains(&number)
        }));
    }
}
