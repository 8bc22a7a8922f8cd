//! The run directory: records of a run, next to its output.
//!
//! ```text
//! out/name/data/train-00000-of-00012.parquet   the output, and no other files
//! out/name.run/
//!   lock                 locked by the operating system while a run is active; names the process
//!   pipeline.lock        resolved settings; the model, tokenizer and kernel that were used
//!   units/<unit>.json    record of a scored work unit; a unit without a record does not count
//!   scores/part-<unit>.parquet      raw statistics of a unit's windows; with `-next`, scored since the last selection
//!   dropped/score-<unit>.parquet    rows without windows to score; select-<unit>: samples that were not selected
//!   selection/part-<unit>.parquet   result of the selection for every sample, with the reason
//!   quarantine/part-<unit>.parquet  rows that could not be scored, with the reason
//!   journal/<unit>       finished windows of an open unit
//!   answers/<unit>       answers of programs about the documents of a unit
//!   fresh/               scores of `--fresh`, which replace the old ones when their selection is committed
//!   staging/             the next selection, before its commit; data files are in out/name/.staging/
//!   written/             results of shards of the write phase; data files are in out/name/.written/
//!   intent.json          renames of a commit in progress
//!   plan.json            plan of the last run; missing.json: work units that a selection lacks
//!   footers              footers of the input, cached for the shards of a Ray cluster until the commit
//!   calibration.json, manifest.json, summary.json, events.jsonl, _SUCCESS
//!   report.html, report.json        report of the run, with `output.report`
//! ```
//!
//! In an object store, `lock` is a lease, each process has a file of events below `events/`, and journals and answers stay on
//! the machine that writes them.

use std::path::{Path, PathBuf};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text;
use crate::storage::marked::Mark;
use crate::storage::{files, store};

/// Names of the dataset card, which is staged with the data files and moved to the output.
pub(super) const CARDS: [&str; 2] = ["README.longsift.md", "README.md"];

/// Folders of the parts of a selection before the commit.
#[derive(Clone, Debug)]
pub struct PartFolders {
    pub data: PathBuf,
    /// Folder of everything else: `dropped/`, `selection/`, the list of files that cannot be opened, records.
    pub records: PathBuf,
}

#[derive(Clone, Debug)]
pub struct RunDirectory {
    /// `<output>.run`.
    pub root: PathBuf,
    /// Output folder; its `data/` holds the Parquet files.
    pub output: PathBuf,
}

/// Whether the name of a folder is that of a run directory.
fn is_named_run(folder: &Path) -> bool {
    folder.extension().is_some_and(|extension| extension == "run")
}

impl RunDirectory {
    pub fn for_output(output: &Path) -> Self {
        // Removes a trailing slash.
        let output: PathBuf = match output.to_str() {
            Some(address) if store::is_address(output) => address.trim_end_matches('/').into(),
            _ => output.components().collect(),
        };
        Self { root: output.with_added_extension("run"), output }
    }

    /// Returns the run directory of a trial over the first `limit` rows of the input (`--limit`): `out.limit-7` and
    /// `out.limit-7.run`, so that a trial never replaces the whole corpus. Returns `self` if all rows are read.
    #[must_use]
    pub fn with_row_limit(&self, limit: Option<u64>) -> Self {
        let Some(rows) = limit else { return self.clone() };
        Self::for_output(&self.output.with_added_extension(format!("limit-{rows}")))
    }

    /// Converts the run directory of a run with limit `before` to that of a run with limit `now`.
    pub fn change_row_limit(&self, before: Option<u64>, now: Option<u64>) -> Option<Self> {
        if before == now {
            return Some(self.clone());
        }
        let suffix = before.map(|rows| format!(".limit-{rows}")).unwrap_or_default();
        let output = self.output.to_str()?.strip_suffix(&*suffix)?;
        Some(Self::for_output(Path::new(output)).with_row_limit(now))
    }

    /// Returns the nested run directory of `--fresh`, whose scores replace the current ones at the commit.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self { root: self.root.join("fresh"), output: self.output.clone() }
    }

    /// Returns the directory of the latest scores: `self`, or the nested one if a fresh start is not committed yet.
    pub fn last_scored(&self) -> Result<Self> {
        Ok(if self.has_fresh_start()? { self.fresh() } else { self.clone() })
    }

    /// Whether a fresh start has begun that is not committed yet.
    pub fn has_fresh_start(&self) -> Result<bool> {
        Ok(files::size(&self.fresh().lock_file())?.is_some())
    }

    /// Whether the command line names a run directory instead of a pipeline file.
    pub fn exists_at(pipeline: &Path) -> bool {
        is_named_run(pipeline) && files::is_folder(pipeline).unwrap_or(false)
    }

    /// Returns the innermost folder at or above `path` that holds the files of a result only: a run directory, or the `data/` of
    /// an output. Links are resolved as far as the path exists; of the rest, every name with `.run` is one.
    pub fn result_folder(path: &Path) -> Option<PathBuf> {
        let existing = files::nearest_existing(path);
        let mut missing = path.ancestors().take_while(|folder| *folder != existing);
        if let Some(folder) = missing.find(|folder| is_named_run(folder)) {
            return Some(folder.to_owned());
        }
        let folder = existing.canonicalize().ok()?;
        let is_result = |folder: &&Path| {
            let is_data = folder.ends_with("data");
            let output = folder.parent().filter(|_| is_data);
            Self::exists_at(folder)
                || output.is_some_and(|output| Self::exists_at(&Self::for_output(output).root))
        };
        folder.ancestors().find(is_result).map(Path::to_owned)
    }

    /// Opens the run directory at `root`, or the target of a link unless an output has the name of the link.
    pub fn open(root: &Path) -> Result<Self> {
        if !store::is_address(root)
            && root.is_symlink()
            && let Ok(target) = root.canonicalize()
            && is_named_run(&target)
            && !root.with_extension("").exists()
        {
            return Self::open(&target);
        }
        let output = root.to_str().and_then(|path| path.trim_end_matches('/').strip_suffix(".run"));
        match output {
            Some(output) if files::is_folder(root)? => Ok(Self::for_output(Path::new(output))),
            _ => Err(Diagnostic::error(
                Blame::Pipeline,
                format!("`{}` is not a run directory", root.display()),
            )
            .hint("a run directory is the folder `<output.path>.run`")
            .into()),
        }
    }

    /// Returns the run directory of another output to which the name of this one is a link. A run would mix the records of both.
    pub fn linked_to_other(&self) -> Option<PathBuf> {
        if store::is_address(&self.root) || !self.root.is_symlink() {
            return None;
        }
        let target = self.root.canonicalize().ok().filter(|target| is_named_run(target))?;
        let other = target.with_extension("").canonicalize().ok()?;
        (self.output.canonicalize().ok().as_ref() != Some(&other)).then_some(target)
    }

    /// Folders that a run writes to while it scores.
    pub(super) fn working_folders(&self) -> [PathBuf; 6] {
        [
            self.scores(),
            self.units(),
            self.dropped(),
            self.quarantine(),
            self.journal(),
            self.answers(),
        ]
    }

    /// Folders below the run directory that a commit moves files to.
    pub fn committed_folders(&self) -> impl Iterator<Item = PathBuf> {
        [self.scores(), self.units(), self.dropped(), self.selection(), self.quarantine()]
            .into_iter()
    }

    /// Returns the paths of all files and folders that a run creates directly in the run directory.
    pub(super) fn own_names(&self) -> Vec<PathBuf> {
        let names = FOLDERS.iter().chain(RECORDS).map(|name| self.root.join(name));
        names.chain([self.journal(), self.answers(), self.fresh().root, self.missing()]).collect()
    }

    pub fn absolute(&self) -> String {
        absolute(&self.root)
    }

    pub(super) const PLAN_MARK: Mark = Mark::Keys(&["pipeline", "estimate", "sha256"]);
    pub(super) const REPORT_MARK: Mark = Mark::Keys(&["longsift", "committed", "kept"]);
    pub(super) const MISSING_MARK: Mark = Mark::Keys(&["shards", "missing"]);

    /// Mark of the footers that a driver writes before its shards start.
    pub(super) const FOOTERS_MARK: Mark = Mark::Start("{\"files\":[");

    /// Work units that a selection lacks.
    pub fn missing(&self) -> PathBuf {
        self.root.join("missing.json")
    }
    pub fn data(&self) -> PathBuf {
        self.output.join("data")
    }
    pub fn create_data(&self) -> Result<()> {
        Ok(files::create_folder(&self.data())?)
    }
    /// Folder of the journals of open units, always on this machine: object stores cannot append.
    pub fn journal(&self) -> PathBuf {
        if !store::is_address(&self.root) {
            return self.root.join("journal");
        }
        let cache = files::user_cache_folder().unwrap_or_else(|_| std::env::temp_dir());
        let name = text::sha256_hex(self.root.as_os_str().as_encoded_bytes());
        cache.join("journals").join(&name[..16])
    }
    /// Folder of the answers of programs, always on this machine.
    pub fn answers(&self) -> PathBuf {
        self.temporary_folder().join("answers")
    }
    /// Returns the size of the score tables in bytes; 0 in an object store.
    pub fn scores_bytes(&self) -> Result<u64> {
        if store::is_address(&self.root) {
            return Ok(0);
        }
        let sizes = files::list_if_present(&self.scores())?.into_iter();
        let size = |path: PathBuf| -> Result<u64> { Ok(files::size(&path)?.unwrap_or(0)) };
        sizes.map(size).sum()
    }
    /// Folder of working files that are always on this machine.
    pub fn temporary_folder(&self) -> PathBuf {
        if store::is_address(&self.root) { self.journal() } else { self.root.clone() }
    }
    /// Returns the folders to stage a selection in. In an object store, where locks are not reliable, each attempt has its own,
    /// so that late writes of another process are never mistaken for part of it.
    pub fn attempt(&self) -> PartFolders {
        if store::is_address(&self.root) {
            let name = format!("{:x}-{:x}", crate::base::clock::nanoseconds(), std::process::id());
            let records = self.staging().join(name);
            PartFolders { data: records.join("data"), records }
        } else {
            PartFolders { data: self.staged_data(), records: self.staging() }
        }
    }
    /// Folder of uncommitted data files, on the disk of the output: files move atomically only within a file system.
    pub fn staged_data(&self) -> PathBuf {
        self.output.join(".staging")
    }
    /// Folder of the data files of shards of the write phase, inside the output folder like [`RunDirectory::staged_data`].
    pub fn written_data(&self) -> PathBuf {
        self.output.join(".written")
    }
    /// Folders in which shards write their parts of the selection `name`.
    pub fn written_folders(&self, name: &str) -> PartFolders {
        let records = self.written().join(name);
        let address = store::is_address(&self.root);
        let data = if address { records.join("data") } else { self.written_data().join(name) };
        PartFolders { data, records }
    }
}

/// Returns the path without links if it exists, otherwise its absolute form.
pub fn absolute(path: &Path) -> String {
    // The folder of a bare file name.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let absolute = files::canonical(path).or_else(|_| std::path::absolute(path));
    absolute.unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Declares methods that return a path in the run directory, and lists their names.
macro_rules! paths {
    ($list:ident: $($(#[$doc:meta])* $name:ident: $file:literal,)*) => {
        pub(super) const $list: &[&str] = &[$($file),*];

        impl RunDirectory {
            $($(#[$doc])*
            pub fn $name(&self) -> PathBuf {
                self.root.join($file)
            })*
        }
    };
}

paths! {
    FOLDERS:
    scores: "scores",
    units: "units",
    dropped: "dropped",
    selection: "selection",
    quarantine: "quarantine",
    /// Folder of a selection that is not committed yet.
    staging: "staging",
    /// Folder of the results of shards of the write phase.
    written: "written",
    /// Folder of events in an object store, with a file per process.
    events_by_process: "events",
}

paths! {
    RECORDS:
    lock_path: "lock",
    /// Record of a commit in progress.
    intent: "intent.json",
    lock_file: "pipeline.lock",
    plan: "plan.json",
    /// Input footers that the driver of a cluster caches for its shards.
    footers: "footers",
    manifest: "manifest.json",
    /// Statistics of the last selection, for `score.calibration`.
    calibration: "calibration.json",
    summary: "summary.json",
    report_page: "report.html",
    report: "report.json",
    success: "_SUCCESS",
    events: "events.jsonl",
}
