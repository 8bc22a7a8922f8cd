//! Families and settings that the cases of `tests/whole_models.rs` do not cover, compared with the library's float64
//! results: `stages/tests/whole/make_whole_cases.py`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{BackendName, ForwardOutput, WholeModel};
use crate::measures::language_model::ProductPrecision;

/// Absolute and relative tolerance of a loss or logit: float32 compared with float64. Random weights produce logits of
/// tens.
const TOLERANCE: f64 = 5e-5;
/// Relative tolerance of a root mean square, which averages many numbers.
const HIDDEN: f64 = 1e-6;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whole")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
}

fn case(name: &str) {
    let folder = cases().join(name);
    let case: Value = serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap();
    let ids: Vec<u32> = numbers(&case["input_ids"]).into_iter().map(|id| id as u32).collect();
    for backend in BACKENDS {
        let model = WholeModel::open(&folder).unwrap();
        let model = model.with_backend(Some(*backend), ProductPrecision::F32, false).unwrap();
        check(&case, &model.forward(&[&ids]).unwrap()[0]);
    }
}

#[cfg(feature = "candle")]
const BACKENDS: &[BackendName] = &[BackendName::Own, BackendName::Candle];
#[cfg(not(feature = "candle"))]
const BACKENDS: &[BackendName] = &[BackendName::Own];

fn check(case: &Value, got: &ForwardOutput) {
    let logits: Vec<f64> = got.last_logits.iter().map(|logit| f64::from(*logit)).collect();
    for (what, got, floor, relative) in [
        ("long_nll", &got.losses, TOLERANCE, TOLERANCE),
        ("last_logits", &logits, TOLERANCE, TOLERANCE),
        ("hidden_rms", &got.hidden_rms, 0.0, HIDDEN),
    ] {
        let want = numbers(&case[what]);
        assert_eq!(got.len(), want.len(), "{what}");
        let after_last_layer = want.len() - 2;
        for (index, (got, want)) in got.iter().zip(want).enumerate() {
            if want.is_nan() {
                // The library returns the residual stream after the last layer only after the norm.
                assert!(
                    what == "hidden_rms" && index == after_last_layer && got.is_finite(),
                    "{what} {index}"
                );
                continue;
            }
            let close = (got - want).abs() <= floor + relative * want.abs();
            assert!(close, "{what} {index}: expected {want}, got {got}");
        }
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            super::case(stringify!($name));
        })*
    };
}

mod results_match_the_models_own_code {
    cases!(
        cohere_qk_norm falcon_one_norm falcon_shared_key falcon_two_norms gemma gemma3_by_layer_type glm4
        gpt2_scaled_by_layer gpt_neox_sequential llama_dynamic mixtral_sliding olmo_clip phi_qk_norm
        qwen2_upper_layers_slide seed_oss stablelm_parallel);
}

#[test]
fn every_case_has_a_test() {
    let source = include_str!("whole_family_tests.rs");
    for entry in fs::read_dir(cases()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(!entry.path().is_dir() || source.contains(&name), "{name}");
    }
}
