//! Reduces a remote checkpoint to the bytes of layer 0, as an ordinary model folder with the original index. Files keep
//! their names, but contain only the tensors of layer 0. Opening it gives the same first layer and the same digest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};

use super::catalogue::{Catalogue, INDEX, SINGLE, WHOLE_BYTES};
use super::checkpoint::locate;
use super::config::ModelConfig;
use super::formats;
use super::problem::ModelProblem;
use super::shard::{RemoteWeights, WeightShard};
use super::stored::{StoredTensor, StoredTensors, WeightSource};

/// Name under which a reduced `model.safetensors` is stored: a folder with a file of the original name has no index.
const ONLY: &str = "model-00001-of-00001.safetensors";

/// Instructions for reducing a checkpoint to layer 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// Files, sorted by name.
    pub files: Vec<SlicedFile>,
    /// Content of `model.safetensors.index.json` of the small checkpoint.
    pub index: Vec<u8>,
    pub checkpoint_bytes: u64,
    /// Names of the tensors of layer 0, sorted.
    pub tensors: Vec<String>,
}

/// A file of the small checkpoint: a header followed by ranges of the original file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicedFile {
    /// Name of the original file.
    pub source: String,
    pub name: String,
    /// First bytes of the small file: the length of the header, and the header.
    pub header: Vec<u8>,
    /// Ranges of the original file that follow the header: ascending, none adjacent.
    pub ranges: Vec<Range<u64>>,
}

impl SlicedFile {
    pub fn bytes(&self) -> u64 {
        let data: u64 = self.ranges.iter().map(|range| range.end - range.start).sum();
        self.header.len() as u64 + data
    }
}

/// Locates the tensors of layer 0. The folder of `config` holds the checkpoint's index, or the checkpoint is the single
/// file `model.safetensors`. Reads the headers of the files that hold layer 0, and the tensors that describe how others
/// are packed. Reports all problems that opening the whole checkpoint would report.
pub fn slice(
    config: ModelConfig,
    weights: &Rc<dyn RemoteWeights>,
) -> Result<SlicePlan, Vec<ModelProblem>> {
    let method = formats::method(&config.map)?;
    let catalogue = if config.folder().join(INDEX).exists() {
        Catalogue::read(config.folder())?
    } else {
        let shard =
            WeightShard::remote(weights.as_ref(), SINGLE).map_err(|problem| vec![problem])?;
        Catalogue::from_shards(vec![shard])?
    };
    let checkpoint_bytes = match catalogue.checkpoint_bytes {
        // The index has no `total_size`.
        0 => all_bytes(&catalogue, weights.as_ref()).map_err(|problem| vec![problem])?,
        stated => stated,
    };
    let mut tensors = StoredTensors::new(WeightSource::Remote(Rc::clone(weights)), catalogue);
    locate(config, &method, &mut tensors)?;
    let mut by_file: BTreeMap<&str, Vec<&StoredTensor>> = BTreeMap::new();
    for stored in tensors.found() {
        by_file.entry(&stored.shard.name).or_default().push(stored);
    }
    Ok(SlicePlan {
        files: by_file.into_iter().map(|(source, stored)| sliced_file(source, stored)).collect(),
        index: index(&tensors.files_by_tensor, checkpoint_bytes),
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

fn sliced_file(source: &str, mut stored: Vec<&StoredTensor>) -> SlicedFile {
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
    // Data is aligned to 8 bytes, as writers of the format do.
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
