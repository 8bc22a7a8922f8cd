//! Nothing is removed before the new result is complete, and longsift never replaces or removes files that it did not
//! write.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::tables::{corpus, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, copy_folder, files_below, read_json};

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[192, 128, 256, 320]), 2);
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64)
}

/// Output, scores and all records of a run, except those about the last attempt.
fn committed_files(workspace: &Workspace, run: &str) -> BTreeMap<String, String> {
    let mut hashes = workspace.hashes(&[run, &format!("{run}.run")]);
    let of_attempt =
        ["/lock", "/events.jsonl", "/plan.json"].map(|name| format!("{run}.run{name}"));
    let fresh = format!("{run}.run/fresh/");
    hashes.retain(|name, _| !of_attempt.contains(name) && !name.starts_with(&fresh));
    hashes
}

#[test]
fn a_failed_fresh_start_keeps_the_previous_result() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = committed_files(&workspace, "out");
    assert!(
        before.contains_key("out.run/_SUCCESS") && before.contains_key("out.run/manifest.json")
    );
    let checks = format!("{}checks: [{{figure: rows_in, min: 1000000}}]\n", pipeline());
    let calibration = pipeline().score("calibration: out.run/manifest.json").to_string();
    let damaged = pipeline().to_string().replace("path: input,", "path: damaged,");
    let bytes = fs::read(workspace.path("input/a.parquet")).unwrap();
    workspace.write("damaged/a.parquet", [&bytes[..40], &[0xff; 60], &bytes[100..]].concat());
    let (own, none): (&[&str], &[&str]) = (&["--scores-from", "out.run"], &[]);
    for (text, more, code) in [
        (pipeline().to_string(), own, 2),
        (calibration, none, 2),
        (damaged, none, 3),
        (checks, none, 6),
    ] {
        workspace.write("pipeline.yaml", text);
        let arguments = [&["run", "pipeline.yaml", "-q", "--fresh"], more].concat();
        workspace.longsift(&arguments).expect(code);
        assert_eq!(committed_files(&workspace, "out"), before, "exit {code}");
    }
    // Scores of the last run are not lost: they are reused for the same score settings.
    let summary = workspace.run(&pipeline().filter("keep_fraction: 1"));
    assert_eq!((&summary["windows_scored"], &summary["status"]), (&json!(0), &json!("done")));
    assert!(!workspace.path("out.run/fresh").exists());
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn a_fresh_start_gives_the_files_of_a_first_run() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let other = Pipeline::tokens("model", 32).input("unit_bytes: 1024");
    let summary = workspace.run_with(&other, &["--fresh"]);
    assert_eq!(summary["windows_reused"], 0);
    let first = self::workspace();
    first.run(&other);
    assert_eq!(workspace.results(), first.results());
    assert_eq!(
        files_below(&workspace.path("out.run/units")).len(),
        files_below(&first.path("out.run/units")).len()
    );
    workspace.longsift(&["verify", "out.run"]).success();
    assert_eq!(workspace.run(&other)["status"], "nothing_to_do");
}

#[test]
fn a_run_can_use_its_own_calibration() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let own = pipeline().score("calibration: out.run/calibration.json");
    workspace.run_with(&own, &["--fresh"]);
    workspace.run_with(&own, &["--fresh"]);
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn a_copy_of_a_run_directory_is_run_in_place() {
    let workspace = workspace();
    workspace.run(&pipeline());
    workspace.longsift(&["run", "pipeline.yaml", "-q", "--limit", "2"]).success();
    for name in ["out", "out.run", "out.limit-2", "out.limit-2.run"] {
        copy_folder(&workspace.path(name), &workspace.path(&format!("backup/{name}")));
    }
    workspace.run(&pipeline().filter("keep_fraction: 1"));
    let production = workspace.hashes(&["out", "out.run", "out.limit-2", "out.limit-2.run"]);
    for run in ["out", "out.limit-2"] {
        let data = files_below(&workspace.path(&format!("backup/{run}/data")));
        let expected = workspace.hashes(&[&format!("backup/{run}/data")]);
        fs::write(&data[0], "damaged").unwrap();
        let copy = format!("backup/{run}.run");
        let stdout = workspace.longsift(&["verify", &copy]).expect(3).stdout;
        assert!(stdout.contains(&format!("{copy}`")), "{stdout}");
        workspace.longsift(&["run", &copy, "--fresh", "-q"]).success();
        assert_eq!(workspace.hashes(&[&format!("backup/{run}/data")]), expected);
        workspace.longsift(&["verify", &copy]).success();
    }
    let after = workspace.hashes(&["out", "out.run", "out.limit-2", "out.limit-2.run"]);
    assert_eq!(after, production);
    // Another limit of the copy is another trial next to it; another output follows the command line.
    workspace.longsift(&["run", "backup/out.limit-2.run", "--limit", "3", "-q"]).success();
    assert!(workspace.path("backup/out.limit-3.run/_SUCCESS").exists());
    let other_output = ["run", "backup/out.run", "--set", "output.path=elsewhere", "-q"];
    workspace.longsift(&other_output).success();
    assert!(workspace.path("elsewhere.run/_SUCCESS").exists());
}

#[test]
fn no_answer_of_a_run_is_written_into_a_result() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = workspace.hashes(&["out", "out.run"]);
    for file in ["out.run/summary.json", "out/data/new.json", "out.run/units/new.prom"] {
        for option in ["--summary-file", "--metrics-textfile"] {
            let refused = workspace.longsift(&["run", "pipeline.yaml", option, file]).expect(2);
            let message = "holds the files of a result only";
            assert!(refused.stderr.contains(message), "{}", refused.stderr);
            assert_eq!(workspace.hashes(&["out", "out.run"]), before);
        }
    }
    let in_output = ["run", "pipeline.yaml", "-q", "--summary-file", "out/summary.json"];
    workspace.longsift(&in_output).success();
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn a_run_directory_that_is_a_link_to_that_of_another_output_is_refused() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let before = committed_files(&workspace, "out");
    symlink("out.run", workspace.path("other.run")).unwrap();
    for command in [&["plan"][..], &["run"], &["run", "--fresh"], &["run", "--phase", "score"]] {
        let other = ["pipeline.yaml", "-q", "--set", "output.path=other"];
        let refused = workspace.longsift(&[command, &other].concat()).expect(2).stderr;
        let message = "other.run` is a link to `";
        assert!(refused.contains(message) && refused.contains("of another output"), "{refused}");
        assert_eq!(committed_files(&workspace, "out"), before);
    }
    // A link to any other folder, and a link next to a linked output, are the user's choice.
    fs::create_dir_all(workspace.path("disk/7")).unwrap();
    symlink("disk/7", workspace.path("third.run")).unwrap();
    symlink("out.run", workspace.path("alias.run")).unwrap();
    symlink("out", workspace.path("alias")).unwrap();
    for (output, status) in [("third", "done"), ("alias", "nothing_to_do")] {
        let output = format!("output.path={output}");
        let arguments = ["run", "pipeline.yaml", "-q", "--set", &output];
        assert_eq!(workspace.longsift(&arguments).success().summary()["status"], status);
    }
}

#[test]
fn no_command_overwrites_a_foreign_file() {
    let workspace = workspace();
    let text = pipeline().input("unit_bytes: 1024").output("card: true, report: true").to_string();
    workspace.write("pipeline.yaml", &text);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let words = |command: &[&str]| -> Vec<String> {
        command.iter().map(|word| (*word).to_owned()).collect()
    };
    let map = ["map", "pipeline.yaml", "--document", "a-0", "--block-tokens", "64"];
    let run = ["run", "pipeline.yaml", "-q", "--fresh"];
    let evaluate = ["evaluate", "pipeline.yaml", "--windows", "64", "--out", "folder"];
    let bench = ["bench", "--windows", "64", "--head-dims", "64", "--repeats", "1"];
    let mut commands: Vec<(Vec<String>, &str)> = vec![
        (words(&["lock", "pipeline.yaml"]), "pipeline.lock"),
        (words(&["init", "--output", "place"]), "place"),
        (words(&["init", "--output", "new.yaml"]), "pipeline.schema.json"),
        (words(&["manual", ".", "--format", "markdown"]), "commands.md"),
        (words(&["manual", ".", "--format", "man"]), "longsift-run.1"),
        (words(&run), "out/README.md"),
        (words(&run), "out/data/own.parquet"),
        (words(&run[..3]), "out/data/train-00000-of-00001.parquet"),
        (words(&run), "out/.staging/own"),
        (words(&run), "out/.written/own"),
        (words(&evaluate), "folder/evaluation.json"),
    ];
    for (mut command, flag) in [
        (words(&["explain", "pipeline.yaml", "a-0#0"]), "--html"),
        (words(&map), "--html"),
        (words(&map), "--png"),
        (words(&map), "--parquet"),
        (words(&["report", "out.run"]), "--html"),
        (words(&["tune", "pipeline.yaml", "--seconds", "0.01"]), "--html"),
        (words(&["devices", "--watch"]), "--html"),
        (words(&["devices"]), "--csv"),
        (words(&run), "--summary-file"),
        (words(&run), "--metrics-textfile"),
        (words(&bench), "--json"),
        (words(&bench), "--chart"),
        (words(&bench), "--html"),
        (words(&evaluate), "--html"),
    ] {
        command.extend(words(&[flag, "place"]));
        commands.push((command, "place"));
    }
    let outside = ["out/.staging/own", "out/.written/own", "out/data/own.parquet"];
    for (command, name) in &commands {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        for foreign in ["somebody's notes\n", "{\"status\": 1, \"version\": 1}\n"] {
            let kept = fs::read(workspace.path(name)).ok();
            workspace.write(name, foreign);
            let answer = workspace.longsift(&command).expect(2);
            let file = name.trim_end_matches("/own");
            let last = file.rsplit('/').next().unwrap();
            assert!(answer.stderr.contains(last), "{command:?}: {}", answer.stderr);
            assert!(
                answer.stderr.contains("help:") || answer.stderr.contains("hint"),
                "{}",
                answer.stderr
            );
            assert_eq!(fs::read_to_string(workspace.path(name)).unwrap(), foreign, "{command:?}");
            match kept {
                Some(bytes) => fs::write(workspace.path(name), bytes).unwrap(),
                None => fs::remove_file(workspace.path(name)).unwrap(),
            }
            if outside[..2].contains(name) {
                fs::remove_dir(workspace.path(name).parent().unwrap()).unwrap();
            }
        }
    }
    // Someone else's folder at the path of a run directory.
    workspace.write("theirs.run/events.jsonl", "{}\n");
    workspace.write("theirs.run/scores/part-1.parquet", "x");
    let before = workspace.hashes(&["theirs.run"]);
    for more in [&["--fresh"][..], &[], &["--phase", "score"]] {
        let arguments = ["run", "pipeline.yaml", "-q", "--set", "output.path=theirs"];
        let answer = workspace.longsift(&[&arguments[..], more].concat()).expect(2);
        assert!(
            answer.stderr.contains("theirs.run` was not written by longsift"),
            "{}",
            answer.stderr
        );
    }
    assert_eq!(workspace.hashes(&["theirs.run"]), before);
}

#[test]
fn a_pipeline_with_the_name_of_its_lock_stays() {
    let workspace = workspace();
    let text = pipeline().to_string();
    let json = json!({ "version": 1, "name": "web", "input": { "path": "input" } }).to_string();
    for own in [text, json] {
        workspace.write("web.lock", &own);
        let refused = workspace.longsift(&["lock", "web.lock"]).expect(2).stderr;
        assert!(refused.contains("`web.lock` was not written by longsift"), "{refused}");
        assert_eq!(fs::read_to_string(workspace.path("web.lock")).unwrap(), own);
    }
}

#[test]
fn files_of_longsift_are_overwritten() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let run = [
        "run",
        "pipeline.yaml",
        "-q",
        "--fresh",
        "--summary-file",
        "s.json",
        "--metrics-textfile",
        "m.prom",
    ];
    let map = [
        "map",
        "pipeline.yaml",
        "--document",
        "a-0",
        "--block-tokens",
        "64",
        "--html",
        "m.html",
        "--png",
        "m.png",
        "--parquet",
        "m.parquet",
    ];
    let devices = ["devices", "--csv", "d.csv"];
    let report = ["report", "out.run", "--html", "r.html"];
    let lock = ["lock", "pipeline.yaml"];
    workspace.write("s.json", "");
    for _ in 0..2 {
        for command in [&run[..], &map, &devices, &report, &lock, &["manual", "pages"]] {
            workspace.longsift(command).success();
        }
    }
    assert_eq!(read_json(&workspace.path("s.json"))["status"], "done");
}

#[test]
fn clearing_a_cache_removes_only_files_of_longsift() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let hexadecimal = format!("cache/longsift/lines/{}.json", "0".repeat(64));
    let foreign = [
        hexadecimal.as_str(),
        "cache/longsift/tables/customers.csv",
        "cache/longsift/tables/00.table",
        "cache/longsift/identities/people.json",
        "cache/longsift/hub/own/notes",
        "cache/longsift/hub/notes",
        "cache/longsift/stores/notes",
        "cache/longsift/journals/notes",
        "cache/longsift/journals/own/notes",
        "out.run/notes",
    ];
    for name in foreign {
        workspace.write(name, "precious");
    }
    let clear = [
        "cache",
        "--folder",
        "cache/longsift",
        "--runs",
        ".",
        "--clear",
        "tables,identities,lines,hub,stores,journals,runs",
        "--format",
        "json",
    ];
    let answer = workspace.longsift(&clear).success();
    let cleared: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(cleared["foreign"].as_array().unwrap().len(), foreign.len(), "{cleared}");
    assert_eq!(
        cleared["removed"].as_array().unwrap().len(),
        2,
        "a table and an identity: {cleared}"
    );
    for name in foreign {
        assert_eq!(fs::read_to_string(workspace.path(name)).unwrap(), "precious", "{name}");
    }
    workspace.longsift(&["verify", "out.run"]).success();
    fs::remove_file(workspace.path("out.run/notes")).unwrap();
    workspace.longsift(&clear).success();
    assert!(!workspace.path("out.run").exists() && workspace.path("out/data").exists());
}

#[test]
fn an_early_failure_is_in_the_summary_file() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let summary = ["run", "pipeline.yaml", "-q", "--summary-file", "s.json"];
    for (more, code) in [
        (&["--phase", "select", "--shard", "0/2"][..], 2),
        (&["--locked"][..], 3),
        (&["--set", "nothing.like.it=1"][..], 2),
    ] {
        workspace.longsift(&summary).success();
        assert_eq!(read_json(&workspace.path("s.json"))["exit_code"], 0);
        workspace.write("pipeline.lock", "{");
        let answer = workspace.longsift(&[&summary[..], more].concat()).expect(code);
        fs::remove_file(workspace.path("pipeline.lock")).unwrap();
        let written = read_json(&workspace.path("s.json"));
        assert_eq!((&written["exit_code"], &written["status"]), (&json!(code), &json!("failed")));
        assert_eq!(answer.summary(), written);
    }
}

#[test]
fn commit_failures_are_detected_before_the_run() {
    let workspace = workspace();
    for file in ["out", "out.run", "out.run/selection", "out.run/scores", "out/data"] {
        workspace.write(file, "x");
        workspace.write("pipeline.yaml", pipeline().to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
        assert!(answer.contains(&format!("{file}` is a file")), "{file}: {answer}");
        let first = workspace.path(file.split('/').next().unwrap());
        if first.is_dir() {
            fs::remove_dir_all(first).unwrap();
        } else {
            fs::remove_file(first).unwrap();
        }
    }
}

#[test]
fn files_of_others_in_working_folders_stay() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let names =
        ["staging", "written", "fresh", "journal", "answers", "fresh/scores", "staging/own/deeper"];
    for command in [&["--fresh"][..], &[], &["--set", "stages.filter.keep_fraction=0.75"]] {
        let files = names.map(|name| format!("out.run/{name}/notes.txt"));
        for file in &files {
            workspace.write(file, "somebody's notes\n");
        }
        workspace.run_with(&pipeline(), command);
        for file in files {
            assert_eq!(fs::read(workspace.path(&file)).unwrap(), b"somebody's notes\n", "{file}");
        }
    }
    let left = files_below(&workspace.path("out.run/staging"));
    assert_eq!(left.len(), 2, "no file of the run is left: {left:?}");
    // A folder of data files that an interrupted run left.
    for name in
        [".staging/.longsift", ".staging/train-00000-of-00001.parquet", ".staging/own/notes.txt"]
    {
        workspace.write(&format!("out/{name}"), "longsift fills and clears this folder.\n");
    }
    workspace.run(&pipeline());
    let left = files_below(&workspace.path("out/.staging"));
    assert!(left.iter().any(|path| path.ends_with("own/notes.txt")), "{left:?}");
    assert!(!left.iter().any(|path| path.ends_with("train-00000-of-00001.parquet")), "{left:?}");
    // The cache command does not remove the run directory, either.
    let cleared = workspace.longsift(&["cache", "--runs", ".", "--clear", "runs"]).success().stdout;
    assert!(cleared.contains("out.run/journal/notes.txt"), "{cleared}");
}

#[test]
fn a_data_file_of_the_recorded_size_is_replaced_only_if_its_bytes_are() {
    for format in ["parquet", "jsonl-zst", "megatron"] {
        let workspace = workspace();
        let pipeline = pipeline().output(&format!("format: {format}"));
        workspace.write("pipeline.yaml", pipeline.to_string());
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
        let path = files_below(&workspace.path("out/data")).remove(0);
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        let earlier = fs::metadata(&path).unwrap().modified().unwrap() - Duration::from_mins(1);
        for time in [None, Some(earlier)] {
            fs::write(&path, &changed).unwrap();
            if let Some(time) = time {
                fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            }
            for command in [&[][..], &["--set", "stages.filter.keep_fraction=0.75"]] {
                let command = [&["run", "pipeline.yaml", "-q"], command].concat();
                let refused = workspace.longsift(&command).expect(2).stderr;
                assert!(refused.contains("which was changed after a run wrote it"), "{refused}");
                assert!(refused.contains("`--fresh`"), "{refused}");
                assert_eq!(fs::read(&path).unwrap(), changed, "{format}");
            }
        }
        workspace.longsift(&["run", "pipeline.yaml", "-q", "--fresh"]).success();
        assert_eq!(fs::read(&path).unwrap(), whole, "{format}");
        // A file with equal bytes is ours, with any modification time.
        fs::write(&path, &whole).unwrap();
        let another = ["run", "pipeline.yaml", "-q", "--set", "stages.filter.keep_fraction=0.75"];
        workspace.longsift(&another).success();
    }
}

#[test]
fn a_finished_run_restores_missing_files_of_its_selection() {
    let workspace = workspace();
    let pipeline = pipeline().output("card: true, report: true");
    workspace.run(&pipeline);
    let before = workspace.results();
    for file in
        ["out/README.md", "out.run/report.html", "out.run/calibration.json", "out.run/selection"]
    {
        let path = workspace.path(file);
        let path = if path.is_dir() { files_below(&path).remove(0) } else { path };
        fs::remove_file(&path).unwrap();
        workspace.longsift(&["verify", "out.run"]).expect(3);
        let summary = workspace.run(&pipeline);
        assert_eq!(
            (&summary["status"], &summary["windows_scored"]),
            (&json!("done"), &json!(0)),
            "{file}"
        );
        assert!(path.exists(), "{file}");
        workspace.longsift(&["verify", "out.run"]).success();
        assert_eq!(workspace.results(), before);
    }
}

#[test]
fn a_selection_that_failed_leaves_a_run_that_verifies() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let checks = format!(
        "{}checks: [{{figure: rows_in, min: 1000000}}]\n",
        pipeline().filter("keep_fraction: 1")
    );
    workspace.write("pipeline.yaml", checks);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(6);
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn shards_with_different_settings_do_not_both_succeed() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().input("unit_bytes: 1024").to_string());
    let shard = |index: &str, more: &[&str]| {
        let arguments = ["run", "pipeline.yaml", "-q", "--phase", "score", "--shard", index];
        workspace.start(&[&arguments[..], more].concat())
    };
    let mut both =
        [shard("0/2", &[]), shard("1/2", &["--set", "stages.tokenize.window_tokens=32"])];
    let codes = both.each_mut().map(|shard| shard.wait().unwrap().code());
    assert!(codes.contains(&Some(2)), "{codes:?}");
}
