//! Quantised checkpoints and GGUF files through the real binary; `stages/tests/forms` compares them with the matrices
//! that the models' own packages compute.

use serde_json::Value;

use crate::support::tables::{
    float_lists, integers, read_scores, strings, table, token_lists, write_parquet,
};
use crate::support::{Pipeline, Workspace, numbers, read_json, repository};

/// Runs a case whose model is at `path` in its folder; the run must read as many bytes as the plan states.
fn scored(case: &str, path: &str) {
    let folder = repository().join("stages/tests/forms").join(case);
    let workspace = Workspace::new();
    workspace.link("model", &folder);
    let case = read_json(&folder.join("case.json"));
    let ids: Vec<u32> = numbers(&case["input_ids"]).into_iter().map(|id| id as u32).collect();
    let input = table(&[("id", strings(["a"])), ("tokens", token_lists(&[ids]))]);
    write_parquet(&workspace.path("input/case.parquet"), &input, 1);
    let tokens = case["S"].as_u64().unwrap() as usize;
    let pipeline = Pipeline::tokens(path, tokens).filter("keep_fraction: 1");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let plan = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success().stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let summary = workspace.run(&pipeline);
    let promised = plan["model"]["bytes_to_read"].as_u64();
    assert!(promised > Some(0));
    assert_eq!(summary["table"]["checkpoint_bytes_read"].as_u64(), promised);
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(integers(&scores, "tokens_scored"), [tokens as i64]);
    let got = &float_lists(&scores, "dependency_strength_by_head")[0];
    let expected = numbers(&case["expected"]["proportion_per_head"]);
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-5 * expected, "{got} for {expected}");
    }
}

#[test]
fn a_folder_of_packed_matrices_is_scored() {
    scored("gptq_4bit_act_order", "model");
}

#[test]
fn a_packed_embedding_is_scored() {
    scored("mlx_mixed", "model");
}

#[test]
fn a_path_to_a_gguf_file_is_scored() {
    scored("gguf_q6_k_q4_k_q5_k", "model/model.gguf");
}

#[test]
fn a_folder_with_a_gguf_file_is_scored() {
    scored("gguf_phi3_config", "model");
}
