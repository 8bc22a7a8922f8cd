//! Models and tokenizers that lie elsewhere: `hf://owner/name@commit`, `s3://bucket/folder`, `https://host/folder`.
//!
//! Of a checkpoint only the byte ranges of layer 0 are fetched. They become a small model folder in the cache, and what
//! reads models sees nothing but a folder. The hub's commits never change ([`crate::storage::hub`]); a store's folder may, see
//! `stores.rs`.

#[cfg(feature = "cloud")]
pub(crate) mod bucket;
#[cfg(feature = "cloud")]
pub(crate) mod folder;
pub(crate) mod hub;
pub(crate) mod kind;
#[cfg(feature = "cloud")]
pub(crate) mod slice;
pub(crate) mod stores;
#[cfg(feature = "cloud")]
pub(crate) mod stores_fetch;
#[cfg(feature = "cloud")]
pub(crate) mod web;

use std::path::{Path, PathBuf};

use longsift_stages::contract::{Address, Scheme};
use longsift_stages::model::ModelProblem;

use crate::storage::hub::{Hub, HubOptions};
use kind::FetchKind;
use stores::FetchedModels;

/// Where models and tokenizers that lie elsewhere become folders of this machine.
pub struct RemoteModels {
    /// The hub, which has data sets as well.
    pub hub: Hub,
    stores: FetchedModels,
}

impl RemoteModels {
    /// What is fetched goes below `cache_folder`.
    pub fn new(cache_folder: &Path, options: HubOptions) -> Self {
        let stores =
            FetchedModels::new(cache_folder.join("stores"), options.offline, options.stop.clone());
        Self { hub: Hub::new(cache_folder, options), stores }
    }

    /// The model folder that an address means, fetched if need be.
    ///
    /// # Errors
    /// All problems: an address that is none, a model that is not there or that this program cannot use, a network that
    /// does not answer.
    pub fn model(&self, address: &Address) -> Result<PathBuf, Vec<ModelProblem>> {
        self.locate(address, FetchKind::Model)
    }

    /// The folder with the tokenizer that an address means, fetched if need be.
    ///
    /// # Errors
    /// As for a model.
    pub fn tokenizer(&self, address: &Address) -> Result<PathBuf, Vec<ModelProblem>> {
        self.locate(address, FetchKind::Tokenizer)
    }

    fn locate(&self, address: &Address, wanted: FetchKind) -> Result<PathBuf, Vec<ModelProblem>> {
        match address.scheme {
            Scheme::Hub => self.hub.locate(&address.to_string(), wanted),
            _ => self.stores.locate(&address.to_string(), wanted),
        }
    }
}
