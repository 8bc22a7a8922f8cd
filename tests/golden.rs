//! Ten windows of real texts with independent double-precision results: the demo model over the shared corpora.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use arrow_array::BooleanArray;
use arrow_select::filter::filter_record_batch;
use serde_json::Value;

use crate::support::tables::{
    float_lists, floats, integers, read_parquet, read_scores, strings, table, texts, write_parquet,
};
use crate::support::{Pipeline, Workspace, demo_model, read_json, shared};

/// The settings of the ten windows.
fn pipeline() -> Pipeline {
    Pipeline::text("model", 2048)
        .input("max_quarantined_fraction: 0")
        .tokenize("windows: disjoint")
        .score("within: source")
        .filter("keep_fraction: 1")
        .with_ids("data_id")
}

/// File name and document of an expected window.
fn document(window: &Value) -> (String, String) {
    let file = window["file"].as_str().unwrap().trim_start_matches("dev/").to_owned();
    (file, window["data_id"].as_str().unwrap().to_owned())
}

/// Runs again with `arguments` that select a rounding kernel: the dependency strength of each window is within a
/// relative `tolerance` of float32, and each head's within ten times as much.
fn check_rounded(workspace: &Workspace, arguments: &[&str], tolerance: f64) {
    let run = ["run", "pipeline.yaml", "-q", "--set", "output.path=rounded"];
    workspace.longsift(&[&run, arguments].concat()).success();
    let runs = ["rounded.run", "out.run"].map(|run| read_scores(&workspace.path(run)));
    assert_eq!(texts(&runs[0], "id"), texts(&runs[1], "id"));
    let [got, want] = runs.each_ref().map(|run| floats(run, "dependency_strength"));
    let off = |(got, want): (&f64, &f64)| (got / want - 1.0).abs();
    let worst = got.iter().zip(&want).map(off).fold(0.0, f64::max);
    let [got, want] = runs.each_ref().map(|run| float_lists(run, "dependency_strength_by_head"));
    let heads = got.iter().flatten().zip(want.iter().flatten());
    let worst_head = heads.map(off).fold(0.0, f64::max);
    eprintln!(
        "{arguments:?}, {} windows: off by {worst:.1e}, a head by {worst_head:.1e}",
        got.len()
    );
    assert!(
        worst <= tolerance && worst_head <= 10.0 * tolerance,
        "{worst:e}, a head {worst_head:e}"
    );
    assert!(worst > 0.0, "they are rounded");
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

/// Maximum bytes of a token in these documents.
const MAX_BYTES_PER_TOKEN: usize = 8;

/// Copies the documents of the expected windows, each cut shortly after its last window, to files of the same names.
fn copy_documents(corpora: &Path, workspace: &Workspace, expected: &[Value]) {
    let mut tokens: BTreeMap<(String, String), usize> = BTreeMap::new();
    for window in expected {
        let last = tokens.entry(document(window)).or_default();
        *last = (*last).max(window["token_end"].as_u64().unwrap() as usize);
    }
    for file in tokens.keys().map(|(file, _)| file).collect::<BTreeSet<_>>() {
        let whole = read_parquet(&corpora.join(file));
        let tokens_of = |id: &String| tokens.get(&(file.clone(), id.clone())).copied();
        let ids = texts(&whole, "data_id");
        let keep: BooleanArray = ids.iter().map(|id| Some(tokens_of(id).is_some())).collect();
        let some = filter_record_batch(&whole, &keep).unwrap();
        assert!(some.num_rows() > 0);
        let rows = texts(&some, "data_id").into_iter().zip(texts(&some, "text"));
        let cut = rows.map(|(id, text)| {
            let end = MAX_BYTES_PER_TOKEN * tokens_of(&id).unwrap();
            text[..text.floor_char_boundary(end)].to_owned()
        });
        let columns = [
            ("data_id", strings(texts(&some, "data_id"))),
            ("source", strings(texts(&some, "source"))),
            ("text", strings(cut)),
        ];
        write_parquet(&workspace.path("input").join(file), &table(&columns), 4);
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn ten_windows_of_real_texts_agree_with_double_precision() {
    let corpora = shared("corpora");
    let expected = read_json(&demo_model().join("expected.json"));
    let expected = expected["windows"].as_array().unwrap();
    assert_eq!(expected.len(), 10);
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    copy_documents(&corpora, &workspace, expected);
    workspace.run(&pipeline());
    check(&workspace, expected);
    let integers = ["--set", "stages.load-partial-model.precision=int16"];
    check_rounded(&workspace, &integers, 1e-5);
}

#[test]
#[cfg_attr(
    not(all(longsift_amx, longsift_shared)),
    ignore = "needs a processor with AMX, and ../shared"
)]
fn windows_of_real_texts_keep_their_scores_on_tiles() {
    let expected = read_json(&demo_model().join("expected.json"));
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    copy_documents(&shared("corpora"), &workspace, expected["windows"].as_array().unwrap());
    let summary = workspace.run_with(&pipeline(), &["--kernel", "avx512-f32"]);
    assert!(summary["windows_scored"].as_u64() > Some(100), "{summary}");
    let bf16 = ["--set", "stages.load-partial-model.precision=bf16", "--kernel", "amx-bf16"];
    check_rounded(&workspace, &[&bf16[..], &["--fresh"]].concat(), 1e-3);
}

#[test]
#[ignore = "takes minutes and needs ../shared; .ci/nightly runs it"]
fn ten_windows_of_the_whole_corpora_agree_with_double_precision() {
    let corpora = shared("corpora");
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
