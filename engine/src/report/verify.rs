//! `longsift verify`: compares the files of a run directory with its records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use arrow_schema::Schema;
use longsift_kernels::Kernel;
use longsift_stages::model::{LayerZeroTable, ModelFolder, known_weights_digest};
use serde::Serialize;

use crate::base::counts::Counts;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::text::{bytes, count, counted, line_safe};
use crate::plan::columns;
use crate::plan::fetch::RemoteModels;
use crate::plan::fetch::stores::FetchKind;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::{FINISH_COMMIT, Manifest};
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::seal::is_intact;
use crate::run_directory::summary::Summary;
use crate::run_directory::table::Table;
use crate::run_directory::units::{self, Part, PlannedScores, UnitRecord};
use crate::run_directory::{dropped, scores, selected};
use crate::spec::{Overrides, Spec};
use crate::storage::files;
use crate::storage::hub::{HubOptions, Network};

#[derive(Clone, Debug, Default, Serialize)]
pub struct Verification {
    pub run_dir: String,
    /// Whether the run is complete; of an incomplete run the scored units are checked.
    pub finished: bool,
    pub files: u64,
    pub bytes: u64,
    pub rows: u64,
    /// Work units that an interrupted run scored after the selection; the next commit replaces those of the selection.
    pub units_scored_since: u64,
    /// Whether they are scored with other settings, which a run of the manifest's settings refuses to mix.
    #[serde(skip)]
    has_later_settings: bool,
    /// Finding about the cached layer-zero table.
    pub table: &'static str,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Responsible party: the one who changed a file, or longsift.
    pub blame: Blame,
    /// The file or the equation.
    pub what: String,
    pub message: String,
    #[serde(skip)]
    remedy: Remedy,
}

/// Record of a unit with its path; `None` if it is damaged.
type ReadRecord = (PathBuf, Option<UnitRecord>);

const DAMAGED_RECORD: &str = "missing, damaged or written by an earlier build";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    /// The interrupted command runs again.
    Finish,
    /// The next run names the moved run directory with the scores.
    NameScores,
    /// The next run selects from the present scores of the other run.
    SelectAgain,
    /// The file is removed, and the next run writes it again.
    Rebuild,
    /// The file is moved away: nothing needs it.
    MoveAway,
    /// The manifest is restored from a backup, or the output is moved away.
    RestoreManifest,
    /// The file is restored from a backup, or everything is computed again.
    Restore,
}

impl Remedy {
    /// Describes what to do about findings; `run`: the run directory.
    fn hint(self, run: &str, has_later_settings: bool) -> String {
        match self {
            Self::Finish => FINISH_COMMIT.to_owned(),
            Self::NameScores => "run again, with `--scores-from` and its new path".to_owned(),
            Self::SelectAgain => format!(
                "verify the run with the scores, then select from its present ones, `longsift run {run}`, or run the pipeline \
                 without `--scores-from`"
            ),
            Self::Rebuild if has_later_settings => {
                "remove these files if they exist, and finish the run that scored since, \
                                                    with its pipeline file"
                    .to_owned()
            }
            Self::Rebuild => {
                format!("remove these files if they exist, and run again: `longsift run {run}`")
            }
            Self::MoveAway => "move these files away: no command needs them".to_owned(),
            Self::RestoreManifest => {
                "restore `manifest.json` from a backup, or move `data` away and run again"
                    .to_owned()
            }
            Self::Restore => format!(
                "restore these files from a backup, or run again: `longsift run {run} --fresh`"
            ),
        }
    }
}

impl Verification {
    /// Returns 0 without findings, 3 if a file was changed, 1 if unchanged files contradict each other.
    pub fn exit_code(&self) -> u8 {
        let first = self.findings.first();
        first.map_or(crate::base::error::DONE, |finding| finding.blame.exit_code())
    }

    fn find(&mut self, blame: Blame, what: impl Into<String>, message: impl Into<String>) {
        let (what, message) = (what.into(), message.into());
        self.findings.push(Finding { blame, what, message, remedy: Remedy::Restore });
    }

    /// Adds a finding about a file of the user with its remedy.
    fn find_with(&mut self, remedy: Remedy, what: impl Into<String>, message: impl Into<String>) {
        let (what, message) = (what.into(), message.into());
        self.findings.push(Finding { blame: Blame::Data, what, message, remedy });
    }

    /// Runs a check whose findings have this remedy.
    fn with_remedy<T>(
        &mut self,
        remedy: Remedy,
        check: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let before = self.findings.len();
        let checked = check(self)?;
        self.findings[before..].iter_mut().for_each(|finding| finding.remedy = remedy);
        Ok(checked)
    }

    /// Checks the length and digest of a file. Returns whether they match its record.
    fn file(&mut self, folder: &Path, part: &Part) -> Result<bool> {
        self.file_start(folder, part, u64::MAX)
    }

    fn file_start(&mut self, folder: &Path, part: &Part, max_bytes: u64) -> Result<bool> {
        let path = folder.join(&part.path);
        if files::size(&path)?.is_none() {
            self.find(Blame::Data, &part.path, "the file is missing");
            return Ok(false);
        }
        let found = files::digest_start(&path, max_bytes)?;
        self.files += 1;
        self.bytes += found.bytes;
        if found.bytes != part.bytes {
            let [expected, got] = [part.bytes, found.bytes].map(count);
            self.find(Blame::Data, &part.path, format!("expected {expected} bytes, got {got}"));
        } else if found.sha256 != part.sha256 {
            let message = format!("expected SHA-256 {}, got {}", part.sha256, found.sha256);
            self.find(Blame::Data, &part.path, message);
        } else {
            return Ok(true);
        }
        Ok(false)
    }

    /// Checks tables against their records: length, digest, rows and columns.
    fn tables<'a>(
        &mut self,
        folder: &Path,
        parts: impl IntoIterator<Item = &'a Part>,
        fits: &dyn Fn(&Schema) -> bool,
    ) -> Result<()> {
        for part in parts {
            if !self.file(folder, part)? {
                continue;
            }
            let path = folder.join(&part.path);
            // The digest matches, so any problem from here on is a bug.
            match (Table { path: &path, what: "table", other_columns: "", hint: "" }.shape()) {
                Err(Failure::Problems(problems)) => {
                    for problem in problems {
                        self.find(Blame::Bug, &part.path, problem.message);
                    }
                }
                Err(stopped) => return Err(stopped),
                Ok((schema, rows)) => {
                    if rows != part.rows {
                        let [expected, got] = [part.rows, rows].map(count);
                        let message = format!("expected {expected} rows, got {got}");
                        self.find(Blame::Bug, &part.path, message);
                    }
                    if !fits(&schema) {
                        let message = "unexpected columns for this kind of file";
                        self.find(Blame::Bug, &part.path, message);
                    }
                }
            }
        }
        Ok(())
    }

    fn unit(&mut self, directory: &RunDirectory, record: &UnitRecord) -> Result<()> {
        self.tables(&directory.root, [&record.scores], &scores::is_table)?;
        self.tables(&directory.root, &record.dropped, &dropped::is_table)?;
        self.tables(&directory.root, &record.quarantine, &is_quarantine)?;
        let what = format!("unit {} ({})", record.unit, record.file);
        for violation in record.violations() {
            self.find(Blame::Bug, &what, violation);
        }
        Ok(())
    }

    fn selection(&mut self, directory: &RunDirectory, manifest: &Manifest) -> Result<()> {
        for part in &manifest.data {
            if part.path.ends_with(".parquet") {
                self.tables(&directory.data(), [part], &is_output)?;
            } else {
                self.file(&directory.data(), part)?;
            }
        }
        self.tables(&directory.root, &manifest.dropped, &dropped::is_table)?;
        self.tables(&directory.root, &manifest.selection, &selected::is_table)?;
        self.tables(&directory.root, &manifest.quarantined_files, &is_quarantine)?;
        if let Some(part) = &manifest.card {
            self.file(&directory.output, part)?;
        }
        for part in manifest.report.iter().chain(&manifest.calibration) {
            self.file(&directory.root, part)?;
        }
        if let Some(part) = &manifest.events {
            self.file_start(&directory.root, part, part.bytes)?;
        }
        self.lock(directory, manifest)?;
        if !directory.is_finished()? {
            self.find(Blame::Data, "_SUCCESS", "the file is missing");
        }
        Ok(())
    }

    /// Checks the lock, which differs from that in the manifest if a later run wrote no selection.
    fn lock(&mut self, directory: &RunDirectory, manifest: &Manifest) -> Result<()> {
        let path = directory.lock_file();
        let message = match PipelineLock::read(&path) {
            Err(Failure::Problems(problems)) => problems[0].message.clone(),
            Err(stopped) => return Err(stopped),
            Ok(None) => "the file is missing".to_owned(),
            Ok(Some(lock)) => {
                let before = &manifest.lock.identity;
                self.has_later_settings = !lock.identity.differences_of_scores(before).is_empty();
                return self.sealed(&path, "pipeline.lock");
            }
        };
        self.find(Blame::Data, "pipeline.lock", message);
        Ok(())
    }

    /// Checks the digest that a record contains of its other fields, if the file exists.
    fn sealed(&mut self, path: &Path, name: &str) -> Result<()> {
        let Some(bytes) = files::read_if_present(path)? else { return Ok(()) };
        self.files += 1;
        if !is_intact(&bytes) {
            let next = match name {
                "plan.json" => "the next run writes it again",
                "pipeline.lock" => "remove it, and the next run writes it again",
                _ => "restore it from a backup, or run again with `--fresh`",
            };
            let message = format!(
                "the digest in the file does not match its content: the file was changed, or written by an earlier build; {next}"
            );
            self.find(Blame::Data, name, message);
        }
        Ok(())
    }

    /// Checks the tables and records of the units of a selection, and of units scored since. `read`: the records of units.
    fn records(
        &mut self,
        directory: &RunDirectory,
        manifest: &Manifest,
        read: &[ReadRecord],
    ) -> Result<()> {
        let intact = read.iter().filter_map(|(_, record)| record.as_ref());
        let mut intact: BTreeMap<&str, &UnitRecord> =
            intact.map(|record| (&*record.unit, record)).collect();
        for record in &manifest.units {
            self.unit(directory, record)?;
            match intact.get(&*record.unit) {
                // Its quarantined rows are being scored again.
                None if files::size(&directory.journal().join(&record.unit))?.is_some() => {}
                None => {
                    let name = format!("units/{}.json", record.unit);
                    self.find_with(Remedy::Rebuild, name, DAMAGED_RECORD);
                }
                Some(found) if *found == record => drop(intact.remove(&*record.unit)),
                Some(_) => {}
            }
        }
        self.units_scored_since = intact.len() as u64;
        intact.into_values().try_for_each(|record| self.unit(directory, record))
    }

    /// Returns the intact records of the units of an unfinished run.
    fn records_so_far(&mut self, directory: &RunDirectory, read: &[ReadRecord]) -> Vec<UnitRecord> {
        for (path, _) in read.iter().filter(|(_, record)| record.is_none()) {
            let name = path.strip_prefix(&directory.root).unwrap_or(path).display().to_string();
            self.find_with(Remedy::Rebuild, name, DAMAGED_RECORD);
        }
        read.iter().filter_map(|(_, record)| record.clone()).collect()
    }

    /// Checks the equations between the records, the files and the summary of the whole run.
    fn accounting(&mut self, directory: &RunDirectory, manifest: &Manifest) -> Result<()> {
        let mut counts = Counts::default();
        manifest.units.iter().for_each(|record| counts.add(&record.counts));
        if let Some(part) = &manifest.summary
            && !self.file(&directory.root, part)?
        {
            return Ok(());
        }
        let Some(summary) = directory.read_json::<Summary>(&directory.summary())? else {
            self.find(Blame::Data, "summary.json", "missing or damaged");
            return Ok(());
        };
        if let Err(violation) = summary.check() {
            self.find(Blame::Bug, "summary.json", violation);
        }
        let documents = manifest.lock.settings["output"]["samples"] == "documents";
        let not_selected = summary.samples_not_kept(documents);
        let in_output = summary.rows_written(documents, manifest.mark_only);
        let rows = |parts: &[Part]| parts.iter().map(|part| part.rows).sum::<u64>();
        let bad_files = manifest.bad_files.len() as u64;
        for (name, counted, written) in [
            ("rows", summary.rows_in, counts.rows),
            ("quarantined rows", summary.quarantined, counts.quarantined_rows()),
            ("windows", summary.windows_total, counts.windows_total()),
            ("rows of the output", in_output, rows(&manifest.data)),
            ("samples", summary.kept + not_selected, rows(&manifest.selection)),
            ("samples that were not selected", not_selected, rows(&manifest.dropped)),
            ("files that cannot be opened", summary.files_quarantined, bad_files),
        ] {
            if counted != written {
                let [expected, got] = [written, counted].map(count);
                let message =
                    format!("expected {expected} {name} as in the files of the run, got {got}");
                self.find(Blame::Bug, "summary.json", message);
            }
        }
        Ok(())
    }

    /// Reports files that no record lists, except hidden ones, which readers of a folder skip.
    fn unlisted_files(
        &mut self,
        directory: &RunDirectory,
        records: &[UnitRecord],
        read: &[ReadRecord],
        manifest: Option<&Manifest>,
    ) -> Result<()> {
        let selection = manifest.iter().flat_map(|manifest| {
            let data = manifest.data.iter().map(|part| directory.data().join(&part.path));
            let rest = manifest.dropped.iter().chain(&manifest.selection);
            let rest = rest.chain(&manifest.quarantined_files);
            data.chain(rest.map(|part| directory.root.join(&part.path)))
        });
        let later = read.iter().filter_map(|(_, record)| record.as_ref());
        let of_units = records.iter().chain(later).flat_map(UnitRecord::parts);
        // An interrupted run leaves tables without records, which the next commit removes.
        let left = directory.unit_files()?;
        let known: BTreeSet<_> = of_units
            .map(|part| directory.root.join(&part.path))
            .chain(selection)
            .chain(left)
            .collect();
        let mut found = files::below_if_present(&directory.data())?;
        for folder in
            [directory.scores(), directory.dropped(), directory.selection(), directory.quarantine()]
        {
            found.extend(files::list_if_present(&folder)?);
        }
        let hidden = |path: &Path| {
            let inside = path.strip_prefix(directory.data()).unwrap_or(path);
            let inside = inside.strip_prefix(&directory.root).unwrap_or(inside);
            inside.iter().any(|part| part.as_encoded_bytes().starts_with(b"."))
        };
        for path in found.iter().filter(|path| !known.contains(*path) && !hidden(path)) {
            let what = path.strip_prefix(&directory.root).unwrap_or(path);
            let message = "not listed in any record of the run";
            let is_data = manifest.is_none() && path.starts_with(directory.data());
            let remedy = if is_data { Remedy::RestoreManifest } else { Remedy::MoveAway };
            self.find_with(remedy, what.display().to_string(), message);
        }
        Ok(())
    }

    /// Checks the table that the run used, if it is still cached. Returns the finding about it.
    fn table(&mut self, lock: &PipelineLock) -> &'static str {
        let Some((spec, _)) = lock.recorded.as_ref().and_then(|recorded| {
            Spec::recorded(&recorded.pipeline, &lock.settings, &Overrides::default()).ok()
        }) else {
            return "not checked: the run does not record its pipeline";
        };
        let Some(settings) = spec.load_partial_model() else {
            return "not checked: no measure of the pipeline uses one";
        };
        let folder = match &settings.cache_folder {
            Some(folder) => Ok(spec.resolve(folder).to_path_buf()),
            None => files::user_cache_folder(),
        };
        let path = match &folder {
            Ok(folder) if settings.model.is_address() => {
                let pins = lock.hub_commits.clone();
                let options =
                    HubOptions { network: Network::Offline, pins, ..HubOptions::default() };
                let models = RemoteModels::new(folder, options);
                models.locate(settings.model.clone(), FetchKind::Model).unwrap_or_default()
            }
            _ => spec.resolve(&settings.model).to_path_buf(),
        };
        let Ok(model) = ModelFolder::open(&path, settings.rope_theta) else {
            return "not checked: the model folder cannot be opened";
        };
        let kernel = lock.identity.find_in_measures("kernel").and_then(|name| name.as_str());
        let kernel = kernel.and_then(Kernel::from_name);
        let weights = folder.as_ref().ok().and_then(|folder| known_weights_digest(&model, folder));
        let cached = folder.ok().zip(kernel).and_then(|(folder, kernel)| {
            LayerZeroTable::cached(&model, kernel, settings.precision, &folder)
        });
        let Some((table, _)) = cached else {
            return "not checked: not in the cache";
        };
        let fact = |name| lock.identity.find_in_measures(name).and_then(|digest| digest.as_str());
        if fact("weights") != weights.as_deref() || fact("layer") != Some(&model.spec().digest()) {
            return "not checked: the model folder contains a different model";
        }
        match table.verify() {
            Ok(()) => {
                self.bytes += table.bytes();
                "intact"
            }
            Err(why) => {
                self.find(Blame::Data, "the layer-zero table in the cache", why);
                "damaged"
            }
        }
    }
}

fn is_output(schema: &Schema) -> bool {
    columns::COLUMNS.iter().all(|name| schema.index_of(name).is_ok())
}

fn is_quarantine(schema: &Schema) -> bool {
    ["longsift_file", "longsift_row", "longsift_stage", "longsift_code", "longsift_message"]
        .iter()
        .all(|name| schema.index_of(name).is_ok())
}

/// Verifies a run directory against its records. Problems of the run are findings, not errors.
pub fn verify(directory: &RunDirectory) -> Result<Verification> {
    let mut found = Verification { run_dir: directory.absolute(), ..Verification::default() };
    let held = directory.holder()?;
    if files::size(&directory.intent())?.is_some() && held.is_none() {
        let message = "a commit was interrupted: the files may belong to two selections";
        found.find_with(Remedy::Finish, "intent.json", message);
        found.table = "not checked: a commit was interrupted";
        return Ok(found);
    }
    let manifest = Manifest::read_unchecked(directory)?;
    let read = units::read_all(directory)?;
    let records = match &manifest {
        Some(manifest) => manifest.units.clone(),
        None => found.records_so_far(directory, &read),
    };
    let before = manifest.clone();
    let mut counts = Counts::default();
    // Scores of another run are checked in that run's directory.
    let scores = manifest.as_ref().map_or(Ok(None), Manifest::other_scores);
    let planned = match &manifest {
        None => Some(PlannedScores::read(directory)?),
        Some(_) => None,
    };
    if planned.is_some() && !records.is_empty() && files::size(&directory.plan())?.is_none() {
        found.find_with(Remedy::Finish, "plan.json", "it does not exist, so no unit counts");
    }
    for record in &records {
        if planned.is_some() {
            found.with_remedy(Remedy::Rebuild, |found| found.unit(directory, record))?;
        }
        if planned.as_ref().is_none_or(|planned| planned.contains(record)) {
            counts.add(&record.counts);
        }
    }
    found.rows = counts.rows;
    found.with_remedy(Remedy::Rebuild, |found| found.sealed(&directory.plan(), "plan.json"))?;
    if let Some(manifest) = &manifest {
        found.finished = true;
        found.sealed(&directory.manifest(), "manifest.json")?;
        found.with_remedy(Remedy::Rebuild, |found| found.selection(directory, manifest))?;
        match &scores {
            Ok(None) => {
                let check = |found: &mut Verification| found.records(directory, manifest, &read);
                found.with_remedy(Remedy::Rebuild, check)?;
            }
            Ok(Some(scores)) => {
                let mut units = manifest.units.iter();
                found.with_remedy(Remedy::SelectAgain, |found| {
                    units.try_for_each(|record| found.unit(scores, record))
                })?;
            }
            Err(gone) => {
                let message = format!("the run with the scores is missing: {gone}");
                found.find_with(Remedy::NameScores, "scores", message);
            }
        }
        found.with_remedy(Remedy::Rebuild, |found| found.accounting(directory, manifest))?;
    }
    found.unlisted_files(directory, &records, &read, manifest.as_ref())?;
    let lock = match manifest {
        Some(manifest) => Some(manifest.lock),
        None => PipelineLock::read(&directory.lock_file())?,
    };
    found.table = match lock {
        Some(lock) => found.table(&lock),
        None => "not checked: the lock is missing",
    };
    // Records that a person changed may contradict each other.
    if found.findings.iter().any(|finding| finding.blame == Blame::Data) {
        found.findings.retain(|finding| finding.blame != Blame::Bug);
    }
    // Concurrent writes can look like corruption, so recheck whether a run holds the directory.
    if !found.findings.is_empty()
        && (held.is_some()
            || directory.holder()?.is_some()
            || Manifest::read_unchecked(directory)? != before)
    {
        let message = format!("`{}` is in use by a run", directory.root.display());
        return Err(Diagnostic::error(Blame::Machine, message)
            .hint("verify it after the run has ended; `longsift status` shows its progress")
            .into());
    }
    Ok(found)
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { blame, what, message, .. } in &self.findings {
            let bug = if *blame == Blame::Bug { " (a bug in longsift)" } else { "" };
            writeln!(f, "{}: {}{bug}", line_safe(what), line_safe(message))?;
        }
        let state = match (self.findings.len(), self.finished) {
            (0, true) => "OK: all files match the manifest".to_owned(),
            (0, false) => {
                "OK so far: the run is not finished, and all scored files match their records"
                    .to_owned()
            }
            (1, _) => "1 problem found".to_owned(),
            (wrong, _) => format!("{wrong} problems found"),
        };
        writeln!(f, "{state}")?;
        writeln!(f, "  files     {} read, {}", count(self.files), bytes(self.bytes))?;
        writeln!(f, "  rows      {} accounted for", count(self.rows))?;
        if self.units_scored_since > 0 {
            let units = counted(self.units_scored_since, "unit");
            writeln!(f, "  since     {units} scored by a run without a selection")?;
        }
        writeln!(f, "  table     {}", self.table)?;
        if self.findings.iter().any(|finding| finding.blame == Blame::Data) {
            let run = line_safe(&self.run_dir);
            let mut by_remedy: BTreeMap<Remedy, Vec<&str>> = BTreeMap::new();
            for Finding { remedy, what, .. } in &self.findings {
                by_remedy.entry(*remedy).or_default().push(what);
            }
            let is_only = by_remedy.len() == 1;
            for (remedy, files) in by_remedy {
                let hint = remedy.hint(&run, self.has_later_settings);
                let more = match files.len() - 1 {
                    0 => String::new(),
                    more => format!(" and {} more", count(more as u64)),
                };
                if is_only {
                    writeln!(f, "  hint      {hint}")?;
                } else {
                    writeln!(f, "  hint      {}{more}: {hint}", line_safe(files[0]))?;
                }
            }
        }
        Ok(())
    }
}
