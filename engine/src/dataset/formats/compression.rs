//! Whole-file compression: a stream of the bytes inside.

use std::io::{BufRead, BufReader, Read};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// How a file as a whole is compressed, by the end of its name.
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
            if let Some(name) = name.strip_suffix(ending) {
                return (compression, name);
            }
        }
        (Self::None, name)
    }

    /// What is inside of `bytes`.
    pub(super) fn reader(
        self,
        bytes: impl Read + Send + 'static,
    ) -> std::io::Result<Box<dyn BufRead + Send>> {
        let bytes = BufReader::with_capacity(BUFFER_BYTES, bytes);
        Ok(match self {
            Self::None => Box::new(bytes),
            Self::Gzip => {
                let inside = flate2::bufread::MultiGzDecoder::new(bytes);
                Box::new(BufReader::with_capacity(BUFFER_BYTES, inside))
            }
            Self::Zstd => {
                let inside = zstd::stream::read::Decoder::with_buffer(bytes)?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, inside))
            }
        })
    }
}
