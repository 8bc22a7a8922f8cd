//! Paths of a pipeline, by their text alone: what they are relative to, and that an output does not lie in its input.

use std::path::{Component, Path, PathBuf};

use super::node::{Entry, Node, Value};
use super::source::{Problems, Sources};
use crate::diagnostic::quoted;

/// A Parquet file as the output will have it, to try a glob on.
const SOME_OUTPUT: &str = "data/train-00000-of-00001.parquet";

/// The settings that are paths: of a section, or of a stage.
const PATHS: [(&str, &str); 7] = [
    ("input", "path"),
    ("input", "since"),
    ("load-partial-model", "model"),
    ("load-partial-model", "cache_folder"),
    ("tokenize", "tokenizer"),
    ("score", "calibration"),
    ("output", "path"),
];

/// Makes relative paths of the command line absolute: they are relative to the current folder, those of the file to
/// the file's.
pub(crate) fn anchor(root: &mut Node, problems: &mut Problems) {
    for (section, key) in PATHS {
        let Some(node) = section_mut(root, section).and_then(|section| value_mut(section, key))
        else {
            continue;
        };
        let Some(text) =
            node.as_str().filter(|text| !text.trim().is_empty() && !text.contains("://"))
        else {
            continue;
        };
        if problems.sources.is_file(node.span) || Path::new(text).is_absolute() {
            continue;
        }
        let here = std::env::current_dir().ok();
        if let Some(path) = here.and_then(|here| joined(&here, text)) {
            node.value = Value::String(path);
        } else {
            let message =
                format!("{} is relative to a folder that has no readable name", quoted(text));
            problems.error(node.span, message).hint("give an absolute path");
        }
    }
}

/// A path below a folder; where the path is a glob, characters of the folder's own name mean themselves.
fn joined(folder: &Path, path: &str) -> Option<String> {
    let folder = folder.to_str()?;
    let folder = if path.contains(['*', '?', '[']) {
        glob::Pattern::escape(folder)
    } else {
        folder.to_string()
    };
    Path::new(&folder).join(path).into_os_string().into_string().ok()
}

fn section_mut<'n>(root: &'n mut Node, name: &str) -> Option<&'n mut Node> {
    if matches!(name, "input" | "output") {
        return value_mut(root, name);
    }
    let Value::List(stages) = &mut value_mut(root, "stages")?.value else { return None };
    stages.iter_mut().find(|stage| stage.get("stage").and_then(Node::as_str) == Some(name))
}

fn value_mut<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    let Value::Mapping(entries) = &mut node.value else { return None };
    entries.iter_mut().find(|entry| entry.key == key).map(|entry: &mut Entry| &mut entry.value)
}

/// Notes an output that lies in its own input, or the other way round. `folder` is the folder of the pipeline file.
pub(crate) fn check(root: &Node, folder: &Path, problems: &mut Problems) {
    let path = |section: &str| {
        root.get(section)?
            .get("path")
            .filter(|path| path.as_str().is_some_and(|path| !path.trim().is_empty()))
    };
    let (Some(input), Some(output)) = (path("input"), path("output")) else { return };
    let sources = problems.sources;
    let Some(why) = overlap(&located(input, folder, sources), &located(output, folder, sources))
    else {
        return;
    };
    let problem = problems
        .error(output.span, why)
        .label(format!("`input.path` is {}", sources.in_words(input.span)));
    problem.hint("choose a folder of its own for the output: a second run would read what the first one wrote");
}

/// Where a path points to, seen from the root of the file system, so that paths of both origins compare.
fn located(node: &Node, folder: &Path, sources: &Sources) -> PathBuf {
    let text = node.as_str().unwrap_or("");
    let path = if sources.is_file(node.span) { folder.join(text) } else { PathBuf::from(text) };
    let is_remote = text.contains("://");
    normalised(&if is_remote {
        PathBuf::from(text)
    } else {
        std::path::absolute(&path).unwrap_or(path)
    })
}

/// Why the two cannot be used together, if so.
fn overlap(input: &Path, output: &Path) -> Option<&'static str> {
    let text = input.to_string_lossy();
    if input == output {
        return Some("the output is the input");
    }
    let fixed = before_glob(input);
    let beside = |suffix: &str| {
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        name.push(suffix);
        output.with_file_name(name)
    };
    if fixed.starts_with(output.join("data"))
        || (output.file_name().is_some() && fixed.starts_with(beside(".run")))
    {
        return Some("the input lies in the output");
    }
    let inside = if fixed == input {
        // A folder is read whole, with everything below it.
        output.starts_with(input)
    } else {
        let options =
            glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
        let pattern = glob::Pattern::new(&text).ok();
        pattern.is_some_and(|pattern| pattern.matches_path_with(&output.join(SOME_OUTPUT), options))
    };
    inside.then_some("the output lies in the input")
}

/// The folders of a glob before the first part with a wildcard; the whole path where there is none.
fn before_glob(path: &Path) -> PathBuf {
    let has_wildcard =
        |part: &Component| part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    path.components().take_while(|part| !has_wildcard(part)).collect()
}

/// A path without `.` and, as far as the text tells, without `..`.
fn normalised(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(out.components().next_back(), Some(Component::Normal(_))) =>
            {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(input: &str, output: &str) -> bool {
        overlap(&normalised(Path::new(input)), &normalised(Path::new(output))).is_some()
    }

    #[test]
    fn an_output_in_its_input_is_seen_through_dots_and_globs() {
        assert!(overlaps("../data", "../data"));
        assert!(overlaps("../data/", "./../data/out"));
        assert!(overlaps("../data/**/*.parquet", "../data/out"));
        assert!(overlaps("../data/*/data/*.parquet", "../data/out"));
        assert!(overlaps("out/data/*.parquet", "out"));
        assert!(overlaps("out.run/dropped", "out"));
        assert!(overlaps("/a/../b", "/b/c"));
        assert!(overlaps(".", "out"));
        assert!(overlaps("data/x.parquet", "."));
    }

    #[test]
    fn an_output_beside_its_input_is_fine() {
        assert!(!overlaps("../data/*.parquet", "../data/out"));
        assert!(!overlaps("../data", "../data-out"));
        assert!(!overlaps("../data/part-0.parquet", "../data"));
        assert!(!overlaps("../../data", "../data"));
        assert!(!overlaps("raw/x.parquet", "."));
        assert!(!overlaps("s3://bucket/data", "out"));
    }
}
