//! Fetches layer 0 of a checkpoint, or a tokenizer, from any source.

use std::rc::Rc;

use longsift_stages::model::{ModelConfig, ModelProblem, RemoteWeights, SlicedFile, slice};

use super::folder::{FetchedModel, PartialFolder};
use super::source::ModelSource;
use super::stores::FetchKind;
use crate::base::text::bytes;
use crate::storage::http::remaining::Sink;

const INDEX: &str = "model.safetensors.index.json";

/// Small files to fetch, each with its maximum bytes. The first is required.
const SMALL_FILES: [(&str, u64); 4] = [
    ("config.json", 16 << 20),
    ("tokenizer.json", 1 << 30),
    ("tokenizer_config.json", 64 << 20),
    (INDEX, 256 << 20),
];

/// Fetches small files, each with its maximum bytes, into `partial`. The first is required.
fn fetch_small(
    source: &ModelSource,
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

/// Fetches the tokenizer, or config, tokenizer and layer 0, which are described.
pub(crate) fn fetch(
    source: &Rc<ModelSource>,
    partial: &PartialFolder,
    wanted: FetchKind,
) -> Result<Option<FetchedModel>, Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    if wanted == FetchKind::Tokenizer {
        return fetch_small(source, partial, &SMALL_FILES[1..3]).map(|()| None).map_err(one);
    }
    fetch_small(source, partial, &SMALL_FILES).map_err(one)?;
    let config = ModelConfig::read(partial.folder(), None)?;
    let weights: Rc<dyn RemoteWeights> = Rc::clone(source) as _;
    let recipe = slice(config, &weights)?;
    let wanted_bytes: u64 = recipe.files.iter().map(SlicedFile::bytes).sum();
    partial.check_space(wanted_bytes).map_err(one)?;
    tracing::info!(
        "fetching layer 0 of `{}`: {} of {} of the checkpoint",
        source.name,
        bytes(wanted_bytes),
        bytes(recipe.checkpoint_bytes)
    );
    for file in &recipe.files {
        let copy = |sink: Sink<'_>| source.ranges(&file.source, &file.ranges, sink);
        partial.write_slice(file, copy).map_err(one)?;
    }
    partial.write(INDEX, &recipe.index).map_err(one)?;
    Ok(Some(FetchedModel {
        tensors: recipe.tensors,
        fetched_bytes: source.received(),
        checkpoint_bytes: recipe.checkpoint_bytes,
    }))
}
