//! The Hugging Face hub: `model: hf://owner/name@commit`, `input: hf://datasets/owner/name@commit/path`.
//!
//! Of a model's checkpoint only the byte ranges of layer 0 are fetched. They become a small model folder in the cache, and
//! what reads models sees nothing but a folder:
//!
//! ```text
//! <cache_folder>/hub/models--owner--name/
//!   lock                          one process fetches at a time
//!   refs/<branch>                 the commit that a branch had when it was last looked up
//!   <commit>-<tensors>/           config.json, tokenizer.json, the slices of the weights, slice.json
//! <cache_folder>/hub/datasets--owner--name/
//!   refs/<branch>
//!   <commit>.json                 the list of its files
//! ```
//!
//! The files of a data set are read by ranges, and nothing of them is kept. A commit that the hub's own libraries have fetched whole is used where it lies. Without the feature `cloud`, and with
//! `--offline`, that and what was fetched before is all there is.

#[cfg(feature = "cloud")]
pub(crate) mod commits;
pub(crate) mod home;
#[cfg(feature = "cloud")]
pub(crate) mod listing;
#[cfg(feature = "cloud")]
pub(crate) mod ranges;
pub(crate) mod reference;
pub(crate) mod tree;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longsift_stages::model::ModelProblem;

#[cfg(feature = "cloud")]
use super::{atomic, files, marked};
use crate::base::stop::Stop;
use home::{Home, short_text};
use reference::{Kind, Reference, is_commit};

/// What a command says about the network.
#[derive(Clone, Debug, Default)]
pub struct HubOptions {
    /// The network is not used.
    pub offline: bool,
    /// Commits that references have meant before, by reference: see [`Hub::pins`].
    pub pins: BTreeMap<String, String>,
    /// Ends a download.
    pub stop: Stop,
}

/// What a pipeline names of the hub.
pub struct Hub {
    pub(crate) home: Home,
    /// The folder of all repositories.
    root: PathBuf,
    options: HubOptions,
    used: RefCell<BTreeMap<String, String>>,
}

impl Hub {
    /// The hub as the environment describes it; what is fetched goes below `cache_folder`.
    pub fn new(cache_folder: &Path, options: HubOptions) -> Self {
        let home = Home::from_environment();
        Self { home, root: cache_folder.join("hub"), options, used: RefCell::default() }
    }

    /// The commits that the references meant which are no commits themselves: what a lock remembers.
    pub fn pins(&self) -> BTreeMap<String, String> {
        self.used.borrow().clone()
    }

    /// The commit that a reference means, noted where it is none itself.
    pub(crate) fn pinned(&self, reference: &Reference) -> Result<String, ModelProblem> {
        let commit = self.commit(reference)?;
        if !reference.is_commit() {
            self.used.borrow_mut().insert(reference.to_string(), commit.clone());
        }
        Ok(commit)
    }

    pub(crate) fn is_offline(&self) -> bool {
        self.options.offline || self.home.offline
    }

    /// Where a repository is kept.
    pub(crate) fn repository(&self, model: &Reference) -> PathBuf {
        self.root.join(model.folder_name())
    }

    /// The commit that a reference means: itself, the one it meant before to this pipeline, else what the hub says now.
    fn commit(&self, model: &Reference) -> Result<String, ModelProblem> {
        if model.is_commit() {
            return Ok(model.revision.clone());
        }
        let pinned = self.options.pins.get(&model.to_string()).filter(|commit| is_commit(commit));
        if let Some(commit) = pinned {
            return Ok(commit.clone());
        }
        if !self.is_offline() && cfg!(feature = "cloud") {
            return self.ask_commit(model);
        }
        let ours = short_text(&self.repository(model).join("refs").join(&model.revision));
        ours.filter(|commit| is_commit(commit))
            .or_else(|| self.home.commit_of(model))
            .ok_or_else(|| self.absent(model, &model.revision))
    }

    /// Why nothing is fetched.
    fn why_absent(&self) -> &'static str {
        if self.options.offline {
            "`--offline` keeps it from being fetched"
        } else if self.home.offline {
            "HF_HUB_OFFLINE keeps it from being fetched"
        } else {
            "this build has no access to the hub"
        }
    }

    /// What is not here and will not be fetched.
    pub(crate) fn absent(&self, reference: &Reference, revision: &str) -> ModelProblem {
        let download = reference.at(revision).download_command();
        let hint = match (cfg!(feature = "cloud"), reference.kind) {
            (true, Kind::Model) => {
                "run once with the network, or with the HF_HOME that has it".to_owned()
            }
            (true, Kind::Dataset) => format!("fetch it with `{download}`"),
            (false, _) => format!("build with `--features cloud`, or fetch it with `{download}`"),
        };
        let message = format!("`{reference}` is not on this machine, and {}", self.why_absent());
        ModelProblem::settings(message).with_hint(hint)
    }

    /// Asks the hub which commit a branch or tag has, and remembers it.
    #[cfg(feature = "cloud")]
    fn ask_commit(&self, reference: &Reference) -> Result<String, ModelProblem> {
        let commit = match reference.kind {
            Kind::Model => self.ask_commit_of_model(reference)?,
            Kind::Dataset => self.ask_commit_of_dataset(reference)?,
        };
        let place = self.repository(reference).join("refs").join(&reference.revision);
        let folder = place.parent().expect("a file lies in a folder");
        marked::create_folder(&self.repository(reference))?;
        files::create_folder(folder)?;
        atomic::write_atomic(&place, commit.as_bytes())?;
        Ok(commit)
    }

    #[cfg(not(feature = "cloud"))]
    fn ask_commit(&self, model: &Reference) -> Result<String, ModelProblem> {
        Err(self.absent(model, &model.revision))
    }
}
