//! Models of object stores and web servers: `model: s3://bucket/folder`.
//!
//! ```text
//! <cache_folder>/stores/<address>/
//!   lock                          one process fetches at a time
//!   model, tokenizer              name of the last used folder
//!   <versions>-<tensors>/         the small files, the slices of the weights, slice.json, versions.json, content.json
//!   <versions>-tokenizer/         the small files without weights, versions.json, content.json
//! ```
//!
//! A folder of a store may change. A fetched folder is used as long as each of its files still has the recorded version
//! (entity tag or time, and length), and every file that was missing is still missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longsift_stages::model::ModelFolder;

use crate::base::text;
use crate::storage::files;
use crate::storage::range_file::Stamp;

pub(super) const VERSIONS: &str = "versions.json";
/// SHA-256 of the files of a fetched folder that decide results, by name; `null` for [`SMALL_FILES`] that do not exist.
pub(super) const CONTENT: &str = "content.json";

#[cfg(feature = "cloud")]
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Small files to fetch, each with its maximum bytes.
pub(super) const SMALL_FILES: [(&str, u64); 7] = [
    ("config.json", 16 << 20),
    ("tokenizer.json", 1 << 30),
    ("tokenizer_config.json", 64 << 20),
    ("special_tokens_map.json", 64 << 20),
    ("added_tokens.json", 64 << 20),
    ("chat_template.jinja", 64 << 20),
    ("adapter_config.json", 64 << 20),
];

/// Limit of a file that lists about twenty files.
const MAX_TEXT_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchKind {
    Model,
    Tokenizer,
}

impl FetchKind {
    pub(crate) fn is_present_in(self, folder: &Path) -> bool {
        match self {
            Self::Model => ModelFolder::open(folder, None).is_ok(),
            Self::Tokenizer => folder.join("tokenizer.json").is_file(),
        }
    }

    /// Returns the file that contains the name of the last used folder.
    pub(super) fn pointer(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Tokenizer => "tokenizer",
        }
    }
}

/// Versions by file name; `None` for missing files.
pub(crate) type Versions = BTreeMap<String, Option<String>>;

/// Returns the last used folder and the versions of its files, if it is complete.
pub(super) fn local_copy(parent: &Path, wanted: FetchKind) -> Option<(PathBuf, Versions)> {
    let text =
        |path: &Path| String::from_utf8(files::read_limited(path, MAX_TEXT_BYTES).ok()?).ok();
    let name = text(&parent.join(wanted.pointer()))?;
    let is_plain =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let folder = parent.join(Some(name.trim()).filter(|name| !name.is_empty() && is_plain(name))?);
    let versions = serde_json::from_str(&text(&folder.join(VERSIONS))?).ok()?;
    (wanted.is_present_in(&folder) && is_as_fetched(&folder)).then_some((folder, versions))
}

/// Whether a folder has the bytes that were fetched. Reads the files whose times do not show it.
pub(super) fn is_as_fetched(folder: &Path) -> bool {
    let path = folder.join(CONTENT);
    let recorded = files::read_limited(&path, MAX_TEXT_BYTES).ok();
    let digests: Option<BTreeMap<String, Option<String>>> =
        recorded.and_then(|json| serde_json::from_slice(&json).ok());
    let (Some(digests), Ok(Some(recorded))) = (digests, files::stamp(&path)) else { return false };
    let is_complete = SMALL_FILES.iter().all(|(name, _)| digests.contains_key(*name));
    is_complete
        && digests.iter().all(|(name, digest)| {
            let path = folder.join(name);
            let Some(digest) = digest else { return !path.exists() };
            let is_older =
                |stamp: Option<Stamp>| stamp.is_some_and(|stamp| stamp.is_before(&recorded));
            files::stamp(&path).is_ok_and(is_older)
                || files::digest(&path).is_ok_and(|found| found.sha256 == *digest)
        })
}

pub(super) fn folder_name(address: &str) -> String {
    let legible: String = (address.chars().take(80))
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' })
        .collect();
    format!("{legible}-{}", &text::sha256_hex(address.as_bytes())[..12])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::storage::atomic;

    #[test]
    fn addresses_have_folders_of_their_own() {
        let name = folder_name("s3://bucket/models/a b");
        assert!(name.starts_with("s3---bucket-models-a-b-"), "{name}");
        assert_ne!(folder_name("s3://bucket/a-b"), folder_name("s3://bucket/a/b"));
        assert!(folder_name(&format!("https://host/{}", "x/".repeat(500))).len() < 100);
    }

    #[test]
    fn pointers_to_other_folders_are_ignored() {
        let parent = tempfile::tempdir().unwrap();
        files::create_folder(&parent.path().join("a-tokenizer")).unwrap();
        let write = |name: &str, content: &str| {
            let path = parent.path().join("a-tokenizer").join(name);
            atomic::write_atomic(&path, content.as_bytes()).unwrap();
        };
        let digest = text::sha256_hex(b"{}");
        let absent: BTreeMap<&str, Option<&str>> =
            SMALL_FILES.iter().map(|(name, _)| (*name, None)).collect();
        let with = |digest| {
            let mut content = absent.clone();
            content.insert("tokenizer.json", Some(digest));
            serde_json::to_string(&content).unwrap()
        };
        for (name, content) in
            [("tokenizer.json", "{}"), (VERSIONS, "{}"), (CONTENT, &*with(&digest))]
        {
            write(name, content);
        }
        let is_found = |name: &str| {
            atomic::write_atomic(&parent.path().join("tokenizer"), name.as_bytes()).unwrap();
            local_copy(parent.path(), FetchKind::Tokenizer).is_some()
        };
        assert!(
            is_found("a-tokenizer")
                && !is_found("../x")
                && !is_found("")
                && !is_found("b-tokenizer")
        );
        assert!(!is_found("."));
        // Folders of versions that fetched fewer files.
        write(CONTENT, &json!({"tokenizer.json": digest}).to_string());
        assert!(!is_found("a-tokenizer"));
    }
}
