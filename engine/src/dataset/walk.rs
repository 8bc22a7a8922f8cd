//! Finds the local files of a folder or a glob, each once even if it has several names.
//!
//! Links are followed. Names without a link take precedence, so linked folders are visited last; each folder is visited
//! once, which also ends cycles of links.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use glob::Pattern;

use super::problem::DataProblem;
use crate::base::diagnostic::Blame;
use crate::base::wildcards::has_wildcard;
use crate::storage::error::{ErrorKind, StorageError};
use crate::storage::files::{self, FolderEntry};

pub(super) const GLOB: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

#[derive(Debug, Default)]
pub(super) struct WalkResult {
    /// Files, in no particular order.
    pub(super) files: Vec<PathBuf>,
    /// Additional names of these files, each with the name under which the file is read.
    pub(super) duplicates: Vec<(PathBuf, PathBuf)>,
}

#[derive(Clone)]
enum PatternStep {
    Literal(OsString),
    Names(Pattern),
    /// `**`: this folder and all folders below it.
    Below,
}

/// Returns every file below `folder` except hidden ones.
pub(super) fn below(folder: &Path) -> Result<WalkResult, Vec<DataProblem>> {
    let name = Pattern::new("*").expect("a right pattern");
    let steps = vec![PatternStep::Below, PatternStep::Names(name)];
    FolderWalk { steps, hidden: b"._", ..FolderWalk::default() }.run(folder)
}

pub(super) fn matching(root: &Path, pattern: &Path) -> Result<WalkResult, Vec<DataProblem>> {
    let step = |part: std::path::Component<'_>| {
        let part = part.as_os_str();
        if part == "**" {
            return Ok(PatternStep::Below);
        }
        if !has_wildcard(Path::new(part)) {
            return Ok(PatternStep::Literal(part.to_owned()));
        }
        let not_a_glob = |why: String| {
            vec![DataProblem::settings(format!("`{}` is not a glob: {why}", pattern.display()))]
        };
        let text = part.to_str().ok_or_else(|| not_a_glob("it is not UTF-8".into()))?;
        Pattern::new(text).map(PatternStep::Names).map_err(|error| not_a_glob(error.to_string()))
    };
    let mut steps = pattern.components().map(step).collect::<Result<Vec<_>, _>>()?;
    if matches!(steps.last(), Some(PatternStep::Below)) {
        steps.push(PatternStep::Names(Pattern::new("*").expect("a right pattern")));
    }
    FolderWalk { steps, hidden: b".", ..FolderWalk::default() }.run(root)
}

#[derive(Default)]
struct FolderWalk {
    steps: Vec<PatternStep>,
    /// First characters of names that `**` skips.
    hidden: &'static [u8],
    /// Paths of visited folders without links, with the step that followed. Inodes of folders are not compared: file systems
    /// that combine others can give two folders the same one.
    entered: HashSet<(PathBuf, usize)>,
    /// Linked folders, with the step that follows.
    links: VecDeque<(PathBuf, usize)>,
    found: Vec<(bool, FolderEntry)>,
    problems: Vec<DataProblem>,
}

impl FolderWalk {
    fn run(mut self, root: &Path) -> Result<WalkResult, Vec<DataProblem>> {
        self.enter(root, 0, false);
        while let Some((folder, step)) = self.links.pop_front() {
            self.enter(&folder, step, true);
        }
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        Ok(deduplicate(self.found))
    }

    /// Matches the entries of `folder` with the steps from `step` on. `linked`: the folder was reached through a link.
    fn enter(&mut self, folder: &Path, step: usize, linked: bool) {
        let canonical = match files::canonical(folder) {
            Ok(canonical) => canonical,
            Err(error) if error.kind == ErrorKind::NotFound => return,
            Err(error) => return self.problems.push(unreadable(&error)),
        };
        if !self.entered.insert((canonical, step)) {
            return;
        }
        let pattern = self.steps[step].clone();
        let entries = match &pattern {
            PatternStep::Literal(name) => files::entry(&folder.join(name)).map(Vec::from_iter),
            _ => files::entries(folder),
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.problems.push(unreadable(&error)),
        };
        match pattern {
            PatternStep::Literal(_) => {
                for entry in entries {
                    self.take(entry, step + 1, linked);
                }
            }
            PatternStep::Below => {
                self.enter(folder, step + 1, linked);
                let hidden = self.hidden;
                for entry in entries {
                    if entry.is_folder && !is_hidden(&entry.path, hidden) {
                        self.take(entry, step, linked);
                    }
                }
            }
            PatternStep::Names(pattern) => {
                let hidden = if self.hidden.contains(&b'_') { self.hidden } else { b"" };
                for entry in entries {
                    let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
                    if pattern.matches_with(&name, GLOB) && !is_hidden(&entry.path, hidden) {
                        self.take(entry, step + 1, linked);
                    }
                }
            }
        }
    }

    /// Handles a match: visits a folder with the next step, or records a file after the last step.
    fn take(&mut self, entry: FolderEntry, next: usize, linked: bool) {
        match (entry.is_folder, next == self.steps.len()) {
            (true, false) if entry.is_link => self.links.push_back((entry.path, next)),
            (true, false) => self.enter(&entry.path, next, linked),
            (false, true) => self.found.push((linked, entry)),
            _ => {}
        }
    }
}

fn is_hidden(path: &Path, hidden: &[u8]) -> bool {
    let first = path.file_name().and_then(|name| name.as_bytes().first());
    first.is_some_and(|first| hidden.contains(first))
}

/// Keeps one name per file: the first by its bytes, preferably one without a link.
fn deduplicate(mut found: Vec<(bool, FolderEntry)>) -> WalkResult {
    found.sort_unstable_by(|(a_linked, a), (b_linked, b)| {
        (a_linked | a.is_link, &a.path).cmp(&(b_linked | b.is_link, &b.path))
    });
    let mut walked = WalkResult::default();
    let mut seen: HashMap<(u64, u64), Vec<FolderEntry>> = HashMap::new();
    for (_, entry) in found {
        if let Some(identity) = &entry.identity {
            let with_inode = seen.entry(identity.inode).or_default();
            if let Some(first) = with_inode.iter().find(|first| first.is_same_file(&entry)) {
                if first.path != entry.path {
                    walked.duplicates.push((entry.path, first.path.clone()));
                }
                continue;
            }
            with_inode.push(entry.clone());
        }
        walked.files.push(entry.path);
    }
    walked
}

/// Returns the error for a folder that cannot be listed. Permanent errors blame the data, not the machine.
pub(super) fn unreadable(error: &StorageError) -> DataProblem {
    let blame = if error.kind.is_transient() { Blame::Machine } else { Blame::Data };
    DataProblem { hint: error.hint(), ..DataProblem::new(blame, error.to_string()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(root: &Path, walked: Result<WalkResult, Vec<DataProblem>>) -> Vec<String> {
        let walked = walked.unwrap();
        let name = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        let mut names: Vec<String> = walked.files.iter().map(name).collect();
        names.sort();
        names
    }

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, name).unwrap();
        }
        folder
    }

    #[test]
    fn files_of_a_linked_folder_keep_the_name_without_a_link() {
        let folder = folder(&["z/1.parquet", "z/deep/2.parquet"]);
        let root = folder.path();
        symlink(root.join("z"), root.join("a")).unwrap();
        symlink(root.join("z"), root.join("b")).unwrap();
        let expected = ["z/1.parquet", "z/deep/2.parquet"];
        assert_eq!(names(root, below(root)), expected);
        assert_eq!(names(root, matching(root, Path::new("**/*.parquet"))), expected);
        assert_eq!(names(root, matching(root, Path::new("*/*.parquet"))), ["z/1.parquet"]);
        assert_eq!(names(root, matching(root, Path::new("a/*.parquet"))), ["a/1.parquet"]);
    }

    #[test]
    fn two_files_with_one_inode_are_both_read_unless_they_are_linked() {
        let folder = folder(&["a/1.parquet", "b/22.parquet"]);
        let [first, hard, soft, other] =
            ["a/1.parquet", "b/1.parquet", "c.parquet", "b/22.parquet"]
                .map(|name| folder.path().join(name));
        symlink(&other, &soft).unwrap();
        let entry = |path: &PathBuf| (false, files::entry(path).unwrap().unwrap());
        let walk = |entries: &[(bool, FolderEntry)]| {
            let walked = deduplicate(entries.to_vec());
            (walked.files, walked.duplicates)
        };
        // As the layers of an overlay in user space.
        let mut found = vec![entry(&first), entry(&other), entry(&soft)];
        let inode = found[0].1.identity.as_ref().unwrap().inode;
        for (_, entry) in &mut found {
            entry.identity.as_mut().unwrap().inode = inode;
        }
        let both = vec![first.clone(), other.clone()];
        assert_eq!(walk(&found), (both.clone(), vec![(soft.clone(), other.clone())]));
        // Files are written, and modes changed, while a folder is listed.
        found[2].1.identity.as_mut().unwrap().bytes += 1;
        assert_eq!(walk(&found), (both, vec![(soft, other)]));
        std::fs::hard_link(&first, &hard).unwrap();
        let mut found = vec![entry(&first), entry(&hard)];
        found[1].1.identity.as_mut().unwrap().changed.0 += 1;
        assert_eq!(walk(&found), (vec![first.clone()], vec![(hard, first)]));
    }

    #[test]
    fn links_in_a_circle_end() {
        let folder = folder(&["a/1.parquet", "b/2.parquet"]);
        let root = folder.path();
        symlink(root.join("b"), root.join("a/b")).unwrap();
        symlink(root.join("a"), root.join("b/a")).unwrap();
        symlink(root, root.join("b/up")).unwrap();
        let expected = ["a/1.parquet", "b/2.parquet"];
        assert_eq!(names(root, below(root)), expected);
        assert_eq!(names(root, matching(root, Path::new("**/*.parquet"))), expected);
        assert_eq!(names(root, matching(root, Path::new("**/**/*.parquet"))), expected);
    }

    #[test]
    fn two_names_of_one_file_are_reported() {
        let folder = folder(&["b.parquet", "c.parquet"]);
        let root = folder.path();
        symlink("b.parquet", root.join("a.parquet")).unwrap();
        std::fs::hard_link(root.join("c.parquet"), root.join("d.parquet")).unwrap();
        assert_eq!(names(root, below(root)), ["b.parquet", "c.parquet"]);
        let again = below(root).unwrap().duplicates;
        let expected = [("d.parquet", "c.parquet"), ("a.parquet", "b.parquet")];
        assert_eq!(again, expected.map(|(again, first)| (root.join(again), root.join(first))));
    }

    #[test]
    fn names_that_two_stars_skip_can_be_given_explicitly() {
        let folder = folder(&["x/_a/1.parquet", "x/.b/2.parquet", "x/_c.parquet"]);
        let root = folder.path();
        let matches = |pattern: &str| names(root, matching(root, Path::new(pattern)));
        assert_eq!(matches("**/*.parquet"), ["x/_a/1.parquet", "x/_c.parquet"]);
        assert_eq!(matches("*/.b/*.parquet"), ["x/.b/2.parquet"]);
        assert_eq!(matches("*/_a/../_c.parquet"), ["x/_a/../_c.parquet"]);
        assert_eq!(matches("x/**"), ["x/_a/1.parquet", "x/_c.parquet"]);
        assert!(names(root, below(root)).is_empty());
    }

    #[test]
    fn a_broken_link_is_a_file_that_cannot_be_opened() {
        let folder = folder(&[]);
        symlink("gone", folder.path().join("1.parquet")).unwrap();
        symlink("2.parquet", folder.path().join("2.parquet")).unwrap();
        assert_eq!(names(folder.path(), below(folder.path())), ["1.parquet", "2.parquet"]);
    }
}
