//! Storage formats of a matrix in a checkpoint: plain numbers, or packed codes with scales. Each is one file, which finds
//! the stored tensors of a matrix, checks their types and shapes against `config.json`, lists the bytes that some rows
//! need, and converts these to floats.

mod architecture;
mod awq;
mod bitsandbytes;
mod blocks;
mod find;
mod finder;
mod format;
mod gguf;
mod gptq;
mod method;
mod numbers;
mod packed_rows;
mod plain;
mod scaled;

pub(crate) use architecture::Architecture;
pub(crate) use blocks::BlockType;
pub(crate) use find::HEADS;
pub(crate) use finder::{Finder, LocatedTensor};
pub(crate) use method::{Method, read as method};
pub(crate) use numbers::floats;
