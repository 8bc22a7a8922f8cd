//! The pages of `docs/` and the README: links lead somewhere, tables agree with the program, commands work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longsift_engine::base::error::EXIT_CODES;

use crate::support::{Workspace, demo_model, repository};

/// All pages of the repository that people read.
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

/// A page without its blocks of code.
fn prose(text: &str) -> String {
    let parts = text.split("```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// What GitHub and mdBook call the headings of a page.
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

/// The pages of the reference are written when the site is built.
const REFERENCE: [&str; 4] = [
    "reference/pipeline.md",
    "reference/commands.md",
    "reference/summary.md",
    "reference/exit-codes.md",
];

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
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
            let found = fs::metadata(&target).is_ok();
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
fn the_readme_has_the_exit_codes() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    for (code, meaning, retry) in EXIT_CODES {
        let row = format!("| {code} | {meaning} | {retry} |").replace("|  |", "| |");
        assert!(readme.contains(&row), "{row}");
    }
}

/// The blocks of `sh` of a page, one after the other.
fn script(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    let blocks = text.split("```").skip(1).step_by(2);
    let shell = blocks.filter_map(|block| block.strip_prefix("sh\n"));
    shell.collect::<Vec<_>>().join("\n")
}

/// As a reader would type it, with the demo's model instead of one that would be fetched.
#[test]
fn the_tutorial_works_as_it_is_written() {
    let workspace = Workspace::new();
    let docs = repository().join("docs");
    std::os::unix::fs::symlink(&docs, workspace.path("docs")).unwrap();
    let model = demo_model().canonicalize().unwrap();
    workspace.write("scripts/real_model.sh", format!("#!/bin/sh\necho '{}'\n", model.display()));
    Command::new("chmod").arg("+x").arg(workspace.path("scripts/real_model.sh")).status().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_longsift")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(std::iter::once(binary).chain(std::env::split_paths(&path)));
    let script = script(&docs.join("tutorial.md"));
    assert!(script.matches("longsift ").count() >= 8, "{script}");
    let done = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(workspace.path(""))
        .env("PATH", path.unwrap())
        .env("XDG_CACHE_HOME", workspace.path("cache"))
        .output()
        .unwrap();
    let (out, error) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{error}");
    for page in ["evaluation.html", "report.html"] {
        let bytes = fs::read(workspace.path(page)).unwrap();
        assert!(bytes.starts_with(b"<!doctype html>") || bytes.starts_with(b"<!DOCTYPE html>"));
    }
    let kept: BTreeMap<&str, usize> = ["out/my-corpus/data", "out/attention/data"]
        .map(|folder| (folder, fs::read_dir(workspace.path(folder)).unwrap().count()))
        .into();
    assert!(kept.values().all(|files| *files > 0), "{kept:?}");
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
