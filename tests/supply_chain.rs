//! Dependencies and environment of longsift: licences, versions, `unsafe`, the network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Workspace, files_below, no_network, repository};

/// Arguments that make cargo list the packages of a build like this one.
const FEATURES: &[&str] =
    if cfg!(feature = "cloud") { &["--features", "longsift-engine/cloud"] } else { &[] };

/// The packages that this platform's build and tests need with some features, according to cargo.
fn packages(features: &[&str]) -> Vec<Value> {
    let answer = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .args(features)
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let metadata: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let entries = |list: &Value| list.as_array().unwrap().clone();
    let resolved: BTreeSet<String> =
        entries(&metadata["resolve"]["nodes"]).iter().map(|node| node["id"].to_string()).collect();
    let mut packages = entries(&metadata["packages"]);
    packages.retain(|package| resolved.contains(&package["id"].to_string()));
    packages
}

/// The quoted words of a list of `deny.toml`: of `{ crate = "…", reason = "…" }` the crates.
fn denied(list: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join("deny.toml")).unwrap();
    let (_, behind) = text.split_once(&format!("\n{list} = [\n")).unwrap();
    let (inside, _) = behind.split_once("\n]").unwrap();
    inside.lines().map(|line| line.split('"').nth(1).unwrap().to_owned()).collect()
}

fn name_and_version(package: &Value) -> (String, String) {
    let text = |key: &str| package[key].as_str().unwrap().to_owned();
    (text("name"), text("version"))
}

/// Returns whether these licences satisfy a licence expression.
fn can_be_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.trim().replace('/', " OR ");
    let mut depth = 0;
    let mut split = |word: &str| -> Vec<String> {
        let mut parts = vec![String::new()];
        for part in expression.split_inclusive(' ') {
            depth += part.matches('(').count();
            depth -= part.matches(')').count();
            if depth == 0 && part.trim() == word {
                parts.push(String::new());
            } else {
                parts.last_mut().unwrap().push_str(part);
            }
        }
        parts
    };
    let alternatives = split("OR");
    if alternatives.len() > 1 {
        return alternatives.iter().any(|part| can_be_met(part, allowed));
    }
    let all = split("AND");
    if all.len() > 1 {
        return all.iter().all(|part| can_be_met(part, allowed));
    }
    match expression.trim().strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) => can_be_met(inner, allowed),
        None => allowed.iter().any(|licence| licence == expression.trim()),
    }
}

#[test]
fn every_dependency_has_a_licence_that_deny_toml_allows() {
    let allowed = denied("allow");
    assert!(can_be_met("(MIT OR GPL-3.0) AND Unicode-3.0", &allowed));
    assert!(!can_be_met("MIT AND GPL-3.0", &allowed) && !can_be_met("AGPL-3.0", &allowed));
    for package in packages(FEATURES) {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(can_be_met(licence, &allowed), "{:?}: {licence}", name_and_version(&package));
    }
}

#[test]
fn dependencies_are_allowed_and_duplicates_have_a_reason() {
    let (skipped, banned) = (denied("skip"), denied("deny"));
    for package in packages(&[]) {
        let (name, _) = name_and_version(&package);
        assert!(!banned.contains(&name), "`{name}` is banned by deny.toml");
    }
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages(FEATURES) {
        let (name, version) = name_and_version(&package);
        if let Some(source) = package["source"].as_str() {
            assert!(source.starts_with("registry+"), "{name} comes from {source}");
        }
        if !skipped.contains(&format!("{name}@{version}")) {
            versions.entry(name).or_default().insert(version);
        }
    }
    versions.retain(|_, versions| versions.len() > 1);
    assert!(versions.is_empty(), "several versions: {versions:?}; deny.toml says which may be");
}

/// `unsafe` as code: the word before a block, a function, an implementation or a foreign block.
fn unsafe_lines(text: &str) -> Vec<usize> {
    let is_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe(", "unsafe trait"]
            .iter()
            .any(|word| code.contains(word))
    };
    text.lines().zip(0..).filter(|(line, _)| is_unsafe(line)).map(|(_, number)| number).collect()
}

fn sources() -> Vec<std::path::PathBuf> {
    let folders = ["kernels", "stages", "engine", "testkit", "tests", "datasets", "fuzz"];
    let files = folders.iter().flat_map(|folder| files_below(&repository().join(folder)));
    files.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn unsafe_code_is_limited_to_the_kernels_and_justified() {
    let itself = repository().join("tests/supply_chain.rs");
    let mut found = 0;
    for file in sources()
        .into_iter()
        .filter(|file| *file != itself && !file.to_string_lossy().contains("/target/"))
    {
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for number in unsafe_lines(&text) {
            let location = format!("{}:{}", file.display(), number + 1);
            assert!(file.starts_with(repository().join("kernels")), "`unsafe` in {location}");
            let line = lines[number];
            // Functions document the obligations of their callers; other uses document why they are sound.
            let is_function = line.contains("unsafe fn") || line.contains("unsafe extern");
            let is_attribute = line.contains("unsafe(");
            let before = lines[number.saturating_sub(12)..=number].join("\n");
            assert!(
                is_function || is_attribute || before.contains("SAFETY:"),
                "`unsafe` without a reason in {location}"
            );
            found += 1;
        }
    }
    assert!(found > 20, "the kernels have {found}: this test looks in the wrong place");
    for manifest in ["engine/Cargo.toml", "stages/Cargo.toml"] {
        let manifest = fs::read_to_string(repository().join(manifest)).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"));
    }
    let workspace = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("unsafe_code = \"deny\""));
    let kernels = fs::read_to_string(repository().join("kernels/Cargo.toml")).unwrap();
    assert!(kernels.contains("undocumented_unsafe_blocks = \"deny\""));
    assert!(kernels.contains("unsafe_op_in_unsafe_fn = \"deny\""));
}

/// Attempts to connect to a network while a command runs.
fn attempts(
    library: &Path,
    workspace: &Workspace,
    arguments: &[&str],
    lineage: Option<&str>,
) -> u64 {
    let counted = workspace.path("sockets");
    fs::write(&counted, "").unwrap();
    let mut command = workspace.command(arguments);
    command.env("LD_PRELOAD", library).env("SOCKETS_COUNTED", &counted);
    command.env_remove("OPENLINEAGE_URL");
    if let Some(url) = lineage {
        command.env("OPENLINEAGE_URL", url);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::metadata(&counted).unwrap().len()
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_run_uses_no_network_without_a_url() {
    let workspace = Workspace::new();
    let demo = repository().join("pipelines/demo.yaml");
    let output = format!("output.path={}", workspace.path("out").display());
    let pipeline = [demo.to_str().unwrap(), "--set", &output, "--limit", "12"];
    for command in ["validate", "plan", "run"] {
        let more = if command == "validate" { &pipeline[..3] } else { &pipeline[..] };
        let arguments = [&[command], more].concat();
        assert_eq!(attempts(no_network(), &workspace, &arguments, None), 0, "{command}");
    }
    for command in ["status", "verify"] {
        assert_eq!(
            attempts(no_network(), &workspace, &[command, "out.limit-12.run"], None),
            0,
            "{command}"
        );
    }
    let url = Some("http://127.0.0.1:9/");
    let again = [&["run"], &pipeline[..], &["--fresh"]].concat();
    assert!(attempts(no_network(), &workspace, &again, url) > 0, "a URL that is given is reached");
}
