//! The run directory: what a run knows about itself, beside its output.
//!
//! ```text
//! out/name/data/train-00000-of-00012.parquet   the output, and nothing else
//! out/name.run/
//!   lock                 held by the operating system while a run works here; its content says who
//!   pipeline.lock        settings as resolved, and what model, tokenizer and kernel were used
//!   units/<unit>.json    the record that makes a scored work unit count
//!   scores/part-<unit>.parquet      raw statistics of a unit's windows
//!   dropped/score-<unit>.parquet    rows that had no window to score; select-<unit>: those not selected
//!   selection/part-<unit>.parquet   what the selection made of every sample, and why
//!   quarantine/part-<unit>.parquet  rows that could not be scored, with the reason
//!   journal/<unit>       finished windows of a unit that is still open
//!   answers/<unit>       what programs answered of the documents of a unit
//!   fresh/               scores of `--fresh`, until its selection is committed and they take the place of the old ones
//!   staging/             the next selection, before it is committed; its data files are in out/name/.staging/
//!   written/             what shards of the write phase have written of it; data files: out/name/.written/
//!   intent.json          the renames of a commit that has begun
//!   plan.json            what the last run planned; missing.json: work units that a selection misses
//!   footers              of the input, handed on to the shards of a Ray cluster until the commit
//!   calibration.json, manifest.json, summary.json, events.jsonl, _SUCCESS
//!   report.html, report.json        with `output.report`: what the run did, to look at
//! ```
//!
//! In an object store `lock` is a lease, events are files of each process below `events/`, and the journals stay on the
//! machine that writes them, as do answers.

use std::path::{Path, PathBuf};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text;
use crate::storage::marked::Mark;
use crate::storage::{files, store};

/// Where the parts of a selection are before they are committed.
#[derive(Clone, Debug)]
pub struct PartFolders {
    /// Its data files.
    pub data: PathBuf,
    /// The rest: lists of dropped samples below `dropped/`, tables below `selection/`, files that cannot be opened, records.
    pub records: PathBuf,
}

/// The paths of a run directory and of the output it belongs to.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    /// `<output>.run`.
    pub root: PathBuf,
    /// The output folder; its `data/` holds the Parquet files.
    pub output: PathBuf,
}

impl RunDirectory {
    /// The run directory of an output folder.
    pub fn of_output(output: &Path) -> Self {
        // Without a trailing slash.
        let output: PathBuf = match output.to_str() {
            Some(address) if store::is_address(output) => address.trim_end_matches('/').into(),
            _ => output.components().collect(),
        };
        let mut root = output.clone().into_os_string();
        root.push(".run");
        Self { root: root.into(), output }
    }

    /// The run directory of a trial (`--limit`), or this one where all rows are read.
    #[must_use]
    pub fn of_rows(&self, limit: Option<u64>) -> Self {
        limit.map_or_else(|| self.clone(), |rows| self.of_trial(rows))
    }

    /// The run directory that [`Self::of_rows`] made this one of.
    fn of_all_rows(&self, limit: Option<u64>) -> Option<Self> {
        let Some(rows) = limit else { return Some(self.clone()) };
        let output = self.output.to_str()?.strip_suffix(&format!(".limit-{rows}"))?;
        Some(Self::of_output(Path::new(output)))
    }

    /// Where a run with the limit `now` belongs that is named by this directory, which was recorded with the limit `before`.
    pub fn for_limit(&self, before: Option<u64>, now: Option<u64>) -> Option<Self> {
        if before == now {
            return Some(self.clone());
        }
        Some(self.of_all_rows(before)?.of_rows(now))
    }

    /// The run directory of a trial over the first `rows` of the input (`--limit`), beside that of the whole run:
    /// `out.limit-7` and `out.limit-7.run`. A trial never takes the place of a corpus.
    #[must_use]
    pub fn of_trial(&self, rows: u64) -> Self {
        let mut output = self.output.clone().into_os_string();
        output.push(format!(".limit-{rows}"));
        Self::of_output(Path::new(&output))
    }

    /// Where `--fresh` scores: a run directory within this one. Its scores take the place of those that are here when the new
    /// selection is committed; until then nothing here is touched.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self { root: self.root.join("fresh"), output: self.output.clone() }
    }

    /// Where the last run scored: here, or in the place of a fresh start that has not been committed.
    pub fn last_scored(&self) -> Result<Self> {
        let fresh = self.fresh();
        Ok(if files::size(&fresh.lock_file())?.is_some() { fresh } else { self.clone() })
    }

    /// Whether what the command line names is a run directory, and no pipeline file.
    pub fn is(pipeline: &Path) -> bool {
        pipeline.extension().is_some_and(|extension| extension == "run")
            && files::is_folder(pipeline).unwrap_or(false)
    }

    /// The run directory at `root`, named on the command line.
    pub fn at(root: &Path) -> Result<Self> {
        let output = root.to_str().and_then(|path| path.trim_end_matches('/').strip_suffix(".run"));
        match output {
            Some(output) if files::is_folder(root)? => Ok(Self::of_output(Path::new(output))),
            _ => Err(Diagnostic::error(Blame::Pipeline, format!("`{}` is not a run directory", root.display()))
                .hint("a run directory is a folder named `<output.path>.run`; `longsift run` prints it as `run_dir`")
                .into()),
        }
    }

    /// The folders that a run writes to while it scores.
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

    /// The folders below the run directory that a commit moves files to.
    pub fn committed_folders(&self) -> impl Iterator<Item = PathBuf> {
        [self.scores(), self.units(), self.dropped(), self.selection(), self.quarantine()]
            .into_iter()
    }

    /// Every name that a run gives in the run directory itself.
    pub(super) fn own_names(&self) -> Vec<PathBuf> {
        let mut names = self.working_folders().to_vec();
        names.extend([
            self.selection(),
            self.staging(),
            self.written(),
            self.fresh().root,
            self.events_by_process(),
            self.lock_path(),
            self.lock_file(),
            self.intent(),
            self.plan(),
            self.footers(),
            self.missing(),
            self.manifest(),
            self.calibration(),
            self.summary(),
            self.report_page(),
            self.report(),
            self.success(),
            self.events(),
        ]);
        names
    }

    /// The path of the run directory from the root, as the summary gives it.
    pub fn absolute(&self) -> String {
        let path = files::canonical(&self.root).or_else(|_| std::path::absolute(&self.root));
        path.unwrap_or_else(|_| self.root.clone()).display().to_string()
    }

    /// Mark of the list of missing work units.
    pub(super) const MISSING_MARK: Mark = Mark::Keys(&["shards", "missing"]);

    /// Mark of the footers that a driver writes before its shards start.
    pub(super) const FOOTERS_MARK: Mark = Mark::Start("{\"files\":[");

    /// The folder of the output's Parquet files.
    pub fn data(&self) -> PathBuf {
        self.output.join("data")
    }
    /// The folder of raw statistics.
    pub fn scores(&self) -> PathBuf {
        self.root.join("scores")
    }
    /// The folder of unit records.
    pub fn units(&self) -> PathBuf {
        self.root.join("units")
    }
    /// The folder of rows that were dropped.
    pub fn dropped(&self) -> PathBuf {
        self.root.join("dropped")
    }
    /// The folder of what the selection made of every sample.
    pub fn selection(&self) -> PathBuf {
        self.root.join("selection")
    }
    /// The folder of rows that could not be scored.
    pub fn quarantine(&self) -> PathBuf {
        self.root.join("quarantine")
    }
    /// The folder of journals of open units, on this machine: nothing can be appended to what is in an object store.
    pub fn journal(&self) -> PathBuf {
        if !store::is_address(&self.root) {
            return self.root.join("journal");
        }
        let cache = files::user_cache_folder().unwrap_or_else(|_| std::env::temp_dir());
        let name = text::sha256_hex(self.root.as_os_str().as_encoded_bytes());
        cache.join("journals").join(&name[..16])
    }
    /// The folder of what programs answered of the documents of a unit, on this machine.
    pub fn answers(&self) -> PathBuf {
        if store::is_address(&self.root) {
            self.journal().join("answers")
        } else {
            self.root.join("answers")
        }
    }
    /// Bytes of the score tables that are here, of a run directory on a disk.
    pub fn scores_bytes(&self) -> Result<u64> {
        if store::is_address(&self.root) {
            return Ok(0);
        }
        let sizes = files::list_if_present(&self.scores())?.into_iter();
        let size = |path: PathBuf| -> Result<u64> { Ok(files::size(&path)?.unwrap_or(0)) };
        sizes.map(size).sum()
    }
    /// The folder of files without a name, on this machine.
    pub fn nameless(&self) -> PathBuf {
        if store::is_address(&self.root) { self.journal() } else { self.root.clone() }
    }
    /// The folder of a selection that is not committed yet.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }
    /// The folders to stage a selection in. In an object store, where no lock is certain, every attempt has its own: what
    /// a process writes that should no longer be here is never taken for another's.
    pub fn attempt(&self) -> PartFolders {
        if store::is_address(&self.root) {
            let name = format!("{:x}-{:x}", crate::base::clock::nanoseconds(), std::process::id());
            let records = self.staging().join(name);
            PartFolders { data: records.join("data"), records }
        } else {
            PartFolders { data: self.staged_data(), records: self.staging() }
        }
    }
    /// The folder of data files that are not committed yet: in the output's own folder, which may be a link to a larger
    /// disk or a mounted volume, since a file moves in one step only within a file system. Readers skip such a name.
    pub fn staged_data(&self) -> PathBuf {
        self.output.join(".staging")
    }
    /// The folder of what shards of the write phase have written.
    pub fn written(&self) -> PathBuf {
        self.root.join("written")
    }
    /// The folder of the data files that shards of the write phase have written: in the output's own, as
    /// [`RunDirectory::staged_data`].
    pub fn written_data(&self) -> PathBuf {
        self.output.join(".written")
    }
    /// The folders in which shards put their parts of the selection `name`.
    pub fn written_of(&self, name: &str) -> PartFolders {
        let records = self.written().join(name);
        let address = store::is_address(&self.root);
        let data = if address { records.join("data") } else { self.written_data().join(name) };
        PartFolders { data, records }
    }
    /// The record of a commit that has begun.
    pub fn intent(&self) -> PathBuf {
        self.root.join("intent.json")
    }
    /// Settings and identities of the run.
    pub fn lock_file(&self) -> PathBuf {
        self.root.join("pipeline.lock")
    }
    /// What the last run planned.
    pub fn plan(&self) -> PathBuf {
        self.root.join("plan.json")
    }
    /// Footers of the input that the driver of a cluster hands on to its shards.
    pub fn footers(&self) -> PathBuf {
        self.root.join("footers")
    }
    /// The work units that a selection misses.
    pub fn missing(&self) -> PathBuf {
        self.root.join("missing.json")
    }
    /// What was read, run and written.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.json")
    }
    /// Figures of the last selection, for `score.calibration`.
    pub fn calibration(&self) -> PathBuf {
        self.root.join("calibration.json")
    }
    /// The summary of the last finished run.
    pub fn summary(&self) -> PathBuf {
        self.root.join("summary.json")
    }
    /// The page to look at, with `output.report`.
    pub fn report_page(&self) -> PathBuf {
        self.root.join("report.html")
    }
    /// What the page shows, as JSON.
    pub fn report(&self) -> PathBuf {
        self.root.join("report.json")
    }
    /// The marker of a finished run.
    pub fn success(&self) -> PathBuf {
        self.root.join("_SUCCESS")
    }
    /// What happened, a JSON line each.
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }
    /// In an object store, the folder of what happened, a file for each process.
    pub fn events_by_process(&self) -> PathBuf {
        self.root.join("events")
    }
}
