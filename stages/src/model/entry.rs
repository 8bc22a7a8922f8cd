//! One tensor in the header of a weights file: type, shape and location.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use super::formats::BlockType;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredType {
    /// A plain array of numbers.
    Numbers(Dtype),
    /// Blocks of codes with their scales (GGUF).
    Blocks(BlockType),
    /// A GGUF type that is not supported, by its number; its size in bytes is unknown.
    Unknown(u32),
}

impl fmt::Display for StoredType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(dtype) => dtype.fmt(formatter),
            Self::Blocks(blocks) => blocks.name().fmt(formatter),
            Self::Unknown(number) => write!(formatter, "{number} of GGUF"),
        }
    }
}

/// One tensor's entry in the header of its file, which has been checked against shape, type and file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorEntry {
    pub(crate) dtype: StoredType,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Range<u64>,
}

impl TensorEntry {
    pub(crate) fn byte_length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}
