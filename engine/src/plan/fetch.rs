//! Fetches remote models and tokenizers: `hf://owner/name@commit`, `s3://bucket/folder`, `https://host/folder`.
//!
//! Only the byte ranges of a checkpoint's layer 0 are fetched. They become a small model folder in the cache, so that
//! model readers need only folders. Commits of the hub never change ([`crate::storage::hub`]); a folder of a store may,
//! see `stores.rs`.

#[cfg(feature = "cloud")]
pub(crate) mod download;
#[cfg(feature = "cloud")]
pub(crate) mod folder;
pub(crate) mod hub;
#[cfg(feature = "cloud")]
pub(crate) mod slice;
#[cfg(feature = "cloud")]
pub(crate) mod source;
pub(crate) mod stores;

use std::path::{Path, PathBuf};

use longsift_stages::contract::{Location, Scheme};
use longsift_stages::model::ModelProblem;

use crate::storage::hub::{Hub, HubOptions};
use stores::{FetchKind, FetchedModels};

pub struct RemoteModels {
    /// Hub client, also used for data sets.
    pub hub: Hub,
    stores: FetchedModels,
}

impl RemoteModels {
    pub fn new(cache_folder: &Path, options: HubOptions) -> Self {
        let stores =
            FetchedModels::new(cache_folder.join("stores"), options.offline, options.stop.clone());
        Self { hub: Hub::new(cache_folder, options), stores }
    }

    /// Returns the local path of a model or a tokenizer. Fetches it from an address if necessary.
    pub(crate) fn locate(
        &self,
        location: Location,
        wanted: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        match location {
            Location::Path(path) => Ok(path),
            Location::Address(address) if address.scheme == Scheme::Hub => {
                self.hub.locate(&address.to_string(), wanted)
            }
            Location::Address(address) => self.stores.locate(&address.to_string(), wanted),
        }
    }
}
