//! Parts of a remote folder that can be fetched.

use std::path::Path;

use longsift_stages::model::ModelFolder;

/// Part of a remote folder to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchKind {
    Model,
    Tokenizer,
}

impl FetchKind {
    pub(crate) fn is_present_in(self, folder: &Path) -> bool {
        match self {
            Self::Model => ModelFolder::open(folder, None).is_ok(),
            Self::Tokenizer => folder.join("tokenizer.json").is_file(),
        }
    }
}
