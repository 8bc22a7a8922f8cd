//! Fetches layer 0 of a checkpoint, or a tokenizer, from any source.

use std::ops::Range;
use std::rc::Rc;

use longsift_stages::model::{ModelConfig, ModelProblem, RemoteWeights, SlicedFile, slice};

use super::folder::{FetchedModel, PartialFolder};
use super::stores::Versions;
use crate::base::text::bytes;

pub(crate) use crate::storage::http::remaining::Sink;

const INDEX: &str = "model.safetensors.index.json";

/// Small files to fetch, each with its maximum bytes. The first is required.
const SMALL_FILES: [(&str, u64); 4] = [
    ("config.json", 16 << 20),
    ("tokenizer.json", 1 << 30),
    ("tokenizer_config.json", 64 << 20),
    (INDEX, 256 << 20),
];

/// Remote folder whose files are read by name.
pub(crate) trait ModelSource: RemoteWeights {
    fn name(&self) -> String;
    /// Reads a whole file of at most `max` bytes; `None` if it does not exist.
    fn small(&self, file: &str, max: u64) -> Result<Option<Vec<u8>>, ModelProblem>;
    /// Passes ranges of a file to `sink`, in order.
    fn ranges(&self, file: &str, ranges: &[Range<u64>], sink: Sink<'_>)
    -> Result<(), ModelProblem>;
    fn read_range(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        let mut bytes = Vec::with_capacity((wanted.end - wanted.start) as usize);
        self.ranges(file, &[wanted], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
    /// Returns the bytes received so far.
    fn received(&self) -> u64;
    /// Returns the current version of a file; `None` if it does not exist.
    fn version(&self, file: &str) -> Result<Option<String>, ModelProblem>;
    /// Returns the first seen version of each requested file.
    fn seen(&self) -> Versions;
    fn hint(&self) -> &'static str;

    fn missing_file(&self, file: &str) -> ModelProblem {
        let problem = ModelProblem::settings(format!("`{}` has no `{file}`", self.name()));
        if file == "model.safetensors" {
            return problem
                .with_hint("remote models must have safetensors files; download other models and use their folder");
        }
        problem.with_hint(self.hint())
    }
}

/// Fetches the tokenizer's files into `partial`; `tokenizer.json` is required.
pub(crate) fn fetch_tokenizer(
    source: &dyn ModelSource,
    partial: &PartialFolder,
) -> Result<(), Vec<ModelProblem>> {
    fetch_small(source, partial, &SMALL_FILES[1..3]).map_err(|problem| vec![problem])
}

/// Fetches small files, each with its maximum bytes, into `partial`. The first is required.
fn fetch_small(
    source: &dyn ModelSource,
    partial: &PartialFolder,
    files: &[(&str, u64)],
) -> Result<(), ModelProblem> {
    for (index, (name, max)) in files.iter().enumerate() {
        match source.small(name, *max)? {
            Some(content) => partial.write(name, &content)?,
            None if index == 0 => return Err(source.missing_file(name)),
            None => {}
        }
    }
    Ok(())
}

/// Fetches config, tokenizer and layer 0 of a checkpoint into `partial`.
pub(crate) fn fetch_model<S: ModelSource + 'static>(
    source: &Rc<S>,
    partial: &PartialFolder,
) -> Result<FetchedModel, Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    fetch_small(&**source, partial, &SMALL_FILES).map_err(one)?;
    let config = ModelConfig::read(partial.folder(), None)?;
    let weights: Rc<dyn RemoteWeights> = Rc::clone(source) as _;
    let recipe = slice(config, &weights)?;
    let wanted_bytes: u64 = recipe.files.iter().map(SlicedFile::bytes).sum();
    partial.check_space(wanted_bytes).map_err(one)?;
    tracing::info!(
        "fetching layer 0 of `{}`: {} of {} of the checkpoint",
        source.name(),
        bytes(wanted_bytes),
        bytes(recipe.checkpoint_bytes)
    );
    for file in &recipe.files {
        let copy = |sink: Sink<'_>| source.ranges(&file.source, &file.ranges, sink);
        partial.write_slice(file, copy).map_err(one)?;
    }
    partial.write(INDEX, &recipe.index).map_err(one)?;
    Ok(FetchedModel {
        tensors: recipe.tensors,
        bytes: source.received(),
        checkpoint_bytes: recipe.checkpoint_bytes,
    })
}

pub(crate) const HINT: &str =
    "use the folder with `config.json`, `tokenizer.json` and the safetensors files";
