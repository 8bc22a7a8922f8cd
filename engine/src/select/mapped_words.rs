//! Anonymous file of words, for tables whose size depends on the number of groups or documents: appended by several
//! threads, then memory-mapped.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use longsift_kernels::MappedFile;

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
