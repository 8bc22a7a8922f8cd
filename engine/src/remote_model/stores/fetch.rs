//! Fetches what a store has now, unless that is what was fetched before.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::{Stores, VERSIONS, Versions, kept, pointer};
use crate::files;
use crate::http::{Client, Patience, ServerKind};
use crate::remote_model::bucket::Bucket;
use crate::remote_model::folder::Partial;
use crate::remote_model::slice::{Source, fetch_model, fetch_tokenizer};
use crate::remote_model::web::Web;
use crate::remote_model::{Wanted, machine};

/// What to do where a file is not there.
pub(crate) const HINT: &str =
    "name the folder that has `config.json`, `tokenizer.json` and the safetensors files";

/// A source whose files may change.
pub(crate) trait Versioned: Source {
    /// The version that a file has now; none where there is none of that name.
    fn version(&self, file: &str) -> Result<Option<String>, ModelProblem>;
    /// The versions of all files that were asked for, as they were found first.
    fn seen(&self) -> Versions;
}

impl Stores {
    /// The folder that holds what an address has now.
    pub(super) fn current(
        &self,
        address: &str,
        place: &Path,
        wanted: Wanted,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        if !address.starts_with("http") {
            let source = || Ok(Bucket::new(address, self.stop.clone()));
            return fetched(source, address, place, wanted);
        }
        let source = || {
            let base = base(address)?;
            let client =
                Client::new(None, ServerKind::WEB, Patience::default(), self.stop.clone())?;
            Ok(Web::new(address.to_owned(), HINT, client, base))
        };
        fetched(source, address, place, wanted)
    }
}

/// What is kept, if nothing has changed, else what is fetched now.
fn fetched<S: Versioned + 'static>(
    source: impl Fn() -> Result<S, ModelProblem>,
    address: &str,
    place: &Path,
    wanted: Wanted,
) -> Result<PathBuf, Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    let now = source().map_err(one)?;
    if let Some(kept) = unchanged(&now, place, wanted).map_err(one)? {
        return Ok(kept);
    }
    let partial = Partial::begin(place).map_err(one)?;
    // Another process may have fetched it while this one waited.
    if let Some(kept) = unchanged(&now, place, wanted).map_err(one)? {
        return Ok(kept);
    }
    let source = Rc::new(source().map_err(one)?);
    let fetched = match wanted {
        Wanted::Model => Some(fetch_model(&source, &partial)?),
        Wanted::Tokenizer => {
            fetch_tokenizer(&*source, &partial)?;
            if !wanted.is_in(partial.folder()) {
                return Err(one(source.no_file("tokenizer.json")));
            }
            None
        }
    };
    let versions = source.seen();
    if let Some(file) = changed(&now, &versions).map_err(one)? {
        let message = format!("`{address}/{file}` changed while it was fetched");
        return Err(one(ModelProblem::checkpoint(message)
            .with_hint("run again when it does not change any more")));
    }
    let json = serde_json::to_vec_pretty(&versions).expect("plain data");
    partial.write(VERSIONS, &json).map_err(one)?;
    let version = &files::sha256_hex(&json)[..12];
    let folder = match fetched {
        Some(fetched) => partial.finish_slice(version, address, None, &fetched),
        None => partial.finish(&format!("{version}-tokenizer")),
    };
    let folder = folder.map_err(one)?;
    let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
    files::write_atomic(&place.join(pointer(wanted)), name).map_err(|error| one(machine(error)))?;
    Ok(folder)
}

/// What is kept, if all its files are as they were.
fn unchanged(
    now: &impl Versioned,
    place: &Path,
    wanted: Wanted,
) -> Result<Option<PathBuf>, ModelProblem> {
    let Some(kept) = kept(place, wanted) else { return Ok(None) };
    Ok(changed(now, &kept.versions)?.is_none().then_some(kept.folder))
}

/// The first file that is not as it was.
fn changed(now: &impl Versioned, before: &Versions) -> Result<Option<String>, ModelProblem> {
    for (file, version) in before {
        if now.version(file)? != *version {
            return Ok(Some(file.clone()));
        }
    }
    Ok(None)
}

/// The address of a folder of a web server, with a slash at its end.
fn base(address: &str) -> Result<Url, ModelProblem> {
    let url = Url::parse(&format!("{address}/")).ok();
    let is_plain = |url: &Url| {
        url.host_str().is_some()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    };
    url.filter(is_plain).ok_or_else(|| {
        ModelProblem::settings(format!("`{address}` is no folder of a web server"))
            .with_hint("write `https://host/folder`, without a user, a query or a fragment")
    })
}
