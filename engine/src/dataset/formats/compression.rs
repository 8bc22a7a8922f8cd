//! Whole-file compression: a stream of the bytes inside.

use std::io::{self, BufRead, BufReader, Read};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// The binary logarithm of the largest window of a Zstandard frame, which is held in memory: 2 GiB, as `zstd --long=31` writes.
const MAX_ZSTD_WINDOW_LOG: u32 = 31;

/// How a file as a whole is compressed, by the end of its name, in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dataset) enum Compression {
    /// Not at all.
    None,
    /// `.gz`: one or more members.
    Gzip,
    /// `.zst`: one or more frames.
    Zstd,
}

impl Compression {
    /// That of a file of this name, and the name without its ending.
    pub(in crate::dataset) fn of(name: &str) -> (Self, &str) {
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

    /// What is inside of `bytes`.
    pub(super) fn reader(
        self,
        bytes: impl Read + Send + 'static,
    ) -> io::Result<Box<dyn BufRead + Send>> {
        let bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
        Ok(match self {
            Self::None => Box::new(bytes),
            Self::Gzip => {
                let inside = Members(Some(flate2::bufread::GzDecoder::new(bytes)));
                Box::new(BufReader::with_capacity(BUFFER_BYTES, inside))
            }
            Self::Zstd => {
                let mut inside = zstd::stream::read::Decoder::with_buffer(bytes)?;
                inside.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, inside))
            }
        })
    }
}

/// The members of a gzip file, one after the other. Zeros between and behind them are padding, as of tapes and of stores that
/// round sizes up; `gzip` passes over them as well.
struct Members<R>(Option<flate2::bufread::GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.0 else { return Ok(0) };
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let mut rest = self.0.take().expect("it was just read").into_inner();
            if !pass_zeros(&mut rest)? {
                self.0 = Some(flate2::bufread::GzDecoder::new(rest));
            }
        }
    }
}

/// Passes over zeros; `true` at the end.
fn pass_zeros(bytes: &mut impl BufRead) -> io::Result<bool> {
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

    fn inside(compression: Compression, bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        compression.reader(io::Cursor::new(bytes))?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn zeros_around_gzip_members_are_padding_and_anything_else_is_not() {
        let (first, second) = (gzipped("one"), gzipped("two"));
        let bytes = |parts: &[&[u8]]| parts.concat();
        let of = |parts: &[&[u8]]| inside(Compression::Gzip, bytes(parts));
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
        assert_eq!(inside(Compression::Zstd, bytes).unwrap(), "text");
    }
}
