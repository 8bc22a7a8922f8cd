//! A model folder in which every tensor that the table needs has been located and checked, but not read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::catalogue::Catalogue;
use super::config::ModelConfig;
use super::formats::{self, Finder, HEADS, LocatedTensor, Method};
use super::problem::{INCOMPLETE, ModelProblem, listed, with_remedies};
use super::spec::AttentionSpec;
use super::stored::{StoredTensor, StoredTensors, WeightSource};
use super::tensors::NeededTensor;
use super::unread::{self, ReadScope};
use crate::contract::sha256;

/// Bytes per read when tensors are compared.
const PIECE_BYTES: usize = 1 << 20;

/// A model folder whose `config.json` and weight headers have been read and agree. No weights have been read.
#[derive(Debug)]
pub struct ModelFolder {
    config: ModelConfig,
    pub(crate) parts: Vec<LocatedTensor>,
    checkpoint_bytes: u64,
    warnings: Vec<String>,
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
        let [folder, files, parts] = location_facts(&self.config, &self.parts);
        let config = sha256(&self.config.bytes);
        let identity =
            json!({ "folder": folder, "config": config, "files": files, "parts": parts });
        sha256(identity.to_string())
    }
}

/// Returns the folder of a model, the files that hold some tensors, and how each tensor is read.
pub(crate) fn location_facts<'a>(
    config: &ModelConfig,
    parts: impl IntoIterator<Item = &'a LocatedTensor>,
) -> [Value; 3] {
    let folder = config.folder();
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let (mut files, mut reads) = (BTreeMap::new(), Vec::new());
    for part in parts {
        reads.push(json!([part.needed, part.format.name()]));
        files.extend(part.stored.iter().map(|stored| (&stored.shard.name, &stored.shard)));
    }
    let files: Vec<_> =
        files.values().map(|file| (&file.name, &file.header_digest, &file.stamp)).collect();
    [json!(folder.to_string_lossy()), json!(files), json!(reads)]
}

impl ModelConfig {
    /// Reads the headers of the safetensors files, but no weights: the second step.
    pub fn with_weights(self) -> Result<ModelFolder, Vec<ModelProblem>> {
        let stored = stored(&self);
        let located = stored.and_then(|(method, mut tensors)| locate(self, &method, &mut tensors));
        located.map_err(|problems| with_remedies(problems, INCOMPLETE))
    }
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

/// Returns the required tensors in order, group by group. `head`: name of the head, if it is not the embedding.
pub(crate) fn locate_parts(
    config: &ModelConfig,
    needed: Vec<Vec<NeededTensor>>,
    head: Option<&str>,
    reads: ReadScope,
) -> Result<Vec<Vec<LocatedTensor>>, Vec<ModelProblem>> {
    let (method, mut tensors) = stored(config)?;
    let mut finder = finder(config, &method, &mut tensors);
    let parts: Vec<Vec<_>> = needed.into_iter().map(|group| finder.find_all(group)).collect();
    let (mut missing, mut problems) = finder.finish();
    // Unread tensors are checked only if everything else could be read.
    if missing.is_empty() && problems.is_empty() {
        problems.extend(unread::check(config, &tensors, reads));
    }
    if missing.is_empty() && problems.is_empty() && head.is_none() {
        problems.extend(other_head(&parts, &mut tensors, reads));
    }
    // Queries, keys and values may share one tensor.
    missing.dedup();
    if !missing.is_empty() {
        let message = format!("the checkpoint has no {}", listed(&missing, 6));
        let mut problem = ModelProblem::checkpoint(message);
        if head.is_some_and(|head| missing.iter().take(6).any(|name| name.ends_with(head))) {
            problem = problem.with_hint(
                "config.json does not tie the head to the embedding (`tie_word_embeddings`): either the checkpoint was saved \
                 without its head, or the setting is wrong",
            );
        }
        problems.insert(0, problem);
    }
    if problems.is_empty() { Ok(parts) } else { Err(problems) }
}

/// Returns the problem if the checkpoint of a model whose head is the embedding has a head that differs from it: some versions of
/// the transformers library use the head, others the embedding.
fn other_head(
    parts: &[Vec<LocatedTensor>],
    tensors: &mut StoredTensors,
    reads: ReadScope,
) -> Option<ModelProblem> {
    if !matches!(reads, ReadScope::Layers { above: true, .. }) {
        return None;
    }
    let embedding = parts.first()?.first()?;
    let mut heads = HEADS.into_iter().chain(["embed_out.weight"]);
    let head = heads.find(|name| tensors.contains(name))?;
    let is_used = embedding.stored.iter().any(|stored| stored.name == head);
    let head = tensors.find(head).filter(|_| !is_used)?;
    let same = match &embedding.stored[..] {
        [embedding] => have_same_bytes(embedding, &head),
        _ => Ok(false),
    };
    let embedding = embedding.stored.first()?;
    match same {
        Ok(true) => None,
        Ok(false) => {
            let message = format!(
                "the checkpoint has `{}`, which differs from `{}`, but config.json ties both (`tie_word_embeddings`)",
                head.name, embedding.name
            );
            Some(ModelProblem::checkpoint(message).with_hint(
                "set `tie_word_embeddings` to false in config.json if the model has its own head; otherwise remove the tensor",
            ))
        }
        Err(problem) => Some(problem),
    }
}

fn have_same_bytes(a: &StoredTensor, b: &StoredTensor) -> Result<bool, ModelProblem> {
    if a.entry.dtype != b.entry.dtype || a.entry.shape != b.entry.shape {
        return Ok(false);
    }
    let (mut from_a, mut from_b) = (a.shard.reader()?, b.shard.reader()?);
    let length = a.entry.byte_length();
    let mut buffers = [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]];
    for offset in (0..length).step_by(PIECE_BYTES) {
        let piece = PIECE_BYTES.min((length - offset) as usize);
        let [in_a, in_b] = buffers.each_mut().map(|buffer| &mut buffer[..piece]);
        from_a.read(&a.entry, offset, in_a)?;
        from_b.read(&b.entry, offset, in_b)?;
        if in_a != in_b {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Locates every required tensor, with the interpretation of `config.json` that fits them.
pub(crate) fn locate(
    config: ModelConfig,
    method: &Method,
    tensors: &mut StoredTensors,
) -> Result<ModelFolder, Vec<ModelProblem>> {
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
    let parts = finder.find_all(needed(&config));
    let mut warnings = ignored_biases(&config, &finder);
    warnings.extend_from_slice(config.warnings());
    let (missing, mut problems) = finder.finish();
    if !missing.is_empty() {
        return Err(vec![missing_tensors(&config, missing)]);
    }
    if problems.is_empty() {
        problems.extend(unread::check(&config, tensors, ReadScope::QueriesAndKeys));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(ModelFolder { config, parts, checkpoint_bytes: tensors.checkpoint_bytes, warnings })
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
