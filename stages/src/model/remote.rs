//! A checkpoint that lies elsewhere: which of its bytes layer 0 is made of, and a small checkpoint of these alone.
//!
//! The small one is an ordinary model folder. Its files have the names of the whole ones, with the tensors of layer 0 and no
//! others; its index is that of the whole checkpoint. Opened, it gives the same first layer and the same digest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};

use super::catalogue::{Catalogue, INDEX, SINGLE, WHOLE_BYTES};
use super::checkpoint::locate;
use super::config::ModelConfig;
use super::forms;
use super::problem::ModelProblem;
use super::remote_weights::RemoteWeights;
use super::shard::Shard;
use super::stored::{Files, Stored, StoredTensors};

/// What a sliced `model.safetensors` is called: a folder with that file has no index.
const ONLY: &str = "model-00001-of-00001.safetensors";

/// A checkpoint cut down to layer 0, as a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliced {
    /// The files, sorted by name.
    pub files: Vec<SlicedFile>,
    /// What `model.safetensors.index.json` of the small checkpoint holds.
    pub index: Vec<u8>,
    /// Bytes of the whole checkpoint.
    pub checkpoint_bytes: u64,
    /// The tensors, sorted.
    pub tensors: Vec<String>,
}

/// A file of the small checkpoint: a header, and behind it some ranges of the whole file, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicedFile {
    /// The whole file.
    pub source: String,
    /// The small one.
    pub name: String,
    /// Its first bytes: the length of the header, and the header.
    pub header: Vec<u8>,
    /// What follows, in bytes of the whole file: ascending, none touching the next.
    pub ranges: Vec<Range<u64>>,
}

impl SlicedFile {
    /// Bytes of the small file.
    pub fn bytes(&self) -> u64 {
        let data: u64 = self.ranges.iter().map(|range| range.end - range.start).sum();
        self.header.len() as u64 + data
    }
}

/// Finds the tensors of layer 0. The folder of `config` has the checkpoint's index, or the checkpoint is the one file
/// `model.safetensors`. Headers of the files that layer 0 is in are read, and tensors that say how others are packed.
///
/// # Errors
/// What opening the whole checkpoint would find wrong, and files that cannot be read.
pub fn slice(
    config: ModelConfig,
    weights: &Rc<dyn RemoteWeights>,
) -> Result<Sliced, Vec<ModelProblem>> {
    let method = forms::method(config.map())?;
    let catalogue = if config.folder().join(INDEX).exists() {
        Catalogue::read(config.folder())?
    } else {
        let shard = Shard::remote(weights.as_ref(), SINGLE).map_err(|problem| vec![problem])?;
        Catalogue::of_shards(vec![shard])?
    };
    let checkpoint_bytes = match catalogue.checkpoint_bytes {
        // An index without `total_size`.
        0 => all_bytes(&catalogue, weights.as_ref()).map_err(|problem| vec![problem])?,
        stated => stated,
    };
    let mut tensors = StoredTensors::new(Files::Remote(Rc::clone(weights)), catalogue);
    locate(config, &method, &mut tensors)?;
    let mut by_file: BTreeMap<&str, Vec<&Stored>> = BTreeMap::new();
    for stored in tensors.found() {
        by_file.entry(&stored.file).or_default().push(stored);
    }
    Ok(Sliced {
        files: by_file.into_iter().map(|(source, stored)| sliced_file(source, stored)).collect(),
        index: index(tensors.files_by_tensor(), checkpoint_bytes),
        checkpoint_bytes,
        tensors: tensors.found().map(|stored| stored.name.clone()).collect(),
    })
}

fn all_bytes(catalogue: &Catalogue, weights: &dyn RemoteWeights) -> Result<u64, ModelProblem> {
    let files: BTreeSet<&String> = catalogue.files_by_tensor.values().collect();
    files.into_iter().map(|file| weights.length(file)).sum()
}

fn small_name(source: &str) -> &str {
    if source == SINGLE { ONLY } else { source }
}

fn sliced_file(source: &str, mut stored: Vec<&Stored>) -> SlicedFile {
    stored.sort_by_key(|stored| (stored.entry.bytes.start, stored.entry.bytes.end));
    let (mut header, mut ranges, mut offset) = (Map::new(), Vec::<Range<u64>>::new(), 0);
    for tensor in stored {
        let bytes = tensor.entry.bytes.clone();
        let length = bytes.end - bytes.start;
        let info = TensorInfo {
            dtype: tensor.dtype(),
            shape: tensor.entry.shape.iter().map(|size| *size as usize).collect(),
            data_offsets: (offset as usize, (offset + length) as usize),
        };
        header.insert(tensor.name.clone(), json!(info));
        offset += length;
        match ranges.last_mut() {
            _ if length == 0 => {}
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => ranges.push(bytes),
        }
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Data begins at a multiple of 8, as writers of the format leave it.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    SlicedFile { source: source.to_owned(), name: small_name(source).to_owned(), header, ranges }
}

fn index(files_by_tensor: &BTreeMap<String, String>, checkpoint_bytes: u64) -> Vec<u8> {
    let files: Map<String, Value> = files_by_tensor
        .iter()
        .map(|(tensor, file)| (tensor.clone(), small_name(file).into()))
        .collect();
    json!({ "metadata": { (WHOLE_BYTES): checkpoint_bytes }, "weight_map": files })
        .to_string()
        .into_bytes()
}
