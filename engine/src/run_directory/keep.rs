//! Small records of a run directory: written whole or not at all, read where they are there.

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
pub use crate::storage::files::Written;
use crate::storage::{atomic, files, marked};

/// Most records are written at once; a calibration of many groups goes piece by piece.
const BUFFER_BYTES: usize = 1 << 20;

/// Whether a file in a folder of scores or of a selection has a name that runs give.
fn is_of_run(path: &Path) -> bool {
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
    /// Writes a record in one step, as JSON that people can read: whoever looks sees the old one or the new one.
    #[expect(clippy::unused_self, reason = "records belong to a run directory")]
    pub fn write_json<T: Serialize>(&self, path: &Path, record: &T) -> Result<Written> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, AtomicFile::create(path)?);
        serde_json::to_writer_pretty(&mut file, record)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .and_then(|()| file.flush())
            .map_err(failed("write", path))?;
        Ok(file.get_mut().commit()?)
    }

    /// Writes a file of text and says what was written, by its name in the run directory.
    #[expect(clippy::unused_self, reason = "records belong to a run directory")]
    pub fn write_text(&self, path: &Path, name: &str, text: &str) -> Result<Part> {
        let written = atomic::write_atomic(path, text.as_bytes())?;
        let (path, bytes, sha256) = (name.to_owned(), written.bytes, written.sha256);
        Ok(Part { path, rows: 0, bytes, sha256 })
    }

    /// Reads a record; none where there is no file, or one that is not the record's JSON: what only informs never stands in the
    /// way.
    #[expect(clippy::unused_self, reason = "records belong to a run directory")]
    pub fn read_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let bytes = files::read_if_present(path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// How many of its files are asked for at a time: requests to a store wait for each other, a disk answers at once.
    pub fn concurrency(&self, on_disk: usize) -> usize {
        files::concurrency(&self.root, on_disk)
    }

    /// Whether the marker of a finished run is there.
    pub fn is_finished(&self) -> Result<bool> {
        Ok(files::size(&self.success())?.is_some())
    }

    /// Sets the marker of a finished run.
    pub fn mark_finished(&self) -> Result<()> {
        Ok(atomic::write_atomic(&self.success(), b"").map(drop)?)
    }

    /// Removes the list of units that a selection missed: nothing is missing any more.
    pub fn nothing_missing(&self) -> Result<()> {
        Ok(files::remove_file(&self.missing())?)
    }

    /// Whether any unit has a record.
    pub fn has_units(&self) -> Result<bool> {
        Ok(!files::list_if_present(&self.units())?.is_empty())
    }

    /// A text in the output's folder, beside `data/`, if there is one.
    pub fn output_text(&self, name: &str) -> Result<Option<String>> {
        let bytes = files::read_if_present(&self.output.join(name))?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The names of the files below `data/`, '/'-separated.
    pub fn data_files(&self) -> Result<Vec<String>> {
        let data = self.data();
        let paths = files::below_if_present(&data)?;
        let name = |path: &PathBuf| Some(path.strip_prefix(&data).ok()?.to_str()?.to_owned());
        Ok(paths.iter().filter_map(name).collect())
    }

    /// Empty folders to stage a selection in; what earlier attempts left is removed.
    pub fn begin_attempt(&self) -> Result<PartFolders> {
        self.remove_attempts()?;
        let folders = self.attempt();
        marked::create_folder(&folders.data)?;
        for part in ["dropped", "selection", "quarantine"] {
            files::create_folder(&folders.records.join(part))?;
        }
        Ok(folders)
    }

    /// Removes what a fresh start has scored, with its journals and answers on this machine.
    pub fn remove_fresh(&self) -> Result<()> {
        let fresh = self.fresh();
        for folder in [fresh.journal(), fresh.answers(), fresh.root] {
            files::remove_folder(&folder)?;
        }
        Ok(())
    }

    /// The files of scores and selections that runs wrote here, by the names that they give them.
    pub fn scored_and_selected_files(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for folder in self.committed_folders() {
            found.extend(
                files::list_if_present(&folder)?.into_iter().filter(|path| is_of_run(path)),
            );
        }
        Ok(found)
    }

    /// Files in the run directory that no run wrote, by their names.
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

    /// Removes what is staged.
    pub fn remove_attempts(&self) -> Result<()> {
        files::remove_folder(&self.staged_data())?;
        Ok(files::remove_folder(&self.staging())?)
    }

    /// Removes the record of a commit.
    pub fn remove_intent(&self) -> Result<()> {
        Ok(files::remove_file(&self.intent())?)
    }

    /// The journals of open units.
    pub fn journals(&self) -> Result<Vec<PathBuf>> {
        Ok(files::list_if_present(&self.journal())?)
    }

    /// Removes what only an unfinished run needs, and what one that was killed behind its commit may have left.
    pub fn remove_working_files(&self) -> Result<()> {
        self.remove_attempts()?;
        files::remove_file(&self.footers())?;
        files::remove_folder(&self.written())?;
        files::remove_folder(&self.written_data())?;
        self.remove_fresh()?;
        Ok(files::remove_folder(&self.journal())?)
    }
}
