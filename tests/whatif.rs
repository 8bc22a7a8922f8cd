//! `longsift whatif`: its result for other settings equals that of a run with them.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::support::tables::{integers, read_parquet, texts};
use crate::support::{Pipeline, Workspace, files_below, read_json};

/// Documents in three groups, measured and filtered.
fn workspace(pipeline: &Pipeline) -> Workspace {
    let workspace = Workspace::with_three_groups();
    workspace.run(pipeline);
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64)
        .input("unit_bytes: 1024")
        .measure("recurrence")
        .score("within: group")
        .filter("keep_fraction: 0.4, guards: [{statistic: copy_share, max: 0.9}]")
}

fn whatif(workspace: &Workspace, settings: &[&str], more: &[&str]) -> Value {
    let mut arguments = vec!["whatif", "out.run", "--format", "json"];
    for setting in settings {
        arguments.extend(["--set", setting]);
    }
    arguments.extend(more);
    serde_json::from_str(&workspace.longsift(&arguments).success().stdout).unwrap()
}

/// The samples that a run has kept.
fn kept(workspace: &Workspace) -> BTreeSet<(String, i64)> {
    let data = read_parquet(&workspace.path("out/data"));
    let windows = integers(&data, "longsift_window").into_iter();
    texts(&data, "id").into_iter().zip(windows).collect()
}

fn listed(found: &Value, which: &str) -> BTreeSet<(String, i64)> {
    let list = found[which].as_array().unwrap().iter();
    list.map(|moved| (moved["id"].as_str().unwrap().to_owned(), moved["window"].as_i64().unwrap()))
        .collect()
}

#[test]
fn whatif_matches_a_run() {
    let workspace = workspace(&pipeline());
    let before = kept(&workspace);
    for settings in [
        &["stages.filter.keep_fraction=0.1"][..],
        &["stages.filter.keep_fraction=0.8", "stages.score.alpha=0"],
        &["stages.score.formula=far-recurrence"],
        &["stages.score.within=null", "stages.filter.keep_fraction=0.3"],
        &["stages.filter.guards=[]"],
        &["stages.filter.keep_fraction=null", "stages.filter.keep_tokens=300"],
    ] {
        // A setting removes the alternatives that it replaces.
        let own: Vec<&str> =
            settings.iter().copied().filter(|set| !set.ends_with("keep_fraction=null")).collect();
        let found = whatif(&workspace, &own, &["--list", "1000"]);
        let other = Workspace::copy_of(&workspace);
        let mut arguments = vec!["run", "pipeline.yaml"];
        for setting in settings {
            arguments.extend(["--set", setting]);
        }
        let summary = other.longsift(&arguments).success().summary();
        assert_eq!(summary["windows_scored"], 0, "nothing is measured");
        let after = kept(&other);
        assert_eq!(found["total"]["then"]["samples"], summary["kept"], "{settings:?}");
        assert_eq!(found["total"]["now"]["samples"], before.len(), "{settings:?}");
        assert_eq!(found["total"]["both"]["samples"], before.intersection(&after).count());
        assert_eq!(listed(&found, "entering"), &after - &before, "{settings:?}");
        assert_eq!(listed(&found, "leaving"), &before - &after, "{settings:?}");
        let calibration = read_json(&other.path("out.run/calibration.json"));
        for group in calibration["groups"].as_array().unwrap() {
            let same_group = |other: &&Value| other["value"] == group["value"];
            let own = found["groups"].as_array().unwrap().iter().find(same_group).unwrap();
            assert_eq!(own["then"]["samples"], group["kept"]);
            assert_eq!(own["thresholds_then"][0], group["thresholds"][0]["score"]);
        }
    }
}

#[test]
fn other_settings_stay_as_in_the_run() {
    let score =
        "combine: least, terms: [{statistic: link_coverage}, {statistic: copy_share, weight: -1}]";
    let workspace = workspace(&pipeline().score(score));
    let terms =
        "stages.score.terms=[{statistic: link_coverage}, {statistic: near_recurrence, weight: -1}]";
    let found = whatif(&workspace, &[terms], &["--list", "1000"]);
    assert!(!found["changes"].to_string().contains("combine"), "{}", found["changes"]);
    let before = kept(&workspace);
    workspace.longsift(&["run", "pipeline.yaml", "--set", terms]).success();
    let after = kept(&workspace);
    assert_eq!(listed(&found, "entering"), &after - &before);
    assert!(!(&after - &before).is_empty(), "the settings change the selection");
}

/// Neither needs a device, so neither checks which devices support 16-bit integers.
#[test]
fn a_run_with_int16_has_a_report_and_whatif() {
    let mut integers = pipeline();
    integers.model.push_str(", precision: int16");
    let workspace = workspace(&integers);
    let fewer = whatif(&workspace, &["stages.filter.keep_fraction=0.1"], &[]);
    let samples = fewer["total"]["then"]["samples"].as_u64().unwrap();
    assert!((1..kept(&workspace).len() as u64).contains(&samples), "{samples}");
    workspace.longsift(&["report", "out.run", "--html", "page.html"]).success();
    let page = fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(!page.contains("Texts are missing"), "the texts are there");
    assert!(page.contains("int16"), "the page names the precision");
}

#[test]
fn the_same_settings_change_nothing() {
    let workspace = workspace(&pipeline());
    let content = || {
        let files = files_below(&workspace.path("out.run")).into_iter();
        files.map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = content();
    let found = whatif(&workspace, &[], &["--list", "5"]);
    assert_eq!(found["total"]["now"], found["total"]["then"]);
    assert_eq!(found["total"]["now"], found["total"]["both"]);
    assert!(listed(&found, "entering").is_empty() && listed(&found, "leaving").is_empty());
    let answer = workspace.longsift(&[
        "whatif",
        "out.run",
        "--set",
        "stages.filter.keep_fraction=0.2",
        "--list",
        "2",
    ]);
    let text = answer.success().stdout;
    assert!(text.contains("stages.filter.keep_fraction: 0.2, was 0.4"), "{text}");
    assert_eq!(text.matches("leaves  document-").count(), 2, "{text}");
    assert!(before == content(), "nothing is written");
}

#[test]
fn settings_that_need_measuring_are_rejected() {
    let guarded = pipeline()
        .filter("keep_fraction: 0.4, guards: [{statistic: copy_share, max: 0.3, before: first-layer-attention}]");
    let workspace = workspace(&guarded);
    let loose =
        "stages.filter.guards=[{statistic: copy_share, max: 0.9, before: first-layer-attention}]";
    for (setting, words) in [
        ("stages.tokenize.window_tokens=32", "stages.tokenize.window_tokens: 32, was 64"),
        ("stages.recurrence.min_distance_fraction=0.25", "stages.recurrence.min_distance_fraction"),
        ("output.compression=none", "this changes what is written, not what is kept"),
        ("output.samples=documents", "documents would be ranked instead of windows"),
        (loose, "first-layer-attention: windows skipped by an earlier guard are required"),
        ("stages.score.terms=[{statistic: gzip_ratio}]", "gzip_ratio"),
    ] {
        let answer = workspace.longsift(&["whatif", "out.run", "--set", setting]);
        assert_eq!(answer.code, 2, "{setting}: {}", answer.stderr);
        assert!(answer.stderr.contains(words), "{setting}: {}", answer.stderr);
    }
    let strict = loose.replace("0.9", "0.2");
    whatif(&workspace, &[&strict], &[]);
    // The input of the scores no longer exists.
    fs::remove_file(workspace.path("input/b.parquet")).unwrap();
    let answer = workspace.longsift(&["whatif", "out.run"]);
    assert!(
        answer.code == 2 && answer.stderr.contains("changed after it was scored"),
        "{}",
        answer.stderr
    );
}
