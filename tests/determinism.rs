//! Results have the same bytes for any threads, memory and folder.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use crate::support::tables::{
    corpus, floats, integers, read_parquet, read_scores, texts, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, demo_model, files_below, read_json, repository};

/// Twelve documents in two files, for a model whose frequencies depend on the window's length.
fn workspace_at(input: &str) -> Workspace {
    let workspace = Workspace::new();
    let scaling = json!({ "type": "dynamic", "factor": 4.0 });
    Tiny::new()
        .with("max_position_embeddings", json!(64))
        .with("rope_scaling", scaling)
        .write(&workspace.path("model"));
    for (name, rows_per_group) in [("x/a", 3), ("b", 2)] {
        let lengths = [100, 700, 512, 256, 300, 1900, 640, 513, 90, 257];
        let path = workspace.path(&format!("{input}/{name}.parquet"));
        write_parquet(&path, &corpus(name, &lengths), rows_per_group);
    }
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 256).tokenize("windows: disjoint, short_documents: score")
}

fn results(pipeline: &Pipeline, arguments: &[&str]) -> BTreeMap<String, String> {
    let workspace = workspace_at("input");
    workspace.run_with(pipeline, arguments);
    let results = workspace.results();
    assert!(results.len() >= 4, "{results:?}");
    results
}

#[test]
fn threads_batches_and_memory_limits_change_no_byte() {
    let three = || pipeline().measure("recurrence").measure("lexical");
    let expected = results(&three(), &["--threads", "1"]);
    assert_eq!(results(&three(), &["--threads", "2"]), expected);
    assert_eq!(results(&three(), &["--threads", "5"]), expected);
    let narrow = three().input("memory_limit_bytes: 67108864");
    assert_eq!(results(&narrow, &["--threads", "3"]), expected);
    let wide = three().input("memory_limit_bytes: 17179869184");
    assert_eq!(results(&wide, &[]), expected);
}

#[test]
fn folders_change_no_byte() {
    let expected = results(&pipeline(), &[]);
    let workspace = workspace_at("data/of/others");
    fs::rename(workspace.path("model"), workspace.path("another-model")).unwrap();
    let mut pipeline = pipeline();
    pipeline.input = pipeline.input.replace("path: input", "path: data/of/others/**/*.parquet");
    pipeline.model = "model: another-model, cache_folder: tables".to_owned();
    pipeline.output = "path: deep/down/result/, part_bytes: 0".to_owned();
    workspace.run(&pipeline);
    let found = ["data", "scores", "dropped", "selection"].map(|folder| {
        let run = if folder == "data" { "result" } else { "result.run" };
        workspace.hashes(&[&format!("deep/down/{run}/{folder}")])
    });
    let found: BTreeMap<String, String> = found
        .into_iter()
        .flatten()
        .map(|(path, hash)| (path.replace("deep/down/result", "out"), hash))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_size_of_units_changes_no_score() {
    let scores = |unit_bytes: usize, units: usize| {
        let workspace = workspace_at("input");
        let summary = workspace.run(&pipeline().input(&format!("unit_bytes: {unit_bytes}")));
        assert_eq!(files_below(&workspace.path("out.run/units")).len(), units);
        let scores = read_scores(&workspace.path("out.run"));
        let kept = read_parquet(&workspace.path("out/data"));
        (
            texts(&scores, "id"),
            integers(&scores, "window"),
            floats(&scores, "dependency_strength"),
            floats(&scores, "far_variance"),
            texts(&kept, "longsift_sample_id"),
            floats(&kept, "longsift_score"),
            summary["kept"].clone(),
        )
    };
    let small = scores(1024, 9);
    assert!(small.0.len() > 20 && small.5.len() > 10, "{small:?}");
    assert_eq!(small, scores(1 << 30, 2));
}

#[test]
fn kernels_agree_within_rounding() {
    let portable = workspace_at("input");
    let summary = portable.run_with(&pipeline(), &["--kernel", "portable-f32"]);
    assert_eq!(summary["kernel"], "portable-f32");
    let native = workspace_at("input");
    let kernel = native.run(&pipeline())["kernel"].clone();
    let pairs = |name: &str| {
        let values = [&portable, &native]
            .map(|workspace| floats(&read_scores(&workspace.path("out.run")), name));
        assert!(values[0].len() > 20 && values[0].len() == values[1].len(), "{values:?}");
        values[0].clone().into_iter().zip(values[1].clone()).collect::<Vec<_>>()
    };
    for (one, other) in pairs("dependency_strength") {
        assert!((one - other).abs() <= 1e-5 * one, "{one} and {other}");
    }
    for (one, other) in pairs("far_variance") {
        assert!((one - other).abs() <= 2e-5 * one, "{one} and {other}");
    }
    // Scores of two kernels are never mixed.
    let answer = native.longsift(&["run", "pipeline.yaml", "--kernel", "portable-f32"]);
    if kernel == "portable-f32" {
        // On a processor without vectors the requested kernel equals the default.
        assert_eq!(answer.success().summary()["status"], "nothing_to_do");
    } else {
        let expected = format!("kernel: portable-f32, was {}", kernel.as_str().unwrap());
        assert!(answer.stderr.contains(&expected), "{}", answer.stderr);
        let finish = format!("with its original `--kernel {}`", kernel.as_str().unwrap());
        assert!(answer.stderr.contains(&finish), "{}", answer.stderr);
        answer.expect(2);
    }
}

#[test]
fn a_selection_names_the_kernel_of_the_scores() {
    let workspace = workspace_at("input");
    workspace.write("pipeline.yaml", pipeline().to_string());
    let phase = |phase: &str, more: &[&str]| {
        let arguments = ["run", "pipeline.yaml", "--phase", phase];
        workspace.longsift(&[&arguments[..], more].concat()).success().summary()
    };
    let scored = phase("score", &["--shard", "0/1", "--kernel", "portable-f32"]);
    assert_eq!(scored["kernel"], "portable-f32");
    assert_eq!(phase("select", &[])["kernel"], "portable-f32");
    let manifest = read_json(&workspace.path("out.run/manifest.json"));
    assert_eq!(manifest["device"], json!({ "name": null, "kernel": "portable-f32" }));
}

#[test]
fn the_number_of_threads_does_not_change_tokens() {
    let run = |threads: &str| {
        let workspace = Workspace::new();
        workspace.link("model", &demo_model());
        workspace.link("corpus.parquet", &repository().join("datasets/demo/corpus.parquet"));
        let mut pipeline = Pipeline::text("model", 128).input("unit_bytes: 100000");
        pipeline.input = pipeline.input.replace("path: input", "path: corpus.parquet");
        workspace.run_with(&pipeline, &["--threads", threads, "--limit", "40"]);
        workspace.results()
    };
    assert_eq!(run("1"), run("4"));
}
