//! Small records of a run directory, written atomically.

use std::collections::HashSet;
use std::io;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::layout::{PartFolders, RunDirectory};
use super::units::Part;
use crate::base::error::Result;
use crate::storage::atomic::AtomicFile;
use crate::storage::error::failed;
pub use crate::storage::files::FileDigest;
use crate::storage::{atomic, files, marked};

/// Most records fit; a calibration with many groups is written in pieces.
const BUFFER_BYTES: usize = 1 << 20;

/// Whether a file in a folder of scores or of a selection has a name that runs create.
fn is_run_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    let (prefixes, extension): (&[&str], &str) = match &*folder.to_string_lossy() {
        "units" => (&[""], ".json"),
        "dropped" => (&["score-", "select-"], ".parquet"),
        "quarantine" => (&["part-", "files"], ".parquet"),
        _ => (&["part-"], ".parquet"),
    };
    let is_named = prefixes.iter().any(|prefix| name.starts_with(prefix));
    is_named && !name.starts_with('.') && name.ends_with(extension)
}

impl RunDirectory {
    /// Writes a record as indented JSON, atomically: readers see the old record or the new one.
    #[expect(clippy::unused_self, reason = "records belong to a run directory")]
    pub fn write_json<T: Serialize>(&self, path: &Path, record: &T) -> Result<FileDigest> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, AtomicFile::create(path)?);
        serde_json::to_writer_pretty(&mut file, record)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.flush())
            .map_err(failed("write", path))?;
        Ok(file.get_mut().commit()?)
    }

    /// Writes a text file and returns its part, called `name` in the run directory.
    #[expect(clippy::unused_self, reason = "records belong to a run directory")]
    pub fn write_text(&self, path: &Path, name: &str, text: &str) -> Result<Part> {
        let written = atomic::write_atomic(path, text.as_bytes())?;
        let (path, bytes, sha256) = (name.to_owned(), written.bytes, written.sha256);
        Ok(Part { path, rows: 0, bytes, sha256 })
    }

    /// Reads a record; `None` if the file does not exist or is not valid: a file that is only informative never fails a run.
    #[expect(clippy::unused_self, reason = "records belong to a run directory")]
    pub fn read_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let bytes = files::read_if_present(path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Number of concurrent requests for its files: high for a store, `on_disk` for a disk.
    pub fn concurrency(&self, on_disk: usize) -> usize {
        files::concurrency(&self.root, on_disk)
    }

    /// Whether the run is marked as finished.
    pub fn is_finished(&self) -> Result<bool> {
        Ok(files::size(&self.success())?.is_some())
    }

    /// Marks the run as finished.
    pub fn mark_finished(&self) -> Result<()> {
        Ok(atomic::write_atomic(&self.success(), b"").map(drop)?)
    }

    /// Removes the list of missing work units.
    pub fn remove_missing_list(&self) -> Result<()> {
        Ok(files::remove_file(&self.missing())?)
    }

    pub fn has_units(&self) -> Result<bool> {
        Ok(!files::list_if_present(&self.units())?.is_empty())
    }

    /// Reads a text file in the output folder, next to `data/`.
    pub fn output_text(&self, name: &str) -> Result<Option<String>> {
        let bytes = files::read_if_present(&self.output.join(name))?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Names of the files below `data/`, separated by `/`.
    pub fn data_files(&self) -> Result<Vec<String>> {
        let data = self.data();
        let paths = files::below_if_present(&data)?;
        let name = |path: &PathBuf| Some(path.strip_prefix(&data).ok()?.to_str()?.to_owned());
        Ok(paths.iter().filter_map(name).collect())
    }

    /// Creates empty staging folders for a selection and removes those of earlier attempts.
    pub fn begin_attempt(&self) -> Result<PartFolders> {
        self.remove_attempts()?;
        let folders = self.attempt();
        marked::create_folder(&folders.data)?;
        for part in ["dropped", "selection", "quarantine"] {
            files::create_folder(&folders.records.join(part))?;
        }
        Ok(folders)
    }

    /// Removes the scores of `--fresh`, with its journals and answers on this machine.
    pub fn remove_fresh(&self) -> Result<()> {
        let fresh = self.fresh();
        for folder in [fresh.journal(), fresh.answers(), fresh.root] {
            files::remove_folder(&folder)?;
        }
        Ok(())
    }

    /// Lists the files of scores and selections that have names that runs create.
    pub fn scored_and_selected_files(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for folder in self.committed_folders() {
            found.extend(
                files::list_if_present(&folder)?.into_iter().filter(|path| is_run_file(path)),
            );
        }
        Ok(found)
    }

    /// Lists files in the run directory that have names that runs do not create.
    pub fn foreign_files(&self) -> Result<Vec<PathBuf>> {
        let own: HashSet<PathBuf> = self.own_names().into_iter().collect();
        let tables: HashSet<PathBuf> = self.scored_and_selected_files()?.into_iter().collect();
        let working = self.working_folders().into_iter().chain([self.selection()]);
        let whole: Vec<PathBuf> = working.collect();
        let is_own = |path: &PathBuf| {
            let top = path.ancestors().find(|above| above.parent() == Some(&*self.root));
            let top = top.unwrap_or(path).to_path_buf();
            let is_hidden = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(files::TEMPORARY_PREFIX));
            let in_tables = whole.contains(&top) && top != self.journal() && top != self.answers();
            is_hidden || own.contains(&top) && (!in_tables || tables.contains(path))
        };
        let all = files::below_if_present(&self.root)?.into_iter();
        Ok(all.filter(|path| !is_own(path)).collect())
    }

    /// Removes staged files.
    pub fn remove_attempts(&self) -> Result<()> {
        files::remove_folder(&self.staged_data())?;
        Ok(files::remove_folder(&self.staging())?)
    }

    /// Removes the record of a commit.
    pub fn remove_intent(&self) -> Result<()> {
        Ok(files::remove_file(&self.intent())?)
    }

    /// Lists the journals of open units.
    pub fn journals(&self) -> Result<Vec<PathBuf>> {
        Ok(files::list_if_present(&self.journal())?)
    }

    /// Removes files that only an unfinished run needs, and leftovers of a run that was killed after its commit.
    pub fn remove_working_files(&self) -> Result<()> {
        self.remove_attempts()?;
        files::remove_file(&self.footers())?;
        files::remove_folder(&self.written())?;
        files::remove_folder(&self.written_data())?;
        self.remove_fresh()?;
        Ok(files::remove_folder(&self.journal())?)
    }
}
