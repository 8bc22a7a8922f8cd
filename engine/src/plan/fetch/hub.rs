//! Finds models of the hub on this machine or fetches them into the cache.

use std::path::PathBuf;
#[cfg(feature = "cloud")]
use std::rc::Rc;

use longsift_stages::model::ModelProblem;

#[cfg(feature = "cloud")]
use super::folder::PartialFolder;
#[cfg(feature = "cloud")]
use super::slice::{fetch_model, fetch_tokenizer};
use super::stores::FetchKind;
#[cfg(feature = "cloud")]
use super::web::WebFolder;
use crate::storage::files;
use crate::storage::hub::Hub;
#[cfg(feature = "cloud")]
use crate::storage::hub::commits::files_of;
use crate::storage::hub::reference::HubReference;

impl Hub {
    /// Returns the folder with the requested part of the model at `path`, fetching it if necessary.
    pub(super) fn locate(
        &self,
        path: &str,
        wanted: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        let model = HubReference::parse(path).map_err(|why| vec![ModelProblem::settings(why)])?;
        let commit = self.pinned(&model).map_err(|problem| vec![problem])?;
        match self.find_local(&model, &commit, wanted) {
            Some(folder) => Ok(folder),
            None if self.is_offline() => Err(vec![self.absent(&model, &commit)]),
            None => self.fetch(&model, &commit, wanted),
        }
    }

    /// Returns a local folder with the requested part of a commit.
    fn find_local(&self, model: &HubReference, commit: &str, wanted: FetchKind) -> Option<PathBuf> {
        let theirs = self.home.snapshot(model, commit).into_iter();
        let ours = files::list_if_present(&self.repository(model)).unwrap_or_default();
        let ours = ours.into_iter().filter(|folder| {
            folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(commit))
        });
        theirs.chain(ours).find(|folder| wanted.is_present_in(folder))
    }

    #[cfg(not(feature = "cloud"))]
    fn fetch(
        &self,
        model: &HubReference,
        commit: &str,
        _: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        Err(vec![self.absent(model, commit)])
    }
}

#[cfg(feature = "cloud")]
impl Hub {
    /// Fetches the requested part of a commit into the cache.
    fn fetch(
        &self,
        model: &HubReference,
        commit: &str,
        wanted: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        let one = |problem| vec![problem];
        let partial = PartialFolder::begin(&self.repository(model)).map_err(one)?;
        // Another process may have fetched it in the meantime.
        if let Some(folder) = self.find_local(model, commit, wanted) {
            return Ok(folder);
        }
        let source = Rc::new(self.source(model, commit).map_err(one)?);
        if wanted == FetchKind::Tokenizer {
            fetch_tokenizer(&*source, &partial)?;
            return partial.finish(&format!("{commit}-tokenizer")).map_err(one);
        }
        let fetched = fetch_model(&source, &partial)?;
        let name = model.at_commit(commit).to_string();
        partial.finish_slice(commit, &name, Some(&self.home.endpoint), &fetched).map_err(one)
    }

    /// Returns the files of a revision: those in the cache of the hub's own libraries, the others from the hub.
    fn source(&self, model: &HubReference, revision: &str) -> Result<WebFolder, ModelProblem> {
        let (client, endpoint) = self.client()?;
        let base = files_of(&endpoint, &model.at_commit(revision));
        let hint = "check the owner, the name and the revision; is it a model?";
        let mut source = WebFolder::new(model.to_string(), hint, client, base);
        source.whole = self.home.snapshot(model, revision);
        Ok(source)
    }
}
