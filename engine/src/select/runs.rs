//! Records of equal size, sorted into groups and read back group by group in insertion order.
//!
//! They are in an anonymous temporary file, which is gone when the process ends, however it ends. Memory: the buffered records,
//! and sixteen bytes per range of a group in the file.

use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

/// Maximum bytes to buffer before they are written, as one range per group.
const MAX_BUFFERED_BYTES: usize = 32 << 20;

const READ_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct RecordRuns {
    file: AnonymousFile,
    record: usize,
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
    /// Ranges in the file, by group: start and length.
    ranges: Vec<Vec<(u64, u64)>>,
}

impl RecordRuns {
    /// Creates an empty collection of records of `record` bytes.
    pub(super) fn new(directory: &RunDirectory, record: usize) -> Result<Self> {
        let file = AnonymousFile::create(directory)?;
        let (waiting, ranges) = (Vec::new(), Vec::new());
        Ok(Self { file, record, waiting, waiting_bytes: 0, ranges })
    }

    pub(super) fn push(&mut self, group: usize, record: &[u8]) -> Result<()> {
        assert_eq!(record.len(), self.record);
        if group >= self.waiting.len() {
            self.waiting.resize_with(group + 1, Vec::new);
            self.ranges.resize_with(group + 1, Vec::new);
        }
        self.waiting[group].extend_from_slice(record);
        self.waiting_bytes += record.len();
        if self.waiting_bytes >= MAX_BUFFERED_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        for (waiting, ranges) in self.waiting.iter_mut().zip(&mut self.ranges) {
            let bytes = std::mem::take(waiting);
            if !bytes.is_empty() {
                ranges.push((self.file.append(&bytes)?, bytes.len() as u64));
            }
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// Writes all records, for reading.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.write_out()?;
        self.file.flush()
    }

    /// Calls `each` for the records of a group in insertion order.
    pub(super) fn visit(
        &self,
        group: usize,
        stop: &Stop,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let max = READ_BYTES / self.record * self.record;
        let mut buffer = Vec::new();
        for &(start, bytes) in self.ranges.get(group).map_or(&[][..], Vec::as_slice) {
            for offset in (0..bytes).step_by(max) {
                stop.check()?;
                let length = (bytes - offset).min(max as u64) as usize;
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                self.file.read(&mut buffer[..length], start + offset)?;
                buffer[..length].chunks_exact(self.record).try_for_each(&mut each)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn directory(folder: &tempfile::TempDir) -> RunDirectory {
        RunDirectory::for_output(&folder.path().join("out"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn groups_are_read_back_in_insertion_order(
            samples in prop::collection::vec((0_usize..5, any::<u64>(), prop::bool::weighted(0.1)), 0..200),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut runs = RecordRuns::new(&directory(&folder), 8).unwrap();
            for (group, value, write_out) in &samples {
                runs.push(*group, &value.to_le_bytes()).unwrap();
                if *write_out {
                    runs.write_out().unwrap();
                }
            }
            runs.finish().unwrap();
            for group in 0..6 {
                let mut got = Vec::new();
                let visited = runs.visit(group, &Stop::default(), |record| {
                    got.push(record.to_vec());
                    Ok(())
                });
                visited.unwrap();
                let of_group = samples.iter().filter(|(own, ..)| *own == group);
                let expected: Vec<_> = of_group.map(|(_, value, _)| value.to_le_bytes().to_vec()).collect();
                prop_assert_eq!(got, expected);
            }
        }
    }

    #[test]
    fn many_records_are_written_out_and_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = RecordRuns::new(&directory(&folder), 1 << 16).unwrap();
        let many = MAX_BUFFERED_BYTES / (1 << 16) * 5 / 2;
        for number in 0..many {
            runs.push(number % 2, &vec![number as u8; 1 << 16]).unwrap();
        }
        assert!(runs.waiting_bytes < MAX_BUFFERED_BYTES);
        runs.finish().unwrap();
        assert_eq!(runs.ranges[0].len(), 3);
        let mut seen = 0;
        runs.visit(1, &Stop::default(), |record| {
            assert!(record.iter().all(|byte| *byte == (2 * seen + 1) as u8));
            seen += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, many / 2);
        assert_eq!(
            std::fs::read_dir(directory(&folder).temporary_folder()).unwrap().count(),
            0,
            "the file has no name"
        );
    }
}
