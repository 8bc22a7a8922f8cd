//! Data that is read twice must be unchanged, otherwise the run fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use parquet::arrow::ArrowWriter;

use crate::resume::{undisturbed, workload};
use crate::support::faults::{Pause, Paused};
use crate::support::tables::{corpus, read_parquet, strings, table, texts, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, copy_folder, count, demo_model, files_below};

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[192, 128, 256, 320]), 2);
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64)
}

const RUN: [&str; 3] = ["run", "pipeline.yaml", "-q"];

/// A run that is paused before it writes its output.
fn paused_before_output() -> (Workspace, Paused) {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let pause = Pause { matching: "create out/.staging/", at: 1 };
    let mut paused = workspace.start_paused(&RUN, &pause);
    paused.wait_for_pause();
    (workspace, paused)
}

/// Writes a file with uncompressed pages, so that bytes can be changed in place.
fn write_plain(path: &Path, texts: &[String]) {
    let ids = strings((0..texts.len()).map(|row| format!("document-{row}")));
    let input = table(&[("id", ids), ("text", strings(texts))]);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(path).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let mut writer = ArrowWriter::try_new(file, input.schema(), Some(properties)).unwrap();
    writer.write(&input).unwrap();
    writer.close().unwrap();
}

fn set_modified(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_document_changed_between_score_and_write_is_detected() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let texts: Vec<String> = ["amber", "birch", "cedar"]
        .iter()
        .map(|word| format!("The {word} box stood on the shelf behind the door. ").repeat(30))
        .collect();
    let path = workspace.path("input/a.parquet");
    write_plain(&path, &texts);
    let pipeline = Pipeline::text("model", 64).filter("keep_fraction: 1");
    workspace.run(&pipeline);
    let before = workspace.hashes(&["out/data"]);
    // Footer, size and time are unchanged; a letter of one document is not.
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let offsets: Vec<usize> =
        (0..bytes.len() - 9).filter(|offset| bytes[*offset..].starts_with(b"cedar box")).collect();
    bytes[offsets[offsets.len() / 2]] = b'C';
    fs::write(&path, bytes).unwrap();
    set_modified(&path, time);
    workspace.write("pipeline.yaml", pipeline.clone().output("compression: snappy").to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
    assert_eq!(workspace.hashes(&["out/data"]), before, "the last selection is unchanged");
    workspace.run_with(&pipeline, &["--fresh"]);
}

#[test]
fn an_id_changed_between_score_and_write_is_detected() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let path = workspace.path("input/a.parquet");
    let texts: Vec<String> =
        ["amber", "birch"].map(|word| format!("The {word} box stood there. ").repeat(40)).to_vec();
    write_plain(&path, &texts);
    let pipeline = Pipeline::text("model", 64).filter("keep_fraction: 1");
    workspace.run(&pipeline);
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let offsets: Vec<usize> =
        (0..bytes.len() - 9).filter(|offset| bytes[*offset..].starts_with(b"document-1")).collect();
    for offset in offsets {
        bytes[offset] = b'#';
    }
    fs::write(&path, bytes).unwrap();
    set_modified(&path, time);
    workspace.write("pipeline.yaml", pipeline.output("compression: snappy").to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    assert!(answer.stderr.contains("is not the one that was scored"), "{}", answer.stderr);
}

#[test]
fn a_damaged_table_in_the_cache_is_never_used() {
    let expected = workspace();
    expected.run(&pipeline());
    for damage in ["cut", "emptied", "another header", "a bit"] {
        let workspace = workspace();
        workspace.run(&pipeline());
        let tables = files_below(&workspace.path("cache"));
        assert!(!tables.is_empty());
        for path in tables {
            let bytes = fs::read(&path).unwrap();
            match damage {
                "cut" => fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
                "a bit" => {
                    let (middle, mut bytes) = (bytes.len() / 2, bytes);
                    bytes[middle] ^= 0x40;
                    fs::write(&path, bytes).unwrap();
                }
                "emptied" => fs::write(&path, []).unwrap(),
                _ => fs::write(&path, [b"damaged!", &bytes[8..]].concat()).unwrap(),
            }
        }
        workspace.run_with(&pipeline(), &["--fresh"]);
        assert_eq!(workspace.results(), expected.results(), "{damage}");
    }
}

#[test]
fn runs_that_share_a_cache_may_build_the_table_at_once() {
    let workspace = workspace();
    let outputs = ["one", "two", "three", "four"];
    let mut runs = Vec::new();
    for output in outputs {
        let mut pipeline = pipeline();
        pipeline.output = format!("path: {output}");
        let name = format!("{output}.yaml");
        workspace.write(&name, pipeline.to_string());
        let mut command = workspace.command(&["run", &name, "-q"]);
        runs.push(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap());
    }
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    let data: Vec<Vec<String>> = outputs
        .iter()
        .map(|output| workspace.hashes(&[&format!("{output}/data")]).into_values().collect())
        .collect();
    assert!(data.iter().all(|hashes| *hashes == data[0] && !hashes.is_empty()));
    let leftovers = files_below(&workspace.path("cache"))
        .into_iter()
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(".tmp"));
    assert_eq!(leftovers.count(), 0);
}

#[test]
fn another_tokenizer_or_another_column_is_another_run() {
    let workspace = Workspace::new();
    workspace.link("demo", &demo_model());
    fs::create_dir(workspace.path("model")).unwrap();
    for file in files_below(&demo_model()).iter().filter(|path| path.is_file()) {
        let name = file.file_name().unwrap();
        fs::copy(file, workspace.path("model").join(name)).unwrap();
    }
    let text = "Snow lay on the pass until the end of May. ".repeat(40);
    let input =
        table(&[("id", strings(["a"])), ("text", strings([&text])), ("body", strings([&text]))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    let pipeline = Pipeline::text("model", 64);
    workspace.run(&pipeline);
    let refused = |pipeline: &Pipeline, what: &str| {
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
        assert!(answer.stderr.contains(what), "{}", answer.stderr);
    };
    let mut other = pipeline.clone();
    other.input = other.input.replace("text_column: text", "text_column: body");
    refused(&other, "content: text `body`, was text `text`");
    refused(&pipeline.clone().tokenize("special_tokens_in_text: as-text"), "as-text, was parse");
    // A copy of the same tokenizer is not a change; one with another rule is.
    let same = pipeline.clone().tokenize("tokenizer: demo/tokenizer.json");
    assert_eq!(workspace.run(&same)["windows_scored"], 0);
    let path = workspace.path("model/tokenizer.json");
    let mut tokenizer = crate::support::read_json(&path);
    tokenizer["normalizer"] = serde_json::json!({ "type": "Lowercase" });
    fs::write(path, tokenizer.to_string()).unwrap();
    refused(&pipeline, "tokenizer: ");
}

#[test]
fn an_older_folder_in_place_of_the_data_is_detected() {
    let workspace = workspace();
    workspace.run(&pipeline());
    copy_folder(&workspace.path("out/data"), &workspace.path("older/data"));
    let file = &files_below(&workspace.path("older/data"))[0];
    let mut bytes = fs::read(file).unwrap();
    bytes[9] ^= 1;
    fs::write(file, bytes).unwrap();
    // All times of the older folder are before the run.
    workspace.longsift(&["run", "pipeline.yaml", "--fresh", "-q"]).success();
    assert_eq!(workspace.run(&pipeline())["status"], "nothing_to_do");
    for name in ["out/data", "out"] {
        let older = if name == "out" { "older" } else { "older/data" };
        fs::rename(workspace.path(name), workspace.path("away")).unwrap();
        fs::rename(workspace.path(older), workspace.path(name)).unwrap();
        let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
        assert!(refused.contains("which was changed after a run wrote it"), "{refused}");
        fs::rename(workspace.path(name), workspace.path(older)).unwrap();
        fs::rename(workspace.path("away"), workspace.path(name)).unwrap();
        assert_eq!(workspace.run(&pipeline())["status"], "nothing_to_do");
    }
}

#[test]
fn a_copy_with_a_damaged_table_is_noticed_in_any_order_of_times() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let table = files_below(&workspace.path("out.run/scores")).remove(0);
    let mut bytes = fs::read(&table).unwrap();
    bytes[9] ^= 1;
    fs::write(&table, bytes).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    // A copy of the manifest is newer than the table.
    for name in ["manifest.json", "_SUCCESS"] {
        let path = workspace.path(&format!("out.run/{name}"));
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    workspace.longsift(&["report", "out.run"]).expect(3);
    let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3).stderr;
    assert!(refused.contains("has changed since it was written"), "{refused}");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_copy_is_read_once() {
    let original = workspace();
    original.run(&pipeline());
    let workspace = Workspace::copy_of(&original);
    let read = |workspace: &Workspace| {
        let traced = workspace.with_fault(&["run", "pipeline.yaml", "-q"], None);
        assert_eq!(traced.answer.success().summary()["status"], "nothing_to_do");
        let is_read = |line: &&String| {
            line.starts_with("read out/data/") || line.starts_with("read out.run/scores/")
        };
        traced.operations.iter().filter(is_read).count()
    };
    assert!(read(&workspace) > 0);
    assert_eq!(read(&workspace), 0);
    assert_eq!(read(&original), 0);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn files_changed_within_an_interrupted_commit_are_read() {
    for folder in ["out/.staging", "out.run/scores"] {
        let workspace = workspace();
        workspace.write("pipeline.yaml", pipeline().to_string());
        let run = ["run", "pipeline.yaml", "-q"];
        workspace.run_until_killed(&run, "rename out/data", 1);
        let path = files_below(&workspace.path(folder))
            .into_iter()
            .find(|path| path.extension().is_some_and(|ending| ending == "parquet"));
        let path = path.unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[9] ^= 1;
        fs::write(&path, bytes).unwrap();
        let answer = workspace.longsift(&run);
        if folder == "out/.staging" {
            let stderr = answer.success().stderr;
            assert!(stderr.contains("selecting again"), "{stderr}");
            workspace.longsift(&["verify", "out.run"]).success();
        } else {
            assert!([2, 3].contains(&answer.code), "{folder}: {}", answer.to_text());
        }
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn scores_changed_while_the_output_is_written_are_noticed() {
    let (workspace, paused) = paused_before_output();
    let table = files_below(&workspace.path("out.run/scores")).remove(0);
    let mut bytes = fs::read(&table).unwrap();
    bytes[9] ^= 1;
    fs::write(&table, bytes).unwrap();
    let answer = paused.resume();
    assert!([3, 4].contains(&answer.code), "{}", answer.to_text());
    assert!(!workspace.path("out.run/manifest.json").exists());
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_run_whose_lock_was_replaced_commits_nothing() {
    let (workspace, paused) = paused_before_output();
    let lock = workspace.path("out.run/lock");
    let content = fs::read(&lock).unwrap();
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, content).unwrap();
    let answer = paused.resume().expect(4);
    assert!(answer.stderr.contains("was removed, moved or replaced"), "{}", answer.stderr);
    assert!(!workspace.path("out.run/manifest.json").exists());
    workspace.longsift(&RUN).success();
}

#[test]
fn a_fresh_selection_from_other_scores_replaces_damaged_data() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let other =
        ["run", "pipeline.yaml", "-q", "--scores-from", "out.run", "--set", "output.path=b"];
    workspace.longsift(&other).success();
    let data = files_below(&workspace.path("b/data")).remove(0);
    let sound = fs::read(&data).unwrap();
    let mut bytes = sound.clone();
    bytes[9] ^= 1;
    fs::write(&data, bytes).unwrap();
    workspace.longsift(&other).expect(2);
    workspace.longsift(&[&other[..], &["--fresh"]].concat()).success();
    assert_eq!(fs::read(&data).unwrap(), sound);
    workspace.longsift(&["verify", "b.run"]).success();
}

#[test]
fn removed_and_truncated_score_files_are_measured_again() {
    let workspace = workspace();
    let pipeline = pipeline().input("unit_bytes: 1024");
    workspace.run(&pipeline);
    let expected = workspace.results();
    let parts = files_below(&workspace.path("out.run/scores"));
    assert_eq!(parts.len(), 2);
    fs::remove_file(&parts[0]).unwrap();
    let summary = workspace.run(&pipeline);
    assert!(count(&summary, "windows_scored") > 0 && count(&summary, "windows_reused") > 0);
    assert_eq!(workspace.results(), expected);
    let bytes = fs::read(&parts[1]).unwrap();
    fs::write(&parts[1], &bytes[..100]).unwrap();
    workspace.run(&pipeline);
    assert_eq!(workspace.results(), expected);
    let data = files_below(&workspace.path("out/data"));
    fs::remove_file(&data[0]).unwrap();
    let summary = workspace.run(&pipeline);
    assert_eq!((&summary["status"], count(&summary, "windows_scored")), (&"done".into(), 0));
    assert_eq!(workspace.results(), expected);
}

#[test]
fn a_selection_never_uses_damaged_scores() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let scores = workspace.path("out.run/scores");
    let part = scores.join(&files_below(&scores)[0]);
    let sound = fs::read(&part).unwrap();
    let mut flipped = sound.clone();
    flipped[sound.len() / 3] ^= 1;
    fs::write(&part, flipped).unwrap();
    let before = workspace.hashes(&["out/data"]);
    let select = ["run", "pipeline.yaml", "--set", "stages.filter.keep_fraction=0.9"];
    let stderr = workspace.longsift(&select).expect(3).stderr;
    assert!(stderr.contains("has changed since it was written: expected SHA-256"), "{stderr}");
    assert_eq!(workspace.hashes(&["out/data"]), before);
    // The fix that the hint names.
    fs::remove_file(&part).unwrap();
    workspace.longsift(&select).success();
    assert_eq!(fs::read(&part).unwrap(), sound);
}

#[test]
fn a_selection_never_uses_damaged_records_of_rows() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[192, 30, 128, 0]), 2);
    let pipeline = pipeline().input("max_quarantined_fraction: 0.5");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let score = ["run", "pipeline.yaml", "-q", "--phase", "score"];
    workspace.longsift(&score).success();
    for folder in ["dropped", "quarantine"] {
        let table = files_below(&workspace.path(&format!("out.run/{folder}"))).remove(0);
        let sound = fs::read(&table).unwrap();
        let mut changed = sound.clone();
        changed[sound.len() / 3] ^= 1;
        fs::write(&table, changed).unwrap();
        let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3).stderr;
        assert!(refused.contains("has changed since it was written"), "{folder}: {refused}");
        fs::remove_file(&table).unwrap();
        workspace.longsift(&score).success();
        assert_eq!(fs::read(&table).unwrap(), sound, "{folder}");
    }
    workspace.run(&pipeline);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_unit_killed_before_its_record_is_scored_again() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let input = workspace.path("input/a.parquet");
    let write = |names: &str, time: u64| {
        write_parquet(&input, &corpus(names, &[192, 30, 128, 0]), 2);
        set_modified(&input, SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(time));
    };
    let pipeline = pipeline().input("max_quarantined_fraction: 0.5");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let score = ["run", "pipeline.yaml", "-q", "--phase", "score"];
    write("a", 1_700_000_000);
    workspace.longsift(&score).success();
    write("b", 1_700_000_001);
    workspace.run_until_killed(&score, "create out.run/units/", 1);
    write("a", 1_700_000_000);
    workspace.run(&pipeline);
    workspace.longsift(&["verify", "out.run"]).success();
    for folder in ["dropped", "quarantine"] {
        let table = files_below(&workspace.path(&format!("out.run/{folder}"))).remove(0);
        let ids = texts(&read_parquet(&table), "id");
        assert!(ids.iter().all(|id| id.starts_with('a')), "{folder}: {ids:?}");
    }
}

#[test]
fn a_run_whose_commit_is_unfinished_is_not_shown() {
    let workspace = workspace();
    workspace.run(&pipeline());
    workspace.write("out.run/intent.json", r#"{"renames": [], "removals": []}"#);
    for command in [
        &["report", "out.run"][..],
        &["whatif", "out.run", "--set", "stages.filter.keep_fraction=0.9"],
        &["diff", "out.run", "out.run"],
    ] {
        let stderr = workspace.longsift(command).expect(3).stderr;
        assert!(stderr.contains("its files may belong to two selections"), "{stderr}");
    }
    // A file that the commit has already renamed is not foreign.
    let renamed = "out/data/train-00009.parquet";
    workspace.write(renamed, "renamed");
    workspace.longsift(&["plan", "pipeline.yaml"]).success();
    fs::remove_file(workspace.path(renamed)).unwrap();
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    workspace.longsift(&["report", "out.run"]).success();
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_commit_that_cannot_be_finished_is_made_again_from_the_scores() {
    let other = [&RUN[..], &["--set", "stages.filter.keep_fraction=0.9"]].concat();
    for (operation, at) in [
        ("rename out/data", 1),
        ("rename out/data", 3),
        ("rename out.run/manifest.json", 1),
        ("unlink out.run/intent.json", 1),
    ] {
        for lost in ["out", "out/data", "out/.staging", "out.run/staging"] {
            let workspace = workload();
            workspace.longsift(&other).success();
            workspace.run_until_killed(&RUN, operation, at);
            let is_lost = fs::remove_dir_all(workspace.path(lost)).is_ok();
            let shard = ["run", "pipeline.yaml", "-q", "--phase", "write", "--shard", "1/2"];
            let refused = Workspace::copy_of(&workspace).longsift(&shard);
            assert!(refused.code == 0 || refused.stderr.contains("without `--phase`"));
            let answer = workspace.longsift(&RUN).success();
            let is_unfinishable = answer.stderr.contains("selecting again");
            assert!(is_lost || !is_unfinishable, "{}", answer.stderr);
            assert_eq!(refused.code == 0, !is_unfinishable, "{operation} {at} {lost}");
            assert_eq!(count(&answer.summary(), "windows_scored"), 0, "{operation} {at} {lost}");
            assert_eq!(workspace.results(), undisturbed().0, "{operation} {at} {lost}");
            workspace.longsift(&["verify", "out.run"]).success();
        }
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_commit_of_new_scores_that_cannot_be_finished_is_made_again() {
    let changed = workload();
    let inputs = files_below(&changed.path("input"));
    fs::copy(&inputs[1], &inputs[0]).unwrap();
    let expected = Workspace::copy_of(&changed);
    expected.longsift(&RUN).success();
    let units = files_below(&expected.path("out.run/units")).len();
    let mut unfinishable = 0;
    for (operation, at) in [
        ("unlink out/data", 2),
        ("rename out/data", 2),
        // Before the commit, each unit renames a table and its record once.
        ("rename out.run/scores/", units + 1),
        ("rename out.run/units/", units + 1),
        ("rename out.run/scores/", units + 3),
        ("rename out.run/pipeline.lock", 1),
        ("rename out.run/summary.json", 1),
    ] {
        for lost in ["out/.staging", "out.run/staging"] {
            let workspace = workload();
            workspace.longsift(&RUN).success();
            copy_folder(&changed.path("input"), &workspace.path("input"));
            workspace.run_until_killed(&RUN, operation, at);
            let _ = fs::remove_dir_all(workspace.path(lost));
            let answer = workspace.longsift(&RUN).success();
            unfinishable += u32::from(answer.stderr.contains("selecting again"));
            assert_eq!(workspace.results(), expected.results(), "{operation} {at} {lost}");
            workspace.longsift(&["verify", "out.run"]).success();
            assert_eq!(workspace.longsift(&RUN).success().summary()["status"], "nothing_to_do");
        }
    }
    assert!(unfinishable > 4, "{unfinishable}");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_run_of_its_directory_finishes_the_commit() {
    let set = ["--set", "stages.filter.keep_fraction=0.9"];
    let expected = workload();
    expected.longsift(&[&RUN[..], &set].concat()).success();
    let again = ["run", "out.run", "-q"];
    for (options, status) in [(&[][..], "nothing_to_do"), (&["--fresh"], "done")] {
        let workspace = workload();
        workspace.longsift(&RUN).success();
        workspace.run_until_killed(&[&again[..], &set].concat(), "rename out/data", 2);
        let summary = workspace.longsift(&[&again[..], options].concat()).success().summary();
        assert_eq!(summary["status"], status);
        assert_eq!(workspace.results(), expected.results());
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn scores_of_a_fresh_start_are_not_replaced_by_older_ones() {
    let fresh = ["run", "pipeline.yaml", "-q", "--fresh"];
    let select = [&RUN[..], &["--phase", "select"]].concat();
    let own = [&RUN[..], &["--scores-from", "out.run"]].concat();
    for (operation, at) in [("rename out/data", 1), ("rename out.run/units", 5)] {
        let workspace = workload();
        workspace.longsift(&RUN).success();
        workspace.run_until_killed(&fresh, operation, at);
        fs::remove_dir_all(workspace.path("out")).unwrap();
        for arguments in [&RUN[..], &select, &own] {
            let refused = workspace.longsift(arguments).expect(3).stderr;
            assert!(refused.contains("it is the commit of a fresh start"), "{refused}");
        }
        let other = [&RUN[..], &["--scores-from", "out.run", "--set", "output.path=b"]].concat();
        let refused = workspace.longsift(&other).expect(3).stderr;
        assert!(refused.contains("a commit in `out.run` is unfinished"), "{refused}");
        // An interrupted fresh start that replaces it is resumed.
        workspace.run_until_killed(&fresh, "create out/.staging/", 5);
        workspace.longsift(&RUN).success();
        assert_eq!(workspace.results(), undisturbed().0, "{operation} {at}");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_commit_that_cannot_be_finished_is_left_by_a_fresh_start() {
    let fresh = ["run", "pipeline.yaml", "-q", "--fresh"];
    let other = [&fresh[..], &["--set", "stages.filter.keep_fraction=0.9"]].concat();
    for (arguments, operation, at) in [
        (&fresh[..], "out.run/intent.json", 1),
        (&fresh, "out.run/intent.json", 2),
        (&fresh, "create out/.staging/", 5),
        (&other, "rename out.run/staging/manifest.json", 1),
    ] {
        let workspace = workload();
        workspace.run_until_killed(&RUN, "rename out/data", 3);
        let staged = files_below(&workspace.path("out/.staging"));
        let is_data = |path: &&PathBuf| path.extension().is_some_and(|kind| kind == "parquet");
        fs::remove_file(staged.iter().find(is_data).unwrap()).unwrap();
        workspace.run_until_killed(arguments, operation, at);
        // Either way out: a resumed fresh start, or a repeated one.
        for finish in [&RUN[..], &fresh] {
            let workspace = Workspace::copy_of(&workspace);
            workspace.longsift(finish).success();
            assert_eq!(workspace.results(), undisturbed().0, "{operation} {at}");
        }
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_card_edited_after_an_interrupted_commit_is_not_replaced() {
    let workspace = workspace();
    let card = workspace.path("out/README.md");
    let other = [&RUN[..], &["--set", "stages.filter.keep_fraction=0.9"]].concat();
    workspace.write("pipeline.yaml", pipeline().output("card: true").to_string());
    for arguments in [&RUN[..], &other] {
        workspace.run_until_killed(arguments, "rename out/data", 1);
        let before = fs::read(&card).ok();
        fs::write(&card, "of a user").unwrap();
        let refused = workspace.longsift(arguments).expect(2).stderr;
        assert!(
            refused.contains("README.md` was created or changed after the commit"),
            "{refused}"
        );
        assert_eq!(fs::read_to_string(&card).unwrap(), "of a user");
        match before {
            Some(before) => fs::write(&card, before).unwrap(),
            None => fs::remove_file(&card).unwrap(),
        }
        workspace.longsift(arguments).success();
        workspace.longsift(&["verify", "out.run"]).success();
    }
    // A card that is in place may be edited.
    let last = [&RUN[..], &["--set", "stages.filter.keep_fraction=0.7"]].concat();
    workspace.run_until_killed(&last, "unlink out.run/intent.json", 1);
    let edited = [fs::read(&card).unwrap(), b"of a user".to_vec()].concat();
    fs::write(&card, &edited).unwrap();
    workspace.longsift(&last).success();
    assert_eq!(fs::read(&card).unwrap(), edited);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_file_created_after_an_interrupted_commit_is_not_replaced() {
    let workspace = workload();
    workspace.run_until_killed(&RUN, "rename out/data", 1);
    let staged = files_below(&workspace.path("out/.staging"));
    let staged = staged.iter().find(|path| path.extension().is_some_and(|kind| kind == "parquet"));
    let name = staged.unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let own = workspace.path(&format!("out/data/{name}"));
    fs::write(&own, "of a user").unwrap();
    for arguments in [&RUN[..], &["run", "pipeline.yaml", "-q", "--fresh"]] {
        let refused = workspace.longsift(arguments).expect(2).stderr;
        assert!(refused.contains(&name) && refused.contains("move it away"), "{refused}");
        assert_eq!(fs::read_to_string(&own).unwrap(), "of a user");
    }
    fs::remove_file(&own).unwrap();
    workspace.longsift(&RUN).success();
    assert_eq!(workspace.results(), undisturbed().0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_commit_across_file_systems_is_refused_before_it_begins() {
    use std::os::unix::fs::{MetadataExt, symlink};
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = workspace.hashes(&["out/data", "out.run/selection", "out.run/manifest.json"]);
    let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(in_memory.path()), device(&workspace.path("out")), "/dev/shm is in memory");
    symlink(in_memory.path(), workspace.path("out/.staging")).unwrap();
    let select = ["run", "pipeline.yaml", "--set", "stages.filter.keep_fraction=0.9"];
    let stderr = workspace.longsift(&select).expect(4).stderr;
    assert!(stderr.contains("are on different file systems"), "{stderr}");
    assert_eq!(
        workspace.hashes(&["out/data", "out.run/selection", "out.run/manifest.json"]),
        before
    );
    fs::remove_file(workspace.path("out/.staging")).unwrap();
    workspace.longsift(&select).success();
}
