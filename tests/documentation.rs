//! The pages of `docs/` and the README: links resolve, tables agree with the program, commands work.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longsift_engine::base::error::EXIT_CODES;
use serde_json::json;

use crate::support::{Workspace, demo_model, repository};

/// All user-facing pages of the repository.
fn pages() -> Vec<PathBuf> {
    let root = repository();
    let mut pages = Vec::new();
    for folder in ["", "docs", "python", "datasets/demo", "datasets/natural"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path.canonicalize().unwrap());
            }
        }
    }
    pages.sort();
    pages
}

/// A page without its code blocks.
fn prose(text: &str) -> String {
    let parts = text.split("```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// Anchors of a page's headings on GitHub and in mdBook.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        words.chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The targets of the links of a page.
fn links(prose: &str) -> Vec<&str> {
    let after = prose.split("](").skip(1);
    let links = after.filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    links.map(|link| link.split(' ').next().unwrap_or(link)).collect()
}

/// The pages of the reference are generated when the site is built.
const REFERENCE: [&str; 4] = [
    "reference/pipeline.md",
    "reference/commands.md",
    "reference/summary.md",
    "reference/exit-codes.md",
];

#[test]
fn every_link_resolves() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&prose(&text)) {
            let is_outside = link.contains("://") || link.starts_with("mailto:");
            if is_outside || REFERENCE.contains(&link) {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            // The site has no page for a folder.
            let is_on_site = page.parent().unwrap().ends_with("docs") && !link.starts_with("../");
            let found = fs::metadata(&target).is_ok_and(|found| found.is_file() || !is_on_site);
            let headed = anchor.is_empty()
                || fs::read_to_string(&target)
                    .is_ok_and(|text| anchors(&prose(&text)).contains(anchor));
            if !found || !headed {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(checked > 50, "{checked} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_of_the_documentation_is_in_its_table_of_contents() {
    let docs = repository().join("docs");
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<&str> = links(&contents).into_iter().collect();
    for page in pages().iter().filter(|page| page.parent() == Some(&docs.canonicalize().unwrap())) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || listed.contains(name), "docs/SUMMARY.md lacks {name}");
    }
}

#[test]
fn the_troubleshooting_page_lists_the_exit_codes() {
    let page = fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    for (code, meaning, retry) in EXIT_CODES {
        let row = format!("| {code} | {meaning} | {retry} |").replace("|  |", "| |");
        assert!(page.contains(&row), "{row}");
    }
}

/// Appends the text of every source file below a folder, without the line breaks of string literals and without
/// backticks.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(path).unwrap();
            let lines = source.split("\\\n").map(str::trim_start);
            text.push_str(&lines.collect::<String>().replace('`', ""));
        }
    }
}

#[test]
fn the_troubleshooting_page_quotes_real_messages() {
    let page = fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let (_, table) = page.split_once("| message | what to do |\n").unwrap();
    let rows: Vec<&str> = table.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 14, "{rows:#?}");
    let mut source = String::new();
    for folder in ["engine/src", "stages/src"] {
        sources(&repository().join(folder), &mut source);
    }
    for row in rows {
        let message = row.split('|').nth(1).unwrap().replace('`', "");
        let parts = message.split('…').map(str::trim).filter(|part| part.len() >= 8);
        let absent: Vec<&str> = parts.filter(|part| !source.contains(part)).collect();
        assert!(absent.is_empty(), "{row}: {absent:?}");
    }
}

/// The commands of a page, each with the output shown after it.
pub fn commands(text: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for block in text.split("```").skip(1).step_by(2) {
        if let Some(command) = block.strip_prefix("sh\n") {
            commands.push((command.to_owned(), String::new()));
        } else if let Some(output) = block.strip_prefix("text\n")
            && let Some((_, expected)) = commands.last_mut()
            && expected.is_empty()
        {
            output.clone_into(expected);
        }
    }
    commands
}

/// Returns whether a line of output matches a line of the page; `…` stands for any text.
fn is_shown(line: &str, shown: &str) -> bool {
    let parts: Vec<&str> = shown.split('…').map(str::trim_end).collect();
    let (first, rest) = parts.split_first().unwrap();
    let Some(mut left) = line.trim_end().strip_prefix(first) else { return false };
    let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
    for part in middle {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

/// Returns the first line of a page's output that is missing in the real output. Lines must occur in order; a line
/// with only `…` stands for any number of lines.
pub fn missing<'s>(output: &str, shown: &'s str) -> Option<&'s str> {
    let mut lines = output.lines();
    let mut shown = shown.lines().filter(|line| !line.trim().is_empty() && line.trim() != "…");
    shown.find(|shown| !lines.any(|line| is_shown(line, shown)))
}

#[test]
fn shown_lines_are_matched_in_order() {
    assert!(is_shown("rows  201 = 94 kept", "rows  201 = …"));
    assert!(is_shown("12:00 INFO nothing to do", "… nothing to do"));
    assert!(!is_shown("rows  201 = 94 kept", "rows  201"));
    assert!(!is_shown("rows  201 = 94 kept", "rows  202 = …"));
    assert!(!is_shown("kept 94 of 201", "… 201 … 94"));
    assert!(
        is_shown("{\"a\":{},\"kept\":3}", "{…,\"kept\":3}")
            && !is_shown("{\"kept\":33}", "{…\"kept\":3}")
    );
    assert_eq!(missing("a\nb\nc\n", "a\n…\nc\n"), None);
    assert_eq!(missing("a\nb\nc\n", "c\na\n"), Some("a"));
}

/// Runs a command as typed. Standard error comes first: the summary is the last line of standard output.
fn typed(workspace: &Workspace, command: &str) -> (Option<i32>, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_longsift")).parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").expect("a path");
    let path = std::env::join_paths(std::iter::once(binary).chain(std::env::split_paths(&path)));
    let done = Command::new("bash")
        .args(["-euo", "pipefail", "-c", command])
        .current_dir(workspace.path(""))
        .env("PATH", path.expect("folders"))
        .env("XDG_CACHE_HOME", workspace.path("cache"))
        .output()
        .expect("bash");
    let output = [done.stderr, done.stdout].concat();
    (done.status.code(), String::from_utf8_lossy(&output).into_owned())
}

/// Every command, typed as shown, succeeds and prints the output of the page.
#[test]
fn the_tutorial_works_as_written() {
    let workspace = Workspace::new();
    let datasets = repository().join("datasets").canonicalize().unwrap();
    std::os::unix::fs::symlink(datasets, workspace.path("datasets")).unwrap();
    let page = fs::read_to_string(repository().join("docs/tutorial.md")).unwrap();
    let commands = commands(&page);
    let outputs = commands.iter().filter(|(_, shown)| !shown.is_empty()).count();
    assert!(outputs >= 8, "{commands:?}");
    for (command, shown) in &commands {
        let (code, output) = typed(&workspace, command);
        assert_eq!(code, Some(0), "{command}\n{output}");
        assert_eq!(missing(&output, shown), None, "{command}\n{output}");
    }
    for page in ["evaluation.html", "report.html"] {
        let bytes = fs::read(workspace.path(page)).unwrap();
        assert!(bytes.starts_with(b"<!doctype html>") || bytes.starts_with(b"<!DOCTYPE html>"));
    }
    let kept = fs::read_dir(workspace.path("out/corpus/data")).unwrap().count();
    assert!(kept > 0, "the tutorial keeps nothing");
}

/// A pipeline as the page on tests assumes it.
const WEB: &str = "\
version: 1
name: web
input:
  path: web.jsonl
  id_column: id
  text_column: text
stages:
  - {stage: tokenize, tokenizer: model, window_tokens: 52}
  - {stage: recurrence}
  - {stage: lexical}
  - {stage: score, formula: balanced-recurrence, within: source}
  - {stage: filter, keep_fraction: 0.25, guards: [{statistic: repeated_share, max: 0.7}, {statistic: copy_share, max: 0.9}]}
output: {path: out}
";

#[test]
fn the_page_on_tests_works_as_written() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    workspace.write("web.yaml", WEB);
    let page = fs::read_to_string(repository().join("docs/testing.md")).unwrap();
    let blocks = page.split("```").skip(1).step_by(2);
    let [tests, checks] =
        blocks.filter_map(|block| block.strip_prefix("yaml\n")).collect::<Vec<_>>()[..]
    else {
        panic!("{page}")
    };
    // Three equal windows: each letter with its blank is a token.
    let words: Vec<String> =
        ('a'..='z').chain('A'..='Z').map(|letter| format!(" {letter}")).collect();
    workspace.write("fixtures/chapter.txt", words.concat().repeat(3));
    workspace.write("fixtures/footer.txt", "All rights reserved by the owner. ".repeat(80));
    let line = |row: usize| {
        let text: String = (0..90).map(|at| &*words[(at * (row + 3) + at / 9) % 52]).collect();
        let source = ["books", "web"][row % 2];
        format!("{}\n", json!({ "id": row.to_string(), "source": source, "text": text }))
    };
    workspace.write("web.jsonl", (0..20).map(line).collect::<String>());
    let commands = commands(&page);
    let [(validate, mistake), (test, failed), (lock, _)] = &commands[..] else {
        panic!("{commands:?}")
    };
    let succeeds = |command: &str| {
        let (code, output) = typed(&workspace, command);
        assert_eq!(code, Some(0), "{command}\n{output}");
    };
    succeeds(validate);
    workspace.write("web.yaml", WEB.replace("text_column", "text_colunm"));
    let (code, output) = typed(&workspace, "longsift validate web.yaml");
    assert_eq!((code, missing(&output, mistake)), (Some(2), None), "{output}");
    workspace.write("web.yaml", WEB);
    workspace.write("web.tests.yaml", tests);
    let (code, output) = typed(&workspace, test);
    assert_eq!((code, missing(&output, failed)), (Some(6), None), "{output}");
    workspace.write("web.tests.yaml", tests.replace("kept: 2", "kept: 3"));
    succeeds(test);
    succeeds(lock);
    workspace.write("web.yaml", format!("{WEB}{checks}"));
    succeeds("longsift validate web.yaml");
}

#[test]
fn manual_pages_and_the_reference_are_written_for_every_command() {
    let workspace = Workspace::new();
    workspace.longsift(&["manual", "man"]).success();
    let run = fs::read_to_string(workspace.path("man/longsift-run.1")).unwrap();
    assert!(run.contains(".TH") && run.contains("summary\\-file"), "{run}");
    assert!(workspace.path("man/longsift.1").exists());
    workspace.longsift(&["manual", "pages", "--format", "markdown"]).success();
    let written: BTreeSet<String> = fs::read_dir(workspace.path("pages"))
        .unwrap()
        .map(|entry| format!("reference/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    assert_eq!(written, REFERENCE.map(str::to_owned).into());
    let commands = fs::read_to_string(workspace.path("pages/commands.md")).unwrap();
    for command in ["run", "validate", "evaluate", "whatif"] {
        assert!(commands.contains(&format!("\n## longsift {command}\n")), "{command}");
    }
}
