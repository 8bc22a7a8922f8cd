//! `longsift map --layer`: attention between blocks in the layers of a whole model.

use serde_json::{Value, json};

use crate::support::tables::{document, strings, table, token_lists, write_parquet};
use crate::support::{Pipeline, Workspace, demo_model, read_json, shared};

/// One document of these ids, and a pipeline with only a whole model.
fn workspace(ids: &[u32]) -> Workspace {
    let workspace = Workspace::new();
    let input = table(&[("id", strings(["a"])), ("tokens", token_lists(&[ids.to_vec()]))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    let pipeline = Pipeline::tokens("", ids.len())
        .without_model(None)
        .measure("language-model, model: model, losses: false, attention_layers: [0]")
        .score("terms: [{statistic: dependency_strength_layer_0}]");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

fn map(workspace: &Workspace, pipeline: &str, arguments: &[&str]) -> Value {
    let first = ["map", pipeline, "--document", "a", "-q", "--format", "json"];
    let answer = workspace.longsift(&[&first[..], arguments].concat()).success();
    serde_json::from_str(&answer.stdout).unwrap()
}

fn cells(map: &Value) -> Vec<Vec<f64>> {
    let row = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    map["block_attention"].as_array().unwrap().iter().map(row).collect()
}

/// Checks that the attention matrix itself, in blocks of one token, equals that of the model's own code.
fn check(name: &str) {
    let folder = shared(&format!("conformance-lm/{name}"));
    let case = read_json(&folder.join("case.json"));
    let ids: Vec<u32> = serde_json::from_value(case["input_ids"].clone()).unwrap();
    let workspace = workspace(&ids);
    workspace.link("model", &folder);
    let tokens = ids.len();
    let far = tokens - 3 * (tokens / 4);
    for layer in 0..case["layers"].as_u64().unwrap() {
        let heads = case["expected"]["proportion"][layer as usize].as_array().unwrap();
        for (head, want) in heads.iter().enumerate() {
            let (layer, head) = (layer.to_string(), head.to_string());
            let arguments = ["--layer", &layer, "--head", &head, "--block-tokens", "1"];
            let matrix = cells(&map(&workspace, "pipeline.yaml", &arguments));
            assert_eq!(matrix.len(), tokens);
            let far_mass: f64 =
                (far..tokens).map(|row| matrix[row][..=row - far].iter().sum::<f64>()).sum();
            let (got, want) = (far_mass / tokens as f64, want.as_f64().unwrap());
            assert!(
                (got - want).abs() <= 2e-6 + 1e-4 * want,
                "{name}, {layer}, {head}: {got} {want}"
            );
        }
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn every_layer_has_the_attention_of_the_models_own_code() {
    ["gpt2_s130", "mistral_sw_s160", "qwen3_s129"].into_iter().for_each(check);
}

#[test]
fn the_first_layer_matches_the_table() {
    let ids = document(3, 120);
    let workspace = workspace(&ids);
    workspace.link("model", &demo_model());
    let of_table = Pipeline::tokens("model", 120).to_string();
    workspace.write("first.yaml", of_table);
    let first = cells(&map(&workspace, "first.yaml", &["--block-tokens", "15"]));
    let whole = map(&workspace, "pipeline.yaml", &["--layer", "0", "--block-tokens", "15"]);
    let upper = map(&workspace, "pipeline.yaml", &["--layer", "1", "--block-tokens", "15"]);
    assert_eq!((&whole["layer"], &upper["layer"]), (&json!(0), &json!(1)));
    let off = |one: &[Vec<f64>], other: &[Vec<f64>]| {
        let pairs = one.iter().flatten().zip(other.iter().flatten());
        pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
    };
    assert!(off(&first, &cells(&whole)) < 1e-5);
    assert!(off(&first, &cells(&upper)) > 1e-3);
    for row in cells(&upper) {
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{row:?}");
    }
}

#[test]
fn a_missing_layer_or_model_is_rejected() {
    let workspace = workspace(&document(3, 64));
    workspace.link("model", &demo_model());
    let refused = |pipeline: &str, layer: &str| {
        let arguments = ["map", pipeline, "--document", "a", "--layer", layer];
        workspace.longsift(&arguments).expect(2).stderr
    };
    let beyond = refused("pipeline.yaml", "2");
    assert!(beyond.contains("layer 2 does not exist: the model has 2 layers"), "{beyond}");
    workspace.write("first.yaml", Pipeline::tokens("model", 64).to_string());
    let error = refused("first.yaml", "1");
    assert!(error.contains("`--layer 1` requires a whole model"), "{error}");
}
