//! Histograms of all groups, for the percentiles of terms: counted in memory group by group and kept in a memory-mapped file,
//! so that memory does not depend on the number of groups.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use longsift_kernels::MappedFile;
use longsift_stages::score::percentile::Histogram;

use crate::base::error::Result;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::layout::RunDirectory;

/// Histograms that are being collected, from several threads.
#[derive(Debug)]
pub(super) struct HistogramsOfGroups(Mutex<AnonymousFile>);

#[derive(Clone, Debug)]
pub(super) struct HistogramLocation {
    range: (f64, f64),
    bytes: Range<usize>,
}

impl HistogramsOfGroups {
    pub(super) fn new(directory: &RunDirectory) -> Result<Self> {
        AnonymousFile::create(directory).map(|file| Self(Mutex::new(file)))
    }

    pub(super) fn add(&self, histogram: &Histogram) -> Result<HistogramLocation> {
        let bytes: Vec<u8> = histogram.words().iter().flat_map(|word| word.to_ne_bytes()).collect();
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner).append(&bytes)? as usize;
        Ok(HistogramLocation { range: histogram.range(), bytes: first..first + bytes.len() })
    }

    pub(super) fn finish(self) -> Result<Histograms> {
        let file = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Histograms(Arc::new(file.mapped()?)))
    }
}

pub(super) struct Histograms(Arc<MappedFile>);

struct HistogramWords {
    file: Arc<MappedFile>,
    bytes: Range<usize>,
}

impl AsRef<[u64]> for HistogramWords {
    fn as_ref(&self) -> &[u64] {
        self.file.numbers(self.bytes.clone()).expect("whole words were appended, nothing else")
    }
}

impl Histograms {
    /// Returns the histogram at a location, without copying; keeps the file mapped while it lives.
    pub(super) fn get(&self, location: &HistogramLocation) -> Histogram {
        let words = HistogramWords { file: Arc::clone(&self.0), bytes: location.bytes.clone() };
        Histogram::over(location.range.0, location.range.1, Arc::new(words))
    }
}

#[cfg(test)]
mod tests {
    use longsift_stages::score::percentile::HistogramBuilder;

    use super::*;

    #[test]
    fn a_histogram_is_read_back_as_it_was_counted() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let all = HistogramsOfGroups::new(&directory).unwrap();
        let counted: Vec<Histogram> = (0..9_u32)
            .map(|group| {
                let mut counting = HistogramBuilder::between(0.0, f64::from(group));
                (0..=group * 100).for_each(|value| counting.add(f64::from(value) / 100.0));
                counting.finish()
            })
            .collect();
        let locations: Vec<HistogramLocation> =
            counted.iter().map(|histogram| all.add(histogram).unwrap()).collect();
        let read = all.finish().unwrap();
        for (location, histogram) in locations.iter().zip(&counted) {
            assert_eq!(read.get(location), *histogram);
        }
        assert!(counted[0].words().is_empty() && !counted[8].words().is_empty());
    }
}
