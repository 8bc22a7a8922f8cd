//! A run that is stopped at any moment is finished by the same command, with the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::faults::Pause;
use crate::support::scenarios::check_nothing_is_left;
use crate::support::tables::{corpus, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, check_accounting, count, files_below, read_json};

const RUN: [&str; 4] = ["run", "pipeline.yaml", "--threads", "2"];

// Operations at which tests stop a run: a unit is recorded, a window is written to a journal, an output part is
// started.
pub(crate) const RECORD: &str = "create out.run/units/";
const JOURNAL: &str = "write out.run/journal/";
const PART: &str = "create out/.staging/";

/// A corpus that takes a second or two, in eleven work units of three files; one document is bad.
pub(crate) fn workload() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new()
        .with("hidden_size", json!(64))
        .with("num_attention_heads", json!(8))
        .with("num_key_value_heads", json!(2))
        .write(&workspace.path("model"));
    for (name, lengths, rows_per_group) in [
        ("a", [2500, 1700, 900, 3000, 100, 2048, 4100, 1500], 2),
        ("b", [1024, 1023, 5000, 0, 2200, 3100, 1800, 2100], 2),
        ("sub/c", [2400, 1100, 1300, 2900, 3300, 1200, 2600, 1024], 3),
    ] {
        let path = workspace.path(&format!("input/{name}.parquet"));
        write_parquet(&path, &corpus(name, &lengths), rows_per_group);
    }
    let pipeline = Pipeline::tokens("model", 1024)
        .input("unit_bytes: 1024, max_quarantined_fraction: 0.5")
        .output("samples: windows");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

/// Results of an undisturbed run of the workload.
pub(crate) fn undisturbed() -> &'static (BTreeMap<String, String>, Value) {
    static RESULTS: OnceLock<(BTreeMap<String, String>, Value)> = OnceLock::new();
    RESULTS.get_or_init(|| {
        let workspace = workload();
        let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
        assert_eq!(summary["quarantined"], 1);
        assert!(files_below(&workspace.path("out.run/units")).len() == 11);
        (workspace.results(), summary)
    })
}

/// Finishes the run with the same command; checks that no temporary files of the interrupted run are left.
fn finish(workspace: &Workspace) -> Value {
    let data = fs::read_dir(workspace.path("out/data")).map_or(0, Iterator::count);
    let committed = workspace.path("out.run/_SUCCESS").exists();
    let begun = workspace.path("out.run/intent.json").exists();
    assert!(data == 0 || committed || begun, "data without a commit");
    let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    check_accounting(&summary);
    let (expected, undisturbed) = undisturbed();
    assert_eq!(workspace.results(), *expected);
    for key in ["rows_in", "rows_kept", "rows_dropped", "quarantined", "windows_total", "kept"] {
        assert_eq!(summary[key], undisturbed[key], "{key}");
    }
    assert_eq!(
        count(&summary, "windows_scored") + count(&summary, "windows_reused"),
        count(undisturbed, "windows_scored")
    );
    check_nothing_is_left(workspace, "resumed");
    summary
}

/// Number of units with a record.
pub(crate) fn units(workspace: &Workspace) -> usize {
    files_below(&workspace.path("out.run/units"))
        .iter()
        .filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'))
        .count()
}

/// Windows of the units with a record.
fn recorded_windows(workspace: &Workspace) -> u64 {
    let records = files_below(&workspace.path("out.run/units"));
    records.iter().map(|record| read_json(record)["scores"]["rows"].as_u64().unwrap()).sum()
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn every_phase_resumes_an_interrupted_fresh_start() {
    let workspace = workload();
    workspace.longsift(&RUN).success();
    workspace.run_until_killed(
        &[&RUN[..], &["--fresh"]].concat(),
        "create out.run/fresh/units/",
        5,
    );
    let listed =
        workspace.longsift(&["cache", "--runs", ".", "--clear", "runs", "--format", "json"]);
    let listed: Value = serde_json::from_str(&listed.success().stdout).unwrap();
    assert_eq!(listed["runs"][0]["state"], "unfinished", "{listed:#}");
    assert_eq!(listed["removed"], json!([]), "{listed:#}");
    let phase = |phase: &str| workspace.longsift(&[&RUN[..], &["-q", "--phase", phase]].concat());
    let refused = phase("select").expect(4).stderr;
    assert!(refused.contains("7 of 11 work units in `out.run` have no scores"), "{refused}");
    let status = workspace.longsift(&["status", "out.run", "--format", "json"]).success().stdout;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["units_scored"], &status["units"]), (&json!(4), &json!(11)));
    let scored = phase("score").success().summary();
    assert_eq!(scored["shard"]["units_reused"], 4, "{scored}");
    assert_eq!(units(&workspace), 11, "the earlier scores stay until the selection");
    phase("select").success();
    assert!(!workspace.path("out.run/fresh").exists());
    assert_eq!(workspace.results(), undisturbed().0);
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_fresh_start_with_other_settings_stays() {
    let workspace = workload();
    workspace.longsift(&RUN).success();
    let other = ["--set", "stages.tokenize.window_tokens=48"];
    let fresh = [&RUN[..], &other, &["--fresh"]].concat();
    workspace.run_until_killed(&fresh, "create out.run/fresh/units/", 5);
    let scores = workspace.hashes(&["out.run/fresh/scores", "out.run/fresh/units"]);
    let answer = workspace.longsift(&RUN).success();
    assert!(answer.stderr.contains("out.run/fresh` has other settings"), "{}", answer.stderr);
    let wider = [&RUN[..], &["--set", "stages.filter.keep_fraction=0.9"]].concat();
    workspace.longsift(&wider).success();
    assert_eq!(workspace.hashes(&["out.run/fresh/scores", "out.run/fresh/units"]), scores);
    let resumed = workspace.longsift(&[&RUN[..], &other].concat()).success().summary();
    assert!(count(&resumed, "windows_reused") > 0, "{resumed}");
    assert!(!workspace.path("out.run/fresh").exists());
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_killed_run_measures_only_the_remaining_units() {
    for units_done in [1, 4, 10] {
        let workspace = workload();
        workspace.run_until_killed(&RUN, RECORD, units_done + 1);
        assert_eq!(units(&workspace), units_done);
        assert!(!workspace.path("out/data").exists(), "nothing is committed yet");
        let recorded = recorded_windows(&workspace);
        let summary = finish(&workspace);
        assert!(recorded > 0 && count(&summary, "windows_reused") >= recorded, "{summary}");
        // The journal of the last unit may contain all of its windows.
        assert!(units_done == 10 || count(&summary, "windows_scored") > 0, "{summary}");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_run_killed_while_it_writes_is_finished() {
    for part in [1, 2, 7] {
        let workspace = workload();
        workspace.run_until_killed(&RUN, PART, part);
        let summary = finish(&workspace);
        assert_eq!(summary["windows_scored"], 0, "all units were scored before");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_run_killed_while_it_commits_is_finished() {
    for (step, at) in [
        ("link out.run/intent.json", 1),
        ("rename out/data", 1),
        ("rename out/data", 3),
        ("rename out.run/manifest.json", 1),
        ("rename out.run/_SUCCESS", 1),
        ("unlink out.run/intent.json", 1),
    ] {
        let workspace = workload();
        workspace.run_until_killed(&RUN, step, at);
        let summary = finish(&workspace);
        assert_eq!(summary["windows_scored"], 0, "killed at {step} {at}");
    }
}

#[test]
fn a_folder_in_the_way_stops_a_run_before_its_commit() {
    for obstacle in ["_SUCCESS", "summary.json"] {
        let workspace = workload();
        workspace.write(&format!("out.run/{obstacle}/in-the-way"), "");
        workspace.write("out.run/lock", "");
        let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(4);
        assert!(answer.stderr.contains(obstacle), "{}", answer.stderr);
        assert!(!workspace.path("out.run/intent.json").exists(), "{obstacle}");
        assert_eq!(files_below(&workspace.path("out/data")).len(), 0, "{obstacle}");
        fs::remove_dir_all(workspace.path("out.run").join(obstacle)).unwrap();
        assert_eq!(finish(&workspace)["status"], "done");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_killed_run_may_be_finished_with_another_selection_but_no_other_scores() {
    let arguments = ["run", "pipeline.yaml", "--set", "stages.score.alpha=2"];
    let expected = workload();
    expected.longsift(&arguments).success();
    let workspace = workload();
    workspace.run_until_killed(&RUN, RECORD, 4);
    let other = ["run", "pipeline.yaml", "--set", "stages.tokenize.window_tokens=512"];
    let answer = workspace.longsift(&other).expect(2);
    assert!(answer.stderr.contains("window_tokens: 512, was 1024"), "{}", answer.stderr);
    let summary = workspace.longsift(&arguments).success().summary();
    assert!(count(&summary, "windows_reused") > 0, "{summary}");
    assert_eq!(workspace.results(), expected.results());
    check_nothing_is_left(&workspace, "resumed");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_killed_second_selection_is_finished_or_replaced() {
    let select = |workspace: &Workspace, fraction: &str| {
        let set = format!("stages.filter.keep_fraction={fraction}");
        let answer = workspace.longsift(&["run", "pipeline.yaml", "--set", &set]).success();
        (answer.summary()["status"].clone(), workspace.results())
    };
    let expected = workload();
    let narrow = select(&expected, "0.1").1;
    let wide = select(&expected, "0.9").1;
    for (step, at, last, results) in [
        ("rename out/data", 1, "0.9", &wide),
        ("rename out/data", 1, "0.1", &narrow),
        (PART, 3, "0.9", &wide),
        (PART, 3, "0.1", &narrow),
    ] {
        let workspace = workload();
        select(&workspace, "0.1");
        let arguments = ["run", "pipeline.yaml", "--set", "stages.filter.keep_fraction=0.9"];
        workspace.run_until_killed(&arguments, step, at);
        assert_eq!(select(&workspace, last).1, *results);
        check_nothing_is_left(&workspace, "resumed");
        assert_eq!(select(&workspace, last).0, "nothing_to_do");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn going_back_after_a_killed_selection_restores_its_records() {
    let workspace = workload();
    workspace.longsift(&["run", "pipeline.yaml"]).success();
    let settings_of =
        |name: &str| read_json(&workspace.path("out.run").join(name))["settings"].clone();
    let before = (settings_of("pipeline.lock"), settings_of("plan.json"));
    let arguments = ["run", "pipeline.yaml", "--set", "stages.filter.keep_fraction=0.9"];
    workspace.run_until_killed(&arguments, PART, 3);
    assert!(
        settings_of("pipeline.lock") == before.0,
        "the pipeline lock belongs to the committed selection"
    );
    assert_ne!(settings_of("plan.json"), before.1);
    let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    assert_eq!(summary["status"], "nothing_to_do");
    assert_eq!((settings_of("pipeline.lock"), settings_of("plan.json")), before);
    assert_eq!(workspace.results(), undisturbed().0);
    check_nothing_is_left(&workspace, "back again");
}

/// One work unit of many windows: only its journal preserves work while it is open.
fn one_large_unit() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new()
        .with("hidden_size", json!(64))
        .with("num_attention_heads", json!(8))
        .with("num_key_value_heads", json!(8))
        .write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[4096; 40]), 40);
    let pipeline = Pipeline::tokens("model", 1024);
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn finished_windows_of_an_open_unit_survive_a_kill() {
    let undisturbed = one_large_unit();
    undisturbed.longsift(&["run", "pipeline.yaml"]).success();
    let workspace = one_large_unit();
    workspace.run_until_killed(&RUN, JOURNAL, 4);
    assert_eq!(units(&workspace), 0, "the unit is still open");
    let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    assert!(count(&summary, "windows_reused") > 0, "{summary}");
    assert_eq!(count(&summary, "windows_scored") + count(&summary, "windows_reused"), 160);
    assert_eq!(workspace.results(), undisturbed.results());
    check_nothing_is_left(&workspace, "resumed");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_signal_drains_a_run_that_the_same_command_resumes() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let workspace = one_large_unit();
        // While one thread writes windows to the journal, others are in progress.
        let mut run = workspace.start_paused(&RUN, &Pause { matching: JOURNAL, at: 2 });
        run.wait_for_pause();
        run.signal(signal);
        let stopped = run.resume().expect(code).summary();
        assert_eq!((&stopped["status"], &stopped["exit_code"]), (&json!("stopped"), &json!(code)));
        let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
        assert!(count(&summary, "windows_reused") > 0, "the windows in the journal: {summary}");
        check_accounting(&summary);
        check_nothing_is_left(&workspace, "resumed");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_second_run_on_the_same_directory_is_refused_and_names_the_first() {
    let workspace = one_large_unit();
    let mut first = workspace.start_paused(&RUN, &Pause { matching: JOURNAL, at: 2 });
    first.wait_for_pause();
    let child = &mut first.child;
    let second = workspace.longsift(&["run", "pipeline.yaml"]).expect(4);
    assert!(second.stderr.contains(&format!("process {}", child.id())), "{}", second.stderr);
    assert_eq!(second.summary()["status"], "failed");
    let status = workspace.longsift(&["status", "out.run", "--format", "json"]).success();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(
        (&status["state"], &status["holder"]["pid"]),
        (&json!("running"), &json!(child.id()))
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let status = workspace.longsift(&["status", "out.run", "--format", "json"]).success();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_ne!(status["state"], "running", "the lock ended with its process");
}

#[test]
fn a_finished_run_has_nothing_to_do() {
    let workspace = workload();
    let first = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    let before = workspace.hashes(&["out", "out.run"]);
    let answer = workspace.longsift(&["run", "pipeline.yaml", "--nothing-to-do-exit", "99"]);
    let second = answer.expect(99).summary();
    assert_eq!(second["status"], "nothing_to_do");
    assert_eq!(second["kept"], first["kept"]);
    assert_eq!(second["windows_scored"], 0);
    assert_eq!(second["windows_reused"], first["windows_scored"]);
    assert_eq!(workspace.hashes(&["out", "out.run"]).len(), before.len());
    workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert_eq!(workspace.results(), undisturbed().0);
    let manifest = read_json(&workspace.path("out.run/manifest.json"));
    assert_eq!(
        manifest["data"].as_array().unwrap().len(),
        files_below(&workspace.path("out/data")).len()
    );
}
