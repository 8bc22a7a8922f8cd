//! File operations with the path in every error. Paths of run directories and outputs may be addresses of object
//! stores, which all operations accept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longsift_stages::contract::hex;
use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags, statx};
use sha2::{Digest, Sha256};

use super::error::{self, StorageError, failed, is_link_circle};
#[cfg(feature = "cloud")]
use super::objects::stored::ObjectStores;
use super::range_file::Stamp;
use super::regular;
use super::store::{Store, is_address};
use crate::base::text;

const MAX_REQUESTS: usize = 32;

/// Returns the store of an address, and the address as text; `None` for a local path, and in a build without stores.
pub(super) fn store(path: &Path) -> Option<(&'static dyn Store, &str)> {
    #[cfg(feature = "cloud")]
    if is_address(path) {
        return path.to_str().map(|address| (&ObjectStores as &dyn Store, address));
    }
    let _ = path;
    None
}

/// Prefix of a file's name until it is committed. Readers of a folder skip hidden names.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

pub fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes())
}

/// Removes temporary files of killed runs in `folder` itself. Returns their names, sorted; empty for a missing folder.
pub fn remove_leftovers(folder: &Path) -> Result<Vec<String>, StorageError> {
    // Incomplete uploads to a store have no name.
    if store(folder).is_some() {
        return Ok(Vec::new());
    }
    let mut removed = Vec::new();
    for path in list_if_present(folder)? {
        if is_temporary(&path) && size(&path)?.is_some() {
            remove_file(&path)?;
            removed.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    Ok(removed)
}

/// Syncs a folder, after files in it were created, renamed or removed.
pub fn fsync_folder(path: &Path) -> Result<(), StorageError> {
    if store(path).is_some() {
        return Ok(());
    }
    sync(path).map_err(failed("fsync the folder", path))
}

pub fn fsync_folder_if_present(path: &Path) -> Result<(), StorageError> {
    if store(path).is_some() {
        return Ok(());
    }
    if_present(sync(path)).map_err(failed("fsync the folder", path)).map(drop)
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates a folder and its parents, and syncs the folders that contain them. An existing folder is not an error.
pub fn create_folder(path: &Path) -> Result<(), StorageError> {
    if store(path).is_some() {
        return Ok(());
    }
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let created: Vec<&Path> = path.ancestors().take_while(missing).collect();
    fs::create_dir_all(path).map_err(failed("create the folder", path))?;
    created.into_iter().try_for_each(|folder| fsync_folder(folder_of(folder)))
}

/// Renames within one file system and syncs both folders.
pub fn rename(from: &Path, to: &Path) -> Result<(), StorageError> {
    fs::rename(from, to).map_err(failed("rename", from))?;
    fsync_folder(folder_of(to))?;
    if folder_of(from) == folder_of(to) { Ok(()) } else { fsync_folder(folder_of(from)) }
}

/// Moves a staged file to its final name, replacing an existing file. In a store, it is copied and removed later.
pub fn put_in_place(staged: &Path, to: &Path) -> Result<(), StorageError> {
    match (store(staged), to.to_str()) {
        (Some((store, from)), Some(to)) => store.copy(from, to),
        _ => rename(staged, to),
    }
}

/// Removes a file; a missing file is not an error.
pub fn remove_file(path: &Path) -> Result<(), StorageError> {
    remove_file_within(path, None)
}

/// Like [`remove_file`], but sends no request to a store later than `deadline` after the call (`None`: as for all requests).
pub fn remove_file_within(path: &Path, deadline: Option<Duration>) -> Result<(), StorageError> {
    if let Some((store, address)) = store(path) {
        return store.remove(address, deadline);
    }
    if_present(fs::remove_file(path)).map_err(failed("remove", path)).map(drop)
}

const KEPT_FOLDERS: [io::ErrorKind; 2] =
    [io::ErrorKind::DirectoryNotEmpty, io::ErrorKind::PermissionDenied];

/// Removes a folder and its parents below `top` as long as they are empty. Stores have no empty folders.
pub fn remove_empty_folders(folder: &Path, top: &Path) -> Result<(), StorageError> {
    if store(folder).is_some() {
        return Ok(());
    }
    for folder in folder.ancestors().take_while(|folder| folder.starts_with(top) && *folder != top)
    {
        match fs::remove_dir(folder) {
            Ok(()) => fsync_folder_if_present(folder_of(folder))?,
            // An empty folder that this user may not remove does no harm.
            Err(error) if KEPT_FOLDERS.contains(&error.kind()) => break,
            gone => drop(if_present(gone).map_err(failed("remove", folder))?),
        }
    }
    Ok(())
}

fn reader(path: &Path) -> Result<Box<dyn Read>, StorageError> {
    match store(path) {
        Some((store, address)) => store.reader(address),
        None => Ok(Box::new(regular::open(path)?)),
    }
}

/// Returns the number of files at `path` to access concurrently; `on_disk` is the number for a disk.
pub fn concurrency(path: &Path, on_disk: usize) -> usize {
    if is_address(path) { on_disk.max(MAX_REQUESTS) } else { on_disk }
}

/// Returns the paths of the entries of a folder, sorted by bytes.
pub fn list_folder(path: &Path) -> Result<Vec<PathBuf>, StorageError> {
    if let Some((store, address)) = store(path) {
        let names = store.list(address)?;
        return Ok(names.iter().map(|name| path.join(name)).collect());
    }
    list_local(path)
}

fn list_local(folder: &Path) -> Result<Vec<PathBuf>, StorageError> {
    let read =
        || -> io::Result<Vec<_>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    let mut paths = read().map_err(failed("list", folder))?;
    paths.sort_unstable();
    Ok(paths)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    pub path: PathBuf,
    /// Whether it is a folder, after following links. Otherwise it may be a file, a pipe, a device or a broken link.
    pub is_folder: bool,
    pub is_link: bool,
    /// `None` for a broken link.
    pub identity: Option<EntryIdentity>,
}

/// Status of the target of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryIdentity {
    /// Device and inode. File systems that combine others can give two files the same.
    pub inode: (u64, u64),
    /// Number of hard links.
    pub links: u64,
    pub bytes: u64,
    pub modified: (i64, i64),
    pub changed: (i64, i64),
}

impl FolderEntry {
    /// Returns whether two entries are names of one file, which may be written between the reading of the entries.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (&self.identity, &other.identity) else { return false };
        let has_same_path = || {
            let path = fs::canonicalize(&self.path).ok();
            path.is_some() && path == fs::canonicalize(&other.path).ok()
        };
        let is_hard_link = own.links > 1 || others.links > 1;
        own.inode == others.inode && (own == others || is_hard_link || has_same_path())
    }
}

pub fn entries(folder: &Path) -> Result<Vec<FolderEntry>, StorageError> {
    // Entries removed in the meantime are left out.
    list_local(folder)?.iter().filter_map(|path| entry(path).transpose()).collect()
}

/// Returns a local folder entry; `None` if the name does not exist.
pub fn entry(path: &Path) -> Result<Option<FolderEntry>, StorageError> {
    let read = || {
        let Some(own) = if_present(fs::symlink_metadata(path))? else { return Ok(None) };
        let is_link = own.is_symlink();
        let status = match if_present(fs::metadata(path)) {
            // A cycle of links counts as a broken link.
            Err(error) if is_link && is_link_circle(&error) => None,
            followed => followed?,
        };
        let is_folder = status.as_ref().is_some_and(fs::Metadata::is_dir);
        let identity = status.map(|status| EntryIdentity {
            inode: (status.dev(), status.ino()),
            links: status.nlink(),
            bytes: status.size(),
            modified: (status.mtime(), status.mtime_nsec()),
            changed: (status.ctime(), status.ctime_nsec()),
        });
        Ok(Some(FolderEntry { path: path.to_owned(), is_folder, is_link, identity }))
    };
    read().map_err(failed("read", path))
}

/// Returns what identifies the file system and the mount of a folder, between which no file can be renamed; `None` if it does
/// not exist. Two mounts of a file system are distinguished on Linux 5.8 or later.
pub fn mount(folder: &Path) -> Option<(u64, u64)> {
    let device = folder.metadata().ok()?.dev();
    // 0 on kernels before 5.8.
    let status = statx(CWD, folder, AtFlags::empty(), StatxFlags::MNT_ID);
    Some((device, status.map_or(0, |status| status.stx_mnt_id)))
}

/// Returns whether a file is the root of a mount, such as a file mounted into a container; such a file cannot be replaced.
/// Detected on Linux 5.8 or later.
pub fn is_mounted_file(path: &Path) -> bool {
    let status = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    let is_root = |status: Statx| status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    status.is_ok_and(is_root) && path.is_file()
}

/// Returns the path without links, `.` and `..`; an address is returned unchanged.
pub fn canonical(path: &Path) -> Result<PathBuf, StorageError> {
    if is_address(path) {
        return Ok(path.to_owned());
    }
    fs::canonicalize(path).map_err(failed("resolve", path))
}

/// Reads a whole file of at most `max_bytes`; a longer file is an error.
pub fn read_limited(path: &Path, max_bytes: u64) -> Result<Vec<u8>, StorageError> {
    let mut bytes = Vec::new();
    reader(path)?
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    if bytes.len() as u64 > max_bytes {
        let why = format!("it is longer than {} bytes", text::count(max_bytes));
        return Err(failed("read", path)(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    Ok(bytes)
}

/// Reads the first bytes of a file, at most `max_bytes`.
pub fn read_start(path: &Path, max_bytes: u64) -> Result<Vec<u8>, StorageError> {
    let mut start = Vec::new();
    reader(path)?.take(max_bytes).read_to_end(&mut start).map_err(failed("read", path))?;
    Ok(start)
}

/// Returns the bytes that an unprivileged user can still write below `path`, which need not exist. Stores are unlimited.
pub fn free_bytes(path: &Path) -> Result<u64, StorageError> {
    if is_address(path) {
        return Ok(u64::MAX);
    }
    let existing = nearest_existing(path);
    let status = rustix::fs::statvfs(existing)
        .map_err(|error| failed("read the free space of", existing)(error.into()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Returns `path` if it exists, otherwise the nearest folder above it that does.
pub fn nearest_existing(path: &Path) -> &Path {
    let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    if existing.as_os_str().is_empty() { Path::new(".") } else { existing }
}

/// Creates a temporary file in a local folder and removes it. Fails if the folder is not writable, or its disk is full.
pub fn check_writable(folder: &Path) -> Result<(), StorageError> {
    tempfile::tempfile_in(folder).map(drop).map_err(failed("create a file in", folder))
}

/// Returns the length of a file in bytes; `None` if it is missing. A failing disk is an error.
pub fn size(path: &Path) -> Result<Option<u64>, StorageError> {
    Ok(stamp(path)?.map(|stamp| stamp.size))
}

/// Like [`size`], with the times of the last changes.
pub fn stamp(path: &Path) -> Result<Option<Stamp>, StorageError> {
    if let Some((store, address)) = store(path) {
        return store.stamp(address);
    }
    let metadata = if_present(fs::metadata(path)).map_err(failed("read", path))?;
    Ok(metadata.filter(fs::Metadata::is_file).map(|status| Stamp::from_metadata(&status)))
}

/// Whether a folder of that name exists, after following links. A failing disk is an error.
pub fn is_folder(path: &Path) -> Result<bool, StorageError> {
    if let Some((store, address)) = store(path) {
        return store.is_folder(address);
    }
    let metadata = if_present(fs::metadata(path)).map_err(failed("read", path))?;
    Ok(metadata.is_some_and(|metadata| metadata.is_dir()))
}

fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    match result {
        Err(error) if missing.contains(&error.kind()) => Ok(None),
        found => found.map(Some),
    }
}

pub fn digest(path: &Path) -> Result<FileDigest, StorageError> {
    digest_start(path, u64::MAX)
}

/// Like [`digest`], of at most the first `max_bytes`.
pub fn digest_start(path: &Path, max_bytes: u64) -> Result<FileDigest, StorageError> {
    let mut file = reader(path)?.take(max_bytes);
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(FileDigest { bytes, sha256: hex(&hash.finalize()) }),
            Ok(read) => {
                hash.update(&piece[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read", path)(error)),
        }
    }
}

pub fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    if let Some((store, address)) = store(path) {
        return error::if_present(store.read(address));
    }
    let status = if_present(fs::metadata(path)).map_err(failed("read", path))?;
    let Some(status) = status else { return Ok(None) };
    regular::check(&status).and_then(|()| if_present(fs::read(path))).map_err(failed("read", path))
}

/// Opens a file, creating it if needed, truncates it to `length` bytes, and appends from there.
pub fn open_for_append(path: &Path, length: u64) -> Result<File, StorageError> {
    let open = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.set_len(length)?;
        file.seek(SeekFrom::End(0))?;
        Ok(file)
    };
    open().map_err(failed("open", path))
}

/// Opens a file to which several processes append whole lines, creating it if needed.
pub fn open_to_append(path: &Path) -> Result<File, StorageError> {
    OpenOptions::new().append(true).create(true).open(path).map_err(failed("open", path))
}

pub fn open_read_write(path: &Path) -> Result<File, StorageError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed("open", path))
}

/// Removes a local folder with its contents; a missing folder is not an error.
pub fn remove_folder(path: &Path) -> Result<(), StorageError> {
    error::if_present(fs::remove_dir_all(path).map_err(failed("remove", path))).map(drop)
}

/// Removes the files below a folder for which `removes` returns `true`, and folders that become empty.
pub fn remove_matching(folder: &Path, removes: &dyn Fn(&Path) -> bool) -> Result<(), StorageError> {
    if let Some((store, address)) = store(folder) {
        return store.remove_matching(address, &|name| removes(&folder.join(name)));
    }
    if !is_folder(folder)? {
        return Ok(());
    }
    let entries = error::if_present(entries(folder))?.unwrap_or_default();
    for FolderEntry { path, is_folder, is_link, .. } in entries {
        if is_folder && !is_link {
            remove_matching(&path, removes)?;
        } else if removes(&path) {
            remove_file(&path)?;
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => if_present(removed).map(drop).map_err(failed("remove", folder)),
    }
}

/// Returns `longsift` in `$XDG_CACHE_HOME`, else `~/.cache`; without either, as in containers, a temporary folder of the user.
pub fn user_cache_folder() -> Result<PathBuf, StorageError> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache =
        variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    match cache {
        Some(cache) => Ok(cache.join("longsift")),
        None => temporary_cache_folder(&std::env::temp_dir()),
    }
}

/// Whether a file exists that this user cannot replace or remove: it belongs to another user, in a folder with the sticky bit of
/// another user.
pub fn is_protected(path: &Path) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && is_protected_from(user.as_raw(), path)
}

fn is_protected_from(user: u32, path: &Path) -> bool {
    let (file, folder) = (fs::symlink_metadata(path), fs::metadata(folder_of(path)));
    file.ok().zip(folder.ok()).is_some_and(|(file, folder)| {
        folder.mode() & 0o1000 != 0 && folder.uid() != user && file.uid() != user
    })
}

/// Creates a folder below `temporary` that only this user can write to. A folder of another user cannot be trusted.
fn temporary_cache_folder(temporary: &Path) -> Result<PathBuf, StorageError> {
    let user = rustix::process::geteuid().as_raw();
    let folder = temporary.join(format!("longsift-{user}"));
    let owned = || {
        let created = fs::DirBuilder::new().mode(0o700).create(&folder);
        if created.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
            return created;
        }
        let status = fs::symlink_metadata(&folder)?;
        if status.is_dir() && status.uid() == user && status.mode() & 0o022 == 0 {
            return Ok(());
        }
        let why =
            "other users may write to it; set `cache_folder` of `load-partial-model`, or HOME";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    };
    owned().map_err(failed("use the folder", &folder))?;
    Ok(folder)
}

/// Returns the paths of the entries of a folder, sorted by bytes; empty for a missing folder.
pub fn list_if_present(path: &Path) -> Result<Vec<PathBuf>, StorageError> {
    if store(path).is_some() {
        return list_folder(path);
    }
    match fs::metadata(path) {
        // The folder may be removed in the meantime.
        Ok(status) if status.is_dir() => {
            Ok(error::if_present(list_folder(path))?.unwrap_or_default())
        }
        status => {
            if_present(status).map_err(failed("list", path))?;
            Ok(Vec::new())
        }
    }
}

/// Returns the paths of all files below a folder, sorted by bytes; links count as files. A missing folder is empty.
pub fn below_if_present(folder: &Path) -> Result<Vec<PathBuf>, StorageError> {
    if let Some((store, address)) = store(folder) {
        let names = store.list_below(address)?;
        return Ok(names.iter().map(|name| folder.join(name)).collect());
    }
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    if is_folder(folder)? {
        folders.push(folder.to_owned());
    }
    while let Some(folder) = folders.pop() {
        for entry in error::if_present(entries(&folder))?.unwrap_or_default() {
            let enters = entry.is_folder && !entry.is_link;
            if enters { &mut folders } else { &mut files }.push(entry.path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::storage::atomic::{AtomicFile, write_atomic};

    pub(in crate::storage) fn names(folder: &Path) -> Vec<String> {
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
    fn a_store_has_unlimited_space() {
        assert_eq!(free_bytes(Path::new("s3://bucket/out")).unwrap(), u64::MAX);
    }

    #[test]
    fn without_a_home_the_cache_folder_is_private() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary_cache_folder(temporary.path()).unwrap();
        assert!(folder.starts_with(temporary.path()));
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(temporary_cache_folder(temporary.path()).unwrap(), folder, "again");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = temporary_cache_folder(temporary.path()).unwrap_err().to_string();
        assert!(error.contains("other users may write to it"), "{error}");
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(temporary.path(), &folder).unwrap();
        assert!(temporary_cache_folder(temporary.path()).is_err(), "a link is not trusted");
    }

    #[test]
    fn files_are_found_below_folders_and_empty_folders_go() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("data");
        for name in ["a/b/c", "a/d", "e"] {
            create_folder(top.join(name).parent().unwrap()).unwrap();
            write_atomic(&top.join(name), b"").unwrap();
        }
        std::os::unix::fs::symlink(&top, top.join("link")).unwrap();
        let found = |names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(|name| top.join(name)).collect();
            assert_eq!(below_if_present(&top).unwrap(), paths);
        };
        found(&["a/b/c", "a/d", "e", "link"]);
        let remove = |name: &str| {
            remove_file(&top.join(name)).unwrap();
            remove_empty_folders(top.join(name).parent().unwrap(), &top).unwrap();
        };
        remove("a/b/c");
        assert!(!top.join("a/b").exists() && top.join("a").exists());
        remove("a/d");
        remove("a/d");
        remove("e");
        remove("link");
        assert!(!top.join("a").exists() && top.exists(), "the top folder stays");
        found(&[]);
        assert!(below_if_present(&folder.path().join("absent")).unwrap().is_empty());
    }

    #[test]
    fn the_sticky_bit_protects_files_of_other_users() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let is_protected = |user| is_protected_from(user, &path);
        let user = rustix::process::geteuid().as_raw();
        let mode = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode));
        mode(0o1777).unwrap();
        assert!(!is_protected(user + 1), "the file is missing");
        fs::write(&path, "").unwrap();
        assert!(is_protected(user + 1) && !is_protected(user));
        mode(0o777).unwrap();
        assert!(!is_protected(user + 1));
    }

    #[test]
    fn a_device_is_not_read() {
        let error = read_if_present(Path::new("/dev/full")).unwrap_err().to_string();
        assert!(error.ends_with("it is a device, not a regular file"), "{error}");
        assert!(regular::open(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn free_space_is_known_for_a_folder_that_does_not_exist_yet() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("a/b/c")).unwrap() > 0);
    }
}

/// Length and hash of a committed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes, 64 hexadecimal digits.
    pub sha256: String,
}
