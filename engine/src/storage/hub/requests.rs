//! Requests commits and lists of files from the hub.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use longsift_stages::model::ModelProblem;
use reqwest::Url;
use reqwest::header::{self, HeaderMap};
use serde::Deserialize;

use super::home::Home;
use super::reference::{HubReference, is_commit};
use crate::base::text::count;
use crate::base::{environment, secrets};
use crate::storage::http::answers::{ServerKind, shown, with_user_of};
use crate::storage::http::{HttpClient, SmallFile};
use crate::storage::hub::Hub;
use crate::storage::{atomic, marked};

const CONFIG: &str = "config.json";
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Limit of an API answer in bytes: a page has a thousand files.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// Limit of a list in pages: a hundred million files.
const MAX_PAGES: u64 = 100_000;

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct ListedFile {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    size: Option<u64>,
}

impl Hub {
    pub(super) fn request_model_commit(
        &self,
        model: &HubReference,
    ) -> Result<String, ModelProblem> {
        let (client, endpoint) = self.client()?;
        let url = files_of(&endpoint, model).join(CONFIG).expect("a plain name");
        let answer = client.small(&url, MAX_CONFIG_BYTES)?.ok_or_else(|| {
            ModelProblem::settings(format!("`{model}` has no file `{CONFIG}`"))
                .with_hint("check the owner, the name and the revision; is it a model?")
        })?;
        // Redirects to another name lack it, and so does the store that has the file.
        let mut headers = answer.redirects.iter().chain([&answer.headers]);
        let commit = headers.find_map(|headers| headers.get("x-repo-commit")?.to_str().ok());
        if let Some(commit) = commit.filter(|commit| is_commit(commit)) {
            return Ok(commit.to_owned());
        }
        let message =
            format!("`{}` does not send the commit of `{}`", self.home.endpoint, model.revision);
        Err(ModelProblem::settings(message)
            .with_hint(format!("name the commit: `hf://{}@<commit>`", model.repository())))
    }

    pub(crate) fn client(&self) -> Result<(HttpClient, Url), ModelProblem> {
        let Home { endpoint, token, .. } = &self.home;
        let base = Url::parse(&format!("{endpoint}/"))
            .ok()
            .filter(|base| matches!(base.scheme(), "http" | "https") && base.host_str().is_some());
        let Some(base) = base else {
            // Without a scheme, user and password would not be detected in the value.
            return Err(ModelProblem::settings("HF_ENDPOINT is not an http address")
                .with_hint("unset it for https://huggingface.co"));
        };
        let has_user = !base.username().is_empty() || base.password().is_some();
        let wrong = match token {
            Some(_) if has_user => Err("HF_ENDPOINT has a user, and HF_TOKEN is set".to_owned()),
            Some(token) => environment::check_header("HF_TOKEN", token),
            None => Ok(()),
        };
        let wrong = wrong.and_then(|()| match base.query() {
            Some(_) => Err("HF_ENDPOINT has a query, which is not used".to_owned()),
            None => Ok(()),
        });
        wrong.map_err(|why| {
            ModelProblem::settings(why).with_hint(
                "correct or unset the variable; a token may also come from `hf auth login`",
            )
        })?;
        let token = token.clone().map(|token| (base.clone(), token));
        Ok((HttpClient::new(token, ServerKind::HUB, self.options.stop.clone())?, base))
    }

    pub(super) fn request_dataset_commit(
        &self,
        reference: &HubReference,
    ) -> Result<String, ModelProblem> {
        let (client, endpoint) = self.client()?;
        let url = api(&endpoint, reference, "revision");
        let (Revision { sha }, _) = request(&client, &url, reference)?;
        if is_commit(&sha) {
            return Ok(sha);
        }
        let sha = secrets::without_credentials(&sha);
        let message = format!("`{}` returned `{sha}` as the commit of `{reference}`", shown(&url));
        Err(ModelProblem::settings(message).with_hint("check HF_ENDPOINT"))
    }

    /// Requests the files of a commit, and caches the list at `path`.
    pub(super) fn request_list(
        &self,
        reference: &HubReference,
        path: &Path,
    ) -> Result<BTreeMap<String, Option<u64>>, ModelProblem> {
        let (client, endpoint) = self.client()?;
        let mut url = api(&endpoint, reference, "tree");
        url.set_query(Some("recursive=true"));
        let (mut files, mut folders, mut pages) = (BTreeMap::new(), BTreeSet::new(), 0);
        let endless = |why: &str| {
            let message = format!("the list of files of `{reference}` does not end: {why}");
            ModelProblem::settings(message).with_hint("check HF_ENDPOINT")
        };
        loop {
            let (entries, answer): (Vec<ListedFile>, _) = request(&client, &url, reference)?;
            let known = files.len() + folders.len();
            for ListedFile { kind, path, size } in entries {
                match &*kind {
                    "file" => {}
                    "directory" => {
                        folders.insert(path);
                        continue;
                    }
                    _ => continue,
                }
                let shown_path = || secrets::without_credentials(&path);
                if !stays_below(&path) {
                    let path = shown_path();
                    let message = format!("`{reference}` has a file `{path}`");
                    return Err(ModelProblem::checkpoint(message).with_hint(
                        "the data set has an unsafe file name; report it to its owner",
                    ));
                }
                if files.contains_key(&path) {
                    return Err(endless(&format!("it contains `{}` twice", shown_path())));
                }
                if size.is_none() {
                    let path = shown_path();
                    let message = format!(
                        "the list of files of `{reference}` does not state the size of `{path}`"
                    );
                    return Err(ModelProblem::settings(message).with_hint("check HF_ENDPOINT"));
                }
                files.insert(path, size);
            }
            let next = next_page(&answer.url, &answer.headers).map_err(|link| {
                let link = secrets::without_credentials(&link);
                let message =
                    format!("`{}` has an invalid next-page link: `{link}`", shown(&answer.url));
                ModelProblem::settings(message).with_hint("check HF_ENDPOINT")
            })?;
            let Some(next) = next else { break };
            pages += 1;
            if files.len() + folders.len() == known {
                return Err(endless("a page adds nothing and has a next page"));
            }
            if pages > MAX_PAGES {
                return Err(endless(&format!("it has more than {} pages", count(MAX_PAGES))));
            }
            url = next;
        }
        // Git has no empty folders: the server listed only one level.
        let is_listed = |folder: &String| {
            let below = format!("{folder}/");
            files.range(below.clone()..).next().is_some_and(|(name, _)| name.starts_with(&below))
        };
        if let Some(folder) = folders.iter().find(|folder| !is_listed(folder)) {
            let folder = secrets::without_credentials(folder);
            let message =
                format!("the list of files of `{reference}` lacks those of its folder `{folder}`");
            return Err(ModelProblem::settings(message).with_hint("check HF_ENDPOINT"));
        }
        let folder = path.parent().expect("a file lies in a folder");
        marked::create_folder(folder)?;
        let json = serde_json::to_vec(&files).expect("names and lengths");
        atomic::write_atomic(path, &json)?;
        Ok(files)
    }
}

/// Returns the parent address of the files of a revision.
pub(crate) fn files_of(endpoint: &Url, reference: &HubReference) -> Url {
    // A branch name may contain a slash.
    let revision = reference.revision.replace('/', "%2F");
    let path = format!("{}/resolve/{revision}/", reference.repository());
    endpoint.join(&path).expect("names and revisions are plain text")
}

/// Returns `…/api/datasets/owner/name/<what>/<revision>`.
fn api(endpoint: &Url, reference: &HubReference, what: &str) -> Url {
    let mut url = endpoint.clone();
    let mut parts = url.path_segments_mut().expect("an http address has a path");
    // A branch name may contain a slash.
    parts.pop_if_empty().push("api").extend(reference.repository().split('/')).push(what);
    parts.push(&reference.revision);
    drop(parts);
    url
}

fn request<T: for<'a> Deserialize<'a>>(
    client: &HttpClient,
    url: &Url,
    reference: &HubReference,
) -> Result<(T, SmallFile), ModelProblem> {
    let Some(answer) = client.small(url, MAX_PAGE_BYTES)? else {
        let message = format!("`{reference}` not found at `{}`", shown(url));
        return Err(ModelProblem::settings(message)
            .with_hint("check the owner, the name and the revision; is it a data set?"));
    };
    let json = serde_json::from_slice(&answer.bytes).map_err(|error| {
        let error = secrets::without_quotes(&error.to_string());
        let message = format!("unexpected response of `{}`, not a file list: {error}", shown(url));
        ModelProblem::settings(message).with_hint("check HF_ENDPOINT")
    })?;
    Ok((json, answer))
}

/// Returns the next page of a list, from `Link: <https://…>; rel="next"` (RFC 8288). A link to a plain connection is an error.
fn next_page(from: &Url, headers: &HeaderMap) -> Result<Option<Url>, String> {
    // Text outside ASCII is in other parameters or in an address.
    let links = headers.get_all(header::LINK).iter();
    let links: Vec<_> = links.map(|links| String::from_utf8_lossy(links.as_bytes())).collect();
    let is_next = |link: &&str| {
        let parameters = split_unquoted(link, ';').into_iter().skip(1);
        let mut parameters = parameters.filter_map(|parameter| parameter.split_once('='));
        let is_rel = |name: &str| name.trim().trim_end_matches('*').eq_ignore_ascii_case("rel");
        // Only the first one counts.
        parameters.find(|(name, _)| is_rel(name)).is_some_and(|(_, value)| {
            // An extended value begins with its character set and language.
            let value = value.trim().trim_matches(['"', '\'']);
            let mut values = value.split_whitespace().filter_map(|value| value.rsplit('\'').next());
            values.any(|value| value.eq_ignore_ascii_case("next"))
        })
    };
    let next = links.iter().flat_map(|links| split_unquoted(links, ',')).find(is_next);
    let Some(next) = next.map(str::trim) else { return Ok(None) };
    let link = next.strip_prefix('<').and_then(|link| link.split_once('>'));
    let url = link.and_then(|(link, _)| from.join(link).ok());
    match url.filter(|url| url.scheme() == "https" || url.scheme() == from.scheme()) {
        Some(url) => Ok(Some(with_user_of(from, url))),
        None => Err(next.to_owned()),
    }
}

/// Splits links or their parameters at a separator outside addresses and quoted texts.
fn split_unquoted(text: &str, separator: char) -> Vec<&str> {
    let (mut end, mut is_escaped) = (None, false);
    let is_separator = move |character: char| {
        let is_literal = std::mem::take(&mut is_escaped);
        match (end, character) {
            (None, '<') => end = Some('>'),
            (None, '"') => end = Some('"'),
            (Some('"'), '\\') => is_escaped = !is_literal,
            (Some(closing), _) if character == closing && !is_literal => end = None,
            _ => {}
        }
        end.is_none() && character == separator
    };
    text.split(is_separator).collect()
}

/// Whether a name from a server stays below the folder that it is joined to.
fn stays_below(name: &str) -> bool {
    let part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\0', '\\']);
    name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn the_next_page_is_the_link_with_rel_next() {
        let from = Url::parse("https://hub/api/list").unwrap();
        let next = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::LINK, text.parse().unwrap());
            next_page(&from, &headers).map(|url| url.map(|url| url.to_string()))
        };
        let there = Ok(Some("https://hub/api/list?cursor=2".to_owned()));
        assert_eq!(next("<https://hub/api/list?cursor=2>; rel=\"next\""), there);
        assert_eq!(next("<?cursor=1>; rel=\"prev\", <?cursor=2>; rel=\"next\""), there);
        let [user, link] = ["https://a:b@hub/x", "<https://hub/y>; rel=next"];
        let headers = HeaderMap::from_iter([(header::LINK, link.parse().unwrap())]);
        let next_of_user = next_page(&Url::parse(user).unwrap(), &headers).unwrap().unwrap();
        assert_eq!(next_of_user.as_str(), "https://a:b@hub/y");
        for spelled in [
            "rel=next",
            "title=\"a, b\"; rel*=UTF-8''next",
            "title=\"nächste\"; rel=\"next\"",
            "REL='next'",
            "rel = \"last Next\"",
            "title=x; rel=\"next\"",
        ] {
            assert_eq!(next(&format!("<?cursor=2>; {spelled}")), there, "{spelled}");
        }
        for last in [
            "title=\"x; rel=next\"; rel=\"last\"",
            "rel=last; title=\"5\\\" disk, <?cursor=9>; rel=next\"",
            "rel=\"last\"; rel=\"next\"",
        ] {
            let links = format!("<?cursor=4;rel=next;>; {last}, <?cursor=2>; rel=\"next\"");
            assert_eq!(next(&links), there, "{last}");
        }
        let comma = next("<?cursor=1,>; rel=\"prev\", <?cursor=2,3>; rel=\"next\"");
        assert_eq!(comma, Ok(Some("https://hub/api/list?cursor=2,3".to_owned())));
        let latin =
            HeaderValue::from_bytes(b"<?cursor=2>; title=\"n\xe4chste\"; rel=next").unwrap();
        let headers = HeaderMap::from_iter([(header::LINK, latin)]);
        assert!(next_page(&from, &headers).unwrap().is_some());
        assert_eq!(next("<?cursor=1>; rel=\"prev\""), Ok(None));
        for lost in ["<http://hub/api/list?cursor=2>; rel=\"next\"", "x; rel=\"next\""] {
            assert_eq!(next(lost), Err(lost.to_owned()));
        }
    }

    #[test]
    fn names_are_parts_of_an_address_and_stay_in_it() {
        let endpoint = Url::parse("https://mirror/hub/").unwrap();
        let (reference, _) = HubReference::parse_dataset("hf://datasets/a/b@refs/pr/3/x").unwrap();
        let url = api(&endpoint, &reference, "tree");
        assert_eq!(url.as_str(), "https://mirror/hub/api/datasets/a/b/tree/refs%2Fpr%2F3");
        for name in ["../x", "a/../b", "/x", "a//b", "", ".", "a\\b", "x\0"] {
            assert!(!stays_below(name), "{name:?}");
        }
        assert!(stays_below("data/a b%#?.parquet"));
    }
}
