//! Memory-mapped files, such as cached layer-zero tables.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use bytemuck::AnyBitPattern;
use memmap2::Mmap;

use crate::words::AlignedWords;

/// The bytes of a file; numbers in it are read in the machine's byte order.
///
/// If a mapped file is rewritten in place, its numbers change under their readers; if it is shortened, the process ends with a bus
/// error. So a file is mapped only if nobody may write to it: a file of this user is made read-only first, a file of the
/// administrator must not be writable by group and others. Any other file (a shared folder with tables of another user, a file
/// system without permissions) is copied into memory. Only a process with the rights of this user or of the administrator could
/// make the file writable again, and it could write to this process's memory as well. Replacing the file by a rename leaves the
/// mapped one intact.
pub struct MappedFile {
    content: FileBytes,
}

enum FileBytes {
    Mapped(Mmap),
    Copied { words: AlignedWords, length: usize },
}

impl MappedFile {
    /// Maps or copies `path`, a regular file. A copy costs memory and reading of the whole file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Self::open_as(path, rustix::process::geteuid().as_raw())
    }

    /// Maps or copies an open regular file that nobody writes to any more.
    pub fn from_file(file: &File) -> std::io::Result<Self> {
        Self::from_file_of_user(file, rustix::process::geteuid().as_raw())
    }

    fn open_as(path: &Path, user: u32) -> std::io::Result<Self> {
        Self::from_file_of_user(&File::open(path)?, user)
    }

    fn from_file_of_user(file: &File, user: u32) -> std::io::Result<Self> {
        let content = if seal(file, user)? {
            // SAFETY: the map is read-only and private to this value, and by the condition on the type nobody writes to
            // the file or shortens it while the map lives.
            FileBytes::Mapped(unsafe { Mmap::map(file)? })
        } else {
            copy(file)?
        };
        Ok(Self { content })
    }

    /// Whether the file is mapped; otherwise its bytes are a copy in memory.
    pub fn is_mapped(&self) -> bool {
        matches!(self.content, FileBytes::Mapped(_))
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            FileBytes::Mapped(map) => map,
            FileBytes::Copied { words, length } => &bytemuck::cast_slice(words)[..*length],
        }
    }

    /// Returns the bytes `range` of the file as numbers; `None` if the range extends beyond the file or does not consist of aligned
    /// numbers.
    pub fn numbers<T: AnyBitPattern>(&self, range: Range<usize>) -> Option<&[T]> {
        bytemuck::try_cast_slice(self.bytes().get(range)?).ok()
    }
}

/// Makes a file of `user` read-only, then returns whether nobody may write to it.
fn seal(file: &File, user: u32) -> std::io::Result<bool> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if metadata.uid() == user && !metadata.permissions().readonly() {
        let mut permissions = metadata.permissions();
        permissions.set_readonly(true);
        // If this fails, for example on a read-only file system, the check below sees the unchanged mode.
        let _ = file.set_permissions(permissions);
    }
    let metadata = file.metadata()?;
    let closed_to = match metadata.uid() {
        0 if user != 0 => 0o022,
        owner if owner == user => 0o222,
        _ => return Ok(false),
    };
    Ok(metadata.permissions().mode() & closed_to == 0)
}

fn copy(file: &File) -> std::io::Result<FileBytes> {
    let length = usize::try_from(file.metadata()?.len())
        .map_err(|_| std::io::Error::from(ErrorKind::OutOfMemory))?;
    let mut words = AlignedWords::try_new(length.div_ceil(size_of::<u32>()))
        .ok_or_else(|| std::io::Error::from(ErrorKind::OutOfMemory))?;
    file.read_exact_at(&mut bytemuck::cast_slice_mut(&mut words)[..length], 0)?;
    Ok(FileBytes::Copied { words, length })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::path::PathBuf;

    use half::bf16;

    use super::*;

    fn written(name: &str, bytes: &[u8]) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("longsift-kernels-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("the temporary folder can be written");
        path
    }

    fn mapped(name: &str, bytes: &[u8]) -> MappedFile {
        let path = written(name, bytes);
        let map = MappedFile::open(&path).expect("the file was just written");
        std::fs::remove_file(&path).expect("the file exists");
        map
    }

    #[test]
    fn numbers_round_trip() {
        let numbers = [1.5_f32, -2.0, 3.25];
        let file = mapped("numbers", bytemuck::cast_slice(&numbers));
        assert_eq!(file.numbers::<f32>(4..12), Some(&numbers[1..]));
        let halves = [bf16::from_f32(0.5), bf16::from_f32(-7.0)];
        let wide = [7_u64, u64::MAX];
        let file = mapped("wide", bytemuck::cast_slice(&wide));
        assert_eq!(file.numbers::<u64>(8..16), Some(&wide[1..]));
        let file = mapped("halves", bytemuck::cast_slice(&halves));
        assert_eq!(file.numbers::<bf16>(0..4), Some(&halves[..]));
    }

    #[test]
    fn ranges_outside_the_file_or_off_alignment_are_refused() {
        let file = mapped("ranges", &[0; 16]);
        assert_eq!(file.numbers::<f32>(8..20), None);
        assert_eq!(file.numbers::<f32>(2..6), None);
        assert_eq!(file.numbers::<bf16>(0..3), None);
        assert_eq!(file.numbers::<f32>(Range { start: 8, end: 4 }), None);
        assert_eq!(file.numbers::<f32>(8..16), Some(&[0.0; 2][..]));
    }

    #[test]
    fn empty_files_are_valid_and_missing_ones_are_errors() {
        assert!(mapped("empty", &[]).bytes().is_empty());
        assert!(MappedFile::open(Path::new("no/such/file")).is_err());
    }
    #[test]
    fn a_file_of_this_user_is_made_read_only_and_mapped() {
        let path = written("sealed", &[1; 8]);
        std::fs::set_permissions(&path, Permissions::from_mode(0o666))
            .expect("this user owns the file");
        let file = MappedFile::open(&path).expect("the file was just written");
        let mode = std::fs::metadata(&path).expect("the file exists").permissions().mode();
        assert!(file.is_mapped() && mode & 0o777 == 0o444, "{mode:o}");
        std::fs::remove_file(&path).expect("the file exists");
    }

    #[test]
    fn files_of_other_users_are_copied() {
        let user = rustix::process::geteuid().as_raw();
        let path = written("foreign", bytemuck::cast_slice(&[1.5_f32, -2.0, 3.25]));
        std::fs::set_permissions(&path, Permissions::from_mode(0o666))
            .expect("this user owns the file");
        let file = MappedFile::open_as(&path, user + 1).expect("the file was just written");
        assert!(!file.is_mapped());
        std::fs::write(&path, [0; 4]).expect("the file is still writable");
        assert_eq!(file.numbers::<f32>(0..12), Some(&[1.5, -2.0, 3.25][..]));
        assert_eq!(file.bytes().len(), 12);
        std::fs::remove_file(&path).expect("the file exists");
    }

    #[test]
    fn special_files_are_refused_and_keep_their_mode() {
        let folder = std::env::temp_dir().join(format!("longsift-folder-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("the temporary folder can be written");
        let mode = || std::fs::metadata(&folder).expect("the file exists").permissions().mode();
        let before = mode();
        let refused = MappedFile::open(&folder).err().expect("a folder has no bytes");
        assert_eq!((refused.to_string().as_str(), mode()), ("it is not a regular file", before));
        std::fs::remove_dir(&folder).expect("the folder exists");
    }
}
