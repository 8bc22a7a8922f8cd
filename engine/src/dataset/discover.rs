//! Resolves an input path of a pipeline file to its files.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use longsift_stages::contract::{Address, SIGNATURE_BYTES, Signature};

use super::formats::format::{self, FileFormat};
use super::problem::DataProblem;
use super::source::InTree;
use super::table_format::TableFolder;
use super::walk::{self, GLOB, WalkResult, unreadable};
use crate::base::diagnostic::Blame;
use crate::base::wildcards;
use crate::spec::locations::SEPARATE_OUTPUT;
use crate::spec::pipeline::InputFormat;
use crate::storage::error::{ErrorKind, StorageError};
use crate::storage::files;
use crate::storage::hub::tree::Tree;
use crate::storage::store::is_address;

const MAX_NAMES_SHOWN: usize = 8;

#[derive(Debug, Default)]
pub(super) struct DiscoveredFiles {
    /// Folder of all files: the folder itself, a file's folder, or the longest prefix of a glob without wildcards.
    pub(super) root: PathBuf,
    /// Paths relative to `root`, '/'-separated, sorted by bytes.
    pub(super) files: Vec<String>,
    pub(super) hub: Option<InTree>,
    pub(super) notes: Vec<String>,
}

impl DiscoveredFiles {
    /// Refuses files below `results`, to which a link in the input may lead.
    pub(super) fn refuse_results(&self, results: &[PathBuf]) -> Result<(), Vec<DataProblem>> {
        let resolved = |folder: &Path| {
            if is_address(folder) { Some(folder.to_owned()) } else { folder.canonicalize().ok() }
        };
        let results: Vec<PathBuf> = results.iter().filter_map(|folder| resolved(folder)).collect();
        let mut checked = BTreeSet::new();
        let written = |path: &&String| {
            let path = self.root.join(path);
            let folder = path.parent().unwrap_or(&self.root);
            checked.insert(folder.to_owned())
                && resolved(folder)
                    .is_some_and(|folder| results.iter().any(|result| folder.starts_with(result)))
        };
        let Some(path) = self.files.iter().filter(|_| !results.is_empty()).find(written) else {
            return Ok(());
        };
        let message = "it is a file of the output of this pipeline".to_owned();
        Err(vec![DataProblem::settings(message).in_file(path.as_str()).with_hint(SEPARATE_OUTPUT)])
    }

    pub(super) fn size(&self, path: &str) -> Option<u64> {
        match &self.hub {
            Some(hub) => hub.tree.length(&format!("{}{path}", hub.folder)),
            None => files::size(&self.root.join(path)).ok().flatten(),
        }
    }
}

/// Finds the files for `path` (a file, a folder or a glob) relative to `folder`. Wildcard characters in `folder` itself
/// are literal.
///
/// A folder yields its files of one format, recursively, except under names that begin with `.` or `_`: other tools use
/// such names for temporary, staged and summary files. The folder of a table format is an error. A glob yields its
/// matches; its wildcards do not match a leading `.`.
pub(super) fn find(
    folder: &Path,
    path: &Path,
    format: InputFormat,
) -> Result<DiscoveredFiles, Vec<DataProblem>> {
    if is_address(path) && cfg!(feature = "cloud") {
        return remote(path, format);
    }
    if is_address(path) {
        let message = format!(
            "`{}` is in an object store, which this build does not support",
            path.display()
        );
        return Err(vec![
            DataProblem::settings(message).with_hint("build with `--features cloud`"),
        ]);
    }
    let (fixed, rest) = wildcards::split(path);
    let fixed = folder.join(fixed);
    // An existing name with wildcard characters is taken literally.
    let all_fixed = rest.as_os_str().is_empty();
    let unescaped = if all_fixed { fixed.clone() } else { fixed.join(&rest) };
    for path in [folder.join(path), unescaped] {
        if files::is_folder(&path).map_err(|error| vec![unreadable(&error)])? {
            return walk::below(&path).and_then(|walked| in_folder(path.clone(), walked, format));
        }
        if path.exists() {
            let root = path.parent().unwrap_or(Path::new(".")).to_path_buf();
            let files = relative(&root, vec![path])?;
            return Ok(DiscoveredFiles { root, files, ..DiscoveredFiles::default() });
        }
    }
    let (fixed, rest) = wildcards::extended(fixed, &rest, Path::is_dir);
    let root = if fixed.as_os_str().is_empty() { PathBuf::from(".") } else { fixed };
    if all_fixed || !root.is_dir() {
        return Err(vec![missing(&root)]);
    }
    let walked = walk::matching(&root, &rest)?;
    let files = relative(&root, walked.files)?;
    let table = TableFolder::find_in_files(&root, files.iter().map(String::as_str));
    let notes = duplicate_names_note(&walked.duplicates, &root).into_iter();
    let notes = notes.chain(table.map(|table| table.note())).collect();
    Ok(DiscoveredFiles { root, files, hub: None, notes })
}

/// Returns a note about additional names of the same files, which are skipped.
fn duplicate_names_note(duplicates: &[(PathBuf, PathBuf)], root: &Path) -> Option<String> {
    let (name, first) = duplicates.first()?;
    let below = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    let more = match duplicates.len() {
        1 => String::new(),
        count => format!(" (and {} more such names)", count - 1),
    };
    Some(format!(
        "`{}` is the same file as `{}`{more}; each file is read once",
        below(name),
        below(first)
    ))
}

/// Finds the files for an address in an object store by the same rules. An address on a web server is one file.
fn remote(path: &Path, format: InputFormat) -> Result<DiscoveredFiles, Vec<DataProblem>> {
    let url = path.to_str().expect("an address is text");
    let one = |url: &str| {
        let (root, name) = url.rsplit_once('/').unwrap_or(("", url));
        let files = vec![name.to_owned()];
        DiscoveredFiles { root: root.into(), files, ..DiscoveredFiles::default() }
    };
    // Transient errors are the machine's fault, others the pipeline's.
    let is_store = |error: StorageError| {
        let blame = if error.kind.is_transient() { Blame::Machine } else { Blame::Pipeline };
        vec![DataProblem { blame, ..unreadable(&error) }]
    };
    let address = Address::parse(url);
    if let Some(address) = address.filter(|address| address.scheme.is_web()) {
        let is_folder = address.name().is_empty() || url.ends_with('/');
        let is_file = || Ok(!wildcards::has_wildcard(path) || files::size(path)?.is_some());
        if !is_folder && is_file().map_err(is_store)? {
            return Ok(one(url));
        }
        let problem = DataProblem::settings(format!(
            "`{url}` is not a file, and HTTP servers cannot be listed"
        ));
        return Err(vec![
            problem.with_hint("name one file, or use an object store (s3://, gs://, az://)"),
        ]);
    }
    let fixed = url.find(['*', '?', '[']).map_or(url, |at| &url[..at]);
    let root = if fixed == url {
        url.trim_end_matches('/')
    } else {
        fixed.rsplit_once('/').map_or(fixed, |(root, _)| root)
    };
    let names = files::below_if_present(Path::new(root)).map_err(is_store)?;
    let names = relative(Path::new(root), names)?;
    if fixed == url && root.matches('/').count() >= 3 {
        // An object can share its name with a folder; an empty object is only a folder marker.
        let object = || match files::size(Path::new(root)) {
            Err(error) if error.kind == ErrorKind::Denied => Ok(None),
            size => size,
        };
        let is_object = names.is_empty()
            || !url.ends_with('/') && object().map_err(is_store)?.is_some_and(|bytes| bytes > 0);
        if is_object {
            return Ok(one(root));
        }
    }
    let path = url[root.len()..].trim_matches('/');
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (folder, mut found) = match_names(&names, path, url, format)?.unwrap_or_default();
    let root = format!("{root}/{folder}");
    let root = PathBuf::from(root.trim_end_matches('/'));
    // The list has only the names below the folder.
    if let Some(table) = TableFolder::find_above(&root) {
        if path.is_empty() {
            return Err(vec![table.refusal()]);
        }
        found.notes.push(table.note());
    }
    Ok(DiscoveredFiles { root, ..found })
}

/// Finds the files for a path in a hub data set by the same rules.
pub(super) fn find_in_hub(
    tree: &Arc<Tree>,
    format: InputFormat,
) -> Result<DiscoveredFiles, Vec<DataProblem>> {
    let names: Vec<&str> = tree.names().collect();
    let location = format!("{}/{}", tree.address(), tree.wanted);
    let Some((folder, found)) = match_names(&names, &tree.wanted, &location, format)? else {
        return Err(vec![missing_in_hub(tree)]);
    };
    let root = PathBuf::from(format!("{}/{}", tree.address(), folder.trim_end_matches('/')));
    let hub = Some(InTree { tree: Arc::clone(tree), folder });
    Ok(DiscoveredFiles { root, hub, ..found })
}

/// Matches a path against the names of a store. Returns the folder, with a trailing slash, and the matches below it;
/// `None` if the folder is missing. An existing file or folder of exactly that name is taken literally, and so is the
/// longest folder prefix of a pattern.
fn match_names(
    names: &[&str],
    path: &str,
    location: &str,
    format: InputFormat,
) -> Result<Option<(String, DiscoveredFiles)>, Vec<DataProblem>> {
    let last_slash = |path: &str| path.rfind('/').map_or(0, |at| at + 1);
    let below = |folder: &str| -> Vec<String> {
        names.iter().filter_map(|name| name.strip_prefix(folder)).map(str::to_owned).collect()
    };
    if names.contains(&path) {
        let (folder, name) = path.split_at(last_slash(path));
        let files = vec![name.to_owned()];
        let file = DiscoveredFiles { files, ..DiscoveredFiles::default() };
        return Ok(Some((folder.to_owned(), file)));
    }
    let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
    let found = below(&folder);
    if !found.is_empty() {
        let table = TableFolder::find_in_listing(location, found.iter().map(String::as_str));
        if let Some(table) = table {
            return Err(vec![table.refusal()]);
        }
        let (files, note) = select_names(found, location, format, |_| false)?;
        let notes = note.into_iter().collect();
        let files = DiscoveredFiles { files, notes, ..DiscoveredFiles::default() };
        return Ok(Some((folder, files)));
    }
    let Some(wildcard) = path.find(['*', '?', '[']) else {
        return Ok(path.is_empty().then(Default::default));
    };
    let fixed = last_slash(&path[..wildcard]);
    let folders = path.match_indices('/').map(|(at, _)| at + 1).filter(|end| *end > fixed);
    let exists = |end: &usize| names.iter().any(|name| name.starts_with(&path[..*end]));
    let (folder, rest) = path.split_at(folders.rev().find(exists).unwrap_or(fixed));
    let pattern = glob::Pattern::new(rest)
        .map_err(|why| vec![DataProblem::settings(format!("`{location}` is not a glob: {why}"))])?;
    let below = below(folder);
    let place = location.strip_suffix(path).map(|parent| format!("{parent}{folder}"));
    let place = place.as_deref().map_or(location, |place| place.trim_end_matches('/'));
    let table = TableFolder::find_in_listing(place, below.iter().map(String::as_str));
    let files = below.iter().filter(|name| pattern.matches_with(name, GLOB)).cloned().collect();
    let found = DiscoveredFiles {
        notes: table.iter().map(TableFolder::note).collect(),
        files,
        ..DiscoveredFiles::default()
    };
    Ok((!below.is_empty()).then(|| (folder.to_owned(), found)))
}

/// Describes a missing path and lists what the data set contains instead.
fn missing_in_hub(tree: &Tree) -> DataProblem {
    let (address, path) = (tree.address(), &tree.wanted);
    let mut parts: Vec<&str> = path.split('/').collect();
    let problem = DataProblem::settings(format!("`{address}` has no `{path}`"));
    while let Some(wanted) = parts.pop() {
        let folder: String = parts.iter().flat_map(|part| [*part, "/"]).collect();
        let names: BTreeSet<&str> = (tree.names().filter_map(|name| name.strip_prefix(&*folder)))
            .map(|name| name.split('/').next().unwrap_or(name))
            .collect();
        if !names.is_empty() {
            let names = names.into_iter().map(str::to_owned).collect();
            let location = if folder.is_empty() { address } else { folder };
            return problem.with_hint(format!("`{location}` has: {}", nearest(names, wanted)));
        }
    }
    problem.with_hint("the data set has no files")
}

/// Returns the names of a folder that belong to the input, and a note about the others. `is_parquet`: whether a file without
/// an extension is a Parquet file.
fn select_names(
    mut names: Vec<String>,
    folder: &str,
    format: InputFormat,
    is_parquet: impl Fn(&str) -> bool,
) -> Result<(Vec<String>, Option<String>), Vec<DataProblem>> {
    names.retain(|name| !name.split('/').any(|part| part.starts_with(['.', '_'])));
    let hint = "select one format with a glob such as `data/*.jsonl`, or with `input.format`";
    let chosen = format::select_input_files(&names, format).map_err(|counts| {
        let message = format!("`{folder}` has files of several formats: {counts}");
        vec![DataProblem::settings(message).with_hint(hint)]
    });
    let (files, mut others) = chosen?;
    let is_bare = |name: &&String| !name.rsplit('/').next().unwrap_or(name).contains('.');
    others.extend(names.iter().filter(is_bare).filter(|name| is_parquet(name)).cloned());
    others.sort_unstable();
    others.dedup();
    let Some(first) = others.first() else { return Ok((files, None)) };
    let message = match others.len() {
        1 => format!("1 file in `{folder}` looks like data and is not read: `{first}`"),
        count => {
            let shown = &others[..others.len().min(MAX_NAMES_SHOWN)];
            let more = if count > MAX_NAMES_SHOWN { ", …" } else { "" };
            format!(
                "{count} files in `{folder}` look like data and are not read: `{}`{more}",
                shown.join("`, `")
            )
        }
    };
    if files.is_empty() {
        let readable = "Parquet, Arrow, JSON Lines and TSV are supported, the last two also compressed with gzip or Zstandard";
        let problem = DataProblem::settings(message);
        return Err(vec![problem.with_hint(format!(
            "{readable}; plain `.json` files, and Parquet files without an extension, are read only if a glob matches them"
        ))]);
    }
    Ok((files, Some(message)))
}

fn in_folder(
    folder: PathBuf,
    mut walked: WalkResult,
    format: InputFormat,
) -> Result<DiscoveredFiles, Vec<DataProblem>> {
    // Files outside the input may have names that are not UTF-8.
    let (named, unnamed): (Vec<_>, Vec<_>) =
        walked.files.into_iter().partition(|path| path.to_str().is_some());
    let is_input = |path: &PathBuf| FileFormat::is_known(&path.to_string_lossy());
    let files = named.into_iter().chain(unnamed.into_iter().filter(is_input)).collect();
    let files = relative(&folder, files)?;
    if let Some(table) = TableFolder::find_in_files(&folder, files.iter().map(String::as_str)) {
        return Err(vec![table.refusal()]);
    }
    let is_parquet = |name: &str| {
        let start = files::read_start(&folder.join(name), SIGNATURE_BYTES as u64);
        let found = Signature::detect(&start.unwrap_or_default());
        found.is_some_and(|found| found.name == FileFormat::Parquet.name())
    };
    let (files, note) = select_names(files, &folder.display().to_string(), format, is_parquet)?;
    let read: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    walked.duplicates.retain(|(_, first)| {
        let name = first.strip_prefix(&folder).ok().and_then(Path::to_str);
        name.is_some_and(|name| read.contains(name))
    });
    let notes = duplicate_names_note(&walked.duplicates, &folder).into_iter().chain(note);
    let notes = notes.collect();
    Ok(DiscoveredFiles { root: folder, files, hub: None, notes })
}

/// Makes paths relative to the root and sorts them by bytes.
fn relative(root: &Path, paths: Vec<PathBuf>) -> Result<Vec<String>, Vec<DataProblem>> {
    let mut files = Vec::new();
    let mut problems = Vec::new();
    for path in paths {
        let below = path.strip_prefix(root).unwrap_or(&path);
        match below.to_str() {
            Some(name) => files.push(name.to_string()),
            None => problems.push(
                DataProblem::data(format!("the name `{}` is not UTF-8", below.display()))
                    .with_hint("rename it: names are written to the output, which is UTF-8"),
            ),
        }
    }
    files.sort_unstable();
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

/// Describes a missing path and lists the closest existing names.
fn missing(path: &Path) -> DataProblem {
    let problem = DataProblem::settings(format!("`{}` does not exist", path.display()));
    if path.to_str().is_some_and(|path| path.contains('{') && path.contains(',')) {
        return problem.with_hint("globs have `*`, `?`, `[ab]` and `**`, but no `{a,b}`");
    }
    // The last ancestor of a relative path is empty.
    let path = if path.is_relative() { &Path::new(".").join(path) } else { path };
    let Some(existing) = path.ancestors().skip(1).find(|folder| folder.is_dir()) else {
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

fn nearest(mut names: Vec<String>, wanted: &str) -> String {
    names.sort_by_cached_key(|name| (strsim::damerau_levenshtein(name, wanted), name.clone()));
    let more = if names.len() > MAX_NAMES_SHOWN { ", …" } else { "" };
    names.truncate(MAX_NAMES_SHOWN);
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::storage::atomic;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            files::create_folder(path.parent().unwrap()).unwrap();
            atomic::write_atomic(&path, b"").unwrap();
        }
        folder
    }

    #[test]
    fn folder_files_are_sorted_by_bytes_without_hidden_ones() {
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
        let found = find(Path::new(""), folder.path(), InputFormat::Auto).unwrap();
        assert_eq!(found.root, folder.path());
        assert_eq!(
            found.files,
            ["a-b.parquet", "a.parquet", "a/B.parquet", "a/z.parquet", "b.parquet"]
        );
    }

    #[test]
    fn parquet_files_without_an_extension_are_named() {
        let folder = folder(&["a.parquet", "LICENSE", "x/000000_0"]);
        let find = || find(Path::new(""), folder.path(), InputFormat::Auto);
        fs::write(folder.path().join("x/000000_0"), "PAR1 PAR1").unwrap();
        let found = find().unwrap();
        assert_eq!(found.files, ["a.parquet"]);
        let [note] = &found.notes[..] else { panic!("{:?}", found.notes) };
        assert!(note.ends_with("looks like data and is not read: `x/000000_0`"), "{note}");
        fs::remove_file(folder.path().join("a.parquet")).unwrap();
        assert!(find().unwrap_err()[0].message.contains("`x/000000_0`"));
    }

    #[test]
    fn a_file_with_any_extension_is_relative_to_its_folder() {
        let folder = folder(&["x/data.bin"]);
        let found =
            find(Path::new(""), &folder.path().join("x/data.bin"), InputFormat::Auto).unwrap();
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
        let found =
            find(Path::new(""), &folder.path().join("d/*/*.parquet"), InputFormat::Auto).unwrap();
        assert_eq!(found.root, folder.path().join("d"));
        assert_eq!(found.files, ["x/1.parquet", "y/2.parquet"]);
        let found =
            find(Path::new(""), &folder.path().join("d/**/*.parquet"), InputFormat::Auto).unwrap();
        assert_eq!(found.files, ["x/1.parquet", "y/2.parquet", "y/deep/3.parquet"]);
    }

    #[test]
    fn an_existing_name_with_wildcard_characters_is_literal() {
        let folder = folder(&["a[1].parquet", "a1.parquet"]);
        assert_eq!(
            find(Path::new(""), &folder.path().join("a[1].parquet"), InputFormat::Auto)
                .unwrap()
                .files,
            ["a[1].parquet"]
        );
    }

    #[test]
    fn alternatives_in_braces_are_not_expanded() {
        let folder = folder(&["a.jsonl", "b.jsonl"]);
        let problems = find(folder.path(), Path::new("{a,b}.jsonl"), InputFormat::Auto);
        let hint = problems.unwrap_err().remove(0).hint;
        assert!(hint.is_some_and(|hint| hint.ends_with("but no `{a,b}`")));
    }

    #[test]
    fn wildcard_characters_in_a_folder_name_are_literal() {
        let folder =
            folder(&["run[1]/data/a.parquet", "run1/data/b.parquet", "run[1]/[x].parquet"]);
        let own = folder.path().join("run[1]");
        let found = |path: &str| {
            let found = find(&own, Path::new(path), InputFormat::Auto).unwrap();
            (found.root, found.files)
        };
        let is = |root: &str, file: &str| (own.join(root), vec![file.to_owned()]);
        assert_eq!(found("data/*.parquet"), is("data", "a.parquet"));
        assert_eq!(found("data"), is("data", "a.parquet"));
        assert_eq!(found("data/a.parquet"), is("data", "a.parquet"));
        assert_eq!(found("[x].parquet"), is("", "[x].parquet"));
        // As the command line writes paths: see `spec::locations::anchor`.
        let escaped = glob::Pattern::escape(own.to_str().unwrap());
        assert_eq!(found(&format!("{escaped}/data/*.parquet")), is("data", "a.parquet"));
        assert_eq!(found(&format!("{escaped}/[x].parquet")), is("", "[x].parquet"));
    }

    #[test]
    fn the_longest_existing_prefix_of_a_pattern_is_literal() {
        let names = [
            "a1.parquet",
            "a[1].parquet",
            "d*/x.parquet",
            "dd/x.parquet",
            "run1/y.parquet",
            "run[1]/b[2]/z.parquet",
            "run[1]/b2/z.parquet",
        ];
        let on_disk = folder(&names);
        for (path, root, files) in [
            ("a[1].parquet", "", vec!["a[1].parquet"]),
            ("a?.parquet", "", vec!["a1.parquet"]),
            ("run[1]/*/z.parquet", "run[1]/", vec!["b2/z.parquet", "b[2]/z.parquet"]),
            ("run[1]/b[2]/*", "run[1]/b[2]/", vec!["z.parquet"]),
            ("run[1]", "run[1]/", vec!["b2/z.parquet", "b[2]/z.parquet"]),
            ("run?/*.parquet", "", vec!["run1/y.parquet"]),
            ("d*/x.parquet", "d*/", vec!["x.parquet"]),
        ] {
            let expected: Vec<String> = files.iter().map(ToString::to_string).collect();
            let (folder, mut found) =
                match_names(&names, path, path, InputFormat::Auto).unwrap().unwrap();
            found.files.sort();
            assert_eq!((folder.as_str(), &found.files), (root, &expected), "{path}");
            let path = on_disk.path().join(path);
            let mut found = find(Path::new(""), &path, InputFormat::Auto).unwrap();
            found.files.sort();
            let root = on_disk.path().join(root.trim_end_matches('/'));
            assert_eq!((found.root, found.files), (root, expected), "{}", path.display());
        }
        assert!(match_names(&names, "none", "none", InputFormat::Auto).unwrap().is_none());
    }

    #[test]
    fn two_names_of_one_file_are_reported() {
        let folder = folder(&["1.parquet"]);
        std::os::unix::fs::symlink("1.parquet", folder.path().join("0.parquet")).unwrap();
        let found = find(Path::new(""), folder.path(), InputFormat::Auto).unwrap();
        assert_eq!(found.files, ["1.parquet"]);
        assert_eq!(
            found.notes,
            ["`0.parquet` is the same file as `1.parquet`; each file is read once"]
        );
    }

    #[test]
    fn an_empty_folder_and_a_glob_without_matches_yield_no_files() {
        let folder = folder(&[]);
        assert!(find(Path::new(""), folder.path(), InputFormat::Auto).unwrap().files.is_empty());
        assert!(
            find(Path::new(""), &folder.path().join("*.parquet"), InputFormat::Auto)
                .unwrap()
                .files
                .is_empty()
        );
    }

    #[test]
    fn a_missing_path_lists_existing_names() {
        let folder = folder(&["corpora/books.parquet", "corpora/code.parquet"]);
        let problems =
            find(Path::new(""), &folder.path().join("corpora/boks.parquet"), InputFormat::Auto)
                .unwrap_err();
        assert!(
            problems[0]
                .hint
                .as_ref()
                .unwrap()
                .ends_with("corpora` has: books.parquet, code.parquet")
        );
        let problems =
            find(Path::new(""), &folder.path().join("corpra/*.parquet"), InputFormat::Auto)
                .unwrap_err();
        assert!(problems[0].hint.as_ref().unwrap().ends_with("has: corpora"), "{problems:?}");
    }

    #[test]
    fn a_link_back_to_a_folder_above_is_not_followed() {
        let folder = folder(&["a/1.parquet"]);
        std::os::unix::fs::symlink(folder.path(), folder.path().join("a/again")).unwrap();
        assert_eq!(
            find(Path::new(""), folder.path(), InputFormat::Auto).unwrap().files,
            ["a/1.parquet"]
        );
    }

    #[test]
    fn a_link_to_a_file_elsewhere_is_a_file() {
        let (store, folder) = (folder(&["blob"]), folder(&[]));
        std::os::unix::fs::symlink(store.path().join("blob"), folder.path().join("1.parquet"))
            .unwrap();
        assert_eq!(
            find(Path::new(""), folder.path(), InputFormat::Auto).unwrap().files,
            ["1.parquet"]
        );
    }
}
