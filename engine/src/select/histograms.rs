//! Histograms of all groups, for the percentiles of terms, in a file: memory does not depend on the number of groups.

use std::ops::Range;
use std::sync::Arc;

use longsift_stages::score::percentile::Histogram;

use super::mapped_words::{MappedWords, WordsWriter};
use crate::base::error::Result;

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
