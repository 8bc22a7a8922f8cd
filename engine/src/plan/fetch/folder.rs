//! Model folder that is renamed to its final name when it is complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use longsift_stages::model::{ModelProblem, SlicedFile};
use serde::Serialize;

use super::stores::{CONTENT, SMALL_FILES, VERSIONS};
use crate::base::secrets::shown;
use crate::base::text::{self, bytes};
use crate::storage::atomic::{self, AtomicFile};
use crate::storage::error;
use crate::storage::files;
use crate::storage::http::remaining::Sink;
use crate::storage::marked;

const RECORD: &str = "slice.json";

/// Content of [`RECORD`]: the origin of a slice, for information.
#[derive(Debug, Serialize)]
struct SliceRecord<'a> {
    source: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    #[serde(flatten)]
    fetched: &'a FetchedModel,
}

#[derive(Debug, Serialize)]
pub(crate) struct FetchedModel {
    /// Tensors of layer 0, sorted.
    pub(crate) tensors: Vec<String>,
    pub(crate) fetched_bytes: u64,
    /// Bytes of the whole checkpoint.
    pub(crate) checkpoint_bytes: u64,
}

/// Folder that only this process fills.
pub(crate) struct PartialFolder {
    parent: PathBuf,
    folder: PathBuf,
    /// Held until the folder is complete or abandoned.
    _lock: File,
}

impl PartialFolder {
    /// Waits until no other process fetches into `parent`, and creates an empty folder.
    pub(crate) fn begin(parent: &Path) -> Result<Self, ModelProblem> {
        marked::create_folder(parent)?;
        let path = parent.join("lock");
        let lock = files::open_read_write(&path)?;
        if lock.try_lock().is_err() {
            tracing::info!("waiting for another process that fetches into `{}`", parent.display());
            lock.lock().map_err(error::failed("lock", &path))?;
        }
        // Remains of a process that was killed while it fetched.
        let folder = parent.join("partial");
        files::remove_folder(&folder)?;
        files::create_folder(&folder)?;
        Ok(Self { parent: parent.to_owned(), folder, _lock: lock })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn check_space(&self, wanted: u64) -> Result<(), ModelProblem> {
        let free = files::free_bytes(&self.folder)?;
        if wanted <= free {
            return Ok(());
        }
        let message = format!(
            "layer 0 requires {} in `{}`, but only {} are free",
            bytes(wanted),
            self.parent.display(),
            bytes(free)
        );
        Err(ModelProblem::machine(message)
            .with_hint("free some space, or set `cache_folder` of `load-partial-model`"))
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), ModelProblem> {
        atomic::write_atomic(&self.folder.join(name), content).map(drop).map_err(Into::into)
    }

    /// Writes a small file of weights; `copy` passes the bytes after the header.
    pub(crate) fn write_slice(
        &self,
        slice: &SlicedFile,
        copy: impl FnOnce(Sink<'_>) -> Result<(), ModelProblem>,
    ) -> Result<(), ModelProblem> {
        let path = self.folder.join(&slice.name);
        let mut file = AtomicFile::create(&path)?;
        let mut put = |piece: &[u8]| file.write_all(piece).map_err(error::failed("write", &path));
        put(&slice.header)?;
        copy(&mut put)?;
        let written = file.commit()?;
        assert_eq!(written.bytes, slice.bytes(), "every range is passed once");
        Ok(())
    }

    /// Renames the folder to `<version>-tokenizer` or `<version>-<digest of its tensors>`; records the origin of a model.
    pub(crate) fn finish(
        self,
        version: &str,
        source: &str,
        endpoint: Option<&str>,
        fetched: Option<&FetchedModel>,
    ) -> Result<PathBuf, ModelProblem> {
        let Some(fetched) = fetched else { return self.rename(&format!("{version}-tokenizer")) };
        let endpoint = endpoint.map(shown);
        let record = SliceRecord { source, endpoint: endpoint.as_deref(), fetched };
        let json = serde_json::to_vec_pretty(&record).expect("plain data");
        self.write(RECORD, &json)?;
        let digest = text::sha256_hex(fetched.tensors.join("\n").as_bytes());
        let folder = self.rename(&format!("{version}-{}", &digest[..12]))?;
        let FetchedModel { fetched_bytes, checkpoint_bytes, .. } = *fetched;
        tracing::info!(
            fetched_bytes,
            checkpoint_bytes,
            "fetched {} of {} of `{source}` into `{}`",
            bytes(fetched_bytes),
            bytes(checkpoint_bytes),
            folder.display()
        );
        Ok(folder)
    }

    fn rename(self, name: &str) -> Result<PathBuf, ModelProblem> {
        let mut digests = BTreeMap::new();
        for path in files::list_folder(&self.folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name != RECORD && name != VERSIONS {
                digests.insert(name, Some(files::digest(&path)?.sha256));
            }
        }
        for (name, _) in SMALL_FILES {
            digests.entry(name.to_owned()).or_default();
        }
        self.write(CONTENT, &serde_json::to_vec_pretty(&digests).expect("plain data"))?;
        let folder = self.parent.join(name);
        // An existing folder of that name is unusable, otherwise nothing would have been fetched.
        files::remove_folder(&folder)?;
        files::rename(&self.folder, &folder)?;
        Ok(folder)
    }
}
