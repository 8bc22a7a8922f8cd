//! Rules about paths, by their text alone: an output must not lie in its own input.

use std::path::{Component, Path, PathBuf};

use super::key_span;
use crate::spec::node::Node;
use crate::spec::source::Problems;

/// A Parquet file as the output will have it, to try a glob on.
const SOME_OUTPUT: &str = "data/train-00000-of-00001.parquet";

pub(super) fn check(root: &Node, problems: &mut Problems) {
    let path = |section: &str| {
        root.get(section)?.get("path")?.as_str().filter(|path| !path.trim().is_empty())
    };
    let (Some(input), Some(output)) = (path("input"), path("output")) else { return };
    let (input_path, output_path) = (normalised(input), normalised(output));
    let Some(why) = overlap(&input_path, &output_path) else { return };
    let section = root.get("output").expect("it has a path");
    let span = section.get("path").map_or(key_span(section, "path"), |node| node.span);
    let place = root
        .get("input")
        .and_then(|input| input.get("path"))
        .map(|node| problems.sources.in_words(node.span));
    let problem =
        problems.error(span, why).label(format!("`input.path` is {}", place.unwrap_or_default()));
    problem.hint("choose a folder of its own for the output: a second run would read what the first one wrote");
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
fn normalised(path: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in Path::new(path).components() {
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
        overlap(&normalised(input), &normalised(output)).is_some()
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
