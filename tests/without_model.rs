//! Pipelines whose measures need only text or token ids: no model is opened, and no device or kernel is used.

use std::fs;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{ListBuilder, UInt32Builder};
use serde_json::{Value, json};

use crate::support::tables::{
    corpus, document, floats, read_scores, strings, table, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, demo_model, files_below, read_json};

const FAR: &str = "formula: far-recurrence";

/// Texts in two files and a tokenizer next to them.
fn texts() -> Workspace {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("tokenizer")).unwrap();
    let json = demo_model().join("tokenizer.json");
    fs::copy(json, workspace.path("tokenizer/tokenizer.json")).unwrap();
    for name in ["a", "b"] {
        let text = |row: usize| {
            let sentence = |at: usize| format!("The {} box {name} is {}. ", at * at % 7, row * at);
            (0..12 + 3 * row).map(sentence).collect::<String>()
        };
        let columns = [
            ("id", strings((0..5).map(|row| format!("{name}-{row}")))),
            ("text", strings((0..5).map(text))),
        ];
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &table(&columns), 2);
    }
    workspace
}

fn text_pipeline() -> Pipeline {
    Pipeline::text("", 64)
        .input("unit_bytes: 1024")
        .without_model(Some("tokenizer"))
        .measure("recurrence")
        .measure("compression, scope: document")
        .measure("lexical")
        .score(FAR)
}

#[test]
fn texts_are_filtered_without_a_model_or_a_device() {
    let workspace = texts();
    let summary = workspace.run(&text_pipeline());
    for key in ["table", "devices", "kernel"] {
        assert_eq!(summary[key], Value::Null, "{key}");
    }
    assert!(count(&summary, "windows_kept") > 5, "{summary}");
    assert_eq!(read_json(&workspace.path("out.run/manifest.json"))["device"], Value::Null);
    assert!(!workspace.path("cache").exists(), "no table is built");
    let scores = read_scores(&workspace.path("out.run"));
    assert!(scores.column_by_name("dependency_strength").is_none());
    assert_eq!(workspace.run(&text_pipeline())["status"], "nothing_to_do");
    let status = workspace.longsift(&["status", "out.run"]).success().stdout;
    assert!(status.contains("6 of 6 scored"), "{status}");
    let verified = workspace.longsift(&["verify", "out.run"]).success().to_text();
    assert!(verified.contains("no measure of the pipeline uses one"), "{verified}");
    workspace.longsift(&["lock", "pipeline.yaml"]).success();
    let locked = ["run", "pipeline.yaml", "--locked", "--fresh", "-q"];
    assert_eq!(workspace.longsift(&locked).success().summary()["status"], "done");
}

#[test]
fn plan_refuses_other_windows_beside_a_measure_with_a_new_model() {
    let workspace = texts();
    workspace.run(&text_pipeline());
    let model = demo_model().display().to_string();
    let mut more = text_pipeline()
        .measure(&format!("language-model, short_context_tokens: 0, model: {model}"));
    workspace.write("more.yaml", more.to_string());
    workspace.longsift(&["plan", "more.yaml"]).success();
    more.tokenize = more.tokenize.replace("64", "32");
    workspace.write("more.yaml", more.to_string());
    let refused = workspace.longsift(&["plan", "more.yaml"]).expect(2).stderr;
    assert!(refused.contains("window_tokens: 32, was 64"), "{refused}");
}

#[test]
fn bench_compares_recurrence_with_a_compressor() {
    let workspace = texts();
    workspace.write("pipeline.yaml", text_pipeline().to_string());
    let arguments = ["bench", "pipeline.yaml", "--windows", "64", "--head-dims", "32"];
    let more = ["--repeats", "1", "--json", "bench.json", "-q"];
    workspace.longsift(&[&arguments[..], &more].concat()).success();
    let bench = read_json(&workspace.path("bench.json"));
    let value = |series: &str| {
        let measurements = bench["figures"].as_array().unwrap().iter();
        let mut of_series = measurements.filter(|measurement| measurement["series"] == series);
        of_series.next().unwrap()["value"].as_f64().unwrap()
    };
    let text = value("their text, 1 core");
    let measurements = bench["figures"].as_array().unwrap().iter();
    let of_compressors = measurements
        .filter_map(|measurement| measurement["series"].as_str()?.strip_suffix(", level 6"));
    let compressors: Vec<&str> = of_compressors.collect();
    assert_eq!(compressors[0], "zlib-rs", "{bench}");
    for compressor in compressors {
        let times = text / value(&format!("{compressor}, level 6"));
        let shown = value(&format!("as fast as {compressor}"));
        assert!((shown - times).abs() < 1e-9 * times, "{compressor}: {bench}");
    }
    assert!(value("tokens, 1 core") < text, "a token is more than a byte: {bench}");
}

#[test]
fn statistics_do_not_depend_on_attention() {
    let text_only = texts();
    text_only.run(&text_pipeline());
    let combined = texts();
    Tiny::new().with("vocab_size", json!(8192)).write(&combined.path("model"));
    let model = "model: model".to_owned();
    combined.run(&Pipeline { model, ..text_pipeline() });
    let (one, other) =
        (read_scores(&text_only.path("out.run")), read_scores(&combined.path("out.run")));
    for statistic in ["far_recurrence", "copy_share", "gzip_ratio", "unique_token_share"] {
        let bits = |table| floats(table, statistic).into_iter().map(f64::to_bits);
        assert!(bits(&one).eq(bits(&other)), "{statistic}");
    }
}

#[test]
fn a_plan_without_a_model_names_what_is_used() {
    let workspace = texts();
    workspace.write("pipeline.yaml", text_pipeline().to_string());
    let plan = workspace.longsift(&["plan", "pipeline.yaml"]).success().stdout;
    insta::assert_snapshot!(workspace.filtered(&plan));
    let json = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    for key in ["model", "device", "distance"] {
        assert_eq!(json[key], Value::Null, "{key}");
    }
    let names: Vec<&str> = json["measures"].as_array().unwrap().iter().map(name).collect();
    assert_eq!(names, ["recurrence", "compression", "lexical"]);
    for command in
        [&["tune", "pipeline.yaml"][..], &["plan", "pipeline.yaml", "--devices", "8xA800-80GB"]]
    {
        let answer = workspace.longsift(command).expect(2);
        assert!(answer.stderr.contains("needs a model or a device"), "{}", answer.stderr);
    }
}

fn name(measure: &Value) -> &str {
    measure["name"].as_str().unwrap()
}

#[test]
fn token_ids_need_no_tokenizer_and_no_vocabulary() {
    let recurrence = |id: fn(u32) -> u32| {
        let workspace = Workspace::new();
        let mut ids = ListBuilder::new(UInt32Builder::new());
        for row in 0..4 {
            ids.append_value(document(row, 1024).into_iter().map(|token| Some(id(token))));
        }
        let ids: ArrayRef = Arc::new(ids.finish());
        let columns = [("id", strings(["a", "b", "c", "d"])), ("tokens", ids)];
        write_parquet(&workspace.path("input/a.parquet"), &table(&columns), 2);
        let pipeline = Pipeline::tokens("", 256).without_model(None).measure("recurrence");
        let summary = workspace.run(&pipeline.score(FAR));
        assert_eq!((count(&summary, "quarantined"), count(&summary, "windows_total")), (0, 16));
        let scores = read_scores(&workspace.path("out.run"));
        ["far_recurrence", "near_recurrence", "copy_share"].map(|name| floats(&scores, name))
    };
    let small = recurrence(|token| token);
    assert!(small.iter().flatten().any(|share| *share > 0.0), "{small:?}");
    assert_eq!(recurrence(|token| u32::MAX - token), small, "only the equality of ids matters");
}

#[test]
fn shards_equal_one_process() {
    let workspace = |threads: &str| {
        let workspace = Workspace::new();
        for name in ["a", "b", "c"] {
            let input = corpus(name, &[300, 700, 100, 450]);
            write_parquet(&workspace.path(&format!("input/{name}.parquet")), &input, 1);
        }
        let pipeline = Pipeline::tokens("", 64)
            .input("unit_bytes: 1024")
            .without_model(None)
            .measure("recurrence")
            .measure("lexical")
            .score("formula: balanced-recurrence");
        workspace.write("pipeline.yaml", pipeline.to_string());
        let run = ["run", "pipeline.yaml", "-q", "--threads", threads];
        (workspace, run.map(str::to_owned))
    };
    let (one, run) = workspace("1");
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    one.longsift(&run).success();
    let (many, run) = workspace("2");
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    for shard in ["0/2", "1/2"] {
        many.longsift(&[&run[..], &["--phase", "score", "--shard", shard]].concat()).success();
    }
    let selected = many.longsift(&[&run[..], &["--phase", "select"]].concat()).success().summary();
    assert_eq!((&selected["status"], &selected["windows_scored"]), (&json!("done"), &json!(0)));
    assert_eq!(many.results(), one.results());
    assert!(!files_below(&many.path("out/data")).is_empty());
}
