//! The table of `docs/evidence.md` matches the demo.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::documentation::{commands, missing};
use crate::support::tables::{read_parquet, read_scores, texts};
use crate::support::{Workspace, check_accounting, count, repository};

/// Kinds of datasets/natural in the order of the table, the good ones first.
const KINDS: [&str; 18] = [
    "books",
    "papers",
    "code",
    "docs",
    "word_list",
    "csv",
    "log",
    "minified_js",
    "generated_code",
    "encoded",
    "json",
    "xml",
    "po",
    "package_index",
    "api_listing",
    "changelog",
    "licence",
    "shuffled",
];
const GOOD: [&str; 4] = ["books", "papers", "code", "docs"];

/// Minimum share of good windows among those that the demo keeps. About half of all windows are good.
const MIN_GOOD_SHARE: f64 = 0.85;

/// Number of occurrences of each value.
fn counts(values: impl Iterator<Item = String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}

/// Share of windows of good kinds.
fn good_share(counts: &BTreeMap<String, u64>) -> f64 {
    let good: u64 = GOOD.iter().filter_map(|kind| counts.get(*kind)).sum();
    good as f64 / counts.values().sum::<u64>() as f64
}

#[test]
fn the_demo_matches_the_evidence_page() {
    let workspace = Workspace::new();
    let demo = repository().join("pipelines/demo.yaml");
    let output = format!("output.path={}", workspace.path("out").display());
    let arguments = ["run", demo.to_str().unwrap(), "--set", &output];
    let answer = workspace.longsift(&arguments).success();
    let summary = answer.summary();
    check_accounting(&summary);
    // An id is its document's kind and a number.
    let scored = texts(&read_scores(&workspace.path("out.run")), "id").into_iter();
    let scored = counts(scored.map(|id| id.rsplit_once('-').unwrap().0.to_owned()));
    let kept = counts(texts(&read_parquet(&workspace.path("out/data")), "kind").into_iter());
    assert_eq!(scored.len(), KINDS.len(), "{scored:?}");
    assert!((0.45..0.55).contains(&good_share(&scored)), "{scored:?}");
    assert!(good_share(&kept) >= MIN_GOOD_SHARE, "{} of {kept:?}", good_share(&kept));

    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let commands = commands(&readme);
    let (_, shown) = commands.iter().find(|(command, _)| command.contains("demo.yaml")).unwrap();
    let output = format!("{}{}", answer.stderr, answer.stdout);
    assert_eq!(missing(&output, shown), None, "{output}");

    let evidence = fs::read_to_string(repository().join("docs/evidence.md")).unwrap();
    let (windows, kept_windows) = (count(&summary, "windows_total"), count(&summary, "kept"));
    let stated = format!("{kept_windows} of {},{:03}", windows / 1000, windows % 1000);
    assert!(evidence.contains(&stated), "{stated}");
    let share = |kind: &str| {
        let kept = kept.get(kind).copied().unwrap_or(0);
        format!("{:.0}", 100.0 * kept as f64 / scored[kind] as f64)
    };
    let row = format!(
        "guards (the demo) | **{:.0}** | {} |\n",
        100.0 * good_share(&kept),
        KINDS.map(share).join(" | ")
    );
    assert!(evidence.contains(&row), "{row}");

    // books       142       58   40.8 %  +15.8 points                     23.9 %
    let compared = |kind: &str| {
        let row = answer.stderr.lines().find(|line| line.split_whitespace().next() == Some(kind));
        let cells: Vec<&str> = row.unwrap().split_whitespace().collect();
        let [.., share, "%"] = cells[..] else { panic!("{row:?}") };
        share.parse::<f64>().unwrap()
    };
    let longattn = evidence.lines().find(|line| line.starts_with("| LongAttn | ")).unwrap();
    let stated: Vec<f64> =
        longattn.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
    assert_eq!(stated.len(), KINDS.len(), "{longattn}");
    for (kind, stated) in KINDS.into_iter().zip(stated) {
        assert!((compared(kind) - stated).abs() < 0.6, "{kind}: {stated}, {}", answer.stderr);
    }
}

#[test]
fn the_table_of_the_evidence_page_matches_its_script() {
    let answer = Command::new(repository().join("scripts/demo_table.sh"))
        .env("LONGSIFT", env!("CARGO_BIN_EXE_longsift"))
        .output()
        .unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let table = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(table.lines().count(), 9, "{table}");
    let evidence = fs::read_to_string(repository().join("docs/evidence.md")).unwrap();
    assert!(evidence.contains(&table), "{table}");
    // The README has the first two columns.
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    for row in table.lines() {
        let columns = row.split('|').take(3).collect::<Vec<_>>().join("|");
        assert!(readme.contains(&format!("\n{columns}|\n")), "{row}");
    }
}
