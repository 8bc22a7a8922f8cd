//! Cache of built tables: a folder that runs, users and processes may share.
//!
//! ```text
//! identities/<identity>.json   digest of the weights that a model folder held when it was last read
//! tables/<fingerprint>.table   a layer-zero table
//! ```
//!
//! A file is written and synced under a temporary name, then renamed; if two processes build the same table, the second
//! replaces the first one's equal file. A damaged file, or one of another version, is rebuilt. A builder holds a file
//! lock on its partial file, so that partial files of dead builders can be recognised and removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use longsift_kernels::Kernel;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::aux_tensors::{aux_name, aux_tensors};
use super::build::{self, TABLE_VERSION};
use super::checkpoint::ModelFolder;
use super::folder_files::read_small_file;
use super::problem::ModelProblem;
use super::table::{LayerZeroTable, TableHeader, TableWriter};
use crate::contract::sha256;
use crate::load_partial_model::Precision;

/// Age at which a partial file of another machine, whose locks may not be visible here, is considered abandoned.
const ABANDONED_AFTER: Duration = Duration::from_hours(48);
const MAX_IDENTITY_BYTES: u64 = 4096;

/// A table that is ready for use, and its origin.
#[derive(Debug)]
pub struct OpenedTable {
    pub table: LayerZeroTable,
    /// Digest of the model's content: see [`known_digest`].
    pub model_digest: String,
    /// Digest of the weights alone: see [`known_weights_digest`].
    pub weights_digest: String,
    pub from_cache: bool,
    /// Bytes of weights read: 0 from the cache, otherwise exactly [`ModelFolder::bytes_to_read`].
    pub bytes_read: u64,
    /// Warnings, for example about damaged cache files that were replaced.
    pub warnings: Vec<String>,
}

/// Cache entry of a model folder.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    identity: String,
    weights_digest: String,
    /// SHA-256 of the other two fields, which detects a damaged file.
    check: String,
}

impl Remembered {
    fn new(identity: String, weights_digest: String) -> Self {
        let check = sha256(format!("{identity} {weights_digest}"));
        Self { identity, weights_digest, check }
    }
}

impl LayerZeroTable {
    /// Opens a model's table from the cache, or builds it and stores it there. A cached table is read completely, once per
    /// process, and compared with its hash: bits that flip on a disk would change scores silently. `progress` is called
    /// with the rows built and the total.
    pub fn open_or_build(
        model: &ModelFolder,
        kernel: Kernel,
        precision: Precision,
        cache_folder: &Path,
        progress: &dyn Fn(u64, u64),
    ) -> Result<OpenedTable, ModelProblem> {
        let precision = precision.table_precision();
        let cache = Cache { folder: cache_folder };
        remove_abandoned(&cache.tables());
        remove_abandoned(&cache.identities());
        let mut warnings = Vec::new();
        if let Some(weights_digest) = cache.remembered(model, &mut warnings)
            && let Some(table) =
                cache.table(model, kernel, precision, &weights_digest, true, &mut warnings)
        {
            return Ok(OpenedTable {
                table,
                model_digest: model_digest(model, &weights_digest),
                weights_digest,
                from_cache: true,
                bytes_read: 0,
                warnings,
            });
        }
        cache.build(model, kernel, precision, progress, warnings)
    }

    /// Returns a model's table and its [digest](known_digest) if the cache has both; does not compare the table with its hash.
    pub fn cached(
        model: &ModelFolder,
        kernel: Kernel,
        precision: Precision,
        cache_folder: &Path,
    ) -> Option<(Self, String)> {
        let (cache, mut warnings) = (Cache { folder: cache_folder }, Vec::new());
        let (precision, weights_digest) =
            (precision.table_precision(), cache.remembered(model, &mut warnings)?);
        let table = cache.table(model, kernel, precision, &weights_digest, false, &mut warnings)?;
        Some((table, model_digest(model, &weights_digest)))
    }
}

/// Returns the SHA-256 over the digests of a model's weights and of its layer if the weights have not changed since they were
/// cached. It depends on no time, path or machine. Reads no weights.
pub fn known_digest(model: &ModelFolder, cache_folder: &Path) -> Option<String> {
    known_weights_digest(model, cache_folder).map(|weights| model_digest(model, &weights))
}

/// Returns the SHA-256 of layer 0's tensors if they have not changed since they were cached. Reads no weights.
pub fn known_weights_digest(model: &ModelFolder, cache_folder: &Path) -> Option<String> {
    Cache { folder: cache_folder }.remembered(model, &mut Vec::new())
}

fn model_digest(model: &ModelFolder, weights_digest: &str) -> String {
    let content = json!({ "weights": weights_digest, "layer": model.spec().digest() });
    sha256(content.to_string())
}

/// Returns the header of a model's table. The rotary embedding and the rules for logits do not affect the table.
fn header(
    model: &ModelFolder,
    kernel: Kernel,
    precision: Precision,
    weights_digest: &str,
) -> TableHeader {
    let spec = model.spec();
    let mut content = json!({
        "builder": TABLE_VERSION,
        "kernel": kernel.for_weights().name(),
        "norm": spec.norm,
        "precision": precision,
        "row_width": spec.row_width(),
        "rows": spec.vocabulary_size,
        "weights": weights_digest,
    });
    let more = json!({
        "clip": spec.clip,
        "embedding": spec.embedding,
        "head_norm": spec.head_norm,
        "latent": spec.latent,
    });
    if more != json!({ "clip": null, "embedding": {}, "head_norm": null, "latent": null }) {
        content["more"] = more;
    }
    let aux = aux_tensors(spec).into_iter();
    TableHeader {
        fingerprint: sha256(content.to_string()),
        rows: spec.vocabulary_size,
        row_width: spec.row_width(),
        precision,
        side: aux.map(|(array, length)| (aux_name(array).to_owned(), length)).collect(),
    }
}

struct Cache<'a> {
    folder: &'a Path,
}

impl Cache<'_> {
    fn tables(&self) -> PathBuf {
        self.folder.join("tables")
    }

    fn identities(&self) -> PathBuf {
        self.folder.join("identities")
    }

    fn table_path(&self, header: &TableHeader) -> PathBuf {
        self.tables().join(format!("{}.table", header.fingerprint))
    }

    fn identity_path(&self, identity: &str) -> PathBuf {
        self.identities().join(format!("{identity}.json"))
    }

    fn remembered(&self, model: &ModelFolder, warnings: &mut Vec<String>) -> Option<String> {
        let identity = model.weights_identity();
        let path = self.identity_path(&identity);
        if !path.exists() {
            return None;
        }
        let remembered = read_small_file(&path, MAX_IDENTITY_BYTES).ok();
        let remembered =
            remembered.and_then(|bytes| serde_json::from_slice::<Remembered>(&bytes).ok());
        let intact = |remembered: &Remembered| {
            *remembered == Remembered::new(identity.clone(), remembered.weights_digest.clone())
        };
        let digest = remembered.filter(intact).map(|remembered| remembered.weights_digest);
        if digest.is_none() {
            warnings
                .push(format!("cache file `{}` is damaged and will be replaced", path.display()));
        }
        digest
    }

    fn table(
        &self,
        model: &ModelFolder,
        kernel: Kernel,
        precision: Precision,
        weights_digest: &str,
        verifies: bool,
        warnings: &mut Vec<String>,
    ) -> Option<LayerZeroTable> {
        let header = header(model, kernel, precision, weights_digest);
        let path = self.table_path(&header);
        if !path.exists() {
            return None;
        }
        let opened = LayerZeroTable::open(&path, &header).and_then(|table| {
            let intact = if verifies { table.verify() } else { Ok(()) };
            intact.map(|()| table)
        });
        match &opened {
            Ok(table) => warnings.extend(table.memory_warning(&path)),
            Err(why) => warnings.push(format!(
                "cache file `{}` is damaged and will be replaced: {why}",
                path.display()
            )),
        }
        opened.ok()
    }

    fn build(
        &self,
        model: &ModelFolder,
        kernel: Kernel,
        precision: Precision,
        progress: &dyn Fn(u64, u64),
        mut warnings: Vec<String>,
    ) -> Result<OpenedTable, ModelProblem> {
        let folder = self.tables();
        fs::create_dir_all(&folder).map_err(|error| ModelProblem::writing(&folder, &error))?;
        let (partial, file) =
            Partial::create(&folder).map_err(|error| ModelProblem::writing(&folder, &error))?;
        let failed = |error: io::Error| ModelProblem::writing(&partial.path, &error);
        let unfinished = header(model, kernel, precision, "");
        let mut writer = TableWriter::new(file, unfinished).map_err(failed)?;
        let built =
            build::build(model, kernel, progress, &mut |rows| writer.write(rows).map_err(failed))?;
        let header = header(model, kernel, precision, &built.weights_digest);
        writer.write_aux(&built.aux).map_err(failed)?;
        writer.finish(header.fingerprint.clone()).map_err(failed)?;
        let path = self.table_path(&header);
        partial.commit(&path).map_err(|error| ModelProblem::writing(&path, &error))?;
        self.remember(model, &built.weights_digest)?;
        let table = LayerZeroTable::open(&path, &header).map_err(|why| {
            ModelProblem::machine(format!(
                "cannot open the table that was just written, `{}`: {why}",
                path.display()
            ))
        })?;
        warnings.extend(table.memory_warning(&path));
        Ok(OpenedTable {
            table,
            model_digest: model_digest(model, &built.weights_digest),
            weights_digest: built.weights_digest,
            from_cache: false,
            bytes_read: built.bytes_read,
            warnings,
        })
    }

    fn remember(&self, model: &ModelFolder, weights_digest: &str) -> Result<(), ModelProblem> {
        let identity = model.weights_identity();
        let path = self.identity_path(&identity);
        let remembered = Remembered::new(identity, weights_digest.to_owned());
        let json = serde_json::to_vec(&remembered).expect("three texts");
        let write = || {
            let folder = path.parent().expect("an identity is in a folder");
            fs::create_dir_all(folder)?;
            let (partial, mut file) = Partial::create(folder)?;
            file.write_all(&json)?;
            file.sync_all()?;
            partial.commit(&path)
        };
        write().map_err(|error| ModelProblem::writing(&path, &error))
    }
}

/// A file under a temporary name, removed when it is dropped before [`Self::commit`].
struct Partial {
    path: PathBuf,
    committed: bool,
    /// Holds the lock.
    _file: File,
}

pub(super) fn machine() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

impl Partial {
    fn create(folder: &Path) -> io::Result<(Self, File)> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        loop {
            let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let count = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name =
                format!("{}-{}-{}-{count}.partial", machine(), process::id(), time.as_nanos());
            let path = folder.join(name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            let locked = file.try_lock();
            let partial = Self { path, committed: false, _file: file.try_clone()? };
            let keeps = match locked {
                // Before the file was locked, another process may have removed it as abandoned, or be about to do so.
                Ok(()) => partial.path.exists(),
                Err(TryLockError::WouldBlock) => false,
                // Without locks, partial files are removed by age alone.
                Err(TryLockError::Error(_)) => true,
            };
            if keeps {
                return Ok((partial, file));
            }
        }
    }

    /// Renames the file, which has been synced, and syncs the folder.
    fn commit(mut self, name: &Path) -> io::Result<()> {
        fs::rename(&self.path, name)?;
        self.committed = true;
        File::open(name.parent().expect("a cache file has a folder"))?.sync_all()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes partial files of processes that died while building. Errors are ignored.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let ours = format!("{}-", machine());
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.extension().is_none_or(|extension| extension != "partial") {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        let modified = file.metadata().and_then(|metadata| metadata.modified());
        let old = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED_AFTER));
        // Held until the file is removed, so that its builder either holds the lock or finds the file missing.
        let abandoned = match file.try_lock() {
            Ok(()) => old || name.to_string_lossy().starts_with(&ours),
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => old,
        };
        if abandoned {
            let _ = fs::remove_file(&path);
        }
    }
}
