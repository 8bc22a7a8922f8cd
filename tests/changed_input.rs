//! Input that changes during a run is detected and named, versions are never mixed, and the next run uses the new
//! input.

use std::fs::{self, File};
use std::path::Path;

use serde_json::{Value, json};

use crate::support::faults::Pause;
use crate::support::scenarios::{Scenario, check_nothing_is_left, write_input};
use crate::support::{Tiny, Workspace, check_accounting, count, files_below};

const RUN: [&str; 3] = ["run", "pipeline.yaml", "-q"];

/// Function that changes `input/b.parquet`.
type Change = (&'static str, fn(&Workspace));

fn file(workspace: &Workspace) -> std::path::PathBuf {
    workspace.path("input/b.parquet")
}

/// Overwrites a byte in the middle in place.
fn change_in_place(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = File::options().read(true).write(true).open(path).unwrap();
    let middle = file.metadata().unwrap().len() / 4;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
}

const CHANGES: [Change; 4] = [
    ("replaced", |workspace| {
        write_input(workspace, "new", &[3, 14]);
        fs::rename(workspace.path("input/new.parquet"), file(workspace)).unwrap();
    }),
    ("grown", |workspace| {
        let bytes = fs::read(file(workspace)).unwrap();
        fs::write(file(workspace), [&bytes[..], &bytes[..]].concat()).unwrap();
    }),
    ("deleted", |workspace| fs::remove_file(file(workspace)).unwrap()),
    ("a row group changed", |workspace| change_in_place(&file(workspace))),
];

/// Results of a run on the current input of a workspace, without reuse.
fn from_scratch(workspace: &Workspace) -> Option<std::collections::BTreeMap<String, String>> {
    let fresh = Workspace::copy_of(workspace);
    for folder in ["out", "out.run"] {
        let _ = fs::remove_dir_all(fresh.path(folder));
    }
    (fresh.longsift(&RUN).code == 0).then(|| fresh.results())
}

/// Changes the input of a paused run, which must fail and name the file. Then restores the file, or continues with
/// the new input.
fn change_during(matching: &'static str, at: usize) {
    let scenario = Scenario::first_run();
    for (what, change) in CHANGES {
        let when = format!("{what} at `{matching}`");
        let workspace = Workspace::copy_of(&scenario.before);
        let mut run = workspace.start_paused(&RUN, &Pause { matching, at });
        run.wait_for_pause();
        change(&workspace);
        let answer = run.resume();
        assert_eq!(answer.code, 3, "{when}: {}", answer.stderr);
        let changed = answer.stderr.contains("b.parquet: the file changed since it was planned");
        assert!(changed, "{when}: {}", answer.stderr);
        assert!(!workspace.path("out/data").exists(), "{when}: nothing is committed");
        let other = Workspace::copy_of(&workspace);
        let restored = other.path("input/b.parquet");
        fs::copy(scenario.before.path("input/b.parquet"), &restored).unwrap();
        check_accounting(&other.longsift(&RUN).success().summary());
        assert_eq!(other.results(), scenario.results, "{when}, restored");
        // The new input may not be Parquet at all: then nothing can be compared.
        if let Some(expected) = from_scratch(&workspace) {
            check_accounting(&workspace.longsift(&RUN).success().summary());
            assert_eq!(workspace.results(), expected, "{when}");
            check_nothing_is_left(&workspace, &when);
        }
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_input_changed_between_plan_and_read_is_named() {
    change_during("create out.run/journal", 1);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_input_changed_between_score_and_write_is_named() {
    change_during("mkdir out/.staging", 1);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_input_changed_while_its_unit_is_read_is_named() {
    let scenario = Scenario::first_run();
    let operations = Workspace::copy_of(&scenario.before).with_fault(&RUN, None).operations;
    let reads = operations.iter().filter(|line| *line == "read input/b.parquet").count();
    // The first two reads are of the footer. A page may change during its read, or before it.
    for at in 3..=reads {
        let workspace = Workspace::copy_of(&scenario.before);
        let pause = Pause { matching: "read input/b.parquet", at };
        let mut run = workspace.start_paused(&RUN, &pause);
        run.wait_for_pause();
        change_in_place(&file(&workspace));
        let answer = run.resume().expect(3);
        let named = ["b.parquet: the file changed since it was planned", "b.parquet, row "];
        let changed = named.iter().any(|what| answer.stderr.contains(what));
        assert!(changed, "read {at}: {}", answer.stderr);
        assert!(!workspace.path("out/data").exists(), "read {at}");
        fs::copy(scenario.before.path("input/b.parquet"), file(&workspace)).unwrap();
        check_accounting(&workspace.longsift(&RUN).success().summary());
        assert_eq!(workspace.results(), scenario.results, "read {at}");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_change_during_a_new_selection_keeps_the_old_one() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    workspace.longsift(&RUN).success();
    // With one thread, the second part is that of the second file.
    let again = ["--threads", "1", "--set", "stages.filter.keep_fraction=0.9"];
    let again = [&RUN, &again[..]].concat();
    let pause = Pause { matching: "create out/.staging", at: 2 };
    let mut run = workspace.start_paused(&again, &pause);
    run.wait_for_pause();
    change_in_place(&file(&workspace));
    run.resume().expect(3);
    assert_eq!(workspace.results(), scenario.results);
    assert!(workspace.path("out.run/_SUCCESS").exists());
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn files_added_during_a_run_belong_to_the_next_run() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    let pause = Pause { matching: "create out.run/units", at: 2 };
    let mut run = workspace.start_paused(&RUN, &pause);
    run.wait_for_pause();
    write_input(&workspace, "aa", &[6, 8]);
    let first = run.resume().success().summary();
    assert_eq!(count(&first, "rows_in"), 6);
    assert_eq!(workspace.results(), scenario.results, "the run reads the planned files only");
    let second = workspace.longsift(&RUN).success().summary();
    check_accounting(&second);
    assert_eq!(count(&second, "rows_in"), 8);
    assert_eq!(
        count(&second, "windows_reused"),
        count(&first, "windows_scored"),
        "finished units are reused"
    );
    assert!(count(&second, "windows_scored") > 0, "the new file is scored");
    assert_eq!(Some(workspace.results()), from_scratch(&workspace), "the selection is redone");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_model_changed_while_its_table_is_built_is_named() {
    let scenario = Scenario::first_run();
    for (matching, at) in [("mkdir cache", 1), ("write cache", 3)] {
        let workspace = Workspace::copy_of(&scenario.before);
        let mut run = workspace.start_paused(&RUN, &Pause { matching, at });
        run.wait_for_pause();
        let other = Workspace::new();
        Tiny::new().with("vocab_size", json!(8192)).seed(2).write(&other.path("model"));
        let weights = "model/model.safetensors";
        fs::copy(other.path(weights), workspace.path("model/new")).unwrap();
        fs::rename(workspace.path("model/new"), workspace.path(weights)).unwrap();
        let answer = run.resume();
        // If the weights were opened before the change, the table is that of the planned weights.
        if answer.code == 0 {
            assert_eq!(workspace.results(), scenario.results, "{matching}");
        } else {
            assert_eq!(answer.code, 3, "{matching}: {}", answer.stderr);
            assert!(answer.stderr.contains("model.safetensors"), "{}", answer.stderr);
        }
        let next = workspace.longsift(&RUN);
        if answer.code == 0 {
            assert!(next.expect(2).stderr.contains("weights: "), "other weights are refused");
        } else {
            next.success();
            assert_eq!(Some(workspace.results()), from_scratch(&workspace), "{matching}");
        }
    }
}

#[test]
fn a_lock_names_changes_of_tokenizer_kernel_and_calibration() {
    let scenario = Scenario::first_run();
    let refused = |workspace: &Workspace, more: &[&str], what: &str| {
        let arguments = [&RUN, &["--locked"][..], more].concat();
        let answer = workspace.longsift(&arguments).expect(2);
        assert!(answer.stderr.contains(what), "{}", answer.stderr);
        assert!(!workspace.path("out/data").exists(), "nothing was written");
    };
    let locked = || {
        let workspace = Workspace::copy_of(&scenario.before);
        workspace.longsift(&["lock", "pipeline.yaml"]).success();
        workspace
    };
    let workspace = locked();
    refused(
        &workspace,
        &["--set", "stages.tokenize.window_tokens=32"],
        "window_tokens: 32, was 64",
    );
    let path = workspace.path("model/tokenizer.json");
    let mut tokenizer = crate::support::read_json(&path);
    tokenizer["normalizer"] = json!({ "type": "Lowercase" });
    fs::write(path, tokenizer.to_string()).unwrap();
    refused(&workspace, &[], "tokenizer: ");
    let workspace = locked();
    let lock = crate::support::read_json(&workspace.path("pipeline.lock"));
    if lock["identity"]["measures"]["first-layer-attention"]["facts"]["kernel"] != "portable-f32" {
        refused(&workspace, &["--kernel", "portable-f32"], "kernel: portable-f32, was ");
    }
    workspace.longsift(&[&RUN, &["--locked"][..]].concat()).success();
    let calibration = fs::read(workspace.path("out.run/calibration.json")).unwrap();
    let next = Workspace::copy_of(&scenario.before);
    next.write("saved.json", &calibration);
    let pipeline = fs::read_to_string(next.path("pipeline.yaml")).unwrap();
    let calibrated = pipeline.replace("{stage: score}", "{stage: score, calibration: saved.json}");
    assert_ne!(pipeline, calibrated);
    next.write("pipeline.yaml", calibrated);
    next.longsift(&["lock", "pipeline.yaml"]).success();
    let mut other: Value = serde_json::from_slice(&calibration).unwrap();
    let threshold = &mut other["groups"][0]["thresholds"][0]["score"];
    *threshold = json!(threshold.as_f64().unwrap() + 0.5);
    next.write("saved.json", other.to_string());
    refused(&next, &[], "calibration: ");
    next.write("saved.json", &calibration);
    next.longsift(&[&RUN, &["--locked"][..]].concat()).success();
    assert!(!files_below(&next.path("out/data")).is_empty());
}
