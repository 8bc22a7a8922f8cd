//! From a path in a pipeline file to the Parquet files it means.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::problem::{DataProblem, ProblemKind};
use super::source;
use crate::files;
use crate::hub::Tree;
#[cfg(feature = "cloud")]
use crate::object_stores;

const GLOB: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// How many names a message about a missing path lists.
const NAMES_SHOWN: usize = 8;

/// The files that an input path means.
#[derive(Debug)]
pub(super) struct Found {
    /// The folder that every file is below: a folder itself, a file's folder, a glob's longest part without wildcards.
    pub(super) root: PathBuf,
    /// The files below it, '/'-separated, in the order of their bytes.
    pub(super) files: Vec<String>,
    /// Where they are, if on the hub.
    pub(super) hub: Option<InTree>,
}

impl Found {
    fn new(root: PathBuf, files: Vec<String>) -> Self {
        Self { root, files, hub: None }
    }

    /// Bytes of a file, where they are known.
    pub(super) fn size(&self, path: &str) -> Option<u64> {
        match &self.hub {
            Some(hub) => hub.tree.length(&format!("{}{path}", hub.folder)),
            None => files::size(&self.root.join(path)).ok().flatten(),
        }
    }
}

/// A folder of a data set of the hub.
#[derive(Clone, Debug)]
pub(super) struct InTree {
    pub(super) tree: Arc<Tree>,
    /// The folder, with a slash at its end; empty for all of the data set.
    pub(super) folder: String,
}

/// Finds the files that `path` (a file, a folder or a glob) means.
///
/// A folder gives every `*.parquet` below it, except under names that begin with `.` or `_`: the temporary, staged and
/// summary files of other tools. A glob gives the files it matches; its wildcards do not match a leading `.`.
pub(super) fn find(path: &Path) -> Result<Found, Vec<DataProblem>> {
    if source::is_remote(path) {
        remote(path)
    } else if files::is_folder(path).map_err(|error| vec![unreadable(&error)])? {
        let mut found = Vec::new();
        walk(path, &mut Vec::new(), &mut found).map_err(|problem| vec![problem])?;
        relative(path.to_path_buf(), found)
    } else if path.exists() {
        relative(path.parent().unwrap_or(Path::new(".")).to_path_buf(), vec![path.to_path_buf()])
    } else if has_wildcard(path) {
        matches(path)
    } else {
        Err(vec![missing(path)])
    }
}

/// The files of an object store that an address means, by the same rules; a web server has no lists, so there it is one
/// file.
#[cfg(feature = "cloud")]
fn remote(path: &Path) -> Result<Found, Vec<DataProblem>> {
    let url = path.to_str().expect("an address is text");
    let one = |url: &str| {
        let (root, name) = url.rsplit_once('/').unwrap_or(("", url));
        Found::new(PathBuf::from(root), vec![name.to_owned()])
    };
    let is_web = url.starts_with("http://") || url.starts_with("https://");
    if is_web && (has_wildcard(path) || url.ends_with('/')) {
        let problem =
            DataProblem::settings(format!("`{url}` is no file: web servers have no lists"));
        return Err(vec![
            problem.with_hint(
                "name one Parquet file, or use a store with lists (s3://, gs://, az://)",
            ),
        ]);
    }
    if is_web {
        return Ok(one(url));
    }
    let fixed = url.find(['*', '?', '[']).map_or(url, |at| &url[..at]);
    let root = if fixed == url {
        url.trim_end_matches('/')
    } else {
        fixed.rsplit_once('/').map_or(fixed, |(root, _)| root)
    };
    let names = object_stores::list(root).map_err(|error| {
        let error = files::failed("list", path)(error);
        vec![DataProblem { kind: store_kind(&error), ..unreadable(&error) }]
    })?;
    if fixed == url {
        // A bucket, or an object.
        let is_bucket = root.matches('/').count() < 3;
        if names.is_empty() && !is_bucket {
            return Ok(one(root));
        }
        let files = names.into_iter().filter(|name| is_wanted(name)).collect();
        return Ok(Found::new(PathBuf::from(root), files));
    }
    let pattern = pattern(url, url[root.len()..].trim_start_matches('/'))?;
    let wanted = |name: &String| pattern.matches_with(name, GLOB);
    Ok(Found::new(PathBuf::from(root), names.into_iter().filter(wanted).collect()))
}

/// The files that a path in a data set of the hub means, by the same rules.
pub(super) fn find_in(tree: &Arc<Tree>) -> Result<Found, Vec<DataProblem>> {
    let (address, path) = (tree.address(), tree.wanted());
    let found = |folder: &str, files: Vec<String>| {
        let root = PathBuf::from(format!("{address}/{}", folder.trim_end_matches('/')));
        let hub = Some(InTree { tree: Arc::clone(tree), folder: folder.to_owned() });
        Found { root, files, hub }
    };
    let last_slash = |path: &str| path.rfind('/').map_or(0, |at| at + 1);
    if tree.names().any(|name| name == path) {
        let (folder, name) = path.split_at(last_slash(path));
        return Ok(found(folder, vec![name.to_owned()]));
    }
    let below = |folder: &str| {
        let names: Vec<String> =
            tree.names().filter_map(|name| name.strip_prefix(folder)).map(str::to_owned).collect();
        names
    };
    let Some(wildcard) = path.find(['*', '?', '[']) else {
        let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
        let names = below(&folder);
        if names.is_empty() {
            return Err(vec![missing_in(tree)]);
        }
        return Ok(found(&folder, names.into_iter().filter(|name| is_wanted(name)).collect()));
    };
    let (folder, rest) = path.split_at(last_slash(&path[..wildcard]));
    let pattern = pattern(&format!("{address}/{path}"), rest)?;
    let names = below(folder);
    if names.is_empty() {
        return Err(vec![missing_in(tree)]);
    }
    let wanted = |name: &String| pattern.matches_with(name, GLOB);
    Ok(found(folder, names.into_iter().filter(wanted).collect()))
}

/// Says what a data set has where it does not have what is wanted.
fn missing_in(tree: &Tree) -> DataProblem {
    let (address, path) = (tree.address(), tree.wanted());
    let mut parts: Vec<&str> = path.split('/').collect();
    let problem = DataProblem::settings(format!("`{address}` has no `{path}`"));
    while let Some(wanted) = parts.pop() {
        let folder: String = parts.iter().flat_map(|part| [*part, "/"]).collect();
        let names: BTreeSet<&str> = (tree.names().filter_map(|name| name.strip_prefix(&*folder)))
            .map(|name| name.split('/').next().unwrap_or(name))
            .collect();
        if !names.is_empty() {
            let names = names.into_iter().map(str::to_owned).collect();
            let place = if folder.is_empty() { address } else { folder };
            return problem.with_hint(format!("`{place}` has: {}", nearest(names, wanted)));
        }
    }
    problem.with_hint("the data set has no files")
}

/// Whether a folder's file is part of the input.
fn is_wanted(name: &str) -> bool {
    let hidden = |part: &str| part.starts_with(['.', '_']);
    Path::new(name).extension().is_some_and(|extension| extension == "parquet")
        && !name.split('/').any(hidden)
}

fn pattern(address: &str, pattern: &str) -> Result<glob::Pattern, Vec<DataProblem>> {
    glob::Pattern::new(pattern)
        .map_err(|why| vec![DataProblem::settings(format!("`{address}` is not a glob: {why}"))])
}

/// Who has to act where a store does not answer.
#[cfg(feature = "cloud")]
fn store_kind(error: &files::FileError) -> ProblemKind {
    match error.source.kind() {
        std::io::ErrorKind::TimedOut => ProblemKind::Machine,
        _ => ProblemKind::Settings,
    }
}

#[cfg(not(feature = "cloud"))]
fn remote(path: &Path) -> Result<Found, Vec<DataProblem>> {
    let message = format!("`{}` is in an object store, and this build reads none", path.display());
    Err(vec![DataProblem::settings(message).with_hint("build with `--features cloud`")])
}

/// Every `*.parquet` below `folder`. Links are followed, except one that leads back to a folder `above`.
fn walk(
    folder: &Path,
    above: &mut Vec<PathBuf>,
    found: &mut Vec<PathBuf>,
) -> Result<(), DataProblem> {
    let real = files::canonical(folder).map_err(|error| unreadable(&error))?;
    if above.contains(&real) {
        return Ok(());
    }
    above.push(real);
    for path in files::list_folder(folder).map_err(|error| unreadable(&error))? {
        let name = path.file_name().unwrap_or_default().as_bytes();
        if name.starts_with(b".") || name.starts_with(b"_") {
            continue;
        }
        if files::is_folder(&path).map_err(|error| unreadable(&error))? {
            walk(&path, above, found)?;
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            found.push(path);
        }
    }
    above.pop();
    Ok(())
}

/// The files that a glob matches.
fn matches(path: &Path) -> Result<Found, Vec<DataProblem>> {
    let not_a_glob = |why: String| {
        vec![DataProblem::settings(format!("`{}` is not a glob: {why}", path.display()))]
    };
    let pattern = path.to_str().ok_or_else(|| not_a_glob("it is not UTF-8".into()))?;
    let root = folder_without_wildcards(path);
    if !root.is_dir() {
        return Err(vec![missing(&root)]);
    }
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for entry in glob::glob_with(pattern, GLOB).map_err(|error| not_a_glob(error.to_string()))? {
        match entry {
            Ok(file) if file.is_dir() => {}
            Ok(file) => found.push(file),
            Err(error) => problems.push(DataProblem::data(format!(
                "cannot list `{}`: {error}",
                error.path().display()
            ))),
        }
    }
    if problems.is_empty() { relative(root, found) } else { Err(problems) }
}

/// The longest leading part of a glob that has no wildcard.
fn folder_without_wildcards(path: &Path) -> PathBuf {
    path.components().take_while(|part| !has_wildcard(Path::new(part))).collect()
}

/// Whether a path has a character that means something in a glob.
fn has_wildcard(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Names relative to the root, sorted by bytes.
fn relative(root: PathBuf, found: Vec<PathBuf>) -> Result<Found, Vec<DataProblem>> {
    let mut files = Vec::new();
    let mut problems = Vec::new();
    for path in found {
        let below = path.strip_prefix(&root).unwrap_or(&path);
        match below.to_str() {
            Some(name) => files.push(name.to_string()),
            None => problems.push(
                DataProblem::data(format!("the name `{}` is not UTF-8", below.display()))
                    .with_hint("rename it: names are written to the output, which is UTF-8"),
            ),
        }
    }
    files.sort_unstable();
    files.dedup();
    if problems.is_empty() { Ok(Found::new(root, files)) } else { Err(problems) }
}

/// A folder of the input that cannot be listed is the data's problem, not the machine's.
fn unreadable(error: &files::FileError) -> DataProblem {
    let kind = if error.may_pass() { ProblemKind::Machine } else { ProblemKind::Data };
    DataProblem { hint: error.hint(), ..DataProblem::new(kind, error.to_string()) }
}

/// Says what does exist next to a path that does not.
fn missing(path: &Path) -> DataProblem {
    let problem = DataProblem::settings(format!("`{}` does not exist", path.display()));
    let parents = path.ancestors().skip(1);
    let Some(existing) =
        parents.filter(|folder| !folder.as_os_str().is_empty()).find(|folder| folder.is_dir())
    else {
        return problem;
    };
    let wanted = path
        .strip_prefix(existing)
        .ok()
        .and_then(|rest| rest.components().next())
        .map(|part: Component<'_>| part.as_os_str().to_string_lossy().into_owned())
        .unwrap_or_default();
    let names: Vec<String> = files::list_folder(existing)
        .unwrap_or_default()
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .filter(|name| !name.starts_with('.'))
        .collect();
    if names.is_empty() {
        return problem.with_hint(format!("`{}` exists and is empty", existing.display()));
    }
    let names = nearest(names, &wanted);
    problem.with_hint(format!("`{}` has: {names}", existing.display()))
}

/// The names that are most like the one that was wanted.
fn nearest(mut names: Vec<String>, wanted: &str) -> String {
    names.sort_by_cached_key(|name| (strsim::damerau_levenshtein(name, wanted), name.clone()));
    let more = if names.len() > NAMES_SHOWN { ", …" } else { "" };
    names.truncate(NAMES_SHOWN);
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            files::create_folder(path.parent().unwrap()).unwrap();
            files::write_atomic(&path, b"").unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_gives_its_parquet_files_in_byte_order_without_hidden_ones() {
        let folder = folder(&[
            "b.parquet",
            "a/z.parquet",
            "a.parquet",
            "a/B.parquet",
            "_tmp/c.parquet",
            ".h.parquet",
            "_metadata.parquet",
            "readme.md",
            "a-b.parquet",
        ]);
        let found = find(folder.path()).unwrap();
        assert_eq!(found.root, folder.path());
        assert_eq!(
            found.files,
            ["a-b.parquet", "a.parquet", "a/B.parquet", "a/z.parquet", "b.parquet"]
        );
    }

    #[test]
    fn a_file_is_relative_to_its_folder_whatever_its_extension() {
        let folder = folder(&["x/data.bin"]);
        let found = find(&folder.path().join("x/data.bin")).unwrap();
        assert_eq!(
            (found.root, found.files),
            (folder.path().join("x"), vec!["data.bin".to_string()])
        );
    }

    #[test]
    fn a_glob_is_relative_to_its_part_without_wildcards() {
        let folder = folder(&[
            "d/x/1.parquet",
            "d/y/2.parquet",
            "d/y/deep/3.parquet",
            "d/y/.hidden.parquet",
        ]);
        let found = find(&folder.path().join("d/*/*.parquet")).unwrap();
        assert_eq!(found.root, folder.path().join("d"));
        assert_eq!(found.files, ["x/1.parquet", "y/2.parquet"]);
        let found = find(&folder.path().join("d/**/*.parquet")).unwrap();
        assert_eq!(found.files, ["x/1.parquet", "y/2.parquet", "y/deep/3.parquet"]);
    }

    #[test]
    fn a_name_with_wildcard_characters_that_exists_is_a_file() {
        let folder = folder(&["a[1].parquet", "a1.parquet"]);
        assert_eq!(find(&folder.path().join("a[1].parquet")).unwrap().files, ["a[1].parquet"]);
    }

    #[test]
    fn an_empty_folder_and_a_glob_without_matches_are_no_files() {
        let folder = folder(&[]);
        assert!(find(folder.path()).unwrap().files.is_empty());
        assert!(find(&folder.path().join("*.parquet")).unwrap().files.is_empty());
    }

    #[test]
    fn a_missing_path_says_what_exists_nearby() {
        let folder = folder(&["corpora/books.parquet", "corpora/code.parquet"]);
        let problems = find(&folder.path().join("corpora/boks.parquet")).unwrap_err();
        assert!(
            problems[0]
                .hint
                .as_ref()
                .unwrap()
                .ends_with("corpora` has: books.parquet, code.parquet")
        );
        let problems = find(&folder.path().join("corpra/*.parquet")).unwrap_err();
        assert!(problems[0].hint.as_ref().unwrap().ends_with("has: corpora"), "{problems:?}");
    }

    #[test]
    fn a_link_back_to_a_folder_above_is_not_followed() {
        let folder = folder(&["a/1.parquet"]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/again")).unwrap();
        assert_eq!(find(folder.path()).unwrap().files, ["a/1.parquet"]);
    }

    #[test]
    fn a_link_to_a_file_elsewhere_is_a_file() {
        let (store, folder) = (folder(&["blob"]), folder(&[]));
        std::os::unix::fs::symlink(store.path().join("blob"), folder.path().join("1.parquet"))
            .unwrap();
        assert_eq!(find(folder.path()).unwrap().files, ["1.parquet"]);
    }
}
