//! Identification of file versions without reading the files.

use std::fmt;
use std::fs::{self, File, Metadata};
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
/// have equal bytes. Images mounted read-only, also below a writable overlay, are an exception, since the program that
/// makes an image can set any times: there a stamp is valid for one mount only.
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
            mount: image_mount(file, &metadata),
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

/// Identifies the mount of a file in an image; `None` if the kernel maintains the file's times.
fn image_mount(file: &File, metadata: &Metadata) -> Option<String> {
    let is_read_only = fstatvfs(file).ok()?.f_flag.contains(StatVfsMountFlags::RDONLY);
    // Image formats such as squashfs store the modification time in seconds, and no change time.
    let times = [metadata.ctime(), metadata.ctime_nsec(), metadata.mtime_nsec()];
    let has_one_time = times == [metadata.mtime(), 0, 0];
    if !is_read_only && !has_one_time {
        return None;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount =
        mount_status(file, StatxFlags::MNT_ID).and_then(|number| find_mount(&mounts, number));
    let is_image = match mount {
        // A file system that is written on another machine may be mounted read-only here; the kernel maintains its times.
        Some(mount) => is_read_only && !is_writable(mount) || has_one_time && may_show_image(mount),
        None => is_read_only,
    };
    if !is_image {
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

/// Returns the line of a mount in `/proc/self/mountinfo`.
fn find_mount(mounts: &str, number: u64) -> Option<&str> {
    let number = number.to_string();
    mounts.lines().find(|line| line.split(' ').next() == Some(&number))
}

/// Returns whether the file system of a mount is writable, regardless of the mount options.
fn is_writable(mount: &str) -> bool {
    let options = mount.rsplit(' ').next().unwrap_or_default();
    options.split(',').any(|option| option == "rw")
}

/// Returns whether a mount can show the files of an image although its file system counts as writable.
fn may_show_image(mount: &str) -> bool {
    let kind = mount.split_once(" - ").and_then(|(_, source)| source.split(' ').next());
    kind.is_some_and(|kind| kind.contains("overlay") || kind.contains("squashfuse"))
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
        32 22 7:0 / /image ro,nodev - squashfs /dev/loop0 ro,errors=continue\n\
        33 22 0:40 / /run rw,relatime shared:9 - overlay overlay rw,lowerdir=/image,upperdir=/up\n\
        34 22 0:41 / /mine rw,nosuid - fuse.squashfuse squashfuse rw,user_id=0\n\
        35 22 0:42 / /both rw,nosuid - fuse.fuse-overlayfs fuse-overlayfs rw,user_id=0\n\
        36 22 0:43 / /far rw,nosuid - fuse.sshfs host: rw,user_id=0\n";

    #[test]
    fn read_only_mounts_and_images_are_distinguished() {
        let are = |of: fn(&str) -> bool| {
            let matching = |number: &u64| find_mount(MOUNTS, *number).is_some_and(of);
            (22..37).filter(matching).collect::<Vec<u64>>()
        };
        assert_eq!(are(is_writable), [22, 31, 33, 34, 35, 36]);
        assert_eq!(are(may_show_image), [33, 34, 35]);
        assert_eq!(find_mount("", 22), None);
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
