//! How an input is read: what a pipeline says of it besides the path.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_schema::Fields;

use super::handed::HandedFooters;
use crate::spec::pipeline::{InputFormat, OnBadFile};

/// How an input is read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// What a damaged file does.
    pub on_bad_file: OnBadFile,
    /// What the files are.
    pub format: InputFormat,
    /// The columns of lines of JSON; from the first lines where `None`.
    pub columns: Option<Fields>,
    /// Bytes of the largest line, record batch or decompressed page that is read.
    pub max_part_bytes: u64,
    /// The folder where it is kept what was counted.
    pub cache_folder: Option<PathBuf>,
    /// What another process of the same job has read already.
    pub footers: Option<Arc<HandedFooters>>,
}

impl Default for Reading {
    fn default() -> Self {
        let (on_bad_file, format) = (OnBadFile::Fail, InputFormat::Auto);
        Self {
            on_bad_file,
            format,
            columns: None,
            max_part_bytes: 1 << 30,
            cache_folder: None,
            footers: None,
        }
    }
}
