//! A run directory can be verified, compared with another, and repeated from its manifest.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use arrow_array::{Array, RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use serde_json::{Value, json};

use crate::support::damage::{Raw, write_raw};
use crate::support::faults::Pause;
use crate::support::tables::{
    corpus, floats, read_scores, strings, table, token_lists, write_parquet,
};
use crate::support::{
    Pipeline, Tiny, Workspace, count, demo_model, files_below, read_json, result_folders,
};

/// Two files, a document that is dropped and one that is quarantined.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[192, 30, 128, 0]), 2);
    write_parquet(&workspace.path("input/b.parquet"), &corpus("b", &[256, 64]), 8);
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64).input("max_quarantined_fraction: 0.5")
}

fn verified(workspace: &Workspace, code: i32) -> Value {
    let answer = workspace.longsift(&["verify", "out.run", "--format", "json"]).expect(code);
    serde_json::from_str(&answer.stdout).unwrap()
}

fn findings(verification: &Value) -> Vec<(String, String)> {
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = verification["findings"].as_array().unwrap();
    findings.iter().map(|finding| (text(finding, "what"), text(finding, "message"))).collect()
}

#[test]
fn an_unchanged_run_is_verified() {
    for samples in ["windows", "documents"] {
        let workspace = workspace();
        workspace.run(&pipeline().output(&format!("samples: {samples}")));
        let found = verified(&workspace, 0);
        assert_eq!((&found["findings"], &found["finished"]), (&json!([]), &json!(true)));
        assert_eq!((&found["rows"], &found["table"]), (&json!(6), &json!("intact")));
        let committed = result_folders("out");
        let committed: Vec<&str> = committed.iter().map(String::as_str).collect();
        // In addition the calibration, the events, the lock, the manifest, the plan and the summary.
        assert_eq!(found["files"], workspace.hashes(&committed).len() + 6);
        let text = workspace.longsift(&["verify", "out.run"]).success().stdout;
        assert!(text.starts_with("OK: all files match the manifest\n"), "{text}");
    }
}

#[test]
fn a_changed_byte_in_any_committed_file_is_found() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let committed = result_folders("out");
    let mut files: Vec<_> =
        committed.iter().flat_map(|folder| files_below(&workspace.path(folder))).collect();
    assert!(files.len() > 6);
    for name in ["calibration.json", "events.jsonl", "summary.json"] {
        files.push(workspace.path(&format!("out.run/{name}")));
    }
    for path in files {
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        bytes[whole.len() / 2] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let found = findings(&verified(&workspace, 3));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            path.ends_with(&found[0].0) && found[0].1.starts_with("expected SHA-256 "),
            "{found:?}"
        );
        fs::write(&path, &whole[1..]).unwrap();
        // Later runs append to the log, so only its beginning has a digest.
        let expected =
            if path.ends_with("events.jsonl") { "expected SHA-256 " } else { "bytes, got " };
        assert!(findings(&verified(&workspace, 3))[0].1.contains(expected));
        fs::remove_file(&path).unwrap();
        assert_eq!(findings(&verified(&workspace, 3))[0].1, "the file is missing");
        fs::write(&path, &whole).unwrap();
    }
    // What the hint of `verify` says for files that can be written again.
    let mut written = files_below(&workspace.path("out/data"));
    written.extend(files_below(&workspace.path("out.run/selection")));
    for name in ["calibration.json", "events.jsonl", "pipeline.lock"] {
        written.push(workspace.path("out.run").join(name));
    }
    for path in written {
        let name = path.display();
        fs::remove_file(&path).unwrap();
        let hint = workspace.longsift(&["verify", "out.run"]).expect(3).stdout;
        assert!(
            hint.contains("remove these files if they exist, and run again: `longsift run "),
            "{name}: {hint}"
        );
        assert!(!hint.contains("--fresh"), "{name}: {hint}");
        let again = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
        assert_eq!(count(&again, "windows_scored"), 0, "{name}");
        verified(&workspace, 0);
    }
    let lock = workspace.path("out.run/pipeline.lock");
    let text = fs::read_to_string(&lock).unwrap();
    for (change, message) in [
        (
            Some(text.replace("\"keep_fraction\": 0.5", "\"keep_fraction\": 0.75")),
            "the digest in the file does not match its content",
        ),
        (Some(text[1..].to_owned()), "cannot be read"),
        (None, "the file is missing"),
    ] {
        match change {
            Some(changed) => fs::write(&lock, changed).unwrap(),
            None => fs::remove_file(&lock).unwrap(),
        }
        let found = findings(&verified(&workspace, 3));
        assert!(found.len() == 1 && found[0].0 == "pipeline.lock", "{found:?}");
        assert!(found[0].1.contains(message), "{found:?}");
        fs::write(&lock, &text).unwrap();
    }
    // A damaged fact is not taken for another setting.
    let damaged = text.replacen("\"windows_version\": ", "\"windows_version\": 1", 1);
    assert_ne!(damaged, text);
    fs::write(&lock, damaged).unwrap();
    let message = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3).stderr;
    assert!(message.contains("was changed after it was written"), "{message}");
    fs::remove_file(&lock).unwrap();
    let again = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!(count(&again, "windows_scored"), 0);
    verified(&workspace, 0);
}

#[test]
fn foreign_files_and_changed_records_are_found() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let stranger = workspace.write("out/data/train-00009-of-00009.parquet", "of another run");
    let found = findings(&verified(&workspace, 3));
    assert_eq!(found[0].1, "not listed in any record of the run");
    fs::remove_file(stranger).unwrap();
    let record = &files_below(&workspace.path("out.run/units"))[0];
    let whole = fs::read(record).unwrap();
    let mut json = read_json(record);
    json["counts"]["rows"] = json!(77);
    fs::write(record, json.to_string()).unwrap();
    let found = findings(&verified(&workspace, 3));
    assert!(found[0].0.starts_with("units/"), "{found:?}");
    let listed = fs::read(workspace.path("out.run/manifest.json")).unwrap();
    fs::remove_file(workspace.path("out.run/manifest.json")).unwrap();
    let found = findings(&verified(&workspace, 3));
    assert!(found.iter().any(|(name, _)| name.starts_with("units/")), "{found:?}");
    fs::write(workspace.path("out.run/manifest.json"), listed).unwrap();
    fs::write(record, whole).unwrap();
    fs::remove_file(workspace.path("out.run/_SUCCESS")).unwrap();
    assert_eq!(
        findings(&verified(&workspace, 3)),
        [("_SUCCESS".into(), "the file is missing".into())]
    );
}

#[test]
fn an_edited_record_is_named_and_not_called_a_bug() {
    let workspace = workspace();
    workspace.run(&pipeline());
    for (name, key, value) in [
        ("summary.json", "kept", json!(77)),
        ("summary.json", "seconds", json!(0.5)),
        ("manifest.json", "committed", json!("2026-01-01T00:00:00Z")),
        ("manifest.json", "units", json!([])),
        ("plan.json", "estimate", json!({})),
        ("pipeline.lock", "model", json!({ "identity": "a", "weights": "b" })),
    ] {
        let path = workspace.path(&format!("out.run/{name}"));
        let whole = fs::read(&path).unwrap();
        let mut json = read_json(&path);
        assert_ne!(json[key], value, "{name}: {key}");
        json[key] = value;
        fs::write(&path, json.to_string()).unwrap();
        let answer = workspace.longsift(&["verify", "out.run"]).expect(3).stdout;
        assert!(answer.contains(&format!("{name}: ")), "{key}: {answer}");
        let is_rewritten = ["plan.json", "pipeline.lock"].contains(&name);
        let next = if is_rewritten { "the next run writes it again" } else { "`--fresh`" };
        let is_sealed = answer.contains("the digest in the file does not match its content");
        assert!(!is_sealed || answer.contains(next), "{key}: {answer}");
        assert!(!answer.contains("bug"), "{key}: {answer}");
        fs::write(&path, &whole[1..]).unwrap();
        let answer = workspace.longsift(&["verify", "out.run"]).expect(3);
        assert!(format!("{}{}", answer.stdout, answer.stderr).contains(name));
        fs::write(&path, whole).unwrap();
    }
    verified(&workspace, 0);
    // Another run restores the files that no result depends on.
    for name in ["plan.json", "summary.json"] {
        workspace.write(&format!("out.run/{name}"), "{}");
        verified(&workspace, 3);
        workspace.run(&pipeline());
        verified(&workspace, 0);
    }
    fs::remove_file(workspace.path("out.run/pipeline.lock")).unwrap();
    verified(&workspace, 3);
    workspace.run(&pipeline());
    verified(&workspace, 0);
}

#[test]
fn a_manifest_that_does_not_match_its_digest_is_not_used() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let text = fs::read_to_string(workspace.path("out.run/manifest.json")).unwrap();
    let digit = text.find("\"modified_ns\": ").unwrap() + "\"modified_ns\": ".len();
    let changed = format!("{}9{}", &text[..digit], &text[digit + 1..]);
    assert_ne!(changed, text);
    workspace.write("out.run/manifest.json", changed);
    let mut increment =
        pipeline().input("since: out.run").score("calibration: out.run/calibration.json");
    increment.output = "path: later".to_owned();
    workspace.write("increment.yaml", increment.to_string());
    for arguments in [
        &["run", "pipeline.yaml", "-q"][..],
        &["run", "out.run", "-q"],
        &["run", "increment.yaml", "-q"],
        &["report", "out.run"],
        &["whatif", "out.run"],
        &["diff", "out.run", "out.run"],
    ] {
        let answer = workspace.longsift(arguments).expect(3);
        let says =
            "manifest.json` cannot be read: the digest in the file does not match its content";
        assert!(answer.stderr.contains(says), "{arguments:?}: {}", answer.stderr);
    }
    assert!(!workspace.path("later").exists());
    verified(&workspace, 3);
    workspace.longsift(&["run", "out.run", "-q", "--fresh"]).success();
    verified(&workspace, 0);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_interrupted_commit_is_finished_and_not_called_damage() {
    const WIDER: [&str; 5] =
        ["run", "pipeline.yaml", "-q", "--set", "stages.filter.keep_fraction=0.9"];
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    for arguments in [&WIDER[..3], &WIDER] {
        workspace.run_until_killed(arguments, "rename out/data", 2);
        let answer = workspace.longsift(&["verify", "out.run"]).expect(3).stdout;
        assert!(answer.starts_with("intent.json: a commit was interrupted"), "{answer}");
        assert!(!answer.contains("--fresh") && !answer.contains("remove"), "{answer}");
        assert!(answer.contains("run the command that was interrupted again"), "{answer}");
        if workspace.path("out.run/manifest.json").exists() {
            let refused = workspace.longsift(&["plan", "out.run"]).expect(2).stderr;
            assert!(refused.contains("a commit in `out.run` was interrupted"), "{refused}");
        }
        workspace.longsift(arguments).success();
        verified(&workspace, 0);
        let undisturbed = self::workspace();
        undisturbed.write("pipeline.yaml", pipeline().to_string());
        undisturbed.longsift(arguments).success();
        assert_eq!(workspace.hashes(&["out/data"]), undisturbed.hashes(&["out/data"]));
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_running_commit_is_not_called_damage() {
    const WIDER: [&str; 5] =
        ["run", "pipeline.yaml", "-q", "--set", "stages.filter.keep_fraction=0.9"];
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    for arguments in [&WIDER[..3], &WIDER] {
        for (matching, at) in [("rename out/data", 2), ("rename out.run/_SUCCESS", 1)] {
            let workspace = Workspace::copy_of(&workspace);
            let mut run = workspace.start_paused(arguments, &Pause { matching, at });
            run.wait_for_pause();
            let answer = workspace.longsift(&["verify", "out.run"]).expect(4).to_text();
            assert!(answer.contains("out.run` is in use by a run"), "{matching}: {answer}");
            assert!(answer.contains("hint: verify it after the run has ended"), "{answer}");
            assert!(!answer.contains("--fresh") && !answer.contains("intent.json"), "{answer}");
            let second = workspace.longsift(&["run", "out.run", "-q"]).expect(4).stderr;
            assert!(second.contains("out.run` is in use by"), "{matching}: {second}");
            run.resume().success();
            verified(&workspace, 0);
        }
        workspace.longsift(arguments).success();
    }
}

#[test]
fn tables_exchanged_after_the_commit_are_refused() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let other = ["run", "pipeline.yaml", "-q", "--set", "output.path=other", "--set"];
    workspace.longsift(&[&other[..], &["stages.filter.keep_fraction=0.9"]].concat()).success();
    let read: [&[&str]; 4] = [
        &["report", "out.run"],
        &["whatif", "out.run", "--set", "stages.filter.keep_fraction=0.9"],
        &["explain", "out.run", "a-2#0"],
        &["diff", "out.run", "other.run"],
    ];
    for folder in ["selection", "dropped"] {
        let workspace = Workspace::copy_of(&workspace);
        for path in files_below(&workspace.path(&format!("out.run/{folder}"))) {
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
        for arguments in read {
            let answer = workspace.longsift(arguments).expect(3);
            let says = [&format!("`out.run/{folder}/"), "was changed after the commit"];
            let says = says.into_iter().all(|says| answer.stderr.contains(says));
            assert!(says, "{arguments:?}: {}", answer.stderr);
        }
        if folder == "dropped" {
            // The fix that the hint names.
            let refused = workspace.longsift(&["run", "pipeline.yaml"]).expect(3).stderr;
            assert!(refused.contains("hint: remove the file and run again"), "{refused}");
            fs::remove_dir_all(workspace.path("out.run/dropped")).unwrap();
        }
        assert_eq!(workspace.run(&pipeline())["status"], "done");
        verified(&workspace, 0);
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_commit_while_a_selection_is_read_is_noticed() {
    let before = workspace();
    before.run(&pipeline());
    let other = ["run", "pipeline.yaml", "-q", "--set", "stages.filter.keep_fraction=0.9"];
    let read: [&[&str]; 3] = [
        &["report", "out.run"],
        &["whatif", "out.run", "--set", "stages.filter.keep_fraction=0.5"],
        &["diff", "out.run", "out.run"],
    ];
    for arguments in read {
        let workspace = Workspace::copy_of(&before);
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
        let pause = Pause { matching: "open out.run/selection/", at: 2 };
        let mut paused = workspace.start_paused(arguments, &pause);
        paused.wait_for_pause();
        workspace.longsift(&other).success();
        let answer = paused.resume().expect(4);
        let says = "a run has replaced the selection in `out.run` while it was read";
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
    }
}

#[test]
fn a_run_that_writes_no_selection_leaves_the_result_verified() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let other = ["--phase", "score", "--set", "stages.filter.keep_fraction=0.9"];
    workspace.longsift(&[&["run", "pipeline.yaml", "-q"][..], &other].concat()).success();
    verified(&workspace, 0);
}

#[test]
fn a_run_with_other_settings_and_nothing_to_do_is_verified() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let text = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
    workspace.write("renamed.yaml", text);
    for arguments in [
        ["pipeline.yaml", "--set", "input.memory_limit_bytes=100000000"],
        ["pipeline.yaml", "--set", "input.max_quarantined_fraction=0.9"],
        ["renamed.yaml", "--set", "input.on_bad_file=quarantine"],
    ] {
        let arguments = [&["run", "-q"], &arguments[..]].concat();
        let summary = workspace.longsift(&arguments).success().summary();
        assert_eq!(summary["status"], "nothing_to_do", "{arguments:?}");
        verified(&workspace, 0);
    }
}

/// Changes a record as a run would have written it.
pub(crate) fn rewrite_record(workspace: &Workspace, name: &str, change: impl FnOnce(&mut Value)) {
    let path = workspace.path(name);
    let mut record = read_json(&path);
    assert!(record.as_object_mut().unwrap().remove("sha256").is_some());
    change(&mut record);
    workspace.write("sealed/record", record.to_string());
    record["sha256"] = json!(workspace.hashes(&["sealed"])["sealed/record"]);
    fs::write(&path, record.to_string()).unwrap();
}

fn rewrite_manifest(workspace: &Workspace, change: impl FnOnce(&mut Value)) {
    rewrite_record(workspace, "out.run/manifest.json", change);
}

#[test]
fn a_copied_record_does_not_count() {
    let workspace = workspace();
    let before = workspace.run(&pipeline());
    let record = &files_below(&workspace.path("out.run/units"))[0];
    let copy = record.with_file_name("copy.json");
    fs::copy(record, &copy).unwrap();
    let status = workspace.longsift(&["status", "out.run", "--format", "json"]).success().stdout;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["counts"]["rows"], before["rows_in"], "{status:#}");
    fs::remove_file(workspace.path("out.run/_SUCCESS")).unwrap();
    workspace.run(&pipeline().filter("keep_fraction: 0.3"));
    assert!(record.exists(), "the record of the unit is not that of a removed file");
    verified(&workspace, 0);
}

#[test]
fn scores_of_changed_files_are_listed_before_their_selection() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let input = workspace.path("input");
    let file = files_below(&input).into_iter().find(|file| file.is_file()).unwrap();
    let copy = file.with_file_name(format!("new-{}", file.file_name().unwrap().to_str().unwrap()));
    fs::copy(&file, copy).unwrap();
    workspace.longsift(&["run", "pipeline.yaml", "-q", "--phase", "score"]).success();
    verified(&workspace, 0);
}

#[test]
fn every_remedy_of_verify_repairs_what_it_names() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let results = workspace.results();
    let hint = || workspace.longsift(&["verify", "out.run"]).expect(3).stdout;
    // Files of others, in the folders of the run and in the output.
    for path in ["out.run/selection/notes.txt", "out/data/notes.txt"] {
        workspace.write(path, "notes");
        assert!(
            hint().contains("move these files away") && !hint().contains("--fresh"),
            "{}",
            hint()
        );
        fs::remove_file(workspace.path(path)).unwrap();
        verified(&workspace, 0);
    }
    // Tables of a unit are scored again, and those of the others are not.
    let tables = ["scores", "dropped", "quarantine"].map(|folder| format!("out.run/{folder}"));
    for folder in &tables {
        let path = files_below(&workspace.path(folder)).remove(0);
        fs::remove_file(&path).unwrap();
        assert!(hint().contains("remove these files if they exist, and run again"), "{}", hint());
        let again = workspace.longsift(&["run", "out.run", "-q"]).success().summary();
        assert!(count(&again, "windows_scored") < count(&again, "windows_total"), "{again}");
        assert_eq!(workspace.results(), results, "{folder}");
        verified(&workspace, 0);
    }
    // Findings with different remedies have a hint each.
    workspace.write("out.run/selection/notes.txt", "notes");
    fs::remove_file(files_below(&workspace.path("out.run/scores")).remove(0)).unwrap();
    let both = hint();
    assert!(both.contains("hint      scores/part-") && both.contains("notes.txt: move"), "{both}");
    fs::remove_file(workspace.path("out.run/selection/notes.txt")).unwrap();
    workspace.longsift(&["run", "out.run", "-q"]).success();
    // A table that a stopped run left.
    let table = files_below(&workspace.path("out.run/scores")).remove(0);
    let left = table.with_file_name(
        table.file_name().unwrap().to_str().unwrap().replace(".parquet", "-next.parquet"),
    );
    fs::copy(&table, &left).unwrap();
    verified(&workspace, 0);
    assert_eq!(workspace.run(&pipeline())["status"], "nothing_to_do");
    assert!(!left.exists());
}

#[test]
fn missing_records_of_a_selection_are_errors_everywhere() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let copy = Workspace::copy_of(&workspace);
    let copy = copy.path("out.run").display().to_string();
    for name in ["summary.json", "calibration.json"] {
        let path = workspace.path(&format!("out.run/{name}"));
        let whole = fs::read(&path).unwrap();
        for content in [None, Some("{}")] {
            match content {
                None => fs::remove_file(&path).unwrap(),
                Some(text) => fs::write(&path, text).unwrap(),
            }
            let answer = workspace.longsift(&["report", "out.run"]).expect(3);
            assert!(answer.stderr.contains(name), "{}", answer.stderr);
            let command = match name {
                "summary.json" => ["diff", "out.run", &copy, "--color=never"],
                _ => ["whatif", "out.run", "--set", "stages.filter.keep_fraction=0.2"],
            };
            assert!(workspace.longsift(&command).expect(3).stderr.contains(name));
        }
        fs::write(&path, whole).unwrap();
    }
    let status = || workspace.longsift(&["status", "out.run"]).success().stdout;
    assert!(status().starts_with("finished"), "{}", status());
    let manifest = workspace.path("out.run/manifest.json");
    for text in [Some(""), None] {
        match text {
            Some(text) => fs::write(&manifest, text).unwrap(),
            None => fs::remove_file(&manifest).unwrap(),
        }
        assert!(status().starts_with("damaged\n  reason    the manifest"), "{}", status());
        let runs = workspace.longsift(&["cache", "--runs", ".", "--clear", "runs"]).success();
        assert!(runs.stdout.contains("damaged") && workspace.path("out.run/units").exists());
        workspace.longsift(&["report", "out.run"]).expect(3);
    }
    let hint = workspace.longsift(&["verify", "out.run"]).expect(3).stdout;
    assert!(hint.contains("restore `manifest.json` from a backup"), "{hint}");
}

#[test]
fn a_unit_with_a_damaged_record_is_scored_again() {
    let workspace = workspace();
    let before = workspace.run(&pipeline());
    let record = &files_below(&workspace.path("out.run/units"))[0];
    let whole = fs::read(record).unwrap();
    for key in ["tokens_total", "rows", "not_measured"] {
        let text = String::from_utf8(whole.clone()).unwrap();
        let start = text.find(&format!("\"{key}\": ")).unwrap() + key.len() + 4;
        let mut bytes = whole.clone();
        bytes[start] ^= 1;
        assert!(serde_json::from_slice::<Value>(&bytes).is_ok(), "{key}: still valid JSON");
        fs::write(record, &bytes).unwrap();
        let again = workspace.run(&pipeline());
        assert!(count(&again, "windows_scored") > 0, "{key}");
        for kept in ["tokens_total", "rows_in", "windows_total", "kept"] {
            assert_eq!(again[kept], before[kept], "{key}: {kept}");
        }
        assert_eq!(fs::read(record).unwrap(), whole, "{key}");
        verified(&workspace, 0);
    }
}

#[test]
fn inconsistent_counts_are_reported_as_a_bug_of_longsift() {
    let workspace = workspace();
    workspace.run(&pipeline());
    rewrite_manifest(&workspace, |manifest| {
        assert!(manifest.as_object_mut().unwrap().remove("summary").is_some());
    });
    let path = workspace.path("out.run/summary.json");
    let mut summary = read_json(&path);
    summary["kept"] = json!(count(&summary, "kept") + 1);
    fs::write(&path, summary.to_string()).unwrap();
    let answer = workspace.longsift(&["verify", "out.run"]).expect(1);
    assert!(
        answer.stdout.contains("samples as in the files of the run, got "),
        "{}",
        answer.stdout
    );
    assert!(answer.stdout.contains("(a bug in longsift)"));
    // The same in a unit's record and in the manifest that lists it.
    rewrite_manifest(&workspace, |manifest| {
        let record = &mut manifest["units"][0];
        record["counts"]["rows_scored"] = json!(40);
        let path = format!("out.run/units/{}.json", record["unit"].as_str().unwrap());
        rewrite_record(&workspace, &path, |changed| *changed = record.clone());
    });
    let answer = workspace.longsift(&["verify", "out.run"]).expect(1);
    assert!(answer.stdout.contains("rows were read, but 40 were scored"), "{}", answer.stdout);
}

#[test]
fn a_changed_table_in_the_cache_is_found() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let tables = files_below(&workspace.path("cache/longsift/tables"));
    assert_eq!(tables.len(), 1);
    let mut bytes = fs::read(&tables[0]).unwrap();
    let offset = bytes.len() - 8;
    bytes[offset] ^= 1;
    fs::remove_file(&tables[0]).unwrap(); // a table is read-only once it was opened
    fs::write(&tables[0], bytes).unwrap();
    let found = verified(&workspace, 3);
    assert_eq!(found["table"], "damaged");
    fs::remove_file(&tables[0]).unwrap();
    assert_eq!(verified(&workspace, 0)["table"], "not checked: not in the cache");
}

#[test]
fn the_scored_units_of_an_unfinished_run_are_verified() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    // One bad row of six is more than the default allows.
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    let found = verified(&workspace, 0);
    assert_eq!((&found["finished"], &found["rows"]), (&json!(false), &json!(4)));
    let scores = &files_below(&workspace.path("out.run/scores"))[0];
    fs::write(scores, "damaged").unwrap();
    verified(&workspace, 3);
    workspace.longsift(&["verify", "input"]).expect(2);
}

fn difference(workspace: &Workspace, code: i32) -> Value {
    let answer =
        workspace.longsift(&["diff", "out.run", "other.run", "--format", "json"]).expect(code);
    serde_json::from_str(&answer.stdout).unwrap()
}

fn other(pipeline: &Pipeline) -> Pipeline {
    let mut other = pipeline.clone();
    other.output = other.output.replace("path: out", "path: other");
    other
}

#[test]
fn two_identical_runs_do_not_differ() {
    let workspace = workspace();
    workspace.run(&pipeline());
    workspace.run(&other(&pipeline()));
    let found = difference(&workspace, 0);
    assert_eq!(found["documents"]["same"], 6);
    let text = workspace.longsift(&["diff", "out.run", "other.run"]).success().stdout;
    assert_eq!(text, "no differences in 6 documents\n");
    let itself = workspace.longsift(&["diff", "out.run", "out.run"]).success().stdout;
    assert!(itself.contains("both are the same run directory"), "{itself}");
    workspace.longsift(&["diff", "out.run", "absent.run"]).expect(2);
    // Unused statistics and another order of measures change no document.
    let more = pipeline().measure("lexical").measure("recurrence");
    workspace.run(&more);
    workspace.run(&pipeline());
    let found = difference(&workspace, 0);
    assert_eq!(found["documents"]["same"], 6, "{found}");
    workspace.run(&more);
    let again = other(&pipeline().measure("recurrence").measure("lexical"));
    workspace.run(&again);
    let documents = &difference(&workspace, 0)["documents"];
    assert_eq!(documents["same"], 6, "{documents}");
}

#[test]
fn runs_whose_output_is_not_parquet_are_compared() {
    let workspace = workspace();
    let run = |pipeline: &Pipeline| {
        workspace.write("pipeline.yaml", pipeline.to_string());
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    };
    let pipeline = pipeline().output("format: jsonl-zst");
    run(&pipeline);
    run(&other(&pipeline));
    assert_eq!(difference(&workspace, 0)["documents"]["same"], 6);
    run(&other(&pipeline).filter("keep_fraction: 0.25"));
    assert!(count(&difference(&workspace, 5)["documents"], "other_fate") > 0);
}

#[test]
fn another_selection_changes_outcomes_but_no_window_score() {
    for samples in ["windows", "documents"] {
        let workspace = workspace();
        let pipeline = pipeline().output(&format!("samples: {samples}"));
        workspace.run(&pipeline);
        workspace.run(&other(&pipeline).filter("keep_fraction: 0.25"));
        let found = difference(&workspace, 5);
        assert_eq!(found["settings"], json!(["stages.filter.keep_fraction: 0.25, was 0.5"]));
        assert_eq!((&found["model"], &found["inputs"]), (&json!([]), &json!([])));
        let documents = &found["documents"];
        let sum: u64 =
            ["same", "other_fate", "other_score"].iter().map(|key| count(documents, key)).sum();
        assert_eq!((sum, count(documents, "other_score")), (6, 0), "{documents}");
        assert!(count(documents, "other_fate") > 0);
        for change in documents["listed"].as_array().unwrap() {
            let kept = |which: &str| count(&change[which], "kept");
            assert!(kept("second") < kept("first"), "{change}");
        }
    }
}

#[test]
fn other_windows_of_a_document_are_another_outcome() {
    let workspace = workspace();
    let with_bounds = |bounds: &str| {
        pipeline().measure("lexical").score("terms: [{statistic: unique_token_share}]").filter(
            &format!("keep_fraction: 1, guards: [{{statistic: unique_token_share, {bounds}}}]"),
        )
    };
    // Half of a document's windows consist of a single token each.
    let tokens: Vec<u32> = (0..64).map(|at| if at < 32 { 3 } else { at }).collect();
    let rows = table(&[("id", strings(["d"])), ("tokens", token_lists(&[tokens]))]);
    fs::remove_dir_all(workspace.path("input")).unwrap();
    write_parquet(&workspace.path("input/a.parquet"), &rows, 4);
    let narrow = |pipeline: Pipeline| Pipeline {
        tokenize: pipeline.tokenize.replace("window_tokens: 64", "window_tokens: 32"),
        ..pipeline
    };
    workspace.run(&narrow(with_bounds("max: 0.5")));
    workspace.run(&other(&narrow(with_bounds("min: 0.5"))));
    let found = difference(&workspace, 5);
    assert_eq!(found["documents"]["other_fate"], 1, "{found}");
    let text = workspace.longsift(&["diff", "out.run", "other.run"]).expect(5).stdout;
    assert!(text.contains("window 0 kept → guard_unique_token_share"), "{text}");
}

#[test]
fn documents_are_compared_by_id() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let documents = corpus("a", &[192, 30, 128, 0]);
    let moved = take_record_batch(&documents, &UInt32Array::from(vec![2, 1, 0, 3])).unwrap();
    write_parquet(&workspace.path("input/a.parquet"), &moved, 2);
    workspace.run(&other(&pipeline()));
    let found = difference(&workspace, 5);
    assert_eq!(found["documents"]["same"], 6, "{found}");
    // Other documents in the same rows. A quarantined row has no id.
    write_parquet(&workspace.path("input/a.parquet"), &corpus("c", &[192, 30, 128, 0]), 2);
    workspace.run(&other(&pipeline()));
    let found = difference(&workspace, 5);
    let documents = &found["documents"];
    let only = ["only_in_first", "only_in_second"].map(|key| count(documents, key));
    assert_eq!((only, count(documents, "other_fate") <= 3), ([3, 3], true), "{found}");
}

#[test]
fn a_document_that_moved_to_another_file_is_the_same_document() {
    let workspace = workspace();
    let documents = corpus("a", &[192, 30, 128, 160]);
    let rows =
        |rows: &[u32]| take_record_batch(&documents, &UInt32Array::from(rows.to_vec())).unwrap();
    let write = |name: &str, rows: &RecordBatch| {
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), rows, 2);
    };
    write("a", &documents);
    workspace.run(&pipeline());
    write("a", &rows(&[0, 1]));
    write("c", &rows(&[3, 2]));
    workspace.run(&other(&pipeline()));
    let found = difference(&workspace, 5);
    let counts = |found: &Value| {
        ["moved", "only_in_first", "only_in_second", "matched_by_id", "matched_by_row"]
            .map(|key| count(&found["documents"], key))
    };
    assert_eq!(counts(&found), [2, 0, 0, 6, 0], "{found}");
    assert_eq!(found["documents"]["same"], 6, "{found}");
    let text = workspace.longsift(&["diff", "out.run", "other.run"]).expect(5).stdout;
    assert!(
        text.contains("documents (matched by id)\n  6 unchanged\n  2 in another file"),
        "{text}"
    );
    // With fewer kept samples, a moved document is listed with both places.
    workspace.run(&other(&pipeline().filter("keep_fraction: 0.01")));
    let text = workspace.longsift(&["diff", "out.run", "other.run"]).expect(5).stdout;
    assert!(text.contains(" (now c.parquet, row "), "{text}");
    // An id that occurs twice in one of the runs is looked up within its file only.
    write("b", &rows(&[2]));
    workspace.run(&other(&pipeline()));
    let found = difference(&workspace, 5);
    assert_eq!(counts(&found), [1, 3, 2, 3, 0], "{found}");
}

#[test]
fn documents_without_ids_are_compared_by_file_and_row() {
    let workspace = workspace();
    let without_ids =
        Pipeline { input: pipeline().input.replace("id_column: id, ", ""), ..pipeline() };
    workspace.run(&without_ids);
    workspace.run(&other(&without_ids.filter("keep_fraction: 0.01")));
    let text = workspace.longsift(&["diff", "out.run", "other.run"]).expect(5).stdout;
    assert!(text.contains("documents (matched by file and row)"), "{text}");
}

#[test]
fn statistics_skipped_by_a_guard_are_not_a_difference() {
    let workspace = workspace();
    let with_guard = |most: f64| {
        pipeline().measure("lexical").filter(&format!(
            "keep_fraction: 0.5, guards: [{{statistic: unique_token_share, max: {most}, before: first-layer-attention}}]"
        ))
    };
    let shares = workspace.run(&pipeline().measure("lexical"));
    assert!(count(&shares, "windows_total") > 4);
    let scores = read_scores(&workspace.path("out.run"));
    let mut shares = floats(&scores, "unique_token_share");
    shares.sort_by(f64::total_cmp);
    let strict = with_guard(shares[shares.len() / 2] - 1e-9);
    workspace.run(&strict);
    workspace.run(&other(&strict));
    let [own, fresh] = ["out.run", "other.run"].map(|run| {
        let scores = read_scores(&workspace.path(run));
        scores.column_by_name("dependency_strength").unwrap().null_count()
    });
    assert!(own == 0 && fresh > 0, "computed statistics are retained: {own} and {fresh}");
    let found = difference(&workspace, 0);
    assert_eq!(found["documents"]["other_score"], 0, "{found}");
}

#[test]
fn other_inputs_and_another_model_are_named() {
    let workspace = workspace();
    workspace.run(&pipeline());
    fs::remove_file(workspace.path("input/b.parquet")).unwrap();
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[192, 30, 200, 0]), 2);
    write_parquet(&workspace.path("input/c.parquet"), &corpus("c", &[64]), 2);
    Tiny::new().seed(9).write(&workspace.path("model"));
    workspace.run(&other(&pipeline()));
    let found = difference(&workspace, 5);
    let inputs = found["inputs"].as_array().unwrap();
    assert!(inputs[0].as_str().unwrap().starts_with("a.parquet: different size, "), "{inputs:?}");
    assert_eq!(inputs[1], "b.parquet: only in the first run");
    assert_eq!(inputs[2], "c.parquet: only in the second run");
    assert!(found["model"][0].as_str().unwrap().starts_with("weights: "), "{found}");
    let documents = &found["documents"];
    assert_eq!((count(documents, "only_in_first"), count(documents, "only_in_second")), (2, 1));
    let text = workspace.longsift(&["diff", "out.run", "other.run", "--documents", "1"]).expect(5);
    assert!(text.stdout.contains(" more (`--documents N` lists N)"), "{}", text.stdout);
}

#[test]
fn a_run_is_repeated_from_its_manifest_alone() {
    let workspace = workspace();
    let mut pipeline = pipeline().score("within: '${column}'");
    pipeline.input += ", unit_bytes: 1024";
    let text = format!("{pipeline}params: {{column: {{default: note}}}}\n");
    workspace.write(
        "pipelines/p.yaml",
        text.replace("path: input", "path: ../input")
            .replace("model: model", "model: ../model")
            .replace("path: out", "path: ../out"),
    );
    let set = "stages.filter.keep_fraction=0.75";
    workspace
        .longsift(&[
            "run",
            "pipelines/p.yaml",
            "-q",
            "--param",
            "column=id",
            "--set",
            set,
            "--limit",
            "5",
        ])
        .success();
    let expected = workspace.results();
    let manifest = fs::read(workspace.path("out.limit-5.run/manifest.json")).unwrap();
    // Only the manifest of the run remains; even the pipeline file is gone.
    for path in ["out.limit-5", "out.limit-5.run", "pipelines"] {
        fs::remove_dir_all(workspace.path(path)).unwrap();
    }
    workspace.write("out.limit-5.run/manifest.json", &manifest);
    fs::create_dir(workspace.path("pipelines")).unwrap();
    workspace.longsift(&["run", "out.limit-5.run", "-q"]).success();
    assert_eq!(workspace.results(), expected);
    // A copied run directory is run in its own folder, or elsewhere with a flag; at the original path the run is
    // finished.
    let data =
        |folder: &str| -> Vec<String> { workspace.hashes(&[folder]).into_values().collect() };
    let copy = "old/out.limit-5.run";
    workspace.write(&format!("{copy}/manifest.json"), &manifest);
    workspace.longsift(&["run", copy, "-q"]).success();
    assert_eq!(data("old/out.limit-5/data"), data("out.limit-5/data"));
    workspace.longsift(&["run", copy, "-q", "--set", "output.path=again"]).success();
    assert_eq!(data("again.limit-5/data"), data("out.limit-5/data"));
    let answer = workspace.longsift(&["run", "out.limit-5.run", "-q"]).success();
    assert_eq!(answer.summary()["status"], "nothing_to_do");
    let answer = workspace.longsift(&["run", "input.run"]).expect(2);
    assert!(answer.stderr.contains("does not exist"), "{}", answer.stderr);
}

fn set_modified(path: &Path, time: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn only_quarantined_rows_are_tried_again() {
    let text = |row: usize| {
        format!("The box number {row} stood behind the door. ").repeat(30).into_bytes()
    };
    let good: Vec<Vec<u8>> = (0..9).map(text).collect();
    let mut bad = good.clone();
    bad[4][100] = 0xff;
    let slices = |texts: &[Vec<u8>]| -> Vec<Vec<u8>> { texts.to_vec() };
    let write = |workspace: &Workspace, texts: &[Vec<u8>]| {
        let texts = slices(texts);
        let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let raw = Raw { group_rows: 3, ..Raw::plain() };
        write_raw(&workspace.path("input/a.parquet"), &[("text", texts)], raw);
    };
    let mut pipeline = Pipeline::text("model", 64);
    pipeline.input = "path: input, max_quarantined_fraction: 0.2, unit_bytes: 1024".to_owned();
    let clean = Workspace::new();
    clean.link("model", &demo_model());
    write(&clean, &good);
    clean.run(&pipeline);
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    write(&workspace, &bad);
    let first = workspace.run(&pipeline);
    assert_eq!(first["quarantined"], 1);
    // The byte is restored without a change of the file's stamp, so a run has nothing to do.
    let path = workspace.path("input/a.parquet");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let start = bytes.windows(bad[4].len()).position(|window| window == bad[4]).unwrap();
    bytes[start + 100] = good[4][100];
    fs::write(&path, bytes).unwrap();
    set_modified(&path, time);
    assert_eq!(workspace.run(&pipeline)["status"], "nothing_to_do");
    let answer = workspace.longsift(&["run", "--only-quarantined", "out.run", "-q"]).success();
    let summary = answer.summary();
    assert_eq!((count(&summary, "quarantined"), count(&summary, "rows_in")), (0, 9));
    let row_windows = count(&summary, "windows_total") - count(&first, "windows_total");
    assert_eq!(count(&summary, "windows_scored"), row_windows, "the others are not measured again");
    assert_eq!(workspace.hashes(&["out/data"]), clean.hashes(&["out/data"]));
    assert_eq!(workspace.hashes(&["out.run/scores"]), clean.hashes(&["out.run/scores"]));
    verified(&workspace, 0);
    let again = workspace.longsift(&["run", "--only-quarantined", "out.run", "-q"]).success();
    assert_eq!(again.summary()["status"], "nothing_to_do");
    workspace.longsift(&["run", "--only-quarantined", "out.run", "--fresh"]).expect(2);
}

#[test]
fn rows_that_are_still_bad_stay_in_quarantine() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = workspace.results();
    workspace.longsift(&["run", "--only-quarantined", "out.run", "-q"]).success();
    assert_eq!(workspace.results(), before);
    verified(&workspace, 0);
}
