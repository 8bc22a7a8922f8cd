//! An open file of the input as its decoder reads it: of this machine, of an object store, or of a data set of the hub.
//!
//! The decoder turns whatever goes wrong into a text. Whether the disk failed or the bytes are bad decides who has to
//! act, and whether rows may be set aside, so the file remembers the first read that the operating system refused.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

use bytes::Bytes;
use longsift_stages::contract::Location;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::problem::DataProblem;
use crate::base::error::exit_if_out_of_resources;
use crate::storage;
use crate::storage::error::StorageError;
use crate::storage::hub::tree::Tree;
use crate::storage::range_file::{RangeFile, Stamp};

/// What tells this version of a file from every other that had or will have its name.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn version(path: &Path) -> Result<String, StorageError> {
    #[cfg(feature = "cloud")]
    if storage::store::is_address(path) {
        return Ok(OpenFile::open(path)?.version().unwrap_or_default());
    }
    let status = std::fs::metadata(path).map_err(storage::error::failed("read", path))?;
    let (modified, changed) =
        ((status.mtime(), status.mtime_nsec()), (status.ctime(), status.ctime_nsec()));
    Ok(format!("{} {} {} {modified:?} {changed:?}", status.dev(), status.ino(), status.size()))
}

/// Bytes that a decoder reading on gets at once.
const BUFFER_BYTES: usize = 8192;

/// An open file. Clones share the file and what it remembers.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: RangeFile,
    refused: OnceLock<StorageError>,
}

impl OpenFile {
    /// Opens a file for a decoder.
    pub(crate) fn open(path: &Path) -> Result<Self, StorageError> {
        storage::open(&Location::of(path)).map(Self::new)
    }

    /// Opens a file of a data set of the hub.
    pub(super) fn of_hub(hub: &InTree, path: &str) -> Result<Self, DataProblem> {
        Ok(Self::new(hub.tree.open(&format!("{}{path}", hub.folder))?))
    }

    fn new(file: RangeFile) -> Self {
        Self { shared: Arc::new(Shared { file, refused: OnceLock::new() }) }
    }

    /// Size and time of modification: see [`RangeFile::stamp`].
    pub(super) fn stamp(&self) -> Result<Stamp, StorageError> {
        self.shared.file.stamp()
    }

    /// Identifies the version of the file: see [`RangeFile::version`].
    pub(super) fn version(&self) -> Option<String> {
        self.shared.file.version()
    }

    /// Says which parts (where they begin, and their lengths) will be read: see [`RangeFile::want`].
    pub(super) fn want(&self, parts: impl IntoIterator<Item = (u64, u64)>) {
        self.shared.file.want(parts);
    }

    /// Fills `bytes` from `offset`.
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.shared.read_at(&mut bytes[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Reads on from `offset` to the end of the file.
    pub(super) fn reader(&self, offset: u64) -> ReadOn {
        ReadOn { shared: Arc::clone(&self.shared), offset }
    }

    /// What the operating system said, if it has refused a read.
    pub(crate) fn refused(&self) -> Option<&StorageError> {
        self.shared.refused.get()
    }
}

impl Shared {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset).map_err(|error| {
            let copy = io::Error::other(error.to_string());
            // The first refusal is the one that explains the others.
            let _ = self.refused.set(error);
            copy
        })
    }
}

impl Length for OpenFile {
    fn len(&self) -> u64 {
        self.shared.file.length
    }
}

impl ChunkReader for OpenFile {
    type T = BufReader<ReadOn>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::with_capacity(BUFFER_BYTES, self.reader(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.shared.file.length) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} are wanted of a file of {}",
                self.shared.file.length
            )));
        }
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            match self.shared.read_at(&mut bytes[done..], start + done as u64)? {
                0 => return Err(ParquetError::EOF("the file was cut while it was read".into())),
                read => done += read,
            }
        }
        Ok(bytes.into())
    }
}

/// Reads a [`OpenFile`] on from a place.
#[derive(Debug)]
pub(crate) struct ReadOn {
    shared: Arc<Shared>,
    offset: u64,
}

impl Read for ReadOn {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.shared.read_at(bytes, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

thread_local! {
    /// Whether a panic of this thread is the fault of a file, and reported as such.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder. Corrupt pages can make one panic; that is the file's fault and ends as an error like any other,
/// without the words that a panic of our own would be reported with.
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
            Err(format!("the decoder failed: {why}"))
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// A folder of a data set of the hub.
#[derive(Clone, Debug)]
pub(super) struct InTree {
    pub(super) tree: Arc<Tree>,
    /// The folder, with a slash at its end; empty for all of the data set.
    pub(super) folder: String,
}
