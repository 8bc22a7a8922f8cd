//! A growing corpus: every day only the new files are filtered, by the threshold of the first corpus.

use std::fs;

use serde_json::{Value, json};

use crate::support::tables::{
    corpus, document, read_parquet, strings, table, texts, token_lists, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, check_accounting, count, files_below, read_json};

/// The first day: two files of eight documents, filtered into `out`.
fn first_day() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for name in ["a", "b"] {
        add_file(&workspace, name);
    }
    workspace.run(&first());
    workspace
}

fn add_file(workspace: &Workspace, name: &str) {
    let path = workspace.path(&format!("input/{name}.parquet"));
    write_parquet(&path, &corpus(name, &[128, 192, 256, 192, 64, 320, 128, 640]), 2);
}

fn first() -> Pipeline {
    Pipeline::tokens("model", 64)
}

/// A pipeline for the files added since `since`, into `output`.
fn increment(since: &str, output: &str) -> Pipeline {
    let mut pipeline = first()
        .input(&format!("since: {since}"))
        .score(&format!("calibration: {since}/calibration.json"));
    pipeline.output = format!("path: {output}");
    pipeline
}

fn run(workspace: &Workspace, pipeline: &Pipeline) -> Value {
    workspace.write("increment.yaml", pipeline.to_string());
    let summary = workspace.longsift(&["run", "increment.yaml", "-q"]).success().summary();
    check_accounting(&summary);
    summary
}

fn threshold(workspace: &Workspace, run_dir: &str) -> Value {
    read_json(&workspace.path(run_dir).join("calibration.json"))["groups"][0]["thresholds"].clone()
}

#[test]
fn only_new_files_are_scored_and_the_threshold_stays() {
    let workspace = first_day();
    let before = workspace.hashes(&["out", "out.run"]);
    add_file(&workspace, "c");
    let second = run(&workspace, &increment("out.run", "day2"));
    assert_eq!((count(&second, "rows_in"), &second["windows_reused"]), (8, &json!(0)));
    assert_eq!(threshold(&workspace, "day2.run"), threshold(&workspace, "out.run"));
    let kept: Vec<String> = files_below(&workspace.path("day2/data"))
        .iter()
        .flat_map(|file| texts(&read_parquet(file), "id"))
        .collect();
    assert!(kept.iter().all(|id| id.starts_with('c')), "{kept:?}");
    assert_eq!(
        workspace.hashes(&["out", "out.run"]),
        before,
        "the first day's files are unchanged"
    );
    let plan = workspace.longsift(&["plan", "increment.yaml"]).success();
    assert!(plan.stderr.contains("`keep_fraction` has no effect"), "{}", plan.stderr);
    // The third day names the second: files filtered by either are excluded.
    add_file(&workspace, "d");
    let third = run(&workspace, &increment("day2.run", "day3"));
    assert_eq!(count(&third, "rows_in"), 8);
    assert_eq!(threshold(&workspace, "day3.run"), threshold(&workspace, "out.run"));
    let manifest = read_json(&workspace.path("day3.run/manifest.json"));
    assert_eq!(manifest["input"].as_array().unwrap().len(), 1);
    assert_eq!(manifest["input_before"].as_array().unwrap().len(), 3);
    let fourth = run(&workspace, &increment("day3.run", "day4"));
    assert_eq!((&fourth["status"], count(&fourth, "rows_in")), (&json!("nothing_to_do"), 0));
    for command in ["verify", "report", "status"] {
        workspace.longsift(&[command, "day4.run"]).success();
    }
    assert!(workspace.path("day4/data").is_dir(), "the summary names it");
    // A day without new files does not break the chain.
    add_file(&workspace, "e");
    let fifth = run(&workspace, &increment("day4.run", "day5"));
    assert_eq!((count(&fifth, "rows_in"), &fifth["status"]), (8, &json!("done")));
    assert_eq!(threshold(&workspace, "day5.run"), threshold(&workspace, "out.run"));
}

#[test]
fn a_file_that_stays_unreadable_does_not_end_a_chain() {
    let workspace = first_day();
    workspace.write("input/bad.parquet", "PAR1 and no footer");
    let next = |since: &str, output: &str| {
        let mut pipeline = increment(since, output);
        pipeline.input.push_str(", on_bad_file: quarantine");
        let summary = run(&workspace, &pipeline);
        workspace.longsift(&["verify", &format!("{output}.run")]).success();
        summary
    };
    let quiet = next("out.run", "day2");
    assert_eq!(
        (&quiet["status"], &quiet["files_quarantined"]),
        (&json!("nothing_to_do"), &json!(1))
    );
    add_file(&workspace, "c");
    let busy = next("day2.run", "day3");
    assert_eq!((count(&busy, "rows_in"), &busy["files_quarantined"]), (8, &json!(1)));
    assert_eq!(next("day3.run", "day4")["status"], "nothing_to_do");
    // The file is replaced by a whole one.
    add_file(&workspace, "bad");
    assert_eq!(count(&next("day4.run", "day5"), "rows_in"), 8);
    // A finished increment keeps its output.
    let before = workspace.hashes(&["day5"]);
    workspace.write("input/bad.parquet", "PAR1 and no footer");
    let refused = workspace.longsift(&["run", "increment.yaml", "-q"]).expect(3).stderr;
    assert!(refused.contains("the input has no readable rows"), "{refused}");
    assert_eq!(workspace.hashes(&["day5"]), before);
}

#[test]
fn a_finished_increment_warns_about_files_that_arrived_later() {
    let workspace = first_day();
    add_file(&workspace, "c");
    run(&workspace, &increment("out.run", "day2"));
    let again = workspace.longsift(&["run", "increment.yaml", "-q"]).success();
    assert_eq!(again.summary()["status"], "nothing_to_do");
    assert!(!again.stderr.contains("arrived after"), "{}", again.stderr);
    add_file(&workspace, "d");
    run(&workspace, &increment("day2.run", "day3"));
    workspace.write("increment.yaml", increment("out.run", "day2").to_string());
    let again = workspace.longsift(&["run", "increment.yaml", "-q"]).success();
    let warning = "1 file arrived after this increment was finished and will be filtered by it, for example `d.parquet`";
    assert!(again.stderr.contains(warning), "{}", again.stderr);
    assert_eq!(count(&again.summary(), "rows_in"), 16);
}

#[test]
fn an_increment_without_files_follows_the_runs_before_it() {
    let workspace = first_day();
    let empty = |workspace: &Workspace| {
        let summary = run(workspace, &increment("out.run", "day2"));
        assert_eq!(summary["status"], "nothing_to_do");
        fs::read(workspace.path("day2.run/manifest.json")).unwrap()
    };
    let before = empty(&workspace);
    assert_eq!(empty(&workspace), before);
    // The first corpus grows and is filtered again.
    add_file(&workspace, "c");
    workspace.run(&first());
    assert_ne!(empty(&workspace), before);
    assert_eq!(threshold(&workspace, "day2.run"), threshold(&workspace, "out.run"));
    // Damage is repaired by the same command.
    fs::write(workspace.path("day2.run/calibration.json"), "{}").unwrap();
    workspace.longsift(&["verify", "day2.run"]).expect(3);
    empty(&workspace);
    workspace.longsift(&["verify", "day2.run"]).success();
    fs::write(workspace.path("day2.run/manifest.json"), "{}").unwrap();
    workspace.longsift(&["run", "increment.yaml", "-q"]).expect(3);
    workspace.longsift(&["run", "increment.yaml", "-q", "--fresh"]).success();
    add_file(&workspace, "d");
    let third = run(&workspace, &increment("day2.run", "day3"));
    assert_eq!(count(&third, "rows_in"), 8, "only the new file is filtered");
    workspace.longsift(&["verify", "day2.run"]).success();
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_killed_increment_without_files_is_finished_by_the_same_command() {
    let workspace = first_day();
    for file in ["pipeline.lock", "calibration.json", "summary.json", "manifest.json", "_SUCCESS"] {
        workspace.write("increment.yaml", increment("out.run", "day2").to_string());
        let command = ["run", "increment.yaml", "-q"];
        workspace.run_until_killed(&command, &format!("rename day2.run/{file}"), 1);
        assert!(!workspace.path("day2.run").join(file).exists(), "{file}");
        let again = run(&workspace, &increment("out.run", "day2"));
        assert_eq!(again["status"], "nothing_to_do", "{file}");
        assert!(workspace.path("day2.run/_SUCCESS").exists(), "{file}");
        workspace.longsift(&["verify", "day2.run"]).success();
        add_file(&workspace, "c");
        let third = run(&workspace, &increment("day2.run", "day3"));
        assert_eq!((count(&third, "rows_in"), &third["status"]), (8, &json!("done")), "{file}");
        assert_eq!(threshold(&workspace, "day3.run"), threshold(&workspace, "out.run"));
        for folder in ["day2", "day2.run", "day3", "day3.run"] {
            fs::remove_dir_all(workspace.path(folder)).unwrap();
        }
        fs::remove_file(workspace.path("input/c.parquet")).unwrap();
    }
}

#[test]
fn an_increment_equals_a_run_with_the_same_calibration() {
    let workspace = first_day();
    add_file(&workspace, "c");
    run(&workspace, &increment("out.run", "day2"));
    let mut separate = first().score("calibration: out.run/calibration.json");
    separate.input = separate.input.replace("path: input", "path: input/c.parquet");
    separate.output = "path: alone".to_owned();
    run(&workspace, &separate);
    let data =
        |folder: &str| -> Vec<String> { workspace.hashes(&[folder]).into_values().collect() };
    assert_eq!(data("day2/data"), data("alone/data"));
    assert_eq!(data("day2.run/scores"), data("alone.run/scores"));
}

#[test]
fn a_calibration_that_was_changed_in_its_run_directory_is_refused() {
    let workspace = first_day();
    add_file(&workspace, "c");
    let path = workspace.path("out.run/calibration.json");
    let whole = fs::read_to_string(&path).unwrap();
    let changed = whole.replacen("\"count\":", "\"count\":1", 1);
    assert_ne!(changed, whole);
    fs::write(&path, &changed).unwrap();
    workspace.write("increment.yaml", increment("out.run", "day2").to_string());
    let stderr = workspace.longsift(&["run", "increment.yaml", "-q"]).expect(3).stderr;
    assert!(stderr.contains("was changed after its run: expected SHA-256 "), "{stderr}");
    assert!(stderr.contains("increment.yaml:"), "{stderr}");
    fs::write(&path, &whole).unwrap();
    workspace.longsift(&["run", "increment.yaml", "-q"]).success();
}

#[test]
fn a_group_that_the_calibration_lacks_ends_the_run_before_its_documents_are_measured() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let add = |name: &str, groups: [&str; 4], lengths: [usize; 4]| {
        let documents = corpus(name, &lengths);
        let tokens = documents.column_by_name("tokens").unwrap().clone();
        let ids = documents.column_by_name("id").unwrap().clone();
        let columns = [("id", ids), ("language", strings(groups)), ("tokens", tokens)];
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &table(&columns), 2);
    };
    let within = |pipeline: Pipeline| pipeline.score("within: language");
    add("a", ["de", "en", "de", "en"], [128, 192, 256, 192]);
    workspace.run(&within(first()));
    // A document without windows needs no group of the calibration.
    add("b", ["de", "en", "fr", "en"], [128, 192, 20, 192]);
    let summary = run(&workspace, &within(increment("out.run", "day2")));
    assert_eq!(summary["rows_dropped"]["short_document"], 1, "{summary}");
    add("c", ["de", "it", "fr", "en"], [128, 20, 192, 192]);
    workspace.write("increment.yaml", within(increment("out.run", "day3")).to_string());
    let stderr = workspace.longsift(&["run", "increment.yaml", "-q"]).expect(2).stderr;
    let message = "the calibration `out.run/calibration.json` has no statistics for group `fr` (`c.parquet`, row 2)";
    assert!(stderr.contains(message), "{stderr}");
    assert!(stderr.contains("calibrate again on a corpus that has all groups"), "{stderr}");
    let scored = files_below(&workspace.path("day3.run/units"));
    assert_eq!(scored.len(), 1, "the file `b` is scored, `c` is not: {scored:?}");
    let shard = ["run", "increment.yaml", "-q", "--phase", "score", "--shard", "0/1"];
    let stderr = workspace.longsift(&shard).expect(2).stderr;
    assert!(stderr.contains("for group `fr` (`c.parquet`, row 2)"), "{stderr}");
}

#[test]
fn a_group_without_scores_in_the_calibration_is_a_warning_if_its_windows_pass_the_guards() {
    let workspace = Workspace::new();
    let add = |name: &str, fourth: &[u32]| {
        let mut documents: Vec<Vec<u32>> = (0..3).map(|seed| document(seed, 256)).collect();
        documents.push(fourth.to_vec());
        let columns = [
            ("id", strings((0..4).map(|row| format!("{name}-{row}")))),
            ("language", strings(["de", "de", "de", "fr"])),
            ("tokens", token_lists(&documents)),
        ];
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &table(&columns), 2);
    };
    let guarded = |pipeline: Pipeline| {
        let pipeline = pipeline.without_model(None).measure("recurrence, min_distance_tokens: 8");
        let guards = "guards: [{statistic: unique_token_share, min: 0.1}]";
        pipeline
            .measure("lexical")
            .score("within: language, terms: [{statistic: unique_token_share}]")
            .filter(&format!("keep_fraction: 0.5, {guards}"))
    };
    add("a", &[1; 256]);
    workspace.run(&guarded(first()));
    let warnings = |since: &str, output: &str| {
        workspace.write("increment.yaml", guarded(increment(since, output)).to_string());
        workspace.longsift(&["run", "increment.yaml", "-q"]).success().stderr
    };
    add("b", &[2; 256]);
    assert!(!warnings("out.run", "day2").contains("get no score"), "its windows are rejected");
    add("c", &document(9, 256));
    let stderr = warnings("day2.run", "day3");
    let message = "windows that pass the guards get no score, because the calibration has no score of their group: `fr` (4)";
    assert!(stderr.contains(message) && stderr.contains("increment.yaml:"), "{stderr}");
}

#[test]
fn a_file_that_changed_is_filtered_again_with_a_warning() {
    let workspace = first_day();
    let path = workspace.path("input/b.parquet");
    write_parquet(&path, &corpus("b", &[256, 256, 256]), 2);
    workspace.write("increment.yaml", increment("out.run", "day2").to_string());
    let answer = workspace.longsift(&["run", "increment.yaml", "-q"]).success();
    assert_eq!(answer.summary()["rows_in"], 3);
    assert!(answer.stderr.contains("1 file changed since `out.run`"), "{}", answer.stderr);
    assert!(answer.stderr.contains("for example `b.parquet`"), "{}", answer.stderr);
}

#[test]
fn a_renamed_or_copied_file_is_filtered_again_with_a_warning() {
    let workspace = first_day();
    let input = |name: &str| workspace.path(&format!("input/{name}.parquet"));
    fs::copy(input("b"), input("copy")).unwrap();
    workspace.write("increment.yaml", increment("out.run", "day2").to_string());
    let answer = workspace.longsift(&["plan", "increment.yaml"]).success();
    let warning = "1 file equal to one that `out.run` filtered under another name";
    assert!(answer.stderr.contains(warning), "{}", answer.stderr);
    assert!(answer.stderr.contains("for example `copy.parquet`"), "{}", answer.stderr);
}

#[test]
fn repeating_the_first_run_after_an_increment_is_detected() {
    let workspace = first_day();
    add_file(&workspace, "c");
    let second = increment("out.run", "day2");
    assert_eq!(count(&run(&workspace, &second), "rows_in"), 8);
    let before = workspace.hashes(&["day2"]);
    // It reads the file that the increment has filtered.
    assert_eq!(count(&workspace.run(&first()), "rows_in"), 24);
    workspace.write("increment.yaml", second.to_string());
    let refused = workspace.longsift(&["run", "increment.yaml", "-q"]).expect(2).stderr;
    assert!(refused.contains("now includes 1 file that this run filtered"), "{refused}");
    assert!(refused.contains("for example `c.parquet`"), "{refused}");
    assert_eq!(workspace.hashes(&["day2"]), before, "no file is silently lost");
    let fresh = workspace.longsift(&["run", "increment.yaml", "-q", "--fresh"]).success().summary();
    assert_eq!(count(&fresh, "rows_in"), 0);
}

/// Writes files without compression and statistics, whose footers do not depend on their values.
fn plain_file(workspace: &Workspace, path: &str, name: &str) {
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let rows = corpus(name, &[128, 192, 256]);
    let path = workspace.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = fs::File::create(path).unwrap();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_file_with_the_same_name_elsewhere_or_another_time_is_new() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    plain_file(&workspace, "days/1/a.parquet", "x");
    plain_file(&workspace, "days/2/a.parquet", "y");
    let time = |path: &str| fs::metadata(workspace.path(path)).unwrap().modified().unwrap();
    let file = fs::File::options().write(true).open(workspace.path("days/2/a.parquet")).unwrap();
    file.set_modified(time("days/1/a.parquet")).unwrap();
    let of_day = |day: &str, mut pipeline: Pipeline| {
        pipeline.input = pipeline.input.replace("path: input", &format!("path: days/{day}"));
        pipeline
    };
    run(&workspace, &of_day("1", first()));
    workspace.write("increment.yaml", of_day("2", increment("out.run", "day2")).to_string());
    let answer = workspace.longsift(&["run", "increment.yaml", "-q"]).success();
    assert_eq!(count(&answer.summary(), "rows_in"), 3);
    assert!(answer.stderr.contains("filtered in another folder"), "{}", answer.stderr);
    let again = run(&workspace, &of_day("1", increment("out.run", "day1b")));
    assert_eq!((&again["status"], count(&again, "rows_in")), (&json!("nothing_to_do"), 0));
    plain_file(&workspace, "days/1/a.parquet", "z");
    let corrected = run(&workspace, &of_day("1", increment("out.run", "day1c")));
    assert_eq!(count(&corrected, "rows_in"), 3);
}

#[test]
fn drift_is_small_for_more_of_the_same_and_reported() {
    let workspace = first_day();
    for name in ["c", "d"] {
        add_file(&workspace, name);
    }
    let summary = run(&workspace, &increment("out.run", "day2"));
    let drift = &summary["drift"][0];
    assert_eq!(drift["count"], summary["windows_total"]);
    let kept = count(&summary, "kept") as f64 / count(&summary, "windows_total") as f64;
    assert!((drift["kept_fraction"].as_f64().unwrap() - kept).abs() < 1e-12);
    assert!((drift["calibrated_kept_fraction"].as_f64().unwrap() - 0.5).abs() < 0.02);
    assert!(drift["stability_index"].as_f64().unwrap() < 1.0, "{drift}");
    let own = run(&workspace, &first());
    assert!(own.get("drift").is_none(), "a run with its own calibration has nothing to compare");
}

#[test]
fn the_same_corpus_does_not_drift_and_another_one_does() {
    let workspace = first_day();
    let mut same = first().score("calibration: out.run/calibration.json");
    same.output = "path: same".to_owned();
    let index = |summary: &Value| summary["drift"][0]["stability_index"].as_f64().unwrap();
    assert!(index(&run(&workspace, &same)) < 0.02);
    // One repeated token: attention is even, unlike that of the first corpus.
    fs::create_dir_all(workspace.path("other")).unwrap();
    let ids = strings((0..20).map(|row| format!("z-{row}")));
    let flat = table(&[("id", ids), ("tokens", token_lists(&vec![vec![5; 640]; 20]))]);
    write_parquet(&workspace.path("other/z.parquet"), &flat, 4);
    let mut other = same;
    other.input = other.input.replace("path: input", "path: other");
    other.output = "path: other-out".to_owned();
    workspace.write("increment.yaml", other.to_string());
    let answer = workspace.longsift(&["run", "increment.yaml", "-q"]).success();
    assert!(index(&answer.summary()) > 0.25, "{}", answer.summary());
    assert!(answer.stderr.contains("have moved from the calibration"), "{}", answer.stderr);
}

#[test]
fn the_groups_with_the_largest_drift_are_printed() {
    let workspace = first_day();
    let groups = |path: &str| Pipeline {
        output: format!("path: {path}"),
        ..first().score("within: id").filter("keep_fraction: 0.5")
    };
    let ids = || strings((0..110).map(|row| format!("d{row}")));
    let tokens = |last: u32| {
        let document = |row: u32| (0..640).map(|at| at * at % (3 + row % 50)).collect::<Vec<u32>>();
        token_lists(
            &(0..110).map(|row| document(if row == 109 { last } else { row })).collect::<Vec<_>>(),
        )
    };
    for (folder, last) in [("days/one", 109), ("days/two", 0)] {
        fs::create_dir_all(workspace.path(folder)).unwrap();
        let rows = table(&[("id", ids()), ("tokens", tokens(last))]);
        write_parquet(&workspace.path(folder).join("a.parquet"), &rows, 40);
    }
    let of_folder = |folder: &str, pipeline: Pipeline| Pipeline {
        input: pipeline.input.replace("path: input", &format!("path: days/{folder}")),
        ..pipeline
    };
    run(&workspace, &of_folder("one", groups("one")));
    let known = groups("two").score("calibration: one.run/calibration.json");
    workspace.write("pipeline.yaml", of_folder("two", known).to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    let line = answer.summary();
    assert_eq!(
        (line["drift"].as_array().unwrap().len(), count(&line, "drift_left_out")),
        (100, 10)
    );
    assert_eq!(line["drift"][0]["value"], "d109", "only this group differs");
    assert!(answer.stderr.contains("100 more groups with less drift"), "{}", answer.stderr);
    let all = read_json(&workspace.path("two.run/summary.json"));
    assert_eq!(all["drift"].as_array().unwrap().len(), 110);
    assert!(all.get("drift_left_out").is_none(), "{all}");
}

#[test]
fn contradictory_increments_are_rejected() {
    let workspace = first_day();
    let mut uncalibrated = first().input("since: out.run");
    uncalibrated.output = "path: day2".to_owned();
    let mut limited = increment("limited.limit-5.run", "day2");
    limited.score.clear();
    limited = limited.score("calibration: out.run/calibration.json");
    let mut part = first();
    part.output = "path: limited".to_owned();
    workspace.write("part.yaml", part.to_string());
    workspace.longsift(&["run", "part.yaml", "--limit", "5", "-q"]).success();
    fs::create_dir_all(workspace.path("begun.run")).unwrap();
    workspace.write("committing.run/intent.json", "{}");
    let mut committing = increment("committing.run", "day2");
    committing.score = "calibration: out.run/calibration.json".to_owned();
    let mut begun = increment("begun.run", "day2");
    begun.score = "calibration: out.run/calibration.json".to_owned();
    for (pipeline, why) in [
        (uncalibrated, "requires the calibration"),
        (increment("out.run", "out"), "this pipeline's own run"),
        (limited, "filtered 5 of the 16 rows"),
        (begun, "is not finished"),
        (committing, "a commit in `committing.run` is unfinished"),
        (increment("no.run", "day2"), "is not a run directory"),
    ] {
        workspace.write("increment.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["plan", "increment.yaml"]).expect(2);
        assert!(answer.stderr.contains(why), "{}", answer.stderr);
        assert!(
            answer.stderr.contains("since: "),
            "the message quotes the line: {}",
            answer.stderr
        );
    }
}
