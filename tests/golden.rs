//! Ten windows of real texts, measured by others in double precision: the demo model over the shared corpora.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use arrow::array::BooleanArray;
use arrow::compute::filter_record_batch;
use serde_json::Value;

use crate::support::tables::{
    float_lists, floats, integers, read_parquet, read_scores, texts, write_parquet,
};
use crate::support::{Pipeline, Workspace, demo_model, read_json, shared};

/// The settings the ten windows were measured with.
fn pipeline() -> Pipeline {
    Pipeline::text("model", 2048)
        .input("max_quarantined_fraction: 0")
        .tokenize("windows: disjoint")
        .score("within: source")
        .filter("keep_fraction: 1")
        .with_ids("data_id")
}

/// The file's name and the document of an expected window.
fn document(window: &Value) -> (String, String) {
    let file = window["file"].as_str().unwrap().trim_start_matches("dev/").to_owned();
    (file, window["data_id"].as_str().unwrap().to_owned())
}

fn check(workspace: &Workspace, expected: &[Value]) {
    let lines = workspace.longsift(&["tokens", "pipeline.yaml", "-q"]).success().json_lines();
    let scores = read_scores(&workspace.path("out.run"));
    let (ids, starts) = (texts(&scores, "id"), integers(&scores, "token_start"));
    let strengths = floats(&scores, "dependency_strength");
    let variances = floats(&scores, "far_variance");
    let by_head = float_lists(&scores, "dependency_strength_by_head");
    for window in expected {
        let (file, id) = document(window);
        let line = lines.iter().find(|line| {
            line["id"] == id.as_str()
                && line["input_file"] == file.as_str()
                && line["token_start"] == window["token_start"]
        });
        assert_eq!(line.unwrap()["ids_sha256"], window["ids_sha256"], "{id}");
        let start = window["token_start"].as_i64().unwrap();
        let row = (0..ids.len()).find(|row| ids[*row] == id && starts[*row] == start).unwrap();
        let strength = window["DST"].as_f64().unwrap();
        assert!((strengths[row] - strength).abs() <= 1e-6, "{id}: {}", strengths[row]);
        let variance = window["var"].as_f64().unwrap();
        assert!((variances[row] - variance).abs() <= 1e-4 * variance, "{id}: {}", variances[row]);
        for (got, expected) in by_head[row].iter().zip(window["DST_head"].as_array().unwrap()) {
            assert!((got - expected.as_f64().unwrap()).abs() <= 2e-6, "{id}: {got}");
        }
    }
}

/// The rows of the documents that `wanted` names, in a file of the same name.
fn copy_documents(corpora: &Path, workspace: &Workspace, wanted: &BTreeSet<(String, String)>) {
    for file in wanted.iter().map(|(file, _)| file).collect::<BTreeSet<_>>() {
        let whole = read_parquet(&corpora.join(file));
        let keep: BooleanArray = texts(&whole, "data_id")
            .into_iter()
            .map(|id| Some(wanted.contains(&(file.clone(), id))))
            .collect();
        let some = filter_record_batch(&whole, &keep).unwrap();
        assert!(some.num_rows() > 0);
        write_parquet(&workspace.path("input").join(file), &some, 4);
    }
}

#[test]
fn ten_windows_of_real_texts_agree_with_double_precision() {
    let Some(corpora) = shared("corpora") else { return };
    let expected = read_json(&demo_model().join("expected.json"));
    let expected = expected["windows"].as_array().unwrap();
    assert_eq!(expected.len(), 10);
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    copy_documents(&corpora, &workspace, &expected.iter().map(document).collect());
    workspace.run(&pipeline());
    check(&workspace, expected);
}

#[test]
#[ignore = "reads and scores the whole corpora: minutes in a debug build"]
fn ten_windows_of_the_whole_corpora_agree_with_double_precision() {
    let Some(corpora) = shared("corpora") else { return };
    let expected = read_json(&demo_model().join("expected.json"));
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    fs::create_dir_all(workspace.path("input")).unwrap();
    for name in ["books", "code", "mixed_short", "papers"] {
        workspace.link(&format!("input/{name}.parquet"), &corpora.join(format!("{name}.parquet")));
    }
    workspace.run(&pipeline());
    check(&workspace, expected["windows"].as_array().unwrap());
}
