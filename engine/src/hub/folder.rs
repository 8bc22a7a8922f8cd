//! A model folder that is being fetched: it takes its name when it is complete.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use longsift_stages::model::{ModelProblem, SlicedFile};
use serde::Serialize;

use super::machine;
use crate::files::{self, AtomicFile};
use crate::report::bytes;

/// What a slice says about itself, in `slice.json`.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    pub(super) repository: String,
    pub(super) commit: String,
    pub(super) endpoint: String,
    pub(super) tensors: Vec<String>,
    pub(super) fetched_bytes: u64,
    pub(super) checkpoint_bytes: u64,
}

/// A folder that is being filled by this process and no other.
pub(super) struct Partial {
    repository: PathBuf,
    commit: String,
    folder: PathBuf,
    /// Held until the folder is done or given up.
    _lock: File,
}

impl Partial {
    /// Waits until no other process fetches from this repository, and begins an empty folder.
    pub(super) fn begin(repository: &Path, commit: &str) -> Result<Self, ModelProblem> {
        files::create_folder(repository).map_err(machine)?;
        let path = repository.join("lock");
        let lock = files::open_read_write(&path).map_err(machine)?;
        if lock.try_lock().is_err() {
            tracing::info!(
                "waiting for another process that fetches into `{}`",
                repository.display()
            );
            lock.lock().map_err(|error| machine(files::failed("lock", &path)(error)))?;
        }
        // What a process left that was killed while it fetched.
        let folder = repository.join("partial");
        files::remove_folder(&folder).map_err(machine)?;
        files::create_folder(&folder).map_err(machine)?;
        Ok(Self {
            repository: repository.to_owned(),
            commit: commit.to_owned(),
            folder,
            _lock: lock,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Refuses what the disk has no room for.
    pub(super) fn check_space(&self, wanted: u64) -> Result<(), ModelProblem> {
        let free = files::free_bytes(&self.folder).map_err(machine)?;
        if wanted <= free {
            return Ok(());
        }
        let message = format!(
            "layer 0 takes {} in `{}`, where {} are free",
            bytes(wanted),
            self.repository.display(),
            bytes(free)
        );
        Err(ModelProblem::machine(message)
            .with_hint("free some space, or set `cache_folder` of `load-partial-model`"))
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<(), ModelProblem> {
        files::write_atomic(&self.folder.join(name), content).map(drop).map_err(machine)
    }

    /// Writes a small file of weights; `copy` hands on the bytes behind the header.
    pub(super) fn write_slice(
        &self,
        slice: &SlicedFile,
        copy: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), ModelProblem>) -> Result<(), ModelProblem>,
    ) -> Result<(), ModelProblem> {
        let path = self.folder.join(&slice.name);
        let mut file = AtomicFile::create(&path).map_err(machine)?;
        let mut put = |piece: &[u8]| {
            let written = file.write_all(piece);
            written.map_err(|error| machine(files::failed("write", &path)(error)))
        };
        put(&slice.header)?;
        copy(&mut put)?;
        let written = file.commit().map_err(machine)?;
        assert_eq!(written.bytes, slice.bytes(), "every range was handed on once");
        Ok(())
    }

    /// Names a slice by its commit and its tensors.
    pub(super) fn finish_slice(self, record: &Record) -> Result<PathBuf, ModelProblem> {
        let json = serde_json::to_vec_pretty(record).expect("plain data");
        self.write("slice.json", &json)?;
        let tensors = files::sha256_hex(record.tensors.join("\n").as_bytes());
        self.finish(&tensors[..12])
    }

    /// Gives the folder its name, `<commit>-<what>`.
    pub(super) fn finish(self, what: &str) -> Result<PathBuf, ModelProblem> {
        let folder = self.repository.join(format!("{}-{what}", self.commit));
        // One of that name could not be used, or it would have been.
        files::remove_folder(&folder).map_err(machine)?;
        files::rename(&self.folder, &folder).map_err(machine)?;
        Ok(folder)
    }
}
