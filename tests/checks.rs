//! `checks` and `score.on_drift`: conditions that a pipeline sets on its own result.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::tables::{floats, optional_texts, read_parquet, write_parquet};
use crate::support::{Pipeline, Workspace, files_below};

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64)
        .input("unit_bytes: 1024")
        .measure("recurrence")
        .score("within: group")
        .filter("keep_fraction: 0.2, guards: [{statistic: copy_share, max: 0.5}]")
}

/// The pipeline with checks, one a line.
fn with_checks(checks: &[&str]) -> String {
    let checks: Vec<String> = checks.iter().map(|check| format!("  - {{{check}}}")).collect();
    format!("{}\nchecks:\n{}\n", pipeline(), checks.join("\n"))
}

fn bytes_of(workspace: &Workspace) -> BTreeMap<String, String> {
    workspace.hashes(&["out/data", "out.run/selection", "out.run/manifest.json"])
}

#[test]
fn check_results_are_in_the_summary() {
    let workspace = Workspace::with_three_groups();
    workspace.write(
        "pipeline.yaml",
        with_checks(&[
            "figure: rows_kept_share, min: 0.01, max: 1",
            "figure: windows_dropped, reason: guard_copy_share, min: 1",
            "statistic: copy_share, max: 0.5",
            "statistic: copy_share, of: all, take: max, min: 0",
            "statistic: score, of: all, take: missing_share, max: 0.5",
            "figure: samples_kept_share, group: books, min: 0.01",
            "statistic: score, group: code, of: all, take: min, max: 0",
        ]),
    );
    let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    let found: Vec<f64> = (summary["checks"].as_array().unwrap().iter())
        .map(|check| {
            assert_eq!(check["holds"], true, "{check}");
            check["value"].as_f64().unwrap()
        })
        .collect();
    let selection = read_parquet(&workspace.path("out.run/selection"));
    let (copies, scores) = (floats(&selection, "copy_share"), floats(&selection, "score"));
    let (reasons, groups) =
        (optional_texts(&selection, "reason"), optional_texts(&selection, "group"));
    let rows = || 0..selection.num_rows();
    let kept: Vec<usize> = rows().filter(|row| reasons[*row].is_none()).collect();
    let copies_kept: f64 = kept.iter().map(|row| copies[*row]).sum();
    let of_group = |group: &str| -> Vec<usize> {
        rows().filter(|row| groups[*row].as_deref() == Some(group)).collect()
    };
    let books = of_group("books");
    let books_kept = books.iter().filter(|row| kept.contains(row)).count();
    let code = of_group("code");
    let refused = reasons.iter().flatten().filter(|reason| *reason == "guard_copy_share").count();
    let missing = scores.iter().filter(|score| score.is_nan()).count();
    let expected = [
        summary["rows_kept"].as_f64().unwrap() / summary["rows_in"].as_f64().unwrap(),
        refused as f64,
        copies_kept / kept.len() as f64,
        copies.iter().copied().fold(0.0, f64::max),
        missing as f64 / selection.num_rows() as f64,
        books_kept as f64 / books.len() as f64,
        code.iter().map(|row| scores[*row]).fold(f64::INFINITY, f64::min),
    ];
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() < 1e-12,
            "check {index}: expected {expected}, got {found}"
        );
    }
}

#[test]
fn a_failed_check_writes_nothing_and_keeps_the_scores() {
    let workspace = Workspace::with_three_groups();
    let text = with_checks(&["figure: samples_kept, min: 1", "figure: rows_kept_share, min: 0.9"]);
    let line = 1 + text.lines().position(|line| line.contains("0.9")).unwrap();
    workspace.write("pipeline.yaml", &text);
    let files = ["--summary-file", "summary.json", "--metrics-textfile", "metrics.prom"];
    let answer = workspace.longsift(&[&["run", "pipeline.yaml"][..], &files].concat()).expect(6);
    let location = format!("pipeline.yaml:{line}:");
    let why = "check of rows_kept_share failed: expected at least 0.9, got 0.";
    assert!(answer.stderr.contains(&location) && answer.stderr.contains(why), "{}", answer.stderr);
    let summary = answer.summary();
    assert_eq!((&summary["status"], &summary["exit_code"]), (&"failed".into(), &6.into()));
    // The summary also contains the checks of a rejected result.
    let checks = &summary["checks"];
    assert_eq!((&checks[0]["holds"], &checks[1]["holds"]), (&true.into(), &false.into()));
    let share = summary["rows_kept"].as_f64().unwrap() / summary["rows_in"].as_f64().unwrap();
    assert!(share > 0.0 && checks[1]["value"] == share, "{summary}");
    assert!(summary["error"].as_str().unwrap().starts_with(why), "{summary}");
    assert_eq!(crate::support::read_json(&workspace.path("summary.json")), summary);
    let metrics = fs::read_to_string(workspace.path("metrics.prom")).unwrap();
    assert!(metrics.contains("longsift_samples{pipeline=\"pipeline\"} 0\n"), "{metrics}");
    let data = workspace.path("out/data");
    assert!(!data.exists() || fs::read_dir(data).unwrap().next().is_none(), "nothing is written");
    assert!(!workspace.path("out.run/staging").exists(), "staged files are removed");
    let done = workspace.longsift(&["run", "pipeline.yaml", "--set", "checks.1.min=0.01"]);
    assert_eq!(done.success().summary()["windows_scored"], 0, "nothing is measured again");
    // The previous result stays if another selection is rejected.
    let before = bytes_of(&workspace);
    let wider = ["run", "pipeline.yaml", "--set", "stages.filter.keep_fraction=0.25"];
    workspace.longsift(&wider).expect(6);
    assert_eq!(bytes_of(&workspace), before);
    assert_eq!(workspace.longsift(&["verify", "out.run"]).code, 0);
}

#[test]
fn a_finished_run_is_checked_again() {
    let workspace = Workspace::with_three_groups();
    workspace.run(&pipeline());
    let before = bytes_of(&workspace);
    workspace.write("pipeline.yaml", with_checks(&["figure: samples_kept, max: 1"]));
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(6);
    assert!(answer.stderr.contains("expected at most 1, got "), "{}", answer.stderr);
    let summary = answer.summary();
    assert_eq!(
        (&summary["status"], &summary["checks"][0]["holds"]),
        (&"failed".into(), &false.into())
    );
    let status = || workspace.longsift(&["status", "out.run"]).success().stdout;
    assert!(status().contains("expected at most 1, got "), "{}", status());
    workspace.longsift(&["run", "pipeline.yaml", "-q", "--set", "checks.0.max=2"]).expect(6);
    assert!(status().contains("expected at most 2, got "), "{}", status());
    let warn = ["run", "pipeline.yaml", "--set", "checks.0.severity=warn"];
    let answer = workspace.longsift(&warn).success();
    assert!(answer.stderr.contains("warning: check of samples_kept"), "{}", answer.stderr);
    let summary = answer.summary();
    assert_eq!(summary["status"], "nothing_to_do");
    assert_eq!(summary["checks"][0]["holds"], false);
    assert!(status().starts_with("finished") && !status().contains("reason"), "{}", status());
    assert_eq!(bytes_of(&workspace), before);
}

#[test]
fn a_mean_or_share_of_no_samples_fails() {
    let workspace = Workspace::with_three_groups();
    for check in [
        "statistic: copy_share, group: nobody, max: 1",
        "figure: samples_kept_share, group: nobody, max: 1",
    ] {
        workspace.write("pipeline.yaml", with_checks(&[check]));
        let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(6);
        assert!(answer.stderr.contains("got no value"), "{}", answer.stderr);
    }
}

#[test]
fn contradictory_checks_are_all_reported() {
    let workspace = Workspace::with_three_groups();
    workspace.write(
        "pipeline.yaml",
        with_checks(&[
            "figure: rows_in",
            "statistic: copy_shar, max: 1",
            "figure: rows_in, group: books, min: 1",
            "figure: rows_in, min: 2, max: 1",
        ]),
    );
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
    assert_eq!(answer.stderr.matches("error: ").count(), 4, "{}", answer.stderr);
    assert!(answer.stderr.contains("no term and no guard uses `copy_shar`"), "{}", answer.stderr);
    assert!(!workspace.path("out.run").exists());
}

#[test]
fn drift_can_fail_a_run() {
    let workspace = Workspace::with_three_groups();
    let attention = Pipeline::tokens("model", 32).filter("keep_fraction: 0.3");
    workspace.run(&attention);
    workspace.write("saved.json", fs::read(workspace.path("out.run/calibration.json")).unwrap());
    // Simulates a calibration with very different scores.
    let mut saved: Value =
        serde_json::from_slice(&fs::read(workspace.path("saved.json")).unwrap()).unwrap();
    for decile in saved["groups"][0]["score_deciles"].as_array_mut().unwrap() {
        *decile = (decile.as_f64().unwrap() + 3.0).into();
    }
    workspace.write("saved.json", saved.to_string());
    let set = |on_drift: &str| format!("stages.score.on_drift={on_drift}");
    let run = |on_drift: &str| {
        let calibration = "stages.score.calibration=saved.json";
        let output = "output.path=increment";
        workspace.longsift(&[
            "run",
            "pipeline.yaml",
            "--set",
            calibration,
            "--set",
            output,
            "--set",
            &set(on_drift),
        ])
    };
    let answer = run("fail").expect(6);
    assert!(answer.stderr.contains("have moved from the calibration"), "{}", answer.stderr);
    let drift = &answer.summary()["drift"];
    assert!(drift[0].as_object().is_some_and(|group| !group.is_empty()), "{drift}");
    assert!(run("warn").success().stderr.contains("warning: the scores have moved"));
    run("fail").expect(6);
    let answer = workspace.longsift(&["plan", "pipeline.yaml", "--set", &set("fail")]).expect(2);
    assert!(answer.stderr.contains("no effect without a `calibration`"), "{}", answer.stderr);
}

#[test]
fn an_input_without_rows_can_be_checked() {
    let workspace = Workspace::with_three_groups();
    workspace.write("pipeline.yaml", with_checks(&["figure: rows_in, min: 1"]));
    let full = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert_eq!(full.summary()["status"], "done");
    let before = bytes_of(&workspace);
    for path in files_below(&workspace.path("input")) {
        let rows = read_parquet(&path);
        write_parquet(&path, &rows.slice(0, 0), 10);
    }
    for more in [&[][..], &["--fresh"]] {
        let arguments = [&["run", "pipeline.yaml", "-q"], more].concat();
        let refused = workspace.longsift(&arguments).expect(6);
        assert_eq!(refused.summary()["checks"][0]["holds"], false);
        if more.is_empty() {
            assert_eq!(bytes_of(&workspace), before, "the earlier result is unchanged");
        }
    }
    workspace.write("pipeline.yaml", pipeline().to_string());
    let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!((&summary["status"], &summary["rows_in"]), (&"done".into(), &0.into()));
    assert_eq!(read_parquet(&workspace.path("out/data")).num_rows(), 0);
    workspace.longsift(&["verify", "out.run"]).success();
    let again = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!(again["status"], "nothing_to_do");
    // An input without files is refused as well.
    for path in files_below(&workspace.path("input")) {
        fs::remove_file(path).unwrap();
    }
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
    assert!(
        answer.stderr.contains("`allow_empty: true` allows an empty input"),
        "{}",
        answer.stderr
    );
}
