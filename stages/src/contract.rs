//! What it takes to be a stage, and the types that stages and the engine share.

pub mod compute;
pub mod decimal;

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

pub use decimal::Decimal;

/// What all stages have in common: a name, and what they need from and give to their neighbours.
///
/// A pipeline is in order when everything a stage reads is written by an earlier stage or is a column of the
/// input; the engine checks it before the run.
pub trait Stage {
    /// The value of the `stage` key: `first-layer-attention`.
    fn name(&self) -> &'static str;
    /// What earlier stages must have written: `windows`, `layer-zero table`.
    fn reads(&self) -> &'static [&'static str];
    /// What this stage adds for later ones.
    fn writes(&self) -> &'static [&'static str];
}

/// Opens a file for reading unless it is something that would block or never end, such as a pipe.
pub(crate) fn open_regular(path: &Path) -> io::Result<(Metadata, File)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    let file = File::open(path)?;
    Ok((file.metadata()?, file))
}

/// Two lower-case hexadecimal digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
