//! An open Parquet file as its decoder reads it: of this machine, of an object store, or of a data set of the hub.
//!
//! The decoder turns whatever goes wrong into a text. Whether the disk failed or the bytes are bad decides who has to
//! act, and whether rows may be set aside, so the file remembers the first read that the operating system refused.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::discover::InTree;
use super::problem::DataProblem;
use crate::files::{self, FileError};
use crate::hub::TreeFile;
#[cfg(feature = "cloud")]
use crate::object_stores::{self, RemoteFile};

/// Bytes that a decoder reading on gets at once.
const BUFFER_BYTES: usize = 8192;

/// An open Parquet file. Clones share the file and what it remembers.
#[derive(Clone, Debug)]
pub(crate) struct ParquetFile {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    length: u64,
    refused: OnceLock<io::Error>,
}

#[derive(Debug)]
enum Source {
    Local(File),
    Hub(TreeFile),
    #[cfg(feature = "cloud")]
    Remote(RemoteFile),
}

impl Source {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::Local(file) => file.read_at(bytes, offset),
            Self::Hub(file) => file.read_at(bytes, offset),
            #[cfg(feature = "cloud")]
            Self::Remote(file) => file.read_at(bytes, offset),
        }
    }
}

/// What tells that a file is still the one that was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Length, in bytes.
    pub(super) size: u64,
    /// Time of the last modification, in nanoseconds since 1970; 0 where there is none.
    pub(super) modified_ns: i128,
}

/// Whether a path is an address of an object store.
pub(super) fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains("://"))
}

impl ParquetFile {
    /// Opens a file for a decoder.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        #[cfg(feature = "cloud")]
        if is_remote(path) {
            let url = path.to_str().expect("an address is text");
            let file = object_stores::open(url).map_err(files::failed("open", path))?;
            return Ok(Self::new(file.length, Source::Remote(file)));
        }
        let file = files::open(path)?;
        let status = file.metadata().map_err(files::failed("read", path))?;
        if !status.is_file() {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(files::failed("read", path)(why));
        }
        Ok(Self::new(status.len(), Source::Local(file)))
    }

    /// Opens a file of a data set of the hub.
    pub(super) fn of_hub(hub: &InTree, path: &str) -> Result<Self, DataProblem> {
        let file = hub.tree.open(&format!("{}{path}", hub.folder))?;
        Ok(Self::new(file.length, Source::Hub(file)))
    }

    fn new(length: u64, source: Source) -> Self {
        Self { shared: Arc::new(Shared { source, length, refused: OnceLock::new() }) }
    }

    /// Size and time of modification: of a local file now, of a remote one when it was opened. (Reading a remote file
    /// fails once it has changed.)
    pub(super) fn stamp(&self) -> io::Result<Stamp> {
        match &self.shared.source {
            Source::Local(file) => {
                let status = file.metadata()?;
                Ok(Stamp { size: status.len(), modified_ns: modified_ns(&status) })
            }
            // A commit never changes, whoever has its files.
            Source::Hub(file) => Ok(Stamp { size: file.length, modified_ns: 0 }),
            #[cfg(feature = "cloud")]
            Source::Remote(file) => Ok(Stamp { size: file.length, modified_ns: file.modified_ns }),
        }
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

    /// What the operating system said, if it has refused a read.
    pub(crate) fn refused(&self) -> Option<&io::Error> {
        self.shared.refused.get()
    }
}

/// Nanoseconds since 1970 of the last modification; 0 where the file system has none.
fn modified_ns(status: &std::fs::Metadata) -> i128 {
    let Ok(time) = status.modified() else { return 0 };
    let signed =
        |duration: std::time::Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => signed(after),
        Err(before) => -signed(before.duration()),
    }
}

impl Shared {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.source.read_at(bytes, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let copy = io::Error::from(error.kind());
                    // The first refusal is the one that explains the others.
                    let _ = self.refused.set(error);
                    return Err(copy);
                }
                done => return done,
            }
        }
    }
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.shared.length
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<ReadOn>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let on = ReadOn { shared: Arc::clone(&self.shared), offset: start };
        Ok(BufReader::with_capacity(BUFFER_BYTES, on))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.shared.length) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} are wanted of a file of {}",
                self.shared.length
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

/// Reads a [`ParquetFile`] on from a place.
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
