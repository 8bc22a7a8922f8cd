//! Commands other than `run` and `plan`, and behaviour common to all commands.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::faults::Pause;
use crate::support::pages;
use crate::support::tables::{corpus, write_parquet};
use crate::support::{
    Answer, Pipeline, Tiny, Workspace, demo_model, files_below, read_json, repository,
};

/// Two documents of three windows.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[96, 96]), 1);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 32).to_string());
    workspace
}

fn schema(workspace: &Workspace, name: &str) -> Value {
    serde_json::from_str(&workspace.longsift(&["schema", name]).success().stdout).unwrap()
}

#[test]
fn the_starter_is_valid_and_never_overwritten() {
    let workspace = Workspace::new();
    workspace.longsift(&["init", "--output", "new/mine.yaml"]).expect(4);
    let answer = workspace.longsift(&["init", "mine.yaml"]).expect(2);
    assert!(answer.stderr.contains("use `--output mine.yaml`"), "{}", answer.stderr);
    let answer = workspace.longsift(&["init", "--output", "mine.yaml"]).success();
    assert!(answer.stdout.starts_with("wrote `mine.yaml` and `pipeline.schema.json`; next: "));
    let written = fs::read_to_string(workspace.path("mine.yaml")).unwrap();
    let schema = written.lines().next().unwrap().split_once("$schema=").unwrap().1;
    assert_eq!(
        read_json(&workspace.path(schema)),
        read_json(&repository().join("schemas/pipeline.schema.json"))
    );
    let answer = workspace.longsift(&["validate", "mine.yaml"]).success();
    assert!(answer.stdout.contains("is a valid pipeline"), "{}", answer.stdout);
    assert_eq!(answer.stderr, "");
    workspace.longsift(&["init", "--output", "ours.yaml", "--model", "models/a b"]).success();
    let plan = workspace.longsift(&["plan", "ours.yaml"]).expect(2);
    assert!(plan.stderr.contains("models/a b"), "the plan names the given model: {}", plan.stderr);
    workspace.write("mine.yaml", "changed: true\n");
    let answer = workspace.longsift(&["init", "--output", "mine.yaml"]).expect(2);
    assert!(answer.stderr.contains("`mine.yaml` already exists"), "{}", answer.stderr);
    assert_eq!(fs::read(workspace.path("mine.yaml")).unwrap(), b"changed: true\n");
    workspace.write("pipeline.schema.json", "{}");
    workspace.longsift(&["init", "--output", "other.yaml"]).expect(2);
    assert_eq!(fs::read(workspace.path("pipeline.schema.json")).unwrap(), b"{}");
    assert!(!workspace.path("other.yaml").exists());
}

/// Lines of JSON, one for each length in words.
fn documents(lengths: &[usize]) -> String {
    let line = |(row, words): (usize, &usize)| {
        let text: Vec<String> =
            (0..*words).map(|word| format!("w{}", (row * 31 + word * word) % 977)).collect();
        json!({ "id": format!("d{row}"), "source": "x", "text": text.join(" ") }).to_string() + "\n"
    };
    lengths.iter().enumerate().map(line).collect()
}

#[test]
fn init_for_given_inputs_writes_a_runnable_pipeline() {
    let workspace = Workspace::new();
    let tokenizer = demo_model().display().to_string();
    workspace.write("corpus/a.jsonl", documents(&[4000; 6]));
    workspace.write("corpus/b.jsonl", documents(&[4000, 100, 100]));
    let inputs = ["init", "corpus/a.jsonl", "corpus/b.jsonl", "--tokenizer", &tokenizer];
    let init = workspace.longsift(&inputs).success();
    assert!(init.stdout.contains("next: `longsift plan pipeline.yaml`"), "{}", init.stdout);
    let written = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
    for line in ["path: corpus/*.jsonl ", "id_column: id ", "text_column: text ", "#   source: "] {
        assert!(written.contains(line), "{line} in {written}");
    }
    let window = written.split_once("window_tokens: ").unwrap().1;
    let window: u64 = window.split_whitespace().next().unwrap().parse().unwrap();
    assert!(window.is_power_of_two() && window >= 4096, "{window}: a word is at least a token");
    let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!(
        (&summary["rows_in"], &summary["rows_dropped"]["short_document"]),
        (&json!(9), &json!(2))
    );
    // Token ids need no tokenizer; text does.
    write_parquet(&workspace.path("ids/a.parquet"), &corpus("a", &[3000, 3000]), 1);
    let ids = ["init", "ids", "--output", "ids.yaml"];
    workspace.longsift(&ids).success();
    workspace.longsift(&["run", "ids.yaml", "-q"]).success();
    workspace.write("two/a.jsonl", r#"{"summary": "a b", "Body Content": "c d"}"#);
    let named = ["init", "two", "--column", "Body Content", "--tokenizer", &tokenizer];
    workspace.longsift(&[&named[..], &["--output", "named.yaml"]].concat()).success();
    let written = fs::read_to_string(workspace.path("named.yaml")).unwrap();
    assert!(written.contains("text_column: \"Body Content\""), "{written}");
    for (inputs, why) in [
        (&["init", "corpus", "--output", "x.yaml"][..], "add `--tokenizer FOLDER`"),
        (
            &["init", "corpus/a.jsonl", "ids/a.parquet", "--output", "x.yaml"],
            "expected all files of one folder",
        ),
        (&["init", "corpus/none.jsonl", "--output", "x.yaml"], "corpus/none.jsonl"),
        (&["init", "corpus/*.csv", "--output", "x.yaml"], "one glob in quotes"),
        (
            &["init", "corpus", "--tokenizer", "none", "--output", "x.yaml"],
            "--> x.yaml (not written):",
        ),
        (&["init", "--tokenizer", "x", "--output", "x.yaml"], "requires an input"),
        (&["init", "--column", "x", "--output", "x.yaml"], "requires an input"),
        (&["init", "two", "--output", "x.yaml"], "name it with `--column NAME`"),
        (&["init", "two", "--column", "third", "--output", "x.yaml"], "`third`"),
    ] {
        let answer = workspace.longsift(inputs).expect(2);
        assert!(answer.stderr.contains(why), "{why}: {}", answer.stderr);
        assert!(!workspace.path("x.yaml").exists());
    }
}

#[test]
fn init_names_types_as_users_write_them_and_refuses_parameters() {
    let workspace = Workspace::new();
    let tokenizer = demo_model().display().to_string();
    workspace.write("a.jsonl", documents(&[60, 200]));
    workspace.longsift(&["init", "a.jsonl", "--tokenizer", &tokenizer]).success();
    let pipeline = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
    assert!(pipeline.contains("string") && !pipeline.contains("Utf8"), "{pipeline}");
    let refused = workspace.longsift(&["init", "${date}.parquet", "--output", "b.yaml"]).expect(2);
    assert!(refused.stderr.contains("`${date}.parquet` contains `${`"), "{}", refused.stderr);
    assert!(refused.stderr.contains("declare the parameter in `params`"), "{}", refused.stderr);
    for address in ["ftp://bob:secret-one@host/x.parquet", "S3://bob:secret-one@bucket/x"] {
        let refused =
            workspace.longsift(&["init", address, "--output", "c.yaml"]).expect(2).to_text();
        assert!(refused.contains("the input cannot be the address"), "{refused}");
        assert!(!refused.contains("secret-one") && !refused.contains("bob"), "{refused}");
    }
    let typed = ["init", "https:/bob:secret-one@host/x.parquet", "--output", "c.yaml"];
    let refused = workspace.longsift(&typed).expect(2).to_text();
    assert!(refused.contains("one slash after `https:`"), "{refused}");
    assert!(!refused.contains("secret-one"), "{refused}");
    let set = ["plan", "pipeline.yaml", "--set", "output.path=s3:/bucket/out"];
    let refused = workspace.longsift(&set).expect(2).stderr;
    assert!(refused.contains("`path` has one slash after `s3:`"), "{refused}");
    for address in
        ["http://bob:secret-one@host/x.parquet", "https://host/x.jsonl?X-Amz-Signature=secret-one"]
    {
        for input in [&["init", address][..], &["init", "a.jsonl", "--model", address]] {
            let refused =
                workspace.longsift(&[input, &["--output", "c.yaml"]].concat()).expect(2).to_text();
            assert!(refused.contains("does not write into a pipeline"), "{refused}");
            assert!(!refused.contains("secret-one") && !refused.contains("bob"), "{refused}");
        }
    }
}

#[test]
fn a_plan_counts_the_documents_that_are_too_short() {
    let workspace = Workspace::new();
    let tokenizer = demo_model().display().to_string();
    workspace.write("corpus/a.jsonl", documents(&[&[10; 60][..], &[200, 200]].concat()));
    let init = ["init", "corpus", "--tokenizer", &tokenizer];
    let stderr = workspace.longsift(&init).success().stderr;
    assert!(stderr.contains("62 of 62 documents are shorter than a window of 1,024"), "{stderr}");
    let set = |command: &str, more: &[&str]| {
        let set = [command, "pipeline.yaml", "--set", "stages.tokenize.window_tokens=128"];
        workspace.longsift(&[&set, more].concat())
    };
    let short = set("plan", &[]).success();
    let line = "documents              all 62 read: 60 too short for a window";
    assert!(short.stdout.contains(line), "{}", short.stdout);
    let warning = "60 of 62 documents are shorter than a window of 128 tokens";
    assert!(short.stderr.contains(warning), "{}", short.stderr);
    let json: Value =
        serde_json::from_str(&set("plan", &["--format", "json"]).success().stdout).unwrap();
    let sample = &json["sample"];
    assert_eq!((&sample["too_short"], &sample["documents"]), (&json!(60), &json!(62)));
    let summary = set("run", &["-q"]).summary();
    assert_eq!(summary["windows_total"], json["estimate"]["windows"], "all documents were read");
    assert_eq!(summary["tokens_total"], json["estimate"]["tokens"]);
    // The scores of the run were made with other settings.
    let scored = set("plan", &["--set", "stages.tokenize.short_documents=score"]).expect(2);
    assert!(!scored.stderr.contains("would be dropped"), "{}", scored.stderr);
}

#[test]
fn a_run_ends_with_its_paths() {
    let workspace = workspace();
    let run =
        |more: &[&str]| workspace.longsift(&[&["run", "pipeline.yaml"], more].concat()).success();
    let first = run(&["--format", "text"]);
    assert_eq!(first.stdout, "");
    for line in ["  data         ", "out/data\n", "  report       longsift report ", "out.run\n"] {
        assert!(first.stderr.contains(line), "{line}: {}", first.stderr);
    }
    let again = run(&["--format", "json"]);
    assert_eq!(again.summary()["status"], "nothing_to_do");
    assert!(again.stderr.contains("out/data\n"), "{}", again.stderr);
    let same = run(&["--set", "stages.filter.keep_fraction=0.51"]);
    assert!(!same.stderr.contains("replaces one of"), "{}", same.stderr);
    assert_eq!(same.summary()["status"], "done");
    let other = run(&["--set", "stages.filter.keep_fraction=1"]);
    assert!(other.stderr.contains("selection of 6 samples replaces one of "), "{}", other.stderr);
    assert!(!run(&["-q"]).stderr.contains("out/data"));
}

/// Returns what a command prints on a terminal.
fn on_a_terminal(workspace: &Workspace, arguments: &[&str]) -> String {
    let plain = workspace.command(arguments);
    let words = std::iter::once(plain.get_program()).chain(plain.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.display())).collect();
    let mut command = workspace.command_after("script -qec \"$LINE\" /dev/null && :", arguments);
    command.env("LINE", words.join(" ")).env("SHELL", "/bin/sh").stdin(Stdio::null());
    Answer::from_output(command.output().expect("a shell")).success().stdout
}

#[test]
#[cfg_attr(not(longsift_script), ignore = "needs the program `script`: util-linux")]
fn a_run_on_a_terminal_prints_json_only_on_request() {
    let workspace = workspace();
    let shown = on_a_terminal(&workspace, &["run", "pipeline.yaml"]);
    assert!(shown.contains("out/data\r\n"), "{shown}");
    assert!(!shown.contains("{\"") && !shown.contains("\"status\""), "{shown}");
    for (format, is_json) in [("json", true), ("text", false)] {
        let run = ["run", "pipeline.yaml", "-q", "--format", format];
        let shown = on_a_terminal(&workspace, &run);
        assert_eq!(shown.contains("\"status\":\"nothing_to_do\""), is_json, "{shown}");
    }
}

#[test]
fn the_product_is_described_in_one_sentence() {
    let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
    let manifest = read("engine/Cargo.toml");
    let sentence = manifest
        .lines()
        .find_map(|line| line.strip_prefix("description = "))
        .unwrap()
        .trim_matches('"');
    let help = Workspace::new().longsift(&["--help"]).success().stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.starts_with(sentence), "{help}");
    for file in ["README.md", "pyproject.toml", "python/src/longsift/__init__.py"] {
        assert!(read(file).contains(sentence), "{file}");
    }
}

#[test]
fn validate_opens_no_file_and_shows_every_mistake() {
    let workspace = Workspace::new();
    workspace.write("right.yaml", Pipeline::tokens("no/such/model", 64).to_string());
    workspace.longsift(&["validate", "right.yaml"]).success();
    let wrong = Pipeline::tokens("model", 1)
        .input("colour: red")
        .score("alpha: high, standardise: zscore")
        .filter("keep_fraction: 2");
    workspace.write("wrong.yaml", wrong.to_string());
    let answer = workspace.longsift(&["validate", "wrong.yaml"]).expect(2);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
    let set = ["validate", "right.yaml", "--set", "stages.filter.keep_fraction=1.5"];
    let answer = workspace.longsift(&set).expect(2);
    assert!(answer.stderr.contains("keep_fraction"), "{}", answer.stderr);
    let unknown = Pipeline::tokens("model", 64).score("terms: [{statistic: far_recurence}]");
    workspace.write("unknown.yaml", unknown.to_string());
    let answer = workspace.longsift(&["validate", "unknown.yaml"]).expect(2);
    assert!(answer.stderr.contains("far_recurence"), "{}", answer.stderr);
    let answer = workspace.longsift(&["validate", "absent.yaml"]).expect(2);
    assert!(answer.stderr.contains("absent.yaml"), "{}", answer.stderr);
}

#[test]
fn every_schema_is_valid_and_matches_the_files_of_runs() {
    let workspace = workspace();
    let names = workspace.longsift(&["schema"]).success().stdout;
    assert!(names.lines().count() >= 5, "{names}");
    for name in names.lines() {
        let schema = schema(&workspace, name);
        jsonschema::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        let committed = read_json(&repository().join(format!("schemas/{name}.schema.json")));
        assert_eq!(schema, committed, "{name}");
    }
    let summary = workspace.run(&Pipeline::tokens("model", 32).score("within: id"));
    workspace.longsift(&["lock", "pipeline.yaml"]).success();
    let file = |name: &str| read_json(&workspace.path("out.run").join(name));
    for (name, instance) in [
        ("summary", summary),
        ("summary", file("summary.json")),
        ("manifest", file("manifest.json")),
        ("calibration", file("calibration.json")),
        ("lock", file("pipeline.lock")),
        ("lock", read_json(&workspace.path("pipeline.lock"))),
    ] {
        let validator = jsonschema::validator_for(&schema(&workspace, name)).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(&instance).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
        assert!(!validator.is_valid(&json!({ "surprise": 1 })), "{name} accepts anything");
    }
    let answer = workspace.longsift(&["schema", "poem"]).expect(2);
    assert!(answer.stderr.contains("expected one of: pipeline"), "{}", answer.stderr);
}

#[test]
fn every_stage_has_a_page_with_all_its_settings() {
    let workspace = Workspace::new();
    let list = workspace.longsift(&["stages"]).success().stdout;
    let pipeline = schema(&workspace, "pipeline").to_string();
    for (stage, settings) in [
        ("load-partial-model", &["model", "precision", "rope_theta", "strict_positions"][..]),
        ("tokenize", &["window_tokens", "windows", "short_documents", "bos", "tokenizer"]),
        ("shard-across-devices", &["devices", "headroom_fraction", "workers_per_device"]),
        ("first-layer-attention", &["min_distance_fraction", "min_distance_tokens", "mask"]),
        ("score", &["alpha", "standardise", "within", "document_score", "calibration"]),
        ("filter", &["keep_fraction", "keep_tokens", "min_score"]),
    ] {
        assert!(list.contains(stage), "{list}");
        let page = workspace.longsift(&["stages", stage]).success().stdout;
        for setting in settings {
            assert!(page.contains(setting), "{setting} in\n{page}");
            assert!(pipeline.contains(setting), "{setting}");
        }
        assert!(!page.contains('\u{1b}'), "no colours if the output is not a terminal");
    }
    let answer = workspace.longsift(&["stages", "tokenise"]).expect(2);
    assert!(answer.stderr.contains("tokenize"), "{}", answer.stderr);
    assert!(answer.stderr.contains("filter, input, output, checks"), "{}", answer.stderr);
}

#[test]
fn a_checkpoint_is_described() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let text = workspace.longsift(&["inspect", "model"]).success().stdout;
    let (machine, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.contains("fit into the free memory"));
    insta::assert_snapshot!(others.join("\n"));
    assert_eq!(machine.len(), 1, "{text}");
    let json = workspace.longsift(&["inspect", "model", "--format", "json"]).success().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["layer"]["query_heads"], 4);
    assert!(json["bytes_to_read"].as_u64() < json["checkpoint_bytes"].as_u64());
    workspace.longsift(&["inspect", "nowhere"]).expect(2);
}

#[test]
fn completions_know_the_commands() {
    let workspace = Workspace::new();
    let script = |shell: &str| workspace.longsift(&["completions", shell]).success().stdout;
    // Completions of a word, computed by bash from the script.
    workspace.write("completions.bash", script("bash"));
    let offered = |words: &str, word: &str, before: &str| -> BTreeSet<String> {
        let complete = format!(
            "source completions.bash; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
             _longsift longsift '{word}' {before}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        let answer = bash.args(["-euc", &complete]).current_dir(workspace.path("")).output();
        Answer::from_output(answer.unwrap()).success().stdout.lines().map(str::to_owned).collect()
    };
    let help = workspace.longsift(&["--help"]).success().stdout;
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let named =
        commands.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let commands: BTreeSet<String> =
        named.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert!(commands.len() > 15 && commands.contains("run"), "{commands:?}");
    let all = offered("longsift ''", "", "longsift");
    assert!(commands.is_subset(&all), "{commands:?} of {all:?}");
    assert_eq!(offered("longsift va", "va", "longsift"), ["validate".to_owned()].into());
    assert!(offered("longsift run --n", "--n", "run").contains("--nothing-to-do-exit"));
    let (zsh, fish) = (script("zsh"), script("fish"));
    for command in &commands {
        assert!(zsh.contains(&format!("'{command}:")), "{command} for zsh");
        assert!(fish.contains(&format!("-a \"{command}\"")), "{command} for fish");
    }
    assert!(zsh.contains("'--nothing-to-do-exit=[") && fish.contains("-l nothing-to-do-exit "));
    workspace.longsift(&["completions", "abacus"]).expect(2);
}

#[test]
fn status_shows_the_progress_of_a_run() {
    let workspace = workspace();
    let status = |name: &str| workspace.longsift(&["status", name, "--format", "json"]);
    assert!(status("out.run").expect(2).stderr.contains("is not a run directory"));
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let json: Value = serde_json::from_str(&status("out.run").success().stdout).unwrap();
    assert_eq!((&json["state"], &json["holder"]), (&json!("finished"), &Value::Null));
    assert_eq!(json["summary"]["kept"], 3);
    assert_eq!((&json["units"], &json["units_scored"]), (&json!(1), &json!(1)));
    let text = workspace.longsift(&["status", "out.run/"]).success().stdout;
    assert!(text.starts_with("finished\n"), "{text}");
    // A run without a process is polled once.
    let watched = workspace.longsift(&["status", "out.run", "--watch"]).success().stdout;
    assert_eq!(watched, "finished: 1 of 1 units, 2 of 2 rows, 6 windows\n");
    fs::remove_file(workspace.path("out.run/_SUCCESS")).unwrap();
    let json: Value = serde_json::from_str(&status("out.run").success().stdout).unwrap();
    assert_eq!(json["state"], "unfinished");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn status_mentions_the_first_unit_before_it_is_scored() {
    let workspace = workspace();
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[2048; 24]), 24);
    for (matching, at) in [("write out.run/journal/", 2), ("create out.run/journal/", 1)] {
        let workspace = Workspace::copy_of(&workspace);
        let is_measured = at > 1;
        let status = |state: &str| {
            let text = workspace.longsift(&["status", "out.run"]).success().stdout;
            assert!(text.starts_with(&format!("{state}\n")), "{matching}: {text}");
            assert!(text.contains("  units     0 of 1 scored\n"), "{matching}: {text}");
            let windows = "  windows   0 measured in these units; 1 more unit is partly measured\n";
            assert!(text.contains(windows) || !is_measured, "{matching}: {text}");
        };
        let run = ["run", "pipeline.yaml", "-q", "--threads", "1"];
        let mut run = workspace.start_paused(&run, &Pause { matching, at });
        run.wait_for_pause();
        status("running");
        run.signal(Signal::TERM);
        run.resume().expect(143);
        status("unfinished");
        let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
        let reused = summary["windows_reused"].as_u64().unwrap();
        assert_eq!(reused > 0, is_measured, "{matching}: {summary}");
    }
}

#[test]
fn parameters_are_declared_set_and_recorded() {
    let workspace = workspace();
    let text = Pipeline::tokens("model", 32).to_string();
    let text = text.replace("path: out", "path: 'out-${date}'");
    let declared = text.replacen("input:", "params: {date: {default: today}}\ninput:", 1);
    workspace.write("pipeline.yaml", &text);
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("${date}"), "{}", answer.stderr);
    workspace.write("pipeline.yaml", &declared);
    workspace.longsift(&["run", "pipeline.yaml"]).success();
    workspace.longsift(&["run", "pipeline.yaml", "--param", "date=2026-11-20"]).success();
    for (folder, value) in [("out-today", "today"), ("out-2026-11-20", "2026-11-20")] {
        let lock = read_json(&workspace.path(&format!("{folder}.run/pipeline.lock")));
        assert_eq!(lock["params"]["date"], value);
        assert_eq!(lock["settings"]["output"]["path"], folder);
    }
    let answer = workspace.longsift(&["run", "pipeline.yaml", "--param", "day=1"]).expect(2);
    assert!(answer.stderr.contains("day"), "{}", answer.stderr);
}

#[test]
fn overrides_are_checked_and_recorded() {
    let workspace = workspace();
    let set = |value: &str| workspace.longsift(&["run", "pipeline.yaml", "-q", "--set", value]);
    assert_eq!(set("stages.filter.keep_fraction=1").success().summary()["kept"], 6);
    let lock = read_json(&workspace.path("out.run/pipeline.lock"));
    assert_eq!(lock["overrides"], json!(["stages.filter.keep_fraction=1"]));
    for wrong in [
        "stages.filter.keep_fraction=many",
        "stages.filter.keep_fractions=0.5",
        "stages.sieve.keep_fraction=0.5",
        "stages.filter.keep_fraction",
    ] {
        let answer = set(wrong).expect(2);
        assert!(answer.stderr.contains("error: "), "{wrong}: {}", answer.stderr);
    }
}

#[test]
fn standard_output_ends_with_the_summary_and_logs_go_to_standard_error() {
    let workspace = workspace();
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert_eq!(answer.stdout.lines().count(), 1, "{}", answer.stdout);
    let summary = answer.summary();
    let run = workspace.path("out.run").canonicalize().unwrap();
    assert_eq!(summary["run_dir"], run.to_str().unwrap());
    for key in [
        "status",
        "rows_in",
        "rows_kept",
        "rows_dropped",
        "quarantined",
        "windows_total",
        "windows_scored",
        "windows_reused",
        "windows_kept",
        "windows_dropped",
        "kept",
        "tokens_total",
        "tokens_scored",
        "seconds",
        "peak_memory_bytes",
    ] {
        assert!(!summary[key].is_null(), "{key}");
    }
    let phases = summary["peak_memory_by_phase"].as_object().unwrap();
    for phase in ["plan", "score", "select", "write"] {
        let peak = phases[phase].as_u64().unwrap();
        let of_all = summary["peak_memory_bytes"].as_u64().unwrap();
        assert!(0 < peak && peak <= of_all, "{phase}: {phases:?}");
    }
    assert_eq!(read_json(&workspace.path("out.run/summary.json"))["kept"], summary["kept"]);
    for part in ["rows", "windows", "tokens", "kept", "time"] {
        let line = answer.stderr.lines().find(|line| line.trim_start().starts_with(part));
        assert!(line.is_some(), "{part} in\n{}", answer.stderr);
    }
    assert_eq!(workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().stderr, "");
    let arguments = ["run", "pipeline.yaml", "--fresh", "--log-format", "json", "-v", "-q"];
    workspace.longsift(&arguments).success();
    for (arguments, rows) in
        [(&arguments[..5], true), (&["run", "pipeline.yaml", "--log-format", "json"], false)]
    {
        let answer = workspace.longsift(arguments).success();
        let events = answer.stderr.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let closing: Vec<Value> = events.filter(|event| event["closing"].is_string()).collect();
        assert_eq!(closing.len(), 1, "{}", answer.stderr);
        let closing = closing[0]["closing"].as_str().unwrap();
        assert!(closing.contains("  data ") && closing.contains("  rows ") == rows, "{closing}");
    }
    let arguments =
        ["plan", "pipeline.yaml", "--log-format", "json", "--set", "input.path=nowhere"];
    let answer = workspace.longsift(&arguments).expect(2);
    for line in answer.stderr.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["level"], "ERROR", "{event}");
    }
}

#[test]
fn an_unusable_kernel_is_rejected_with_the_usable_ones() {
    let workspace = workspace();
    for (kernel, reason) in [
        ("abacus", "unknown kernel `abacus`"),
        // Independent of the machine: this pipeline's precision is f32.
        ("avx512-bf16", "the kernel `avx512-bf16`"),
        ("amx-bf16", "the kernel `amx-bf16`"),
        (
            "portable-int16",
            "the kernel `portable-int16` rounds queries and keys to 16-bit integers, but `precision` is f32",
        ),
    ] {
        let answer = workspace.longsift(&["plan", "pipeline.yaml", "--kernel", kernel]).expect(2);
        assert!(answer.stderr.contains(reason), "{}", answer.stderr);
        let has = "with `precision: f32` this machine has portable-f32";
        assert!(answer.stderr.contains(has), "{}", answer.stderr);
    }
    let set = ["--set", "stages.load-partial-model.precision=bf16"];
    let plan = ["plan", "pipeline.yaml", "--kernel", "portable-f32"];
    workspace.longsift(&[&plan[..], &set[..]].concat()).success();
    // A request for integer arithmetic is never answered with other numbers.
    let set = ["--set", "stages.load-partial-model.precision=int16"];
    let answer = workspace.longsift(&[&plan[..], &set[..]].concat()).expect(2);
    assert!(answer.stderr.contains("multiplies float32 numbers"), "{}", answer.stderr);
    workspace.longsift(&[&["plan", "pipeline.yaml"][..], &set[..]].concat()).success();
    let cards = ["plan", "pipeline.yaml", "--devices", "8xA800-80GB"];
    let answer = workspace.longsift(&[&cards[..], &set[..]].concat()).expect(2);
    assert!(answer.stderr.contains("GPUs have no kernel"), "{}", answer.stderr);
}

#[test]
fn pipeline_problems_are_available_as_json() {
    let workspace = workspace();
    let validate = |arguments: &[&str]| {
        workspace.longsift(&[&["validate", "pipeline.yaml"], arguments].concat())
    };
    let valid = validate(&["--format", "json"]).success();
    let answer: Value = serde_json::from_str(&valid.stdout).unwrap();
    assert_eq!((&answer["valid"], &answer["problems"]), (&json!(true), &json!([])));
    assert_eq!(validate(&["--format", "github"]).success().stdout, "");
    let text = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
    let wrong =
        text.replace("window_tokens: ", "window_tokens: -").replace("version: 1", "version: 7");
    workspace.write("pipeline.yaml", &wrong);
    let line = 1 + wrong.lines().position(|line| line.contains("window_tokens: -")).unwrap();
    let answer = validate(&["--format", "json"]).expect(2);
    assert_eq!(answer.stderr, "");
    let found: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(found["valid"], false);
    let problems = found["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2, "{found:#}");
    assert_eq!(problems[1]["place"]["text"]["line"], line, "{found:#}");
    let answer = validate(&["--format", "github"]).expect(2);
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", answer.stdout);
    let start = format!("::error file=pipeline.yaml,line={line},col=");
    assert!(lines[1].starts_with(&start), "{}", answer.stdout);
    // Errors of the command line name no file.
    workspace.write("pipeline.yaml", &text);
    let answer = validate(&["--format", "github", "--set", "version=7"]).expect(2);
    assert!(answer.stdout.starts_with("::error::"), "{}", answer.stdout);
}

#[test]
fn pipelines_can_have_tests() {
    let workspace = Workspace::new();
    let tokenizer = demo_model().canonicalize().unwrap();
    let pipeline = Pipeline::text("model", 64)
        .without_model(Some(tokenizer.to_str().unwrap()))
        .measure("recurrence")
        .score("terms: [{statistic: far_recurrence}]")
        .filter("keep_fraction: 1, guards: [{statistic: copy_share, max: 0.5}]");
    workspace.write("web.yaml", format!("{pipeline}\nchecks: [{{figure: rows_in, min: 1000}}]\n"));
    let words: Vec<String> = (0..80).map(|word| format!("word{word}")).collect();
    workspace.write("fixtures/long.txt", words.join(" "));
    let copies = "again and again the same few words come back; ".repeat(40);
    workspace.write("fixtures/copies.txt", copies);
    let tests = "\
tests:
  - name: copies are refused
    rows:
      - {document: {id: a}, text_file: fixtures/long.txt, fate: kept}
      - {document: {id: b}, text_file: fixtures/copies.txt, fate: guard_copy_share, kept: 0}
      - {document: {id: c, text: short}, fate: short_document}
      - {document: {id: d, text: null}, fate: quarantined}
  - name: short ones may be scored
    set: [stages.tokenize.short_documents=score]
    rows: [{document: {id: c, text: some words more than one}, fate: not kept}]
";
    workspace.write("web.tests.yaml", tests);
    let answer = workspace.longsift(&["test", "web.yaml", "--format", "json"]);
    let found: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(found["tests"][0]["passed"], true, "{found:#}");
    assert_eq!(found["tests"][1]["passed"], false, "it is kept: {found:#}");
    assert_eq!((answer.code, &found["passed"]), (6, &json!(false)));
    assert!(!workspace.path("out").exists() && !workspace.path("out.run").exists());
    workspace.write("web.tests.yaml", tests.replace("fate: not kept", "fate: kept"));
    let answer = workspace.longsift(&["test", "web.yaml"]).success();
    assert!(answer.stdout.ends_with("2 passed, 0 failed\n"), "{}", answer.stdout);
    // Errors in the tests, or in the pipeline for one of them, name the location.
    workspace.write("web.tests.yaml", tests.replace("name: short", "nome: short"));
    let answer = workspace.longsift(&["test", "web.yaml"]).expect(2);
    assert!(answer.stderr.contains("web.tests.yaml:8:"), "{}", answer.stderr);
    workspace
        .write("web.tests.yaml", tests.replace("short_documents=score", "short_documents=sing"));
    let answer = workspace.longsift(&["test", "web.yaml"]).expect(2);
    let location = "in the test `short ones may be scored`, ";
    assert!(answer.stderr.contains(location), "{}", answer.stderr);
    for empty in ["", "# c\n", "tests:\n", "tests: []\n"] {
        workspace.write("web.tests.yaml", empty);
        let answer = workspace.longsift(&["test", "web.yaml"]).expect(2);
        assert!(answer.stderr.contains("no tests found"), "{empty:?}: {}", answer.stderr);
    }
    fs::remove_file(workspace.path("web.tests.yaml")).unwrap();
    let answer = workspace.longsift(&["test", "web.yaml"]).expect(2);
    assert!(answer.stderr.contains("tests file `web.tests.yaml` not found"), "{}", answer.stderr);
}

#[test]
fn caches_and_old_runs_are_listed_and_cleared_by_name() {
    let workspace = workspace();
    workspace.longsift(&["run", "pipeline.yaml"]).success();
    let cache = |more: &[&str]| -> Value {
        let all = [&["cache", "--runs", ".", "--format", "json"], more].concat();
        serde_json::from_str(&workspace.longsift(&all).success().stdout).unwrap()
    };
    let entries = |kept: &Value, kind: &str| {
        let kinds = kept["kinds"].as_array().unwrap().iter();
        let of_kind = kinds.filter(|entry| entry["kind"] == kind);
        of_kind.map(|entry| entry["entries"].as_array().unwrap().len()).sum::<usize>()
    };
    let kept = cache(&[]);
    assert_eq!(entries(&kept, "tables"), 1, "{kept:#}");
    assert_eq!(kept["runs"][0]["state"], "finished", "{kept:#}");
    assert!(kept["runs"][0]["bytes"].as_u64().unwrap() > 1000, "{kept:#}");
    let kept = cache(&["--clear", "tables,runs", "--unused-days", "1"]);
    assert_eq!(kept["removed"], json!([]), "both were used today");
    // To list a run is not to use it.
    let now = SystemTime::now();
    let days_ago = |days: u64| now - Duration::from_secs(days * 86_400);
    let old = fs::FileTimes::new().set_accessed(days_ago(40)).set_modified(days_ago(41));
    for file in files_below(&workspace.path("out.run")) {
        fs::File::options().write(true).open(file).unwrap().set_times(old).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(cache(&[])["runs"][0]["unused_days"], 40);
    }
    let kept = cache(&["--clear", "runs", "--unused-days", "41"]);
    assert_eq!(kept["removed"], json!([]));
    let manifest = fs::File::open(workspace.path("out.run/manifest.json")).unwrap();
    manifest.set_times(fs::FileTimes::new().set_accessed(now)).unwrap();
    assert_eq!(cache(&[])["runs"][0]["unused_days"], 0, "another program has read it");
    let kept = cache(&["--clear", "tables"]);
    assert_eq!((entries(&kept, "tables"), kept["removed"].as_array().unwrap().len()), (0, 1));
    // A journal that a process writes.
    let folder = Path::new(kept["folder"].as_str().unwrap()).join("journals/0123456789abcdef");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(".longsift"), "").unwrap();
    let journal = fs::File::create(folder.join("0123456789abcdef")).unwrap();
    journal.lock().unwrap();
    let kept = cache(&["--clear", "journals"]);
    assert_eq!((&kept["removed"], kept["in_use"].as_array().unwrap().len()), (&json!([]), 1));
    drop(journal);
    let kept = cache(&["--clear", "journals"]);
    assert_eq!(kept["removed"].as_array().unwrap().len(), 1);
    assert!(!folder.exists());
    // An unfinished run can be continued, so it stays.
    let success = workspace.path("out.run/_SUCCESS");
    fs::rename(&success, workspace.path("success")).unwrap();
    let kept = cache(&["--clear", "runs"]);
    assert_eq!(kept["runs"][0]["state"], "unfinished", "{kept:#}");
    fs::rename(workspace.path("success"), &success).unwrap();
    cache(&["--clear", "runs"]);
    assert!(!workspace.path("out.run").exists());
    assert!(workspace.path("out/data").exists(), "the output stays");
    workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    workspace.longsift(&["run", "pipeline.yaml", "--fresh"]).expect(2);
    let answer = workspace.longsift(&["cache", "--clear", "tabels"]).expect(2);
    assert!(answer.stderr.contains("expected one of: tables, identities"), "{}", answer.stderr);
    workspace.longsift(&["cache", "--clear", "runs"]).expect(2);
}

#[test]
fn a_wrong_command_line_has_exit_code_2() {
    let workspace = workspace();
    for arguments in [
        &["sift"][..],
        &[],
        &["run"],
        &["run", "pipeline.yaml", "--thread", "2"],
        &["run", "pipeline.yaml", "--threads", "0"],
        &["run", "pipeline.yaml", "--limit", "-1"],
        &["run", "pipeline.yaml", "--kernel", "abacus"],
        &["run", "pipeline.yaml", "--scores-from", "input"],
    ] {
        let answer = workspace.longsift(arguments).expect(2);
        assert!(!answer.stderr.is_empty(), "{arguments:?}");
    }
    assert!(!workspace.path("out.run").exists());
    let version = workspace.longsift(&["--version"]).success().stdout;
    assert!(version.starts_with("longsift "), "{version}");
}

#[test]
fn bench_measures_kernels_the_table_and_whole_runs() {
    let workspace = workspace();
    let answer = workspace
        .longsift(&[
            "bench",
            "pipeline.yaml",
            "--windows",
            "16,32",
            "--head-dims",
            "32",
            "--repeats",
            "1",
            "--json",
            "bench.json",
            "--chart",
            "bench.svg",
            "--html",
            "bench.html",
            "-q",
        ])
        .success();
    let bench = read_json(&workspace.path("bench.json"));
    let measurements = bench["figures"].as_array().unwrap();
    for group in ["kernel", "table", "run by window", "run by threads", "run by documents"] {
        let of_group: Vec<f64> = measurements
            .iter()
            .filter(|measurement| measurement["group"] == group)
            .map(|measurement| measurement["value"].as_f64().unwrap())
            .collect();
        assert!(!of_group.is_empty() && of_group.iter().all(|value| *value > 0.0), "{group}");
        assert!(answer.stdout.contains(group), "{}", answer.stdout);
    }
    let chart = fs::read_to_string(workspace.path("bench.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("run by window"), "{chart}");
    // The page has every number: in the table, and as a line or a bar.
    let page = fs::read_to_string(workspace.path("bench.html")).unwrap();
    pages::check_harmless(&page, 0);
    for id in ["kernel", "table", "runbywindow", "runbythreads", "runbydocuments", "figures"] {
        assert!(page.contains(&format!("<h2 id=\"{id}\">")), "{id}");
    }
    let table = page.split("id=\"figures\"").nth(1).unwrap();
    assert_eq!(table.matches("<tr><td>").count(), measurements.len());
    let drawn = page.split("id=\"figures\"").next().unwrap();
    let dots = drawn.matches("stroke-width=\"7\"").count();
    assert!(dots + drawn.matches("<rect").count() >= measurements.len());
    assert!(!workspace.path("out").exists() && !workspace.path("out.run").exists());
    workspace.longsift(&["bench", "--windows", "0"]).expect(2);
}
