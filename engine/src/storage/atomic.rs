//! Atomic writes of files.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use longsift_stages::contract::hex;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::error::{StorageError, failed};
use super::files::{FileDigest, TEMPORARY_PREFIX, folder_of, fsync_folder, store};
use super::store::Upload;

/// File that appears under its name when it is complete.
///
/// A local file has a temporary name in its final folder. If it is dropped without [`AtomicFile::commit`], it is removed; after
/// a kill, [`super::files::remove_leftovers`] finds it. In a store it is an upload, which has no name until it is complete.
pub struct AtomicFile {
    target: WriteTarget,
    path: PathBuf,
    bytes: u64,
    hash: Sha256,
}

enum WriteTarget {
    Local(NamedTempFile),
    Store(Box<dyn Upload>),
}

impl AtomicFile {
    /// Creates a file that [`Self::commit`] moves to `path`. The folder must exist.
    pub fn create(path: &Path) -> Result<Self, StorageError> {
        let target = match store(path) {
            Some((store, address)) => WriteTarget::Store(store.upload(address)?),
            None => WriteTarget::Local(create_temporary(path)?),
        };
        Ok(Self { target, path: path.to_owned(), bytes: 0, hash: Sha256::new() })
    }

    /// Syncs the bytes, moves the file to its path (replacing an existing file), and syncs the folder.
    pub fn commit(&mut self) -> Result<FileDigest, StorageError> {
        match &mut self.target {
            WriteTarget::Local(temporary) => {
                temporary.as_file().sync_all().map_err(failed("fsync", &self.path))?;
                rename(temporary, &self.path)?;
            }
            WriteTarget::Store(upload) => upload.complete()?,
        }
        Ok(FileDigest { bytes: self.bytes, sha256: hex(&self.hash.finalize_reset()) })
    }
}

impl Write for AtomicFile {
    /// Counts and hashes the written bytes. Errors wrap a [`StorageError`] with the path.
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = match &mut self.target {
            WriteTarget::Local(temporary) => temporary.as_file_mut().write(buffer),
            WriteTarget::Store(upload) => upload.write(buffer),
        };
        let written = match written {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => return Err(failed("write", &self.path)(error).into()),
        };
        self.hash.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            WriteTarget::Local(temporary) => temporary.as_file_mut().flush(),
            WriteTarget::Store(upload) => upload.flush(),
        }
    }
}

/// Creates a file next to `path`, which is removed on drop. If that fails, the next run removes it by its name.
fn create_temporary(path: &Path) -> Result<NamedTempFile, StorageError> {
    let name = path.file_name().unwrap_or(OsStr::new("file")).to_string_lossy();
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    tempfile::Builder::new()
        .prefix(&format!("{TEMPORARY_PREFIX}{:x}-", std::process::id()))
        .suffix(&format!("-{name}"))
        .make_in(path.parent().unwrap_or(Path::new("")), create)
        .map_err(failed("create", path))
}

/// Moves a temporary file to `path` and syncs the folder.
fn rename(temporary: &mut NamedTempFile, path: &Path) -> Result<(), StorageError> {
    fs::rename(temporary.path(), path).map_err(failed("rename a temporary file to", path))?;
    temporary.disable_cleanup(true);
    fsync_folder(folder_of(path))
}

/// Writes a whole file atomically: readers see either the old or the new content.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<FileDigest, StorageError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(failed("write", path))?;
    file.commit()
}

/// Like [`write_atomic`], but writes directly into an existing device or pipe, which must not be replaced.
pub fn write_answer(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    let found = fs::metadata(path).map(|found| found.file_type());
    if found.is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let opened = fs::OpenOptions::new().write(true).open(path);
        return opened.and_then(|mut file| file.write_all(bytes)).map_err(failed("write", path));
    }
    write_atomic(path, bytes).map(drop)
}

/// Writes a whole file unless the name exists. Returns whether it was written: of several writers, exactly one succeeds.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<bool, StorageError> {
    if let Some((store, address)) = store(path) {
        return store.write_new(address, bytes);
    }
    let mut temporary = create_temporary(path)?;
    temporary.as_file_mut().write_all(bytes).map_err(failed("write", path))?;
    temporary.as_file().sync_all().map_err(failed("fsync", path))?;
    // Unlike a rename, a link never replaces an existing file.
    match fs::hard_link(temporary.path(), path) {
        Ok(()) => {
            drop(temporary);
            fsync_folder(folder_of(path))?;
            Ok(true)
        }
        Err(error) => match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(false),
            // The file system does not support links.
            io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied if !path.exists() => {
                rename(&mut temporary, path).map(|()| true)
            }
            _ => Err(failed("link a temporary file to", path)(error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::files::{read_limited, tests::names};

    #[test]
    fn a_committed_file_has_the_bytes_and_the_digest_that_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let written = write_atomic(&path, b"abc").unwrap();
        assert_eq!(written.bytes, 3);
        assert_eq!(
            written.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(read_limited(&path, 3).unwrap(), b"abc");
        assert_eq!(names(folder.path()), ["a.txt"]);
    }

    #[test]
    fn write_answer_writes_into_a_pipe_and_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let other = pipe.clone();
        let reader = std::thread::spawn(move || fs::read(other).unwrap());
        write_answer(&pipe, b"abc").unwrap();
        assert_eq!(reader.join().unwrap(), b"abc");
        assert!(!fs::metadata(&pipe).unwrap().is_file(), "it is still a pipe");
        write_answer(&file, b"longer").unwrap();
        write_answer(&file, b"abc").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"abc");
        write_answer(Path::new("/dev/null"), b"abc").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_file_that_is_not_committed_leaves_nothing_and_does_not_touch_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        write_atomic(&path, b"old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        drop(file);
        assert_eq!(names(folder.path()), ["a.txt"]);
        assert_eq!(read_limited(&path, 10).unwrap(), b"old");
    }

    #[test]
    fn one_of_many_writers_creates_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let won: Vec<bool> = std::thread::scope(|scope| {
            let write = |number: u8| {
                let path = &path;
                scope.spawn(move || write_new(path, &[number; 100]).unwrap())
            };
            let writers: Vec<_> = (0..8).map(write).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(won.iter().filter(|&&won| won).count(), 1);
        let winner = won.iter().position(|&won| won).unwrap();
        assert_eq!(read_limited(&path, 200).unwrap(), [winner as u8; 100]);
        assert_eq!(names(folder.path()), ["record"]);
    }
}
