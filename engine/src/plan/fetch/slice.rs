//! Fetches layer 0 of a checkpoint, or a tokenizer, from any source.

use std::rc::Rc;

use longsift_stages::model::{ModelConfig, ModelProblem, RemoteWeights, SlicedFile, slice};

use super::folder::{FetchedModel, PartialFolder};
use super::source::ModelSource;
use super::stores::{FetchKind, INDEX, SMALL_FILES};
use crate::base::text::bytes;
use crate::storage::http::remaining::Sink;

const WHOLE: &str = "model.safetensors";

/// Maximum bytes of the index of a checkpoint in several files.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Fetches all small files that exist into `partial`; one is required.
fn fetch_small(
    source: &ModelSource,
    partial: &PartialFolder,
    required: &str,
) -> Result<(), ModelProblem> {
    for (name, max_bytes) in SMALL_FILES {
        let found = source.small(name, max_bytes);
        let why = match &found {
            Err(_) if name != required && source.counts_as_missing(name) => Some("is denied"),
            Ok(Some(content)) if source.is_page(name, content) => Some("is an HTML page"),
            _ => None,
        };
        if let Some(why) = why {
            tracing::warn!("`{}/{name}` {why}, so it is treated as missing", source.name);
            continue;
        }
        match found? {
            Some(content) => partial.write(name, &content)?,
            None if name == required => return Err(source.missing_file(name)),
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
        return fetch_small(source, partial, "tokenizer.json").map(|()| None).map_err(one);
    }
    fetch_small(source, partial, "config.json").map_err(one)?;
    // A whole checkpoint takes precedence over an index, as in a local folder.
    let whole = source.exists(WHOLE);
    let index = match &whole {
        Err(_) if source.counts_as_missing(WHOLE) => source.small(INDEX, MAX_INDEX_BYTES),
        Ok(false) => source.small(INDEX, MAX_INDEX_BYTES),
        _ => Ok(None),
    };
    match index.map_err(one)? {
        Some(index) => partial.write(INDEX, &index).map_err(one)?,
        None => drop(whole.map_err(one)?),
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
