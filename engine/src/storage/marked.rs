//! Protects files of users: longsift overwrites only files with its own mark, or empty ones.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::Value;

use super::error::{StorageError, failed};
use super::store::is_address;
use super::{atomic, files};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::quoted;

/// Bytes at each end of a file that are searched for a mark.
const SEARCHED_BYTES: u64 = 1 << 16;
const MAX_JSON_BYTES: u64 = 1 << 28;
pub const MARKER: &str = ".longsift";

#[derive(Clone, Copy, Debug)]
pub enum Mark {
    Start(&'static str),
    /// Bytes within the first or last 64 KiB.
    Contains(&'static str),
    Keys(&'static [&'static str]),
}

impl Mark {
    pub const PAGE: Self = Self::Contains("<meta name=\"generator\" content=\"longsift\">");
    pub const DRAWING: Self = Self::Contains("<!-- longsift -->");
    pub const IMAGE: Self = Self::Contains("Software\0longsift");
    pub const TABLE: Self = Self::Contains("longsift_map");
    pub const METRICS: Self = Self::Start("# HELP longsift_");

    /// Whether the file at `path` may be overwritten: it has the mark, is missing or empty, or is a device or a pipe.
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
            let max = if matches!(self, Self::Keys(_)) { MAX_JSON_BYTES } else { SEARCHED_BYTES };
            file.by_ref().take(max).read_to_end(&mut start)?;
            file.seek(SeekFrom::Start(status.len().saturating_sub(SEARCHED_BYTES)))?;
            file.take(SEARCHED_BYTES).read_to_end(&mut end)?;
            Ok((start, end))
        };
        let (start, end) = read().map_err(failed("read", path))?;
        Ok(self.is_in(&start, &end))
    }

    fn is_in(self, start: &[u8], end: &[u8]) -> bool {
        let contains =
            |bytes: &[u8], mark: &str| memchr::memmem::find(bytes, mark.as_bytes()).is_some();
        match self {
            Self::Start(mark) => start.starts_with(mark.as_bytes()),
            Self::Contains(mark) => contains(start, mark) || contains(end, mark),
            Self::Keys(keys) => serde_json::from_slice::<Value>(start)
                .is_ok_and(|json| keys.iter().all(|key| json.get(key).is_some())),
        }
    }
}

pub fn carries(path: &Path, mark: Mark) -> Result<bool> {
    Ok(files::size(path)?.is_some_and(|size| size > 0) && mark.allows(path)?)
}

/// Checks that a path may be overwritten. Commands call this before they do any work.
pub fn check(path: &Path, mark: Mark) -> Result<()> {
    if mark.allows(path)? { Ok(()) } else { Err(foreign(path).into()) }
}

/// Writes a whole file, replacing one with the same mark; writes directly into a device or a pipe.
pub fn write(path: &Path, mark: Mark, bytes: &[u8]) -> Result<()> {
    check(path, mark)?;
    Ok(atomic::write_answer(path, bytes)?)
}

/// Returns the error for a file or folder that longsift did not write.
pub fn foreign(path: &Path) -> Diagnostic {
    let message = format!("{} was not written by longsift", quoted(&path.display().to_string()));
    Diagnostic::error(Blame::Pipeline, message).hint("move it away, or choose another path")
}

/// Creates a folder that longsift fills and clears, and marks it. A folder with contents is not marked.
pub fn create_folder(path: &Path) -> std::result::Result<(), StorageError> {
    files::create_folder(path)?;
    if !is_address(path) && files::list_if_present(path)?.is_empty() {
        atomic::write_atomic(&path.join(MARKER), b"longsift fills and clears this folder.\n")?;
    }
    Ok(())
}

/// Whether the contents of a folder may be removed: it has the mark, is empty or is missing. A file is not a folder.
pub fn is_own_folder(path: &Path) -> std::result::Result<bool, StorageError> {
    if path.exists() && !path.is_dir() {
        return Ok(false);
    }
    let mut names = files::list_if_present(path)?;
    // Ignores temporary files: another process may be writing the marker.
    names.retain(|path| !files::is_temporary(path));
    Ok(is_address(path) || names.is_empty() || names.contains(&path.join(MARKER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_or_empty_files_are_overwritten() {
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
        assert!(check(folder.path(), Mark::PAGE).is_err(), "a folder is not a page");
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
    fn a_folder_with_contents_is_never_marked() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        create_folder(&ours).unwrap();
        fs::create_dir(&theirs).unwrap();
        assert!(is_own_folder(&theirs).unwrap(), "an empty folder");
        fs::write(theirs.join("notes"), "").unwrap();
        create_folder(&theirs).unwrap();
        assert!(is_own_folder(&ours).unwrap() && !is_own_folder(&theirs).unwrap());
        assert!(is_own_folder(&folder.path().join("absent")).unwrap());
    }
}
