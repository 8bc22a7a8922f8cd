//! Fetches models of the hub into the cache, and those of a store unless the local copy is up to date.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use longsift_stages::contract::Address;
use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::RemoteModels;
use super::folder::PartialFolder;
use super::slice::fetch;
use super::source::{FolderServer, ModelSource};
use super::stores::{FetchKind, VERSIONS, Versions, local_copy};
use crate::base::text;
use crate::storage::atomic;
use crate::storage::http::HttpClient;
use crate::storage::http::answers::ServerKind;
use crate::storage::hub::Hub;
use crate::storage::hub::reference::HubReference;
use crate::storage::hub::requests::files_of;
use crate::storage::web as web_files;

impl Hub {
    pub(super) fn fetch(
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
        let fetched = fetch(&source, &partial, wanted)?;
        let name = model.at_commit(commit).to_string();
        partial.finish(commit, &name, Some(&self.home.endpoint), fetched.as_ref()).map_err(one)
    }

    /// Returns the files of a revision: those in the cache of the hub's own libraries, the others from the hub.
    fn source(&self, model: &HubReference, revision: &str) -> Result<ModelSource, ModelProblem> {
        let (client, endpoint) = self.client()?;
        let server =
            FolderServer::Web(Rc::new(client), files_of(&endpoint, &model.at_commit(revision)));
        let hint = "check the owner, the name and the revision; is it a model?";
        let local = self.home.snapshot(model, revision);
        Ok(ModelSource::new(model.to_string(), hint, server, false, local))
    }
}

impl RemoteModels {
    /// Returns the folder with the current content of an address.
    pub(super) fn current(
        &self,
        address: &str,
        parent: &Path,
        wanted: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        let one = |problem| vec![problem];
        let now = self.source(address).map_err(one)?;
        if let Some(copy) = up_to_date_copy(&now, parent, wanted).map_err(one)? {
            return Ok(copy);
        }
        let partial = PartialFolder::begin(parent).map_err(one)?;
        // Another process may have fetched it in the meantime.
        if let Some(copy) = up_to_date_copy(&now, parent, wanted).map_err(one)? {
            return Ok(copy);
        }
        let source = Rc::new(self.source(address).map_err(one)?);
        let fetched = fetch(&source, &partial, wanted)?;
        let versions = source.seen();
        if let Some(file) = first_changed(&now, &versions).map_err(one)? {
            let message = format!("`{address}/{file}` changed while it was fetched");
            let problem = ModelProblem::checkpoint(message);
            return Err(one(problem.with_hint("run again after it has stopped changing")));
        }
        let json = serde_json::to_vec_pretty(&versions).expect("plain data");
        partial.write(VERSIONS, &json).map_err(one)?;
        let version = &text::sha256_hex(&json)[..12];
        let folder = partial.finish(version, address, None, fetched.as_ref()).map_err(one)?;
        let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
        atomic::write_atomic(&parent.join(wanted.pointer()), name)
            .map_err(|error| one(error.into()))?;
        Ok(folder)
    }

    fn source(&self, address: &str) -> Result<ModelSource, ModelProblem> {
        let server = if Address::parse(address).is_some_and(|address| address.scheme.is_web()) {
            let base = base(address)?;
            let client = HttpClient::new(None, ServerKind::WEB, self.stop.clone())?;
            FolderServer::Web(Rc::new(client), base)
        } else {
            FolderServer::Bucket(self.stop.clone())
        };
        let hint = "use the folder with `config.json`, `tokenizer.json` and the safetensors files";
        Ok(ModelSource::new(address.to_owned(), hint, server, true, None))
    }
}

fn up_to_date_copy(
    now: &ModelSource,
    parent: &Path,
    wanted: FetchKind,
) -> Result<Option<PathBuf>, ModelProblem> {
    let Some((folder, versions)) = local_copy(parent, wanted) else { return Ok(None) };
    Ok(first_changed(now, &versions)?.is_none().then_some(folder))
}

fn first_changed(now: &ModelSource, before: &Versions) -> Result<Option<String>, ModelProblem> {
    for (file, version) in before {
        match now.version(file) {
            Err(_) if version.is_none() && now.counts_as_missing(file) => {}
            found if found.as_ref().is_ok_and(|found| found == version) => {}
            found => return found.map(|_| Some(file.clone())),
        }
    }
    Ok(None)
}

/// Returns the address of a web server's folder, with a trailing slash.
fn base(address: &str) -> Result<Url, ModelProblem> {
    let mut url = web_files::url(address)?;
    let is_plain = url.host_str().is_some() && url.query().is_none() && url.fragment().is_none();
    url.set_path(&format!("{}/", url.path().trim_end_matches('/')));
    if is_plain {
        return Ok(url);
    }
    Err(ModelProblem::settings(format!("`{address}` is not a folder of a web server"))
        .with_hint("write `https://host/folder`, without a query or a fragment"))
}
