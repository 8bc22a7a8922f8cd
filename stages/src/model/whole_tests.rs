//! Whole models: independence of a window's results from its surroundings, and all refusals. `tests/whole_models.rs`
//! compares the results with the models' own code.

use std::fs;
use std::path::Path;

use longsift_kernels::{Kernel, STATISTICS_VERSION};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::folder_tests::{Tiny, digest_of};
use super::{FORWARD_VERSION, ForwardOutput, ModelProblem, ProblemKind, WholeModel, short_windows};
use crate::contract::{FarDistance, ForwardRequest, ForwardStatistics, LayersRequest};

/// Returns a tiny llama of three layers with a separate head.
pub(super) fn whole() -> Tiny {
    let mut tiny = Tiny::new();
    tiny.config["num_hidden_layers"] = json!(3);
    tiny.config["intermediate_size"] = json!(12);
    tiny.config["max_position_embeddings"] = json!(512);
    let mut add = |name: String, shape: &[usize]| tiny.tensors.insert(name, shape.to_vec());
    for layer in 0..3 {
        let shapes: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[8]),
            ("self_attn.q_proj", &[8, 8]),
            ("self_attn.k_proj", &[4, 8]),
            ("self_attn.v_proj", &[4, 8]),
            ("self_attn.o_proj", &[8, 8]),
            ("post_attention_layernorm", &[8]),
            ("mlp.gate_proj", &[12, 8]),
            ("mlp.up_proj", &[12, 8]),
            ("mlp.down_proj", &[8, 12]),
        ];
        for (name, shape) in shapes {
            add(format!("model.layers.{layer}.{name}.weight"), shape);
        }
    }
    add("model.norm.weight".to_owned(), &[8]);
    add("lm_head.weight".to_owned(), &[12, 8]);
    tiny
}

pub(super) fn written(tiny: &Tiny) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny.write(folder.path());
    folder
}

pub(super) fn ids(count: usize) -> Vec<u32> {
    (0..count).map(|token| ((token * token + 3 * token) % 12) as u32).collect()
}

fn forward(folder: &Path, windows: &[&[u32]]) -> Vec<ForwardOutput> {
    WholeModel::open(folder).unwrap().forward(windows).unwrap()
}

fn refused(change: impl FnOnce(&mut Tiny)) -> Vec<ModelProblem> {
    let mut tiny = whole();
    change(&mut tiny);
    WholeModel::open(written(&tiny).path()).unwrap_err()
}

/// Converts losses to their bits.
pub(super) fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let folder = written(&whole());
    let ids = ids(389);
    let forward_on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| forward(folder.path(), &[&ids]))
    };
    let one = forward_on(1);
    assert!(one[0].losses.iter().all(|loss| *loss > 0.0), "{:?}", one[0].losses);
    assert_eq!(one, forward_on(2));
    assert_eq!(one, forward_on(7));
}

#[test]
fn results_do_not_depend_on_other_windows() {
    let folder = written(&whole());
    let (long, short) = (ids(301), ids(97));
    let together = forward(folder.path(), &[&long, &short]);
    assert_eq!(together[0], forward(folder.path(), &[&long])[0]);
    assert_eq!(together[1], forward(folder.path(), &[&short])[0]);
    // Later tokens change nothing, wherever the window ends within a block of rows or a tile of keys.
    for end in [1, 2, 95, 96, 97, 192, 193, 300] {
        let losses = &forward(folder.path(), &[&long[..end]])[0].losses;
        assert_eq!(bits(losses), bits(&together[0].losses[..end - 1]), "{end} tokens");
    }
}

/// Two windows, one with several blocks of rows and tiles of keys, with all results of a forward pass.
#[test]
fn changed_bits_require_a_new_forward_version() {
    let folder = written(&whole());
    let model = WholeModel::open(folder.path()).unwrap().with_kernel(Kernel::PortableF32);
    let (long, short) = (ids(389), ids(97));
    let windows: [&[u32]; 2] = [&long, &short];
    let mut numbers = Vec::new();
    for ForwardOutput { losses, hidden_rms, last_logits } in model.forward(&windows).unwrap() {
        numbers.extend(bits(&losses).into_iter().chain(bits(&hidden_rms)));
        numbers.extend(last_logits.iter().map(|logit| u64::from(logit.to_bits())));
    }
    let mut request = request_for(true, 40, &[0, 2]);
    request.attention.as_mut().unwrap().ladm = serde_json::from_str(r#"{"span_tokens": 2}"#).ok();
    for output in model.measure(0, &request, &windows, &|| true).unwrap().unwrap() {
        numbers.extend(bits(&output.short_losses));
        for layer in output.layers {
            numbers.extend(bits(&layer.far_mass).into_iter().chain(bits(&layer.far_square)));
            numbers.push(layer.context_dependence.expect("the window has spans").to_bits());
        }
    }
    let digest = digest_of(numbers);
    let hint = "increment FORWARD_VERSION: results differ from those of earlier runs";
    assert_eq!(
        (FORWARD_VERSION, STATISTICS_VERSION, digest),
        (1, 5, 13_002_398_096_349_534_514),
        "{hint}"
    );
}

#[test]
fn a_window_of_one_token_has_logits_and_no_loss() {
    let folder = written(&whole());
    let output = &forward(folder.path(), &[&[5]])[0];
    assert!(output.losses.is_empty() && output.last_logits.len() == 12);
    assert_eq!(output.hidden_rms.len(), 5);
}

#[test]
fn losses_agree_with_the_last_logits() {
    let folder = written(&whole());
    let ids = ids(40);
    let last = &forward(folder.path(), &[&ids[..39]])[0].last_logits;
    let sum: f64 = last.iter().map(|x| f64::from(*x).exp()).sum();
    let want = sum.ln() - f64::from(last[ids[39] as usize]);
    let got = forward(folder.path(), &[&ids])[0].losses[38];
    assert!((got - want).abs() < 1e-6, "{got} for {want}");
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut tiny = whole();
    tiny.config["tie_word_embeddings"] = json!(true);
    tiny.tensors.remove("lm_head.weight");
    let tied = forward(written(&tiny).path(), &[&ids(20)]);
    assert_ne!(tied, forward(written(&whole()).path(), &[&ids(20)]));
    assert_eq!(tied[0].last_logits.len(), 12);
}

#[test]
fn a_tied_head_that_is_stored_must_equal_the_embedding() {
    let mut tiny = whole();
    tiny.config["tie_word_embeddings"] = json!(true);
    let folder = written(&tiny);
    let problems = WholeModel::open(folder.path()).unwrap_err();
    assert!(problems[0].message.contains("`lm_head.weight`, which differs from"), "{problems:?}");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let embedding = file.tensor("model.embed_tokens.weight").unwrap();
    let tensors = file.tensors().into_iter().map(|(name, tensor)| {
        let tensor = if name == "lm_head.weight" { embedding.clone() } else { tensor };
        (name, tensor)
    });
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let stored = forward(folder.path(), &[&ids(20)]);
    tiny.tensors.remove("lm_head.weight");
    assert_eq!(stored, forward(written(&tiny).path(), &[&ids(20)]));
}

#[test]
fn a_tensor_under_two_names_is_refused() {
    for name in ["embed_tokens.weight", "layers.0.self_attn.k_proj.weight"] {
        let problems = refused(|tiny| {
            let shape = tiny.tensors[&format!("model.{name}")].clone();
            tiny.tensors.insert(name.to_owned(), shape);
        });
        let both = format!("under several names: `model.{name}`, `{name}`");
        assert!(problems[0].message.contains(&both), "{problems:?}");
    }
}

#[test]
fn a_missing_tensor_of_an_upper_layer_is_named_before_weights_are_read() {
    let problems = refused(|tiny| {
        tiny.tensors.remove("model.layers.2.mlp.up_proj.weight");
    });
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].kind, ProblemKind::Checkpoint);
    assert_eq!(problems[0].message, "the checkpoint has no `model.layers.2.mlp.up_proj.weight`");
}

#[test]
fn an_unread_tensor_of_an_upper_layer_is_named() {
    for name in [
        "model.layers.1.self_attn.q_norm.weight",
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.1.mlp.gate.weight",
        "model.layers.1.post_norm.bias",
        "model.layers.3.input_layernorm.weight",
        "model.norm2.weight",
        "lm_head.bias",
    ] {
        let problems = refused(|tiny| {
            tiny.tensors.insert(name.to_owned(), vec![8]);
        });
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].message.contains(&format!("has `{name}`")), "{problems:?}");
    }
    let mut tiny = whole();
    tiny.config["num_nextn_predict_layers"] = json!(1);
    for name in ["model.layers.3.input_layernorm.weight", "visual.norm.weight"] {
        tiny.tensors.insert(name.to_owned(), vec![8]);
    }
    assert!(WholeModel::open(written(&tiny).path()).is_ok());
    // Only the layers that are read count.
    let mut tiny = whole();
    tiny.tensors.insert("model.layers.2.self_attn.q_norm.weight".to_owned(), vec![8]);
    assert!(WholeModel::open_to(written(&tiny).path(), Some(2)).is_ok());
}

#[test]
fn a_layer_of_another_shape_is_named() {
    let problems = refused(|tiny| {
        tiny.tensors.insert("model.layers.1.self_attn.v_proj.weight".to_owned(), vec![8, 8]);
    });
    let message = &problems[0].message;
    assert!(message.contains("`model.layers.1.self_attn.v_proj.weight`"), "{message}");
    assert!(message.contains("[8, 8]") && message.contains("[4, 8]"), "{message}");
}

#[test]
fn a_missing_untied_head_is_refused_with_a_hint() {
    let problems = refused(|tiny| {
        tiny.tensors.remove("lm_head.weight");
    });
    assert_eq!(problems[0].message, "the checkpoint has no `model.lm_head.weight`");
    assert!(problems[0].hint.as_ref().unwrap().contains("tie_word_embeddings"), "{problems:?}");
}

#[test]
fn a_family_without_whole_models_is_refused_by_name() {
    let problems = refused(|tiny| tiny.config["model_type"] = json!("granitemoe"));
    let ModelProblem { kind, message, hint } = &problems[0];
    assert_eq!(*kind, ProblemKind::Settings);
    assert_eq!(
        message,
        "`granitemoe` models are supported for their first layer only, not as whole models"
    );
    assert!(hint.as_ref().unwrap().contains("gemma2, gemma3_text"), "{hint:?}");
}

#[test]
fn an_unknown_activation_is_refused_by_name() {
    let problems = refused(|tiny| tiny.config["hidden_act"] = json!("mish"));
    let message = &problems[0].message;
    assert!(message.contains("`mish`") && message.contains("`hidden_act`"), "{message}");
}

#[test]
fn too_many_layers_are_refused() {
    let problems = refused(|tiny| tiny.config["num_hidden_layers"] = json!(1_000_000));
    assert!(problems[0].message.contains("claims 1000000 layers"), "{problems:?}");
}

#[test]
fn a_nan_in_an_upper_layer_is_reported_with_its_tensor() {
    for (name, wanted) in [
        ("model.layers.2.mlp.down_proj.weight", "`model.layers.2.mlp.down_proj.weight` holds NaN"),
        (
            "model.layers.1.input_layernorm.weight",
            "`model.layers.1.input_layernorm.weight` holds NaN",
        ),
        ("lm_head.weight", "`lm_head.weight` holds NaN"),
        ("model.embed_tokens.weight", "`model.embed_tokens.weight` holds NaN for the token id 0"),
    ] {
        let folder = written(&whole());
        put(folder.path(), name, f32::NAN);
        let problem = WholeModel::open(folder.path()).unwrap().forward(&[&ids(9)]).unwrap_err();
        assert!(problem.message.contains(wanted), "{problem:?}");
        assert_eq!(problem.kind, ProblemKind::Checkpoint);
    }
}

#[test]
fn overflow_is_reported_with_its_layer() {
    let folder = written(&whole());
    for name in ["up_proj", "down_proj"] {
        put(folder.path(), &format!("model.layers.1.mlp.{name}.weight"), 3e38);
    }
    let problem = WholeModel::open(folder.path()).unwrap().forward(&[&ids(9)]).unwrap_err();
    assert!(problem.message.contains("after layer 1 are not finite"), "{problem:?}");
}

/// Overwrites the first number of a tensor.
pub(super) fn put(folder: &Path, name: &str, number: f32) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let at = {
        let parsed = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = parsed.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32);
        tensor.data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn windows_that_do_not_fit_the_model_are_refused() {
    let folder = written(&whole());
    let model = WholeModel::open(folder.path()).unwrap();
    let message = |ids: &[u32]| model.forward(&[ids]).unwrap_err().message;
    assert_eq!(message(&[]), "a window without tokens has no losses");
    assert_eq!(
        message(&[3, 12]),
        "token 1 of the window has the id 12; the vocabulary of this llama model has 12 entries"
    );
}

#[test]
fn a_window_beyond_learned_positions_is_refused() {
    let mut tiny = Tiny::new();
    tiny.config = json!({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16,
        "n_inner": 8, "vocab_size": 12});
    tiny.tensors.clear();
    let shapes: [(&str, &[usize]); 16] = [
        ("wte.weight", &[12, 8]),
        ("wpe.weight", &[16, 8]),
        ("h.0.ln_1.weight", &[8]),
        ("h.0.ln_1.bias", &[8]),
        ("h.0.attn.c_attn.weight", &[8, 24]),
        ("h.0.attn.c_attn.bias", &[24]),
        ("h.0.attn.c_proj.weight", &[8, 8]),
        ("h.0.attn.c_proj.bias", &[8]),
        ("h.0.ln_2.weight", &[8]),
        ("h.0.ln_2.bias", &[8]),
        ("h.0.mlp.c_fc.weight", &[8, 8]),
        ("h.0.mlp.c_fc.bias", &[8]),
        ("h.0.mlp.c_proj.weight", &[8, 8]),
        ("h.0.mlp.c_proj.bias", &[8]),
        ("ln_f.weight", &[8]),
        ("ln_f.bias", &[8]),
    ];
    for (name, shape) in shapes {
        tiny.tensors.insert(name.to_owned(), shape.to_vec());
    }
    let folder = written(&tiny);
    let model = WholeModel::open(folder.path()).unwrap();
    assert_eq!(model.forward(&[&ids(16)]).unwrap()[0].losses.len(), 15);
    let problem = model.forward(&[&ids(17)]).unwrap_err();
    assert!(problem.message.contains("longer than the 16 learned positions"), "{problem:?}");
}

#[test]
fn random_configurations_never_panic() {
    let hostile: [Value; 8] = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1e300),
        json!("x"),
        json!([]),
        json!({"a": 1}),
        json!(u64::MAX),
    ];
    for key in [
        "intermediate_size",
        "hidden_act",
        "tie_word_embeddings",
        "mlp_bias",
        "attention_bias",
        "num_hidden_layers",
        "rope_scaling",
        "layer_types",
    ] {
        for value in &hostile {
            let mut tiny = whole();
            tiny.config[key] = value.clone();
            let folder = written(&tiny);
            let problems = match WholeModel::open(folder.path()) {
                Ok(model) => match model.forward(&[&ids(3)]) {
                    Ok(output) => {
                        assert_eq!(output[0].losses.len(), 2, "{key}: {value}");
                        continue;
                    }
                    Err(problem) => vec![problem],
                },
                Err(problems) => problems,
            };
            assert!(!problems.is_empty(), "{key}: {value}");
            assert!(problems.iter().all(|problem| !problem.message.is_empty()), "{key}: {value}");
        }
    }
}

pub(super) fn request_for(losses: bool, short_context: u32, layers: &[u32]) -> ForwardRequest {
    let short_context = (short_context > 0).then_some(short_context);
    let attention = LayersRequest {
        layers: layers.to_vec(),
        distance: FarDistance::PublishedQuarter,
        sink_tokens: 3,
        ladm: None,
    };
    ForwardRequest {
        model: None,
        losses,
        short_context: short_context.filter(|_| losses),
        attention: (!layers.is_empty()).then_some(attention),
        strict_positions: false,
    }
}

fn measured(folder: &Path, request: &ForwardRequest, windows: &[&[u32]]) -> Vec<ForwardStatistics> {
    let model = WholeModel::open(folder).unwrap();
    model.measure(0, request, windows, &|| true).unwrap().unwrap()
}

#[test]
fn measurements_do_not_depend_on_other_windows_or_threads() {
    let folder = written(&whole());
    let request = request_for(true, 40, &[0, 2]);
    let (long, middle, short) = (ids(301), ids(157), ids(33));
    let measured_on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| measured(folder.path(), &request, &[&long, &short, &middle, &long]))
    };
    let together = measured_on(1);
    assert_eq!(together, measured_on(5));
    assert_eq!(together[0], together[3]);
    for (index, window) in [(0, &long), (1, &short), (2, &middle)] {
        assert_eq!(together[index], measured(folder.path(), &request, &[window])[0]);
    }
    assert_eq!(together[0].losses, forward(folder.path(), &[&long])[0].losses);
    assert_eq!((together[0].short_losses.len(), together[1].short_losses.len()), (261, 0));
}

#[test]
fn short_losses_equal_those_of_a_separate_sequence() {
    let folder = written(&whole());
    let window = ids(101);
    let got = &measured(folder.path(), &request_for(true, 32, &[]), &[&window])[0].short_losses;
    for short in short_windows(101, 32, 16).skip(1) {
        let own = &forward(folder.path(), &[&window[short.start..short.end]])[0].losses;
        for token in short.first_scored..short.end {
            let want = own[token - short.start - 1];
            assert_eq!(got[token - 32].to_bits(), want.to_bits(), "token {token}");
        }
    }
}

#[test]
fn without_losses_higher_layers_are_not_read() {
    let mut tiny = whole();
    let whole_model = measured(written(&tiny).path(), &request_for(true, 0, &[0, 1]), &[&ids(120)]);
    tiny.tensors.retain(|name, _| !name.contains("layers.2") && !name.contains("head"));
    for absent in ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"] {
        tiny.tensors.remove(absent);
    }
    // The last layer's parts after its attention must exist, but are not read: only the header counts.
    tiny.tensors.insert("model.layers.1.mlp.down_proj.weight".to_owned(), vec![8, 12]);
    let folder = written(&tiny);
    let request = request_for(false, 0, &[0, 1]);
    let model = WholeModel::open_to(folder.path(), Some(request.depth(3))).unwrap();
    let output = model.measure(0, &request, &[&ids(120)], &|| true).unwrap().unwrap();
    assert_eq!(output[0].layers, whole_model[0].layers);
    assert!(output[0].losses.is_empty());
}

#[test]
fn sinks_are_excluded_from_the_far_mass_only() {
    let folder = written(&whole());
    let with_sinks = |sink_tokens| {
        let mut request = request_for(false, 0, &[1]);
        request.attention.as_mut().unwrap().sink_tokens = sink_tokens;
        measured(folder.path(), &request, &[&ids(120)])[0].layers[0].clone()
    };
    let (all, without, none) = (with_sinks(0), with_sinks(3), with_sinks(120));
    for head in 0..all.far_mass.len() {
        assert!(0.0 < without.far_mass[head] && without.far_mass[head] < all.far_mass[head]);
        assert!(without.far_square[head] < all.far_square[head]);
        assert_eq!((none.far_mass[head], none.far_square[head]), (0.0, 0.0));
    }
}

#[test]
fn a_stopped_pass_returns_none() {
    let folder = written(&whole());
    let model = WholeModel::open(folder.path()).unwrap();
    let asks = std::sync::atomic::AtomicUsize::new(0);
    for stops_after in [0, 1, 3] {
        asks.store(0, std::sync::atomic::Ordering::Relaxed);
        let should_continue =
            || asks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < stops_after;
        let output =
            model.measure(0, &request_for(true, 16, &[1]), &[&ids(200)], &should_continue).unwrap();
        assert_eq!(output, None, "{stops_after}");
    }
}

#[test]
fn the_digest_covers_the_weights_that_are_read() {
    let digest = |tiny: &Tiny, depth| {
        let folder = written(tiny);
        let model = WholeModel::open_to(folder.path(), depth).unwrap();
        (model.description_digest(), model.weights_digest(&|| true).unwrap().unwrap())
    };
    let tiny = whole();
    let (description, weights) = digest(&tiny, None);
    assert_eq!(digest(&tiny, None), (description.clone(), weights.clone()));
    assert_ne!(digest(&tiny, Some(2)).1, weights);
    let folder = written(&tiny);
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let model = WholeModel::open(folder.path()).unwrap();
    assert_ne!(model.weights_digest(&|| true).unwrap().unwrap(), weights);
    assert_eq!(model.description_digest(), description);
    assert_eq!(model.weights_digest(&|| false).unwrap(), None);
}
