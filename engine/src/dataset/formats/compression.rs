//! Decompresses whole files.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::text;

const BUFFER_BYTES: usize = 256 << 10;

/// Binary logarithm of the largest window of a Zstandard frame: 2 GiB, as written by `zstd --long=31`.
const MAX_ZSTD_WINDOW_LOG: u32 = 31;

/// Largest accepted window in bytes. It is held in memory while a file is read and is part of `memory_limit_bytes`.
static MAX_WINDOW_BYTES: AtomicU64 = AtomicU64::new(1 << MAX_ZSTD_WINDOW_LOG);

/// Limits the window of a file to half of `memory_limit_bytes`.
pub(crate) fn limit_windows(memory_limit_bytes: u64) {
    MAX_WINDOW_BYTES.store(memory_limit_bytes / 2, Ordering::Relaxed);
}

/// Compression of a whole file, by its file name extension in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileCompression {
    None,
    /// `.gz`: one or more members.
    Gzip,
    /// `.zst`: one or more frames.
    Zstd,
}

impl FileCompression {
    /// Returns the compression of a file by its name, and the name without that extension.
    pub(crate) fn from_name(name: &str) -> (Self, &str) {
        for (ending, compression) in
            [(".gz", Self::Gzip), (".zst", Self::Zstd), (".zstd", Self::Zstd)]
        {
            let split =
                name.len().checked_sub(ending.len()).and_then(|at| name.split_at_checked(at));
            if let Some((name, _)) = split.filter(|(_, end)| end.eq_ignore_ascii_case(ending)) {
                return (compression, name);
            }
        }
        (Self::None, name)
    }

    pub(super) fn reader(
        self,
        bytes: impl Read + Send + 'static,
    ) -> io::Result<Box<dyn BufRead + Send>> {
        let mut bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
        if self != Self::None && bytes.fill_buf()?.is_empty() {
            let message = "the file is empty, even without a header";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        Ok(match self {
            Self::None => Box::new(bytes),
            Self::Gzip => {
                let inside = GzipMembers(Some(flate2::bufread::GzDecoder::new(bytes)));
                Box::new(BufReader::with_capacity(BUFFER_BYTES, inside))
            }
            Self::Zstd => {
                let max = MAX_WINDOW_BYTES.load(Ordering::Relaxed);
                let window = window_bytes(bytes.fill_buf()?).filter(|window| *window > max);
                if let Some(window) = window {
                    let message = format!(
                        "its zstd window of {} is more than half of `memory_limit_bytes`: set `memory_limit_bytes` to at least {}, or compress the file without `--long` and `--ultra`",
                        text::bytes(window),
                        window.saturating_mul(2)
                    );
                    return Err(io::Error::new(io::ErrorKind::OutOfMemory, message));
                }
                let mut inside = zstd::stream::read::Decoder::with_buffer(bytes)?;
                inside.window_log_max(max.max(1 << 10).ilog2().min(MAX_ZSTD_WINDOW_LOG))?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, inside))
            }
        })
    }
}

/// Returns the window size in a Zstandard frame header; `None` if no frame begins here.
fn window_bytes(frame: &[u8]) -> Option<u64> {
    let [0x28, 0xB5, 0x2F, 0xFD, descriptor, rest @ ..] = frame else { return None };
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let window = *rest.first()?;
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // The window is the content, whose length follows the dictionary id.
    let identifier = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (length, min) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let digits = rest.get(identifier..identifier + length)?.iter().rev();
    Some(digits.fold(0_u64, |content, digit| content << 8 | u64::from(*digit)) + min)
}

/// Reads the members of a gzip file in order. Zeros between and after them are padding, as on tapes and in stores that
/// round sizes up; `gzip` skips them as well.
struct GzipMembers<R>(Option<flate2::bufread::GzDecoder<R>>);

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.0 else { return Ok(0) };
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let mut rest = self.0.take().expect("it was just read").into_inner();
            if !skip_zeros(&mut rest)? {
                self.0 = Some(flate2::bufread::GzDecoder::new(rest));
            }
        }
    }
}

/// Skips zeros; returns `true` at the end of the file.
fn skip_zeros(bytes: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = bytes.fill_buf()?;
        let length = buffer.len();
        let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
        bytes.consume(zeros);
        if length == 0 || zeros < length {
            return Ok(length == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzipped(text: &str) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(text.as_bytes()).unwrap();
        writer.finish().unwrap()
    }

    fn inside(compression: FileCompression, bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        compression.reader(io::Cursor::new(bytes))?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn zeros_around_gzip_members_are_padding_and_anything_else_is_not() {
        let (first, second) = (gzipped("one"), gzipped("two"));
        let bytes = |parts: &[&[u8]]| parts.concat();
        let of = |parts: &[&[u8]]| inside(FileCompression::Gzip, bytes(parts));
        assert_eq!(of(&[&first, &[0; 512], &second, &vec![0; 300_000]]).unwrap(), "onetwo");
        assert_eq!(of(&[&first, &second]).unwrap(), "onetwo");
        assert!(of(&[&first, b"more"]).is_err());
        assert!(of(&[&first, &second[..second.len() - 4]]).is_err());
        assert!(of(&[&first[..8]]).is_err());
        assert!(of(&[&[]]).is_err());
    }

    #[test]
    fn a_zstandard_frame_with_a_long_window_is_read() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(28).unwrap();
        encoder.write_all(b"text").unwrap();
        let bytes = encoder.finish().unwrap();
        assert_eq!(window_bytes(&bytes), Some(1 << 28));
        assert_eq!(inside(FileCompression::Zstd, bytes).unwrap(), "text");
        for length in [0, 200, 300, 70_000] {
            let bytes = zstd::bulk::compress(&vec![7; length], 1).unwrap();
            assert_eq!(window_bytes(&bytes), Some(length as u64), "{length} in one segment");
        }
        assert_eq!(window_bytes(b"\x28\xB5\x2F"), None);
    }
}
