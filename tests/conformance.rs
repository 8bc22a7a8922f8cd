//! Every conformance case, through a pipeline over pre-tokenized documents.

use serde_json::Value;

use crate::support::tables::{
    float_lists, floats, integers, read_scores, strings, table, token_lists, write_parquet,
};
use crate::support::{Pipeline, Workspace, numbers, read_json, shared};

/// Sets up a case.
fn prepared(name: &str, mask: &str) -> (Workspace, Pipeline, Value) {
    let folder = shared(&format!("conformance/{name}"));
    let case = read_json(&folder.join("case.json"));
    let workspace = Workspace::new();
    let ids: Vec<u32> = numbers(&case["input_ids"]).into_iter().map(|id| id as u32).collect();
    let input = table(&[("id", strings([name])), ("tokens", token_lists(&[ids]))]);
    write_parquet(&workspace.path("input/case.parquet"), &input, 1);
    let window_tokens = case["S"].as_u64().unwrap() as usize;
    workspace.link("model", &folder);
    let pipeline = Pipeline::tokens("model", window_tokens)
        .attention(&format!("mask: {mask}"))
        .filter("keep_fraction: 1");
    (workspace, pipeline, case)
}

/// Relative error of a head's statistics with `precision: int16`: a logit is off by up to `√d / 46,340` of ‖q‖·‖k‖.
const INT16: f64 = 1e-3;

/// Checks that both statistics of every head, and their means, are within the case's tolerances of `expected`.
fn check(workspace: &Workspace, case: &Value, expected: &Value) {
    check_within(workspace, case, expected, 0.0);
}

/// Like [`check`], with a minimum relative tolerance `least`.
fn check_within(workspace: &Workspace, case: &Value, expected: &Value, least: f64) {
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(scores.num_rows(), 1);
    assert_eq!(integers(&scores, "tokens_scored"), [case["S"].as_i64().unwrap()]);
    assert_eq!(integers(&scores, "distance"), [case["far_min_distance"].as_i64().unwrap()]);
    let tolerances = &case["tolerances"];
    let floor = tolerances["abs_floor"].as_f64().unwrap();
    let values =
        [("dependency_strength", "proportion", floor), ("far_variance", "variance", floor * 1e-3)];
    for (column, name, floor) in values {
        let relative = tolerances[format!("{name}_rel")].as_f64().unwrap().max(least);
        let by_head = &float_lists(&scores, &format!("{column}_by_head"))[0];
        let expected_by_head = numbers(&expected[format!("{name}_per_head")]);
        assert_eq!(by_head.len(), expected_by_head.len());
        let mean = expected[format!("mean_{name}")].as_f64().unwrap();
        let pairs = by_head.iter().copied().zip(expected_by_head);
        for (got, expected) in pairs.chain([(floats(&scores, column)[0], mean)]) {
            let error = (got - expected).abs();
            assert!(error <= floor + relative * expected.abs(), "{column}: {got} for {expected}");
        }
    }
    let histogram = &float_lists(&scores, "distance_histogram")[0];
    assert!((histogram.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{histogram:?}");
}

fn causal(name: &str) {
    let (workspace, pipeline, case) = prepared(name, "causal");
    let summary = workspace.run(&pipeline);
    assert_eq!(summary["windows_scored"], 1);
    assert_eq!(summary["kept"], 1);
    check(&workspace, &case, &case["expected"]);
    // The published code agrees on the same checkpoint, for cases with its results.
    if let Some(published) = case.pointer("/reference_code/causal") {
        check(&workspace, &case, published);
    }
}

fn unmasked(name: &str) {
    let (workspace, pipeline, case) = prepared(name, "unmasked");
    workspace.run(&pipeline);
    check(&workspace, &case, &case["reference_code"]["unmasked"]);
}

fn integers_causal(name: &str) {
    let (workspace, mut pipeline, case) = prepared(name, "causal");
    pipeline.model.push_str(", precision: int16");
    let summary = workspace.run(&pipeline);
    let kernel = summary["kernel"].as_str().unwrap();
    assert!(kernel.ends_with("-int16"), "{kernel}");
    check_within(&workspace, &case, &case["expected"], INT16);
}

macro_rules! cases {
    ($run:ident: $($name:ident)*) => {
        $(#[test]
        #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
        fn $name() {
            super::$run(stringify!($name));
        })*
    };
}

#[expect(non_snake_case, reason = "a test has the name of its case")]
mod causally {
    cases!(causal:
        bloom_s96 cohere_s96 deepseek_v2_lite_s96 deepseek_v3_yarn_s128 falcon_mq_s96 falcon_newdec_s128
        gemma2_s128 gemma3_nested_s96 gemma3_text_s128 gemma_s96 glm4_s96 gpt2_noprefix_s96 gpt2_s128
        gpt_neox_s96 gpt_oss_s128 gptj_s96 hunyuan_dense_s96 llama4_text_s96 llama_bias_headdim_s96
        llama_dynamic_s257 llama_fp16_s128 llama_gqa_llama3rope_s257 llama_linear_s128 llama_mha_s96
        llama_oddS_s101 llama_sharded_f32_s96 llama_untied_bf16_sharded_s257 llama_v5config_s128
        llama_yarn_s128 minicpm3_s96 mistral_sw_s128 mixtral_s96 olmo2_s128 opt_s96 phi3_longrope_long_s257
        phi3_s96 phi_s96 qwen2_maxwindow_s96 qwen2_s128 qwen3_moe_s128 qwen3_s96 smollm3_s128 stablelm_s96);
}

/// One of each kind of head and mask.
#[expect(non_snake_case, reason = "a test has the name of its case")]
mod by_integers {
    cases!(integers_causal:
        bloom_s96 deepseek_v3_yarn_s128 gemma2_s128 gpt2_s128 gpt_oss_s128 llama_gqa_llama3rope_s257 llama_mha_s96
        llama_oddS_s101 llama4_text_s96 minicpm3_s96 mistral_sw_s128 qwen2_s128 qwen3_s96);
}

mod unmasked_as_published {
    cases!(unmasked:
        llama_dynamic_s257 llama_fp16_s128 llama_gqa_llama3rope_s257 llama_linear_s128 llama_mha_s96);
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn a_sliding_window_that_cannot_see_the_far_distance_is_refused() {
    let (workspace, pipeline, _) = prepared("mistral_sw_short_s96", "causal");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    insta::assert_snapshot!(workspace.filtered(&answer.to_text()));
    assert!(!workspace.path("out.run").exists(), "nothing was begun");
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn every_case_has_a_test() {
    let source = include_str!("conformance.rs");
    for entry in std::fs::read_dir(shared("conformance")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(!entry.path().is_dir() || source.contains(&name), "{name}");
    }
}
