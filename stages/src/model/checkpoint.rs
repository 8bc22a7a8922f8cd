//! A model folder in which every tensor that the table needs has been located and checked, but not read.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::catalogue::Catalogue;
use super::config::ModelConfig;
use super::formats::{self, Finder, FoundTensors, Method, StorageFormat, StoredMatrix};
use super::problem::{ModelProblem, listed, with_remedies};
use super::shard::WeightShard;
use super::spec::AttentionSpec;
use super::stored::{StoredTensor, StoredTensors, WeightSource};
use super::tensors::NeededTensor;
use super::unread::{self, ReadScope};
use crate::contract::sha256;

/// A model folder whose `config.json` and weight headers have been read and agree. No weights have been read.
#[derive(Debug)]
pub struct ModelFolder {
    config: ModelConfig,
    pub(crate) shards: Vec<WeightShard>,
    pub(crate) parts: Vec<LocatedTensor>,
    checkpoint_bytes: u64,
    warnings: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct LocatedTensor {
    pub(crate) needed: NeededTensor,
    pub(crate) format: Box<dyn StorageFormat>,
    /// The stored tensors that it consists of, in the format's order.
    pub(crate) stored: Vec<StoredTensor>,
    /// Index of the file of each stored tensor.
    pub(crate) shards: Vec<usize>,
}

impl LocatedTensor {
    /// Returns the name on disk, or that of the first stored tensor.
    pub(crate) fn name(&self) -> &str {
        &self.stored[0].name
    }

    /// Returns the indices of the stored tensors that are read once and whole.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> {
        (0..self.stored.len()).filter(|index| self.format.slice(*index, &(0..0)).is_none())
    }

    /// Returns the bytes that building the table reads for this tensor.
    pub(crate) fn bytes(&self) -> u64 {
        let kept: u64 = self.kept().map(|index| self.stored[index].entry.byte_length()).sum();
        let sliced = |rows| {
            let slices = (0..self.stored.len()).filter_map(|index| self.format.slice(index, rows));
            slices.map(|slice| slice.bytes()).sum::<u64>()
        };
        kept + self.needed.rows.iter().map(sliced).sum::<u64>()
    }

    /// Refuses numbers that are not finite: every `result` would be undefined.
    pub(crate) fn check_finite(&self, numbers: &[f32], result: &str) -> Result<(), ModelProblem> {
        let Some(wrong) = numbers.iter().find(|number| !number.is_finite()) else { return Ok(()) };
        let message = format!("`{}` holds {wrong}: every {result} would be undefined", self.name());
        Err(ModelProblem::checkpoint(message).with_hint("download the checkpoint again"))
    }
}

impl ModelFolder {
    /// Reads `config.json`, the index (if any) and the headers of the files that hold layer 0, but no weights.
    /// Reports all problems in `config.json`; if it is valid, all problems in the files.
    pub fn open(folder: &Path, rope_theta: Option<f64>) -> Result<Self, Vec<ModelProblem>> {
        ModelConfig::read(folder, rope_theta)?.with_weights()
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn spec(&self) -> &AttentionSpec {
        self.config.spec()
    }

    /// Returns the bytes of the whole checkpoint: the sum of its files, or the index's total if files are missing.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    /// Returns the exact number of weight bytes that building the table reads.
    pub fn bytes_to_read(&self) -> u64 {
        self.parts.iter().map(LocatedTensor::bytes).sum()
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns a SHA-256 that detects a changed model without reading its weights, from their location
    /// (`ModelFolder::weights_identity`) and the first layer's computation. It is valid on this machine only.
    pub fn identity(&self) -> String {
        sha256(format!("{} {}", self.weights_identity(), self.spec().digest()))
    }

    /// Returns the key under which the cache stores the weights' digest: a SHA-256 of the folder, `config.json`, the
    /// name, header, size, times and inode of each file with tensors of layer 0, and how each tensor is read.
    pub(crate) fn weights_identity(&self) -> String {
        let folder = self.config.folder();
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let files: Vec<_> = self
            .shards
            .iter()
            .map(|shard| (&shard.name, &shard.header_digest, &shard.stamp))
            .collect();
        let config = sha256(&self.config.bytes);
        let parts = self.parts.iter().map(|part| json!([part.needed, part.format.name()]));
        let identity = json!({
            "folder": folder.to_string_lossy(),
            "config": config,
            "files": files,
            "parts": parts.collect::<Vec<_>>(),
        });
        sha256(identity.to_string())
    }
}

impl ModelConfig {
    /// Reads the headers of the safetensors files, but no weights: the second step.
    pub fn with_weights(self) -> Result<ModelFolder, Vec<ModelProblem>> {
        open(self).map_err(|problems| {
            with_remedies(problems, "the download may be incomplete: download the checkpoint again")
        })
    }
}

fn open(config: ModelConfig) -> Result<ModelFolder, Vec<ModelProblem>> {
    let (method, mut tensors) = stored(&config)?;
    let checkpoint_bytes = tensors.checkpoint_bytes;
    let LocatedModel { config, found, warnings } = locate(config, &method, &mut tensors)?;
    let (shards, parts) = into_parts(tensors, found);
    Ok(ModelFolder { config, shards, parts, checkpoint_bytes, warnings })
}

/// Returns how the weights are packed, and the tensors of the files.
fn stored(config: &ModelConfig) -> Result<(Method, StoredTensors), Vec<ModelProblem>> {
    let folder = config.folder();
    let (method, catalogue) = match config.gguf() {
        None => (formats::method(&config.map)?, Catalogue::read(folder)?),
        Some((files, architecture)) => {
            let method = Method::Gguf { architecture, head_dim: config.spec().head_dim };
            (method, Catalogue::from_files(folder, files)?)
        }
    };
    Ok((method, StoredTensors::new(WeightSource::Folder(folder.to_owned()), catalogue)))
}

/// Returns the required tensors in order, and their files, without files that hold none.
fn into_parts(
    tensors: StoredTensors,
    found: FoundTensors,
) -> (Vec<WeightShard>, Vec<LocatedTensor>) {
    let stored = found.iter().flat_map(|(_, found)| &found.stored);
    let shards = tensors.into_shards(&stored.map(|stored| stored.file.clone()).collect());
    let shard = |stored: &StoredTensor| {
        let index = shards.binary_search_by(|shard| shard.name.cmp(&stored.file));
        index.expect("the file of every located tensor was kept")
    };
    let part = |(needed, StoredMatrix { format, stored }): (NeededTensor, StoredMatrix)| {
        LocatedTensor { needed, format, shards: stored.iter().map(shard).collect(), stored }
    };
    let parts = found.into_iter().map(part).collect();
    (shards, parts)
}

/// Returns the required tensors in order, and their files.
pub(crate) fn locate_parts(
    config: &ModelConfig,
    needed: Vec<NeededTensor>,
    reads: ReadScope,
) -> Result<(Vec<WeightShard>, Vec<LocatedTensor>), Vec<ModelProblem>> {
    let (method, mut tensors) = stored(config)?;
    let mut finder = finder(config, &method, &mut tensors);
    let found = finder.find_all(needed);
    let (mut missing, mut problems) = finder.finish();
    // Unread tensors are checked only if everything else could be read.
    if missing.is_empty() && problems.is_empty() {
        problems.extend(unread::check(config, &tensors, reads));
    }
    // Queries, keys and values may share one tensor.
    missing.dedup();
    if !missing.is_empty() {
        let message = format!("the checkpoint has no {}", listed(&missing));
        problems.insert(0, ModelProblem::checkpoint(message));
    }
    if problems.is_empty() { Ok(into_parts(tensors, found)) } else { Err(problems) }
}

/// The location of every required tensor, and the interpretation of `config.json` that fits them.
pub(crate) struct LocatedModel {
    config: ModelConfig,
    found: FoundTensors,
    warnings: Vec<String>,
}

pub(crate) fn locate(
    config: ModelConfig,
    method: &Method,
    tensors: &mut StoredTensors,
) -> Result<LocatedModel, Vec<ModelProblem>> {
    let config = match config.fallback() {
        Some(other)
            if !finder(&config, method, tensors).has_all(&needed(&config))
                && finder(&other, method, tensors).has_all(&needed(&other)) =>
        {
            other
        }
        _ => config,
    };
    let mut finder = finder(&config, method, tensors);
    let found = finder.find_all(needed(&config));
    let warnings = ignored_biases(&config, &finder);
    let (missing, mut problems) = finder.finish();
    if !missing.is_empty() {
        return Err(vec![missing_tensors(&config, missing)]);
    }
    if problems.is_empty() {
        problems.extend(unread::check(&config, tensors, ReadScope::QueriesAndKeys));
    }
    if problems.is_empty() { Ok(LocatedModel { config, found, warnings }) } else { Err(problems) }
}

fn needed(config: &ModelConfig) -> Vec<NeededTensor> {
    config.tensors.needed(config.spec())
}

fn finder<'a>(
    config: &'a ModelConfig,
    method: &'a Method,
    tensors: &'a mut StoredTensors,
) -> Finder<'a> {
    Finder {
        tensors,
        prefixes: config.tensors.prefixes,
        quantization: config.quantization(),
        method,
        tied: config.is_tied(),
        missing: Vec::new(),
        problems: Vec::new(),
    }
}

fn missing_tensors(config: &ModelConfig, mut names: Vec<String>) -> ModelProblem {
    // Queries and keys may share one tensor.
    names.dedup();
    let names = names.join("`, `");
    let quantised = config.quantization().map(|method| format!("quantised (`{method}`) "));
    ModelProblem::checkpoint(format!(
        "the {}checkpoint is missing tensors of layer 0: `{names}`",
        quantised.unwrap_or_default()
    ))
    .with_hint("check that the download is complete and that `model_type` in config.json matches the weights")
}

/// Lists biases that `config.json` does not request; the transformers library ignores them as well.
fn ignored_biases(config: &ModelConfig, finder: &Finder<'_>) -> Vec<String> {
    let tensors = &config.tensors;
    let without_bias =
        [&tensors.query, &tensors.key].into_iter().filter(|projection| projection.bias.is_none());
    let names = without_bias.filter_map(|projection| projection.weight.strip_suffix(".weight"));
    let found = names.filter_map(|name| finder.on_disk(&format!("{name}.bias")));
    found
        .map(|name| format!("`{name}` is ignored: config.json describes a model without this bias"))
        .collect()
}
