//! `longsift cache`: lists caches and run directories, and clears them.

use std::fmt;
use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use super::answer::unknown_name;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::text::{bytes, count, line_safe, table};
use crate::cli::CacheArguments;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::storage::marked::{self, Mark};
use crate::storage::{files, regular};

/// Folders of the cache folder by name, with descriptions. Memory reservations of running processes are not listed.
const KINDS: [(&str, &str); 6] = [
    ("tables", "layer-zero tables, rebuilt from the checkpoint on demand"),
    ("identities", "digests of weights, recomputed on demand"),
    ("lines", "line counts of files, recomputed on demand"),
    ("hub", "files of the hub, fetched again on demand"),
    ("stores", "models of object stores and web servers, fetched again on demand"),
    ("journals", "open work units of runs in stores, measured again if removed"),
];

const RUNS: &str = "runs";

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CacheListing {
    folder: PathBuf,
    kinds: Vec<CacheKind>,
    runs: Vec<ListedRun>,
    removed: Vec<CacheEntry>,
    #[serde(skip)]
    is_cleared: bool,
    /// Entries that were not removed because they are in use.
    in_use: Vec<PathBuf>,
    /// Entries that were not removed because longsift did not write them.
    foreign: Vec<PathBuf>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CacheKind {
    kind: &'static str,
    doc: &'static str,
    entries: Vec<CacheEntry>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CacheEntry {
    path: PathBuf,
    bytes: u64,
    /// Whole days since one of its files was last written or read, according to the file system.
    unused_days: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ListedRun {
    #[serde(flatten)]
    entry: CacheEntry,
    /// `finished`, `running`, `unfinished`, or `damaged` if the manifest of a finished run cannot be read.
    state: &'static str,
}

/// Lists the entries of a cache folder and the run directories below `runs`, and removes those that `clear` selects: of the
/// runs, only finished ones without a running process; of the files, only those that longsift wrote.
pub(super) fn cache(arguments: &CacheArguments) -> Result<CacheListing> {
    let CacheArguments { folder, runs, clear, .. } = arguments;
    let names = || KINDS.map(|(kind, _)| kind).into_iter().chain([RUNS]);
    if let Some(unknown) = clear.iter().find(|kind| !names().any(|name| name == *kind)) {
        return Err(unknown_name("kind", unknown, &names().collect::<Vec<_>>()));
    }
    if runs.is_none() && clear.iter().any(|kind| kind == RUNS) {
        let problem = Diagnostic::error(Blame::Pipeline, "`--clear runs` requires `--runs`");
        return Err(problem
            .hint("add `--runs FOLDER`, the folder that contains the run directories")
            .into());
    }
    let folder = folder.clone().map_or_else(files::user_cache_folder, Ok)?;
    let now = SystemTime::now();
    let is_cleared = !arguments.clear.is_empty();
    let mut kept = CacheListing { folder, is_cleared, ..CacheListing::default() };
    for (kind, doc) in KINDS {
        let mut entries = Vec::new();
        for path in files::list_if_present(&kept.folder.join(kind))? {
            let entry = CacheEntry::measure(path, now)?;
            if !arguments.selects(kind, &entry) {
                entries.push(entry);
            } else if is_in_use(&entry.path)? {
                kept.in_use.push(entry.path);
            } else if is_own(kind, &entry.path)? {
                remove(&entry.path)?;
                kept.removed.push(entry);
            } else {
                kept.foreign.push(entry.path);
            }
        }
        kept.kinds.push(CacheKind { kind, doc, entries });
    }
    if let Some(runs) = runs {
        let mut found = Vec::new();
        run_directories(runs, &mut found)?;
        for path in found {
            let entry = CacheEntry::measure(path.clone(), now)?;
            let directory = RunDirectory::open(&path)?;
            let uses = last_uses(&directory);
            let state = match (directory.holder()?, Manifest::read_last_selection(&directory)) {
                (Some(_), _) => "running",
                (None, Ok(Some(last))) if !last.has_later_scores(&directory)? => "finished",
                (None, Ok(_)) => "unfinished",
                (None, Err(Failure::Problems(_))) => "damaged",
                (None, Err(stopped)) => return Err(stopped),
            };
            restore_uses(uses);
            if state != "finished" || !arguments.selects(RUNS, &entry) {
                kept.runs.push(ListedRun { entry, state });
                continue;
            }
            // Fails if a process has started to work in the directory in the meantime.
            let Ok(_lock) = directory.lock_exclusive() else {
                kept.in_use.push(entry.path);
                continue;
            };
            let foreign = directory.foreign_files()?;
            if foreign.is_empty() {
                files::remove_folder(&entry.path)?;
                kept.removed.push(entry);
            }
            kept.foreign.extend(foreign);
        }
    }
    Ok(kept)
}

/// Returns the access times of the files that are read to list a run.
fn last_uses(run: &RunDirectory) -> Vec<(PathBuf, SystemTime)> {
    let units = files::list_if_present(&run.units()).unwrap_or_default();
    let read = units.into_iter().chain([run.manifest()]);
    let last = |path: PathBuf| Some((path.clone(), fs::metadata(path).ok()?.accessed().ok()?));
    read.filter_map(last).collect()
}

/// Restores access times, as to list a run is not to use it. Fails silently for files of other users.
fn restore_uses(uses: Vec<(PathBuf, SystemTime)>) {
    for (path, accessed) in uses {
        let times = fs::FileTimes::new().set_accessed(accessed);
        drop(fs::File::open(path).and_then(|file| file.set_times(times)));
    }
}

impl CacheArguments {
    fn selects(&self, kind: &str, entry: &CacheEntry) -> bool {
        self.clear.iter().any(|name| name == kind) && entry.unused_days >= self.unused_days
    }
}

impl CacheEntry {
    /// Measures a file, or a folder with its contents, without following links.
    fn measure(path: PathBuf, now: SystemTime) -> Result<Self> {
        let (mut bytes, mut last) = (0, SystemTime::UNIX_EPOCH);
        let mut open = vec![path.clone()];
        while let Some(path) = open.pop() {
            // Files that have been removed in the meantime do not count.
            let Ok(status) = fs::symlink_metadata(&path) else { continue };
            if status.is_dir() {
                open.extend(files::list_if_present(&path)?);
                continue;
            }
            bytes += status.len();
            for time in [status.modified(), status.accessed()].into_iter().flatten() {
                last = last.max(time);
            }
        }
        let unused = now.duration_since(last).unwrap_or_default();
        Ok(Self { path, bytes, unused_days: unused.as_secs() / 86_400 })
    }
}

/// Returns whether longsift wrote an entry of a cache folder.
fn is_own(kind: &str, path: &Path) -> Result<bool> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |extension: &str| {
        let stem = name.strip_suffix(extension);
        stem.filter(|stem| !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let is_partial = || {
        let stem = name.strip_suffix(".partial")?.rsplitn(4, '-');
        Some(stem.take(3).all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())))
    };
    if fs::symlink_metadata(path).is_ok_and(|status| status.is_symlink()) {
        return Ok(false);
    }
    match kind {
        "tables" if ends(".table").is_some() => {
            marked::carries(path, Mark::Start("longsift-table-"))
        }
        "identities" if ends(".json").is_some() => {
            marked::carries(path, Mark::Keys(&["identity", "weights_digest"]))
        }
        "tables" | "identities" => Ok(is_partial() == Some(true)),
        "lines" if ends(".json").is_some_and(|stem| stem.len() == 64) => {
            marked::carries(path, Mark::Contains("\"stretches\":"))
        }
        "lines" => Ok(false),
        _ => Ok(marked::is_own_folder(path)?),
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(status) if status.is_dir() => Ok(files::remove_folder(path)?),
        _ => Ok(files::remove_file(path)?),
    }
}

/// Returns whether a process has locked a file of an entry: a journal, or a table that it builds.
fn is_in_use(path: &Path) -> Result<bool> {
    let files = match fs::symlink_metadata(path) {
        Ok(status) if status.is_dir() => files::below_if_present(path)?,
        Ok(status) if status.is_file() => vec![path.to_owned()],
        _ => Vec::new(),
    };
    let is_locked = |path: &PathBuf| {
        let file = regular::open(path);
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    };
    Ok(files.iter().any(is_locked))
}

/// Collects the run directories below a folder, or the folder itself, without following links.
fn run_directories(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if RunDirectory::exists_at(folder) {
        let is_one = |name: &str| folder.join(name).exists();
        if is_one("pipeline.lock") || is_one("events.jsonl") {
            found.push(folder.to_owned());
        }
        return Ok(());
    }
    for entry in files::entries(folder)? {
        if entry.is_folder && !entry.is_link {
            run_directories(&entry.path, found)?;
        }
    }
    Ok(())
}

impl fmt::Display for CacheListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", line_safe(&self.folder.display().to_string()))?;
        let days = |days: u64| match days {
            0 => "used today".to_owned(),
            1 => "unused for 1 day".to_owned(),
            days => format!("unused for {} days", count(days)),
        };
        let kind_row = |kind: &CacheKind| {
            let total = kind.entries.iter().map(|entry| entry.bytes).sum();
            let min = kind.entries.iter().map(|entry| entry.unused_days).min();
            let used = min.map_or_else(String::new, days);
            vec![kind.kind.to_owned(), count(kind.entries.len() as u64), bytes(total), used]
        };
        let run_row = |run: &ListedRun| {
            let (size, used) = (bytes(run.entry.bytes), days(run.entry.unused_days));
            vec![RUNS.to_owned(), run.state.to_owned(), size, used]
        };
        let kinds = self.kinds.iter().map(|kind| (kind_row(kind), kind.doc.to_owned()));
        let path = |run: &ListedRun| line_safe(&run.entry.path.display().to_string());
        let runs = self.runs.iter().map(|run| (run_row(run), path(run)));
        let (rows, what): (Vec<Vec<String>>, Vec<String>) = kinds.chain(runs).unzip();
        for (line, what) in table(&rows).iter().zip(what) {
            writeln!(f, "  {line}  {what}")?;
        }
        for path in &self.in_use {
            writeln!(f, "in use: {}", line_safe(&path.display().to_string()))?;
        }
        for path in &self.foreign {
            let path = line_safe(&path.display().to_string());
            writeln!(f, "kept, not written by longsift: {path}")?;
        }
        if self.is_cleared {
            let total = self.removed.iter().map(|entry| entry.bytes).sum();
            let entries = match self.removed.len() {
                0 => return writeln!(f, "removed nothing"),
                1 => "1 entry".to_owned(),
                number => format!("{} entries", count(number as u64)),
            };
            writeln!(f, "removed {entries}, {}", bytes(total))?;
        }
        Ok(())
    }
}
