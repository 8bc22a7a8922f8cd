//! Open input file for decoders: on this machine, in an object store, or in a hub data set.
//!
//! Decoders reduce every error to a text. Whether the disk failed or the bytes are invalid decides who must act and
//! whether rows may be quarantined, so the file remembers the first failed read.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

use bytes::Bytes;
use longsift_stages::contract::Location;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::problem::DataProblem;
use crate::base::error::{exit_if_out_of_resources, panic_message};
use crate::storage;
use crate::storage::error::StorageError;
use crate::storage::hub::tree::Tree;
use crate::storage::range_file::RangeFile;

/// Returns an identifier that distinguishes this version of a file from all others of the same name.
pub(crate) fn version(path: &Path) -> Result<String, StorageError> {
    Ok(OpenFile::open(path)?.file.version().unwrap_or_default())
}

const BUFFER_BYTES: usize = 8192;

/// Open file. Clones share the file and its first failed read.
#[derive(Clone)]
pub(crate) struct OpenFile {
    /// Methods of this type do not remember failed reads.
    pub(super) file: Arc<RangeFile>,
    refused: Arc<OnceLock<StorageError>>,
}

impl OpenFile {
    pub(crate) fn open(path: &Path) -> Result<Self, StorageError> {
        storage::open(&Location::from_path(path)).map(Self::new)
    }

    pub(super) fn open_in_hub(hub: &InTree, path: &str) -> Result<Self, DataProblem> {
        Ok(Self::new(hub.tree.open(&format!("{}{path}", hub.folder))?))
    }

    fn new(file: RangeFile) -> Self {
        Self { file: Arc::new(file), refused: Arc::default() }
    }

    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.read_at(&mut bytes[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Returns a sequential reader from `offset` to the end of the file.
    pub(super) fn reader(&self, offset: u64) -> SequentialReader {
        SequentialReader { file: self.clone(), offset }
    }

    pub(crate) fn refused(&self) -> Option<&StorageError> {
        self.refused.get()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset).map_err(|error| {
            let copy = io::Error::other(error.to_string());
            // The first failure explains later ones.
            let _ = self.refused.set(error);
            copy
        })
    }
}

impl Length for OpenFile {
    fn len(&self) -> u64 {
        self.file.length
    }
}

impl ChunkReader for OpenFile {
    type T = BufReader<SequentialReader>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::with_capacity(BUFFER_BYTES, self.reader(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.file.length) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} exceed the {} bytes of the file",
                self.file.length
            )));
        }
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                ParquetError::EOF("the file was truncated while it was read".into())
            }
            _ => error.into(),
        })?;
        Ok(bytes.into())
    }
}

pub(crate) struct SequentialReader {
    file: OpenFile,
    offset: u64,
}

impl Read for SequentialReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

thread_local! {
    /// Whether panics of this thread are caused by a file and reported as its errors.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder. A panic, which corrupt pages can cause, becomes an error of the file and is not reported as a bug.
pub(crate) fn guarded<T, E: Display>(decode: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                loud(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    QUIET.set(before);
    match decoded {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let why = panic_message(panic.as_ref());
            exit_if_out_of_resources(why);
            Err(format!("its bytes contradict each other ({why})"))
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct InTree {
    pub(super) tree: Arc<Tree>,
    /// Folder with a trailing slash; empty for the whole data set.
    pub(super) folder: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_decoder_is_an_error_of_its_file() {
        let of = |decode: fn() -> Result<(), String>| guarded(decode).unwrap_err();
        let page = 3;
        assert_eq!(of(|| panic!("no page")), "its bytes contradict each other (no page)");
        assert_eq!(of(|| Err("it ends".to_owned())), "it ends");
        let formatted = guarded::<(), String>(|| panic!("page {page} of 2")).unwrap_err();
        assert_eq!(formatted, "its bytes contradict each other (page 3 of 2)");
    }
}
