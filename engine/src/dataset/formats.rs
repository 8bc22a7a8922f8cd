//! The formats of input files, one file each: how a file's row groups become batches. What they have in common is `decode`.

pub(super) mod arrow_ipc;
pub(crate) mod compression;
pub mod decode;
mod fits;
pub(super) mod form;
pub(super) mod format;
pub(super) mod kept;
mod line_reader;
pub(super) mod lines;
pub(super) mod parquet;
pub(super) mod shape;
pub(super) mod survey;
pub mod type_names;
