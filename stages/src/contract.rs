//! Requirements of a stage, and the types that stages and the engine share.

pub mod compute;
pub mod decimal;
pub mod distance;
pub mod file_stamp;
pub mod forward;
pub mod location;
pub mod measure;
pub mod signature;
pub mod statistics;

use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

pub use decimal::Decimal;
pub use distance::FarDistance;
pub use file_stamp::FileStamp;
pub use forward::{ForwardRequest, ForwardStatistics, LayerAttention, LayersRequest};
pub use location::{Address, Location, Scheme};
pub use measure::{
    AttentionRequest, Evidence, Measure, Needs, Passages, Request, RowError, Window, WindowSample,
};
pub use signature::{HTML_PAGE, SIGNATURE_BYTES, Signature};
pub use statistics::{Column, Kind, Merge, Orientation, StatisticValues, Value};

/// Constraint that the settings of a stage violate and a JSON schema cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// Path of the setting inside the stage: `terms.1.statistic`; empty for the stage itself.
    pub setting: String,
    pub message: String,
    pub hint: String,
}

impl BrokenRule {
    pub fn new(
        setting: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { setting: setting.into(), message: message.into(), hint: hint.into() }
    }
}

/// Opens a regular file for reading; refuses files such as pipes, whose reads would block or never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<(Metadata, File)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    let file = File::open(path)?;
    Ok((file.metadata()?, file))
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns the SHA-256 in lower-case hexadecimal.
pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

/// Encodes `bytes` as lower-case hexadecimal, two digits per byte.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
