//! Quantised checkpoints that lack something or contradict themselves: made from the cases of `form_tests`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use longsift_kernels::Kernel;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::form_tests::folder;
use super::tensors::Role;
use super::*;
use crate::load_partial_model::Precision;

/// A case's folder whose tensors and settings may be changed.
struct Changed {
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Changed {
    fn of(name: &str) -> Self {
        let folder = folder().join(name);
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        };
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let config = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap());
        Self { config: config.unwrap(), tensors: tensors.into_iter().map(tensor).collect() }
    }

    /// Without the query projection's tensors of these names.
    fn without(mut self, names: &[&str]) -> Self {
        for name in names {
            self.tensors.remove(&format!("{QUERY}.{name}")).unwrap();
        }
        self
    }

    /// With other content of one of them.
    fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        self.tensors.insert(format!("{QUERY}.{name}"), (dtype, shape.to_vec(), bytes)).unwrap();
        self
    }

    /// With another shape of one of them, of as many numbers.
    fn shaped(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.get_mut(&format!("{QUERY}.{name}")).unwrap().1 = shape.to_vec();
        self
    }

    /// With another setting of the quantisation.
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

    /// The one problem that opening or building finds.
    fn problem(&self) -> String {
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
                vec![built.unwrap_err()]
            }
        };
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert!(problems[0].hint.is_some() || problems[0].message.contains("implies"));
        problems[0].message.clone()
    }
}

const QUERY: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn whatever_a_packed_matrix_lacks_is_listed() {
    let lacks = |case: &str, names: &[&str], method: &str| {
        let names_on_disk: Vec<String> =
            names.iter().map(|name| format!("`{QUERY}.{name}`")).collect();
        let wanted = format!(
            "the quantised (`{method}`) checkpoint lacks tensors of layer 0: {}",
            names_on_disk.join(", ")
        );
        assert_eq!(Changed::of(case).without(names).problem(), wanted);
    };
    lacks("gptq_4bit", &["scales", "qzeros"], "gptq");
    lacks("awq_4bit", &["scales", "qzeros"], "awq");
    lacks("bitsandbytes_nf4_double", &["weight.absmax", "weight.nested_absmax"], "bitsandbytes");
    lacks("bitsandbytes_nf4", &["weight.quant_state.bitsandbytes__nf4"], "bitsandbytes");
    lacks("bitsandbytes_int8", &["SCB"], "bitsandbytes");
    lacks("fp8_blocks", &["weight_scale_inv"], "fp8");
    lacks("compressed_float_channel", &["weight_scale"], "compressed-tensors");
    lacks("compressed_packed_int4_zeros", &["weight_scale"], "compressed-tensors");
    lacks("compressed_packed_int4_zeros", &["weight_zero_point"], "compressed-tensors");
    lacks("mlx_4bit", &["scales", "biases"], "mlx");
}

#[test]
fn shapes_that_config_json_does_not_imply_are_refused() {
    let wrong = |changed: Changed, name: &str, shapes: &str| {
        let wanted = format!("`{QUERY}.{name}` in `model.safetensors` has shape {shapes}");
        assert_eq!(changed.problem(), wanted);
    };
    wrong(
        Changed::of("gptq_4bit").shaped("qweight", &[32, 32]),
        "qweight",
        "[32, 32]; config.json implies [16, 64]",
    );
    wrong(
        Changed::of("awq_4bit").shaped("qweight", &[64, 16]),
        "qweight",
        "[64, 16]; config.json implies [128, 8]",
    );
    wrong(
        Changed::of("bitsandbytes_nf4").shaped("weight.absmax", &[64, 2]),
        "weight.absmax",
        "[64, 2]; config.json implies [128]",
    );
    wrong(
        Changed::of("bitsandbytes_nf4").with("weight", Dtype::U8, &[4095, 1], vec![0; 4095]),
        "weight",
        "[4095, 1]; config.json implies 4096 bytes",
    );
    wrong(
        Changed::of("fp8_blocks").shaped("weight_scale_inv", &[4, 2]),
        "weight_scale_inv",
        "[4, 2]; config.json implies [1] or [64, 1] or [2, 4]",
    );
    wrong(
        Changed::of("compressed_packed_int4").shaped("weight_packed", &[32, 32]),
        "weight_packed",
        "[32, 32]; config.json implies [64, 16]",
    );
    wrong(
        Changed::of("mlx_4bit").shaped("scales", &[2, 64]),
        "scales",
        "[2, 64]; config.json implies [64, 2]",
    );
}

#[test]
fn values_that_contradict_the_matrix_are_refused() {
    let group: Vec<u8> = std::iter::repeat_n(4i32.to_le_bytes(), 128).flatten().collect();
    let changed = Changed::of("gptq_4bit_act_order").with("g_idx", Dtype::I32, &[128], group);
    assert_eq!(changed.problem(), format!("`{QUERY}.qweight`: `g_idx` names group 4 of 4"));
    let shape: Vec<u8> = [64i64, 120].iter().flat_map(|size| size.to_le_bytes()).collect();
    let changed =
        Changed::of("compressed_packed_int4").with("weight_shape", Dtype::I64, &[2], shape);
    assert_eq!(
        changed.problem(),
        format!(
            "`{QUERY}.weight_packed`: `weight_shape` is [64, 120]; config.json implies 128 columns"
        )
    );
    let nan =
        Changed::of("fp8_blocks").with("weight", Dtype::F8_E4M3, &[64, 128], vec![0x7f; 64 * 128]);
    assert!(nan.problem().starts_with(&format!("`{QUERY}.weight` holds NaN")));
}

#[test]
fn a_quantisation_state_is_checked_before_anything_follows_from_it() {
    let name = "weight.quant_state.bitsandbytes__nf4";
    let with = |text: &[u8]| {
        Changed::of("bitsandbytes_nf4")
            .with(name, Dtype::U8, &[text.len()], text.to_vec())
            .problem()
    };
    let state = |field: &str, value: Value| {
        let mut state =
            json!({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [64, 128]});
        state[field] = value;
        with(state.to_string().as_bytes())
    };
    assert!(with(b"{").contains("is not a quantisation state: EOF"));
    assert!(with(&vec![b' '; 70_000]).contains("is not a quantisation state: it has 70000 bytes"));
    assert!(
        state("shape", json!([128, 64]))
            .ends_with("has shape [128, 64]; config.json implies [64, 128]")
    );
    for (field, value) in [
        ("blocksize", json!(0)),
        ("quant_type", json!("fp4")),
        ("dtype", json!("float64")),
        ("nested_blocksize", json!(256)),
    ] {
        assert!(state(field, value).contains("makes no sense"), "{field}");
    }
}

#[test]
fn packed_numbers_that_config_json_does_not_speak_of_are_refused() {
    for (case, dtype) in
        [("bitsandbytes_nf4", "U8"), ("fp8_blocks", "F8_E4M3"), ("mlx_4bit", "U32")]
    {
        let mut changed = Changed::of(case);
        let config = changed.config.as_object_mut().unwrap();
        config.remove("quantization_config");
        config.remove("quantization");
        let problems = changed.opened().unwrap_err();
        let message = format!("has numbers of type {dtype}; supported are f32, f16, bf16");
        assert!(problems[0].message.ends_with(&message), "{problems:?}");
    }
}

#[test]
fn modules_that_were_left_plain_are_read_plain() {
    let plain = Changed::of("bitsandbytes_nf4").without(&["weight"]);
    let names: Vec<String> =
        plain.tensors.keys().filter(|name| name.contains("q_proj")).cloned().collect();
    let mut plain = plain.set("llm_int8_skip_modules", json!(["q_proj"]));
    for name in names {
        plain.tensors.remove(&name);
    }
    let weight = (Dtype::BF16, vec![64, 128], vec![0x3f; 64 * 128 * 2]);
    plain.tensors.insert(format!("{QUERY}.weight"), weight);
    let model = plain.opened().unwrap();
    let part = model.parts().iter().find(|part| part.needed.role == Role::QueryWeight).unwrap();
    assert_eq!((part.form.name().as_str(), part.bytes()), ("BF16", 64 * 128 * 2));
}

/// A GGUF case in a folder of its own.
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

fn refused(path: &Path) -> ModelProblem {
    let mut problems = ModelFolder::open(path, None).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.remove(0)
}

#[test]
fn a_gguf_file_a_folder_with_one_and_a_config_beside_it_are_the_same_model() {
    let folder = gguf("gguf_llama_linear");
    let alone = ModelFolder::open(folder.path(), None).unwrap();
    let file = ModelFolder::open(&folder.path().join("model.gguf"), None).unwrap();
    assert_eq!((file.identity(), file.spec()), (alone.identity(), alone.spec()));
    assert_eq!(alone.config().folder(), folder.path());
    assert_eq!((alone.config().quantization(), alone.bos_token_id()), (Some("gguf"), Some(1)));
    assert!(alone.config().has_weights() && alone.checkpoint_bytes() > alone.bytes_to_read());
    let config = json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_scaling": {"rope_type": "linear", "factor": 4.0}});
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let beside = ModelFolder::open(folder.path(), None).unwrap();
    assert_eq!(beside.spec(), alone.spec());
}

#[test]
fn a_gguf_file_that_needs_or_contradicts_its_config_is_refused() {
    let folder = gguf("gguf_phi3_config");
    fs::remove_file(folder.path().join("config.json")).unwrap();
    let problem = refused(folder.path());
    assert!(problem.message.contains("has no config.json beside it"), "{problem}");
    assert!(problem.hint.unwrap().starts_with("put the model's config.json beside it"));
    let folder = gguf("gguf_qwen3");
    fs::copy(
        super::form_tests::folder().join("gguf_phi3_config/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    assert_eq!(
        refused(folder.path()).message,
        "config.json describes a `phi3` model, the GGUF file beside it one of the architecture `qwen3`"
    );
}

#[test]
fn gguf_architectures_and_blocks_that_are_not_followed_are_refused_by_name() {
    let changed = |from: &[u8], to: &[u8]| {
        let folder = gguf("gguf_q8_0_q4_0_q4_1");
        let mut bytes = fs::read(folder.path().join("model.gguf")).unwrap();
        let place = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes[place..place + to.len()].copy_from_slice(to);
        fs::write(folder.path().join("model.gguf"), bytes).unwrap();
        refused(folder.path())
    };
    let problem = changed(b"llama", b"mamba");
    assert_eq!(problem.message, "GGUF files of the architecture `mamba` are not supported");
    assert!(problem.hint.unwrap().contains("llama, qwen2"));
    let line = |kind: u32| {
        let sizes = [
            2u32.to_le_bytes().to_vec(),
            64u64.to_le_bytes().to_vec(),
            64u64.to_le_bytes().to_vec(),
        ]
        .concat();
        [b"blk.0.attn_q.weight".as_slice(), &sizes, &kind.to_le_bytes()].concat()
    };
    let problem = changed(&line(2), &line(20));
    assert_eq!(
        problem.message,
        "`blk.0.attn_q.weight` has blocks of type 20 of GGUF, which is not supported"
    );
    let problem = changed(b"blk.0.attn_k.weight", b"blk.9.attn_k.weight");
    assert_eq!(
        problem.message,
        "the quantised (`gguf`) checkpoint lacks tensors of layer 0: `blk.0.attn_k.weight`"
    );
}

#[test]
fn several_gguf_files_in_a_folder_need_a_choice() {
    let folder = gguf("gguf_f16");
    fs::copy(folder.path().join("model.gguf"), folder.path().join("other.gguf")).unwrap();
    let problem = refused(folder.path());
    assert!(
        problem.message.ends_with("has several GGUF files: `model.gguf`, `other.gguf`"),
        "{problem}"
    );
    assert!(ModelFolder::open(&folder.path().join("other.gguf"), None).is_ok());
}
