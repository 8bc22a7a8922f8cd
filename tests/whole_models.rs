//! Whole models through the program: every case of tiny checkpoints, and the mini model on real windows.

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::support::tables::{read_parquet, texts};
use crate::support::{Workspace, backends, numbers, read_json, shared};

/// Returns the largest difference, and whether it is within `tolerance`.
fn within(what: &str, got: &[f64], want: &[f64], tolerance: impl Fn(f64) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (got - want).abs();
        assert!(off <= tolerance(*want), "{what} {index}: {got} for {want}");
    }
}

/// Output of the program for a window of the model in `folder`, by a backend with so many threads.
fn values(workspace: &Workspace, ids: &Value, backend: &str, threads: usize) -> String {
    workspace.write("ids.json", ids.to_string());
    let arguments = ["inspect", "model", "--forward", "ids.json", "--format", "json"];
    let mut command = workspace.command(&[&arguments[..], &["--backend", backend]].concat());
    command.env("RAYON_NUM_THREADS", threads.to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn check(workspace: &Workspace, ids: &Value, case: &Value) {
    for backend in backends(&workspace.path("model")) {
        check_backend(workspace, ids, case, backend);
    }
}

fn check_backend(workspace: &Workspace, ids: &Value, case: &Value, backend: &str) {
    let text = values(workspace, ids, backend, 2);
    assert!(text == values(workspace, ids, backend, 5), "threads show");
    let got: Value = serde_json::from_str(&text).unwrap();
    let (expected, tolerances) = (&case["expected"], &case["tolerances"]);
    let tolerance = |name: &str| tolerances[name].as_f64().unwrap();
    let (losses, mean) = (tolerance("nll_abs"), tolerance("mean_abs"));
    within("loss", &numbers(&got["losses"]), &numbers(&expected["long_nll"]), |_| losses);
    let mean_of = |value: &Value| vec![value.as_f64().unwrap()];
    within("mean", &mean_of(&got["mean_loss"]), &mean_of(&expected["mean_nll"]), |_| mean);
    let relative = tolerance("hidden_rel");
    let hidden = (numbers(&got["hidden_rms"]), numbers(&expected["hidden_rms"]));
    within("hidden state", &hidden.0, &hidden.1, |want| relative * want);
    let (logits, absolute) = (numbers(&got["last_logits"]), tolerance("logit_abs"));
    within("logit", &logits[..8], &numbers(&expected["last_logits_first8"]), |_| absolute);
    let sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    within("log-sum-exp", &[sum], &mean_of(&expected["last_logsumexp"]), |_| absolute);
}

fn case(set: &str, name: &str) {
    let folder = shared(&format!("{set}/{name}"));
    let workspace = Workspace::new();
    workspace.link("model", &folder);
    let case = read_json(&folder.join("case.json"));
    check(&workspace, &case["input_ids"], &case);
}

macro_rules! cases {
    ($set:literal: $($name:ident)*) => {
        $(#[test]
        #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
        fn $name() {
            super::case($set, stringify!($name));
        })*
    };
}

mod results_match_the_models_own_code {
    cases!("conformance-lm":
        gemma2_s150 gemma3_text_s141 gpt2_s130 gpt_neox_s127 granite_s121 llama_gqa_llama3rope_s257
        llama_untied_bf16_sharded_s193 mistral_sw_s160 olmo2_s111 opt_350m_s120 opt_preln_s101 phi3_longrope_s150
        phi3_s96 qwen2_bias_tied_s131 qwen3_s129 smollm3_s143 stablelm_s99 starcoder2_s120);
    cases!("conformance-gla":
        gla_340m_tied_bf16_s210 gla_7b_gqa_relu_nogate_sharded_s160 gla_default_s193 gla_hybrid_s150
        gla_mqa_clamp_nonaffine_s111 gla_shortconv_gqa_s131 gla_strong_gates_s257);
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn every_case_has_a_test() {
    let source = include_str!("whole_models.rs");
    for set in ["conformance-lm", "conformance-gla"] {
        for case in read_json(&shared(&format!("{set}/MANIFEST.json")))["cases"].as_array().unwrap()
        {
            let name = case["name"].as_str().unwrap();
            assert!(source.contains(name), "{name}");
        }
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn the_mini_model_matches_the_losses_of_its_own_code() {
    let folder = shared("models/mini");
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let expected = read_json(&folder.join("expected_lm.json"));
    let workspace = Workspace::new();
    workspace.link("model", &folder);
    for window in expected["windows"].as_array().unwrap() {
        let corpus = window["file"].as_str().unwrap().trim_start_matches("dev/");
        let corpus = read_parquet(&shared(&format!("corpora/{corpus}")));
        let row = texts(&corpus, "data_id").iter().position(|id| window["data_id"] == id.as_str());
        let text = texts(&corpus, "text").swap_remove(row.unwrap());
        let ids = tokenizer.encode(text, false).unwrap();
        let field = |name: &str| window[name].as_u64().unwrap() as usize;
        let ids = &ids.get_ids()[field("token_start")..field("token_end")];
        let first: Vec<f64> = ids[..8].iter().map(|id| f64::from(*id)).collect();
        assert_eq!(first, numbers(&window["first_ids"]));
        check(&workspace, &serde_json::json!(ids), window);
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn a_backend_that_cannot_compute_a_model_is_refused_by_name() {
    let workspace = Workspace::new();
    workspace.link("model", &shared("conformance-gla/gla_hybrid_s150"));
    workspace.write("ids.json", "[1, 2]");
    let forward = ["inspect", "model", "--forward", "ids.json", "--backend", "candle"];
    let answer = workspace.longsift(&forward).expect(2).stderr;
    assert!(answer.contains("candle does not compute gated linear attention"), "{answer}");
    assert!(answer.contains("`--backend own`"), "{answer}");
}

#[test]
fn unsupported_models_are_reported() {
    let workspace = Workspace::new();
    workspace.write(
        "model/config.json",
        r#"{"model_type": "bloom", "hidden_size": 8, "n_layer": 1, "n_head": 2, "vocab_size": 8}"#,
    );
    workspace.write("ids.json", "[1, 2]");
    let answer = workspace.longsift(&["inspect", "model", "--forward", "ids.json"]).expect(2);
    assert!(
        answer.stderr.contains("`bloom` models are supported for their first layer only"),
        "{}",
        answer.stderr
    );
    workspace.write("words.json", r#"["a"]"#);
    let answer = workspace.longsift(&["inspect", "model", "--forward", "words.json"]).expect(2);
    assert!(answer.stderr.contains("is not a JSON list of token ids"), "{}", answer.stderr);
}
