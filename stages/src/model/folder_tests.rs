//! Model folders: small ones created here, and the real configurations of the shared test data.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::conformance_tests::shared;
use super::rope::RopeScaling;
use super::spec::QueryScale;
use super::*;
use crate::load_partial_model::Precision;

/// Folds numbers into a digest (FNV-1a of 64-bit words), for tests that fix the bits of a result.
pub(super) fn digest_of(numbers: impl IntoIterator<Item = u64>) -> u64 {
    let fold = |digest: u64, bits: u64| (digest ^ bits).wrapping_mul(0x0100_0000_01B3);
    numbers.into_iter().fold(0xCBF2_9CE4_8422_2325, fold)
}

/// A tiny llama checkpoint: 12 tokens, hidden size 8, 2 query heads and 1 key head of 4 dimensions, and a tensor that
/// layer 0 does not need.
#[derive(Clone)]
pub(super) struct Tiny {
    pub(super) config: Value,
    pub(super) tensors: BTreeMap<String, Vec<usize>>,
    pub(super) dtype: Dtype,
    pub(super) seed: u32,
}

impl Tiny {
    pub(super) fn new() -> Self {
        let tensors = [
            ("model.embed_tokens.weight", vec![12, 8]),
            ("model.layers.0.input_layernorm.weight", vec![8]),
            ("model.layers.0.self_attn.k_proj.weight", vec![4, 8]),
            ("model.layers.0.self_attn.q_proj.weight", vec![8, 8]),
            ("model.layers.0.self_attn.v_proj.weight", vec![4, 8]),
        ];
        let config = json!({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 12, "num_hidden_layers": 1, "max_position_embeddings": 64});
        let tensors = tensors.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect();
        Self { config, tensors, dtype: Dtype::F32, seed: 1 }
    }

    /// Returns multiples of 1/8 between -1 and 1, which every type represents exactly.
    fn numbers(&self, name: &str, count: usize) -> Vec<f32> {
        let mut state = name
            .bytes()
            .fold(self.seed, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 24) % 17) as f32 / 8.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn file(&self, names: &[&String]) -> Vec<u8> {
        let data = names.iter().map(|name| {
            let numbers = self.numbers(name, self.tensors[*name].iter().product());
            let bytes: Vec<u8> = match self.dtype {
                Dtype::F32 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
                Dtype::F16 => {
                    numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect()
                }
                Dtype::BF16 => numbers
                    .iter()
                    .flat_map(|number| bf16::from_f32(*number).to_le_bytes())
                    .collect(),
                _ => numbers.iter().map(|_| 0).collect(),
            };
            (*name, bytes)
        });
        let data: Vec<_> = data.collect();
        let view =
            |(name, bytes)| TensorView::new(self.dtype, self.tensors[name].clone(), bytes).unwrap();
        let views = data.iter().map(|(name, bytes)| (*name, view((*name, bytes))));
        safetensors::serialize(views, None).unwrap()
    }

    /// Writes a single weights file.
    pub(super) fn write(&self, folder: &Path) {
        self.write_config(folder);
        let names: Vec<&String> = self.tensors.keys().collect();
        fs::write(folder.join("model.safetensors"), self.file(&names)).unwrap();
    }

    pub(super) fn write_config(&self, folder: &Path) {
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
    }

    /// Writes one weights file per tensor and an index.
    pub(super) fn write_sharded(&self, folder: &Path) {
        self.write_config(folder);
        let mut map = BTreeMap::new();
        for (number, name) in self.tensors.keys().enumerate() {
            let file = format!("model-{number}.safetensors");
            fs::write(folder.join(&file), self.file(&[name])).unwrap();
            map.insert(name, file);
        }
        let index = json!({"metadata": {"total_size": 7}, "weight_map": map});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    /// Opens the folder that [`Tiny::write`] writes.
    fn opened(&self) -> Result<ModelFolder, Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        messages(ModelFolder::open(folder.path(), None))
    }

    fn with_setting(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    fn reshaped(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.insert(name.to_owned(), shape.to_vec());
        self
    }
}

fn messages<T>(result: Result<T, Vec<ModelProblem>>) -> Result<T, Vec<String>> {
    result.map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn bytes_to_read_and_checkpoint_bytes_are_exact() {
    let model = Tiny::new().opened().unwrap();
    assert_eq!(model.bytes_to_read(), 4 * (12 * 8 + 8 + 4 * 8 + 8 * 8));
    assert_eq!(model.config().bytes_to_read_at(4), model.bytes_to_read());
    assert_eq!(model.config().table_bytes(Precision::F32), 4 * 12 * (2 + 1) * 4);
    assert_eq!(model.config().table_bytes(Precision::Bf16), 2 * 12 * (2 + 1) * 4);
    assert!(model.checkpoint_bytes() > model.bytes_to_read());
}

#[test]
fn missing_tensors_are_listed_together() {
    let mut tiny = Tiny::new();
    tiny.tensors.remove("model.embed_tokens.weight");
    tiny.tensors.remove("model.layers.0.self_attn.q_proj.weight");
    assert_eq!(
        tiny.opened().unwrap_err(),
        [
            "the checkpoint is missing tensors of layer 0: `model.layers.0.self_attn.q_proj.weight`, `model.embed_tokens.weight`"
        ]
    );
}

#[test]
fn shapes_that_contradict_config_json_are_listed_together() {
    let tiny = Tiny::new()
        .reshaped("model.layers.0.self_attn.q_proj.weight", &[4, 8])
        .reshaped("model.embed_tokens.weight", &[11, 8])
        .reshaped("model.layers.0.input_layernorm.weight", &[8, 1]);
    let found = tiny.opened().unwrap_err();
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found[1].ends_with("has shape [4, 8]; config.json implies [8, 8]"), "{found:#?}");
}

#[test]
fn names_without_the_prefix_are_the_same_model() {
    let mut tiny = Tiny::new();
    tiny.tensors = tiny
        .tensors
        .into_iter()
        .map(|(name, shape)| (name.trim_start_matches("model.").to_owned(), shape))
        .collect();
    assert!(tiny.opened().is_ok());
}

#[test]
fn an_unexpected_bias_is_ignored_with_a_warning() {
    let tiny = Tiny::new().reshaped("model.layers.0.self_attn.q_proj.bias", &[8]);
    let model = tiny.opened().unwrap();
    assert_eq!(model.warnings().len(), 1);
    assert!(model.warnings()[0].starts_with("`model.layers.0.self_attn.q_proj.bias` is ignored"));
    let with_bias = tiny.with_setting("attention_bias", json!(true));
    let found = with_bias.opened().unwrap_err();
    assert_eq!(
        found,
        ["the checkpoint is missing tensors of layer 0: `model.layers.0.self_attn.k_proj.bias`"]
    );
    let model = with_bias.reshaped("model.layers.0.self_attn.k_proj.bias", &[4]).opened().unwrap();
    assert!(model.warnings().is_empty());
    assert_eq!(model.bytes_to_read(), 4 * (12 * 8 + 8 + 4 * 8 + 8 * 8 + 4 + 8));
}

#[test]
fn other_number_types_are_refused() {
    let mut tiny = Tiny::new();
    tiny.dtype = Dtype::I8;
    let found = tiny.opened().unwrap_err();
    assert_eq!(found.len(), 4);
    assert_eq!(
        found[0],
        "`model.layers.0.input_layernorm.weight` has the type I8; supported types: f32, f16, bf16"
    );
}

#[test]
fn unsupported_quantisations_are_refused_by_name() {
    for name in ["hqq", "aqlm", "eetq", "quanto", "torchao"] {
        let tiny = Tiny::new().with_setting("quantization_config", json!({"quant_method": name}));
        let folder = tempfile::tempdir().unwrap();
        tiny.write(folder.path());
        let problem = ModelFolder::open(folder.path(), None).unwrap_err().remove(0);
        assert_eq!(problem.kind, ProblemKind::Settings);
        let message = format!("the checkpoint is quantised: `{name}` is not supported");
        assert_eq!(problem.message, message);
        assert!(problem.hint.unwrap().starts_with("use the original checkpoint, or one"));
    }
}

#[test]
fn a_method_for_experts_leaves_layer_zero_plain() {
    let config = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn"]});
    let model = Tiny::new().with_setting("quantization_config", config).opened().unwrap();
    assert_eq!(model.bytes_to_read(), 4 * (12 * 8 + 8 + 4 * 8 + 8 * 8));
}

#[test]
fn an_index_needs_only_the_files_of_layer_zero() {
    let folder = tempfile::tempdir().unwrap();
    Tiny::new().write_sharded(folder.path());
    let all = ModelFolder::open(folder.path(), None).unwrap();
    assert!(all.checkpoint_bytes() > all.bytes_to_read());
    fs::remove_file(folder.path().join("model-4.safetensors")).unwrap();
    let without_values = ModelFolder::open(folder.path(), None).unwrap();
    assert_eq!(without_values.identity(), all.identity());
    fs::remove_file(folder.path().join("model-3.safetensors")).unwrap();
    fs::write(folder.path().join("model-2.safetensors"), "cut").unwrap();
    let found = ModelFolder::open(folder.path(), None).unwrap_err();
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found.iter().all(|problem| problem.kind == ProblemKind::Checkpoint));
}

#[test]
fn an_index_with_a_wrong_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    Tiny::new().write_sharded(folder.path());
    fs::copy(folder.path().join("model-4.safetensors"), folder.path().join("model-2.safetensors"))
        .unwrap();
    let found = messages(ModelFolder::open(folder.path(), None)).unwrap_err();
    assert_eq!(
        found,
        [
            "the index lists `model.layers.0.self_attn.k_proj.weight` in `model-2.safetensors`, but the file does not contain it"
        ]
    );
}

#[test]
fn linked_files_are_followed() {
    let (blobs, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Tiny::new().write(blobs.path());
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(blobs.path().join(name), folder.path().join(name)).unwrap();
    }
    assert!(ModelFolder::open(folder.path(), None).is_ok());
}

#[test]
fn all_problems_of_a_config_are_reported_together() {
    let tiny = Tiny::new()
        .with_setting("hidden_size", json!(-8))
        .with_setting("vocab_size", json!("12"))
        .with_setting("rope_scaling", json!({"rope_type": "yarn", "factor": "x"}))
        .with_setting("num_hidden_layers", Value::Null);
    let found = tiny.opened().unwrap_err();
    assert_eq!(found.len(), 4, "{found:#?}");
}

#[test]
fn sizes_that_would_overflow_are_refused() {
    for (key, value) in
        [("vocab_size", u64::MAX), ("num_attention_heads", 1 << 40), ("head_dim", 1 << 30)]
    {
        let found = Tiny::new().with_setting(key, json!(value)).opened().unwrap_err();
        assert!(found[0].contains("expected a whole number between 1 and"), "{found:?}");
    }
    let max = Tiny::new()
        .with_setting("vocab_size", json!(1 << 24))
        .with_setting("num_attention_heads", json!(4096));
    let max =
        max.with_setting("num_key_value_heads", json!(4096)).with_setting("head_dim", json!(4096));
    assert!(max.opened().unwrap_err().iter().all(|message| message.contains("has shape")));
}

#[test]
fn unknown_types_and_types_without_attention_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (model_type, message) in [
        (
            "gla",
            "the first layer of a `gla` model is gated linear attention, not softmax attention",
        ),
        ("llamma", "model type `llamma` is not supported"),
    ] {
        Tiny::new().with_setting("model_type", json!(model_type)).write(folder.path());
        let problem = ModelFolder::open(folder.path(), None).unwrap_err().remove(0);
        assert!(problem.message.starts_with(message), "{problem}");
        assert_eq!(problem.kind, ProblemKind::Settings);
    }
}

/// Latent attention without a low rank for queries.
fn latent() -> Tiny {
    let layer = "model.layers.0.self_attn";
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![12, 8]),
        ("model.layers.0.input_layernorm.weight".to_owned(), vec![8]),
        (format!("{layer}.q_proj.weight"), vec![12, 8]),
        (format!("{layer}.kv_a_proj_with_mqa.weight"), vec![6, 8]),
        (format!("{layer}.kv_a_layernorm.weight"), vec![4]),
        (format!("{layer}.kv_b_proj.weight"), vec![16, 4]),
    ];
    let config = json!({"model_type": "deepseek_v2", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 12,
        "num_hidden_layers": 1, "max_position_embeddings": 64, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2, "v_head_dim": 4, "q_lora_rank": null});
    Tiny { config, tensors: tensors.into(), ..Tiny::new() }
}

#[test]
fn tensors_determine_a_missing_query_rank() {
    let written = latent().opened().unwrap();
    assert_eq!(written.config().undecided(), None);
    let mut absent = latent();
    absent.config.as_object_mut().unwrap().remove("q_lora_rank");
    let decided = absent.opened().unwrap();
    assert_eq!(decided.spec(), written.spec());
    assert_eq!(decided.config().undecided(), None);
    let folder = tempfile::tempdir().unwrap();
    absent.write_config(folder.path());
    let open = ModelConfig::read(folder.path(), None).unwrap();
    assert!(open.undecided().unwrap().contains("no `q_lora_rank`"));
    absent.tensors.remove("model.layers.0.self_attn.q_proj.weight");
    let found = absent.opened().unwrap_err();
    assert!(found[0].contains("q_a_proj"), "the tensors of the default are missing: {found:?}");
}

#[test]
fn a_missing_folder_is_a_settings_problem() {
    let folder = tempfile::tempdir().unwrap();
    let missing = ModelFolder::open(&folder.path().join("none"), None).unwrap_err().remove(0);
    assert_eq!(missing.kind, ProblemKind::Settings);
    let empty = ModelFolder::open(folder.path(), None).unwrap_err().remove(0);
    assert_eq!(empty.kind, ProblemKind::Checkpoint);
    fs::write(folder.path().join("config.json"), "[".repeat(100_000)).unwrap();
    let nested = ModelFolder::open(folder.path(), None).unwrap_err().remove(0);
    assert!(nested.message.contains("is not a JSON object"), "{nested}");
}

#[test]
fn nan_and_infinity_are_allowed_in_unused_keys() {
    let opened = |more: &str| {
        let folder = tempfile::tempdir().unwrap();
        Tiny::new().write(folder.path());
        let config = Tiny::new().config.to_string().replacen('{', &format!("{{{more}, "), 1);
        fs::write(folder.path().join("config.json"), config).unwrap();
        messages(ModelFolder::open(folder.path(), None))
    };
    let unused =
        r#""router_z": NaN, "limits": [-Infinity, Infinity], "note": "NaN, \"Infinity\" \\""#;
    assert_eq!(opened(unused).err(), None);
    for key in ["rms_norm_eps", "rope_theta"] {
        let found = opened(&format!("\"{key}\": NaN")).unwrap_err();
        assert!(found[0].contains(key) && found[0].contains("NaN"), "{found:?}");
    }
    let found = opened("\"a\": NaNs").unwrap_err();
    assert!(found[0].contains("is not a JSON object: expected value"), "{found:?}");
}

#[test]
fn a_rope_theta_below_one_is_refused_and_a_valid_one_changes_the_identity() {
    let folder = tempfile::tempdir().unwrap();
    Tiny::new().write(folder.path());
    for theta in [0.5, f64::NAN, f64::INFINITY] {
        assert!(ModelFolder::open(folder.path(), Some(theta)).is_err());
    }
    let (plain, other) =
        (ModelFolder::open(folder.path(), None), ModelFolder::open(folder.path(), Some(2.5e6)));
    let (plain, other) = (plain.unwrap(), other.unwrap());
    assert_ne!(plain.spec(), other.spec());
    // The same weights, which need not be read again, but another model.
    assert_eq!(plain.weights_identity(), other.weights_identity());
    assert_ne!(plain.identity(), other.identity());
}

/// Returns layer 0's window, and the first layer that sees all tokens.
fn attention_span(config: &[(&str, Value)]) -> (Option<u64>, Option<u64>) {
    let folder = tempfile::tempdir().unwrap();
    let tiny = config
        .iter()
        .fold(Tiny::new().with_setting("num_hidden_layers", json!(8)), |tiny, (key, value)| {
            tiny.with_setting(key, value.clone())
        });
    tiny.write(folder.path());
    let config = ModelConfig::read(folder.path(), None).unwrap();
    (config.spec().window, config.spec().first_full_attention_layer)
}

#[test]
fn mistral_layers_slide_unless_the_window_is_null() {
    let mistral = ("model_type", json!("mistral"));
    assert_eq!(attention_span(&[mistral.clone(), ("sliding_window", json!(16))]), (Some(16), None));
    assert_eq!(
        attention_span(&[mistral.clone(), ("sliding_window", Value::Null)]),
        (None, Some(0))
    );
    assert_eq!(attention_span(&[mistral]), (Some(4096), None));
    assert_eq!(attention_span(&[("model_type", json!("mixtral"))]), (None, Some(0)));
}

#[test]
fn rope_parameters_of_ministral3_have_the_default_of_its_class() {
    let tiny = Tiny::new()
        .with_setting("model_type", json!("ministral3"))
        .with_setting("head_dim", json!(4))
        .with_setting("rope_theta", json!(1e4));
    let folder = tiny.opened().unwrap();
    let rope = folder.spec().rope.clone().unwrap();
    let yarn = |rope: &RopeScaling| match rope {
        RopeScaling::Yarn { factor, original_positions, attention_factor, .. } => {
            Some((*factor, *original_positions, *attention_factor))
        }
        _ => None,
    };
    assert_eq!((rope.theta, yarn(&rope.scaling)), (1e6, Some((16.0, 16_384, 1.0))));
    let scale = QueryScale::Temperature { floor: 16_384.0, scale: 0.1, shift: 0.0 };
    assert_eq!(folder.spec().query_scale, Some(scale));
    let original = ("original_max_position_embeddings", json!(32));
    let floor = |tiny: Tiny| match tiny.opened().unwrap().spec().query_scale {
        Some(QueryScale::Temperature { floor, .. }) => Some(floor),
        _ => None,
    };
    let shorter = tiny.clone().with_setting(original.0, original.1.clone());
    let rope = shorter.opened().unwrap().spec().rope.clone().unwrap();
    assert_eq!(yarn(&rope.scaling), Some((16.0, 32, 1.0)));
    assert_eq!(floor(shorter.clone()), Some(32.0));
    let written = json!({"rope_type": "yarn", "factor": 2, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 64});
    assert_eq!(floor(tiny.clone().with_setting("rope_parameters", written.clone())), Some(64.0));
    assert_eq!(floor(shorter.with_setting("rope_parameters", written.clone())), Some(32.0));
    let other = json!({"rope_type": "linear", "factor": 2});
    let both =
        tiny.clone().with_setting("rope_parameters", written).with_setting("rope_scaling", other);
    assert_eq!(floor(both), None);
    let written = json!({"rope_type": "default", "rope_theta": 5e5});
    let folder = tiny.with_setting("rope_parameters", written).opened().unwrap();
    let rope = folder.spec().rope.clone().unwrap();
    assert_eq!((rope.theta, yarn(&rope.scaling), &folder.spec().query_scale), (5e5, None, &None));
}

#[test]
fn layer_types_that_contradict_a_window_everywhere_are_refused() {
    let mistral = Tiny::new()
        .with_setting("model_type", json!("mistral"))
        .with_setting("sliding_window", json!(16));
    let sliding = mistral.clone().with_setting("layer_types", json!(["sliding_attention"]));
    assert!(sliding.opened().is_ok());
    let found =
        mistral.with_setting("layer_types", json!(["full_attention"])).opened().unwrap_err();
    assert!(found[0].ends_with("but `layer_types` has `full_attention`"), "{found:?}");
}

#[test]
fn a_rotary_embedding_without_finite_frequencies_is_refused() {
    let tiny = Tiny::new().with_setting("rope_scaling", json!({"type": "linear", "factor": 1e-60}));
    assert_eq!(
        tiny.opened().unwrap_err(),
        ["config.json describes a rotary embedding whose frequencies are not finite"]
    );
}

#[test]
fn qwen2_slides_at_layer_zero_only_if_all_layers_slide() {
    let qwen2 = [("model_type", json!("qwen2")), ("sliding_window", json!(32))];
    let span_with = |more: &[(&str, Value)]| attention_span(&[qwen2.as_slice(), more].concat());
    let uses = ("use_sliding_window", json!(true));
    assert_eq!(span_with(&[("max_window_layers", json!(0))]), (None, Some(0)));
    assert_eq!(span_with(&[uses.clone(), ("max_window_layers", json!(0))]), (Some(32), None));
    assert_eq!(span_with(&[uses.clone(), ("max_window_layers", json!(1))]), (None, Some(0)));
    assert_eq!(span_with(std::slice::from_ref(&uses)), (None, Some(0)));
    let types = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    assert_eq!(span_with(&[uses, ("layer_types", types)]), (Some(32), Some(2)));
}

#[test]
fn experts_of_qwen3_slide_at_every_layer() {
    let slides = Tiny::new()
        .with_setting("model_type", json!("qwen3_moe"))
        .with_setting("sliding_window", json!(32))
        .with_setting("use_sliding_window", json!(true))
        .with_setting("layer_types", json!(["full_attention", "sliding_attention"]));
    let folder = tempfile::tempdir().unwrap();
    slides.write(folder.path());
    let problems = ModelConfig::read(folder.path(), None).unwrap_err();
    let contradiction =
        "every layer of a `qwen3_moe` model slides, but `layer_types` has `full_attention`";
    assert!(problems.iter().any(|problem| problem.message.contains(contradiction)), "{problems:?}");
}

#[test]
fn smollm3_slides_by_its_layer_types() {
    let types = ("layer_types", json!(["sliding_attention", "full_attention"]));
    let smollm3 = [("model_type", json!("smollm3")), ("sliding_window", json!(32))];
    let span_with = |more: &[(&str, Value)]| attention_span(&[smollm3.as_slice(), more].concat());
    assert_eq!(span_with(&[]), (None, Some(0)));
    assert_eq!(span_with(std::slice::from_ref(&types)), (Some(32), Some(1)));
    assert_eq!(span_with(&[types, ("use_sliding_window", json!(false))]), (Some(32), Some(1)));
    let positions = ("no_rope_layers", json!([0, 1, 1, 1, 1, 1, 1, 1]));
    assert_eq!(span_with(std::slice::from_ref(&positions)), (None, Some(0)));
    assert_eq!(span_with(&[positions, ("use_sliding_window", json!(true))]), (Some(32), Some(1)));
}

/// `(folder, head dimension, row width, window)` of real configurations.
const REAL: [(&str, u64, u64, Option<u64>); 8] = [
    ("Llama-2-7b", 128, 8192, None),
    ("Llama-3.1-8B", 128, 5120, None),
    ("Llama-3.1-70B", 128, 9216, None),
    ("Reflection-Llama-3.1-70B", 128, 9216, None),
    ("TinyLlama-1.1B", 64, 2304, None),
    ("Mistral-7B-v0.1", 128, 5120, Some(4096)),
    ("Mistral-7B-v0.3", 128, 5120, None),
    ("Qwen2.5-7B", 128, 4096, None),
];

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn real_configurations_are_read_without_weights() {
    let folder = shared("model-configs");
    for (name, head_dim, row_width, window) in REAL {
        let config = ModelConfig::read(&folder.join(name), None).unwrap();
        let spec = config.spec();
        assert_eq!(
            (spec.head_dim, spec.row_width(), spec.window),
            (head_dim, row_width, window),
            "{name}"
        );
    }
    let llama = ModelConfig::read(&folder.join("Llama-3.1-8B"), None).unwrap();
    assert_eq!(llama.stated_dtype(), Some("bfloat16"));
    assert_eq!(llama.bytes_to_read_at(2), 2 * (128_256 * 4096 + 4096 + 4096 * (4096 + 1024)));
    assert_eq!(llama.table_bytes(Precision::Bf16), 1_313_341_440);
    for unknown in ["gla-1B", "gla-340M", "gla-7B"] {
        let problem = ModelConfig::read(&folder.join(unknown), None).unwrap_err().remove(0);
        assert!(problem.message.contains("gated linear attention"), "{problem}");
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn real_tokenizers_have_the_expected_bos_token() {
    let (tokenizers, models) = (shared("tokenizers"), shared("models"));
    let config = ModelConfig::read(&models.join("mini"), None).unwrap();
    for (name, bos) in [
        ("qwen2.5", None),
        ("gpt2", Some(50_256)),
        ("phi-3-mini", Some(1)),
        ("deepseek-coder", Some(32_013)),
    ] {
        assert_eq!(config.bos_token_id_in(&tokenizers.join(name)), bos, "{name}");
    }
    assert_eq!(config.bos_token_id(), config.stated_bos_token_id());
}

/// Reads configurations of all families, as the transformers library writes them.
fn family_configs() -> Vec<serde_json::Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("config.json"))
        .filter(|path| path.exists())
        .collect();
    paths.sort();
    paths.iter().map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
}

proptest::proptest! {
    #[test]
    fn random_config_json_never_panics(
        family in proptest::prelude::any::<proptest::sample::Index>(),
        changes in proptest::collection::vec(
            (proptest::prelude::any::<proptest::sample::Index>(), 0usize..18), 1..4),
        model_type in proptest::option::of(proptest::prelude::any::<proptest::sample::Index>()),
    ) {
        let values = [
            json!(null), json!(0), json!(1), json!(2), json!(3), json!(7), json!(-1), json!(65_536), json!(1u64 << 20),
            json!(1u64 << 40), json!(0.5), json!(1e-300), json!(1e300), json!("x"), json!([]), json!([0, 1]), json!({}),
            json!(true),
        ];
        let mut configs = family_configs();
        let mut config = configs.swap_remove(family.index(configs.len()));
        if let Some(index) = model_type {
            let types = known_model_types();
            config["model_type"] = json!(types[index.index(types.len())]);
        }
        let names: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for (name, value) in changes {
            let name = &names[name.index(names.len())];
            if name != "model_type" {
                config[name] = values[value].clone();
            }
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        if let Ok(config) = ModelConfig::read(folder.path(), None) {
            let spec = config.spec();
            proptest::prop_assert!(config.table_bytes(Precision::F32) > 0);
            proptest::prop_assert!(config.bytes_to_read_at(4) > 0);
            spec.distance_problem(100);
            spec.positions_warning(100);
            spec.window_problem(100);
            if spec.head_dim < 1 << 10 {
                spec.rotation(17).map(|rotation| rotation.table(17));
                spec.query_scales(17);
                spec.attention_shape(17);
            }
        }
    }
}
