//! One line of the header of a file of weights: a tensor's type, shape and place.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use super::forms::BlockType;

/// The type of a stored tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredType {
    /// Numbers one after the other.
    Numbers(Dtype),
    /// Blocks of codes with scales among them (GGUF).
    Blocks(BlockType),
    /// Another type of GGUF, by its number: no one can say how many bytes it takes.
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

/// One tensor's line in the header of its file. The header was checked: the bytes are those of the shape and type, and
/// they lie in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dtype: StoredType,
    pub(crate) shape: Vec<u64>,
    /// From the start of the file.
    pub(crate) bytes: Range<u64>,
}

impl Entry {
    /// How many bytes the tensor has.
    pub(crate) fn byte_length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}
