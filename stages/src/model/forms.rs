//! The forms in which checkpoints keep a matrix: plain numbers, or packed codes with scales beside them.
//!
//! A form is one file: it finds the tensors that a matrix is stored as, checks their types and shapes against
//! `config.json`, says which of their bytes some rows are made of, and turns these into floats. The table builder sees
//! rows of floats and nothing else.

mod architecture;
mod awq;
mod bitsandbytes;
mod blocks;
mod find;
mod finder;
mod form;
mod gguf;
mod gptq;
mod method;
mod numbers;
mod packed_rows;
mod plain;
mod scaled;

pub(crate) use architecture::Architecture;
pub(crate) use blocks::BlockType;
pub(crate) use finder::{Finder, Found};
pub(crate) use form::Form;
pub(crate) use method::{Method, read as method};
pub(crate) use numbers::floats;
