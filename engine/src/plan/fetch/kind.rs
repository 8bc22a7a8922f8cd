//! What of a folder elsewhere is fetched.

use std::path::Path;

use longsift_stages::model::ModelFolder;

/// What of a folder elsewhere is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchKind {
    Model,
    Tokenizer,
}

impl FetchKind {
    /// Whether a folder holds it.
    pub(crate) fn is_in(self, folder: &Path) -> bool {
        match self {
            Self::Model => ModelFolder::open(folder, None).is_ok(),
            Self::Tokenizer => folder.join("tokenizer.json").is_file(),
        }
    }
}
