//! Fetches layer 0 of a checkpoint, or a tokenizer, from wherever its files are.

use std::ops::Range;
use std::rc::Rc;

use longsift_stages::model::{ModelConfig, ModelProblem, RemoteWeights, SlicedFile, slice};

use super::folder::{Fetched, PartialFolder};
use super::stores::Versions;
use crate::base::text::bytes;

pub(crate) use crate::storage::http::remaining::Sink;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const INDEX: &str = "model.safetensors.index.json";

/// The small files that are fetched, and the most bytes that each may have. The first must be there.
pub(crate) const SMALL_FILES: [(&str, u64); 4] = [
    (CONFIG, 16 << 20),
    (TOKENIZER, 1 << 30),
    ("tokenizer_config.json", 64 << 20),
    (INDEX, 256 << 20),
];

/// A folder elsewhere whose files are read by name.
pub(crate) trait Source: RemoteWeights {
    /// How it is called in messages.
    fn name(&self) -> String;
    /// A whole file of at most `most` bytes; none where there is none of that name.
    fn small(&self, file: &str, most: u64) -> Result<Option<Vec<u8>>, ModelProblem>;
    /// Hands on ranges of a file, in order.
    fn ranges(&self, file: &str, ranges: &[Range<u64>], sink: Sink<'_>)
    -> Result<(), ModelProblem>;
    /// A range of a file, in one piece.
    fn gathered(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        let mut bytes = Vec::with_capacity((wanted.end - wanted.start) as usize);
        self.ranges(file, &[wanted], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
    /// Bytes that were received so far.
    fn received(&self) -> u64;
    /// What to do where a file is not there.
    fn hint(&self) -> &'static str;

    /// That a file which must be there is not.
    fn no_file(&self, file: &str) -> ModelProblem {
        let problem = ModelProblem::settings(format!("`{}` has no `{file}`", self.name()));
        if file == "model.safetensors" {
            return problem
                .with_hint("only models with safetensors files are read from elsewhere; download others and name their folder");
        }
        problem.with_hint(self.hint())
    }
}

/// Fills `partial` with what a tokenizer is made of; `tokenizer.json` must be there.
pub(crate) fn fetch_tokenizer(
    source: &dyn Source,
    partial: &PartialFolder,
) -> Result<(), Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    for (name, most) in &SMALL_FILES[1..3] {
        match source.small(name, *most).map_err(one)? {
            Some(content) => partial.write(name, &content).map_err(one)?,
            None if *name == TOKENIZER => return Err(one(source.no_file(name))),
            None => {}
        }
    }
    Ok(())
}

/// Fills `partial` with config, tokenizer and layer 0 of a checkpoint.
pub(crate) fn fetch_model<S: Source + 'static>(
    source: &Rc<S>,
    partial: &PartialFolder,
) -> Result<Fetched, Vec<ModelProblem>> {
    let one = |problem| vec![problem];
    for (name, most) in SMALL_FILES {
        match source.small(name, most).map_err(one)? {
            Some(content) => partial.write(name, &content).map_err(one)?,
            None if name == CONFIG => return Err(one(source.no_file(name))),
            None => {}
        }
    }
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
    Ok(Fetched {
        tensors: recipe.tensors,
        bytes: source.received(),
        checkpoint_bytes: recipe.checkpoint_bytes,
    })
}

/// What to do where a file is not there.
pub(crate) const HINT: &str =
    "name the folder that has `config.json`, `tokenizer.json` and the safetensors files";

/// A source whose files may change.
pub(crate) trait Versioned: Source {
    /// The version that a file has now; none where there is none of that name.
    fn version(&self, file: &str) -> Result<Option<String>, ModelProblem>;
    /// The versions of all files that were asked for, as they were found first.
    fn seen(&self) -> Versions;
}
