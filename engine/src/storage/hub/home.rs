//! Local configuration of the hub: address, token, and the cache of the hub's own libraries.
//!
//! The variables are those of these libraries: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HOME`, `HF_HUB_CACHE`,
//! `HF_HUB_OFFLINE` and `HF_HUB_DISABLE_IMPLICIT_TOKEN`.

use std::path::{Path, PathBuf};

use super::reference::{HubReference, is_commit};
use crate::base::{environment, secrets};
use crate::storage::files;

/// Limit of a file with a token or a commit, which have about forty characters.
const MAX_TEXT_BYTES: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only requests to the hub use it"))]
pub(crate) struct Home {
    /// Address without a trailing slash.
    pub(crate) endpoint: String,
    pub(crate) token: Option<String>,
    pub(crate) offline: bool,
    /// Folder `hub` of the libraries' cache.
    cache: Option<PathBuf>,
}

impl Home {
    pub(crate) fn from_environment() -> Self {
        Self::new(environment::variable)
    }

    fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let cache = variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
        let home = variable("HF_HOME")
            .map(PathBuf::from)
            .or_else(|| cache.map(|cache| cache.join("huggingface")));
        let on = |name: &str| {
            let value = variable(name).unwrap_or_default().to_ascii_uppercase();
            matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")
        };
        let token_file = variable("HF_TOKEN_PATH")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join("token")))
            .filter(|_| !on("HF_HUB_DISABLE_IMPLICIT_TOKEN"));
        let endpoint = variable("HF_ENDPOINT");
        let token = variable("HF_TOKEN").or_else(|| short_text(&token_file?));
        secrets::hide_in_answers(token.as_deref().unwrap_or_default());
        secrets::split(endpoint.as_deref().unwrap_or_default()).1.hide_in_answers();
        Self {
            endpoint: endpoint.map_or("https://huggingface.co".to_owned(), |url| {
                url.trim_end_matches('/').to_owned()
            }),
            token,
            offline: on("HF_HUB_OFFLINE"),
            cache: variable("HF_HUB_CACHE")
                .map(PathBuf::from)
                .or_else(|| home.map(|home| home.join("hub"))),
        }
    }

    pub(crate) fn commit_of(&self, model: &HubReference) -> Option<String> {
        let folder = self.cache.as_ref()?.join(model.folder_name());
        short_text(&folder.join("refs").join(&model.revision)).filter(|commit| is_commit(commit))
    }

    /// Returns the folder of a commit in the libraries' cache, which may be incomplete.
    pub(crate) fn snapshot(&self, model: &HubReference, commit: &str) -> Option<PathBuf> {
        let folder = self.cache.as_ref()?.join(model.folder_name()).join("snapshots").join(commit);
        folder.is_dir().then_some(folder)
    }

    /// Whether the libraries' cache has a file of a commit, or records that the hub does not have it.
    pub(crate) fn knows(&self, model: &HubReference, commit: &str, file: &str) -> bool {
        let repository = self.cache.as_ref().map(|cache| cache.join(model.folder_name()));
        repository.is_some_and(|repository| {
            let has = |folder: &str| repository.join(folder).join(commit).join(file).exists();
            has("snapshots") || has(".no_exist")
        })
    }
}

/// Returns the trimmed text of a small file; `None` if it is missing or empty.
pub(super) fn short_text(path: &Path) -> Option<String> {
    let bytes = files::read_limited(path, MAX_TEXT_BYTES).ok()?;
    let text = String::from_utf8(bytes).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::atomic;

    fn home(variables: &[(&str, &str)]) -> Home {
        Home::new(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_have_the_meaning_of_the_hubs_libraries() {
        let plain = home(&[("HOME", "/home/a")]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!((plain.token, plain.offline), (None, false));
        assert_eq!(plain.cache.unwrap(), Path::new("/home/a/.cache/huggingface/hub"));
        let cache = |variables: &[_]| home(variables).cache.unwrap();
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(cache(&[xdg]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[xdg, ("HF_HOME", "/h")]), Path::new("/h/hub"));
        assert_eq!(cache(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h")]), Path::new("/c"));
        let mirror = home(&[("HF_ENDPOINT", "http://mirror:8080/"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!((mirror.endpoint.as_str(), mirror.offline), ("http://mirror:8080", true));
    }

    #[test]
    fn a_token_comes_from_the_environment_or_from_the_file_that_login_wrote() {
        let folder = tempfile::tempdir().unwrap();
        atomic::write_atomic(&folder.path().join("token"), b"hf_file\n").unwrap();
        let hf_home = ("HF_HOME", folder.path().to_str().unwrap());
        assert_eq!(home(&[hf_home]).token.unwrap(), "hf_file");
        assert_eq!(home(&[hf_home, ("HF_TOKEN", "hf_set")]).token.unwrap(), "hf_set");
        assert_eq!(home(&[hf_home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes")]).token, None);
    }

    #[test]
    fn a_branch_is_looked_up_in_the_libraries_cache() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("models--a--b");
        let commit = "0".repeat(40);
        files::create_folder(&repository.join("refs")).unwrap();
        files::create_folder(&repository.join("snapshots").join(&commit)).unwrap();
        atomic::write_atomic(&repository.join("refs/main"), commit.as_bytes()).unwrap();
        atomic::write_atomic(&repository.join("refs/odd"), b"../../elsewhere").unwrap();
        let home = home(&[("HF_HUB_CACHE", folder.path().to_str().unwrap())]);
        let reference = |text| HubReference::parse(text).unwrap();
        assert_eq!(home.commit_of(&reference("hf://a/b")), Some(commit.clone()));
        assert_eq!(home.commit_of(&reference("hf://a/b@odd")), None);
        assert_eq!(home.commit_of(&reference("hf://a/c")), None);
        let snapshot = home.snapshot(&reference("hf://a/b"), &commit).unwrap();
        assert_eq!(snapshot, repository.join("snapshots").join(commit));
    }
}
