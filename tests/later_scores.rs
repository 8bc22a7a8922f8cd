//! A committed selection keeps the files that it was made from until the next commit.

use std::fs::{self, File};
use std::time::Duration;

use arrow_array::UInt32Array;
use arrow_select::take::take_record_batch;
use serde_json::Value;

use crate::support::faults::Pause;
use crate::support::tables::{read_parquet, write_parquet};
use crate::support::{Pipeline, Workspace, count, files_below};

fn workspace() -> Workspace {
    let workspace = Workspace::with_three_groups();
    workspace.write("pipeline.yaml", pipeline(0.125).to_string());
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    workspace
}

/// `distance`: a setting of a measure.
fn pipeline(distance: f64) -> Pipeline {
    Pipeline::tokens("model", 64)
        .input("unit_bytes: 1024")
        .measure(&format!("recurrence, min_distance_fraction: {distance}"))
        .filter("keep_fraction: 0.4")
}

fn json(workspace: &Workspace, arguments: &[&str]) -> Value {
    let all = [arguments, &["--format", "json"]].concat();
    serde_json::from_str(&workspace.longsift(&all).success().stdout).expect("JSON")
}

const WHATIF: [&str; 4] = ["whatif", "out.run", "--set", "stages.filter.keep_fraction=0.2"];

/// Checks that every command describes the selection of `before`, a copy of the workspace.
fn check_selection(workspace: &Workspace, before: &Workspace) {
    let selection = ["out/data", "out.run/selection", "out.run/manifest.json"];
    assert_eq!(workspace.hashes(&selection), before.hashes(&selection));
    workspace.longsift(&["verify", "out.run"]).success();
    let copy = before.path("out.run").display().to_string();
    workspace.longsift(&["diff", "out.run", &copy]).success();
    let report = ["report", "out.run"];
    let [now, then] = [workspace, before].map(|workspace| json(workspace, &report));
    for key in ["flow", "groups", "lists", "amounts"] {
        assert_eq!(now[key], then[key], "{key}");
    }
    let status = json(workspace, &["status", "out.run"]);
    assert_eq!(status["state"], "unfinished", "{status:#}");
    let cleared = json(workspace, &["cache", "--runs", ".", "--clear", "runs"]);
    assert_eq!(cleared["runs"][0]["state"], "unfinished", "{cleared:#}");
    assert!(workspace.path("out.run/manifest.json").exists());
}

/// Finishes the later run and compares its results with those of a run in an empty folder.
fn finish_as_new(workspace: &Workspace, run: &[&str]) {
    workspace.longsift(run).success();
    workspace.longsift(&["verify", "out.run"]).success();
    let new = Workspace::copy_of(workspace);
    for folder in ["out", "out.run"] {
        fs::remove_dir_all(new.path(folder)).expect("a folder of the run");
    }
    new.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert_eq!(workspace.results(), new.results());
    assert_eq!(json(workspace, &["status", "out.run"])["state"], "finished");
}

#[test]
fn scores_of_a_changed_file_wait_for_their_selection() {
    let workspace = workspace();
    let before = Workspace::copy_of(&workspace);
    let file = files_below(&workspace.path("input")).remove(0);
    let rows = read_parquet(&file);
    let reversed = UInt32Array::from_iter_values((0..rows.num_rows() as u32).rev());
    write_parquet(&file, &take_record_batch(&rows, &reversed).unwrap(), 5);
    let score = ["run", "pipeline.yaml", "-q", "--phase", "score"];
    for _ in 0..2 {
        workspace.longsift(&score).success();
        check_selection(&workspace, &before);
    }
    // The input of the selection is gone, so another selection cannot be previewed exactly.
    workspace.longsift(&WHATIF).expect(2);
    finish_as_new(&workspace, &["run", "pipeline.yaml", "-q", "--phase", "select"]);
}

#[test]
fn scores_measured_again_wait_for_their_selection() {
    let workspace = workspace();
    let before = Workspace::copy_of(&workspace);
    let preview = json(&workspace, &WHATIF);
    let checks = "checks: [{figure: rows_kept_share, min: 0.999}]\n";
    workspace.write("pipeline.yaml", format!("{}\n{checks}", pipeline(0.25)));
    let again = ["run", "pipeline.yaml", "-q", "--remeasure", "recurrence"];
    workspace.longsift(&again).expect(6);
    check_selection(&workspace, &before);
    assert_eq!(json(&workspace, &WHATIF), preview);
    let dropped = files_below(&workspace.path("out.run/dropped")).remove(0);
    let whole = fs::read(&dropped).unwrap();
    fs::remove_file(&dropped).unwrap();
    let hint = workspace.longsift(&["verify", "out.run"]).expect(3).stdout;
    assert!(hint.contains("finish the run that scored since, with its pipeline file"), "{hint}");
    fs::write(&dropped, whole).unwrap();
    // A table without a record, as a full disk leaves it, belongs to the run that continues.
    let mut tables = files_below(&workspace.path("out.run/scores")).into_iter();
    let next = tables.find(|path| path.to_str().unwrap().ends_with("-next.parquet")).unwrap();
    let unit = next.file_stem().unwrap().to_str().unwrap();
    let unit = unit.strip_prefix("part-").unwrap().strip_suffix("-next").unwrap();
    fs::remove_file(workspace.path(&format!("out.run/units/{unit}.json"))).unwrap();
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    finish_as_new(&workspace, &again);
}

#[test]
fn settings_of_the_selection_replace_later_scores() {
    let workspace = workspace();
    let results = workspace.results();
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    let again = ["run", "pipeline.yaml", "-q", "--remeasure", "recurrence"];
    workspace.longsift(&[&again[..], &["--phase", "score"]].concat()).success();
    workspace.write("pipeline.yaml", pipeline(0.125).to_string());
    workspace.longsift(&again).success();
    assert_eq!(workspace.results(), results);
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn shards_measure_a_changed_measure_again() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    let shard = |shard: &str, more: &[&str]| {
        let arguments = ["run", "pipeline.yaml", "-q", "--phase", "score", "--shard", shard];
        workspace.longsift(&[&arguments[..], more].concat())
    };
    let refused = shard("0/2", &[]).expect(2).stderr;
    assert!(refused.contains("--remeasure recurrence"), "{refused}");
    let remeasure = ["--remeasure", "recurrence"];
    let scored: u64 = ["0/2", "1/2"]
        .map(|of| count(&shard(of, &remeasure).success().summary(), "windows_scored"))
        .iter()
        .sum();
    assert!(scored > 0);
    // With yet other settings, a shard that starts later replaces them only on request.
    workspace.write("pipeline.yaml", pipeline(0.5).to_string());
    shard("0/2", &[]).expect(2);
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    finish_as_new(&workspace, &["run", "pipeline.yaml", "-q", "--phase", "select"]);
}

#[test]
fn scores_that_wait_for_their_selection_can_be_borrowed() {
    let workspace = workspace();
    let borrow =
        ["run", "pipeline.yaml", "-q", "--set", "output.path=other", "--scores-from", "out.run"];
    workspace.longsift(&borrow).success();
    workspace.longsift(&["run", "pipeline.yaml", "-q", "--set", "output.path=own"]).success();
    let own = workspace.hashes(&["own.run/scores", "own.run/units"]);
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    let again = ["run", "pipeline.yaml", "-q", "--remeasure", "recurrence"];
    workspace.longsift(&[&again[..], &["--phase", "score"]].concat()).success();
    let into_own = [&borrow[..4], &["output.path=own"], &borrow[5..]].concat();
    for (borrow, name) in [(&borrow[..], "other"), (&into_own, "own")] {
        let run = format!("{name}.run");
        assert_eq!(workspace.longsift(borrow).success().summary()["windows_scored"], 0);
        workspace.longsift(&["verify", &run]).success();
        assert_eq!(workspace.longsift(borrow).success().summary()["status"], "nothing_to_do");
    }
    assert_eq!(workspace.hashes(&["own.run/scores", "own.run/units"]), own);
    // The commit of the other run gives its tables their names.
    workspace.longsift(&again).success();
    for (borrow, name) in [(&borrow[..], "other"), (&into_own, "own")] {
        let run = format!("{name}.run");
        let hint = workspace.longsift(&["verify", &run]).expect(3).stdout;
        assert!(hint.contains("select from its present ones"), "{hint}");
        for command in [&["report", &*run][..], &["diff", &run, "out.run"]] {
            let refused = workspace.longsift(command).expect(3).stderr;
            assert!(refused.contains("/out.run` has replaced "), "{refused}");
        }
        workspace.longsift(borrow).success();
        workspace.longsift(&["verify", &run]).success();
        assert_eq!(data(&workspace, name), data(&workspace, "out"));
    }
}

/// Number of the last operation of an undisturbed command whose line contains a text.
fn last(workspace: &Workspace, command: &[&str], matching: &str) -> usize {
    let undisturbed = Workspace::copy_of(workspace).with_fault(command, None);
    let operations = undisturbed.operations.iter();
    operations.filter(|line| line.contains(matching)).count()
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn borrowed_scores_that_are_replaced_meanwhile_end_the_run() {
    let before = workspace();
    let borrow = ["run", "pipeline.yaml", "-q", "--threads", "1", "--set", "output.path=other"];
    let borrow = [&borrow[..], &["--scores-from", "out.run"]].concat();
    let write = [&borrow[..], &["--phase", "write", "--shard", "0/1"]].concat();
    let tables = files_below(&before.path("out.run/scores")).len();
    let staged = last(&before, &borrow, "rename other/.staging/");
    let written = last(&before, &write, "rename other/.written/");
    let other = pipeline(0.25).to_string();
    let measured = (&other, &["--remeasure", "recurrence"][..]);
    let shorter = other.replace("window_tokens: 64", "window_tokens: 32");
    let started_again = (&shorter, &["--fresh"][..]);
    // The records are read; the tables are read for the selection; everything is written, and nothing is committed.
    for (command, matching, at, (text, more)) in [
        (&borrow, "open out.run/scores/", 1, measured),
        (&borrow, "open out.run/scores/", tables + 1, started_again),
        (&borrow, "rename other/.staging/", staged, measured),
        (&write, "rename other/.written/", written, measured),
    ] {
        let workspace = Workspace::copy_of(&before);
        let mut run = workspace.start_paused(command, &Pause { matching, at });
        run.wait_for_pause();
        workspace.write("pipeline.yaml", text);
        workspace.longsift(&[&["run", "pipeline.yaml", "-q"], more].concat()).success();
        let refused = run.resume().expect(4).stderr;
        let message = "out.run` were replaced while this run read them: `";
        assert!(refused.contains(message), "{matching} {at}: {refused}");
        assert!(refused.contains("hint: run again when no other process uses"), "{refused}");
        assert!(!workspace.path("other/data").exists(), "{matching} {at}: nothing is committed");
        assert!(!workspace.path("other.run/manifest.json").exists(), "{matching} {at}");
        workspace.longsift(&borrow).success();
        assert_eq!(data(&workspace, "other"), data(&workspace, "out"), "{matching} {at}");
    }
}

fn data(workspace: &Workspace, output: &str) -> Vec<String> {
    workspace.hashes(&[&format!("{output}/data")]).into_values().collect()
}

#[test]
fn a_selection_from_its_own_scores_keeps_them() {
    let workspace = workspace();
    let own = ["run", "pipeline.yaml", "-q", "--scores-from", "out.run"];
    let again =
        workspace.longsift(&[&own[..], &["--set", "stages.filter.keep_fraction=0.3"]].concat());
    assert_eq!(again.success().summary()["windows_scored"], 0);
    let before = Workspace::copy_of(&workspace);
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    let score = ["run", "pipeline.yaml", "-q", "--phase", "score", "--remeasure", "recurrence"];
    workspace.longsift(&score).success();
    check_selection(&workspace, &before);
    finish_as_new(&workspace, &["run", "pipeline.yaml", "-q"]);
}

#[test]
fn own_scores_after_a_selection_from_another_run_are_unfinished_work() {
    let workspace = workspace();
    let own = ["run", "pipeline.yaml", "-q", "--set", "output.path=own"];
    workspace.longsift(&own).success();
    workspace.longsift(&[&own[..], &["--scores-from", "out.run"]].concat()).success();
    let status = || json(&workspace, &["status", "own.run"])["state"].clone();
    assert_eq!(status(), "finished", "with its own earlier scores");
    workspace.write("pipeline.yaml", pipeline(0.25).to_string());
    let again = ["--phase", "score", "--remeasure", "recurrence"];
    workspace.longsift(&[&own[..], &again].concat()).success();
    assert_eq!(status(), "unfinished");
}

#[test]
fn scores_of_a_file_that_became_older_are_those_of_the_present_file() {
    let workspace = Workspace::with_three_groups();
    workspace.write("pipeline.yaml", pipeline(0.125).to_string());
    let score = ["run", "pipeline.yaml", "-q", "--phase", "score"];
    workspace.longsift(&score).success();
    let file = files_below(&workspace.path("input")).remove(0);
    let rows = read_parquet(&file);
    let earlier = fs::metadata(&file).unwrap().modified().unwrap() - Duration::from_hours(1);
    write_parquet(&file, &rows.slice(0, 10), 5);
    File::options().write(true).open(&file).unwrap().set_modified(earlier).unwrap();
    workspace.longsift(&score).success();
    let status = json(&workspace, &["status", "out.run"]);
    assert_eq!(
        (&status["rows"], &status["counts"]["rows"]),
        (&30.into(), &30.into()),
        "{status:#}"
    );
    assert_eq!(status["units_scored"], status["units"], "{status:#}");
}

#[test]
fn an_unfinished_run_has_the_units_of_its_last_plan() {
    let workspace = Workspace::with_three_groups();
    workspace.write("pipeline.yaml", pipeline(0.125).to_string());
    let score = |bytes: &str| {
        let unit = format!("input.unit_bytes={bytes}");
        workspace
            .longsift(&["run", "pipeline.yaml", "-q", "--phase", "score", "--set", &unit])
            .success();
        let status = json(&workspace, &["status", "out.run"]);
        assert_eq!(status["units_scored"], status["units"], "{status:#}");
        let verified = json(&workspace, &["verify", "out.run"]);
        assert_eq!(verified["rows"], status["rows"], "{verified:#}");
        status
    };
    let [first, other, again] = ["1024", "1048576", "1024"].map(score);
    assert_ne!(first["units"], other["units"]);
    assert_eq!(first["counts"], other["counts"], "the same rows");
    assert_eq!(first, again);
    // Of another version of the input.
    let input = workspace.path("input");
    let file = files_below(&input).remove(0);
    let kept = workspace.path("kept.parquet");
    fs::rename(&file, &kept).expect("a file of the input");
    let fewer = score("1024");
    assert!(fewer["counts"]["rows"].as_u64() < first["counts"]["rows"].as_u64(), "{fewer:#}");
    fs::rename(&kept, &file).expect("the file");
    assert_eq!(score("1024"), first);
}
