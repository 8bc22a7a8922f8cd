//! What the README says of the demo is what the demo does.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::support::tables::{read_parquet, read_scores, texts};
use crate::support::{Workspace, check_accounting, count, repository};

/// How often each value is there.
fn counts(values: impl Iterator<Item = String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}

#[test]
fn the_demo_keeps_the_shares_that_the_readme_states() {
    let workspace = Workspace::new();
    let demo = repository().join("pipelines/demo.yaml");
    let output = format!("output.path={}", workspace.path("out").display());
    let arguments = ["run", demo.to_str().unwrap(), "--set", &output];
    let answer = workspace.longsift(&arguments).success();
    let summary = answer.summary();
    check_accounting(&summary);
    // An id ends in its document's kind.
    let scored = texts(&read_scores(&workspace.path("out.run")), "id").into_iter();
    let scored = counts(scored.map(|id| id.rsplit('-').next().unwrap().to_owned()));
    let kept = counts(texts(&read_parquet(&workspace.path("out/data")), "kind").into_iter());

    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (windows, kept_windows) = (count(&summary, "windows_total"), count(&summary, "kept"));
    let each = scored["whole"];
    assert!(scored.values().all(|windows| *windows == each), "{scored:?}");
    let stated = format!("({windows} windows, {each} of each kind, {kept_windows} kept");
    assert!(readme.contains(&stated), "{stated}");
    let share = |kind: &str| {
        let kept = kept.get(kind).copied().unwrap_or(0);
        format!("{:.0} %", 100.0 * kept as f64 / each as f64)
    };
    let shares = ["whole", "shuffled", "mixture", "repeated"].map(share).join(" | ");
    let row = format!("| balanced recurrence with attention: the demo | {shares} |\n");
    assert!(readme.contains(&row), "{row}");

    // mixture       192        4    2.1 %  -22.9 points                     12.0 %
    let compared = |kind: &str| {
        let row = answer.stderr.lines().find(|line| line.trim_start().starts_with(kind)).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let [.., share, "%"] = cells[..] else { panic!("{row}") };
        share.parse::<f64>().unwrap()
    };
    let longattn = readme.lines().find(|line| line.starts_with("| LongAttn | ")).unwrap();
    let stated: Vec<f64> = longattn
        .split('|')
        .filter_map(|cell| cell.trim().strip_suffix(" %")?.parse().ok())
        .collect();
    for (kind, stated) in ["whole", "shuffled", "mixture", "repeated"].into_iter().zip(stated) {
        assert!((compared(kind) - stated).abs() < 0.6, "{kind}: {stated}, {}", answer.stderr);
    }
}

#[test]
fn the_table_of_the_readme_is_what_its_script_prints() {
    let answer = Command::new(repository().join("scripts/demo_table.sh"))
        .env("LONGSIFT", env!("CARGO_BIN_EXE_longsift"))
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let table = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(table.lines().count(), 8, "{table}");
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.contains(&table), "{table}");
}
