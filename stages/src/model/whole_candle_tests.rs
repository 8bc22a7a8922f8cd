//! Compares the backend candle with the own one; tests that a window's results do not depend on other windows, and
//! refusals.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::conformance_tests::shared;
use super::whole_tests::{bits, ids, put, request_for, whole, written};
use super::{BackendName, ModelProblem, ProblemKind, WholeModel};
use crate::contract::{ForwardRequest, ForwardStatistics};
use crate::measures::language_model::ProductPrecision;

fn model(folder: &Path, precision: ProductPrecision) -> WholeModel {
    let model = WholeModel::open(folder).unwrap();
    model.with_backend(Some(BackendName::Candle), precision, false).unwrap()
}

/// Returns a request for losses and the attention of two layers, with LADM's score.
fn everything() -> ForwardRequest {
    let mut request = request_for(true, 40, &[0, 2]);
    request.attention.as_mut().unwrap().ladm = serde_json::from_str(r#"{"span_tokens": 2}"#).ok();
    request
}

fn measured(model: &WholeModel, windows: &[&[u32]]) -> Vec<ForwardStatistics> {
    model.measure(0, &everything(), windows, &|| true).unwrap().unwrap()
}

fn near(what: &str, got: &[f64], want: &[f64], relative: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= 1e-6 + relative * want.abs();
        assert!(close, "{what} {index}: expected {want}, got {got}");
    }
}

#[test]
fn statistics_match_the_own_backend() {
    let folder = written(&whole());
    let own = WholeModel::open(folder.path()).unwrap();
    let candle = model(folder.path(), ProductPrecision::F32);
    // Blocks of rows end within these windows.
    for tokens in [1, 2, 127, 128, 129, 511, 513, 700] {
        let window = &ids(tokens)[..];
        let (got, want) = (measured(&candle, &[window]), measured(&own, &[window]));
        near("loss", &got[0].losses, &want[0].losses, 1e-5);
        near("short loss", &got[0].short_losses, &want[0].short_losses, 1e-5);
        for (got, want) in got[0].layers.iter().zip(&want[0].layers) {
            near("far mass", &got.far_mass, &want.far_mass, 1e-5);
            near("far square", &got.far_square, &want.far_square, 1e-5);
            assert_eq!(got.context_dependence.is_some(), want.context_dependence.is_some());
            let scores = |score: Option<f64>| Vec::from_iter(score);
            let (got, want) = (scores(got.context_dependence), scores(want.context_dependence));
            near("context dependence", &got, &want, 1e-4);
        }
        let (got, want) = (candle.forward(&[window]).unwrap(), own.forward(&[window]).unwrap());
        near("hidden state", &got[0].hidden_rms, &want[0].hidden_rms, 1e-5);
        let logits = |row: &[f32]| row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        near("logit", &logits(&got[0].last_logits), &logits(&want[0].last_logits), 1e-4);
    }
}

/// Returns the numbers of a value, nested in any way.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        value => vec![value.as_f64().unwrap()],
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn shared_cases_match_the_models_own_code() {
    let folder = shared("conformance-lm");
    let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    for case in read(&folder.join("MANIFEST.json"))["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let case = read(&folder.join(name).join("case.json"));
        let (expected, tolerances) = (&case["expected"], &case["tolerances"]);
        let ids: Vec<u32> = numbers(&case["input_ids"]).into_iter().map(|id| id as u32).collect();
        let model = model(&folder.join(name), ProductPrecision::F32);
        let layers: Vec<u32> = (0..model.spec().layers as u32).collect();
        let short = case["short_context"].as_u64().unwrap() as u32;
        let mut request = request_for(true, short, &layers);
        request.attention.as_mut().unwrap().sink_tokens = 0;
        let got = model.measure(0, &request, &[&ids], &|| true).unwrap().unwrap().remove(0);
        let tolerance = |name: &str| tolerances[name].as_f64().unwrap();
        let within = |what: &str, got: &[f64], want: Vec<f64>, absolute: f64, relative: f64| {
            assert_eq!(got.len(), want.len(), "{name}: {what}");
            for (got, want) in got.iter().zip(want) {
                let close = (got - want).abs() <= absolute + relative * want.abs();
                assert!(close, "{name}: {what}: expected {want}, got {got}");
            }
        };
        within("loss", &got.losses, numbers(&expected["long_nll"]), tolerance("nll_abs"), 0.0);
        let counted = numbers(&expected["short_nll"]).split_off(short as usize - 1);
        within("short loss", &got.short_losses, counted, tolerance("nll_abs"), 0.0);
        let tokens = ids.len() as f64;
        let strengths: Vec<f64> =
            got.layers.iter().flat_map(|layer| &layer.far_mass).copied().collect();
        let want = numbers(&expected["proportion"]).into_iter().map(|share| share * tokens);
        within("far mass", &strengths, want.collect(), 1e-9, tolerance("proportion_rel"));
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_other_windows() {
    let folder = written(&whole());
    let model = model(folder.path(), ProductPrecision::F32);
    let (long, middle, short) = (ids(701), ids(157), ids(33));
    let measured_on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| measured(&model, &[&long, &short, &middle, &long]))
    };
    let together = measured_on(1);
    assert_eq!(together, measured_on(5));
    for (index, window) in [(0, &long), (1, &short), (2, &middle), (3, &long)] {
        assert_eq!(together[index], measured(&model, &[window])[0]);
    }
    let again = model.forward(&[&long]).unwrap();
    assert_eq!(bits(&together[0].losses), bits(&again[0].losses));
}

#[test]
fn bf16_changes_losses_slightly() {
    let folder = written(&whole());
    let window = ids(300);
    let losses =
        |precision| model(folder.path(), precision).forward(&[&window]).unwrap().remove(0).losses;
    let (full, rounded) = (losses(ProductPrecision::F32), losses(ProductPrecision::Bf16));
    let off = full.iter().zip(&rounded).map(|(full, rounded)| (full - rounded).abs());
    let max = off.fold(0.0, f64::max);
    assert!(max > 1e-4 && max < 0.2, "{max}");
}

#[test]
fn damaged_weights_are_reported_with_their_tensor_or_layer() {
    let refused = |tensors: &[&str], number: f32| -> ModelProblem {
        let folder = written(&whole());
        for tensor in tensors {
            put(folder.path(), tensor, number);
        }
        model(folder.path(), ProductPrecision::F32).forward(&[&ids(9)]).unwrap_err()
    };
    for tensor in ["model.layers.2.mlp.down_proj.weight", "lm_head.weight"] {
        let problem = refused(&[tensor], f32::NAN);
        assert!(problem.message.contains(&format!("`{tensor}` holds NaN")), "{problem:?}");
        assert_eq!(problem.kind, ProblemKind::Checkpoint);
    }
    let part = |name: &str| format!("model.layers.1.mlp.{name}.weight");
    let problem = refused(&[&part("up_proj"), &part("down_proj")], 3e38);
    assert!(problem.message.contains("after layer 1 are not finite"), "{problem:?}");
}

#[test]
fn a_stopped_pass_returns_none() {
    let folder = written(&whole());
    let model = model(folder.path(), ProductPrecision::F32);
    for stops_after in [0, 1, 4] {
        let asks = std::sync::atomic::AtomicUsize::new(0);
        let should_continue =
            || asks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < stops_after;
        let windows: [&[u32]; 1] = [&ids(200)];
        let output = model.measure(0, &everything(), &windows, &should_continue).unwrap();
        assert_eq!(output, None, "{stops_after}");
    }
}
