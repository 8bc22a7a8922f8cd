//! What the hub's API says of a data set (the commit of a branch, the list of files), and ranges of these files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use longsift_stages::model::ModelProblem;
use reqwest::header::HeaderMap;
use reqwest::{Url, header};
use serde::Deserialize;

use super::dataset::stays_below;
use super::reference::is_commit;
use super::{Hub, Reference};
use crate::files;
use crate::http::{Client, Patience, RemoteFile, shown};
use crate::object_stores::Blocks;
use crate::remote_model::machine;

/// Bytes of a file that are fetched at once.
const BLOCK_BYTES: u64 = 4 << 20;

/// Bytes at a file's end that are fetched first: most footers are shorter.
const TAIL_BYTES: u64 = 64 << 10;

/// Bytes of a file that are read in vain for one block, from a server that ignores ranges.
const MOST_SKIPPED_BYTES: u64 = 64 << 20;

/// Bytes of one answer of the API: a page has a thousand files.
const MOST_PAGE_BYTES: u64 = 64 << 20;

/// Pages of a list: a hundred million files.
const MOST_PAGES: usize = 100_000;

/// Files whose signed links are remembered.
const MOST_LINKS: usize = 4096;

/// The hub's files of one commit.
pub(super) struct Remote {
    client: Client,
    /// `…/resolve/<commit>/`
    base: Url,
    opened: Mutex<HashMap<String, Arc<RemoteFile>>>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// A file or a folder of a list.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
}

impl Hub {
    /// Asks the API which commit a branch or tag of a data set has.
    pub(super) fn ask_commit_of_dataset(
        &self,
        reference: &Reference,
    ) -> Result<String, ModelProblem> {
        let (client, endpoint) = self.client(Patience::default())?;
        let url = api(&endpoint, reference, "revision");
        let (Revision { sha }, _) = ask(&client, &url, reference)?;
        if is_commit(&sha) {
            return Ok(sha);
        }
        let message =
            format!("`{}` answers that `{reference}` has the commit `{sha}`", shown(&url));
        Err(ModelProblem::settings(message).with_hint("is HF_ENDPOINT right?"))
    }

    /// Asks the API for the files of a commit, and keeps the list at `place`.
    pub(super) fn ask_list(
        &self,
        reference: &Reference,
        place: &Path,
    ) -> Result<BTreeMap<String, Option<u64>>, ModelProblem> {
        let (client, endpoint) = self.client(Patience::default())?;
        let mut url = api(&endpoint, reference, "tree");
        url.set_query(Some("recursive=true"));
        let (mut files, mut asked) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let (entries, headers): (Vec<Entry>, _) = ask(&client, &url, reference)?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                if !stays_below(&entry.path) {
                    let message = format!("`{reference}` has a file `{}`", entry.path);
                    return Err(ModelProblem::checkpoint(message)
                        .with_hint("this is no name of a file: tell the owner of the data set"));
                }
                files.insert(entry.path, Some(entry.size));
            }
            let next = next_page(&url, &headers).map_err(|link| {
                let message = format!("`{}` goes on at `{link}`", shown(&url));
                ModelProblem::settings(message).with_hint("is HF_ENDPOINT right?")
            })?;
            let Some(next) = next else { break };
            if !asked.insert(std::mem::replace(&mut url, next)) || asked.len() > MOST_PAGES {
                let message = format!("the list of files of `{reference}` does not end");
                return Err(ModelProblem::settings(message).with_hint("is HF_ENDPOINT right?"));
            }
        }
        let folder = place.parent().expect("a file lies in a folder");
        files::create_folder(folder).map_err(machine)?;
        let json = serde_json::to_vec(&files).expect("names and lengths");
        files::write_atomic(place, &json).map_err(machine)?;
        Ok(files)
    }

    /// Where ranges of a commit's files are read; none without the network.
    pub(super) fn remote(&self, reference: &Reference) -> Result<Option<Remote>, ModelProblem> {
        if self.is_offline() {
            return Ok(None);
        }
        let patience = Patience { most_skipped_bytes: MOST_SKIPPED_BYTES, ..Patience::default() };
        let (client, endpoint) = self.client(patience)?;
        let base = super::fetch::files_of(&endpoint, reference);
        Ok(Some(Remote { client, base, opened: Mutex::default() }))
    }
}

impl Remote {
    /// Fills the beginning of `buffer` from `offset`; 0 at the end of the file.
    pub(super) fn read_at(
        &self,
        name: &str,
        length: u64,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, ModelProblem> {
        if offset >= length || buffer.is_empty() {
            return Ok(0);
        }
        let tail = length.saturating_sub(TAIL_BYTES);
        let (start, end) = if offset >= tail {
            (tail, length)
        } else {
            let start = offset / BLOCK_BYTES * BLOCK_BYTES;
            (start, (start + BLOCK_BYTES).min(length))
        };
        let file = self.file(name, length);
        let block = match Blocks::get(file.url().as_str(), start) {
            Some(block) => block,
            None => self.fetch(&file, start..end)?,
        };
        let rest = &block[(offset - start) as usize..];
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    /// Some bytes of a file, which are kept for a while.
    fn fetch(&self, file: &RemoteFile, range: Range<u64>) -> Result<Bytes, ModelProblem> {
        let start = range.start;
        let mut bytes = Vec::with_capacity((range.end - start) as usize);
        self.client.read(file, &[range], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let block = Bytes::from(bytes);
        Blocks::put(file.url().as_str(), start, block.clone());
        Ok(block)
    }

    /// A file, with the link that the hub redirected it to the last time.
    fn file(&self, name: &str, length: u64) -> Arc<RemoteFile> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = opened.get(name) {
            return Arc::clone(file);
        }
        if opened.len() >= MOST_LINKS {
            opened.clear();
        }
        let mut url = self.base.clone();
        let mut parts = url.path_segments_mut().expect("an http address has a path");
        parts.pop_if_empty().extend(name.split('/'));
        drop(parts);
        let file = Arc::new(RemoteFile::known(url, length));
        opened.insert(name.to_owned(), Arc::clone(&file));
        file
    }
}

/// `…/api/datasets/owner/name/<what>/<revision>`
fn api(endpoint: &Url, reference: &Reference, what: &str) -> Url {
    let mut url = endpoint.clone();
    let mut parts = url.path_segments_mut().expect("an http address has a path");
    // A branch may have a slash in its name.
    parts.pop_if_empty().push("api").extend(reference.repository().split('/')).push(what);
    parts.push(&reference.revision);
    drop(parts);
    url
}

/// An answer of the API, and its headers.
fn ask<T: for<'a> Deserialize<'a>>(
    client: &Client,
    url: &Url,
    reference: &Reference,
) -> Result<(T, HeaderMap), ModelProblem> {
    let Some(answer) = client.small(url, MOST_PAGE_BYTES)? else {
        let message = format!("`{reference}` is not there: `{}` has nothing", shown(url));
        return Err(ModelProblem::settings(message)
            .with_hint("check the owner, the name and the revision; is it a data set?"));
    };
    let json = serde_json::from_slice(&answer.bytes).map_err(|error| {
        let message = format!("`{}` answers with what is no list of files: {error}", shown(url));
        ModelProblem::settings(message).with_hint("is HF_ENDPOINT right?")
    })?;
    Ok((json, answer.headers))
}

/// Where a list goes on: `Link: <https://…>; rel="next"`; the link itself where nothing is there, or a plain connection
/// behind an encrypted one.
fn next_page(from: &Url, headers: &HeaderMap) -> Result<Option<Url>, String> {
    let links = headers.get_all(header::LINK).iter().filter_map(|links| links.to_str().ok());
    let next = links.flat_map(|links| links.split(',')).find(|link| link.contains("rel=\"next\""));
    let Some(next) = next.map(str::trim) else { return Ok(None) };
    let place = next.strip_prefix('<').and_then(|link| link.split_once('>'));
    let url = place.and_then(|(place, _)| from.join(place).ok());
    match url.filter(|url| url.scheme() == "https" || url.scheme() == from.scheme()) {
        Some(url) => Ok(Some(url)),
        None => Err(next.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_the_link_of_that_relation() {
        let from = Url::parse("https://hub/api/list").unwrap();
        let next = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::LINK, text.parse().unwrap());
            next_page(&from, &headers).map(|url| url.map(|url| url.to_string()))
        };
        let there = Ok(Some("https://hub/api/list?cursor=2".to_owned()));
        assert_eq!(next("<https://hub/api/list?cursor=2>; rel=\"next\""), there);
        assert_eq!(next("<?cursor=1>; rel=\"prev\", <?cursor=2>; rel=\"next\""), there);
        assert_eq!(next("<?cursor=1>; rel=\"prev\""), Ok(None));
        for lost in ["<http://hub/api/list?cursor=2>; rel=\"next\"", "x; rel=\"next\""] {
            assert_eq!(next(lost), Err(lost.to_owned()));
        }
    }

    #[test]
    fn names_are_parts_of_an_address_and_stay_in_it() {
        let endpoint = Url::parse("https://mirror/hub/").unwrap();
        let (reference, _) = Reference::parse_dataset("hf://datasets/a/b@refs/pr/3/x").unwrap();
        let url = api(&endpoint, &reference, "tree");
        assert_eq!(url.as_str(), "https://mirror/hub/api/datasets/a/b/tree/refs%2Fpr%2F3");
        for name in ["../x", "a/../b", "/x", "a//b", "", ".", "a\\b", "x\0"] {
            assert!(!stays_below(name), "{name:?}");
        }
        assert!(stays_below("data/a b%#?.parquet"));
    }
}
