//! A model folder with its weights located: every tensor that the table needs, checked, not yet read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::catalogue::Catalogue;
use super::config::ModelConfig;
use super::problem::ModelProblem;
use super::shard::Shard;
use super::spec::LayerZeroSpec;
use super::tensors::NeededTensor;
use crate::contract::hex;
use crate::load_partial_model::Precision;

/// A model folder whose `config.json` and safetensors headers have been read and agree. No weights are read yet.
#[derive(Debug)]
pub struct ModelFolder {
    config: ModelConfig,
    shards: Vec<Shard>,
    parts: Vec<Part>,
    checkpoint_bytes: u64,
    warnings: Vec<String>,
}

/// A needed tensor and where it is.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) needed: NeededTensor,
    /// Its name on disk.
    pub(crate) name: String,
    pub(crate) shard: usize,
    pub(crate) info: TensorInfo,
}

impl Part {
    /// Bytes of one number on disk.
    pub(crate) fn number_bytes(&self) -> u64 {
        self.info.dtype.bitsize() as u64 / 8
    }

    /// Bytes that the table builder reads of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.needed.numbers() * self.number_bytes()
    }
}

impl ModelFolder {
    /// Reads `config.json`, the index if there is one, and the headers of the files that layer 0 is in; no weights.
    ///
    /// # Errors
    /// All problems of `config.json` together or, if it is fine, all problems of the files together.
    pub fn open(folder: &Path, rope_theta: Option<f64>) -> Result<Self, Vec<ModelProblem>> {
        ModelConfig::read(folder, rope_theta)?.with_weights()
    }

    /// What `config.json` alone tells.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The first layer.
    pub fn spec(&self) -> &LayerZeroSpec {
        self.config.spec()
    }

    /// Bytes of the whole checkpoint: of its files, or as the index states them where files are missing.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    /// Bytes of weights that building the table reads, exactly.
    pub fn bytes_to_read(&self) -> u64 {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// Bytes of the layer-zero table.
    pub fn table_bytes(&self, precision: Precision) -> u64 {
        self.config.table_bytes(precision)
    }

    /// The BOS id, if the model has one: see [`ModelConfig::bos_token_id`].
    pub fn bos_token_id(&self) -> Option<u32> {
        self.config.bos_token_id()
    }

    /// What should be told and is no error.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A SHA-256 of everything that tells whether the weights are still the same without reading them: the folder,
    /// `config.json`, and name, header, size, times and inode of each file that layer 0 is in.
    ///
    /// It is the key under which the cache remembers the weights' digest on this machine, and nothing else: it
    /// changes when a file is copied or touched. What is comparable between machines is the digest.
    pub fn identity(&self) -> String {
        let folder = self.config.folder();
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let files: Vec<_> = self
            .shards
            .iter()
            .map(|shard| (&shard.name, &shard.header_digest, &shard.stamp))
            .collect();
        let config = hex(&Sha256::digest(self.config.bytes()));
        let identity =
            json!({ "folder": folder.to_string_lossy(), "config": config, "files": files });
        hex(&Sha256::digest(identity.to_string().as_bytes()))
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// Finds every needed tensor in the folder's files.
pub(crate) fn open(config: ModelConfig) -> Result<ModelFolder, Vec<ModelProblem>> {
    let mut catalogue = Catalogue::read(config.folder())?;
    let config = match config.otherwise() {
        Some(other) if !complete(&config, &catalogue) && complete(&other, &catalogue) => other,
        _ => config,
    };
    let needed = config.tensors().needed(config.spec());
    let (found, missing): (Vec<_>, Vec<_>) = needed
        .into_iter()
        .map(|tensor| (name_on_disk(&config, &catalogue, &tensor.name), tensor))
        .partition(|(name, _)| name.is_some());
    if !missing.is_empty() {
        let missing: Vec<NeededTensor> = missing.into_iter().map(|(_, tensor)| tensor).collect();
        return Err(vec![missing_tensors(&config, &missing)]);
    }
    let mut problems = Vec::new();
    let mut shards: BTreeMap<String, Shard> =
        catalogue.opened.drain(..).map(|shard| (shard.name.clone(), shard)).collect();
    let mut located = Vec::new();
    let mut unreadable = Vec::new();
    for (name, needed) in found {
        let name = name.expect("tensors without a name are the missing ones");
        let file = catalogue.files_by_tensor[&name].clone();
        if !shards.contains_key(&file) && !unreadable.contains(&file) {
            match Shard::open(config.folder(), &file) {
                Ok(shard) => drop(shards.insert(file.clone(), shard)),
                Err(problem) => {
                    problems.push(problem);
                    unreadable.push(file.clone());
                }
            }
        }
        let Some(shard) = shards.get(&file) else { continue };
        match checked(&config, shard, &name, &needed) {
            Ok(info) => located.push((needed, name, file, info)),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // A file without a needed tensor is no part of the model's identity.
    shards.retain(|name, _| located.iter().any(|(_, _, file, _)| file == name));
    let names: Vec<&String> = shards.keys().collect();
    let part = |(needed, name, file, info)| {
        let shard = names.binary_search(&&file).expect("every located tensor's file was kept");
        Part { needed, name, shard, info }
    };
    let parts = located.into_iter().map(part).collect();
    let warnings = ignored_biases(&config, &catalogue);
    let checkpoint_bytes = catalogue.checkpoint_bytes;
    Ok(ModelFolder {
        shards: shards.into_values().collect(),
        parts,
        checkpoint_bytes,
        warnings,
        config,
    })
}

/// Whether the checkpoint names every tensor that this reading of config.json needs.
fn complete(config: &ModelConfig, catalogue: &Catalogue) -> bool {
    let needed = config.tensors().needed(config.spec());
    needed.iter().all(|tensor| name_on_disk(config, catalogue, &tensor.name).is_some())
}

fn name_on_disk(config: &ModelConfig, catalogue: &Catalogue, name: &str) -> Option<String> {
    let names = config.tensors().prefixes.iter().map(|prefix| format!("{prefix}{name}"));
    names.into_iter().find(|name| catalogue.files_by_tensor.contains_key(name))
}

fn missing_tensors(config: &ModelConfig, missing: &[NeededTensor]) -> ModelProblem {
    let prefix = config.tensors().prefixes[0];
    let mut names: Vec<String> =
        missing.iter().map(|tensor| format!("`{prefix}{}`", tensor.name)).collect();
    // Queries and keys may lie in one tensor.
    names.dedup();
    let names = names.join(", ");
    match config.quantization() {
        Some(method) => ModelProblem::settings(format!(
            "the checkpoint is quantised (`{method}`) and has no plain weights for layer 0: {names}"
        ))
        .with_hint("use the checkpoint it was made from, in f32, f16 or bf16"),
        None => ModelProblem::checkpoint(format!(
            "the checkpoint lacks tensors of layer 0: {names}"
        ))
        .with_hint(
            "is the download complete, and does `model_type` in config.json fit the weights?",
        ),
    }
}

/// The tensor's entry in its file's header, with the type and shape that the table needs.
fn checked(
    config: &ModelConfig,
    shard: &Shard,
    name: &str,
    needed: &NeededTensor,
) -> Result<TensorInfo, ModelProblem> {
    let info = shard.tensor(name).ok_or_else(|| {
        ModelProblem::checkpoint(format!(
            "the index says that `{name}` is in `{}`; it is not",
            shard.name
        ))
    })?;
    if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        let method = config
            .quantization()
            .map(|method| format!(" (the checkpoint is quantised: `{method}`)"));
        return Err(ModelProblem::settings(format!(
            "`{name}` has numbers of type {}{}; supported are f32, f16 and bf16",
            info.dtype,
            method.unwrap_or_default()
        )));
    }
    let shape: Vec<u64> = info.shape.iter().map(|size| *size as u64).collect();
    if shape != needed.shape {
        return Err(ModelProblem::checkpoint(format!(
            "`{name}` in `{}` has shape {shape:?}; config.json implies {:?}",
            shard.name, needed.shape
        )));
    }
    Ok(info.clone())
}

/// Biases that the checkpoint has and config.json does not ask for. The transformers library ignores them as well.
fn ignored_biases(config: &ModelConfig, catalogue: &Catalogue) -> Vec<String> {
    let tensors = config.tensors();
    let unasked =
        [&tensors.query, &tensors.key].into_iter().filter(|projection| projection.bias.is_none());
    let names = unasked.filter_map(|projection| projection.weight.strip_suffix(".weight"));
    let found = names.filter_map(|name| name_on_disk(config, catalogue, &format!("{name}.bias")));
    found
        .map(|name| format!("`{name}` is ignored: by config.json this model has no such bias"))
        .collect()
}
