//! Quantised checkpoints that are incomplete or contradict themselves, derived from the cases of `format_tests`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use longsift_kernels::Kernel;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::format_tests::folder;
use super::refusal_tests::shown;
use super::shard::WeightShard;
use super::tensors::TensorRole;
use super::*;
use crate::load_partial_model::Precision;
use crate::model::rope::RopeScaling;

/// A case's folder with modified tensors and settings.
struct Changed {
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Changed {
    fn case(name: &str) -> Self {
        let folder = folder().join(name);
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        };
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let config = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap());
        Self { config: config.unwrap(), tensors: tensors.into_iter().map(tensor).collect() }
    }

    /// Removes these tensors of the query projection.
    fn without(mut self, names: &[&str]) -> Self {
        for name in names {
            self.tensors.remove(&format!("{QUERY}.{name}")).unwrap();
        }
        self
    }

    /// Replaces one of them.
    fn with_tensor(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        self.tensors.insert(format!("{QUERY}.{name}"), (dtype, shape.to_vec(), bytes)).unwrap();
        self
    }

    /// Reshapes one of them.
    fn shaped(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.get_mut(&format!("{QUERY}.{name}")).unwrap().1 = shape.to_vec();
        self
    }

    /// Changes a setting of the quantisation.
    fn set(mut self, name: &str, value: Value) -> Self {
        self.config["quantization_config"][name] = value;
        self
    }

    fn opened(&self) -> Result<ModelFolder, Vec<ModelProblem>> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        ModelFolder::open(folder.path(), None)
    }

    fn write(&self, folder: &Path) {
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        fs::write(folder.join("model.safetensors"), bytes).unwrap();
    }

    /// Returns the problems of opening or building.
    fn refusal(&self, case: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        let cache = tempfile::tempdir().unwrap();
        let problems = match ModelFolder::open(folder.path(), None) {
            Err(problems) => problems,
            Ok(model) => {
                let built = LayerZeroTable::open_or_build(
                    &model,
                    Kernel::PortableF32,
                    Precision::F32,
                    cache.path(),
                    &|_, _| {},
                );
                vec![built.expect_err(case)]
            }
        };
        heading(case, folder.path(), &problems)
    }
}

fn heading(case: &str, folder: &Path, problems: &[ModelProblem]) -> String {
    assert!(problems.iter().all(|problem| problem.hint.is_some()), "{problems:#?}");
    format!("── {case}\n{}\n", shown(folder, problems))
}

const QUERY: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn messages_for_incomplete_packed_matrices() {
    let cases: [(&str, &[&str]); 10] = [
        ("gptq_4bit", &["scales", "qzeros"]),
        ("awq_4bit", &["scales", "qzeros"]),
        ("bitsandbytes_nf4_double", &["weight.absmax", "weight.nested_absmax"]),
        ("bitsandbytes_nf4", &["weight.quant_state.bitsandbytes__nf4"]),
        ("bitsandbytes_int8", &["SCB"]),
        ("fp8_blocks", &["weight_scale_inv"]),
        ("compressed_float_channel", &["weight_scale"]),
        ("compressed_packed_int4_zeros", &["weight_scale"]),
        ("compressed_packed_int4_zeros", &["weight_zero_point"]),
        ("mlx_4bit", &["scales", "biases"]),
    ];
    let refusal =
        |(case, names): &(&str, &[&str])| Changed::case(case).without(names).refusal(case);
    insta::assert_snapshot!(cases.iter().map(refusal).collect::<String>());
}

#[test]
fn messages_for_wrong_shapes() {
    let shaped = |case: &str, name: &str, shape: &[usize]| {
        Changed::case(case).shaped(name, shape).refusal(&format!("{case}, {name}"))
    };
    let cut = Changed::case("bitsandbytes_nf4").with_tensor(
        "weight",
        Dtype::U8,
        &[4095, 1],
        vec![0; 4095],
    );
    insta::assert_snapshot!(
        [
            shaped("gptq_4bit", "qweight", &[32, 32]),
            shaped("awq_4bit", "qweight", &[64, 16]),
            shaped("bitsandbytes_nf4", "weight.absmax", &[64, 2]),
            cut.refusal("bitsandbytes_nf4, weight"),
            shaped("fp8_blocks", "weight_scale_inv", &[4, 2]),
            shaped("compressed_packed_int4", "weight_packed", &[32, 32]),
            shaped("compressed_packed_int4", "weight_scale", &[32, 8]),
            shaped("mlx_4bit", "scales", &[2, 64]),
        ]
        .concat()
    );
}

#[test]
fn messages_for_invalid_values() {
    let groups: Vec<u8> = std::iter::repeat_n(4i32.to_le_bytes(), 128).flatten().collect();
    let groups =
        Changed::case("gptq_4bit_act_order").with_tensor("g_idx", Dtype::I32, &[128], groups);
    let shape: Vec<u8> = [64i64, 120].iter().flat_map(|size| size.to_le_bytes()).collect();
    let shape = Changed::case("compressed_packed_int4").with_tensor(
        "weight_shape",
        Dtype::I64,
        &[2],
        shape,
    );
    let nan = vec![0x7f; 64 * 128];
    let nan = Changed::case("fp8_blocks").with_tensor("weight", Dtype::F8_E4M3, &[64, 128], nan);
    let mut ordered = Changed::case("compressed_packed_int4");
    ordered.tensors.insert(format!("{QUERY}.weight_g_idx"), (Dtype::I32, vec![128], vec![0; 512]));
    let order =
        Changed::case("bitsandbytes_int8").with_tensor("weight_format", Dtype::U8, &[], vec![2]);
    insta::assert_snapshot!(
        [
            groups.refusal("a missing group"),
            shape.refusal("a shape tensor that contradicts the matrix"),
            nan.refusal("codes of NaN"),
            order.refusal("rows in a GPU-specific order"),
            ordered.refusal("reordered groups"),
        ]
        .concat()
    );
}

#[test]
fn messages_for_quantisation_states() {
    let name = "weight.quant_state.bitsandbytes__nf4";
    let with_state = |case: &str, text: &[u8]| {
        Changed::case("bitsandbytes_nf4")
            .with_tensor(name, Dtype::U8, &[text.len()], text.to_vec())
            .refusal(case)
    };
    let state = |field: &str, value: Value| {
        let mut state =
            json!({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 128]});
        state[field] = value;
        with_state(field, state.to_string().as_bytes())
    };
    insta::assert_snapshot!(
        [
            with_state("no JSON", b"{"),
            with_state("too long", &vec![b' '; 70_000]),
            state("shape", json!([128, 64])),
            state("blocksize", json!(0)),
            state("quant_type", json!("fp4")),
            state("dtype", json!("float64")),
            state("nested_blocksize", json!(256)),
        ]
        .concat()
    );
}

#[test]
fn messages_for_packed_numbers_without_a_method() {
    let refusal = |case: &str| {
        let mut changed = Changed::case(case);
        let config = changed.config.as_object_mut().unwrap();
        config.remove("quantization_config");
        config.remove("quantization");
        changed.refusal(case)
    };
    insta::assert_snapshot!(
        ["bitsandbytes_nf4", "fp8_blocks", "mlx_4bit", "gptq_4bit"].map(refusal).concat()
    );
}

#[test]
fn messages_for_unsupported_methods() {
    let refusal = |name: &str| {
        let mut changed = Changed::case("gptq_4bit");
        changed.config["quantization_config"]["quant_method"] = json!(name);
        changed.refusal(name)
    };
    insta::assert_snapshot!(
        ["hqq", "aqlm", "eetq", "quanto", "torchao", "bitnet"].map(refusal).concat()
    );
}

#[test]
fn modules_without_quantisation_are_read_as_plain() {
    let plain = Changed::case("bitsandbytes_nf4").without(&["weight"]);
    let names: Vec<String> =
        plain.tensors.keys().filter(|name| name.contains("q_proj")).cloned().collect();
    let mut plain = plain.set("llm_int8_skip_modules", json!(["q_proj"]));
    for name in names {
        plain.tensors.remove(&name);
    }
    let weight = (Dtype::BF16, vec![64, 128], vec![0x3f; 64 * 128 * 2]);
    plain.tensors.insert(format!("{QUERY}.weight"), weight);
    let model = plain.opened().unwrap();
    let part = model.parts.iter().find(|part| part.needed.role == TensorRole::QueryWeight).unwrap();
    assert_eq!((part.format.name().as_str(), part.bytes()), ("BF16", 64 * 128 * 2));
}

/// Copies a GGUF case to a temporary folder.
fn gguf(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["model.gguf", "config.json"] {
        let from = folder().join(name).join(file);
        if from.exists() {
            fs::copy(from, copy.path().join(file)).unwrap();
        }
    }
    copy
}

fn gguf_refusal(case: &str, folder: &tempfile::TempDir) -> String {
    let problems = ModelFolder::open(folder.path(), None).expect_err(case);
    heading(case, folder.path(), &problems)
}

/// Replaces the first `from` in a GGUF case by `to`.
fn gguf_changed(case: &str, from: &[u8], to: &[u8]) -> String {
    let folder = gguf("gguf_q8_0_q4_0_q4_1");
    let path = folder.path().join("model.gguf");
    let mut bytes = fs::read(&path).unwrap();
    let index = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[index..index + to.len()].copy_from_slice(to);
    fs::write(path, bytes).unwrap();
    gguf_refusal(case, &folder)
}

#[test]
fn a_gguf_file_and_its_folder_are_the_same_model() {
    let folder = gguf("gguf_llama_linear");
    let self_contained = ModelFolder::open(folder.path(), None).unwrap();
    let file = ModelFolder::open(&folder.path().join("model.gguf"), None).unwrap();
    assert_eq!((file.identity(), file.spec()), (self_contained.identity(), self_contained.spec()));
    assert_eq!(self_contained.config().folder(), folder.path());
    fs::copy(folder.path().join("model.gguf"), folder.path().join("sha256-0f")).unwrap();
    let blob = ModelFolder::open(&folder.path().join("sha256-0f"), None).unwrap();
    assert_eq!(
        (blob.spec(), blob.config().bos_token_id()),
        (self_contained.spec(), self_contained.config().bos_token_id())
    );
    assert_eq!(
        (self_contained.config().quantization(), self_contained.config().bos_token_id()),
        (Some("gguf"), Some(1))
    );
    assert!(
        self_contained.config().has_weights()
            && self_contained.checkpoint_bytes() > self_contained.bytes_to_read()
    );
    let config = json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_scaling": {"rope_type": "linear", "factor": 4.0}});
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let with_config = ModelFolder::open(folder.path(), None).unwrap();
    assert_eq!(with_config.spec(), self_contained.spec());
}

#[test]
fn a_gguf_file_in_parts_is_described_by_the_tensors_of_all() {
    let folder = gguf("gguf_llama_frequencies");
    let whole = ModelFolder::open(folder.path(), None).unwrap();
    let parts = tempfile::tempdir().unwrap();
    let bytes = fs::read(folder.path().join("model.gguf")).unwrap();
    let part = |number| parts.path().join(format!("m-0000{number}-of-00002.gguf"));
    // The first part has entries, but no tensors.
    let headers = WeightShard::open(folder.path(), "model.gguf").unwrap().tensors;
    let begins = |name: &String| {
        let name = [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
        bytes.windows(name.len()).position(|window| window == name)
    };
    let end = headers.keys().filter_map(begins).min().unwrap();
    let mut entries = bytes[..end].to_vec();
    entries[8..16].fill(0);
    fs::write(part(1), entries).unwrap();
    let refused = ModelFolder::open(&part(1), None).unwrap_err();
    assert!(refused[0].message.contains("m-00002-of-00002.gguf"), "{refused:?}");
    assert!(refused[0].hint.as_ref().unwrap().contains("incomplete"), "{refused:?}");
    fs::write(part(2), &bytes).unwrap();
    let split = ModelFolder::open(&part(1), None).unwrap();
    assert_eq!(split.spec(), whole.spec());
    assert_ne!(split.spec().rope.as_ref().unwrap().scaling, RopeScaling::Default);
}

#[test]
fn messages_for_gguf_files() {
    let self_contained = gguf("gguf_phi3_config");
    fs::remove_file(self_contained.path().join("config.json")).unwrap();
    let other = gguf("gguf_qwen3");
    let config = folder().join("gguf_phi3_config/config.json");
    fs::copy(config, other.path().join("config.json")).unwrap();
    let several = gguf("gguf_f16");
    fs::copy(several.path().join("model.gguf"), several.path().join("other.gguf")).unwrap();
    let cut = gguf("gguf_f16");
    let bytes = fs::read(cut.path().join("model.gguf")).unwrap();
    fs::write(cut.path().join("model.gguf"), &bytes[..bytes.len() - 100]).unwrap();
    let line = |name: &str, sizes: [u64; 2], kind: u32| {
        let sizes = sizes.iter().flat_map(|size| size.to_le_bytes()).collect::<Vec<u8>>();
        [name.as_bytes(), &2u32.to_le_bytes(), &sizes, &kind.to_le_bytes()].concat()
    };
    let query = |kind| line("blk.0.attn_q.weight", [64, 64], kind);
    let key = |sizes| line("blk.0.attn_k.weight", sizes, 3);
    insta::assert_snapshot!(
        [
            gguf_refusal("an architecture that needs a config.json", &self_contained),
            gguf_refusal("a config.json of another model", &other),
            gguf_refusal("several files", &several),
            gguf_refusal("a file that is cut", &cut),
            gguf_changed("an unknown architecture", b"llama", b"mamba"),
            gguf_changed("unknown blocks", &query(2), &query(20)),
            gguf_changed("a missing tensor", b"blk.0.attn_k.weight", b"blk.9.attn_k.weight"),
            gguf_changed("another shape", &key([64, 32]), &key([32, 64])),
        ]
        .concat()
    );
}

fn replace_all(file: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let found: Vec<usize> =
        (0..file.len()).filter(|index| file[*index..].starts_with(from)).collect();
    assert!(!found.is_empty());
    for index in found {
        file[index..index + to.len()].copy_from_slice(to);
    }
}

#[test]
fn unsupported_gguf_entries_are_refused_by_name() {
    let changed = |case: &str, from: &[u8], to: &[u8]| {
        let folder = gguf(case);
        // Without a config.json, which would take precedence.
        let _ = fs::remove_file(folder.path().join("config.json"));
        let path = folder.path().join("model.gguf");
        let mut file = fs::read(&path).unwrap();
        replace_all(&mut file, from, to);
        fs::write(&path, file).unwrap();
        let problems = ModelFolder::open(folder.path(), None).map(|_| ()).unwrap_err();
        problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; ")
    };
    let case = "gguf_q8_0_q4_0_q4_1";
    let rotated = |family: &str, count: u32| {
        let key = format!("{family}.rope.dimension_count");
        [key.as_bytes(), &4u32.to_le_bytes(), &count.to_le_bytes()].concat()
    };
    for (message, part) in [
        (
            changed(case, &rotated("llama", 16), &rotated("llama", 8)),
            "states `llama.rope.dimension_count` 8, but the `llama` model would be scored with 16",
        ),
        (
            changed("gguf_qwen2_yarn", &rotated("qwen2", 16), &rotated("qwen2", 8)),
            "states `qwen2.rope.dimension_count` 8, but the `qwen2` model would be scored with 16",
        ),
        (
            changed(case, b"layer_norm_rms_epsilon", b"layer_norm_rms_epsilom"),
            "does not state the epsilon of its norms (`llama.attention.layer_norm_rms_epsilon`)",
        ),
        (
            changed(case, b"feed_forward_length", b"attention.scaling_b"),
            "has the entry `llama.attention.scaling_b`, which is supported only with a config.json",
        ),
        (
            changed("gguf_qwen3", b"qwen3", b"llama"),
            "has `blk.0.attn_k_norm.weight`, `blk.0.attn_q_norm.weight`, which a `llama` model",
        ),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn unexpected_tensors_of_a_gguf_file_are_refused_by_name() {
    let with_tensor = |name: &str| {
        let folder = gguf("gguf_q8_0_q4_0_q4_1");
        let path = folder.path().join("model.gguf");
        let mut file = fs::read(&path).unwrap();
        add_gguf_tensor(&mut file, name);
        fs::write(&path, file).unwrap();
        ModelFolder::open(folder.path(), None).map(|_| ())
    };
    for name in [
        "blk.0.attn_norm.bias",
        "blk.0.attn_q.scale",
        "blk.0.attn_sinks.weight",
        "position_embd.weight",
        "token_embd_norm.weight",
        "anything.weight",
    ] {
        let problems = with_tensor(name).unwrap_err();
        assert!(
            problems[0].message.contains(&format!("has `{name}`, which a `llama` model")),
            "{problems:?}"
        );
    }
    // Tensors that are used later.
    for name in [
        "blk.0.attn_v.bias",
        "blk.0.attn_output.weight",
        "blk.0.ffn_norm.weight",
        "output.weight",
        "output_norm.weight",
    ] {
        with_tensor(name).expect(name);
    }
}

/// Adds a tensor without bytes, of an unknown type, and a text that keeps the others at multiples of the alignment.
fn add_gguf_tensor(file: &mut Vec<u8>, name: &str) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let sizes = [&[1, 0, 0, 0][..], &[0; 8], &[99, 0, 0, 0], &[0; 8]].concat();
    let tensor = [text(name), sizes].concat();
    let first = text("token_embd.weight");
    let index = file.windows(first.len()).position(|window| window == first).unwrap();
    let filler = (tensor.len() + 24).next_multiple_of(32) - tensor.len() - 24;
    file.splice(index..index, tensor);
    file[8] += 1;
    let filler = [&(filler as u64).to_le_bytes(), &vec![b' '; filler][..]].concat();
    file.splice(24..24, gguf_entry("fill", 8, &filler));
    file[16] += 1;
}

fn gguf_entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes(), key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

/// Inserts the entry, and a text that keeps the tensors at multiples of the alignment.
fn add_gguf_entry(file: &mut Vec<u8>, key: &str, kind: u32, value: &[u8]) {
    let entry = gguf_entry(key, kind, value);
    let filler = (entry.len() + 24).next_multiple_of(32) - entry.len() - 24;
    let filler = [&(filler as u64).to_le_bytes(), &vec![b' '; filler][..]].concat();
    file.splice(24..24, [entry, gguf_entry("fill", 8, &filler)].concat());
    file[16] += 2;
}

#[test]
fn a_rope_scaling_that_config_json_contradicts_is_refused() {
    let folder = gguf("gguf_llama_frequencies");
    let own = ModelFolder::open(folder.path(), None).unwrap();
    let spec = own.spec();
    let opened_with = |scaling: Value| {
        let config = json!({
            "model_type": "llama", "hidden_size": spec.hidden_size, "num_attention_heads": spec.query_heads,
            "num_key_value_heads": spec.key_heads, "head_dim": spec.head_dim, "num_hidden_layers": spec.layers,
            "vocab_size": spec.vocabulary_size, "rms_norm_eps": spec.norm.eps(),
            "rope_theta": spec.rope.as_ref().map(|rope| rope.theta), "rope_scaling": scaling,
        });
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        ModelFolder::open(folder.path(), None)
            .map_or_else(|problems| problems[0].message.clone(), |_| "no problem".to_owned())
    };
    let RopeScaling::LongRope { short_factors: own, .. } = &spec.rope.as_ref().unwrap().scaling
    else {
        panic!()
    };
    let factors = |factors: &[f64]| {
        json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "factor": 1.0,
            "attention_factor": 1.0})
    };
    let doubled: Vec<f64> = own.iter().map(|factor| 2.0 * factor).collect();
    for (scaling, part) in [
        (factors(own), "no problem"),
        (factors(&doubled), "`rope_freqs.weight` of the GGUF file has other factors"),
        (Value::Null, "scales the rotary embedding in the way `by frequency`"),
        (json!({"rope_type": "linear", "factor": 4.0}), "would be scored with `linear`"),
    ] {
        let message = opened_with(scaling);
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn entries_of_a_gguf_file_that_nothing_describes_are_named() {
    let folder = gguf("gguf_llama_bias_config");
    let path = folder.path().join("model.gguf");
    let file = fs::read(&path).unwrap();
    let new_warnings = |name: &str, value: f32| {
        let open = || ModelFolder::open(folder.path(), None).unwrap().warnings().to_vec();
        fs::write(&path, &file).unwrap();
        let before = open();
        let mut file = file.clone();
        add_gguf_entry(&mut file, &format!("llama.{name}"), 6, &value.to_le_bytes());
        fs::write(&path, file).unwrap();
        open().into_iter().filter(|name| !before.contains(name)).collect::<Vec<_>>()
    };
    for name in ["attention.focus", "general_focus"] {
        let new = new_warnings(name, 2.0);
        assert!(new.len() == 1 && new[0].contains(&format!("`llama.{name}`")), "{new:?}");
        assert_eq!(new_warnings(name, 0.0), [""; 0], "without effect");
    }
    for name in ["attention.q_lora_rank", "ssm.group_count", "expert_groups"] {
        assert_eq!(new_warnings(name, 2.0), [""; 0], "{name}");
    }
}

#[test]
fn gguf_files_that_are_not_causal_models_or_contradict_themselves_are_refused() {
    let opened_as = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let folder = gguf(name);
        let path = folder.path().join("model.gguf");
        let mut file = fs::read(&path).unwrap();
        change(&mut file);
        fs::write(&path, file).unwrap();
        ModelFolder::open(folder.path(), None)
            .map_or_else(|problems| shown(folder.path(), &problems), |_| "no problem".to_owned())
    };
    let opened = |change: &dyn Fn(&mut Vec<u8>)| opened_as("gguf_q8_0_q4_0_q4_1", change);
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let with_type = |kind| opened(&|file| add_gguf_entry(file, "general.type", 8, &text(kind)));
    let with_causal =
        |causal| opened(&|file| add_gguf_entry(file, "llama.attention.causal", 7, &[causal]));
    let with_number = |name: &str, from: u32, to: u32| {
        let entry = |number: u32| gguf_entry(&format!("llama.{name}"), 4, &number.to_le_bytes());
        opened(&|file| replace_all(file, &entry(from), &entry(to)))
    };
    let with_another_layer =
        opened(&|file| add_gguf_tensor(file, "blk.3.ffn_gate_shared_exp.weight"));
    let with_three_tokens = opened(&|file| {
        replace_all(file, b"tokenizer.ggml.tokens", b"tokenizer.ggml.others");
        let list = [&[0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 3]].concat();
        add_gguf_entry(file, "tokenizer.ggml.tokens", 9, &list);
    });
    let with_float = |name: &str, value: f32| {
        opened_as("gguf_llama_bias_config", &|file| {
            add_gguf_entry(file, &format!("llama.{name}"), 6, &value.to_le_bytes());
        })
    };
    for (name, scored) in [
        ("attention.clamp_kqv", "would be scored with 0"),
        ("attention.layer_norm_epsilon", "would be scored with 0."),
        ("attn_logit_softcapping", "would be scored with 0"),
        ("embedding_scale", "would be scored with 1"),
        ("rope.scaling.factor", "would be scored with 4"),
        ("rope.scaling.yarn_beta_slow", "would be scored with 1"),
        ("rope.scaling.attn_factor", "would be scored with 1"),
        ("attention.scale", "would be scored with 0."),
    ] {
        let refused = with_float(name, 3.0);
        assert!(refused.contains(name) && refused.contains(scored), "{refused}");
        assert_eq!(with_float(name, 0.0), "no problem", "{name}");
    }
    let states_other_layers = "the GGUF file states `llama.block_count`";
    for (message, part) in [
        (opened(&|_| ()), "no problem"),
        (with_type("model"), "no problem"),
        (with_causal(1), "no problem"),
        (with_type("adapter"), "`<folder>/model.gguf` has the `general.type` `adapter`"),
        (with_causal(0), "states that attention is not causal (`llama.attention.causal`)"),
        (
            with_number("block_count", 1, 2),
            &format!("{states_other_layers} 2, but has no tensors of layer 1 (counted from 0)"),
        ),
        (
            with_another_layer,
            &format!("{states_other_layers} 1, but has tensors of layer 3 (counted from 0)"),
        ),
        (
            with_number("vocab_size", 64, 65),
            "states `llama.vocab_size` 65, but the `llama` model would be scored with 64",
        ),
        (
            with_three_tokens,
            "states 3 as the length of `tokenizer.ggml.tokens`, but the `llama` model would be scored with 64",
        ),
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn rope_scaling_of_gguf_entries_follows_llama_cpp_or_is_refused() {
    use RopeScaling::{Default, Linear};
    let with = |entries: &[(&str, u32, Vec<u8>)]| {
        let folder = gguf("gguf_q8_0_q4_0_q4_1");
        // A config.json would take precedence.
        fs::remove_file(folder.path().join("config.json")).unwrap_or_default();
        let path = folder.path().join("model.gguf");
        let mut file = fs::read(&path).unwrap();
        for (index, (name, kind, value)) in entries.iter().enumerate() {
            add_gguf_entry(&mut file, &format!("llama.rope.{name}"), *kind, value);
            // Each entry comes with a filler, whose name may occur once.
            replace_all(&mut file, b"fill", format!("fil{index}").as_bytes());
        }
        fs::write(&path, file).unwrap();
        match ModelFolder::open(folder.path(), None) {
            Ok(model) => Ok(model.spec().rope.clone().unwrap().scaling),
            Err(problems) => Err(shown(folder.path(), &problems)),
        }
    };
    let factor = |factor: f32| ("scaling.factor", 6, factor.to_le_bytes().to_vec());
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let kind = |kind: &str| ("scaling.type", 8, text(kind));
    let linear = || Linear { factor: 4.0 };
    for (entries, scaling) in [
        (vec![], Default),
        (vec![factor(0.0)], Default),
        (vec![factor(4.0)], linear()),
        (vec![kind("linear"), factor(4.0)], linear()),
        (vec![("scale_linear", 6, 4_f32.to_le_bytes().to_vec())], linear()),
        (vec![kind("none"), factor(4.0)], Default),
    ] {
        assert_eq!(with(&entries).unwrap(), scaling, "{entries:?}");
    }
    for (entry, expected) in [
        (
            ("scaling.factor", 8, text("4")),
            "`llama.rope.scaling.factor` of `<folder>/model.gguf` is not a number",
        ),
        (("freq_base", 8, text("5e5")), "listed twice"),
        (
            ("scaling.alpha", 6, vec![1; 4]),
            "has the entry `llama.rope.scaling.alpha`, which is supported only with a config.json",
        ),
        (
            ("scaling.type", 6, vec![0; 4]),
            "`llama.rope.scaling.type` of `<folder>/model.gguf` is not a text",
        ),
    ] {
        let refused = with(&[entry]).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn settings_of_a_gguf_header_are_refused_by_the_name_of_the_file() {
    let folder = gguf("gguf_q8_0_q4_0_q4_1");
    let _ = fs::remove_file(folder.path().join("config.json"));
    let path = folder.path().join("model.gguf");
    let mut file = fs::read(&path).unwrap();
    let key = b"llama.rope.freq_base";
    let value = file.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len() + 4;
    file[value..value + 4].fill(0);
    fs::write(&path, file).unwrap();
    let refused = shown(folder.path(), &ModelFolder::open(folder.path(), None).unwrap_err());
    let header = "`rope_theta` in the header of `model.gguf`: expected a number";
    assert!(
        refused.contains(header) && refused.contains("convert the checkpoint again"),
        "{refused}"
    );
    assert!(!refused.contains("config.json"), "{refused}");
}

#[test]
fn unexpected_tensors_are_refused_by_name() {
    let base = Changed::case("fp8_one_scale");
    let embedding = base.tensors.keys().find(|name| name.contains("embed")).unwrap().clone();
    let layer = QUERY.strip_suffix("self_attn.q_proj").unwrap();
    let part = || (Dtype::F32, vec![1], vec![0; 4]);
    let with_tensors = |names: &[String]| {
        let mut changed = Changed::case("fp8_one_scale");
        changed.tensors.extend(names.iter().map(|name| (name.clone(), part())));
        changed.opened().map(|_| ())
    };
    for name in [
        format!("{layer}self_attn.q_norm.weight"),
        format!("{layer}self_attn.q_proj.lora_A.weight"),
        format!("{layer}self_attn.sinks"),
        format!("{layer}input_layernorm.bias"),
        format!("{layer}pre_attention_norm.weight"),
        embedding.replace("embed_tokens", "embed_positions"),
        embedding.replace("weight", "scale"),
    ] {
        let problems = with_tensors(std::slice::from_ref(&name)).unwrap_err();
        assert!(problems[0].message.contains(&format!("has `{name}`")), "{problems:?}");
    }
    // Tensors that are used later, or that hold no model parameters.
    with_tensors(&[
        format!("{layer}self_attn.rotary_emb.inv_freq"),
        format!("{layer}self_attn.k_scale"),
        format!("{layer}self_attn.q_proj.input_scale"),
        format!("{layer}self_attn.v_proj.weight"),
        format!("{layer}self_attn.o_proj.bias"),
        format!("{layer}mlp.gate.weight"),
        format!("{layer}post_attention_layernorm.bias"),
        layer.replace(".0.", ".1.") + "self_attn.q_norm.weight",
        "lm_head.weight".to_owned(),
        "model.norm.weight".to_owned(),
        "vision_tower.embed.weight".to_owned(),
    ])
    .unwrap();
}

#[test]
fn settings_that_require_a_missing_tensor_are_refused() {
    let ordered = Changed::case("gptq_4bit_act_order").without(&["g_idx"]);
    assert!(ordered.refusal("").contains("q_proj.g_idx"), "{}", ordered.refusal(""));
    assert!(ordered.set("desc_act", json!(false)).opened().is_ok());
    let groups = json!({"g": {"weights": {"num_bits": 4, "actorder": "group"}}});
    let grouped = Changed::case("compressed_packed_int4").set("config_groups", groups);
    assert!(grouped.refusal("").contains("`actorder`"), "{}", grouped.refusal(""));
}

#[test]
fn a_tied_checkpoint_may_hold_only_its_head() {
    let with_tied = |tied: Value| {
        let mut changed = Changed::case("fp8_one_scale");
        let name = changed.tensors.keys().find(|name| name.contains("embed")).unwrap().clone();
        let embedding = changed.tensors.remove(&name).unwrap();
        changed.tensors.insert("lm_head.weight".to_owned(), embedding);
        changed.config["tie_word_embeddings"] = tied;
        changed.opened().map(|model| model.parts.last().unwrap().name().to_owned())
    };
    assert_eq!(with_tied(json!(true)).unwrap(), "lm_head.weight");
    assert!(with_tied(json!(false)).unwrap_err()[0].message.contains("embed_tokens.weight"));
}

#[test]
fn several_gguf_models_require_a_file_name() {
    let folder = gguf("gguf_f16");
    fs::copy(folder.path().join("model.gguf"), folder.path().join("other.gguf")).unwrap();
    assert!(ModelFolder::open(&folder.path().join("other.gguf"), None).is_ok());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn a_changed_gguf_file_is_refused_or_read_and_never_panics(
        changes in proptest::collection::vec((0usize..1600, 0usize..6), 1..4),
    ) {
        let folder = gguf("gguf_q8_0_q4_0_q4_1");
        let path = folder.path().join("model.gguf");
        let mut bytes = fs::read(&path).unwrap();
        for (index, value) in changes {
            bytes[index] = [0, 1, 2, 32, 127, 255][value];
        }
        fs::write(path, bytes).unwrap();
        if let Ok(model) = ModelFolder::open(folder.path(), None) {
            let cache = tempfile::tempdir().unwrap();
            let built = LayerZeroTable::open_or_build(
                &model, Kernel::PortableF32, Precision::F32, cache.path(), &|_, _| {});
            if let Ok(opened) = built {
                proptest::prop_assert_eq!(opened.bytes_read, model.bytes_to_read());
            }
        }
    }

    #[test]
    fn a_changed_packed_checkpoint_is_refused_or_read_and_never_panics(
        case in 0usize..5,
        tensor in proptest::prelude::any::<proptest::sample::Index>(),
        dtype in 0usize..6,
        swap in proptest::prelude::any::<bool>(),
        byte in proptest::option::of(proptest::prelude::any::<u8>()),
    ) {
        let cases = ["gptq_4bit_act_order", "awq_4bit", "bitsandbytes_nf4_double", "fp8_blocks_deepseek_v3", "mlx_3bit"];
        let mut changed = Changed::case(cases[case]);
        let names: Vec<String> = changed.tensors.keys().cloned().collect();
        let entry = changed.tensors.get_mut(tensor.get(&names)).unwrap();
        if swap {
            entry.1.reverse();
        }
        let types = [Dtype::U8, Dtype::I8, Dtype::F16, Dtype::F32, Dtype::I32, Dtype::F8_E4M3];
        if types[dtype].bitsize() == entry.0.bitsize() {
            entry.0 = types[dtype];
        }
        if let Some(byte) = byte {
            entry.2.fill(byte);
        }
        let folder = tempfile::tempdir().unwrap();
        changed.write(folder.path());
        if let Ok(model) = ModelFolder::open(folder.path(), None) {
            let cache = tempfile::tempdir().unwrap();
            let _ = LayerZeroTable::open_or_build(
                &model, Kernel::PortableF32, Precision::F32, cache.path(), &|_, _| {});
        }
    }
}
