//! Reads `config.json`: the first of two steps that open a model folder, and the only one that `inspect` needs.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::aux_tensors::aux_tensors;
use super::catalogue::Catalogue;
use super::decoder::Decoder;
use super::families::{self, FirstLayerConfig, ModelScope};
use super::fields::Fields;
use super::folder_files::{
    file_names, is_pickled, is_safetensors, json_object, read_small_file, tokenizer_config,
};
use super::formats::Architecture;
use super::gguf_config::{self, Stated};
use super::model_files::ModelFiles;
use super::problem::{INCOMPLETE, ModelProblem, with_remedies};
use super::rope::RopeSpec;
use super::shard::WeightShard;
use super::spec::AttentionSpec;
use super::table::ALIGNMENT;
use super::tensors::{LayerZeroTensors, TensorRole};
use crate::load_partial_model::Precision;

/// Maximum size of `config.json` in bytes. Real files have a few thousand.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// A model folder after reading only its `config.json`. Describes the first layer, but cannot build its table.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    files: WeightFiles,
    pub(crate) bytes: Vec<u8>,
    pub(crate) map: Map<String, Value>,
    spec: AttentionSpec,
    pub(crate) tensors: LayerZeroTensors,
    rope_theta: Option<f64>,
}

impl ModelConfig {
    /// Reads only `config.json`, or without one the equivalent entries of a GGUF file, which `path` may also name.
    /// `rope_theta` replaces the checkpoint's base frequency.
    pub fn read(path: &Path, rope_theta: Option<f64>) -> Result<Self, Vec<ModelProblem>> {
        Self::read_scope(path, rope_theta, ModelScope::FirstLayer)
    }

    /// Like [`Self::read`]. The first layer of a whole model may be one that cannot be measured.
    pub(crate) fn read_scope(
        path: &Path,
        rope_theta: Option<f64>,
        scope: ModelScope,
    ) -> Result<Self, Vec<ModelProblem>> {
        let unreadable = |problems| {
            with_remedies(problems, "set `model` to a checkpoint folder with a config.json")
        };
        let (files, bytes) = open_files(path).map_err(unreadable)?;
        let map = json_object(&files.folder.join("config.json"), &bytes)
            .map_err(|problem| unreadable(vec![problem]))?;
        // Decides the BOS.
        tokenizer_config(&files.folder).map_err(|problem| {
            with_remedies(
                vec![problem],
                "restore the file, or remove it to use `config.json` alone",
            )
        })?;
        Self::parse(files, bytes, map, (rope_theta, scope))
    }

    fn parse(
        files: WeightFiles,
        bytes: Vec<u8>,
        map: Map<String, Value>,
        (rope_theta, scope): (Option<f64>, ModelScope),
    ) -> Result<Self, Vec<ModelProblem>> {
        let problems = RefCell::new(Vec::new());
        let fields = Fields::new(&map, "config.json", &problems).with_rope_theta(rope_theta);
        if let Some(theta) = rope_theta.filter(|theta| !(theta.is_finite() && *theta >= 1.0)) {
            fields.note(ModelProblem::settings(format!(
                "`rope_theta`: expected a number of at least 1, got {theta}"
            )).with_hint("remove `rope_theta` from `load-partial-model`; config.json has the model's own"));
        }
        let first = families::first_layer(&fields, scope);
        let spec = first.as_ref().map(|first| &first.spec);
        if let Some(spec) = spec
            && rope_theta.is_some()
            && spec.rope.is_none()
        {
            fields.note(
                ModelProblem::settings(
                    "`rope_theta` is given, but this model has no rotary embedding",
                )
                .with_hint("remove `rope_theta` from `load-partial-model`"),
            );
        }
        if let Some(spec) = spec
            && fields.is_clean()
            && !spec.rope.as_ref().is_none_or(RopeSpec::is_finite)
        {
            fields.contradict(
                "config.json describes a rotary embedding whose frequencies are not finite",
            );
        }
        if let (Some((_, architecture)), Some(spec)) = (&files.gguf, spec)
            && !architecture.model_types.contains(&spec.model_type.as_str())
        {
            fields.contradict(format!(
                "config.json describes a `{}` model, but the GGUF file next to it has the architecture `{}`",
                spec.model_type, architecture.name
            ));
        }
        if let Some(spec) = spec.filter(|_| fields.is_clean()) {
            let contradictions = files.stated.contradictions(spec, rope_theta);
            contradictions.for_each(|problem| fields.note(problem));
        }
        match (first, problems.into_inner()) {
            (Some(FirstLayerConfig { spec, tensors, .. }), problems) if problems.is_empty() => {
                Ok(Self { files, bytes, map, spec, tensors, rope_theta })
            }
            (_, problems) => Err(files.refused(problems)),
        }
    }

    /// Interprets `config.json` as a whole model.
    /// Fails also if the model type is supported for its first layer only.
    pub(crate) fn whole(&self) -> Result<(FirstLayerConfig, Decoder), Vec<ModelProblem>> {
        let problems = RefCell::new(Vec::new());
        let fields = Fields::new(&self.map, "config.json", &problems);
        let fields = fields.with_rope_theta(self.rope_theta);
        let first = families::first_layer(&fields, ModelScope::WholeModel);
        let decoder = first.as_ref().and_then(|first| families::decoder(&fields, first));
        match (first.zip(decoder), problems.into_inner()) {
            (Some(whole), problems) if problems.is_empty() => Ok(whole),
            (_, problems) => Err(self.files.refused(problems)),
        }
    }

    /// Returns the interpretation of `config.json` with the key on which the tensors depend set to `null`.
    pub(crate) fn fallback(&self) -> Option<Self> {
        let mut map = self.map.clone();
        map.insert(self.tensors.absent_key?.to_owned(), Value::Null);
        let reading = (self.rope_theta, ModelScope::FirstLayer);
        Self::parse(self.files.clone(), self.bytes.clone(), map, reading).ok()
    }

    /// Describes the choice that `config.json` leaves open and the weights decide.
    pub fn undecided(&self) -> Option<String> {
        let key = self.tensors.absent_key?;
        let rank = self.spec.latent.as_ref()?.query_rank?;
        Some(format!(
            "config.json has no `{key}`: sizes assume the model type's default, {rank}; if the weights lack those \
             tensors, the key is read as `null`"
        ))
    }

    pub fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// Returns the folder as given by the caller.
    pub fn folder(&self) -> &Path {
        &self.files.folder
    }

    /// Returns the number format of the weights as stated by `config.json` (`dtype`, formerly `torch_dtype`).
    pub fn stated_dtype(&self) -> Option<&str> {
        let text = |name| self.value(name).and_then(Value::as_str);
        text("dtype").or_else(|| text("torch_dtype"))
    }

    /// Returns the quantisation method that `config.json` states: `gptq`, `fp8`, `mlx`, …; `gguf` if the weights are in
    /// a GGUF file; `None` if they are not quantised.
    pub fn quantization(&self) -> Option<&str> {
        if self.files.gguf.is_some() {
            return Some("gguf");
        }
        let quantized = self
            .map
            .get("quantization_config")
            .or_else(|| self.map.get("quantization"))?
            .as_object()?;
        Some(quantized.get("quant_method").and_then(Value::as_str).unwrap_or("mlx"))
    }

    /// Whether the head shares the embedding's weights, from `config.json` or the model type's default.
    pub(crate) fn is_tied(&self) -> bool {
        match self.value("tie_word_embeddings").and_then(Value::as_bool) {
            Some(tied) => tied,
            None => self.whole().is_ok_and(|(_, decoder)| decoder.head.weight.is_none()),
        }
    }

    /// Returns `bos_token_id` of `config.json`. Prefer [`ModelConfig::bos_token_id`].
    pub fn stated_bos_token_id(&self) -> Option<u32> {
        self.value("bos_token_id")?.as_u64().and_then(|id| u32::try_from(id).ok())
    }

    /// Returns an entry of `config.json`, or of its `text_config` in a multimodal model.
    fn value(&self, name: &str) -> Option<&Value> {
        self.map.get(name).or_else(|| self.map.get("text_config")?.get(name))
    }

    /// Returns the bytes that building the table would read if all weights had `bytes_per_number` bytes each.
    pub fn bytes_to_read_at(&self, bytes_per_number: u64) -> u64 {
        self.tensors
            .needed(&self.spec)
            .iter()
            .map(|tensor| tensor.numbers() * bytes_per_number)
            .sum()
    }

    /// Returns the bytes of the layer-zero table, including the arrays next to its rows.
    pub fn table_bytes(&self, precision: Precision) -> u64 {
        let rows = self.spec.vocabulary_size * self.row_bytes(precision);
        match aux_tensors(&self.spec).iter().map(|(_, numbers)| 4 * numbers).sum() {
            0 => rows,
            side => rows.next_multiple_of(ALIGNMENT as u64) + side,
        }
    }

    /// Returns the bytes per row of the layer-zero table, that is, per vocabulary entry.
    pub fn row_bytes(&self, precision: Precision) -> u64 {
        self.spec.row_width() * precision.bytes()
    }

    /// Returns the bytes of projections that stay in memory, for models whose heads are projected per window.
    pub fn packed_bytes(&self) -> u64 {
        let packed = [TensorRole::QueryWeight, TensorRole::KeyWeight];
        let arrays = aux_tensors(&self.spec).into_iter();
        arrays.filter(|(role, _)| packed.contains(role)).map(|(_, numbers)| 4 * numbers).sum()
    }

    /// Whether the folder has any weight files, including formats that are refused.
    pub fn has_weights(&self) -> bool {
        let names = || file_names(&self.files.folder).unwrap_or_default();
        self.files.gguf.is_some()
            || names().iter().any(|name| is_safetensors(name) || is_pickled(name))
    }

    /// Returns the number of layers after the last one that predict further tokens during training.
    pub(crate) fn prediction_layers(&self) -> u64 {
        self.map.get("num_nextn_predict_layers").and_then(Value::as_u64).unwrap_or(0)
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.files.warnings
    }

    pub(crate) fn gguf(&self) -> Option<(&[String], &'static Architecture)> {
        self.files.gguf.as_ref().map(|(files, architecture)| (files.as_slice(), *architecture))
    }
}

/// The folder, and its GGUF files if they hold the weights.
#[derive(Clone, Debug)]
struct WeightFiles {
    folder: PathBuf,
    gguf: Option<(Vec<String>, &'static Architecture)>,
    /// Whether the settings are those of a GGUF file's header, in the absence of config.json.
    from_header: bool,
    /// Numbers and rope scaling of the GGUF file's header.
    stated: Stated,
    /// Entries of the GGUF file's header that nothing describes.
    warnings: Vec<String>,
}

fn open_files(path: &Path) -> Result<(WeightFiles, Vec<u8>), Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    let ModelFiles { folder, gguf } = ModelFiles::find(path).map_err(one)?;
    let path = folder.join("config.json");
    let Some(first) = gguf.first() else {
        let bytes = read_small_file(&path, MAX_CONFIG_BYTES).map_err(one)?;
        return Ok((
            WeightFiles {
                folder,
                gguf: None,
                from_header: false,
                stated: Stated::default(),
                warnings: vec![],
            },
            bytes,
        ));
    };
    let mut parts = vec![WeightShard::open(&folder, first).map_err(one)?];
    let architecture = gguf_config::architecture(&parts[0]).map_err(one)?;
    let others = Catalogue::from_files(&folder, &gguf[1..]);
    parts.extend(others.map_err(|problems| with_remedies(problems, INCOMPLETE))?.opened);
    let from_header = !path.exists();
    let bytes = if from_header {
        let config = gguf_config::config(&parts, architecture).map_err(one)?;
        Value::Object(config).to_string().into_bytes()
    } else {
        read_small_file(&path, MAX_CONFIG_BYTES).map_err(one)?
    };
    let stated = gguf_config::stated(&parts, architecture).map_err(one)?;
    let warnings = gguf_config::warnings(&parts[0], architecture);
    let gguf = Some((gguf, architecture));
    Ok((WeightFiles { folder, gguf, from_header, stated, warnings }, bytes))
}

impl WeightFiles {
    /// Names the source of refused settings and adds remedies.
    fn refused(&self, mut problems: Vec<ModelProblem>) -> Vec<ModelProblem> {
        let header = self.gguf.as_ref().filter(|_| self.from_header);
        let Some((files, _)) = header else {
            return with_remedies(problems, "correct config.json, or download it again");
        };
        let header = format!("the header of `{}`", files[0]);
        for problem in &mut problems {
            problem.message = problem.message.replace("config.json", &header);
        }
        with_remedies(problems, "download the file again, or convert the checkpoint again")
    }
}
