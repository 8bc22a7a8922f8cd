//! Changes of pipeline, input or model: what is recomputed, rejected and retained.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::faults::Pause;
use crate::support::tables::{
    corpus, floats, integers, read_parquet, read_scores, texts, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, files_below, read_json};

/// Two files of four documents, each document of two to four windows: 24 windows in total.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for name in ["a", "b"] {
        let path = workspace.path(&format!("input/{name}.parquet"));
        write_parquet(&path, &corpus(name, &[128, 192, 256, 192]), 2);
    }
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64).input("unit_bytes: 1024")
}

/// The results of a run on the current files of the workspace, without reuse.
fn from_scratch(workspace: &Workspace, pipeline: &Pipeline) -> BTreeMap<String, String> {
    let fresh = Workspace::new();
    for name in ["input", "model"] {
        fresh.link(name, &workspace.path(name));
    }
    fresh.run(pipeline);
    fresh.results()
}

#[test]
fn another_selection_does_not_read_the_model() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let scores = workspace.hashes(&["out.run/scores"]);
    // Proves that no weight is read: both the weights and the cached table are removed.
    fs::remove_dir_all(workspace.path("cache")).unwrap();
    let weights = workspace.path("model/model.safetensors");
    let (times, bytes) = (fs::metadata(&weights).unwrap().modified().unwrap(), fs::read(&weights));
    let mut damaged = bytes.as_ref().unwrap().clone();
    let middle = damaged.len() - 64;
    damaged[middle..].fill(0xff);
    fs::write(&weights, &damaged).unwrap();
    File::options().write(true).open(&weights).unwrap().set_modified(times).unwrap();
    let changed = [
        pipeline().score("alpha: 2"),
        pipeline().filter("keep_fraction: 0.25"),
        pipeline().filter("keep_tokens: 640").output("compression: none"),
        pipeline().score("standardise: min-max").output("samples: documents"),
    ];
    for pipeline in changed {
        let summary = workspace.run(&pipeline);
        assert_eq!(
            (&summary["windows_scored"], &summary["windows_reused"]),
            (&json!(0), &json!(24))
        );
        assert_eq!(workspace.hashes(&["out.run/scores"]), scores);
    }
    fs::write(&weights, bytes.unwrap()).unwrap();
    let last = pipeline().score("alpha: 0.1").filter("keep_fraction: 0.75");
    workspace.run(&last);
    assert_eq!(workspace.results(), from_scratch(&workspace, &last));
}

#[test]
fn a_selection_replaces_the_previous_one_completely() {
    let workspace = workspace();
    workspace.run(&pipeline().filter("keep_fraction: 1"));
    assert_eq!(files_below(&workspace.path("out/data")).len(), 4);
    let narrow = pipeline().filter("keep_tokens: 64");
    workspace.run(&narrow);
    let names = files_below(&workspace.path("out/data"));
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].ends_with("train-00000-of-00001.parquet"));
    assert_eq!(workspace.results(), from_scratch(&workspace, &narrow));
}

#[test]
fn changed_score_settings_are_listed_and_need_fresh() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = workspace.hashes(&["out", "out.run"]);
    let mut changed = pipeline().attention("mask: unmasked");
    changed.tokenize = "window_tokens: 32, bos: 1".to_owned();
    workspace.write("pipeline.yaml", changed.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
    let planned = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
    assert!(planned.stderr.contains("error: the scores in "), "{}", planned.stderr);
    let line = planned.stdout.lines().find(|line| line.starts_with("  done ")).unwrap();
    assert!(line.contains("a run would fail: the scores in "), "{line}");
    assert!(line.contains("; window_tokens: 32, was 64; "), "{line}");
    let json = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).expect(2).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["done"]["refused"].as_array().is_some_and(|lines| lines.len() > 2), "{json}");
    let mut after = workspace.hashes(&["out", "out.run"]);
    after.retain(|path, _| !path.ends_with("lock"));
    assert!(after.iter().all(|(path, hash)| before.get(path) == Some(hash)), "no file was changed");
    let summary = workspace.run_with(&changed, &["--fresh"]);
    assert_eq!(summary["windows_reused"], 0);
    assert_eq!(workspace.results(), from_scratch(&workspace, &changed));
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_calibration_replaced_during_a_run_ends_it() {
    let workspace = workspace();
    let calibration = |fraction: f64| {
        workspace.run(&pipeline().filter(&format!("keep_fraction: {fraction}")));
        fs::read(workspace.path("out.run/calibration.json")).unwrap()
    };
    let (first, second) = (calibration(0.5), calibration(0.25));
    assert_ne!(first, second);
    let calibrated = pipeline().score("calibration: saved.json");
    workspace.write("pipeline.yaml", calibrated.to_string());
    let command = |output: &'static str| ["run", "pipeline.yaml", "-q", "--set", output];
    workspace.write("saved.json", &first);
    let pause = Pause { matching: "create other.run/units/", at: 2 };
    let mut run = workspace.start_paused(&command("output.path=other"), &pause);
    run.wait_for_pause();
    workspace.write("new.json", &second);
    fs::rename(workspace.path("new.json"), workspace.path("saved.json")).unwrap();
    let refused = run.resume().expect(4).stderr;
    let message = "the calibration `saved.json` was replaced while this run used it";
    assert!(refused.contains(message), "{refused}");
    assert!(refused.contains("hint: run again: the run then uses the current"), "{refused}");
    assert!(!workspace.path("other/data").exists(), "nothing is committed");
    let again = workspace.longsift(&command("output.path=other")).success().summary();
    assert_eq!((&again["windows_scored"], &again["windows_reused"]), (&json!(0), &json!(24)));
    workspace.longsift(&command("output.path=undisturbed")).success();
    let data = |output: &str| workspace.hashes(&[&format!("{output}/data")]).into_values();
    assert!(data("other").eq(data("undisturbed")));
}

#[test]
fn fresh_keeps_foreign_files() {
    let workspace = workspace();
    workspace.run(&pipeline());
    workspace.write("out/README.md", "mine");
    workspace.run_with(&pipeline(), &["--fresh"]);
    assert_eq!(fs::read(workspace.path("out/README.md")).unwrap(), b"mine");
    // A Parquet file that no run wrote would be read as output.
    fs::copy(workspace.path("input/a.parquet"), workspace.path("out/data/mine.parquet")).unwrap();
    let before = workspace.results();
    for fresh in [&["--fresh"][..], &[]] {
        let arguments = [&["run", "pipeline.yaml"], fresh].concat();
        let answer = workspace.longsift(&arguments).expect(2);
        assert!(answer.stderr.contains("mine.parquet"), "{}", answer.stderr);
        let planned = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
        assert!(planned.stderr.contains("mine.parquet"), "{}", planned.stderr);
        assert_eq!(workspace.results(), before, "a refused run has removed nothing");
    }
}

#[test]
fn damaged_records_are_named_and_fresh_works() {
    for record in ["manifest.json", "pipeline.lock", "intent.json"] {
        let workspace = workspace();
        workspace.run(&pipeline());
        let expected = workspace.results();
        workspace.write(&format!("out.run/{record}"), "{ torn");
        for command in ["plan", "run"] {
            let answer = workspace.longsift(&[command, "pipeline.yaml"]).expect(3);
            assert!(answer.stderr.contains(record), "{}", answer.stderr);
            let remedy = if record == "pipeline.lock" { "remove it" } else { "--fresh" };
            assert!(answer.stderr.contains(remedy), "{}", answer.stderr);
        }
        if record == "pipeline.lock" {
            fs::remove_file(workspace.path("out.run/pipeline.lock")).unwrap();
            assert_eq!(count(&workspace.run(&pipeline()), "windows_scored"), 0);
            continue;
        }
        if record == "manifest.json" {
            // Only this file lists our data files.
            fs::remove_dir_all(workspace.path("out/data")).unwrap();
        }
        workspace.run_with(&pipeline(), &["--fresh"]);
        assert_eq!(workspace.results(), expected);
    }
}

#[test]
fn only_the_windows_of_an_added_file_are_measured() {
    let workspace = workspace();
    workspace.run(&pipeline());
    // Sorted before the others: indices of parts and units change, scores do not.
    let path = workspace.path("input/A.parquet");
    write_parquet(&path, &corpus("new", &[64, 640]), 1);
    let summary = workspace.run(&pipeline());
    assert_eq!((count(&summary, "windows_scored"), count(&summary, "windows_reused")), (11, 24));
    assert_eq!(workspace.results(), from_scratch(&workspace, &pipeline()));
    fs::remove_file(path).unwrap();
    let summary = workspace.run(&pipeline());
    assert_eq!((count(&summary, "windows_scored"), count(&summary, "windows_reused")), (0, 24));
    assert_eq!(workspace.results(), from_scratch(&workspace, &pipeline()), "the file is gone");
}

#[test]
fn only_the_units_of_a_changed_file_are_measured() {
    let workspace = workspace();
    workspace.run(&pipeline());
    write_parquet(&workspace.path("input/b.parquet"), &corpus("other", &[64, 192, 128, 320]), 2);
    let summary = workspace.run(&pipeline());
    assert_eq!((count(&summary, "windows_scored"), count(&summary, "windows_reused")), (11, 12));
    assert_eq!(workspace.results(), from_scratch(&workspace, &pipeline()));
}

#[test]
fn a_touched_model_is_unchanged_and_other_weights_are_rejected() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let weights = workspace.path("model/model.safetensors");
    let tomorrow = SystemTime::now() + Duration::from_hours(24);
    File::options().write(true).open(&weights).unwrap().set_modified(tomorrow).unwrap();
    assert_eq!(workspace.run(&pipeline())["status"], "nothing_to_do");
    // Without the cached table the weights are read again; they are the same.
    fs::remove_dir_all(workspace.path("cache")).unwrap();
    File::options()
        .write(true)
        .open(&weights)
        .unwrap()
        .set_modified(tomorrow + Duration::from_secs(1))
        .unwrap();
    assert_eq!(workspace.run(&pipeline())["status"], "nothing_to_do");
    Tiny::new().seed(2).write(&workspace.path("model"));
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("weights: "), "{}", answer.stderr);
    let summary = workspace.run_with(&pipeline(), &["--fresh"]);
    assert_eq!(summary["windows_scored"], 24);
    assert_eq!(workspace.results(), from_scratch(&workspace, &pipeline()));
}

#[test]
fn scores_of_another_run_are_selected_from() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let mut other = pipeline().score("alpha: 3").filter("keep_fraction: 0.3");
    other.output = "path: elsewhere/two".to_owned();
    let summary = workspace.run_with(&other, &["--scores-from", "out.run"]);
    assert_eq!((&summary["windows_scored"], &summary["windows_reused"]), (&json!(0), &json!(24)));
    let direct = Workspace::new();
    for name in ["input", "model"] {
        direct.link(name, &workspace.path(name));
    }
    direct.run(&other);
    assert_eq!(workspace.hashes(&["elsewhere/two/data"]), direct.hashes(&["elsewhere/two/data"]));
    // The manifest records where the scores are now.
    let again = |scores: &str| workspace.run_with(&other, &["--scores-from", scores]);
    assert_eq!(again("out.run")["status"], "nothing_to_do");
    fs::rename(workspace.path("out.run"), workspace.path("moved.run")).unwrap();
    assert_eq!(again("moved.run")["status"], "done");
    workspace.longsift(&["verify", "elsewhere/two.run"]).success();
    fs::rename(workspace.path("moved.run"), workspace.path("out.run")).unwrap();
    // Scores of other settings, or of a changed input, are rejected.
    let mut wider = other;
    wider.tokenize = "window_tokens: 128, bos: 0".to_owned();
    workspace.write("wider.yaml", wider.to_string());
    let answer = workspace.longsift(&["run", "wider.yaml", "--scores-from", "out.run"]).expect(2);
    assert!(answer.stderr.contains("window_tokens: 128, was 64"), "{}", answer.stderr);
    write_parquet(&workspace.path("input/c.parquet"), &corpus("c", &[64]), 1);
    workspace.longsift(&["run", "pipeline.yaml", "--scores-from", "out.run"]).expect(2);
    workspace.longsift(&["run", "pipeline.yaml", "--scores-from", "nowhere.run"]).expect(2);
}

#[test]
fn a_trial_is_kept_next_to_the_run() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = workspace.results();
    for (rows, windows) in [(3, 9), (2, 5)] {
        let summary = workspace.run_with(&pipeline(), &["--limit", &rows.to_string()]);
        assert_eq!((count(&summary, "rows_in"), count(&summary, "windows_total")), (rows, windows));
        let trial = format!("out.limit-{rows}.run");
        assert!(summary["run_dir"].as_str().unwrap().ends_with(&trial), "{summary}");
        workspace.longsift(&["verify", &trial]).success();
    }
    let of_trials = |path: &String| path.starts_with("out.limit-");
    let now: BTreeMap<_, _> =
        workspace.results().into_iter().filter(|(path, _)| !of_trials(path)).collect();
    assert_eq!(now, before, "the output of the whole corpus is unchanged");
    workspace.longsift(&["verify", "out.run"]).success();
    assert_eq!(workspace.run(&pipeline())["status"], "nothing_to_do");
}

#[test]
fn a_locked_run_rejects_changes() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "--locked"]).expect(2);
    assert!(answer.stderr.contains("` not found"), "{}", answer.stderr);
    workspace.longsift(&["lock", "pipeline.yaml"]).success();
    let lock = fs::read_to_string(workspace.path("pipeline.lock")).unwrap();
    assert!(!lock.contains(workspace.path("").to_str().unwrap()), "a lock has no absolute paths");
    // Another input file is not a difference, another setting is.
    write_parquet(&workspace.path("input/c.parquet"), &corpus("c", &[64]), 1);
    assert_eq!(workspace.run_with(&pipeline(), &["--locked"])["status"], "done");
    let arguments =
        ["run", "pipeline.yaml", "--locked", "--set", "stages.filter.keep_fraction=0.25"];
    let answer = workspace.longsift(&arguments).expect(2);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
    Tiny::new().seed(3).write(&workspace.path("model"));
    let before = workspace.results();
    let answer = workspace.longsift(&["run", "pipeline.yaml", "--locked", "--fresh"]).expect(2);
    assert!(answer.stderr.contains("weights: "), "{}", answer.stderr);
    assert_eq!(workspace.results(), before, "a refused run has removed nothing");
}

#[test]
fn an_unused_measure_does_not_change_the_calibration() {
    let workspace = workspace();
    workspace.run(&pipeline());
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let mut more = pipeline().measure("lexical").score("calibration: saved.json");
    more.output = "path: more".to_owned();
    let kept = count(&workspace.run(&more), "kept");
    assert_eq!(kept, read_parquet(&workspace.path("out/data")).num_rows() as u64);
    // The same if the calibration was made with such a measure: by the same pipeline, and by one without it.
    let mut own = pipeline().measure("lexical");
    own.output = "path: own".to_owned();
    workspace.run(&own);
    fs::copy(workspace.path("own.run/calibration.json"), workspace.path("saved.json")).unwrap();
    for (name, mut again) in [("with", pipeline().measure("lexical")), ("without", pipeline())] {
        again = again.score("calibration: saved.json");
        again.output = format!("path: {name}");
        assert_eq!(count(&workspace.run(&again), "kept"), kept, "{name}");
    }
}

type Change = fn(&mut Value);

#[test]
fn an_incomplete_calibration_is_rejected_at_plan() {
    let workspace = workspace();
    workspace.run(&pipeline().measure("lexical"));
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let terms = |terms: &str| format!("calibration: saved.json, terms: [{terms}]");
    let strength = "statistic: dependency_strength";
    let percentile = format!("{{{strength}, standardise: percentile}}");
    for (score, filter, missing) in [
        (terms("{statistic: unique_token_share}"), None, "statistics of `unique_token_share`"),
        (terms(&percentile), None, "the histogram of `dependency_strength`"),
        (
            terms(&format!("{{{strength}}}")),
            Some("guards: [{statistic: dependency_strength, min: 0}]"),
            "the bounds of 1 guard (it has 0",
        ),
    ] {
        let wrong = pipeline().measure("lexical").score(&score);
        let wrong = filter.map_or_else(|| wrong.clone(), |filter| wrong.clone().filter(filter));
        workspace.write("wrong.yaml", wrong.to_string());
        let message = workspace.longsift(&["plan", "wrong.yaml"]).expect(2).to_text();
        assert!(message.contains(missing) && message.contains("wrong.yaml:"), "{message}");
        assert!(message.contains("calibrate again"), "{message}");
    }
    let text = fs::read_to_string(workspace.path("saved.json")).unwrap();
    let text = text.replacen("\"standard_deviation\": ", "\"standard_deviation\": -", 1);
    fs::write(workspace.path("saved.json"), text).unwrap();
    workspace.write("wrong.yaml", pipeline().score("calibration: saved.json").to_string());
    let message = workspace.longsift(&["plan", "wrong.yaml"]).expect(2).to_text();
    assert!(message.contains("no values of `dependency_strength` have this mean"), "{message}");
    let changes: [(Change, &str); 2] = [
        (|saved| saved["groups"][0]["threshold"] = json!(1), "unknown field `threshold`"),
        (|saved| saved["groups"] = json!([saved["groups"][0], saved["groups"][0]]), "twice"),
    ];
    for (change, why) in changes {
        refuses_at_plan(&workspace, change, why);
    }
}

#[test]
fn a_calibration_of_other_settings_is_rejected_at_plan() {
    let workspace = workspace();
    let tokens = || {
        Pipeline::tokens("", 64)
            .without_model(None)
            .measure("lexical")
            .score("terms: [{statistic: unique_token_share}]")
            .filter("keep_fraction: 0.5, guards: [{statistic: unique_token_share, max: 0.9}]")
    };
    workspace.run(&tokens());
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let saved = "stages.score.calibration=saved.json";
    workspace
        .write("again.yaml", Pipeline { output: "path: again".into(), ..tokens() }.to_string());
    workspace.longsift(&["plan", "again.yaml", "--set", saved]).success();
    for (set, line) in [
        ("stages.score.terms=[{statistic: unique_token_share, weight: 2}]", "weight"),
        ("stages.score.within=id", "within"),
        ("stages.filter.guards=[{statistic: unique_token_share, max: 0.8}]", "guards"),
        ("stages.tokenize.window_tokens=32", "window_tokens: 32, was 64"),
        ("output.samples=documents", "samples"),
    ] {
        let plan = workspace.longsift(&["plan", "again.yaml", "--set", saved, "--set", set]);
        let message = plan.expect(2).to_text();
        assert!(message.contains("was made with other settings"), "{set}: {message}");
        assert!(message.contains(line), "{set}: {message}");
    }
    // The identity of a model that was never read is unknown; the rest is known.
    workspace.run(&pipeline());
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let new = Pipeline { output: "path: new".into(), ..pipeline() };
    workspace.write("again.yaml", new.to_string());
    workspace.longsift(&["plan", "again.yaml", "--set", saved]).success();
    let set = "stages.tokenize.window_tokens=32";
    let message = workspace.longsift(&["plan", "again.yaml", "--set", saved, "--set", set]);
    assert!(message.expect(2).to_text().contains("was made with other settings"));
}

#[test]
fn a_changed_minimum_window_is_explained() {
    let workspace = workspace();
    let short = |distance: u32| {
        let short = Pipeline::tokens("", 64).without_model(None).measure("lexical");
        let tokenize = format!("{}, short_documents: score", short.tokenize);
        Pipeline { tokenize, ..short }
            .measure(&format!("recurrence, min_distance_tokens: {distance}"))
            .score("terms: [{statistic: unique_token_share}]")
    };
    workspace.run(&short(8));
    workspace.write("pipeline.yaml", short(16).to_string());
    let message = workspace.longsift(&["run", "pipeline.yaml", "--remeasure", "recurrence"]);
    let message = message.expect(2).to_text();
    assert!(
        message
            .contains("shortest window that is measured, in tokens: 17, was 9, for `recurrence`"),
        "{message}"
    );
}

/// Checks that `wrong.yaml` is rejected with the run's calibration, modified by `change`.
fn refuses_at_plan(workspace: &Workspace, change: Change, why: &str) {
    let mut saved = read_json(&workspace.path("out.run/calibration.json"));
    change(&mut saved);
    workspace.write("saved.json", saved.to_string());
    let message = workspace.longsift(&["plan", "wrong.yaml"]).expect(2).to_text();
    assert!(message.contains(why) && message.contains("wrong.yaml:"), "{why}: {message}");
}

#[test]
fn a_contradictory_calibration_is_rejected_at_plan() {
    let workspace = workspace();
    let score = "terms: [{statistic: dependency_strength, standardise: percentile}]";
    let pipeline = || {
        pipeline().filter(
            "keep_fraction: 0.5, guards: [{statistic: dependency_strength, min_quantile: 0.01}]",
        )
    };
    workspace.run(&pipeline().score(score));
    let calibrated = pipeline().score(&format!("{score}, calibration: saved.json"));
    let calibrated = Pipeline { output: "path: again".to_owned(), ..calibrated };
    workspace.write("wrong.yaml", calibrated.to_string());
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    workspace.longsift(&["plan", "wrong.yaml"]).success();
    let changes: [(Change, &str); 17] = [
        (
            |saved| bins(saved, "0:1 4095:1".to_owned()),
            "in group (null): the bins of the histogram of `dependency_strength` hold 2 samples, but 24 have a score",
        ),
        (
            |saved| bins(saved, format!("0:1 4095:{}", u64::MAX - 1)),
            "hold 18446744073709551615 samples, but 24 have a score",
        ),
        (|saved| bins(saved, format!("0:2 4095:{}", u64::MAX)), "bin 4095 cannot hold"),
        (
            |saved| saved["groups"][0]["histograms"]["dependency_strength"]["highest"] = json!(7),
            "and 7e0, but its minimum and maximum differ",
        ),
        (
            |saved| saved["groups"][0]["score_parts"][3] = json!(u64::MAX),
            "expected 10 `score_parts` with a sum of 24, got 10 with a sum of 18446744073709551615",
        ),
        (|saved| saved["groups"][0]["count"] = json!(25), "a sum of 25, got 10 with a sum of 24"),
        (|saved| saved["groups"][0]["score_parts"] = json!([8, 8, 8]), "got 3 with a sum of 24"),
        (
            |saved| saved["groups"][0]["score_deciles"].as_array_mut().unwrap().reverse(),
            "its `score_deciles` do not ascend",
        ),
        (
            |saved| saved["groups"][0]["score_deciles"] = json!([]),
            "it has 0 deciles, but 24 samples have a score",
        ),
        (
            |saved| saved["groups"][0]["thresholds"][0]["score"] = Value::Null,
            "samples are kept, but it has no threshold",
        ),
        (
            |saved| saved["groups"][0]["guards"][0] = json!({"low": 0.9, "high": 0.1}),
            "the lower bound of a guard, 9e-1, is above its upper bound, 1e-1",
        ),
        (
            |saved| saved["groups"][0]["guards"][0] = json!({"low": null, "high": 1}),
            "does not have the quantile bound of the guard on `dependency_strength`",
        ),
        (
            |saved| {
                saved["groups"][0]["figures"]["dependency_strength"] =
                    json!({"mean": 0.5, "standard_deviation": -0.1, "min": 0.5, "max": 0.5});
            },
            "this mean, standard deviation, minimum and maximum: 5e-1, -1e-1, 5e-1 and 5e-1",
        ),
        (
            |saved| saved["groups"][0]["figures"]["dependency_strength"]["mean"] = json!(2),
            "no values of `dependency_strength` have this mean, standard deviation, minimum and maximum: 2e0,",
        ),
        (
            |saved| {
                saved["groups"][0]["figures"]["dependency_strength"]["standard_deviation"] =
                    json!(0);
            },
            "no values of `dependency_strength` have this mean",
        ),
        (
            |saved| saved["groups"][0]["kept"] = json!(25),
            "25 samples are kept, but only 24 have a score",
        ),
        (
            |saved| saved["groups"][0]["thresholds"][0]["ties_kept"] = json!(9),
            "9 of 1 samples with the score of a threshold are kept",
        ),
    ];
    for (change, why) in changes {
        refuses_at_plan(&workspace, change, why);
    }
}

fn bins(saved: &mut Value, bins: String) {
    saved["groups"][0]["histograms"]["dependency_strength"]["bins"] = bins.into();
}

#[test]
fn a_saved_calibration_scores_an_increment_like_the_corpus_before_it() {
    let workspace = workspace();
    workspace.run(&pipeline().score("alpha: 0.7"));
    let calibration = read_json(&workspace.path("out.run/calibration.json"));
    let group = &calibration["groups"][0];
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let mut increment = pipeline().score("alpha: 0.7, calibration: saved.json");
    increment.input = increment.input.replace("path: input", "path: increment");
    increment.output = "path: next".to_owned();
    write_parquet(&workspace.path("increment/d.parquet"), &corpus("d", &[256, 320, 640]), 1);
    let summary = workspace.run(&increment);
    let scores = read_scores(&workspace.path("next.run"));
    let scale = |name: &str, column: &str| group["figures"][column][name].as_f64().unwrap();
    let expected: Vec<f64> = floats(&scores, "dependency_strength")
        .into_iter()
        .zip(floats(&scores, "far_variance"))
        .map(|(strength, variance)| {
            let z = |value: f64, column: &str| {
                (value - scale("mean", column)) / scale("standard_deviation", column)
            };
            z(strength, "dependency_strength") - 0.7 * z(variance, "far_variance")
        })
        .collect();
    let threshold = group["thresholds"][0]["score"].as_f64().unwrap();
    let kept: Vec<usize> = (0..expected.len()).filter(|row| expected[*row] >= threshold).collect();
    assert!(!kept.is_empty() && kept.len() < expected.len(), "{expected:?} at {threshold}");
    assert_eq!(count(&summary, "kept"), kept.len() as u64);
    let output = read_parquet(&workspace.path("next/data"));
    for (row, got) in kept.into_iter().zip(floats(&output, "longsift_score")) {
        assert!((got - expected[row]).abs() < 1e-9, "{got} for {}", expected[row]);
    }
    assert_eq!(texts(&output, "id").len(), integers(&output, "longsift_window").len());
    check_that_other_settings_and_groups_are_refused(&workspace, &increment);
}

fn check_that_other_settings_and_groups_are_refused(workspace: &Workspace, increment: &Pipeline) {
    let mut other = increment.clone();
    other.score = other.score.replace("0.7", "0.8");
    other.output = "path: third".to_owned();
    workspace.write("other.yaml", other.to_string());
    let answer = workspace.longsift(&["run", "other.yaml"]).expect(2);
    assert!(answer.stderr.contains("alpha: 0.8, was 0.7"), "{}", answer.stderr);
    let measured = files_below(&workspace.path("third.run/scores"));
    assert!(measured.is_empty(), "refused before anything is measured: {measured:?}");
    let mut saved = read_json(&workspace.path("saved.json"));
    saved["groups"][0]["value"] = json!("another");
    workspace.write("saved.json", saved.to_string());
    other.score = other.score.replace("0.8", "0.7");
    workspace.write("other.yaml", other.to_string());
    let answer = workspace.longsift(&["run", "other.yaml"]).expect(2);
    assert!(answer.stderr.contains("group"), "{}", answer.stderr);
    workspace.write("saved.json", Value::Null.to_string());
    for command in ["plan", "run"] {
        let answer = workspace.longsift(&[command, "other.yaml"]).expect(2);
        assert!(answer.stderr.contains("`saved.json` is not a calibration"), "{}", answer.stderr);
        assert!(answer.stderr.contains("other.yaml:"), "{}", answer.stderr);
    }
    fs::remove_file(workspace.path("saved.json")).unwrap();
    let answer = workspace.longsift(&["plan", "other.yaml"]).expect(2);
    assert!(
        answer.stderr.contains("calibration `saved.json` not found")
            && answer.stderr.contains("other.yaml:"),
        "{}",
        answer.stderr
    );
    assert!(!workspace.path("third").exists());
}
