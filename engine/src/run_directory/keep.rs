//! Small records of a run directory, written atomically.

use std::collections::HashSet;
use std::io;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::layout::{CARDS, PartFolders, RECORDS, RunDirectory};
use super::manifest::Manifest;
use super::seal::is_intact;
use super::units::{NEXT, Part};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::{parallel, text};
use crate::dataset::part;
use crate::storage::atomic::AtomicFile;
use crate::storage::error::failed;
use crate::storage::files::FileDigest;
use crate::storage::marked::{self, Mark};
use crate::storage::{atomic, files};

/// Size of the write buffer. Most records fit; a calibration with many groups is written in pieces.
const BUFFER_BYTES: usize = 1 << 20;

/// Whether a name has the form of the digest of a work unit or a run directory.
fn is_digest(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a file in a folder of a run directory has a name that runs create.
fn is_run_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    let (prefixes, extension): (&[&str], &str) = match &*folder.to_string_lossy() {
        "units" => (&[""], ".json"),
        "dropped" => (&["score-", "select-"], ".parquet"),
        "quarantine" => (&["part-", "files"], ".parquet"),
        "scores" | "selection" => (&["part-"], ".parquet"),
        "events" => (&[""], ".jsonl"),
        // The journals of a run directory in an object store are in a folder of the cache.
        folder if matches!(folder, "journal" | "answers") || is_digest(folder) => {
            return is_digest(name.split('.').next().unwrap_or_default());
        }
        _ => return RECORDS.iter().chain(&CARDS).any(|record| *record == name),
    };
    let is_named = prefixes.iter().any(|prefix| name.starts_with(prefix));
    is_named && !name.starts_with('.') && name.ends_with(extension)
}

#[expect(clippy::unused_self, reason = "records belong to a run directory")]
impl RunDirectory {
    /// Writes a record as indented JSON, atomically: readers see the old record or the new one.
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
    pub fn write_text(&self, path: &Path, name: &str, text: &[u8]) -> Result<Part> {
        Ok(Part::without_rows(name, atomic::write_atomic(path, text)?))
    }

    /// Writes a record to `folder` and returns its part, called `name` in the run directory.
    pub fn write_record<T: Serialize>(
        &self,
        folder: &Path,
        name: &str,
        record: &T,
    ) -> Result<Part> {
        Ok(Part::without_rows(name, self.write_json(&folder.join(name), record)?))
    }

    /// Reads a sealed record; `None` if the file does not exist, is not valid or does not match its digest.
    pub fn read_intact<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let bytes = files::read_if_present(path)?.filter(|bytes| is_intact(bytes));
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Reads a record; `None` if the file does not exist or is not valid: a file that is only informative never fails a run.
    pub fn read_json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>> {
        let bytes = files::read_if_present(path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Returns the number of concurrent requests for files of this directory: high for an object store, `on_disk` for a disk.
    pub fn concurrency(&self, on_disk: usize) -> usize {
        files::concurrency(&self.root, on_disk)
    }

    pub fn is_finished(&self) -> Result<bool> {
        Ok(files::size(&self.success())?.is_some())
    }

    /// Writes `_SUCCESS`, with the states of files that have been read or just written; empty states make the next run read them.
    pub fn mark_finished(&self, states: &[String; 2]) -> Result<()> {
        let text = states.each_ref().map(|state| format!("{state}\n")).concat();
        Ok(atomic::write_atomic(&self.success(), text.as_bytes()).map(drop)?)
    }

    /// Returns the states of `data/` and of the tables: times of single files do not show that a whole folder was exchanged for an
    /// older one.
    pub fn states(&self) -> Result<[String; 2]> {
        // A damaged manifest is reported by its readers.
        let manifest = Manifest::read_unchecked(self).ok().flatten();
        let tables = manifest.map(|manifest| manifest.state_of_tables(self));
        Ok([self.state_of_data()?, tables.transpose()?.unwrap_or_default()])
    }

    /// Returns the states of `data/` and of the tables after the commit; empty if they are not recorded.
    pub fn recorded_states(&self) -> Result<[String; 2]> {
        let recorded = files::read_if_present(&self.success())?.unwrap_or_default();
        let recorded = String::from_utf8_lossy(&recorded);
        let mut lines = recorded.lines().map(str::to_owned);
        Ok([(); 2].map(|()| lines.next().unwrap_or_default()))
    }

    fn state_of_data(&self) -> Result<String> {
        let (data, mut names) = (self.data(), self.data_files()?);
        names.sort_unstable();
        let files: Vec<_> = names.iter().map(|name| (&**name, data.join(name))).collect();
        self.state_of(&files)
    }

    /// Returns a digest of the names, sizes and times of files.
    pub fn state_of(&self, files: &[(&str, PathBuf)]) -> Result<String> {
        let stamps = parallel::in_order(files.len(), self.concurrency(1), |index| {
            Ok((files[index].0, files::stamp(&files[index].1)?))
        })?;
        Ok(text::sha256_hex(&serde_json::to_vec(&stamps).expect("stamps are plain data")))
    }

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

    /// Lists the paths of the files below `data/`, relative to it.
    pub fn data_files(&self) -> Result<Vec<String>> {
        let data = self.data();
        let paths = files::below_if_present(&data)?;
        let name = |path: &PathBuf| Some(path.strip_prefix(&data).ok()?.to_str()?.to_owned());
        Ok(paths.iter().filter_map(name).collect())
    }

    /// Returns the files of `data/` that are unchanged since the commit. Reads all if their times are others than those after it.
    pub fn original_data<'a>(&self, parts: &'a [Part]) -> Result<Vec<&'a Part>> {
        let (data, is_recorded) =
            (self.data(), self.recorded_states()?[0] == self.state_of_data()?);
        let original = parallel::in_order(parts.len(), self.concurrency(1), |index| {
            Ok(parts[index].is_original(&data, is_recorded)?)
        })?;
        let original = parts.iter().zip(original).filter(|(_, is_original)| *is_original);
        Ok(original.map(|(part, _)| part).collect())
    }

    /// Checks that the sticky bit of a folder does not keep this user from replacing or removing a file of another user.
    pub fn check_replaceable(&self, paths: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        let Some(path) = paths.into_iter().find(|path| files::is_protected(path)) else {
            return Ok(());
        };
        let message = format!(
            "`{}` belongs to another user, and its folder has the sticky bit, so it cannot be replaced or removed",
            path.display()
        );
        Err(Diagnostic::error(Blame::Machine, message)
            .hint("the previous output is unchanged; remove the bit (`chmod -t`), or run as the owner of the file")
            .into())
    }

    fn marked_reports(&self) -> [(PathBuf, Mark); 2] {
        [(self.report_page(), Mark::PAGE), (self.report(), Self::REPORT_MARK)]
    }

    /// Checks that the report of a run replaces no file of another program.
    pub fn check_reports(&self) -> Result<()> {
        self.marked_reports().into_iter().try_for_each(|(path, mark)| marked::check(&path, mark))
    }

    /// Returns the existing report and list of missing units, if longsift wrote them.
    pub fn own_report_and_missing_list(&self) -> Result<Vec<PathBuf>> {
        let mut own = Vec::new();
        let missing = (self.missing(), Self::MISSING_MARK);
        for (path, mark) in self.marked_reports().into_iter().chain([missing]) {
            if marked::carries(&path, mark)? {
                own.push(path);
            }
        }
        Ok(own)
    }

    /// Creates empty staging folders for a selection and removes those of earlier attempts.
    pub fn begin_attempt(&self) -> Result<PartFolders> {
        self.remove_attempts()?;
        let folders = self.attempt();
        marked::create_folder(&folders.data)?;
        for part in ["dropped", "selection", "quarantine", "units"] {
            files::create_folder(&folders.records.join(part))?;
        }
        Ok(folders)
    }

    /// Removes the scores of `--fresh`, with its journals and answers on this machine.
    pub fn remove_fresh(&self) -> Result<()> {
        let fresh = self.fresh();
        [fresh.journal(), fresh.answers(), fresh.root].iter().try_for_each(|folder| remove(folder))
    }

    /// Lists the files of scores and selections with names that runs create.
    pub fn scored_and_selected_files(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for folder in self.committed_folders() {
            let files = files::list_if_present(&folder)?.into_iter();
            found.extend(files.filter(|path| is_run_file(path)));
        }
        Ok(found)
    }

    /// Lists the records and tables of scored units.
    pub fn unit_files(&self) -> Result<Vec<PathBuf>> {
        let is_of_unit = |path: &PathBuf| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let unprefixed =
                ["part-", "score-"].iter().find_map(|prefix| stem.strip_prefix(prefix));
            let name = unprefixed.unwrap_or(&stem);
            is_run_file(path) && is_digest(name.strip_suffix(NEXT).unwrap_or(name))
        };
        let folders = [self.scores(), self.units(), self.dropped(), self.quarantine()];
        let files = folders.iter().map(|folder| files::list_if_present(folder));
        let files = files.collect::<std::result::Result<Vec<_>, _>>()?.into_iter().flatten();
        Ok(files.filter(is_of_unit).collect())
    }

    /// Lists files in the run directory with names that runs do not create.
    pub fn foreign_files(&self) -> Result<Vec<PathBuf>> {
        let own: HashSet<PathBuf> = self.own_names().into_iter().collect();
        let is_own = |path: &PathBuf| {
            let top = path.ancestors().find(|above| above.parent() == Some(&*self.root));
            let is_record = top == Some(&**path) || top == Some(&*self.events_by_process());
            files::is_temporary(path)
                || top.is_some_and(|top| own.contains(top)) && (is_record || is_run_file(path))
        };
        let all = files::below_if_present(&self.root)?.into_iter();
        Ok(all.filter(|path| !is_own(path)).collect())
    }

    pub fn remove_attempts(&self) -> Result<()> {
        remove(&self.staged_data())?;
        remove(&self.staging())
    }

    pub fn remove_intent(&self) -> Result<()> {
        Ok(files::remove_file(&self.intent())?)
    }

    /// Lists the journals of open units.
    pub fn journals(&self) -> Result<Vec<PathBuf>> {
        let mut journals = files::list_if_present(&self.journal())?;
        journals.retain(|path| is_run_file(path));
        Ok(journals)
    }

    /// Removes files that only an unfinished run needs, and leftovers of a run that was killed after its commit. A fresh start
    /// with other settings stays.
    pub fn remove_working_files(&self) -> Result<()> {
        self.remove_attempts()?;
        files::remove_file(&self.footers())?;
        remove(&self.written())?;
        remove(&self.written_data())?;
        if !self.has_fresh_start()? {
            self.remove_fresh()?;
        }
        remove(&self.journal())
    }
}

/// Whether a file below `top`, a folder of uncommitted data files, has a name that runs create.
fn is_data_file(top: &Path, path: &Path) -> bool {
    let inside = path.strip_prefix(top).unwrap_or(path);
    // In an object store, data files are in `data/` next to the records.
    let is_data = top.file_name().unwrap_or_default().as_encoded_bytes().starts_with(b".")
        || inside.parent().is_some_and(|parents| parents.iter().any(|name| name == "data"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_data && part::endings().any(|ending| name.ends_with(ending))
}

/// Removes a folder of a run directory, except foreign files. If there are any, the marker file stays as well.
fn remove(folder: &Path) -> Result<()> {
    files::remove_matching(folder, &|path| {
        is_run_file(path) || files::is_temporary(path) || is_data_file(folder, path)
    })?;
    if files::list_if_present(folder)? == [folder.join(marked::MARKER)] {
        files::remove_folder(folder)?;
    }
    Ok(())
}
