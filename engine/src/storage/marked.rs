//! Files of people: longsift writes over what carries its own mark, or is empty, and over nothing else.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::{StorageError, failed};
use super::store::is_address;
use super::{atomic, files};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::quoted;

/// Bytes of each end of a file that are searched for a mark.
const SEARCHED_BYTES: u64 = 1 << 16;
/// The largest JSON file that is read to see whose it is.
const MAX_JSON_BYTES: u64 = 1 << 28;
/// The name of the file that marks a folder.
const MARKER: &str = ".longsift";

/// How a kind of file shows that longsift wrote it.
#[derive(Clone, Copy, Debug)]
pub enum Mark {
    /// It begins with these bytes.
    Start(&'static str),
    /// Its first or last 64 KiB contain these bytes.
    Contains(&'static str),
    /// It is a JSON object with these keys.
    Keys(&'static [&'static str]),
}

impl Mark {
    /// An HTML page.
    pub const PAGE: Self = Self::Contains("<meta name=\"generator\" content=\"longsift\">");
    /// An SVG drawing.
    pub const DRAWING: Self = Self::Contains("<!-- longsift -->");
    /// A PNG image.
    pub const IMAGE: Self = Self::Contains("Software\0longsift");
    /// A Parquet table.
    pub const TABLE: Self = Self::Contains("longsift_map");
    /// Metrics for Prometheus.
    pub const METRICS: Self = Self::Start("# HELP longsift_");

    /// Whether the file at `path` carries the mark; `true` where nothing is lost: there is no file, or an empty one, or a
    /// device or a pipe.
    fn allows(self, path: &Path) -> Result<bool> {
        if is_address(path) {
            let bytes = files::read_if_present(path)?;
            return Ok(bytes.is_none_or(|bytes| bytes.is_empty() || self.is_in(&bytes, &bytes)));
        }
        let Ok(status) = fs::metadata(path) else { return Ok(true) };
        if !status.is_file() || status.len() == 0 {
            return Ok(!status.is_dir());
        }
        let read = || {
            let mut file = fs::File::open(path)?;
            let (mut start, mut end) = (Vec::new(), Vec::new());
            let most = if matches!(self, Self::Keys(_)) { MAX_JSON_BYTES } else { SEARCHED_BYTES };
            file.by_ref().take(most).read_to_end(&mut start)?;
            file.seek(SeekFrom::Start(status.len().saturating_sub(SEARCHED_BYTES)))?;
            file.take(SEARCHED_BYTES).read_to_end(&mut end)?;
            Ok((start, end))
        };
        let (start, end) = read().map_err(failed("read", path))?;
        Ok(self.is_in(&start, &end))
    }

    fn is_in(self, start: &[u8], end: &[u8]) -> bool {
        let contains = |bytes: &[u8], mark: &str| {
            bytes.windows(mark.len()).any(|piece| piece == mark.as_bytes())
        };
        match self {
            Self::Start(mark) => start.starts_with(mark.as_bytes()),
            Self::Contains(mark) => contains(start, mark) || contains(end, mark),
            Self::Keys(keys) => serde_json::from_slice::<Value>(start)
                .is_ok_and(|json| keys.iter().all(|key| json.get(key).is_some())),
        }
    }
}

/// Whether there is a file at `path` that carries the mark.
///
/// # Errors
/// The file cannot be read.
pub fn carries(path: &Path, mark: Mark) -> Result<bool> {
    Ok(files::size(path)?.is_some_and(|size| size > 0) && mark.allows(path)?)
}

/// Refuses a place whose file somebody else wrote. Commands ask before they work, so that nothing is computed in vain.
///
/// # Errors
/// The file at `path` does not carry the mark, or cannot be read.
pub fn check(path: &Path, mark: Mark) -> Result<()> {
    if mark.allows(path)? { Ok(()) } else { Err(foreign(path).into()) }
}

/// Writes a whole file in the place of one with the same mark; into a device or a pipe directly.
///
/// # Errors
/// As [`check`]; the file cannot be written.
pub fn write(path: &Path, mark: Mark, bytes: &[u8]) -> Result<()> {
    check(path, mark)?;
    Ok(atomic::write_answer(path, bytes)?)
}

/// The refusal of a file or folder that somebody else wrote.
pub fn foreign(path: &Path) -> Diagnostic {
    let message = format!("{} was not written by longsift", quoted(&path.display().to_string()));
    Diagnostic::error(Blame::Pipeline, message).hint("move it away, or name another place")
}

/// Makes a folder that longsift fills and clears, and marks it. One that holds something already is left as it is.
///
/// # Errors
/// The folder or its mark cannot be written.
pub fn create_folder(path: &Path) -> std::result::Result<(), StorageError> {
    files::create_folder(path)?;
    if !is_address(path) && files::list_if_present(path)?.is_empty() {
        atomic::write_atomic(&path.join(MARKER), b"longsift fills and clears this folder.\n")?;
    }
    Ok(())
}

/// Whether everything in a folder may go: it carries the mark, is empty or is not there.
///
/// # Errors
/// The folder cannot be read.
pub fn is_own_folder(path: &Path) -> std::result::Result<bool, StorageError> {
    let mut names = files::list_if_present(path)?;
    // Another process may be about to mark it.
    let begins = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(files::TEMPORARY_PREFIX))
    };
    names.retain(|path| !begins(path));
    Ok(is_address(path) || names.is_empty() || names.contains(&path.join(MARKER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_carries_the_mark_or_is_empty_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answer");
        let marks = [
            (Mark::METRICS, "# HELP longsift_exit_code Exit code\n"),
            (Mark::PAGE, "<html><meta name=\"generator\" content=\"longsift\">"),
            (
                Mark::Keys(&["status", "run_dir"]),
                "{\"status\":\"done\",\"run_dir\":\"\",\"more\":1}\n",
            ),
        ];
        for (mark, ours) in marks {
            for foreign in ["x", "{}", "[1]", "{\"status\":1}", "<html>", "# HELP other\n"] {
                fs::write(&path, foreign).unwrap();
                let refused = write(&path, mark, ours.as_bytes()).unwrap_err();
                assert_eq!(refused.exit_code(), 2);
                assert!(refused.to_string().contains("answer` was not written by longsift"));
                assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
            }
            fs::write(&path, "").unwrap();
            write(&path, mark, ours.as_bytes()).unwrap();
            write(&path, mark, ours.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), ours);
        }
        assert!(check(folder.path(), Mark::PAGE).is_err(), "a folder is nobody's page");
        check(Path::new("/dev/null"), Mark::PAGE).unwrap();
    }

    #[test]
    fn a_mark_is_found_at_the_end_of_a_large_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        let mut bytes = vec![7; 3 * SEARCHED_BYTES as usize];
        fs::write(&path, &bytes).unwrap();
        assert!(check(&path, Mark::TABLE).is_err());
        bytes.extend_from_slice(b"longsift_map\x01PAR1");
        fs::write(&path, &bytes).unwrap();
        check(&path, Mark::TABLE).unwrap();
    }

    #[test]
    fn a_folder_that_held_something_is_never_marked() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        create_folder(&ours).unwrap();
        fs::create_dir(&theirs).unwrap();
        assert!(is_own_folder(&theirs).unwrap(), "nothing is lost");
        fs::write(theirs.join("notes"), "").unwrap();
        create_folder(&theirs).unwrap();
        assert!(is_own_folder(&ours).unwrap() && !is_own_folder(&theirs).unwrap());
        assert!(is_own_folder(&folder.path().join("absent")).unwrap());
    }
}
