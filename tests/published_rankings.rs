//! The rankings of the published code, from raw statistics inserted into the score files of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::audit::rewrite_record;
use crate::support::tables::{
    floats, integers, read_parquet, strings, table, texts, token_lists, write_parquet,
};
use crate::support::{
    Pipeline, Tiny, Workspace, count, files_below, hex, numbers, read_json, shared,
};

/// Replaces raw statistics in the score files of a finished run, as if a model had measured them.
fn replace_statistics(workspace: &Workspace, strengths: &[f64], variances: &[f64]) {
    for record_path in files_below(&workspace.path("out.run/units")) {
        let record = read_json(&record_path);
        let path = workspace.path("out.run").join(record["scores"]["path"].as_str().unwrap());
        let before = read_parquet(&path);
        let rows = integers(&before, "input_row");
        let column_of = |values: &[f64]| -> ArrayRef {
            Arc::new(rows.iter().map(|row| Some(values[*row as usize])).collect::<Float64Array>())
        };
        let schema = before.schema();
        let columns = schema.fields().iter().map(|field| match field.name().as_str() {
            "dependency_strength" => column_of(strengths),
            "far_variance" => column_of(variances),
            name => Arc::clone(before.column_by_name(name).unwrap()),
        });
        let after = RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, after.schema(), None).unwrap();
        writer.write(&after).unwrap();
        writer.close().unwrap();
        let digest = hex(&Sha256::digest(&bytes));
        let name = format!("out.run/units/{}.json", record["unit"].as_str().unwrap());
        rewrite_record(workspace, &name, |record| {
            record["scores"]["bytes"] = json!(bytes.len());
            record["scores"]["sha256"] = json!(digest);
        });
        fs::write(path, bytes).unwrap();
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn published_rankings_follow_from_their_raw_statistics() {
    let cases = read_json(&shared("conformance/ranking_cases.json"));
    let strings =
        |values: &Value| -> Vec<String> { serde_json::from_value(values.clone()).unwrap() };
    for set in cases["sets"].as_array().unwrap() {
        let items = set["items"].as_array().unwrap();
        let values = |key: &str| -> Vec<f64> {
            items.iter().map(|item| item[key].as_f64().unwrap()).collect()
        };
        let ids: Vec<String> =
            items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        let settings = (set["alpha"].as_f64().unwrap(), set["fraction"].as_f64().unwrap());
        ranks_as_published(set, &ids, &values("proportion"), &values("variance"), settings);
    }
    let edges = cases["edge_cases"].as_array().unwrap();
    assert!(edges.len() >= 3);
    for case in edges {
        let (proportion, variance) = (numbers(&case["proportion"]), numbers(&case["variance"]));
        ranks_as_published(case, &strings(&case["ids"]), &proportion, &variance, (0.5, 0.5));
    }
}

fn ranks_as_published(
    case: &Value,
    ids: &[String],
    proportion: &[f64],
    variance: &[f64],
    (alpha, fraction): (f64, f64),
) {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let documents = vec![vec![3, 5, 7, 9]; ids.len()];
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 64);
    let base = Pipeline::tokens("model", 4)
        .input("unit_bytes: 1024")
        .score(&format!("alpha: {alpha}"))
        .filter(&format!("keep_fraction: {fraction}"));
    workspace.run(&base.clone().filter("keep_fraction: 0"));
    replace_statistics(&workspace, proportion, variance);
    for (name, key) in [("min-max", "minmax"), ("z-score", "zscore")] {
        // The reference divides by a deviation of zero if all values are equal.
        let Some(expected) = case.get(key) else { continue };
        let summary = workspace.run(&base.clone().score(&format!("standardise: {name}")));
        assert_eq!(count(&summary, "windows_scored"), 0);
        let selected: BTreeSet<String> =
            serde_json::from_value(expected["selected_in_rank_order"].clone()).unwrap();
        let in_input_order: Vec<&String> = ids.iter().filter(|id| selected.contains(*id)).collect();
        let output = read_parquet(&workspace.path("out/data"));
        let found = texts(&output, "id");
        assert_eq!(found.iter().collect::<Vec<_>>(), in_input_order, "{name}");
        let scores: BTreeMap<&String, f64> = ids.iter().zip(numbers(&expected["lds"])).collect();
        for (id, got) in found.iter().zip(floats(&output, "longsift_score")) {
            assert!((got - scores[id]).abs() < 1e-9, "{id}: {got} for {}", scores[id]);
        }
    }
}
