//! Settings for reading an input, except its path.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_schema::Fields;

use super::footer_cache::FooterCache;
use crate::spec::pipeline::{InputFormat, OnBadFile};

#[derive(Clone, Debug)]
pub struct ReadSettings {
    pub on_bad_file: OnBadFile,
    pub format: InputFormat,
    /// Columns of JSON lines; `None` to infer them from the first lines.
    pub columns: Option<Fields>,
    /// Maximum bytes of a line, a record batch or a decompressed page.
    pub max_part_bytes: u64,
    pub cache_folder: Option<PathBuf>,
    /// Footers cached by another process of the same job.
    pub footers: Option<Arc<FooterCache>>,
}

impl Default for ReadSettings {
    fn default() -> Self {
        Self {
            on_bad_file: OnBadFile::Fail,
            format: InputFormat::Auto,
            columns: None,
            max_part_bytes: 1 << 30,
            cache_folder: None,
            footers: None,
        }
    }
}
