//! Fetches layer 0 of a checkpoint, or a tokenizer, from any source.

use std::rc::Rc;

use longsift_stages::model::{ModelConfig, ModelProblem, RemoteWeights, SlicedFile, slice};

use super::folder::{FetchedModel, PartialFolder};
use super::source::ModelSource;
use super::stores::{FetchKind, SMALL_FILES};
use crate::base::text::bytes;
use crate::storage::http::remaining::Sink;

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Maximum bytes of the index of a checkpoint in several files.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Fetches all small files that exist into `partial`; one is required.
fn fetch_small(
    source: &ModelSource,
    partial: &PartialFolder,
    required: &str,
) -> Result<(), ModelProblem> {
    for (name, max_bytes) in SMALL_FILES {
        match source.small(name, max_bytes)? {
            Some(content) => partial.write(name, &content)?,
            None if name == required => return Err(source.missing_file(name)),
            None => {}
        }
    }
    let denied = source.denied().join("`, `");
    if !denied.is_empty() {
        tracing::info!(
            "access to `{denied}` of `{}` is denied, so they are treated as missing",
            source.name
        );
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
        return fetch_small(source, partial, "tokenizer.json").map(|()| None).map_err(one);
    }
    fetch_small(source, partial, "config.json").map_err(one)?;
    // A whole checkpoint takes precedence over an index, as in a local folder.
    if !source.exists(WHOLE).map_err(one)?
        && let Some(index) = source.small(INDEX, MAX_INDEX_BYTES).map_err(one)?
    {
        partial.write(INDEX, &index).map_err(one)?;
    }
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
