//! Opens only regular local files, which are checked before they are opened.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::error::{StorageError, failed};

/// Opens a file for reading. Its kind is checked before opening, because opening a named pipe waits for a writer.
pub fn open(path: &Path) -> Result<File, StorageError> {
    fs::metadata(path)
        .and_then(|status| check(&status))
        .and_then(|()| File::open(path))
        .map_err(failed("open", path))
}

pub(super) fn check(status: &fs::Metadata) -> io::Result<()> {
    let kind = status.file_type();
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let what = match () {
        () if kind.is_fifo() => "named pipe",
        () if kind.is_socket() => "socket",
        () => "device",
    };
    let why = format!("it is a {what}, not a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_file() {
        let error = open(Path::new("/no/such/file")).unwrap_err();
        assert!(error.to_string().starts_with("cannot open `/no/such/file`"), "{error}");
    }
}
