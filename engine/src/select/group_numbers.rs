//! Temporary file with the number of every sample's group, in input order.

use std::ops::Range;

use crate::base::error::Result;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

/// Maximum numbers to buffer before they are written.
const MAX_BUFFERED: usize = 1 << 18;

/// Bytes per sample.
const BYTES: usize = size_of::<u32>();

#[derive(Debug)]
pub(super) struct GroupNumbers {
    file: AnonymousFile,
    waiting: Vec<u8>,
}

impl GroupNumbers {
    pub(super) fn new(directory: &RunDirectory) -> Result<Self> {
        Ok(Self { file: AnonymousFile::create(directory)?, waiting: Vec::new() })
    }

    /// Adds the group of the next sample.
    pub(super) fn push(&mut self, group: u32) -> Result<()> {
        self.waiting.extend(group.to_le_bytes());
        if self.waiting.len() >= MAX_BUFFERED * BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.append(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<GroupsOfSamples> {
        self.write_out()?;
        Ok(GroupsOfSamples(self.file))
    }
}

#[derive(Debug)]
pub(super) struct GroupsOfSamples(AnonymousFile);

impl GroupsOfSamples {
    pub(super) fn read_range(&self, samples: Range<u64>) -> Result<Vec<u32>> {
        let mut bytes = vec![0; (samples.end - samples.start) as usize * BYTES];
        self.0.read(&mut bytes, samples.start * BYTES as u64)?;
        let numbers = bytes.as_chunks::<BYTES>().0.iter();
        Ok(numbers.map(|number| u32::from_le_bytes(*number)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_any_samples_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut numbers = GroupNumbers::new(&directory).unwrap();
        let all: Vec<u32> =
            (0..MAX_BUFFERED as u32 * 2 + 7).map(|sample| sample * 31 % 1009).collect();
        for group in &all {
            numbers.push(*group).unwrap();
        }
        let groups = numbers.finish().unwrap();
        for range in [0..0, 0..3, 262_140..262_150, 524_290..524_295] {
            assert_eq!(
                groups.read_range(range.start as u64..range.end as u64).unwrap(),
                all[range]
            );
        }
        assert!(groups.read_range(524_290..524_296).is_err(), "there is no such sample");
    }
}
