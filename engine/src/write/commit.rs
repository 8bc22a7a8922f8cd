//! The commit of a selection: moves all its files into place, or none.
//!
//! The files are staged first. Then an intent record with every rename and removal is written durably; from then on the commit
//! will complete, now or when a later run replays the record. Outside of runs, `data/` therefore never holds a mixture of two
//! selections.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;
use serde::{Deserialize, Serialize};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::parallel;
use crate::run_directory::hold::RunLock;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::units::{Part, UnitRecord, is_inside};
use crate::storage::error::ErrorKind;
use crate::storage::store::is_address;
use crate::storage::{atomic, files};

/// Files of a commit per concurrent request.
const FILES_PER_REQUEST: usize = 128;
/// Maximum bytes of a file whose digest is recorded before it is replaced: a card that a user may edit.
const MAX_COMPARED_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Sources and targets, in order.
    pub renames: Vec<(CommitPath, CommitPath)>,
    pub removals: Vec<CommitPath>,
    /// State when the commit began.
    #[serde(default)]
    pub begin: Option<CommitBegin>,
}

/// State of the files of a commit when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitBegin {
    /// SHA-256 of the new manifest.
    manifest: String,
    /// Data files of the new manifest.
    data: Vec<Part>,
    /// Files of the output that the commit replaces or removes, with their SHA-256; without it for large ones. Empty in a store.
    existing: Vec<(CommitPath, String)>,
}

impl CommitBegin {
    /// `manifest`: SHA-256 of the new manifest; `data`: its data files.
    pub fn new(
        directory: &RunDirectory,
        intent: &Intent,
        manifest: String,
        data: Vec<Part>,
    ) -> Result<Self> {
        let mut existing = Vec::new();
        for path in intent.renames.iter().map(|(_, to)| to).chain(&intent.removals) {
            if let Some(state) = small_state(directory, path)? {
                existing.push((path.clone(), state));
            }
        }
        Ok(Self { manifest, data, existing })
    }
}

/// Returns the SHA-256 of a file of the output, empty for a large one; `None` if it does not exist or is in a store.
fn small_state(directory: &RunDirectory, path: &CommitPath) -> Result<Option<String>> {
    let CommitPath::Output(_) = path else { return Ok(None) };
    let path = path.resolve(directory);
    if is_address(&path) {
        return Ok(None);
    }
    Ok(match files::size(&path)? {
        Some(..=MAX_COMPARED_BYTES) => Some(files::digest(&path)?.sha256),
        Some(_) => Some(String::new()),
        None => None,
    })
}

/// File of a commit, relative to one of the two folders, so that a copied record refers to the copied files.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitPath {
    Output(PathBuf),
    RunDirectory(PathBuf),
}

impl Intent {
    pub fn rename(&mut self, directory: &RunDirectory, from: &Path, to: &Path) {
        self.renames.push((CommitPath::new(directory, from), CommitPath::new(directory, to)));
    }

    /// Adds removals, except of files that a rename moves or replaces.
    pub fn remove(&mut self, directory: &RunDirectory, paths: impl Iterator<Item = PathBuf>) {
        let renamed: HashSet<&CommitPath> =
            self.renames.iter().flat_map(|(from, to)| [from, to]).collect();
        let paths = paths.map(|path| CommitPath::new(directory, &path));
        self.removals.extend(paths.filter(|path| !renamed.contains(path)));
    }
}

impl CommitPath {
    fn new(directory: &RunDirectory, path: &Path) -> Self {
        if let Ok(path) = path.strip_prefix(&directory.root) {
            return Self::RunDirectory(path.to_owned());
        }
        let path = path.strip_prefix(&directory.output);
        Self::Output(path.expect("a run only touches its run directory and its output").to_owned())
    }

    fn relative(&self) -> &Path {
        let (Self::Output(path) | Self::RunDirectory(path)) = self;
        path
    }

    fn resolve(&self, directory: &RunDirectory) -> PathBuf {
        match self {
            Self::Output(path) => directory.output.join(path),
            Self::RunDirectory(path) => directory.root.join(path),
        }
    }
}

/// Writes the intent durably and executes it. Of several concurrent processes, one succeeds; others change nothing.
/// `replaces`: the intent takes the place of one that cannot be executed.
pub fn commit(
    directory: &RunDirectory,
    intent: &Intent,
    run_lock: &RunLock,
    replaces: bool,
) -> Result<()> {
    files::create_folder(&directory.data())?;
    check_folders(directory, intent)?;
    let json = serde_json::to_vec_pretty(intent).expect("an intent is plain data");
    if replaces {
        run_lock.check()?;
        atomic::write_atomic(&directory.intent(), &json)?;
    }
    if replaces || atomic::write_new(&directory.intent(), &json)? {
        // If this process was suspended before it wrote, the files may belong to another process.
        if let Err(lost) = run_lock.check() {
            if files::read_if_present(&directory.intent())?.is_some_and(|found| found == json) {
                files::remove_file(&directory.intent())?;
            }
            return Err(lost);
        }
        return execute(directory, intent, run_lock, Begun::Now);
    }
    let message = format!(
        "another process has begun a commit in `{}` since this run began",
        directory.root.display()
    );
    Err(Diagnostic::error(Blame::Machine, message)
        .hint("run again: its commit is finished first, and this run resumes from its scores")
        .into())
}

/// Checks that files can be renamed into and removed from all folders of a commit, which could otherwise not be finished: they
/// are writable, and on the file system of the staged files.
fn check_folders(directory: &RunDirectory, intent: &Intent) -> Result<()> {
    if is_address(&directory.output) || is_address(&directory.root) {
        return Ok(());
    }
    let folder = |path: &CommitPath| path.resolve(directory).parent().map(Path::to_owned);
    let renames = intent.renames.iter().map(|(from, to)| (folder(from), folder(to)));
    let removals = intent.removals.iter().map(|path| (None, folder(path)));
    let replaced: Vec<PathBuf> =
        intent.renames.iter().map(|(_, to)| to.resolve(directory)).collect();
    let removed: Vec<PathBuf> =
        intent.removals.iter().map(|path| path.resolve(directory)).collect();
    if let Some(to) = replaced.iter().find(|to| files::is_mounted_file(to)) {
        let message = format!("`{}` is a mount, so it cannot be replaced", to.display());
        return Err(Diagnostic::error(Blame::Machine, message)
            .hint("the previous output is unchanged; remove the mount, and run again")
            .into());
    }
    let success = [directory.success()];
    let changed = || replaced.iter().chain(&removed).chain(&success);
    let mut emptied = BTreeSet::new();
    for to in changed().filter(|to| to.is_dir()) {
        let folders = removed.iter().flat_map(|path| path.ancestors().skip(1));
        let folders: BTreeSet<&Path> = folders.filter(|folder| folder.starts_with(to)).collect();
        let mut below = VecDeque::from([to.clone()]);
        while let Some(path) = below.pop_front() {
            let is_folder = path.is_dir() && !path.is_symlink();
            let is_ours =
                if is_folder { folders.contains(&*path) } else { removed.contains(&path) };
            if !is_ours {
                let message = format!(
                    "`{}` is a folder with the name of a file of the output, and `{}` is not part of the output",
                    to.display(),
                    path.display()
                );
                return Err(Diagnostic::error(Blame::Pipeline, message)
                    .hint("the previous output is unchanged; move the folder away, and run again")
                    .into());
            }
            if is_folder {
                below.extend(files::list_folder(&path)?);
            }
        }
        emptied.extend(folders);
    }
    directory.check_replaceable(changed().cloned())?;
    let existing = |folder: Option<PathBuf>| {
        folder?.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned)
    };
    let emptied = emptied.into_iter().map(|folder| (None, folder.parent().map(Path::to_owned)));
    let folders: BTreeSet<_> = renames.chain(removals).chain(emptied).collect();
    for (from, to) in folders {
        let (from, Some(to)) = (existing(from), existing(to)) else { continue };
        let problem = |message: String| Diagnostic::error(Blame::Machine, message);
        for folder in from.iter().chain([&to]) {
            rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
                problem(format!("cannot write to `{}`: {error}", folder.display()))
                    .hint("the previous output is unchanged; allow it, and run again")
            })?;
        }
        if let Some(from) = from.filter(|from| files::mount(from) != files::mount(&to)) {
            let message = format!(
                "`{}` and `{}` are on different file systems or mounts",
                from.display(),
                to.display()
            );
            return Err(problem(message)
                .hint("the previous output is unchanged; remove the link or mount, and run again")
                .into());
        }
    }
    Ok(())
}

/// Reads the record of a commit that an interrupted run has begun.
pub fn read_intent(directory: &RunDirectory) -> Result<Option<Intent>> {
    let Some(bytes) = files::read_if_present(&directory.intent())? else { return Ok(None) };
    let intent = serde_json::from_slice(&bytes).map_err(|error| {
        let hint = "it was damaged after it was written; run the pipeline file with `--fresh`, which starts from scratch";
        wrong_intent(directory, &format!("cannot be read: {error}"), hint)
    })?;
    Ok(Some(intent))
}

/// Checks that an interrupted commit can be finished: staged and moved files are those of its manifest, and it would replace or
/// remove no file that was created or changed after it began.
fn check_unchanged(directory: &RunDirectory, intent: &Intent) -> Result<()> {
    let Some(begin) = &intent.begin else { return Ok(()) };
    let renames: Vec<(PathBuf, PathBuf)> = (intent.renames.iter())
        .map(|(from, to)| (from.resolve(directory), to.resolve(directory)))
        .collect();
    let place = |(from, to): &(PathBuf, PathBuf)| -> Result<PathBuf> {
        Ok(if files::size(from)?.is_some() { from.clone() } else { to.clone() })
    };
    let is_original = |rename: &(PathBuf, PathBuf), sha256: &str| {
        repeated(&rename.0, || {
            let path = place(rename)?;
            Ok(files::size(&path)?.is_some() && files::digest(&path)?.sha256 == sha256)
        })
    };
    let mut parts: HashMap<PathBuf, Part> = HashMap::new();
    if let Some(rename) = renames.iter().find(|(_, to)| *to == directory.manifest()) {
        if !is_original(rename, &begin.manifest)? {
            return Err(
                unfinishable(&rename.0, &rename.1, "is the manifest of the selection").into()
            );
        }
        parts = Manifest::read_staged(&place(rename)?)?.map_or(parts, |of| parts_of(directory, of));
    }
    let threads = concurrency(&directory.output, renames.len());
    // A user may edit cards and reports that are in place.
    let is_required = |(from, to): &(PathBuf, PathBuf)| -> Result<bool> {
        let pages = [directory.report_page(), directory.report()];
        let is_page = pages.contains(to) || to.parent() == Some(&*directory.output);
        Ok(!is_page || files::size(from)?.is_some())
    };
    parallel::in_order(renames.len(), threads, |index| match parts.get(&renames[index].1) {
        Some(part)
            if is_required(&renames[index])? && !is_original(&renames[index], &part.sha256)? =>
        {
            let (from, to) = &renames[index];
            Err(unfinishable(from, to, "is the file of the selection").into())
        }
        _ => Ok(()),
    })?;
    let targets = intent.renames.iter().filter_map(|(from, to)| {
        let is_staged = files::size(&from.resolve(directory)).is_ok_and(|size| size.is_some());
        is_staged.then_some(to)
    });
    let existing: HashMap<&CommitPath, &String> =
        begin.existing.iter().map(|(path, state)| (path, state)).collect();
    for path in targets.chain(&intent.removals) {
        let Some(state) = small_state(directory, path)? else { continue };
        let is_unchanged = existing.get(path) == Some(&&state);
        let path = path.resolve(directory);
        // An attempt after the commit may have staged a file that is in place already.
        let is_new = |part: &Part| Ok::<_, Failure>(files::digest(&path)?.sha256 == part.sha256);
        if !is_unchanged && !parts.get(&path).map(is_new).transpose()?.unwrap_or(false) {
            let message = format!(
                "`{}` was created or changed after the commit that was interrupted, which would replace or remove it",
                path.display()
            );
            return Err(Diagnostic::error(Blame::Pipeline, message)
                .hint("move it away, and run again")
                .into());
        }
    }
    Ok(())
}

/// Returns the files of a selection with their places.
fn parts_of(directory: &RunDirectory, manifest: Manifest) -> HashMap<PathBuf, Part> {
    let data = manifest.data.into_iter().map(|part| (directory.data().join(&part.path), part));
    let card = manifest.card.into_iter().map(|part| (directory.output.join(&part.path), part));
    let of_units = manifest.units.iter().flat_map(UnitRecord::parts).cloned();
    let records = manifest.dropped.into_iter().chain(manifest.selection).chain(of_units);
    let records = records.chain(manifest.calibration).chain(manifest.summary);
    let records = records.chain(manifest.report).chain(manifest.quarantined_files);
    let records = records.map(|part| (directory.root.join(&part.path), part));
    data.chain(card).chain(records).collect()
}

/// Repeats a check of objects: some stores deny an object for a moment after it was written.
fn repeated(path: &Path, check: impl Fn() -> Result<bool>) -> Result<bool> {
    let attempts = if is_address(path) { 4 } else { 1 };
    for attempt in 1..=attempts {
        if check()? {
            return Ok(true);
        }
        if attempt < attempts {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    Ok(false)
}

/// Whether the intent moves the scores of a fresh start, or may do so because it is damaged.
pub fn moves_fresh_scores(directory: &RunDirectory) -> bool {
    let fresh = directory.fresh().root;
    let is_fresh = |from: &CommitPath| from.resolve(directory).starts_with(&fresh);
    match read_intent(directory) {
        Ok(intent) => intent.iter().flat_map(|of| &of.renames).any(|(from, _)| is_fresh(from)),
        Err(_) => true,
    }
}

/// Returns the files of the run directory that the intent moves into place; none if it is damaged.
pub fn targets_in_run_directory(directory: &RunDirectory) -> Result<Vec<PathBuf>> {
    let intent: Option<Intent> = directory.read_json(&directory.intent())?;
    let targets = intent.into_iter().flat_map(|intent| intent.renames).map(|(_, to)| to);
    let is_inside =
        |to: &CommitPath| matches!(to, CommitPath::RunDirectory(path) if is_inside(path));
    Ok(targets.filter(is_inside).map(|to| to.resolve(directory)).collect())
}

/// Returns the data files that a commit has moved into place; none if its intent is damaged.
pub fn data_of_intent(directory: &RunDirectory) -> Result<Vec<Part>> {
    let intent: Option<Intent> = directory.read_json(&directory.intent())?;
    let mut files = intent.and_then(|intent| intent.begin).map_or(Vec::new(), |begin| begin.data);
    files.retain(Part::is_inside);
    let data = directory.data();
    let is_there = parallel::in_order(files.len(), directory.concurrency(1), |index| {
        Ok(files[index].is_original(&data, false)?)
    })?;
    let mut is_there = is_there.into_iter();
    files.retain(|_| is_there.next() == Some(true));
    Ok(files)
}

fn wrong_intent(directory: &RunDirectory, why: &str, hint: &str) -> Diagnostic {
    let message = format!("the intent record `{}` {why}", directory.intent().display());
    Diagnostic::error(Blame::Data, message).hint(hint)
}

/// Finishes a commit that an interrupted run has begun. Returns whether there was one.
pub fn replay(directory: &RunDirectory, run_lock: &RunLock) -> Result<bool> {
    let Some(intent) = read_intent(directory)? else { return Ok(false) };
    execute(directory, &intent, run_lock, Begun::Before)?;
    Ok(true)
}

/// Finishes an interrupted commit; an error if another process uses the run directory.
pub fn finish(directory: &RunDirectory) -> Result<()> {
    if files::size(&directory.intent())?.is_some() {
        replay(directory, &directory.lock()?)?;
    }
    Ok(())
}

/// Finishes the commit of an interrupted selection before acquiring shared access, unless another process does so.
pub fn finish_interrupted(directory: &RunDirectory) -> Result<()> {
    if files::size(&directory.intent())?.is_some()
        && let Ok(run_lock) = directory.lock()
    {
        replay(directory, &run_lock)?;
    }
    Ok(())
}

/// Executes an intent. Every step can be repeated: a missing source was renamed before. Checks the lock before each step, so
/// that a process that lost it stops.
fn execute(
    directory: &RunDirectory,
    intent: &Intent,
    run_lock: &RunLock,
    begun: Begun,
) -> Result<()> {
    for path in intent.renames.iter().flat_map(|(from, to)| [from, to]).chain(&intent.removals) {
        let path = path.relative();
        if !is_inside(path) {
            let why = format!("has a path outside its folder: `{}`", path.display());
            let hint = "it was not written by longsift; remove it, or run the pipeline file with `--fresh`, which starts from scratch";
            return Err(wrong_intent(directory, &why, hint).into());
        }
    }
    if begun == Begun::Before {
        check_unchanged(directory, intent)?;
    }
    let renames: Vec<(PathBuf, PathBuf)> = intent
        .renames
        .iter()
        .map(|(from, to)| (from.resolve(directory), to.resolve(directory)))
        .collect();
    let removals: Vec<PathBuf> =
        intent.removals.iter().map(|path| path.resolve(directory)).collect();
    run_lock.remove_file(&directory.success())?;
    let threads = |files: usize| concurrency(&directory.output, files);
    parallel::in_order(removals.len(), threads(removals.len()), |index| {
        // A folder took the place of the file before the commit was interrupted.
        if removals[index].is_dir() { Ok(()) } else { run_lock.remove_file(&removals[index]) }
    })?;
    // A file may have the name of an emptied folder.
    let mut emptied: Vec<&Path> = removals.iter().filter_map(|path| path.parent()).collect();
    emptied.dedup();
    for folder in emptied {
        files::remove_empty_folders(folder, &directory.data())?;
    }
    parallel::in_order(renames.len(), threads(renames.len()), |index| {
        run_lock.confirm()?;
        let (from, to) = &renames[index];
        put_in_place(from, to, begun)
    })?;
    let changed = renames.iter().flat_map(|(from, to)| [from, to]).chain(&removals);
    let mut folders: Vec<&Path> = changed.filter_map(|path| path.parent()).collect();
    folders.sort_unstable();
    folders.dedup();
    // Parent folders are synced as well: a run that created them may have been killed before it synced them.
    let parent = directory.root.parent().unwrap_or(Path::new("/"));
    for folder in folders.into_iter().chain([directory.output.as_path(), parent]) {
        // A run that was killed at its last step has already removed the staging folder.
        files::fsync_folder_if_present(folder)?;
    }
    run_lock.confirm()?;
    let states = match begun {
        Begun::Now => directory.states()?,
        // The files may have been changed since the interrupted run wrote them.
        Begun::Before => Default::default(),
    };
    directory.mark_finished(&states)?;
    run_lock.confirm()?;
    directory.remove_attempts()?;
    run_lock.remove_file(&directory.intent())?;
    Ok(files::fsync_folder(&directory.root)?)
}

/// Returns the number of concurrent steps for `files` files. In an object store, few files are processed one by one: a process
/// that is suspended then has at most one request in flight, which arrives before another process can take over.
fn concurrency(folder: &Path, files: usize) -> usize {
    files::concurrency(folder, 1).min(files / FILES_PER_REQUEST).max(1)
}

/// When the commit began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// By this process, which has just written all files.
    Now,
    /// By a process that was interrupted and may have moved some files.
    Before,
}

/// Moves a file of a selection into place, unless an interrupted commit may have moved it: only a file of the target's name
/// exists.
fn put_in_place(from: &Path, to: &Path, begun: Begun) -> Result<()> {
    files::create_folder(to.parent().unwrap_or(Path::new("/")))?;
    let mut attempts = 0;
    let gone = loop {
        match files::put_in_place(from, to) {
            // Some stores deny an object for a moment after it was written.
            Err(error) if error.kind == ErrorKind::NotFound && is_address(from) && attempts < 3 => {
                attempts += 1;
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(error) if error.kind == ErrorKind::NotFound && begun == Begun::Before => {
                break error;
            }
            done => return Ok(done?),
        }
    };
    if files::size(to)?.is_some() {
        return Ok(());
    }
    Err(unfinishable(from, to, &format!("exists ({gone})")).into())
}

fn unfinishable(from: &Path, to: &Path, why: &str) -> Diagnostic {
    let message = format!(
        "the commit cannot be finished: neither `{}` nor `{}` {why}",
        from.display(),
        to.display()
    );
    Diagnostic::error(Blame::Data, message)
        .hint("another program removed a file of the run directory; run the pipeline file without `--phase`, which selects again, or start from scratch with `--fresh`")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a directory with old data and a staged selection, and the intent that commits the selection.
    fn prepared(folder: &Path) -> (RunDirectory, Intent) {
        let directory = RunDirectory::for_output(&folder.join("out"));
        let staged = directory.staging().join("data");
        for path in [directory.data(), staged.clone()] {
            std::fs::create_dir_all(path).unwrap();
        }
        for (path, text) in [
            (directory.data().join("a"), "old a"),
            (directory.data().join("c"), "old c"),
            (staged.join("a"), "new a"),
            (staged.join("b"), "new b"),
        ] {
            std::fs::write(path, text).unwrap();
        }
        std::fs::write(directory.root.join("lock"), "").unwrap();
        let mut intent = Intent::default();
        intent.rename(&directory, &staged.join("a"), &directory.data().join("a"));
        intent.rename(&directory, &staged.join("b"), &directory.data().join("b"));
        let before = ["a", "c"].map(|name| directory.data().join(name));
        intent.remove(&directory, before.into_iter());
        intent.begin = Some(begin(&directory, &intent, ""));
        (directory, intent)
    }

    fn begin(directory: &RunDirectory, intent: &Intent, manifest: &str) -> CommitBegin {
        CommitBegin::new(directory, intent, manifest.to_owned(), Vec::new()).unwrap()
    }

    fn data(directory: &RunDirectory) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = std::fs::read_dir(directory.data())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (
                    entry.file_name().into_string().unwrap(),
                    std::fs::read_to_string(entry.path()).unwrap(),
                )
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn a_commit_stopped_before_any_step_is_finished_by_the_next_run() {
        let new = vec![("a".to_owned(), "new a".to_owned()), ("b".to_owned(), "new b".to_owned())];
        for steps_done in 0..=4 {
            let folder = tempfile::tempdir().unwrap();
            let (directory, intent) = prepared(folder.path());
            let json = serde_json::to_vec(&intent).unwrap();
            std::fs::write(directory.intent(), json).unwrap();
            // The steps of `execute`, in order, as far as the interrupted run got.
            if steps_done >= 1 {
                std::fs::remove_file(directory.data().join("c")).unwrap();
            }
            for name in ["a", "b"].iter().take(usize::saturating_sub(steps_done, 1)) {
                std::fs::rename(
                    directory.staging().join("data").join(name),
                    directory.data().join(name),
                )
                .unwrap();
            }
            if steps_done >= 4 {
                std::fs::remove_dir_all(directory.staging()).unwrap();
            }
            assert!(replay(&directory, &directory.lock_exclusive().unwrap()).unwrap());
            assert_eq!(data(&directory), new, "after {steps_done} steps");
            assert!(
                directory.success().exists()
                    && !directory.intent().exists()
                    && !directory.staging().exists()
            );
            assert!(
                !replay(&directory, &directory.lock_exclusive().unwrap()).unwrap(),
                "nothing is left to replay"
            );
        }
    }

    #[test]
    fn a_commit_without_its_manifest_is_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, mut intent) = prepared(folder.path());
        let staged = directory.staging().join("manifest.json");
        std::fs::write(&staged, "new").unwrap();
        std::fs::write(directory.manifest(), "old").unwrap();
        intent.rename(&directory, &staged, &directory.manifest());
        intent.begin = Some(begin(&directory, &intent, &crate::base::text::sha256_hex(b"new")));
        std::fs::write(directory.intent(), serde_json::to_vec(&intent).unwrap()).unwrap();
        std::fs::remove_file(&staged).unwrap();
        let before = data(&directory);
        let refused = replay(&directory, &directory.lock_exclusive().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("is the manifest of the selection"), "{refused}");
        assert_eq!(refused.exit_code(), 3);
        assert_eq!(data(&directory), before, "nothing was moved");
    }

    #[test]
    fn a_copied_intent_commits_the_files_of_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, intent) = prepared(folder.path());
        std::fs::write(directory.intent(), serde_json::to_vec(&intent).unwrap()).unwrap();
        let before = data(&directory);
        let copy = RunDirectory::for_output(&folder.path().join("copy"));
        std::fs::create_dir_all(&copy.root).unwrap();
        for name in ["lock", "intent.json"] {
            std::fs::copy(directory.root.join(name), copy.root.join(name)).unwrap();
        }
        let answer = replay(&copy, &copy.lock_exclusive().unwrap()).unwrap_err().to_string();
        assert!(answer.contains("the commit cannot be finished"), "{answer}");
        assert_eq!(data(&directory), before, "the original is unchanged");
    }

    #[test]
    fn intent_with_paths_outside_its_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (directory, mut intent) = prepared(folder.path());
        intent.removals.push(CommitPath::Output(PathBuf::from("../elsewhere")));
        std::fs::write(directory.intent(), serde_json::to_vec(&intent).unwrap()).unwrap();
        assert!(
            replay(&directory, &directory.lock_exclusive().unwrap())
                .unwrap_err()
                .to_string()
                .contains("has a path outside its folder")
        );
        assert_eq!(data(&directory).len(), 2, "nothing was done");
    }
}
