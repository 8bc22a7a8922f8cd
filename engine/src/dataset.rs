//! Reads input files and writes Parquet: file discovery, the common schema, and decoding of rows. Independent of
//! windows, scores and runs.

pub(crate) mod discover;
pub mod documents;
pub(crate) mod footer;
pub(crate) mod footer_cache;
pub mod formats;
pub mod input;
pub mod input_file;
pub(crate) mod labels;
pub(crate) mod lost_row_groups;
pub(crate) mod messages;
pub(crate) mod metadata;
pub(crate) mod pages;
pub(crate) mod part;
pub(crate) mod part_lines;
pub(crate) mod part_tokens;
pub(crate) mod problem;
pub(crate) mod read;
pub(crate) mod row_bytes;
pub(crate) mod rows;
pub(crate) mod source;
pub(crate) mod table_format;
#[cfg(test)]
mod tests;
pub(crate) mod text;
pub(crate) mod thrift;
pub(crate) mod times;
pub(crate) mod types;
pub(crate) mod unify;
pub mod units;
pub mod walk;
