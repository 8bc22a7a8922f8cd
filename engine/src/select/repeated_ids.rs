//! Finds ids that more than one document has: hashes them and sorts the hashes.

use sha2::{Digest, Sha256};

use super::mapped_words::{MappedWords, WordsWriter};
use super::sort::Sorter;
use crate::base::error::Result;
use crate::base::stop::Stop;

/// Hashes of ids that more than one document has.
#[derive(Default)]
pub(super) struct RepeatedIds {
    /// File of the hashes, ascending; `None` if no id is repeated.
    file: Option<MappedWords>,
    pub(super) count: u64,
    /// Number of documents that share their id with another.
    pub(super) documents: u64,
}

impl RepeatedIds {
    /// Finds the repeated ones of the hashes of all ids.
    pub(super) fn find(hashes: Sorter<'_, 2>, stop: &Stop) -> Result<Self> {
        let writer = WordsWriter::new(hashes.directory)?;
        let (mut last, mut equal, mut repeated) = ([0; 2], 0_u64, Self::default());
        hashes.for_each(stop, |hash| {
            equal = if equal > 0 && hash == last { equal + 1 } else { 1 };
            last = hash;
            match equal {
                1 => {}
                2 => {
                    repeated.count += 1;
                    repeated.documents += 2;
                    writer.append(&hash)?;
                }
                _ => repeated.documents += 1,
            }
            Ok(())
        })?;
        if repeated.count > 0 {
            repeated.file = Some(writer.finish()?);
        }
        Ok(repeated)
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.file.as_ref().is_some_and(|file| {
            let hashes = file.get(&(0..self.count as usize * size_of::<[u64; 2]>()));
            hashes.as_chunks::<2>().0.binary_search(&hash(id)).is_ok()
        })
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
    use crate::run_directory::layout::RunDirectory;

    fn repeated(ids: impl Iterator<Item = String>) -> RepeatedIds {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut all = Sorter::new(&directory);
        ids.for_each(|id| all.push(hash(&id)).unwrap());
        RepeatedIds::find(all, &Stop::default()).unwrap()
    }

    #[test]
    fn repeated_ids_are_listed_once() {
        let ids = repeated(["a", "b", "a", "c", "a"].map(str::to_owned).into_iter());
        assert_eq!((ids.count, ids.documents), (1, 3));
        let found = ["a", "b", "c", "d"].map(|id| ids.contains(id));
        assert_eq!(found, [true, false, false, false]);
        assert!(!repeated(std::iter::empty()).contains("a"));
    }

    #[test]
    fn many_repeated_ids_are_found() {
        let name = |number: u32| format!("id-{number}");
        let ids = repeated((0..9000).chain(3000..6000).map(name));
        assert_eq!(ids.count, 3000);
        let is_repeated = |number: u32| ids.contains(&name(number));
        assert!((0..9000).all(|number| is_repeated(number) == (3000..6000).contains(&number)));
    }
}
