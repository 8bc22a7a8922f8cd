//! Every operation on files: the path in every error, writes that appear whole or not at all. Paths of run directories
//! and outputs may be addresses of object stores: the same operations then go there.

mod atomic;
mod store;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use longsift_stages::contract::hex;
use sha2::{Digest, Sha256};

pub use atomic::{AtomicFile, Written, write_atomic, write_new};
pub use store::is_address;
use store::store;
#[cfg(feature = "cloud")]
pub(crate) use store::{Store, Upload};

/// Requests to an object store that are under way at a time where many files are asked for.
const REQUESTS_AT_ONCE: usize = 32;

/// How the name of a file begins until it is committed. Readers of a folder skip hidden names, so they never see one.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// `EMFILE` and `ELOOP`, which have no kind of their own in the standard library.
const TOO_MANY_OPEN_FILES: i32 = rustix::io::Errno::MFILE.raw_os_error();
const TOO_MANY_LINKS: i32 = rustix::io::Errno::LOOP.raw_os_error();

/// An operation on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} `{}`: {source}", path.display())]
pub struct FileError {
    /// What was tried: `open`, `write`, …
    pub operation: &'static str,
    /// On which file or folder.
    pub path: PathBuf,
    /// What the operating system said.
    pub source: io::Error,
}

impl FileError {
    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(
                "free space on this disk, or write to another one; the run can then be resumed"
                    .into(),
            ),
            io::ErrorKind::NotFound if is_address(&self.path) => Some(
                "check the name of the bucket, and the store's region and endpoint (AWS_REGION, AWS_ENDPOINT_URL, …)"
                    .into(),
            ),
            io::ErrorKind::PermissionDenied if is_address(&self.path) => {
                Some("check the credentials (AWS_…, GOOGLE_…, AZURE_…) and what they may do".into())
            }
            io::ErrorKind::PermissionDenied => {
                Some("check the owner and the mode of the file and its folder".into())
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                Some("mount the disk for writing, or write to another one".into())
            }
            _ if self.source.raw_os_error() == Some(TOO_MANY_OPEN_FILES) => {
                Some("raise the limit of open files (`ulimit -n`)".into())
            }
            _ => None,
        }
    }

    /// Whether the same operation may succeed later: the disk or the system failed, not the path or its permissions.
    pub fn may_pass(&self) -> bool {
        may_pass(&self.source)
    }
}

/// Whether the operation that failed may succeed later: see [`FileError::may_pass`].
pub fn may_pass(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::UnexpectedEof
    ) && error.raw_os_error() != Some(TOO_MANY_LINKS)
}

/// Puts operation and path on an error of the operating system.
pub(crate) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_path_buf();
    move |source| FileError { operation, path, source }
}

/// Removes what killed runs left under temporary names in `folder` itself. Returns the names, sorted. A folder that
/// does not exist has none.
pub fn remove_leftovers(folder: &Path) -> Result<Vec<String>, FileError> {
    // A store has no name for what is not complete.
    if store(folder).is_some() {
        return Ok(Vec::new());
    }
    let mut removed = Vec::new();
    for path in list_if_present(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(TEMPORARY_PREFIX) && size(&path)?.is_some() {
            remove_file(&path)?;
            removed.push(name);
        }
    }
    Ok(removed)
}

/// Makes the names in a folder durable: after a rename, a file creation or a removal.
pub fn fsync_folder(path: &Path) -> Result<(), FileError> {
    if store(path).is_some() {
        return Ok(());
    }
    File::open(path).and_then(|folder| folder.sync_all()).map_err(failed("fsync the folder", path))
}

/// The same, where the folder may be gone.
pub fn fsync_folder_if_present(path: &Path) -> Result<(), FileError> {
    if store(path).is_some() {
        return Ok(());
    }
    let synced = if_present(File::open(path)).and_then(|folder| match folder {
        Some(folder) => folder.sync_all(),
        None => Ok(()),
    });
    synced.map_err(failed("fsync the folder", path))
}

/// Creates a folder and the ones above it, and makes their names durable; one that exists is fine.
pub fn create_folder(path: &Path) -> Result<(), FileError> {
    if store(path).is_some() {
        return Ok(());
    }
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let created: Vec<&Path> = path.ancestors().take_while(missing).collect();
    fs::create_dir_all(path).map_err(failed("create the folder", path))?;
    created.into_iter().try_for_each(|folder| fsync_folder(folder_of(folder)))
}

/// Renames within one file system and makes it durable on both sides.
pub fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::rename(from, to).map_err(failed("rename", from))?;
    fsync_folder(folder_of(to))?;
    if folder_of(from) == folder_of(to) { Ok(()) } else { fsync_folder(folder_of(from)) }
}

/// Gives a staged file its final name, in the place of what has it. In a store, where nothing is renamed, it is copied, and
/// goes with the folder that it was staged in.
pub fn put_in_place(staged: &Path, to: &Path) -> Result<(), FileError> {
    match (store(staged), to.to_str()) {
        (Some((store, from)), Some(to)) => store.copy(from, to).map_err(failed("copy", staged)),
        _ => rename(staged, to),
    }
}

/// Removes a file; one that is already gone is fine.
pub fn remove_file(path: &Path) -> Result<(), FileError> {
    if let Some((store, address)) = store(path) {
        return store.remove(address).map_err(failed("remove", path));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Opens a file for reading.
pub fn open(path: &Path) -> Result<File, FileError> {
    File::open(path).map_err(failed("open", path))
}

/// Reads a file from its beginning.
fn reader(path: &Path) -> Result<Box<dyn Read>, FileError> {
    match store(path) {
        Some((store, address)) => store.reader(address).map_err(failed("open", path)),
        None => Ok(Box::new(open(path)?)),
    }
}

/// How many files at `path` are asked for at a time where there are many, and `here` are for a disk.
pub fn at_once(path: &Path, here: usize) -> usize {
    if is_address(path) { here.max(REQUESTS_AT_ONCE) } else { here }
}

/// What the operating system knows of a file or folder; links are followed.
pub fn status(path: &Path) -> Result<fs::Metadata, FileError> {
    fs::metadata(path).map_err(failed("read", path))
}

/// The names in a folder, as paths below it, sorted by bytes.
pub fn list_folder(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    if let Some((store, address)) = store(path) {
        let names = store.list(address).map_err(failed("list", path))?;
        return Ok(names.iter().map(|name| path.join(name)).collect());
    }
    let entries = fs::read_dir(path).map_err(failed("list", path))?;
    let mut names: Vec<_> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(failed("list", path))?;
    names.sort();
    Ok(names)
}

/// The path without links, `.` and `..`; an address as it is.
pub fn canonical(path: &Path) -> Result<PathBuf, FileError> {
    if is_address(path) {
        return Ok(path.to_owned());
    }
    fs::canonicalize(path).map_err(failed("resolve", path))
}

/// Reads a whole file that must not be longer than `max_bytes`.
pub fn read_limited(path: &Path, max_bytes: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    reader(path)?
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    if bytes.len() as u64 > max_bytes {
        let why = format!("it is longer than {max_bytes} bytes");
        return Err(failed("read", path)(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    Ok(bytes)
}

/// Bytes that an unprivileged user can still write below `path`, which need not exist yet; an object store has no end.
pub fn free_bytes(path: &Path) -> Result<u64, FileError> {
    if is_address(path) {
        return Ok(u64::MAX);
    }
    let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let status = rustix::fs::statvfs(existing)
        .map_err(|error| failed("read the free space of", existing)(error.into()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// The length of a file in bytes; none where there is no file. A disk that does not answer is an error: what is there
/// must never be taken for absent.
pub fn size(path: &Path) -> Result<Option<u64>, FileError> {
    if let Some((store, address)) = store(path) {
        return store.size(address).map_err(failed("read", path));
    }
    let metadata = if_present(fs::metadata(path)).map_err(failed("read", path))?;
    Ok(metadata.filter(fs::Metadata::is_file).map(|metadata| metadata.len()))
}

/// Whether there is a folder of that name; links are followed. A disk that does not answer is an error: what is in the
/// folder must never be taken for absent.
pub fn is_folder(path: &Path) -> Result<bool, FileError> {
    if let Some((store, address)) = store(path) {
        return store.is_folder(address).map_err(failed("list", path));
    }
    let metadata = if_present(fs::metadata(path)).map_err(failed("read", path))?;
    Ok(metadata.is_some_and(|metadata| metadata.is_dir()))
}

/// What was found; none where there is nothing of that name.
fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}

/// The length of a file and its SHA-256, 64 hexadecimal digits. Reads all of it, in pieces.
pub fn digest(path: &Path) -> Result<Written, FileError> {
    let mut file = reader(path)?;
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(Written { bytes, sha256: hex(&hash.finalize()) }),
            Ok(read) => {
                hash.update(&piece[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read", path)(error)),
        }
    }
}

/// Reads a whole file; none where there is no file.
pub fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    if let Some((store, address)) = store(path) {
        return if_present(store.read(address)).map_err(failed("read", path));
    }
    if_present(fs::read(path)).map_err(failed("read", path))
}

/// Opens a file for appending behind its first `length` bytes, creating it if needed; what stands behind them is cut
/// off.
pub fn open_for_append(path: &Path, length: u64) -> Result<File, FileError> {
    let open = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.set_len(length)?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    };
    open().map_err(failed("open", path))
}

/// Opens a file to which several processes append whole lines, creating it if needed.
pub fn open_to_append(path: &Path) -> Result<File, FileError> {
    OpenOptions::new().append(true).create(true).open(path).map_err(failed("open", path))
}

/// Opens a file for reading and writing, creating it if needed.
pub fn open_read_write(path: &Path) -> Result<File, FileError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed("open", path))
}

/// Removes a folder with all it holds; one that is already gone is fine.
pub fn remove_folder(path: &Path) -> Result<(), FileError> {
    if let Some((store, address)) = store(path) {
        return store.remove_folder(address).map_err(failed("remove", path));
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// `longsift` in the user's cache folder: `$XDG_CACHE_HOME`, else `~/.cache`.
pub fn user_cache_folder() -> Result<PathBuf, FileError> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("longsift"))
        .ok_or_else(|| {
            let why =
                io::Error::new(io::ErrorKind::NotFound, "neither XDG_CACHE_HOME nor HOME is set");
            failed("find", Path::new("the user's cache folder"))(why)
        })
}

/// A text that the operating system keeps about itself, where it does.
pub fn read_system(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The names in a folder, as paths below it, sorted by bytes; a folder that does not exist has none.
pub fn list_if_present(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    if store(path).is_some() {
        return list_folder(path);
    }
    match fs::metadata(path) {
        Ok(status) if status.is_dir() => list_folder(path),
        status => {
            if_present(status).map_err(failed("list", path))?;
            Ok(Vec::new())
        }
    }
}

/// The folder that holds `path`.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The SHA-256 of `bytes`, 64 hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn names(folder: &Path) -> Vec<String> {
        list_folder(folder)
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into())
            .collect()
    }

    #[test]
    fn leftovers_of_a_killed_run_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        write_atomic(&folder.path().join("kept"), b"1").unwrap();
        let left = AtomicFile::create(&folder.path().join("lost")).unwrap();
        std::mem::forget(left);
        let removed = remove_leftovers(folder.path()).unwrap();
        assert_eq!(removed.len(), 1);
        assert!(removed[0].starts_with(TEMPORARY_PREFIX) && removed[0].ends_with("lost"));
        assert_eq!(names(folder.path()), ["kept"]);
        assert!(remove_leftovers(&folder.path().join("absent")).unwrap().is_empty());
    }

    #[test]
    fn a_file_over_the_limit_is_refused_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big");
        write_atomic(&path, b"12345").unwrap();
        let message = read_limited(&path, 4).unwrap_err().to_string();
        assert!(message.contains("big") && message.contains("4 bytes"), "{message}");
    }

    #[test]
    fn an_error_names_the_file() {
        let error = open(Path::new("/no/such/file")).unwrap_err();
        assert!(error.to_string().starts_with("cannot open `/no/such/file`"), "{error}");
    }

    #[test]
    fn free_space_is_known_for_a_folder_that_does_not_exist_yet() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("a/b/c")).unwrap() > 0);
    }
}
