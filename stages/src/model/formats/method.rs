//! The storage format that `config.json` states.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::architecture::Architecture;
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;

const MAX_GROUP: u64 = 1 << 20;

/// Storage format of matrices that are not plain. The tensors themselves show which matrices these are, so lists of
/// excluded modules are not read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Method {
    /// All matrices of layer 0 must be plain.
    Plain,
    Gptq(Gptq),
    Awq {
        /// Inputs that share a scale; `None` for all.
        group_size: Option<u64>,
    },
    BitsAndBytes,
    Fp8 {
        /// Rows and columns that share a scale; `None` if all do.
        block: Option<(u64, u64)>,
    },
    CompressedTensors(CompressedTensors),
    Mlx(Mlx),
    /// GGUF files, regardless of config.json.
    Gguf {
        architecture: &'static Architecture,
        head_dim: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gptq {
    pub(crate) bits: u64,
    /// Inputs that share a scale; `None` for all.
    pub(crate) group_size: Option<u64>,
    /// Whether zero points are stored unchanged (format 2), not minus one.
    pub(crate) second_format: bool,
    /// Whether inputs are ordered differently from their groups (`desc_act`).
    pub(crate) ordered: bool,
}

/// Layouts that the groups of compressed-tensors allow; tensor shapes decide between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CompressedTensors {
    pub(crate) bits: Vec<u64>,
    pub(crate) blocks: Vec<(u64, u64)>,
    /// Whether all groups have zero points.
    pub(crate) zeros: bool,
}

/// Group size and bits of MLX's affine format.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Mlx {
    pub(crate) all: (u64, u64),
    /// Modules with other values, by name.
    pub(crate) modules: BTreeMap<String, (u64, u64)>,
}

impl Method {
    /// Returns the suffix of the tensor `{stem}.{marker}` that replaces `{stem}.weight`.
    pub(super) fn marker(&self) -> Option<&'static str> {
        match self {
            Self::Gptq(_) | Self::Awq { .. } => Some("qweight"),
            Self::CompressedTensors(_) => Some("weight_packed"),
            Self::Plain
            | Self::BitsAndBytes
            | Self::Fp8 { .. }
            | Self::Mlx(_)
            | Self::Gguf { .. } => None,
        }
    }
}

/// Methods that pack only the experts and leave attention weights plain.
const EXPERTS_ONLY: [&str; 1] = ["mxfp4"];

const SUPPORTED: &str = "supported are gptq, awq, bitsandbytes, fp8, compressed-tensors (float-quantized, int-quantized \
                         and pack-quantized), MLX's affine format and GGUF";

/// Hint for packed weights that config.json does not explain.
pub(super) const NO_METHOD: &str = "use the config.json that came with these weights; for older GPTQ checkpoints, copy quantize_config.json into it \
     as `quantization_config`, with `\"quant_method\": \"gptq\"`";

/// Reads the format that `quantization_config` or `quantization` of `config.json` describes.
pub(crate) fn read(config: &Map<String, Value>) -> Result<Method, Vec<ModelProblem>> {
    let problems = RefCell::new(Vec::new());
    let fields = Fields::new(config, "config.json", &problems);
    let method = from_config(&fields);
    match problems.into_inner() {
        problems if problems.is_empty() => Ok(method),
        problems => Err(problems),
    }
}

fn from_config(config: &Fields<'_>) -> Method {
    let nested = config.value("text_config").filter(|text| text.is_object());
    let nested = nested.and_then(|_| config.optional_object("text_config"));
    let written = |name| {
        let found = config.optional_object(name);
        found.or_else(|| nested.as_ref().and_then(|text| text.optional_object(name)))
    };
    if let Some(settings) = written("quantization") {
        return mlx(&settings);
    }
    let Some(settings) = written("quantization_config") else { return Method::Plain };
    match settings.optional_text("quant_method") {
        Some("gptq") => gptq(&settings),
        Some("awq") => awq(&settings),
        Some("bitsandbytes") => Method::BitsAndBytes,
        None if settings.contains("load_in_4bit") || settings.contains("load_in_8bit") => {
            Method::BitsAndBytes
        }
        Some("fp8") => fp8(&settings),
        Some("compressed-tensors") => compressed_tensors(&settings),
        Some(name) if EXPERTS_ONLY.contains(&name) => Method::Plain,
        Some(name) => unsupported(&settings, &format!("`{name}` is not supported")),
        None if settings.is_empty() => Method::Plain,
        // mlx-lm writes the content of `quantization` under this key as well.
        None if settings.contains("group_size") && settings.contains("bits") => mlx(&settings),
        None => unsupported(&settings, "config.json states no method (no `quant_method`)"),
    }
}

pub(crate) fn refused(why: &str) -> ModelProblem {
    ModelProblem::settings(format!("the checkpoint is quantised: {why}"))
        .with_hint(format!("use the original checkpoint, or one in another format: {SUPPORTED}"))
}

fn unsupported(settings: &Fields<'_>, why: &str) -> Method {
    settings.note(refused(why));
    Method::Plain
}

fn gptq(settings: &Fields<'_>) -> Method {
    let bits = settings.size("bits", 64);
    if settings.is_clean() && ![2, 3, 4, 8].contains(&bits) {
        return unsupported(
            settings,
            &format!("`gptq` with {bits} bits is not supported (2, 3, 4 and 8 are)"),
        );
    }
    let format = first_text(settings, ["checkpoint_format", "format"]).unwrap_or("gptq".to_owned());
    let format = format.as_str();
    if !["gptq", "gptq_v2"].contains(&format) {
        return unsupported(settings, &format!("`gptq` in the format `{format}` is not supported"));
    }
    let group_size = group_size(settings);
    let second_format = format == "gptq_v2";
    Method::Gptq(Gptq {
        bits,
        group_size,
        second_format,
        ordered: settings.flag("desc_act", false),
    })
}

fn awq(settings: &Fields<'_>) -> Method {
    let bits = settings.first_size(&["bits", "w_bit"], 64, None);
    let version = first_text(settings, ["version", "format"]).unwrap_or("gemm".to_owned());
    if settings.is_clean() && (bits != 4 || version != "gemm") {
        return unsupported(
            settings,
            &format!(
                "`awq` with {bits} bits in the version `{version}` is not supported (4 bits, `gemm` is)"
            ),
        );
    }
    Method::Awq { group_size: group_size(settings) }
}

/// Reads a text that has two names, in lower case. Notes a contradiction if both are present and differ.
fn first_text(settings: &Fields<'_>, names: [&str; 2]) -> Option<String> {
    let texts = names.map(|name| settings.optional_text(name).map(str::to_lowercase));
    if let [Some(first), Some(second)] = &texts
        && first != second
    {
        settings.contradict(format!(
            "`{}` is `{first}`, but `{}` is `{second}`: two names of one setting",
            names[0], names[1]
        ));
    }
    texts.into_iter().flatten().next()
}

/// Reads `group_size`; -1 means all inputs.
fn group_size(settings: &Fields<'_>) -> Option<u64> {
    let all = |name| settings.value(name).and_then(Value::as_i64) == Some(-1);
    if all("group_size") || all("q_group_size") {
        return None;
    }
    Some(settings.first_size(&["group_size", "q_group_size"], MAX_GROUP, Some(128)))
}

fn fp8(settings: &Fields<'_>) -> Method {
    let format = settings.optional_text("fmt").unwrap_or("e4m3");
    if format != "e4m3" {
        return unsupported(settings, &format!("`fp8` in the format `{format}` is not supported"));
    }
    let block = settings.value("weight_block_size").map(|_| block(settings, "weight_block_size"));
    Method::Fp8 { block: block.flatten() }
}

fn block(settings: &Fields<'_>, name: &str) -> Option<(u64, u64)> {
    let sizes = settings.optional_numbers(name)?;
    let whole = |size: f64| size.fract() == 0.0 && (1.0..=MAX_GROUP as f64).contains(&size);
    match *sizes {
        [rows, columns] if whole(rows) && whole(columns) => Some((rows as u64, columns as u64)),
        _ => {
            settings.contradict(format!(
                "`{name}` in {}: expected two whole numbers from 1, got {sizes:?}",
                settings.location
            ));
            None
        }
    }
}

fn compressed_tensors(settings: &Fields<'_>) -> Method {
    const FORMATS: [&str; 5] = [
        "float-quantized",
        "int-quantized",
        "naive-quantized",
        "pack-quantized",
        "mixed-precision",
    ];
    let mut found = CompressedTensors { zeros: true, ..CompressedTensors::default() };
    let refuse = |what: &str, name: &str| {
        unsupported(
            settings,
            &format!("`compressed-tensors` with the {what} `{name}` is not supported"),
        )
    };
    let format = settings.optional_text("format").unwrap_or("dense");
    if !FORMATS.contains(&format) && format != "dense" {
        return refuse("format", format);
    }
    let sparsity = settings.optional_object("sparsity_config");
    let sparsity = sparsity.as_ref().and_then(|sparsity| sparsity.optional_text("format"));
    if let Some(format) = sparsity.filter(|format| *format != "dense") {
        return refuse("sparsity", format);
    }
    let transforms = settings.optional_object("transform_config");
    let transforms =
        transforms.as_ref().and_then(|transforms| transforms.optional_object("config_groups"));
    if transforms.is_some_and(|groups| !groups.is_empty()) {
        return refuse("setting", "transform_config");
    }
    let groups = settings.optional_object("config_groups");
    for name in groups.iter().flat_map(Fields::names) {
        let group = groups.as_ref().and_then(|groups| groups.optional_object(name));
        let format = group.as_ref().and_then(|group| group.optional_text("format"));
        if let Some(format) = format.filter(|format| !FORMATS.contains(format)) {
            return refuse("format", format);
        }
        let Some(weights) = group.as_ref().and_then(|group| group.optional_object("weights"))
        else {
            continue;
        };
        // Inputs in another group order: the tensor that describes it is no longer supported anywhere.
        let order = weights.value("actorder");
        if order.is_some_and(|order| {
            ["group", "dynamic", "true"].contains(&order.as_str().unwrap_or(&order.to_string()))
        }) {
            return refuse("setting", "actorder");
        }
        found.bits.extend(weights.optional_size("num_bits", 8));
        found.zeros &= !weights.flag("symmetric", true);
        if weights.value("block_structure").is_some_and(Value::is_array) {
            found.blocks.extend(block(&weights, "block_structure"));
        }
        if weights.value("group_size").and_then(Value::as_i64).is_some_and(|size| size > 0) {
            found
                .blocks
                .extend(weights.optional_size("group_size", MAX_GROUP).map(|size| (1, size)));
        }
    }
    found.zeros &= !found.bits.is_empty();
    Method::CompressedTensors(found)
}

fn mlx(settings: &Fields<'_>) -> Method {
    let mode = settings.optional_text("mode").unwrap_or("affine");
    if mode != "affine" {
        return unsupported(settings, &format!("MLX's mode `{mode}` is not supported"));
    }
    let mut found = Mlx { all: affine(settings, (64, 4)), ..Mlx::default() };
    for name in settings.names() {
        if settings.value(name).is_some_and(Value::is_object)
            && let Some(module) = settings.optional_object(name)
        {
            let mode = module.optional_text("mode").unwrap_or("affine");
            if mode != "affine" {
                return unsupported(
                    settings,
                    &format!("MLX's mode `{mode}` of `{name}` is not supported"),
                );
            }
            found.modules.insert(name.clone(), affine(&module, found.all));
        }
    }
    Method::Mlx(found)
}

fn affine(settings: &Fields<'_>, default: (u64, u64)) -> (u64, u64) {
    let group_size = settings.optional_size("group_size", MAX_GROUP).unwrap_or(default.0);
    let bits = settings.optional_size("bits", 64).unwrap_or(default.1);
    if ![2, 3, 4, 5, 6, 8].contains(&bits) {
        settings.note(refused(&format!("MLX's affine format does not support {bits} bits")));
    }
    (group_size, bits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn method(config: &Value) -> Result<Method, String> {
        read(config.as_object().unwrap()).map_err(|problems| problems[0].to_string())
    }

    fn parsed(settings: &Value) -> Result<Method, String> {
        method(&json!({ "quantization_config": settings }))
    }

    #[test]
    fn a_group_size_of_minus_one_means_one_group() {
        let gptq = parsed(&json!({"quant_method": "gptq", "bits": 4, "group_size": -1})).unwrap();
        assert_eq!(
            gptq,
            Method::Gptq(Gptq { bits: 4, group_size: None, second_format: false, ordered: false })
        );
        let second = json!({"quant_method": "gptq", "bits": 4, "format": "gptq_v2"});
        assert!(matches!(parsed(&second), Ok(Method::Gptq(Gptq { second_format: true, .. }))));
        let awq = parsed(&json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 64})).unwrap();
        assert_eq!(awq, Method::Awq { group_size: Some(64) });
    }

    #[test]
    fn unsupported_layouts_are_refused_by_name() {
        for (settings, why) in [
            (
                json!({"quant_method": "gptq", "bits": 5}),
                "`gptq` with 5 bits is not supported (2, 3, 4 and 8 are)",
            ),
            (
                json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}),
                "`gptq` in the format `marlin` is not supported",
            ),
            (
                json!({"quant_method": "awq", "bits": 4, "version": "gemv"}),
                "`awq` with 4 bits in the version `gemv` is not supported (4 bits, `gemm` is)",
            ),
            (
                json!({"quant_method": "fp8", "fmt": "e5m2"}),
                "`fp8` in the format `e5m2` is not supported",
            ),
            (
                json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
                "`compressed-tensors` with the format `nvfp4-pack-quantized` is not supported",
            ),
            (
                json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}),
                "`compressed-tensors` with the sparsity `sparse-24-bitmask` is not supported",
            ),
            (
                json!({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}}),
                "`compressed-tensors` with the setting `transform_config` is not supported",
            ),
            (json!({"bits": 4}), "config.json states no method (no `quant_method`)"),
        ] {
            let message = parsed(&settings).unwrap_err();
            assert_eq!(message, format!("the checkpoint is quantised: {why}"));
        }
        let both = json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq", "format": "gptq_v2"});
        let message = parsed(&both).unwrap_err();
        assert!(message.contains("`checkpoint_format` is `gptq`, but `format` is"), "{message}");
        let mode = json!({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}});
        assert!(method(&mode).unwrap_err().ends_with("MLX's mode `mxfp4` is not supported"));
    }

    #[test]
    fn settings_without_a_method_mean_mlx_or_none() {
        assert_eq!(parsed(&json!({})), Ok(Method::Plain));
        let mlx = Mlx { all: (32, 8), ..Mlx::default() };
        assert_eq!(parsed(&json!({"group_size": 32, "bits": 8})), Ok(Method::Mlx(mlx)));
    }

    #[test]
    fn mlx_modules_may_override_settings_or_be_excluded() {
        let config = json!({"quantization": {"group_size": 64, "bits": 4, "lm_head": false,
            "model.embed_tokens": {"bits": 6}}});
        let Ok(Method::Mlx(mlx)) = method(&config) else { panic!("{config}") };
        assert_eq!((mlx.all, mlx.modules.len()), ((64, 4), 1));
        assert_eq!(mlx.modules["model.embed_tokens"], (64, 6));
    }

    #[test]
    fn settings_of_the_text_model_are_read() {
        let config = json!({"text_config": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}}});
        assert_eq!(method(&config), Ok(Method::Fp8 { block: Some((64, 128)) }));
        let wrong = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0.5, 128]}});
        assert!(method(&wrong).unwrap_err().contains("expected two whole numbers from 1"));
    }
}
