//! Finds models of the hub on this machine.

use std::path::PathBuf;

use longsift_stages::model::ModelProblem;

use super::stores::FetchKind;
use crate::storage::files;
use crate::storage::hub::Hub;
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
            #[cfg(feature = "cloud")]
            None if !self.is_offline() => self.fetch(&model, &commit, wanted),
            None => Err(vec![self.absent(&model, &commit)]),
        }
    }

    pub(super) fn find_local(
        &self,
        model: &HubReference,
        commit: &str,
        wanted: FetchKind,
    ) -> Option<PathBuf> {
        let theirs = self.home.snapshot(model, commit).into_iter();
        let ours = files::list_if_present(&self.repository(model)).unwrap_or_default();
        let ours = ours.into_iter().filter(|folder| {
            folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(commit))
        });
        theirs.chain(ours).find(|folder| wanted.is_present_in(folder))
    }
}
