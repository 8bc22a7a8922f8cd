//! Identification of file versions without reading the files.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, StatVfsMountFlags, Statx, StatxFlags, fstatvfs, statx};
use serde::Serialize;

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): a mount ID that is not reused before the next boot.
const UNIQUE_MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Size, file ID and times of a file version. Only the kernel sets the status change time, so files with equal stamps
/// have equal bytes. Images mounted read-only are an exception, since the program that makes an image can set any
/// times: there a stamp is valid for one mount only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileStamp {
    bytes: u64,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<String>,
}

impl FileStamp {
    /// Takes the stamp of an open file.
    pub fn from_file(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            bytes: metadata.size(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            mount: read_only_mount(file),
        })
    }

    /// Returns the stamp of a remote file whose name always has the same bytes.
    pub(crate) fn for_immutable(bytes: u64) -> Self {
        Self { bytes, device: 0, inode: 0, modified: (0, 0), changed: (0, 0), mount: None }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for FileStamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, device, inode, modified, changed, mount } = self;
        write!(formatter, "{bytes} {device} {inode} {modified:?} {changed:?}")?;
        mount.iter().try_for_each(|mount| write!(formatter, " {mount}"))
    }
}

/// Identifies the mount of a file on a read-only file system; `None` if it can be written.
fn read_only_mount(file: &File) -> Option<String> {
    let flags = fstatvfs(file).ok()?.f_flag;
    if !flags.contains(StatVfsMountFlags::RDONLY) {
        return None;
    }
    // A file system that is written on another machine may be mounted read-only here; the kernel maintains its times.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = mount_status(file, StatxFlags::MNT_ID);
    if number.is_some_and(|number| is_writable(&mounts, number)) {
        return None;
    }
    let start = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let unique = mount_status(file, UNIQUE_MOUNT).zip(start);
    Some(match unique {
        Some((mount, start)) => format!("{} {mount}", start.trim()),
        // The mount has no identifier, so the stamp is valid for this process only.
        None => this_process().to_owned(),
    })
}

/// Returns the mount ID of a file, of the type selected by `wanted`.
fn mount_status(file: &File, wanted: StatxFlags) -> Option<u64> {
    let Statx { stx_mask, stx_mnt_id, .. } = statx(file, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    (stx_mask & wanted.bits() != 0).then_some(stx_mnt_id)
}

/// Returns whether the file system of a mount is writable, regardless of the mount options.
fn is_writable(mounts: &str, number: u64) -> bool {
    let number = number.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&number));
    line.and_then(|line| line.rsplit(' ').next())
        .is_some_and(|options| options.split(',').any(|option| option == "rw"))
}

fn this_process() -> &'static str {
    static PROCESS: OnceLock<String> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("process {} {}", process::id(), now.as_nanos())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        31 22 254:0 /srv /models ro,relatime - ext4 /dev/vda rw,discard\n\
        32 22 7:0 / /image ro,nodev - squashfs /dev/loop0 ro,errors=continue\n";

    #[test]
    fn read_only_mounts_and_images_are_distinguished() {
        assert!(is_writable(MOUNTS, 22) && is_writable(MOUNTS, 31));
        assert!(!is_writable(MOUNTS, 32) && !is_writable(MOUNTS, 33) && !is_writable("", 22));
    }

    #[test]
    fn a_replaced_file_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let stamp = || FileStamp::from_file(&File::open(&path).unwrap()).unwrap();
        let write = |bytes: &str| {
            fs::write(&path, bytes).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        };
        write("one");
        let first = stamp();
        assert_eq!((&first, first.mount.is_none(), first.bytes()), (&stamp(), true, 3));
        std::thread::sleep(std::time::Duration::from_millis(20));
        write("two");
        assert_ne!(first.to_string(), stamp().to_string());
    }
}
