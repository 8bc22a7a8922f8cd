//! Models and tokenizers that lie elsewhere: `hf://owner/name@commit`, `s3://bucket/folder`, `https://host/folder`.
//!
//! Of a checkpoint only the byte ranges of layer 0 are fetched. They become a small model folder in the cache, and what
//! reads models sees nothing but a folder. The hub's commits never change ([`crate::hub`]); a store's folder may, see
//! `stores.rs`.

#[cfg(feature = "cloud")]
pub(crate) mod bucket;
#[cfg(feature = "cloud")]
pub(crate) mod folder;
#[cfg(feature = "cloud")]
pub(crate) mod slice;
mod stores;
#[cfg(feature = "cloud")]
pub(crate) mod web;

use std::path::{Path, PathBuf};

use longsift_stages::model::{ModelFolder, ModelProblem};

use crate::files::FileError;
use crate::hub::{Hub, HubOptions, Reference};
use stores::Stores;

/// Where models and tokenizers that lie elsewhere become folders of this machine.
pub struct RemoteModels {
    /// The hub, which has data sets as well.
    pub hub: Hub,
    stores: Stores,
}

/// What of a folder elsewhere is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Model,
    Tokenizer,
}

impl Wanted {
    /// Whether a folder holds it.
    pub(crate) fn is_in(self, folder: &Path) -> bool {
        match self {
            Self::Model => ModelFolder::open(folder, None).is_ok(),
            Self::Tokenizer => folder.join("tokenizer.json").is_file(),
        }
    }
}

impl RemoteModels {
    /// What is fetched goes below `cache_folder`.
    pub fn new(cache_folder: &Path, options: HubOptions) -> Self {
        let stores =
            Stores::new(cache_folder.join("stores"), options.offline, options.stop.clone());
        Self { hub: Hub::new(cache_folder, options), stores }
    }

    /// Whether a path of a pipeline is an address.
    pub fn is(path: &str) -> bool {
        path.contains("://")
    }

    /// The model folder that an address means, fetched if need be.
    ///
    /// # Errors
    /// All problems: an address that is none, a model that is not there or that this program cannot use, a network that
    /// does not answer.
    pub fn model(&self, address: &str) -> Result<PathBuf, Vec<ModelProblem>> {
        self.locate(address, Wanted::Model)
    }

    /// The folder with the tokenizer that an address means, fetched if need be.
    ///
    /// # Errors
    /// As for a model.
    pub fn tokenizer(&self, address: &str) -> Result<PathBuf, Vec<ModelProblem>> {
        self.locate(address, Wanted::Tokenizer)
    }

    fn locate(&self, address: &str, wanted: Wanted) -> Result<PathBuf, Vec<ModelProblem>> {
        if Reference::is(address) {
            self.hub.locate(address, wanted)
        } else {
            self.stores.locate(address, wanted)
        }
    }
}

/// A file operation that failed.
#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by it")]
pub(crate) fn machine(error: FileError) -> ModelProblem {
    let hint = error.hint();
    let problem = ModelProblem::machine(error.to_string());
    match hint {
        Some(hint) => problem.with_hint(hint),
        None => problem,
    }
}
