//! Fetches the current files of a store unless the local copy is up to date.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use longsift_stages::contract::Address;
use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::bucket::BucketFolder;
use super::folder::PartialFolder;
use super::slice::{HINT, ModelSource, fetch_model, fetch_tokenizer};
use super::stores::{FetchKind, FetchedModels, VERSIONS, Versions, local_copy};
use super::web::WebFolder;
use crate::base::text;
use crate::storage::atomic;
use crate::storage::http::HttpClient;
use crate::storage::http::answers::ServerKind;
use crate::storage::web as web_files;

impl FetchedModels {
    /// Returns the folder with the current content of an address.
    pub(super) fn current(
        &self,
        address: &str,
        parent: &Path,
        wanted: FetchKind,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        if !Address::parse(address).is_some_and(|address| address.scheme.is_web()) {
            let source = || Ok(BucketFolder::new(address, self.stop.clone()));
            return fetch_if_changed(source, address, parent, wanted);
        }
        let source = || {
            let base = base(address)?;
            let client = HttpClient::new(None, ServerKind::WEB, self.stop.clone())?;
            Ok(WebFolder::new(address.to_owned(), HINT, client, base))
        };
        fetch_if_changed(source, address, parent, wanted)
    }
}

/// Returns the local copy if it is up to date, otherwise fetches.
fn fetch_if_changed<S: ModelSource + 'static>(
    source: impl Fn() -> Result<S, ModelProblem>,
    address: &str,
    parent: &Path,
    wanted: FetchKind,
) -> Result<PathBuf, Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    let now = source().map_err(one)?;
    if let Some(copy) = up_to_date_copy(&now, parent, wanted).map_err(one)? {
        return Ok(copy);
    }
    let partial = PartialFolder::begin(parent).map_err(one)?;
    // Another process may have fetched it in the meantime.
    if let Some(copy) = up_to_date_copy(&now, parent, wanted).map_err(one)? {
        return Ok(copy);
    }
    let source = Rc::new(source().map_err(one)?);
    let fetched = match wanted {
        FetchKind::Model => Some(fetch_model(&source, &partial)?),
        FetchKind::Tokenizer => {
            fetch_tokenizer(&*source, &partial)?;
            if !wanted.is_present_in(partial.folder()) {
                return Err(one(source.missing_file("tokenizer.json")));
            }
            None
        }
    };
    let versions = source.seen();
    if let Some(file) = first_changed(&now, &versions).map_err(one)? {
        let message = format!("`{address}/{file}` changed while it was fetched");
        return Err(one(
            ModelProblem::checkpoint(message).with_hint("run again after it has stopped changing")
        ));
    }
    let json = serde_json::to_vec_pretty(&versions).expect("plain data");
    partial.write(VERSIONS, &json).map_err(one)?;
    let version = &text::sha256_hex(&json)[..12];
    let folder = match fetched {
        Some(fetched) => partial.finish_slice(version, address, None, &fetched),
        None => partial.finish(&format!("{version}-tokenizer")),
    };
    let folder = folder.map_err(one)?;
    let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
    atomic::write_atomic(&parent.join(wanted.pointer()), name)
        .map_err(|error| one(error.into()))?;
    Ok(folder)
}

/// Returns the local copy if all its files are unchanged.
fn up_to_date_copy(
    now: &impl ModelSource,
    parent: &Path,
    wanted: FetchKind,
) -> Result<Option<PathBuf>, ModelProblem> {
    let Some((folder, versions)) = local_copy(parent, wanted) else { return Ok(None) };
    Ok(first_changed(now, &versions)?.is_none().then_some(folder))
}

fn first_changed(
    now: &impl ModelSource,
    before: &Versions,
) -> Result<Option<String>, ModelProblem> {
    for (file, version) in before {
        if now.version(file)? != *version {
            return Ok(Some(file.clone()));
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
