//! Several processes that share a run directory: each scores a shard, one selects.

use std::fs::{self, File};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::resume::{RECORD, undisturbed, units, workload};
use crate::support::faults::Pause;
use crate::support::scenarios::check_nothing_is_left;
use crate::support::tables::{corpus, write_parquet};
use crate::support::{
    Answer, Workspace, check_accounting, count, files_below, read_json, repository,
};

fn shard_arguments(shard: &str) -> [&str; 8] {
    ["run", "pipeline.yaml", "--phase", "score", "--shard", shard, "--threads", "2"]
}

fn score(workspace: &Workspace, shard: &str) -> Value {
    workspace.longsift(&shard_arguments(shard)).success().summary()
}

fn start(workspace: &Workspace, shard: &str) -> Child {
    workspace.start(&shard_arguments(shard))
}

fn write_arguments(shard: &str) -> [&str; 8] {
    ["run", "pipeline.yaml", "--phase", "write", "--shard", shard, "--threads", "2"]
}

fn select(workspace: &Workspace) -> Answer {
    workspace.longsift(&["run", "pipeline.yaml", "--phase", "select"])
}

/// Checks that the selection equals that of one process for the workload.
fn select_as_one_process(workspace: &Workspace) {
    let summary = select(workspace).success().summary();
    check_accounting(&summary);
    let (expected, single) = undisturbed();
    assert_eq!(workspace.results(), *expected);
    for key in ["rows_in", "rows_kept", "rows_dropped", "quarantined", "windows_total", "kept"] {
        assert_eq!(summary[key], single[key], "{key}");
    }
    assert_eq!(summary["windows_scored"], 0, "a selection measures nothing");
    check_nothing_is_left(workspace, "selected");
}

fn events(workspace: &Workspace, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(workspace.path("out.run/events.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == name).collect()
}

#[test]
fn three_shards_and_a_selection_equal_one_run() {
    let workspace = workload();
    let children: Vec<Child> =
        ["0/3", "1/3", "2/3"].iter().map(|shard| start(&workspace, shard)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let rows: u64 = events(&workspace, "unit_scored")
        .iter()
        .map(|event| event["counts"]["rows"].as_u64().unwrap())
        .sum();
    assert_eq!(rows, 24, "every row once");
    let status = workspace.longsift(&["status", "out.run", "--format", "json"]).success();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((&status["units_scored"], &status["units"]), (&json!(11), &json!(11)));
    select_as_one_process(&workspace);
    assert_eq!(select(&workspace).success().summary()["status"], "nothing_to_do");
}

#[test]
fn a_shard_accounts_for_its_own_rows() {
    let workspace = workload();
    let shards: Vec<Value> = ["0/2", "1/2"].iter().map(|shard| score(&workspace, shard)).collect();
    for summary in &shards {
        assert_eq!(summary["status"], "scored");
        let dropped: u64 = summary["rows_dropped"]
            .as_object()
            .unwrap()
            .values()
            .map(|rows| rows.as_u64().unwrap())
            .sum();
        let scored = count(&summary["shard"], "rows_scored");
        assert_eq!(count(summary, "rows_in"), scored + dropped + count(summary, "quarantined"));
    }
    assert_eq!(shards.iter().map(|summary| count(summary, "rows_in")).sum::<u64>(), 24);
    assert_eq!(shards.iter().map(|summary| count(&summary["shard"], "units")).sum::<u64>(), 11);
    let again = score(&workspace, "0/2");
    assert_eq!(again["status"], "nothing_to_do");
    assert_eq!(again["shard"]["units_reused"], shards[0]["shard"]["units"]);
    let empty = score(&workspace, "15/16");
    assert_eq!((&empty["status"], &empty["rows_in"]), (&json!("nothing_to_do"), &json!(0)));
}

#[test]
fn shards_write_what_the_selection_commits() {
    let workspace = workload();
    score(&workspace, "0/1");
    let mut children = ["0/3", "1/3", "1/3"].map(|shard| workspace.start(&write_arguments(shard)));
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let again = workspace.longsift(&write_arguments("0/3")).success().summary();
    assert_eq!(
        (&again["status"], count(&again["shard"], "units_written")),
        (&json!("nothing_to_do"), 0)
    );
    assert_eq!(again["shard"]["units_reused"], again["shard"]["units"]);
    assert!(!workspace.path("out/data").exists(), "nothing is committed yet");
    // The selection itself writes what shard 2 did not, and a part that was lost.
    let written = files_below(&workspace.path("out/.written"));
    let lost = written.iter().find(|path| !path.ends_with(".longsift")).unwrap();
    fs::remove_file(lost).unwrap();
    select_as_one_process(&workspace);
    let after = workspace.longsift(&write_arguments("2/3")).success().summary();
    assert_eq!(after["status"], "nothing_to_do", "the output is committed");
    for folder in ["out.run/written", "out/.written", "out/.staging"] {
        assert!(!workspace.path(folder).exists(), "{folder}");
    }
}

#[test]
fn damaged_parts_and_records_of_a_shard_are_written_again() {
    let workspace = workload();
    score(&workspace, "0/1");
    workspace.longsift(&write_arguments("0/1")).success();
    let mut folders = vec![workspace.path("out/.written")];
    for entry in fs::read_dir(workspace.path("out.run/written")).unwrap() {
        folders
            .extend(["selection", "units"].map(|part| entry.as_ref().unwrap().path().join(part)));
    }
    for folder in folders {
        let files = files_below(&folder).into_iter().filter(|path| !path.ends_with(".longsift"));
        let mut files: Vec<_> = files.collect();
        files.sort();
        for (index, path) in files.iter().enumerate().filter(|(index, _)| index % 3 == 0) {
            let mut bytes = fs::read(path).unwrap();
            let at = bytes.len() * (index % 4 + 1) / 5;
            bytes[at] ^= 1;
            fs::write(path, bytes).unwrap();
        }
    }
    select_as_one_process(&workspace);
}

#[test]
fn a_record_that_names_other_rows_is_not_used() {
    for (key, value) in [("first_row", json!(1)), ("row_groups", json!([1, 2]))] {
        let workspace = workload();
        score(&workspace, "0/1");
        let path = files_below(&workspace.path("out.run/units")).into_iter().min().unwrap();
        let mut record = read_json(&path);
        record[key] = if record[key] == value { json!(7) } else { value };
        fs::write(&path, record.to_string()).unwrap();
        let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
        assert!(count(&summary, "windows_scored") > 0, "{key}: its unit is scored again");
        assert_eq!(workspace.results(), undisturbed().0, "{key}");
    }
}

#[test]
fn parts_of_another_selection_are_not_used() {
    let workspace = workload();
    score(&workspace, "0/1");
    let other =
        [&write_arguments("0/1")[..], &["--set", "stages.filter.keep_fraction=0.9"]].concat();
    let summary = workspace.longsift(&other).success().summary();
    assert_eq!(
        (&summary["status"], &summary["shard"]["units_written"]),
        (&json!("written"), &json!(11))
    );
    assert!(count(&summary, "kept") > 0);
    select_as_one_process(&workspace);
}

#[test]
fn nothing_is_written_before_everything_is_scored() {
    let workspace = workload();
    score(&workspace, "0/2");
    let answer = workspace.longsift(&write_arguments("0/2")).expect(4);
    assert!(answer.stderr.contains("have no scores"), "{}", answer.stderr);
    assert!(answer.stderr.contains("--shard i/2` with i = 1"), "{}", answer.stderr);
}

#[test]
fn two_processes_of_the_same_shard_share_it_and_every_unit_counts_once() {
    let workspace = workload();
    let mut children = [start(&workspace, "0/1"), start(&workspace, "0/1")];
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(events(&workspace, "unit_scored").len(), 11, "one process committed each unit");
    let work = |key: &str| -> u64 {
        events(&workspace, "shard_finished").iter().map(|event| count(&event["shard"], key)).sum()
    };
    assert_eq!(work("units_scored"), 11);
    assert_eq!(work("units_scored") + work("units_by_others") + work("units_reused"), 22);
    select_as_one_process(&workspace);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn units_scored_meanwhile_by_others_are_not_reopened() {
    let workspace = workload();
    // It has found no records, and is about to write the lock.
    let pause = Pause { matching: "rename out.run/", at: 1 };
    let mut late = workspace.start_paused(&shard_arguments("0/1"), &pause);
    late.wait_for_pause();
    score(&workspace, "0/1");
    let units = workspace.hashes(&["out.run/units", "out.run/scores"]);
    let shard = late.resume().success().summary()["shard"].clone();
    assert_eq!((&shard["units_scored"], &shard["units_by_others"]), (&json!(0), &json!(11)));
    assert_eq!(workspace.hashes(&["out.run/units", "out.run/scores"]), units);
    select_as_one_process(&workspace);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_unit_that_another_process_commits_while_it_is_scored_counts_once() {
    let workspace = workload();
    let pause = Pause { matching: "write out.run/scores", at: 1 };
    let mut late = workspace.start_paused(&shard_arguments("0/1"), &pause);
    late.wait_for_pause();
    assert_eq!(score(&workspace, "0/1")["shard"]["units_scored"], 11);
    let units = workspace.hashes(&["out.run/units"]);
    let shard = late.resume().success().summary()["shard"].clone();
    assert_eq!((&shard["units_scored"], &shard["units_by_others"]), (&json!(0), &json!(11)));
    assert_eq!(workspace.hashes(&["out.run/units"]), units);
    assert_eq!(events(&workspace, "unit_scored").len(), 11);
    select_as_one_process(&workspace);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn parts_of_tables_that_were_replaced_are_not_used() {
    let workspace = workload();
    let original = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
    let changed = original.replace(
        "stage: first-layer-attention",
        "stage: first-layer-attention, min_distance_tokens: 2",
    );
    assert_ne!(changed, original);
    workspace.write("other.yaml", &changed);
    let remeasure = |pipeline: &'static str| {
        ["run", pipeline, "--phase", "score", "--remeasure", "first-layer-attention"]
    };
    score(&workspace, "0/1");
    let pause = Pause { matching: "write out/.written", at: 2 };
    let mut writer = workspace.start_paused(&write_arguments("0/1"), &pause);
    writer.wait_for_pause();
    workspace.longsift(&remeasure("other.yaml")).success();
    let refused = writer.resume().expect(4);
    assert!(
        refused.stderr.contains("were replaced while this run read them"),
        "{}",
        refused.stderr
    );
    workspace.longsift(&remeasure("pipeline.yaml")).success();
    select_as_one_process(&workspace);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_killed_shard_is_finished_by_the_same_command() {
    let workspace = workload();
    workspace.run_until_killed(&shard_arguments("0/2"), RECORD, 3);
    let before = units(&workspace) as u64;
    assert_eq!(before, 2);
    score(&workspace, "1/2");
    let summary = score(&workspace, "0/2");
    let work = &summary["shard"];
    assert_eq!(work["units_reused"], before);
    assert_eq!(count(work, "units_scored"), count(work, "units") - before);
    select_as_one_process(&workspace);
}

#[test]
fn a_whole_run_finishes_shards() {
    let workspace = workload();
    score(&workspace, "1/3");
    let summary = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    assert!(count(&summary, "windows_reused") > 0 && count(&summary, "windows_scored") > 0);
    assert_eq!(workspace.results(), undisturbed().0);
}

#[test]
fn a_selection_names_missing_units_and_shards() {
    let workspace = workload();
    for shard in ["0/4", "2/4"] {
        score(&workspace, shard);
    }
    let answer = select(&workspace).expect(4);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
    assert!(!workspace.path("out/data").exists());
    let list = read_json(&workspace.path("out.run/missing.json"));
    assert_eq!(list["missing"].as_array().unwrap().len(), 11 - units(&workspace));
    for shard in ["1/4", "3/4"] {
        score(&workspace, shard);
    }
    select_as_one_process(&workspace);
    assert!(!workspace.path("out.run/missing.json").exists());
    let workspace = workload();
    score(&workspace, "0/4");
    select(&workspace).expect(4);
    assert!(workspace.path("out.run/missing.json").exists());
    workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert!(!workspace.path("out.run/missing.json").exists());
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_selection_does_not_wait() {
    let workspace = workload();
    let mut shard =
        workspace.start_paused(&shard_arguments("0/1"), &Pause { matching: RECORD, at: 2 });
    shard.wait_for_pause();
    let answer = select(&workspace).expect(4);
    assert!(answer.stderr.contains("processes that work on its shards"), "{}", answer.stderr);
    shard.resume().success();
    select_as_one_process(&workspace);
}

#[test]
fn a_changed_file_is_scored_again_by_its_shard() {
    let workspace = workload();
    for shard in ["0/2", "1/2"] {
        score(&workspace, shard);
    }
    let path = workspace.path("input/b.parquet");
    write_parquet(&path, &corpus("b", &[2024, 1023, 5000, 0, 2200, 3100, 1800, 2100]), 2);
    let later = SystemTime::now() + Duration::from_secs(5);
    File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let answer = select(&workspace).expect(4);
    assert!(answer.stderr.contains("b.parquet, rows "), "{}", answer.stderr);
    let scored: u64 =
        ["0/2", "1/2"].iter().map(|s| count(&score(&workspace, s)["shard"], "units_scored")).sum();
    assert_eq!(scored, 4, "the units of one file");
    select(&workspace).success();
}

#[test]
fn conflicting_flags_are_rejected() {
    let workspace = workload();
    for (arguments, why) in [
        (&["--shard", "0/2"][..], "`--shard` requires `--phase score`"),
        (&["--phase", "select", "--shard", "0/2"], "`--shard` requires `--phase score`"),
        (&["--phase", "score", "--fresh"], "`--fresh` would remove"),
        (&["--phase", "score", "--shard", "2/2"], "the last of 2 is 1/2"),
        (&["--phase", "score", "--scores-from", "x.run"], "`--scores-from`"),
        (&["--scores-from", "x.run", "--remeasure", "m"], "`--remeasure` conflicts"),
    ] {
        let answer = workspace.longsift(&[&["run", "pipeline.yaml"], arguments].concat()).expect(2);
        assert!(answer.stderr.contains(why), "{}", answer.stderr);
    }
}

#[test]
fn shards_of_other_settings_are_refused() {
    let workspace = workload();
    score(&workspace, "0/2");
    let other = [&shard_arguments("1/2")[..], &["--set", "stages.tokenize.window_tokens=512"]];
    let answer = workspace.longsift(&other.concat()).expect(2);
    assert!(answer.stderr.contains("window_tokens: 512, was 1024"), "{}", answer.stderr);
}

/// Arguments of a shard that scores with the kernel that every machine has.
fn portable_arguments(shard: &str) -> Vec<&str> {
    [&shard_arguments(shard)[..], &["--kernel", "portable-f32"]].concat()
}

#[test]
#[cfg_attr(
    not(all(longsift_preload, any(longsift_avx2, target_arch = "aarch64"))),
    ignore = "needs LD_PRELOAD (Linux with glibc), and a processor with another kernel than portable-f32"
)]
fn shards_that_start_together_use_one_kernel() {
    let workspace = workload();
    // It has found no lock, and is about to write its own.
    let pause = Pause { matching: "link out.run/pipeline.lock", at: 1 };
    let mut late = workspace.start_paused(&shard_arguments("0/2"), &pause);
    late.wait_for_pause();
    workspace.longsift(&portable_arguments("1/2")).success();
    let scored = units(&workspace);
    let refused = late.resume().expect(2).stderr;
    assert!(refused.contains("another shard scores in "), "{refused}");
    assert!(refused.contains("kernel: "), "{refused}");
    assert!(refused.contains("same `--kernel NAME`"), "{refused}");
    assert_eq!(units(&workspace), scored, "it has scored nothing");
    workspace.longsift(&portable_arguments("0/2")).success();
    check_accounting(&select(&workspace).success().summary());
}

#[test]
#[cfg_attr(
    not(all(longsift_preload, any(longsift_avx2, target_arch = "aarch64"))),
    ignore = "needs LD_PRELOAD (Linux with glibc), and a processor with another kernel than portable-f32"
)]
fn a_shard_whose_lock_was_replaced_fails_at_its_end() {
    let workspace = workload();
    // Both find the lock of scores that are gone, and each replaces it with its own.
    score(&workspace, "0/2");
    for folder in ["units", "scores", "dropped", "quarantine"] {
        let _ = fs::remove_dir_all(workspace.path("out.run").join(folder));
    }
    let pause = Pause { matching: "rename out.run/pipeline.lock", at: 1 };
    let mut replacing = workspace.start_paused(&portable_arguments("1/2"), &pause);
    replacing.wait_for_pause();
    let pause = Pause { matching: RECORD, at: 1 };
    let mut first = workspace.start_paused(&shard_arguments("0/2"), &pause);
    first.wait_for_pause();
    replacing.resume().success();
    let refused = first.resume().expect(2).stderr;
    assert!(refused.contains("another shard scores in "), "{refused}");
    assert!(refused.contains("kernel: "), "{refused}");
}

#[test]
fn the_script_for_slurm_arrays_scores_a_shard_per_task() {
    let workspace = workload();
    let path = std::env::join_paths(
        std::iter::once(std::path::PathBuf::from(env!("CARGO_BIN_EXE_longsift")))
            .map(|binary| binary.parent().unwrap().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let script = repository().join("docs/examples/slurm-array.sh");
    // The last task is submitted again, as an array of its own.
    for (task, submitted) in [(0, "3"), (1, "3"), (2, "1")] {
        let status = Command::new(&script)
            .arg("pipeline.yaml")
            .current_dir(workspace.path(""))
            .env("PATH", path.as_ref().unwrap())
            .env("XDG_CACHE_HOME", workspace.path("cache"))
            .env("SLURM_ARRAY_TASK_ID", task.to_string())
            .env("SLURM_ARRAY_TASK_COUNT", submitted)
            .env("SHARDS", "3")
            .output()
            .unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    }
    select_as_one_process(&workspace);
}
