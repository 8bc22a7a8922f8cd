//! A file as memory: how a cached layer-zero table is read without reading it.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use bytemuck::{AnyBitPattern, PodCastError};
use half::bf16;
use memmap2::Mmap;

/// Why a range of a mapped file is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The range leaves the file.
    #[error("bytes {start} to {end} lie outside a file of {length} bytes")]
    OutOfFile {
        /// First byte asked for.
        start: usize,
        /// One past the last byte asked for.
        end: usize,
        /// Bytes of the file.
        length: usize,
    },
    /// The range does not start on a multiple of the number's size, or does not hold whole numbers.
    #[error("bytes {start} to {end} are not aligned numbers of {width} bytes")]
    Alignment {
        /// First byte asked for.
        start: usize,
        /// One past the last byte asked for.
        end: usize,
        /// Bytes of one number.
        width: usize,
    },
}

/// A file mapped read-only; numbers in it are read in the machine's byte order.
///
/// The file must not be shortened or rewritten in place while it is mapped: a read beyond its new end stops the process
/// with a bus error. longsift maps only files that it wrote under another name and renamed, which nothing of its own
/// changes afterwards; replacing such a file by a rename leaves the mapped one whole.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole of `path`.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this value; that no one shortens or rewrites the file is the
        // condition stated on the type, which holds for files that were renamed into place.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// `range` (bytes of the file) as float32.
    pub fn f32_slice(&self, range: Range<usize>) -> Result<&[f32], MapError> {
        self.numbers(range)
    }

    /// `range` (bytes of the file) as bfloat16.
    pub fn bf16_slice(&self, range: Range<usize>) -> Result<&[bf16], MapError> {
        self.numbers(range)
    }

    fn numbers<T: AnyBitPattern>(&self, range: Range<usize>) -> Result<&[T], MapError> {
        let Range { start, end } = range;
        let bytes = self.bytes().get(range).ok_or(MapError::OutOfFile {
            start,
            end,
            length: self.bytes().len(),
        })?;
        bytemuck::try_cast_slice(bytes).map_err(|_: PodCastError| MapError::Alignment {
            start,
            end,
            width: size_of::<T>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(name: &str, bytes: &[u8]) -> MappedFile {
        let path =
            std::env::temp_dir().join(format!("longsift-kernels-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("the temporary folder can be written");
        let map = MappedFile::open(&path).expect("the file was just written");
        std::fs::remove_file(&path).expect("the file is there");
        map
    }

    #[test]
    fn numbers_come_back_as_written() {
        let numbers = [1.5_f32, -2.0, 3.25];
        let file = mapped("numbers", bytemuck::cast_slice(&numbers));
        assert_eq!(file.f32_slice(4..12), Ok(&numbers[1..]));
        let halves = [bf16::from_f32(0.5), bf16::from_f32(-7.0)];
        assert_eq!(
            mapped("halves", bytemuck::cast_slice(&halves)).bf16_slice(0..4),
            Ok(&halves[..])
        );
    }

    #[test]
    fn ranges_outside_the_file_or_off_alignment_are_refused() {
        let file = mapped("ranges", &[0; 16]);
        assert_eq!(
            file.f32_slice(8..20),
            Err(MapError::OutOfFile { start: 8, end: 20, length: 16 })
        );
        assert_eq!(file.f32_slice(2..6), Err(MapError::Alignment { start: 2, end: 6, width: 4 }));
        assert_eq!(file.bf16_slice(0..3), Err(MapError::Alignment { start: 0, end: 3, width: 2 }));
        let reversed = Range { start: 8, end: 4 };
        assert!(matches!(file.f32_slice(reversed), Err(MapError::OutOfFile { .. })));
    }

    #[test]
    fn an_empty_file_has_no_bytes_and_a_missing_one_is_an_error() {
        assert!(mapped("empty", &[]).bytes().is_empty());
        assert!(MappedFile::open(Path::new("no/such/file")).is_err());
    }
}
