//! Anonymous file of words, for tables whose size depends on the number of groups or documents: appended by several
//! threads, then memory-mapped.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use longsift_kernels::MappedFile;
use longsift_stages::score::percentile::Histogram;

use crate::base::error::Result;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

#[derive(Debug)]
pub(super) struct WordsWriter(Mutex<AnonymousFile>);

impl WordsWriter {
    pub(super) fn new(directory: &RunDirectory) -> Result<Self> {
        AnonymousFile::create(directory).map(|file| Self(Mutex::new(file)))
    }

    /// Appends words and returns the range of their bytes in the file.
    pub(super) fn append(&self, words: &[u64]) -> Result<Range<usize>> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner).append(&bytes)? as usize;
        Ok(first..first + bytes.len())
    }

    pub(super) fn finish(self) -> Result<MappedWords> {
        let file = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(MappedWords(Arc::new(file.mapped()?)))
    }
}

/// Complete file. Clones share it.
#[derive(Clone)]
pub(super) struct MappedWords(Arc<MappedFile>);

impl MappedWords {
    pub(super) fn get(&self, bytes: &Range<usize>) -> &[u64] {
        self.0.numbers(bytes.clone()).expect("whole words were appended, nothing else")
    }
}

/// Histogram of a group, for the percentiles of a term: memory does not depend on the number of groups.
#[derive(Clone, Debug)]
pub(super) struct StoredHistogram {
    range: (f64, f64),
    words: Range<usize>,
}

impl StoredHistogram {
    pub(super) fn write(histogram: &Histogram, file: &WordsWriter) -> Result<Self> {
        Ok(Self { range: histogram.range(), words: file.append(histogram.words())? })
    }

    /// Returns the histogram without copying its words.
    pub(super) fn read(&self, file: &MappedWords) -> Histogram {
        let words = HistogramWords { file: file.clone(), range: self.words.clone() };
        Histogram::over(self.range.0, self.range.1, Arc::new(words))
    }
}

struct HistogramWords {
    file: MappedWords,
    range: Range<usize>,
}

impl AsRef<[u64]> for HistogramWords {
    fn as_ref(&self) -> &[u64] {
        self.file.get(&self.range)
    }
}

#[cfg(test)]
mod tests {
    use longsift_stages::score::percentile::HistogramBuilder;

    use super::*;
    use crate::run_directory::layout::RunDirectory;

    #[test]
    fn a_histogram_is_read_back_as_it_was_counted() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let all = WordsWriter::new(&directory).unwrap();
        let counted: Vec<Histogram> = (0..9_u32)
            .map(|group| {
                let mut counting = HistogramBuilder::between(0.0, f64::from(group));
                (0..=group * 100).for_each(|value| counting.add(f64::from(value) / 100.0));
                counting.finish()
            })
            .collect();
        let stored: Vec<StoredHistogram> = counted
            .iter()
            .map(|histogram| StoredHistogram::write(histogram, &all).unwrap())
            .collect();
        let read = all.finish().unwrap();
        for (stored, histogram) in stored.iter().zip(&counted) {
            assert_eq!(stored.read(&read), *histogram);
        }
        assert!(counted[0].words().is_empty() && !counted[8].words().is_empty());
    }
}
