//! Stored tensors of a model folder, found by name; headers are read on demand.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use safetensors::Dtype;

use super::catalogue::Catalogue;
use super::entry::{StoredType, TensorEntry};
use super::problem::ModelProblem;
use super::shard::{RemoteWeights, WeightShard};

#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    /// File that holds it.
    pub(crate) shard: Arc<WeightShard>,
    pub(crate) entry: TensorEntry,
}

impl StoredTensor {
    /// Returns the type of the numbers. Blocks and unknown types are refused before this is called.
    pub(crate) fn dtype(&self) -> Dtype {
        match self.entry.dtype {
            StoredType::Numbers(dtype) => dtype,
            other => unreachable!("{other} is refused when the header is read"),
        }
    }
}

pub(crate) enum WeightSource {
    Folder(PathBuf),
    Remote(Rc<dyn RemoteWeights>),
}

impl WeightSource {
    fn open(&self, name: &str) -> Result<WeightShard, ModelProblem> {
        match self {
            Self::Folder(folder) => WeightShard::open(folder, name),
            Self::Remote(weights) => WeightShard::remote(weights.as_ref(), name),
        }
    }

    fn read(
        &self,
        StoredTensor { shard, entry, .. }: &StoredTensor,
    ) -> Result<Vec<u8>, ModelProblem> {
        match self {
            Self::Folder(_) => {
                let mut bytes = vec![0; entry.byte_length() as usize];
                shard.reader()?.read(entry, 0, &mut bytes)?;
                Ok(bytes)
            }
            Self::Remote(weights) => weights.read(&shard.name, entry.bytes.clone()),
        }
    }
}

/// All tensors of a model's files. A file's header is read when the first of its tensors is requested.
pub(crate) struct StoredTensors {
    files: WeightSource,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) files_by_tensor: BTreeMap<String, String>,
    /// `None` for a file whose header could not be read.
    shards: BTreeMap<String, Option<Arc<WeightShard>>>,
    /// Requested tensors that were found, by name.
    found: BTreeMap<String, StoredTensor>,
    /// Problems of the files that were opened.
    pub(crate) problems: Vec<ModelProblem>,
}

impl StoredTensors {
    pub(crate) fn new(files: WeightSource, catalogue: Catalogue) -> Self {
        let opened = catalogue.opened.into_iter();
        Self {
            files,
            checkpoint_bytes: catalogue.checkpoint_bytes,
            files_by_tensor: catalogue.files_by_tensor,
            shards: opened.map(|shard| (shard.name.clone(), Some(Arc::new(shard)))).collect(),
            found: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    /// Whether a tensor of that name exists; opens no file.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.files_by_tensor.contains_key(name)
    }

    /// Finds a tensor by name; `None` if it does not exist or a problem of its file was noted.
    pub(crate) fn find(&mut self, name: &str) -> Option<StoredTensor> {
        let file = self.files_by_tensor.get(name)?.clone();
        let shard = self.shard(&file)?;
        if let Some(entry) = shard.tensors.get(name) {
            let stored = StoredTensor { name: name.to_owned(), entry: entry.clone(), shard };
            self.found.insert(name.to_owned(), stored.clone());
            return Some(stored);
        }
        self.problems.push(ModelProblem::checkpoint(format!(
            "the index lists `{name}` in `{file}`, but the file does not contain it"
        )));
        None
    }

    /// Reads all bytes of a small tensor that is needed to check a format; `None` with the problem noted.
    pub(crate) fn read(&mut self, stored: &StoredTensor) -> Option<Vec<u8>> {
        let read = self.files.read(stored);
        read.map_err(|problem| self.problems.push(problem)).ok()
    }

    fn shard(&mut self, file: &str) -> Option<Arc<WeightShard>> {
        if !self.shards.contains_key(file) {
            let opened = self.files.open(file);
            let opened = opened.map_err(|problem| self.problems.push(problem)).ok();
            self.shards.insert(file.to_owned(), opened.map(Arc::new));
        }
        self.shards[file].clone()
    }

    pub(crate) fn found(&self) -> impl Iterator<Item = &StoredTensor> {
        self.found.values()
    }
}
