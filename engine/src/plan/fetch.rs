//! Fetches remote models and tokenizers: `hf://owner/name@commit`, `s3://bucket/folder`, `https://host/folder`.
//!
//! Only the byte ranges of a checkpoint's layer 0 are fetched. They become a small model folder in the cache, so that
//! model readers need only folders. Commits of the hub never change ([`crate::storage::hub`]); a folder of a store may,
//! see `stores.rs`.

#[cfg(feature = "cloud")]
pub(crate) mod download;
#[cfg(feature = "cloud")]
pub(crate) mod folder;
#[cfg(feature = "cloud")]
pub(crate) mod slice;
#[cfg(feature = "cloud")]
pub(crate) mod source;
pub(crate) mod stores;

use std::path::{Path, PathBuf};

use longsift_stages::contract::{Address, Location, Scheme};
use longsift_stages::model::ModelProblem;

use crate::base::error::Failure;
#[cfg(feature = "cloud")]
use crate::base::secrets;
#[cfg(feature = "cloud")]
use crate::base::stop::Stop;
use crate::dataset::input::Dataset;
use crate::dataset::input_file::ReadSettings;
use crate::storage::files;
use crate::storage::hub::reference::HubReference;
use crate::storage::hub::{Hub, HubOptions, Network};
use stores::{FetchKind, folder_name, is_as_fetched, local_copy};

/// Opens an input with the default settings.
pub fn open_dataset(input: &str) -> Result<Dataset, Failure> {
    let address = Address::parse(input).filter(|address| address.scheme == Scheme::Hub);
    let Some(address) = address else { return Ok(Dataset::open(Path::new(input))?) };
    let hub = Hub::new(&files::user_cache_folder()?, HubOptions::default());
    Ok(Dataset::open_in_hub(&hub.dataset(&address.to_string())?, &ReadSettings::default())?)
}

pub struct RemoteModels {
    /// Hub client, also used for data sets.
    pub hub: Hub,
    /// Folder of the models of stores.
    stores: PathBuf,
    network: Network,
    #[cfg(feature = "cloud")]
    stop: Stop,
}

impl RemoteModels {
    pub fn new(cache_folder: &Path, options: HubOptions) -> Self {
        Self {
            stores: cache_folder.join("stores"),
            network: options.network,
            #[cfg(feature = "cloud")]
            stop: options.stop.clone(),
            hub: Hub::new(cache_folder, options),
        }
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
            Location::Address(address) => self.locate_in_store(&address.to_string(), wanted),
        }
    }

    fn locate_in_store(
        &self,
        address: &str,
        wanted: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        let address = address.trim_end_matches('/');
        let address = match wanted {
            FetchKind::Tokenizer => folder_of_tokenizer(address),
            FetchKind::Model => address,
        };
        let parent = self.stores.join(folder_name(address));
        #[cfg(feature = "cloud")]
        if self.network == Network::Full {
            return self.current(address, &parent, wanted);
        }
        match local_copy(&parent, wanted) {
            Some((folder, _)) => Ok(folder),
            None => Err(vec![self.absent(address)]),
        }
    }

    /// Returns the error for a copy that does not exist and will not be fetched.
    fn absent(&self, address: &str) -> ModelProblem {
        let (why, hint) = match self.network {
            Network::Offline => ("`--offline` prevents fetching it", "run once with the network"),
            Network::InputOnly => {
                ("this command fetches no models", "fetch it with `longsift plan`")
            }
            Network::Full => {
                let hint = "build with `--features cloud`, or download it";
                ("this build has no access to stores", hint)
            }
        };
        ModelProblem::settings(format!("`{address}` is not on this machine, and {why}"))
            .with_hint(hint)
    }
}

/// Returns the folder of a tokenizer, which may be named by its file. The secret parts of its address are those of the file.
fn folder_of_tokenizer(address: &str) -> &str {
    let Some(folder) = address.strip_suffix("/tokenizer.json") else { return address };
    #[cfg(feature = "cloud")]
    if let secrets = secrets::recall(address)
        && !secrets.is_empty()
    {
        secrets::remember(folder, secrets);
    }
    folder
}

impl Hub {
    /// Returns the folder with the requested part of the model at `path`, fetching it if necessary.
    fn locate(&self, path: &str, wanted: FetchKind) -> Result<PathBuf, Vec<ModelProblem>> {
        let model = HubReference::parse(path).map_err(|why| vec![ModelProblem::settings(why)])?;
        let commit = self.pinned(&model).map_err(|problem| vec![problem])?;
        match self.find_local(&model, &commit, wanted) {
            Some(folder) => Ok(folder),
            #[cfg(feature = "cloud")]
            None if !self.has_local_models() => self.fetch(&model, &commit, wanted),
            None => Err(vec![self.absent(&model, &commit)]),
        }
    }

    fn find_local(&self, model: &HubReference, commit: &str, wanted: FetchKind) -> Option<PathBuf> {
        // Other programs fetch only the files that they use.
        let missing = ["tokenizer.json", "tokenizer_config.json"]
            .into_iter()
            .find(|file| !self.home.knows(model, commit, file));
        let theirs = self.home.snapshot(model, commit);
        let (complete, partial) = if missing.is_none() { (theirs, None) } else { (None, theirs) };
        let partial = partial.filter(|_| self.has_local_models());
        let ours = files::list_if_present(&self.repository(model)).unwrap_or_default();
        let ours = ours.into_iter().filter(|folder| {
            folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(commit))
        });
        let ours = ours.filter(|folder| is_as_fetched(folder));
        let found = complete.into_iter().chain(ours).chain(partial.clone());
        let found = found.into_iter().find(|folder| wanted.is_present_in(folder));
        if let Some(file) = missing.filter(|_| found.is_some() && found == partial) {
            tracing::warn!(
                "the copy of `{model}` in the cache of the hub's libraries has no `{file}`, and it is not known whether the hub has one"
            );
        }
        found
    }
}
