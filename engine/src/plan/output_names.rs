//! Names of output files; with `output.mirror`, those of the input's files and folders.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::findings::Findings;
use crate::base::text::counted;
use crate::dataset::input::Dataset;
use crate::run_directory::layout::RunDirectory;
use crate::storage::store;

/// Maximum bytes of a local file name, minus the part number and the temporary prefix.
const MAX_NAME_BYTES: usize = 255 - "-00000-of-00000".len() - 40;

pub fn numbered(stem: &str, number: u64, all: u64) -> String {
    format!("{stem}-{number:05}-of-{all:05}")
}

/// Returns the stem of a name that ends with a part number.
fn without_number(name: &str) -> Option<&str> {
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, all) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    (is_number(number) && is_number(all)).then_some(stem)
}

/// Checks with `output.mirror` that input names are usable for the output. The number of parts of a file is unknown before
/// the selection, so any part number is a conflict.
pub(super) fn check(directory: &RunDirectory, dataset: &Dataset, found: &mut Findings<'_>) {
    let output = &found.spec.pipeline.output;
    if !output.mirror {
        return;
    }
    let endings = output.format.endings(output.sequence_tokens.is_some());
    let longest = endings.iter().map(|ending| ending.len()).max().unwrap_or(0);
    let in_store = store::is_address(&directory.output);
    let limit = if in_store { usize::MAX } else { MAX_NAME_BYTES - longest };
    let files = dataset.files.iter().map(|file| (file.stem(), file.path.as_str()));
    let unfit: Vec<String> =
        files.clone().filter_map(|(stem, path)| unfit(stem, path, limit)).collect();
    let clashes = clashes(files, endings);
    for (names, hint) in [
        (unfit, "rename them, exclude them from `input.path`, or remove `output.mirror`"),
        (clashes, "rename one of the two, run a pipeline for each, or remove `output.mirror`"),
    ] {
        let Some(first) = names.first() else { continue };
        let more = match names.len() {
            1 => String::new(),
            all => format!(" (and {})", counted(all as u64 - 1, "more such problem")),
        };
        found.error("output.mirror", format!("{first}{more}"), hint);
    }
}

/// Returns the reason why a file cannot be mirrored, if any.
fn unfit(stem: &str, path: &str, limit: usize) -> Option<String> {
    let why = |part: &str| match part {
        "" => Some("one of its folders has no name".to_owned()),
        "." | ".." => Some(format!("it contains `{part}`")),
        part if part.starts_with(['.', '_']) => {
            Some(format!("data readers skip names like `{part}`"))
        }
        part if part.len() > limit => Some(format!(
            "`{part}` has {} bytes, but may have at most {limit} so that a part number fits",
            part.len()
        )),
        _ => None,
    };
    let why = stem.split('/').find_map(why)?;
    Some(format!("`{path}` cannot be mirrored: {why}"))
}

/// Returns the conflicts among files, given as stem and path: files with the same output name, or that of a folder.
fn clashes<'a>(
    files: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    endings: &[&str],
) -> Vec<String> {
    let mut stems: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    let mut clash = |a: &str, b: &str, name: &str| {
        found.push(format!("`{a}` and `{b}` would both be `{name}` in the output"));
    };
    let ending = endings.first().copied().unwrap_or_default();
    for (stem, path) in files.clone() {
        match stems.get(stem) {
            Some(other) => clash(other, path, &format!("{stem}{ending}")),
            None => drop(stems.insert(stem, path)),
        }
    }
    let part_of = |name: &str| without_number(name).and_then(|stem| stems.get(stem));
    for (stem, path) in &stems {
        if let Some(other) = part_of(stem) {
            clash(other, path, &format!("{stem}{ending}"));
        }
    }
    let folders = files.flat_map(|(stem, _)| Path::new(stem).ancestors().skip(1));
    let folders: BTreeSet<&str> = folders.filter_map(Path::to_str).collect();
    for folder in folders {
        for ending in endings {
            let Some(stem) = folder.strip_suffix(ending) else { continue };
            if let Some(file) = stems.get(stem).or_else(|| part_of(stem)) {
                clash(file, &format!("{folder}/"), folder);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clashing(files: &[(&'static str, &'static str)]) -> Vec<String> {
        clashes(files.iter().copied(), &[".parquet"])
    }

    #[test]
    fn two_files_never_share_a_name() {
        let fine = [
            ("a", "a.parquet"),
            ("a/a", "a/a.parquet"),
            ("b-00000-of-00002", "b-00000-of-00002.parquet"),
            ("b-00001-of-00002", "b-00001-of-00002.parquet"),
            ("c-1-of-2", "c-1-of-2.parquet"),
            ("c", "c.parquet"),
        ];
        assert!(clashing(&fine).is_empty());
        assert_eq!(
            clashing(&[("x/a", "x/a.jsonl"), ("x/a", "x/a.jsonl.gz")]),
            ["`x/a.jsonl` and `x/a.jsonl.gz` would both be `x/a.parquet` in the output"]
        );
        assert_eq!(
            clashing(&[("a", "a.parquet"), ("a-00000-of-00003", "a-00000-of-00003.parquet")]),
            [
                "`a.parquet` and `a-00000-of-00003.parquet` would both be `a-00000-of-00003.parquet` in the output"
            ]
        );
        let folders = [("a", "a.jsonl"), ("a.parquet/b", ""), ("a-00001-of-00002.parquet/c/d", "")];
        assert_eq!(
            clashing(&folders),
            [
                "`a.jsonl` and `a-00001-of-00002.parquet/` would both be `a-00001-of-00002.parquet` in the output",
                "`a.jsonl` and `a.parquet/` would both be `a.parquet` in the output",
            ]
        );
    }

    #[test]
    fn hidden_escaping_and_long_names_are_rejected() {
        for (stem, why) in [
            ("a//b", "one of its folders has no name"),
            ("x/../b", "it contains `..`"),
            ("_x/b", "data readers skip names like `_x`"),
            ("x/.b", "data readers skip names like `.b`"),
            ("x/long", "`long` has 4 bytes, but may have at most 3 so that a part number fits"),
        ] {
            let found = unfit(stem, "p", 3).unwrap();
            assert_eq!(found, format!("`p` cannot be mirrored: {why}"));
        }
        assert_eq!(unfit("a/b_/c.d", "p", 3), None);
    }
}
