//! Sorts any number of entries in bounded memory: sorted runs in a temporary file, merged on reading.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::vec::IntoIter;

use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

/// Entries sorted in memory at a time. Up to this many need no file.
const RUN: usize = 1 << 16;

/// Minimum entries per read of a run. With few runs, a read has more entries: [`RUN`] divided by the number of runs.
const MIN_PIECE: usize = 128;

const WORD: usize = size_of::<u64>();

/// Maps a float to an integer with the same order; -0 and 0 map to the same key. Not for `NaN`.
pub(super) fn key(value: f64) -> u64 {
    // Adding 0 turns -0 into 0.
    let bits = (value + 0.0).to_bits();
    bits ^ ((((bits as i64) >> 63) as u64) | (1 << 63))
}

pub(super) fn value(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key ^ (1 << 63) } else { !key })
}

/// Entries of `N` words that are being collected.
#[derive(Debug)]
pub(super) struct Sorter<'d, const N: usize> {
    pub(super) directory: &'d RunDirectory,
    waiting: Vec<[u64; N]>,
    /// File of all complete runs; `None` before the first.
    file: Option<AnonymousFile>,
    written: usize,
}

impl<'d, const N: usize> Sorter<'d, N> {
    pub(super) fn new(directory: &'d RunDirectory) -> Self {
        Self { directory, waiting: Vec::new(), file: None, written: 0 }
    }

    pub(super) fn push(&mut self, entry: [u64; N]) -> Result<()> {
        self.waiting.push(entry);
        if self.waiting.len() == RUN { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.waiting.sort_unstable();
        let words = self.waiting.as_flattened().iter();
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(AnonymousFile::create(self.directory)?),
        };
        file.append(&bytes)?;
        self.written += self.waiting.len();
        self.waiting.clear();
        Ok(())
    }

    /// Calls `each` for all entries, in ascending order.
    pub(super) fn for_each(
        mut self,
        stop: &Stop,
        mut each: impl FnMut([u64; N]) -> Result<()>,
    ) -> Result<()> {
        if self.file.is_some() {
            self.write_out()?;
        }
        let Some(file) = &mut self.file else {
            self.waiting.sort_unstable();
            return self.waiting.into_iter().try_for_each(each);
        };
        file.flush()?;
        let piece = (RUN / self.written.div_ceil(RUN)).max(MIN_PIECE);
        let starts = (0..self.written).step_by(RUN);
        let run = |start: usize| SortedRun {
            unread: start..self.written.min(start + RUN),
            piece: Vec::new().into_iter(),
        };
        let mut runs: Vec<SortedRun<N>> = starts.map(run).collect();
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter_mut().enumerate() {
            let first = run.next(file, piece, stop)?;
            heads.extend(first.map(|entry| Reverse((entry, index))));
        }
        while let Some(mut head) = heads.peek_mut() {
            let Reverse((entry, index)) = *head;
            each(entry)?;
            match runs[index].next(file, piece, stop)? {
                Some(entry) => *head = Reverse((entry, index)),
                None => drop(PeekMut::pop(head)),
            }
        }
        Ok(())
    }
}

struct SortedRun<const N: usize> {
    /// Range of entries that are still to be read.
    unread: Range<usize>,
    piece: IntoIter<[u64; N]>,
}

impl<const N: usize> SortedRun<N> {
    fn next(
        &mut self,
        file: &AnonymousFile,
        piece: usize,
        stop: &Stop,
    ) -> Result<Option<[u64; N]>> {
        if self.piece.len() == 0 && !self.unread.is_empty() {
            stop.check()?;
            let mut bytes = vec![0; piece.min(self.unread.len()) * N * WORD];
            file.read(&mut bytes, (self.unread.start * N * WORD) as u64)?;
            let words: Vec<u64> =
                bytes.as_chunks::<WORD>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            let entries = words.as_chunks::<N>().0.to_vec();
            self.unread.start += entries.len();
            self.piece = entries.into_iter();
        }
        Ok(self.piece.next())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted<const N: usize>(entries: impl Iterator<Item = [u64; N]>) -> Vec<[u64; N]> {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut sorter = Sorter::new(&directory);
        entries.for_each(|entry| sorter.push(entry).unwrap());
        let mut sorted = Vec::new();
        let visited = sorter.for_each(&Stop::default(), |entry| {
            sorted.push(entry);
            Ok(())
        });
        visited.unwrap();
        sorted
    }

    #[test]
    fn entries_of_several_runs_are_merged() {
        for count in [0, 1, RUN - 1, RUN, RUN + 1, 3 * RUN + 7] {
            let entry = |number: usize| [number as u64 * 7919 % 1009, number as u64];
            let mut expected: Vec<[u64; 2]> = (0..count).map(entry).collect();
            let found = sorted(expected.iter().copied());
            expected.sort_unstable();
            assert!(found == expected, "{count} entries");
        }
    }

    #[test]
    fn runs_leave_no_file_and_end_with_a_signal() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut sorter = Sorter::new(&directory);
        (0..=RUN).for_each(|number| sorter.push([number as u64]).unwrap());
        let files = std::fs::read_dir(directory.temporary_folder()).unwrap().count();
        assert_eq!(files, 0, "the file has no name");
        assert!(sorter.for_each(&Stop::after(15), |_| panic!("an entry was visited")).is_err());
    }

    proptest! {
        #[test]
        fn keys_order_as_their_floats(one in any::<f64>(), other in any::<f64>()) {
            prop_assume!(!one.is_nan() && !other.is_nan());
            prop_assert_eq!(Some(key(one).cmp(&key(other))), one.partial_cmp(&other));
            prop_assert_eq!(value(key(one)).to_bits(), (one + 0.0).to_bits());
        }
    }
}
