//! An open Parquet file as its decoder reads it.
//!
//! The decoder turns whatever goes wrong into a text. Whether the disk failed or the bytes are bad decides who has to
//! act, and whether rows may be set aside, so the file remembers the first read that the operating system refused.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::files::{self, FileError};

/// Bytes that a decoder reading on gets at once.
const BUFFER_BYTES: usize = 8192;

/// An open Parquet file. Clones share the file and what it remembers.
#[derive(Clone, Debug)]
pub(crate) struct ParquetFile {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    length: u64,
    refused: OnceLock<io::Error>,
}

impl ParquetFile {
    /// Opens a file for a decoder.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let file = files::open(path)?;
        let length = file.metadata().map_err(files::failed("read", path))?.len();
        Ok(Self { shared: Arc::new(Shared { file, length, refused: OnceLock::new() }) })
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.shared.file
    }

    /// What the operating system said, if it has refused a read.
    pub(crate) fn refused(&self) -> Option<&io::Error> {
        self.shared.refused.get()
    }
}

impl Shared {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(bytes, offset) {
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
