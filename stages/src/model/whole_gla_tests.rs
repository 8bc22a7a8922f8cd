//! Gated linear attention: losses compared with the recurrence in float64, independence of grouping, and refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use longsift_kernels::{GatedLinearShape, Kernel, STATISTICS_VERSION, reference_gated_linear};
use rayon::prelude::*;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use super::conformance_tests::shared;
use super::folder_tests::{Tiny, digest_of};
use super::{FORWARD_VERSION, ModelProblem, WholeModel};
use crate::contract::ForwardRequest;

/// Computes `x·Wᵀ` in float64. `x`: `[rows, inputs]`, `weights`: `[outputs, inputs]`.
fn reference_product(x: &[f64], weights: &[f32], inputs: usize) -> Vec<f64> {
    let output = |row: &[f64], weights: &[f32]| -> f64 {
        row.iter().zip(weights).map(|(x, weight)| x * f64::from(*weight)).sum()
    };
    let rows = x.chunks_exact(inputs);
    rows.flat_map(|row| weights.chunks_exact(inputs).map(move |w| output(row, w))).collect()
}

/// A model as plain float64 loops: the definition, token by token.
struct Reference {
    config: Value,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Reference {
    fn open(folder: &Path) -> Self {
        let config = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap());
        let mut tensors = BTreeMap::new();
        for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "safetensors") {
                let bytes = fs::read(&file).unwrap();
                for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                    tensors.insert(name, (view.shape().to_vec(), floats(&view)));
                }
            }
        }
        Self { config: config.unwrap(), tensors }
    }

    fn weights(&self, name: &str) -> &[f32] {
        &self.tensors[name].1
    }

    fn number(&self, key: &str, default: f64) -> f64 {
        self.config[key].as_f64().unwrap_or(default)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.config[key].as_bool().unwrap_or(default)
    }

    fn hidden(&self) -> usize {
        self.number("hidden_size", 2048.0) as usize
    }

    /// `x / √(mean(x²) + eps) · weight` of each group of `width` numbers.
    fn norm(&self, x: &[f64], width: usize, name: &str) -> Vec<f64> {
        let weight = self.tensors.get(name).map(|(_, weight)| weight);
        let mut out = x.to_vec();
        for row in out.chunks_exact_mut(width) {
            let square = row.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let factor = 1.0 / (square + self.number("norm_eps", 1e-6)).sqrt();
            for (index, x) in row.iter_mut().enumerate() {
                *x *= factor * weight.map_or(1.0, |weight| f64::from(weight[index]));
            }
        }
        out
    }

    /// Computes the loss of each token except the first.
    fn losses(&self, ids: &[u32]) -> Vec<f64> {
        let hidden = self.hidden();
        let embedding = self.weights("model.embeddings.weight");
        let row = |id: &u32| embedding[*id as usize * hidden..][..hidden].iter();
        let mut x: Vec<f64> = ids.iter().flat_map(row).map(|x| f64::from(*x)).collect();
        for layer in 0..self.number("num_hidden_layers", 24.0) as usize {
            let weights = |part: &str| self.weights(&format!("model.layers.{layer}.{part}.weight"));
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let y = self.norm(&x, hidden, &name("attn_norm.weight"));
            let mixed = match self.softmax_settings(layer) {
                Some(settings) => self.softmax(layer, settings, &y),
                None => self.gated_linear(layer, &y),
            };
            let width = weights("attn.o_proj").len() / hidden;
            add(&mut x, &reference_product(&mixed, weights("attn.o_proj"), width));
            let y = self.norm(&x, hidden, &name("mlp_norm.weight"));
            let mut wide = reference_product(&y, weights("mlp.gate_proj"), hidden);
            let up = reference_product(&y, weights("mlp.up_proj"), hidden);
            wide.iter_mut().zip(up).for_each(|(x, up)| *x = swish(*x) * up);
            let width = weights("mlp.down_proj").len() / hidden;
            add(&mut x, &reference_product(&wide, weights("mlp.down_proj"), width));
        }
        let x = self.norm(&x, hidden, "model.norm.weight");
        let tied = self.flag("tie_word_embeddings", false);
        let head = self.weights(if tied { "model.embeddings.weight" } else { "lm_head.weight" });
        let logits = reference_product(&x, head, hidden);
        let rows = logits.chunks_exact(head.len() / hidden).zip(&ids[1..]);
        let loss = |(row, target): (&[f64], &u32)| {
            let largest = row.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
            largest + sum.ln() - row[*target as usize]
        };
        rows.map(loss).collect()
    }

    fn gated_linear(&self, layer: usize, y: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("model.layers.{layer}.attn.{part}");
        let hidden = self.hidden();
        let heads = self.number("num_heads", 4.0) as usize;
        let key_heads = self.number("num_kv_heads", heads as f64) as usize;
        let shape = GatedLinearShape {
            query_heads: heads,
            key_heads,
            key_dim: (hidden as f64 * self.number("expand_k", 0.5)) as usize / heads,
            value_dim: (hidden as f64 * self.number("expand_v", 1.0)) as usize / heads,
        };
        let [mut queries, mut keys, values] = ["q", "k", "v"].map(|side| {
            let weights = self.weights(&name(&format!("{side}_proj.weight")));
            let rows = reference_product(y, weights, hidden);
            if !self.flag("use_short_conv", false) {
                return rows;
            }
            let (shape, taps) = &self.tensors[&name(&format!("{side}_conv1d.weight"))];
            let (width, count) = (shape[0], shape[2]);
            let tap = |at: usize, tap: usize| {
                let from = (at / width + tap + 1).checked_sub(count);
                let input = from.map_or(0.0, |row| rows[row * width + at % width]);
                f64::from(taps[at % width * count + tap]) * input
            };
            (0..rows.len()).map(|at| swish((0..count).map(|index| tap(at, index)).sum())).collect()
        });
        let rank = reference_product(y, self.weights(&name("gk_proj.0.weight")), hidden);
        let mut decays = reference_product(&rank, self.weights(&name("gk_proj.1.weight")), 16);
        let bias = self.weights(&name("gk_proj.1.bias"));
        for (at, x) in decays.iter_mut().enumerate() {
            let a = *x + f64::from(bias[at % bias.len()]);
            *x = (a.min(0.0) - (-a.abs()).exp().ln_1p()) / 16.0;
            *x = x.max(self.number("clamp_min", f64::NEG_INFINITY));
        }
        if self.config["feature_map"] == "relu" {
            queries.iter_mut().chain(&mut keys).for_each(|x| *x = x.max(0.0));
        }
        let scale = 1.0 / (shape.key_dim as f64).sqrt();
        for x in &mut queries {
            *x *= scale;
        }
        let mixed = reference_gated_linear(&shape, &queries, &keys, &values, &decays);
        let names = ["g_norm_swish_gate.weight", "g_norm.weight"].map(name);
        let present = names.iter().find(|name| self.tensors.contains_key(*name));
        let mut out = self.norm(&mixed, shape.value_dim, present.map_or("", String::as_str));
        if self.flag("use_output_gate", true) {
            let gates = reference_product(y, self.weights(&name("g_proj.weight")), hidden);
            out.iter_mut().zip(gates).for_each(|(x, gate)| *x *= swish(gate));
        }
        out
    }

    fn softmax_settings(&self, layer: usize) -> Option<&Value> {
        let layers = self.config["attn"]["layers"].as_array()?;
        layers.contains(&json!(layer)).then(|| &self.config["attn"])
    }

    fn softmax(&self, layer: usize, settings: &Value, y: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("model.layers.{layer}.attn.{part}");
        let (hidden, heads) = (self.hidden(), settings["num_heads"].as_u64().unwrap() as usize);
        let group = heads / settings["num_kv_heads"].as_u64().unwrap_or(heads as u64) as usize;
        let window = settings["window_size"].as_u64().unwrap_or(u64::MAX) as usize;
        let theta = settings["rope_theta"].as_f64().unwrap_or(1e4) as f32;
        let dim = hidden / heads;
        let rotate = |rows: &mut [f64], width: usize| {
            for (row, rows) in rows.chunks_exact_mut(width).enumerate() {
                for head in rows.chunks_exact_mut(dim) {
                    for i in 0..dim / 2 {
                        let power = theta.powf((2 * i) as f32 / dim as f32);
                        let (sin, cos) = (row as f64 * f64::from(1.0 / power)).sin_cos();
                        let (a, b) = (head[i], head[i + dim / 2]);
                        head[i] = a * cos - b * sin;
                        head[i + dim / 2] = b * cos + a * sin;
                    }
                }
            }
        };
        let [mut queries, mut keys, values] = ["q", "k", "v"].map(|side| {
            let weights = self.weights(&name(&format!("{side}_proj.weight")));
            let mut rows = reference_product(y, weights, hidden);
            if let Some((_, bias)) = self.tensors.get(&name(&format!("{side}_proj.bias"))) {
                let biases = bias.iter().cycle();
                rows.iter_mut().zip(biases).for_each(|(x, bias)| *x += f64::from(*bias));
            }
            rows
        });
        let width = hidden / group;
        rotate(&mut queries, hidden);
        rotate(&mut keys, width);
        let mut out = vec![0.0; queries.len()];
        for (at, out) in out.chunks_exact_mut(dim).enumerate() {
            let (row, head) = (at / heads, at % heads);
            let first = (row + 1).saturating_sub(window);
            let of_key = |key: usize| key * width + head / group * dim;
            let logit = |key: usize| {
                let pairs = queries[at * dim..][..dim].iter().zip(&keys[of_key(key)..]);
                pairs.map(|(query, key)| query * key).sum::<f64>() / (dim as f64).sqrt()
            };
            let logits: Vec<f64> = (first..=row).map(logit).collect();
            let largest = logits.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            for (key, logit) in (first..=row).zip(&logits) {
                let share = (logit - largest).exp() / total;
                let values = &values[of_key(key)..];
                out.iter_mut().zip(values).for_each(|(out, value)| *out += share * value);
            }
        }
        out
    }
}

fn floats(view: &TensorView<'_>) -> Vec<f32> {
    let pairs = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    match view.dtype() {
        Dtype::F32 => {
            let four = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
            view.data().chunks_exact(4).map(four).collect()
        }
        Dtype::BF16 => {
            view.data().chunks_exact(2).map(|two| bf16::from_bits(pairs(two)).to_f32()).collect()
        }
        _ => view.data().chunks_exact(2).map(|two| f16::from_bits(pairs(two)).to_f32()).collect(),
    }
}

fn add(x: &mut [f64], given: &[f64]) {
    x.iter_mut().zip(given).for_each(|(x, given)| *x += given);
}

fn swish(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Returns a tiny model: 3 layers, 4 query heads of 2 on 2 key heads, values of 4, a vocabulary of 12.
fn tiny(settings: &Value) -> Tiny {
    let mut tiny = Tiny::new();
    tiny.config = json!({"model_type": "gla", "hidden_size": 16, "num_hidden_layers": 3, "num_heads": 4,
        "num_kv_heads": 2, "intermediate_size": 12, "vocab_size": 12});
    for (key, value) in settings.as_object().unwrap() {
        tiny.config[key] = value.clone();
    }
    tiny.tensors.clear();
    let mut need = |name: String, shape: &[usize]| tiny.tensors.insert(name, shape.to_vec());
    need("model.embeddings.weight".to_owned(), &[12, 16]);
    need("model.norm.weight".to_owned(), &[16]);
    need("lm_head.weight".to_owned(), &[12, 16]);
    let flag = |key: &str, default| settings[key].as_bool().unwrap_or(default);
    for layer in 0..3 {
        let mut need = |part: &str, shape: &[usize]| {
            need(format!("model.layers.{layer}.{part}"), shape);
        };
        for (part, shape) in
            [("gate_proj", [12, 16]), ("up_proj", [12, 16]), ("down_proj", [16, 12])]
        {
            need(&format!("mlp.{part}.weight"), &shape);
        }
        need("attn_norm.weight", &[16]);
        need("mlp_norm.weight", &[16]);
        need("attn.o_proj.weight", &[16, 16]);
        let attn = &settings["attn"];
        let softmax = attn.get(0).unwrap_or(attn)["layers"].as_array();
        if softmax.is_some_and(|layers| layers.contains(&json!(layer))) {
            for (side, rows) in [("q", 16), ("k", 8), ("v", 8)] {
                need(&format!("attn.{side}_proj.weight"), &[rows, 16]);
            }
            continue;
        }
        for (side, rows) in [("q", 8), ("k", 4), ("v", 8)] {
            need(&format!("attn.{side}_proj.weight"), &[rows, 16]);
            if flag("use_short_conv", false) {
                need(&format!("attn.{side}_conv1d.weight"), &[rows, 1, 4]);
            }
        }
        need("attn.gk_proj.0.weight", &[16, 16]);
        need("attn.gk_proj.1.weight", &[4, 16]);
        need("attn.gk_proj.1.bias", &[4]);
        if flag("use_output_gate", true) {
            need("attn.g_proj.weight", &[16, 16]);
        }
        need("attn.g_norm.weight", &[4]);
    }
    tiny
}

fn written(tiny: &Tiny) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny.write(folder.path());
    folder
}

fn ids(count: usize, seed: u64, vocabulary: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary) as u32
    };
    (0..count).map(|_| next()).collect()
}

fn settings() -> [Value; 5] {
    [
        json!({}),
        json!({"use_short_conv": true, "norm_eps": 1e-3}),
        json!({"feature_map": "relu", "use_output_gate": false, "clamp_min": -0.05}),
        json!({"attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "window_size": 33}}),
        json!({"attn": [{"layers": [0, 2], "num_heads": 4, "num_kv_heads": 2, "rope_theta": 5e5}]}),
    ]
}

#[test]
fn losses_match_the_float64_recurrence() {
    for settings in &settings()[..4] {
        let folder = written(&tiny(settings));
        let ids = ids(300, 1, 12);
        let got = WholeModel::open(folder.path()).unwrap().forward(&[&ids]).unwrap().remove(0);
        let want = Reference::open(folder.path()).losses(&ids);
        for (token, (got, want)) in got.losses.iter().zip(&want).enumerate() {
            assert!(
                (got - want).abs() <= 2e-4,
                "{settings}, token {token}: {got}, expected {want}"
            );
        }
    }
}

/// Returns the bits of everything that a forward pass returns.
fn bits(forward: &super::ForwardOutput) -> Vec<u64> {
    let logits = forward.last_logits.iter().map(|logit| u64::from(logit.to_bits()));
    let doubles = forward.losses.iter().chain(&forward.hidden_rms).map(|x| x.to_bits());
    doubles.chain(logits).collect()
}

#[test]
fn bits_do_not_depend_on_threads_windows_or_pieces() {
    let folder = written(&tiny(&json!({"use_short_conv": true})));
    let model = WholeModel::open(folder.path()).unwrap();
    // Longer than the tokens that run through all layers at a time.
    let (long, short, middle) = (ids(33_000, 1, 12), ids(97, 2, 12), ids(4500, 3, 12));
    let forward_on = |threads, windows: &[&[u32]]| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| model.forward(windows).unwrap()).iter().map(bits).collect::<Vec<_>>()
    };
    let together = forward_on(3, &[&short, &long, &middle]);
    for (window, together) in [&short, &long, &middle].into_iter().zip(&together) {
        assert!(forward_on(1, &[window])[0] == *together, "{} tokens", window.len());
    }
    let losses = &model.forward(&[&long[..5000]]).unwrap()[0].losses;
    let whole = losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert!(whole == together[1][..4999], "later tokens changed earlier losses");
}

#[test]
fn short_losses_start_from_the_zero_state() {
    for settings in settings() {
        let folder = written(&tiny(&settings));
        let model = WholeModel::open(folder.path()).unwrap();
        let request = ForwardRequest {
            model: None,
            losses: true,
            short_context: Some(32),
            attention: None,
            strict_positions: false,
        };
        let window = ids(100, 5, 12);
        let got = model.measure(0, &request, &[&window], &|| true).unwrap().unwrap().remove(0);
        assert_eq!((got.losses.len(), got.short_losses.len()), (99, 68));
        let separate = &model.forward(&[&window[16..48]]).unwrap()[0].losses[15..];
        let short = got.short_losses[..16].iter();
        assert!(
            short.zip(separate).all(|(got, want)| got.to_bits() == want.to_bits()),
            "{settings}"
        );
    }
}

#[test]
fn changed_bits_of_gated_linear_attention_require_a_new_version() {
    let folder = written(&tiny(&json!({"use_short_conv": true, "feature_map": "relu"})));
    let model = WholeModel::open(folder.path()).unwrap().with_kernel(Kernel::PortableF32);
    let forward = model.forward(&[&ids(200, 1, 12)]).unwrap().remove(0);
    let digest = digest_of(bits(&forward));
    let hint = "raise FORWARD_VERSION: results differ from those of earlier versions";
    assert_eq!(
        (FORWARD_VERSION, STATISTICS_VERSION, digest),
        (1, 5, 4_731_690_242_288_772_476),
        "{hint}"
    );
}

#[test]
fn the_description_distinguishes_settings() {
    let digest = |settings: &Value| {
        let folder = written(&tiny(settings));
        WholeModel::open(folder.path()).unwrap().description_digest()
    };
    let all: std::collections::BTreeSet<String> = settings().iter().map(digest).collect();
    assert_eq!(all.len(), settings().len());
}

#[test]
fn tensors_that_the_settings_exclude_are_refused_by_name() {
    for name in
        ["model.layers.0.attn.q_proj.bias", "model.layers.1.attn.gv_proj.weight", "attn_res.weight"]
    {
        let mut tiny = tiny(&json!({}));
        tiny.tensors.insert(name.to_owned(), vec![8]);
        let problems = WholeModel::open(written(&tiny).path()).unwrap_err();
        assert!(problems[0].message.contains(name), "{problems:?}");
    }
    // A head that differs from the embedding contradicts a tied head.
    let mut tiny = tiny(&json!({"tie_word_embeddings": true}));
    let problems = WholeModel::open(written(&tiny).path()).unwrap_err();
    assert!(problems[0].message.contains("`lm_head.weight`, which differs"), "{problems:?}");
    tiny.tensors.remove("lm_head.weight");
    WholeModel::open(written(&tiny).path()).unwrap();
    // The norm may have its other name.
    let norm = tiny.tensors.remove("model.layers.2.attn.g_norm.weight").unwrap();
    tiny.tensors.insert("model.layers.2.attn.g_norm_swish_gate.weight".to_owned(), norm);
    WholeModel::open(written(&tiny).path()).unwrap();
}

/// A case with the changes of an entry of `refuse.json`.
fn changed(entry: &Value, folder: &Path) {
    let base = shared("conformance-gla").join(entry["base"].as_str().unwrap());
    let mut config: Value =
        serde_json::from_slice(&fs::read(base.join("config.json")).unwrap()).unwrap();
    for (key, value) in entry["config"].as_object().unwrap() {
        if value == "REMOVE" {
            config.as_object_mut().unwrap().remove(key);
        } else {
            config[key] = value.clone();
        }
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(base.join("model.safetensors")).unwrap();
    let mut tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    }
    for (name, shape) in entry["add"].as_object().into_iter().flatten() {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        tensors.insert(name.clone(), (Dtype::F32, shape, bytes));
    }
    for name in entry["remove"].as_array().into_iter().flatten() {
        tensors.remove(name.as_str().unwrap());
    }
    let view = |(dtype, shape, bytes)| TensorView::new(dtype, shape, bytes).unwrap();
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, view((*dtype, shape.clone(), bytes.as_slice())))
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn every_line_of_the_shared_list_is_refused_by_name() {
    let list = fs::read(shared("conformance-gla/refuse.json")).unwrap();
    let list: Value = serde_json::from_slice(&list).unwrap();
    let of_entry = |entry: &Value| {
        let folder = tempfile::tempdir().unwrap();
        changed(entry, folder.path());
        let problems: Vec<ModelProblem> = match WholeModel::open(folder.path()) {
            Ok(_) => panic!("{entry} is not refused"),
            Err(problems) => problems,
        };
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        format!("── {}\n{}\n", entry["name"].as_str().unwrap(), problems.join("\n"))
    };
    let all: Vec<String> = list["refuse"].as_array().unwrap().iter().map(of_entry).collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn losses_of_32768_tokens_match_the_float64_recurrence() {
    let manifest = fs::read(shared("conformance-gla/MANIFEST.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    manifest["cases"].as_array().unwrap().par_iter().for_each(|case| {
        let name = case["name"].as_str().unwrap();
        let folder = shared("conformance-gla").join(name);
        let reference = Reference::open(&folder);
        let ids = ids(1 << 15, 1, reference.number("vocab_size", 32_000.0) as u64);
        let want = reference.losses(&ids);
        let got = WholeModel::open(&folder).unwrap().forward(&[&ids]).unwrap().remove(0).losses;
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let off = (mean(&got) - mean(&want)).abs();
        assert!(off <= 2e-5, "{name}: the mean is off by {off:e}");
        let mut off: Vec<f64> =
            got.iter().zip(&want).map(|(got, want)| (got - want).abs()).collect();
        off.sort_by(f64::total_cmp);
        let max = off[off.len() * 999 / 1000];
        assert!(max <= 2e-4, "{name}: 99.9 % of the tokens are off by up to {max:e}");
    });
}
