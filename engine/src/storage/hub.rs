//! Hugging Face hub: `model: hf://owner/name@commit`, `input: hf://datasets/owner/name@commit/path`.
//!
//! Only the byte ranges of a checkpoint's layer 0 are fetched. They become a small model folder in the cache, so that
//! model readers need only folders:
//!
//! ```text
//! <cache_folder>/hub/models--owner--name/
//!   lock                          one process fetches at a time
//!   refs/<branch>                 commit of a branch when it was last requested
//!   <commit>-<tensors>/           config.json, tokenizer.json, the slices of the weights, slice.json
//! <cache_folder>/hub/datasets--owner--name/
//!   refs/<branch>
//!   <commit>-list.json            list of its files
//! ```
//!
//! The files of a data set are read by ranges and not cached. Commits in the cache of the hub's own libraries are used
//! from there. Without the feature `cloud`, or with `--offline`, only these commits and earlier fetches are available.

pub(crate) mod home;
#[cfg(feature = "cloud")]
pub(crate) mod ranges;
pub(crate) mod reference;
#[cfg(feature = "cloud")]
pub(crate) mod requests;
pub(crate) mod tree;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longsift_stages::model::ModelProblem;

#[cfg(feature = "cloud")]
use super::{atomic, files, marked};
use crate::base::stop::Stop;
use home::{Home, short_text};
use reference::{HubReference, RepositoryKind, is_commit};

/// Requests that a command may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    #[default]
    Full,
    /// Requests for the input, but not for models and tokenizers.
    InputOnly,
    /// No requests to the hub, and none for models and tokenizers of stores.
    Offline,
}

#[derive(Clone, Debug, Default)]
pub struct HubOptions {
    pub network: Network,
    /// Recorded commits by reference: see [`Hub::pins`].
    pub pins: BTreeMap<String, String>,
    #[cfg_attr(
        not(feature = "cloud"),
        expect(dead_code, reason = "only requests to the hub can be stopped")
    )]
    pub stop: Stop,
}

pub struct Hub {
    pub(crate) home: Home,
    root: PathBuf,
    options: HubOptions,
    used: RefCell<BTreeMap<String, String>>,
}

impl Hub {
    pub fn new(cache_folder: &Path, options: HubOptions) -> Self {
        let home = Home::from_environment();
        Self { home, root: cache_folder.join("hub"), options, used: RefCell::default() }
    }

    /// Returns the commits of references that are not commits, for the pipeline lock.
    pub fn pins(&self) -> BTreeMap<String, String> {
        self.used.borrow().clone()
    }

    /// Returns the commit of a reference, the same at every call, and records it unless the reference is a commit.
    pub(crate) fn pinned(&self, reference: &HubReference) -> Result<String, ModelProblem> {
        if let Some(commit) = self.used.borrow().get(&reference.to_string()) {
            return Ok(commit.clone());
        }
        let commit = self.commit(reference)?;
        if !reference.is_commit() {
            self.used.borrow_mut().insert(reference.to_string(), commit.clone());
        }
        Ok(commit)
    }

    pub(crate) fn is_offline(&self) -> bool {
        cfg!(not(feature = "cloud"))
            || self.options.network == Network::Offline
            || self.home.offline
    }

    /// Whether models are not fetched.
    pub(crate) fn has_local_models(&self) -> bool {
        self.is_offline() || self.options.network == Network::InputOnly
    }

    pub(crate) fn repository(&self, model: &HubReference) -> PathBuf {
        self.root.join(model.folder_name())
    }

    /// Returns the commit of a reference: the reference itself, the recorded one, else the hub's current one.
    fn commit(&self, model: &HubReference) -> Result<String, ModelProblem> {
        if model.is_commit() {
            return Ok(model.revision.clone());
        }
        let pinned = self.options.pins.get(&model.to_string()).filter(|commit| is_commit(commit));
        if let Some(commit) = pinned {
            tracing::info!(
                "`{model}` is read at commit {commit}, recorded when the run began; `--fresh` uses the current one"
            );
            return Ok(commit.clone());
        }
        #[cfg(feature = "cloud")]
        if !self.is_offline() {
            return self.request_commit(model);
        }
        let ours = short_text(&self.repository(model).join("refs").join(&model.revision))
            .filter(|commit| is_commit(commit));
        let theirs = self.home.commit_of(model);
        if let (Some(ours), Some(theirs)) = (&ours, &theirs)
            && ours != theirs
        {
            tracing::warn!(
                "`{model}` is read at commit {ours}, recorded when longsift last requested it; the cache of the hub's libraries has {theirs}: write `@{theirs}` to use that"
            );
        }
        ours.or(theirs).ok_or_else(|| self.absent(model, &model.revision))
    }

    fn why_absent(&self) -> &'static str {
        if self.options.network == Network::Offline {
            "`--offline` prevents fetching it"
        } else if self.home.offline {
            "HF_HUB_OFFLINE prevents fetching it"
        } else if cfg!(feature = "cloud") && self.options.network == Network::InputOnly {
            "this command fetches no models"
        } else {
            "this build has no access to the hub"
        }
    }

    /// Returns the error for something that is not on this machine and will not be fetched.
    pub(crate) fn absent(&self, reference: &HubReference, revision: &str) -> ModelProblem {
        let download = reference.at_commit(revision).download_command();
        let hint = match (cfg!(feature = "cloud"), reference.kind) {
            (true, RepositoryKind::Model) => {
                "run once with the network, or set HF_HOME to a cache that contains it".to_owned()
            }
            (true, RepositoryKind::Dataset) => format!("fetch it with `{download}`"),
            (false, _) => format!("build with `--features cloud`, or fetch it with `{download}`"),
        };
        let message = format!("`{reference}` is not on this machine, and {}", self.why_absent());
        ModelProblem::settings(message).with_hint(hint)
    }

    /// Requests the commit of a branch or tag from the hub, and caches it.
    #[cfg(feature = "cloud")]
    fn request_commit(&self, reference: &HubReference) -> Result<String, ModelProblem> {
        let commit = match reference.kind {
            RepositoryKind::Model => self.request_model_commit(reference)?,
            RepositoryKind::Dataset => self.request_dataset_commit(reference)?,
        };
        let path = self.repository(reference).join("refs").join(&reference.revision);
        let folder = path.parent().expect("a file lies in a folder");
        marked::create_folder(&self.repository(reference))?;
        files::create_folder(folder)?;
        atomic::write_atomic(&path, commit.as_bytes())?;
        Ok(commit)
    }
}
