//! Data sets of the hub: the files of one commit, read from the cache of the hub's own libraries, else by ranges.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longsift_stages::model::ModelProblem;

use super::reference::HubReference;
use crate::base::text;
use crate::storage::error::StorageError;
use crate::storage::files;
use crate::storage::hub::Hub;
use crate::storage::range_file::RangeFile;

/// Maximum bytes of a cached list: a million files take some hundred megabytes.
const MAX_LIST_BYTES: u64 = 1 << 30;

pub struct Tree {
    reference: HubReference,
    /// File lengths in bytes by name; `None` if unknown.
    files: BTreeMap<String, Option<u64>>,
    /// Path after the revision: a folder, a file or a glob; empty for the whole data set.
    pub(crate) wanted: String,
    /// Folder of this commit in the cache of the hub's libraries.
    snapshot: Option<PathBuf>,
    /// Note for the user, if the list of files may be incomplete.
    pub(crate) note: Option<String>,
    /// Reason why a file that is not on this machine is not fetched.
    why_absent: &'static str,
    #[cfg(feature = "cloud")]
    remote: Option<Arc<super::ranges::HubFiles>>,
}

impl Hub {
    /// Lists the files of the data set at `path`. Lists are cached, since a commit never changes.
    pub fn dataset(&self, path: &str) -> Result<Arc<Tree>, Vec<ModelProblem>> {
        let (reference, wanted) =
            HubReference::parse_dataset(path).map_err(|why| vec![ModelProblem::settings(why)])?;
        self.tree(&reference, wanted).map(Arc::new).map_err(|problem| vec![problem])
    }

    fn tree(&self, branch: &HubReference, wanted: String) -> Result<Tree, ModelProblem> {
        let commit = self.pinned(branch)?;
        let reference = branch.at_commit(&commit);
        let snapshot = self.home.snapshot(&reference, &commit);
        let list_file = self.repository(&reference).join(format!("{commit}-list.json"));
        let kept = files::read_limited(&list_file, MAX_LIST_BYTES).ok();
        let kept = kept.and_then(|json| serde_json::from_slice(&json).ok());
        let (files, note) = match (kept, &snapshot) {
            (Some(files), _) => (files, None),
            #[cfg(feature = "cloud")]
            (None, _) if !self.is_offline() => (self.request_list(&reference, &list_file)?, None),
            (None, Some(folder)) => {
                let mut files = BTreeMap::new();
                walk(folder, "", &mut files)?;
                let note = format!(
                    "the list of files of `{reference}` is not on this machine: using the {} in `{}` as the data set",
                    text::counted(files.len() as u64, "file"),
                    folder.display()
                );
                (files, Some(note))
            }
            (None, None) => return Err(self.absent(branch, &commit)),
        };
        Ok(Tree {
            #[cfg(feature = "cloud")]
            remote: self.remote(&reference)?,
            reference,
            files,
            wanted,
            snapshot,
            note,
            why_absent: self.why_absent(),
        })
    }
}

impl Tree {
    pub(crate) fn address(&self) -> String {
        self.reference.to_string()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    pub(crate) fn length(&self, name: &str) -> Option<u64> {
        self.files.get(name).copied().flatten()
    }

    /// Opens a file without sending a request.
    pub(crate) fn open(&self, name: &str) -> Result<RangeFile, ModelProblem> {
        let length = self.length(name);
        if let Some(file) = self.whole(name, length) {
            return Ok(file);
        }
        #[cfg(feature = "cloud")]
        if let (Some(remote), Some(length)) = (&self.remote, length) {
            return Ok(remote.open(name, length, &self.address()));
        }
        let message =
            format!("`{}/{name}` is not on this machine, and {}", self.reference, self.why_absent);
        let hint = format!("fetch it with `{}`", self.reference.download_command());
        Err(ModelProblem::settings(message).with_hint(hint))
    }

    fn whole(&self, name: &str, length: Option<u64>) -> Option<RangeFile> {
        let file = RangeFile::open_local(&self.snapshot.as_ref()?.join(name)).ok()?;
        // A commit never changes, wherever its files are.
        let is_whole = length.is_none_or(|length| length == file.length);
        is_whole.then(|| file.into_immutable(&self.address()))
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({}, {} files)", self.reference, self.files.len())
    }
}

/// Lists the files below a folder. Lengths are `None`: the file system has them.
fn walk(
    folder: &Path,
    prefix: &str,
    into: &mut BTreeMap<String, Option<u64>>,
) -> Result<(), StorageError> {
    for path in files::list_folder(folder)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let name = format!("{prefix}{name}");
        if files::is_folder(&path)? {
            walk(&path, &format!("{name}/"), into)?;
        } else {
            into.insert(name, None);
        }
    }
    Ok(())
}
