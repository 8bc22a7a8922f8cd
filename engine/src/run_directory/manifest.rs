//! The manifest: input, settings and files of a run. It suffices to repeat the run and to verify its files.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::calibration::Calibration;
use super::layout::RunDirectory;
use super::pipeline_lock::{PipelineLock, read_versioned};
use super::seal::is_intact;
use super::summary::{Summary, TableUse};
use super::units::{self, Part, UnitRecord};
use crate::base::counts::is_zero;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::parallel;
use crate::base::text::{count, counted, sha256_hex};
use crate::dataset::input::Dataset;
use crate::dataset::input_file::InputFile;
use crate::storage::files;
use crate::storage::marked::Mark;

/// Hint for a commit that was interrupted.
pub const FINISH_COMMIT: &str =
    "run the command that was interrupted again: it finishes the commit";

const DAMAGED_HINT: &str = "it was damaged after it was written: restore it from a backup, or start from scratch with `--fresh`, which may require that \
     `data` is moved away";

/// `manifest.json`.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file's format.
    pub version: u32,
    /// Version of longsift.
    pub longsift: String,
    /// Time of the commit of the selection, UTC.
    pub committed: String,
    /// Settings, parameters and identities.
    pub lock: PipelineLock,
    /// Fingerprint of the selection's facts and of the records of all units. Runs with equal fingerprints write the same
    /// output.
    pub selection_fingerprint: String,
    /// Kernel that measured windows, and the devices; their name is null if the committing run measured nothing.
    pub device: Value,
    /// Use of the layer-zero table by the committing run; null if it measured nothing.
    #[serde(default)]
    pub table: Option<TableUse>,
    /// Input files: their identity and number of rows.
    pub input: Vec<Value>,
    /// Input files that could not be opened and are left out: path, size, error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad_files: Vec<Value>,
    /// File in `quarantine/` with the records of `bad_files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_files: Option<Part>,
    /// Input files that `input.since` left out, because the run it names or an earlier one filtered them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_before: Vec<KnownFile>,
    /// One record per work unit.
    pub units: Vec<UnitRecord>,
    /// Whether the output contains all samples and marks which are kept (`filter.mark_only`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mark_only: bool,
    /// Files of `data/`.
    pub data: Vec<Part>,
    /// Files of `dropped/` that belong to the selection.
    pub dropped: Vec<Part>,
    /// Files of `selection/`.
    pub selection: Vec<Part>,
    /// Calibration for later increments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Part>,
    /// Summary of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Part>,
    /// Beginning of the log of events, up to the commit; not in an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Part>,
    /// Dataset card of `output.card`, in the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Part>,
    /// Report of `output.report`, as HTML and JSON.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub report: Vec<Part>,
}

impl Manifest {
    pub const MARK: Mark = Mark::Keys(&["version", "longsift", "lock", "units"]);

    /// Reads the manifest of a run directory; `None` if it does not exist.
    pub fn read(directory: &RunDirectory) -> Result<Option<Self>> {
        Self::read_staged(&directory.manifest())
    }

    /// Reads a manifest that is not yet in place.
    pub fn read_staged(path: &Path) -> Result<Option<Self>> {
        read_versioned(path, "manifest", DAMAGED_HINT, is_intact)
    }

    /// Like [`Self::read`], but accepts a manifest that does not match its digest.
    pub fn read_unchecked(directory: &RunDirectory) -> Result<Option<Self>> {
        read_versioned(&directory.manifest(), "manifest", DAMAGED_HINT, |_| true)
    }

    /// Reads the manifest of the committed selection; `None` before a commit, during one, or after a fresh start has begun.
    ///
    /// # Errors
    /// The manifest is damaged, of another version or missing.
    pub fn read_last_selection(directory: &RunDirectory) -> Result<Option<Self>> {
        let is_interrupted =
            files::size(&directory.intent())?.is_some() || directory.has_fresh_start()?;
        if is_interrupted || !directory.is_finished()? {
            return Ok(None);
        }
        Self::read(directory)?.map(Some).ok_or_else(|| {
            let message = format!("the manifest `{}` is missing", directory.manifest().display());
            Diagnostic::error(Blame::Data, message).hint(DAMAGED_HINT).into()
        })
    }

    /// Reads the summary of the selection; an error if it is missing or was changed.
    pub fn read_summary(&self, directory: &RunDirectory) -> Result<Summary> {
        Self::read_record(directory, &directory.summary(), self.summary.as_ref())
    }

    /// Reads the calibration of the selection; an error if it is missing or was changed.
    pub fn read_calibration(&self, directory: &RunDirectory) -> Result<Calibration> {
        Self::read_record(directory, &directory.calibration(), self.calibration.as_ref())
    }

    fn read_record<T: DeserializeOwned>(
        directory: &RunDirectory,
        path: &Path,
        part: Option<&Part>,
    ) -> Result<T> {
        let is_committed = match part {
            Some(part) if files::size(path)?.is_some() => part.is_unchanged(&directory.root)?,
            part => part.is_none(),
        };
        let record = if is_committed { directory.read_json(path)? } else { None };
        record.ok_or_else(|| changed_after_commit(path).into())
    }

    /// Fails if a commit has begun and is not finished.
    pub fn check_committed(directory: &RunDirectory) -> Result<()> {
        if files::size(&directory.intent())?.is_none() {
            return Ok(());
        }
        let message = format!(
            "a commit in `{}` is unfinished: its files may belong to two selections",
            directory.root.display()
        );
        let hint = "`longsift run` finishes it; `longsift status` shows whether a run is under way";
        Err(Diagnostic::error(Blame::Data, message).hint(hint).into())
    }

    /// Reads the manifest of a finished run.
    ///
    /// # Errors
    /// The run is not finished, its files are partly replaced by those of an unfinished commit, or the manifest cannot be read.
    pub fn read_finished(directory: &RunDirectory) -> Result<Self> {
        Self::check_committed(directory)?;
        match Self::read_last_selection(directory)? {
            Some(manifest) => Ok(manifest),
            None => Self::read(directory)?.ok_or_else(|| not_finished(directory)),
        }
    }

    /// Like [`Self::read_finished`], for commands that read the tables of the selection. They call [`Self::check_current`] at
    /// their end.
    ///
    /// # Errors
    /// A table was changed after the commit. Reads the tables whose times do not show that they are unchanged.
    pub fn read_with_tables(directory: &RunDirectory) -> Result<Self> {
        let manifest = Self::read_finished(directory)?;
        manifest.scores_directory(directory)?;
        let Some(path) = manifest.changed_table(directory)? else { return Ok(manifest) };
        manifest.check_current(directory)?;
        Err(changed_after_commit(&path).into())
    }

    /// Returns the tables of the units and of the selection, each with its folder.
    fn tables(&self, directory: &RunDirectory) -> Vec<(PathBuf, &Part)> {
        let own = &directory.root;
        let scores =
            self.other_scores().ok().flatten().map_or_else(|| own.clone(), |other| other.root);
        let of_units = self.units.iter().flat_map(UnitRecord::parts);
        let of_units = of_units.map(|part| (scores.clone(), part));
        let of_selection = self.dropped.iter().chain(&self.selection);
        of_units.chain(of_selection.map(|part| (own.clone(), part))).collect()
    }

    /// Returns a digest of the names, sizes and times of the tables.
    pub fn state_of_tables(&self, directory: &RunDirectory) -> Result<String> {
        Self::state_of(directory, &self.tables(directory))
    }

    fn state_of(directory: &RunDirectory, tables: &[(PathBuf, &Part)]) -> Result<String> {
        let tables = tables.iter().map(|(folder, part)| (&*part.path, folder.join(&part.path)));
        directory.state_of(&tables.collect::<Vec<_>>())
    }

    /// Returns the path of a table that was changed after the commit.
    fn changed_table(&self, directory: &RunDirectory) -> Result<Option<PathBuf>> {
        let tables = self.tables(directory);
        let is_recorded = directory.recorded_states()?[1] == Self::state_of(directory, &tables)?;
        let original = parallel::in_order(tables.len(), directory.concurrency(1), |index| {
            let (folder, part) = &tables[index];
            Ok(part.is_original(folder, is_recorded)?)
        })?;
        let changed = tables.iter().zip(original).find(|(_, is_original)| !is_original);
        Ok(changed.map(|((folder, part), _)| folder.join(&part.path)))
    }

    /// Fails if a run has begun to commit another selection since this manifest was read.
    pub fn check_current(&self, directory: &RunDirectory) -> Result<()> {
        let is_committing = files::size(&directory.intent())?.is_some();
        if !is_committing && Self::read(directory)?.as_ref() == Some(self) {
            return Ok(());
        }
        let message = format!(
            "a run has replaced the selection in `{}` while it was read",
            directory.root.display()
        );
        Err(Diagnostic::error(Blame::Machine, message).hint("run the command again").into())
    }

    /// Reads the list of files in `data/` from the manifest at `path`, of any version; empty if it is damaged. Without paths outside
    /// the folder, which no run has written.
    pub fn data_of_any_version(directory: &RunDirectory, path: &Path) -> Result<Vec<Part>> {
        #[derive(Deserialize)]
        struct Named {
            data: Vec<Part>,
        }
        let named: Option<Named> = directory.read_json(path)?;
        let mut data = named.map_or(Vec::new(), |named| named.data);
        data.retain(Part::is_inside);
        Ok(data)
    }

    /// Returns the paths of the score tables in `directory` that its committed selection was made from.
    pub fn committed_scores(directory: &RunDirectory) -> Result<BTreeSet<String>> {
        let own = Self::read(directory)?.filter(|manifest| manifest.scores_from().is_none());
        let units = own.into_iter().flat_map(|manifest| manifest.units);
        Ok(units.map(|record| record.scores.path).collect())
    }

    /// Whether a run has begun to score units, in `directory`, after this selection.
    pub fn has_later_scores(&self, directory: &RunDirectory) -> Result<bool> {
        if !directory.journals()?.is_empty() {
            return Ok(true);
        }
        let selected: HashSet<String> = self.units.iter().map(UnitRecord::digest).collect();
        let committed = files::stamp(&directory.manifest())?.map(|stamp| stamp.modified_ns);
        for (path, record) in units::read_all(directory)? {
            // With `--scores-from`, the run's own earlier scores may be there as well.
            let is_later = self.scores_from().is_none()
                || files::stamp(&path)?.map(|stamp| stamp.modified_ns) > committed;
            if is_later && record.is_some_and(|record| !selected.contains(&record.digest())) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the run directory of `--scores-from`.
    pub fn scores_from(&self) -> Option<&str> {
        self.lock.recorded.as_ref()?.scores_from.as_deref()
    }

    /// Returns the directory with the scores of this run: `own`, or the one it selected from (`--scores-from`).
    ///
    /// # Errors
    /// The other run has replaced the scores since.
    pub fn scores_directory(&self, own: &RunDirectory) -> Result<RunDirectory> {
        let Some(other) = self.other_scores()? else { return Ok(own.clone()) };
        let selected = Self::read(&other)?.map(|manifest| manifest.units).unwrap_or_default();
        let now = units::records(&other)?;
        let tables =
            selected.iter().chain(&now).map(|record| (&record.scores.path, &record.scores.sha256));
        let tables: HashSet<_> = tables.collect();
        let replaced = self.units.iter().map(|record| (&record.scores.path, &record.scores.sha256));
        let replaced = replaced.filter(|table| !tables.contains(table)).count();
        if replaced == 0 {
            return Ok(other);
        }
        let message = format!(
            "the run in `{}` has replaced {} of {} that this selection was made from",
            other.root.display(),
            count(replaced as u64),
            counted(self.units.len() as u64, "score table")
        );
        Err(Diagnostic::error(Blame::Data, message)
            .hint(
                "select again from its present scores, or run the pipeline without `--scores-from`",
            )
            .into())
    }

    /// Opens the run directory of `--scores-from`, whose scores may have been replaced.
    pub fn other_scores(&self) -> Result<Option<RunDirectory>> {
        self.scores_from().map(|path| RunDirectory::open(Path::new(path))).transpose()
    }

    /// Whether every file of the selection exists with the recorded size and its records are unchanged; the log of events may have
    /// grown.
    pub fn is_in_place(&self, directory: &RunDirectory) -> Result<bool> {
        if let Some(events) = &self.events
            && files::size(&directory.events())?.is_none_or(|size| size < events.bytes)
        {
            return Ok(false);
        }
        if self.changed_table(directory)?.is_some() {
            return Ok(false);
        }
        let records = self.report.iter().chain(&self.quarantined_files).chain(&self.calibration);
        let records = records.chain(&self.summary).map(|part| (&directory.root, part));
        for (folder, part) in records.chain(self.card.iter().map(|part| (&directory.output, part)))
        {
            if !part.is_original(folder, false)? {
                return Ok(false);
            }
        }
        let data = directory.data();
        let in_place = parallel::in_order(self.data.len(), directory.concurrency(1), |index| {
            Ok(Part::all_in_place([&self.data[index]], &data)?)
        })?;
        Ok(in_place.into_iter().all(|in_place| in_place))
    }

    /// Returns the input files of this run, without those that earlier runs filtered.
    pub fn known_files(&self) -> impl Iterator<Item = KnownFile> {
        self.input.iter().filter_map(|file| serde_json::from_value(file.clone()).ok())
    }
}

/// Error: the command requires a finished run.
fn changed_after_commit(path: &Path) -> Diagnostic {
    let message = format!("`{}` is missing or was changed after the commit", path.display());
    Diagnostic::error(Blame::Data, message)
        .hint("`longsift verify` lists all damaged files and what to do")
}

fn not_finished(directory: &RunDirectory) -> Failure {
    let message = format!("`{}` has no finished run", directory.root.display());
    Diagnostic::error(Blame::Pipeline, message)
        .hint("`longsift run` finishes it; `longsift status` shows whether a run is under way")
        .into()
}

/// Identity of an input file of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, JsonSchema, Serialize, Deserialize)]
pub struct KnownFile {
    /// Path relative to the input root.
    pub path: String,
    /// SHA-256 of the file's absolute path or address.
    pub location_sha256: String,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
    /// SHA-256 of the Parquet footer.
    pub footer_hash: String,
    /// Hash of the entity tag of a remote file or of its commit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub version: u64,
}

impl KnownFile {
    pub fn for_dataset(dataset: &Dataset) -> Vec<Self> {
        // Links are resolved: a link such as `current` may point to another folder every day.
        let root = files::canonical(&dataset.root).unwrap_or_else(|_| dataset.root.clone());
        let known = |file: &InputFile| Self {
            path: file.path.clone(),
            location_sha256: sha256_hex(root.join(&file.path).as_os_str().as_encoded_bytes()),
            size: file.stamp.size,
            modified_ns: i64::try_from(file.stamp.modified_ns).unwrap_or(i64::MAX),
            footer_hash: file.footer_hash.clone(),
            version: file.stamp.version.into(),
        };
        dataset.files.iter().map(known).collect()
    }
}
