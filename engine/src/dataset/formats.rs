//! Input formats, one file each: how the row groups of a file become batches. `decode` holds what they share.

pub(super) mod arrow_ipc;
pub(crate) mod compression;
pub mod decode;
mod fits;
pub(super) mod format;
pub(super) mod line_format;
mod line_reader;
pub(super) mod lines;
pub(super) mod parquet;
pub(super) mod shape;
pub(super) mod survey;
pub(super) mod survey_cache;
pub mod type_names;
