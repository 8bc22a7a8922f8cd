//! `longsift plan`: every pipeline in the repository, and every reason to reject one, with its full message.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, StructArray};
use arrow_schema::{DataType, Field};
use serde_json::{Value, json};

use crate::support::tables::{corpus, strings, table, token_lists, write_parquet};
use crate::support::{
    Answer, Pipeline, Tiny, Workspace, demo_model, files_below, read_json, repository,
};

/// Arguments that make the plan independent of the machine.
const MACHINE: [&str; 4] = ["--threads", "2", "--kernel", "portable-f32"];

/// Copies the tokenizer of the demo model next to a checkpoint.
fn add_tokenizer(folder: &Path) {
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(demo_model().join(name), folder.join(name)).unwrap();
    }
}

/// A checkpoint that fits the demo tokenizer.
fn model() -> Tiny {
    Tiny::new().with("vocab_size", json!(8192))
}

/// Small stand-ins for the corpus and the checkpoint that the pipelines of the paper name.
fn papers_folder(workspace: &Workspace) {
    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
    let folder = workspace.path("models/Llama-3.1-8B");
    model()
        .with("max_position_embeddings", json!(131_072))
        .with("rope_theta", json!(500_000.0))
        .with("rope_scaling", llama3)
        .write(&folder);
    add_tokenizer(&folder);
    let texts: Vec<String> =
        (0..6).map(|row| "The sea was calm that night. ".repeat(1000 * (row + 1))).collect();
    let input = table(&[
        ("data_id", strings((0..6).map(|row| row.to_string()))),
        ("text", strings(texts)),
        ("source", strings((0..6).map(|row| ["books", "code"][row % 2]))),
    ]);
    write_parquet(&workspace.path("data/part-0.parquet"), &input, 2);
}

#[test]
fn every_included_pipeline_can_be_planned() {
    for file in files_below(&repository().join("pipelines")) {
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = file.file_stem().unwrap().to_str().unwrap();
        let workspace = Workspace::new();
        workspace.link("datasets", &repository().join("datasets"));
        papers_folder(&workspace);
        let path = format!("pipelines/{name}.yaml");
        workspace.write(&path, fs::read(&file).unwrap());
        let answer = workspace.longsift(&[&["plan", &path][..], &MACHINE].concat()).success();
        insta::assert_snapshot!(name, workspace.filtered(&answer.to_text()));
        let json =
            workspace.longsift(&[&["plan", &path, "--format", "json"][..], &MACHINE].concat());
        let json: Value = serde_json::from_str(&json.success().stdout).unwrap();
        assert_eq!(json["pipeline"], name);
        let without_model = ["balanced-recurrence", "demo-gain", "olmo3-gzip2080"].contains(&name);
        let threads = if without_model { Value::Null } else { 2.into() };
        assert_eq!(json["device"]["threads"], threads, "{name}");
        let made = ["out", "out.run"].iter().any(|name| workspace.path(name).exists());
        assert!(!made && !workspace.path("cache").exists(), "a plan writes nothing");
    }
}

#[test]
fn a_plan_shows_finished_work() {
    let workspace = Workspace::new();
    let input = table(&[("id", strings(["a"])), ("tokens", token_lists(&[vec![7; 100]]))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    Tiny::new().write(&workspace.path("model"));
    let done = || {
        let answer = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success();
        serde_json::from_str::<Value>(&answer.stdout).unwrap()["done"].clone()
    };
    let expected = |units: u64, windows: u64, finished: bool| json!({ "work_units": units, "windows": windows, "finished": finished, "refused": null });
    let pipeline = Pipeline::tokens("model", 32).filter("keep_fraction: 1");
    workspace.write("pipeline.yaml", pipeline.to_string());
    assert_eq!(done(), expected(0, 0, false));
    workspace.run(&pipeline);
    assert_eq!(done(), expected(1, 3, true));
    let text = workspace.longsift(&["plan", "pipeline.yaml"]).success().stdout;
    assert!(text.contains("a run would do nothing") && text.contains("(cached)"), "{text}");
    let plan = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success();
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let written =
        files_below(&workspace.path("out.run/scores")).remove(0).metadata().unwrap().len();
    assert!(plan["estimate"]["scores_bytes"].as_u64().unwrap() >= written, "{plan:#}");
    workspace.write("pipeline.yaml", pipeline.score("alpha: 2").to_string());
    assert_eq!(done(), expected(1, 3, false));
}

#[test]
fn a_window_beyond_the_positions_is_a_warning_by_default() {
    let workspace = right();
    workspace.write("pipeline.yaml", RIGHT.replace("window_tokens: 256", "window_tokens: 8192"));
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
}

#[test]
fn an_input_without_files_is_refused_unless_it_may_be_empty() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    workspace.write("input/notes.txt", "no data");
    for path in ["input", "input/*.parquet", "input/2026-*/x.parquet"] {
        let pipeline = Pipeline::tokens("model", 32);
        let input = pipeline.input.replace("path: input", &format!("path: '{path}'"));
        let refused = Pipeline { input, ..pipeline };
        workspace.write("pipeline.yaml", refused.to_string());
        for command in [&["run", "pipeline.yaml", "-q"][..], &["plan", "pipeline.yaml"]] {
            let answer = workspace.longsift(command).expect(2);
            let message = format!("error: `{path}` matches no file");
            assert!(answer.stderr.contains(&message), "{}", answer.stderr);
            assert!(answer.stderr.contains("`allow_empty: true`"), "{}", answer.stderr);
        }
        let summary = workspace.run(&refused.input("allow_empty: true"));
        assert!(summary["status"] == "done" || summary["status"] == "nothing_to_do", "{summary}");
        assert_eq!(summary["rows_in"], 0);
    }
}

#[test]
fn wildcard_characters_in_a_folder_name_are_literal() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("run[1]/data/a.parquet"), &corpus("a", &[64; 4]), 2);
    write_parquet(&workspace.path("run1/data/b.parquet"), &corpus("b", &[64; 8]), 2);
    let pipeline = Pipeline::tokens("../model", 32);
    let input = pipeline.input.replace("path: input", "path: data/*.parquet");
    workspace.write("run[1]/p.yaml", Pipeline { input, ..pipeline }.to_string());
    let summary = workspace.longsift(&["run", "run[1]/p.yaml", "-q"]).success().summary();
    assert_eq!(summary["rows_in"], 4);
    // A path of the command line is relative to the current folder.
    let mut command = workspace.command(&["run", "p.yaml", "-q", "--set", "input.path=data/*"]);
    let answer =
        Answer::from_output(command.current_dir(workspace.path("run[1]")).output().unwrap());
    assert_eq!(answer.success().summary()["status"], "nothing_to_do", "the same files");
}

const RIGHT: &str = "\
version: 1
name: test
input:
  path: input
  id_column: id
  text_column: text
stages:
  - stage: load-partial-model
    model: model
  - stage: tokenize
    window_tokens: 256
  - stage: shard-across-devices
    devices: cpu
  - stage: first-layer-attention
    min_distance_fraction: 0.25
  - stage: score
    alpha: 0.5
  - stage: filter
    keep_fraction: 0.5
output:
  path: out
";

/// A workspace in which [`RIGHT`] is valid.
fn right() -> Workspace {
    let workspace = Workspace::new();
    model().write(&workspace.path("model"));
    add_tokenizer(&workspace.path("model"));
    let number = Arc::new(Field::new("n", DataType::Int32, false));
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let meta: ArrayRef = Arc::new(StructArray::from(vec![(number, Arc::clone(&numbers))]));
    let input = table(&[
        ("id", strings(["a", "b"])),
        ("text", strings(["The sea was calm. ".repeat(500), "It rose.".to_owned()])),
        ("tokens", token_lists(&[vec![7; 300], vec![8; 10]])),
        ("n", numbers),
        ("meta", meta),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 2);
    workspace.write("pipeline.yaml", RIGHT);
    workspace
}

/// Plans the valid pipeline with some text replaced, in a workspace modified by `spoil`.
fn wrong(name: &str, code: i32, changes: &[(&str, &str)], spoil: impl Fn(&Workspace)) {
    let workspace = right();
    let mut text = RIGHT.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    workspace.write("pipeline.yaml", &text);
    spoil(&workspace);
    let run = workspace.longsift(&[&["run", "pipeline.yaml"][..], &MACHINE].concat()).expect(code);
    let plan =
        workspace.longsift(&[&["plan", "pipeline.yaml"][..], &MACHINE].concat()).expect(code);
    assert_eq!(plan.stderr, run.stderr, "{name}: run and plan print the same message");
    assert_eq!(run.summary()["exit_code"], code);
    assert!(!workspace.path("out.run").exists() && !workspace.path("out").exists());
    insta::assert_snapshot!(name, workspace.filtered(&plan.to_text()));
}

#[test]
fn the_valid_pipeline_is_valid() {
    let workspace = right();
    let plan = workspace.longsift(&[&["plan", "pipeline.yaml"][..], &MACHINE].concat()).success();
    insta::assert_snapshot!(workspace.filtered(&plan.to_text()));
    assert_eq!(workspace.longsift(&["run", "pipeline.yaml"]).success().summary()["status"], "done");
}

#[test]
fn columns_that_are_missing_or_of_a_wrong_type() {
    let nothing = |_: &Workspace| {};
    wrong("a_missing_text_column", 2, &[("text_column: text", "text_column: txt")], nothing);
    wrong("a_text_column_of_numbers", 2, &[("text_column: text", "text_column: n")], nothing);
    wrong("tokens_that_are_text", 2, &[("text_column: text", "tokens_column: text")], nothing);
    wrong("an_id_that_is_a_struct", 2, &[("id_column: id", "id_column: meta")], nothing);
    wrong("no_such_group", 2, &[("alpha: 0.5", "alpha: 0.5\n    within: source")], nothing);
    wrong("no_such_label", 2, &[("path: out", "path: out\n  report_by: kind")], nothing);
    wrong("an_output_of_an_earlier_run", 2, &[], |workspace| {
        let names = ["id", "text", "longsift_score", "longsift_window"];
        let input = table(&names.map(|name| (name, strings(["a"]))));
        write_parquet(&workspace.path("input/a.parquet"), &input, 2);
    });
}

#[test]
fn inputs_that_cannot_be_read() {
    wrong("an_input_that_is_not_there", 2, &[("path: input", "path: inputs")], |_| {});
    wrong("an_input_that_is_not_parquet", 3, &[], |workspace| {
        workspace.write("input/b.parquet", "PAR1 but not really PAR1");
    });
    wrong("files_with_different_columns", 2, &[], |workspace| {
        let other = table(&[("id", strings(["a"])), ("body", strings(["b"]))]);
        write_parquet(&workspace.path("input/b.parquet"), &other, 2);
    });
}

#[test]
fn models_that_cannot_be_used() {
    let nothing = |_: &Workspace| {};
    wrong("a_model_that_is_not_there", 2, &[("model: model", "model: models")], nothing);
    wrong("a_model_without_weights", 3, &[], |workspace| {
        fs::remove_file(workspace.path("model/model.safetensors")).unwrap();
    });
    wrong("a_truncated_checkpoint", 3, &[], |workspace| {
        let path = workspace.path("model/model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    });
    wrong("a_model_of_pickled_weights_alone", 2, &[], |workspace| {
        fs::rename(
            workspace.path("model/model.safetensors"),
            workspace.path("model/pytorch_model.bin"),
        )
        .unwrap();
    });
    wrong("a_quantisation_that_is_not_followed", 2, &[], |workspace| {
        let config = model().with("quantization_config", json!({ "quant_method": "hqq" })).config;
        workspace.write("model/config.json", config.to_string());
    });
    wrong("a_family_that_is_not_known", 2, &[], |workspace| {
        let config = model().with("model_type", json!("lyre")).config.to_string();
        workspace.write("model/config.json", config);
    });
    wrong("a_config_that_does_not_fit_the_tensors", 3, &[], |workspace| {
        let config = model().with("num_key_value_heads", json!(2)).config.to_string();
        workspace.write("model/config.json", config);
    });
    wrong("a_sliding_window_below_the_distance", 2, &[], |workspace| {
        let mistral =
            model().with("model_type", json!("mistral")).with("sliding_window", json!(32));
        mistral.write(&workspace.path("model"));
    });
    wrong(
        "a_window_beyond_the_positions",
        2,
        &[
            ("window_tokens: 256", "window_tokens: 8192"),
            ("model: model", "model: model\n    strict_positions: true"),
        ],
        nothing,
    );
}

#[test]
fn tokenizers_that_do_not_fit() {
    wrong("a_tokenizer_larger_than_the_embedding", 2, &[], |workspace| {
        Tiny::new().write(&workspace.path("model"));
    });
    wrong("a_tokenizer_that_is_not_there", 2, &[], |workspace| {
        fs::remove_file(workspace.path("model/tokenizer.json")).unwrap();
    });
    let gguf = [("model: model", "model: model/model.gguf")];
    wrong("a_gguf_file_without_a_tokenizer_beside_it", 2, &gguf, |workspace| {
        let file = repository().join("stages/tests/forms/gguf_f16/model.gguf");
        fs::copy(file, workspace.path("model/model.gguf")).unwrap();
        for name in ["tokenizer.json", "config.json"] {
            fs::remove_file(workspace.path("model").join(name)).unwrap();
        }
    });
    let bos = ("window_tokens: 256", "window_tokens: 256\n    bos: 1");
    wrong("a_bos_that_the_model_has_not", 2, &[bos], |workspace| {
        model().with("bos_token_id", Value::Null).write(&workspace.path("model"));
        workspace.write("model/tokenizer_config.json", "{}");
    });
}

#[test]
fn a_pattern_with_engine_dependent_matches_is_a_warning() {
    let workspace = right();
    let path = workspace.path("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["pre_tokenizer"] = json!({ "type": "Split", "pattern": { "Regex": "\\w+|\\W" },
        "behavior": "Isolated", "invert": false });
    fs::write(&path, tokenizer.to_string()).unwrap();
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    assert!(answer.stderr.contains("warning: the tokenizer's pattern"), "{}", answer.stderr);
    assert!(answer.stderr.contains("longsift tokens --ids"), "{}", answer.stderr);
}

#[test]
fn a_tokenizer_config_that_gives_other_ids_is_a_warning() {
    let workspace = right();
    let mut tokenizer = read_json(&workspace.path("model/tokenizer.json"));
    tokenizer["pre_tokenizer"] = json!({ "type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true });
    workspace.write("model/tokenizer.json", tokenizer.to_string());
    let mut config = read_json(&workspace.path("model/tokenizer_config.json"));
    let warning = "warning: files next to `tokenizer.json`";
    let planned = workspace.longsift(&["plan", "pipeline.yaml"]).success().stderr;
    assert!(!planned.contains("transformers"), "{planned}");
    config["additional_special_tokens"] = json!(["<|im_start|>"]);
    config["add_prefix_space"] = json!(true);
    workspace.write("model/tokenizer_config.json", config.to_string());
    for command in ["plan", "run"] {
        let stderr = workspace.longsift(&[command, "pipeline.yaml"]).success().stderr;
        assert!(stderr.contains(warning), "{stderr}");
        assert!(stderr.contains("under other ids: `<|im_start|>`;"), "{stderr}");
        let prefix = "`add_prefix_space: true` and `tokenizer.json` has false";
        assert!(stderr.contains(prefix), "{stderr}");
    }
}

#[test]
fn settings_that_do_not_fit_each_other_or_the_machine() {
    let nothing = |_: &Workspace| {};
    let distance = ("min_distance_fraction: 0.25", "min_distance_tokens: 256");
    wrong("a_distance_as_long_as_the_window", 2, &[distance], nothing);
    wrong("devices_that_this_build_has_not", 2, &[("devices: cpu", "devices: [cuda:0]")], nothing);
    wrong("a_number_of_devices", 2, &[("devices: cpu", "devices: 2")], nothing);
    wrong(
        "five_mistakes_at_once",
        2,
        &[
            ("text_column: text", "text_column: body"),
            ("devices: cpu", "devices: 4"),
            ("model: model", "model: model\n    strict_positions: true"),
            ("window_tokens: 256", "window_tokens: 8192"),
            ("alpha: 0.5", "within: domain"),
            ("path: out", "path: out\n  report_by: label"),
        ],
        nothing,
    );
}

#[test]
fn an_adapter_next_to_the_weights_is_named() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[192, 128]), 4);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    let planned = || workspace.longsift(&["plan", "pipeline.yaml"]).success().stderr;
    assert!(!planned().contains("adapter"));
    workspace.write("model/adapter_config.json", "{\"peft_type\": \"LORA\"}");
    let stderr = planned();
    assert!(
        stderr.contains("adapter_config.json` is ignored: scores are those of the model without"),
        "{stderr}"
    );
}

#[test]
fn a_budget_for_longer_windows_than_there_are_causes_a_warning() {
    let workspace = Workspace::with_three_groups();
    let mut pipeline = Pipeline::tokens("model", 64)
        .measure("recurrence")
        .filter("budgets: [{min_tokens: 64, keep_tokens: 1000}, {min_tokens: 63, keep_tokens: 9}]");
    pipeline.tokenize = "window_tokens: 64, bos: 1".to_owned();
    workspace.write("pipeline.yaml", pipeline.to_string());
    let planned = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    assert_eq!(planned.stderr.matches("a window has at most 63 tokens without BOS").count(), 1);
    assert!(planned.stderr.contains("hint: lower `min_tokens` to 63"), "{}", planned.stderr);
    assert!(planned.stdout.contains("2 token budgets by group and length"), "{}", planned.stdout);
}
