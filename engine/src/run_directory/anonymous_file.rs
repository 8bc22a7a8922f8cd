//! Anonymous temporary files, which the system deletes when the process ends.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use longsift_kernels::MappedFile;
use rustix::io::Errno;

use super::layout::RunDirectory;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::storage::error::ErrorKind;
use crate::storage::files;

/// File that is written to its end and flushed, and read after that.
#[derive(Debug)]
pub(crate) struct AnonymousFile {
    file: BufWriter<File>,
    bytes: u64,
    /// Folder of the file, for messages.
    folder: PathBuf,
}

impl AnonymousFile {
    /// Creates an empty file in a working folder of the run, or in the system's if that one is not writable.
    pub(crate) fn create(directory: &RunDirectory) -> Result<Self> {
        let mut folder = directory.temporary_folder();
        files::create_folder(&folder)?;
        let mut created = tempfile::tempfile_in(&folder);
        if created.as_ref().is_err_and(|error| ErrorKind::from_io(error) == ErrorKind::Denied) {
            folder = std::env::temp_dir();
            created = tempfile::tempfile_in(&folder);
        }
        match created {
            Ok(file) => Ok(Self { file: BufWriter::new(file), bytes: 0, folder }),
            Err(error) => Err(failed(&folder, "created", &error).into()),
        }
    }

    /// Appends bytes and returns their offset.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| failed(&self.folder, "written", &error))?;
        let offset = self.bytes;
        self.bytes += bytes.len() as u64;
        Ok(offset)
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.file.flush().map_err(|error| failed(&self.folder, "written", &error))?)
    }

    pub(crate) fn mapped(mut self) -> Result<MappedFile> {
        self.flush()?;
        let mapped = MappedFile::from_file(self.file.get_ref());
        Ok(mapped.map_err(|error| failed(&self.folder, "memory-mapped", &error))?)
    }

    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file.get_ref().read_exact_at(into, offset);
        Ok(read.map_err(|error| failed(&self.folder, "read", &error))?)
    }
}

fn failed(folder: &Path, what: &str, error: &std::io::Error) -> Diagnostic {
    let message = format!(
        "a temporary file of the selection in `{}` cannot be {what}: {error}",
        folder.display()
    );
    let hint = if ErrorKind::from_io(error) == ErrorKind::Full {
        "it takes about 50 bytes per sample; free some space there and run the same command to resume"
    } else if Errno::from_io_error(error) == Some(Errno::MFILE) {
        "raise the limit of open files (`ulimit -n`)"
    } else {
        "make the folder writable, or set the environment variable `TMPDIR` to a writable one"
    };
    Diagnostic::error(Blame::Machine, message).hint(hint)
}
