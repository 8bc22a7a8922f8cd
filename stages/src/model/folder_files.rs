//! Files of a model folder: listing them, recognising formats by name, and reading small ones.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::problem::ModelProblem;
use crate::contract::open_regular;

/// Maximum size of a `tokenizer_config.json` or a chat template. Files with 128,000 added tokens take a few megabytes.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>, ModelProblem> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| ModelProblem::reading(folder, &error))?;
    let mut names: Vec<String> =
        entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

pub(crate) fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "safetensors")
}

pub(crate) fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Whether a file is GGUF: by its extension or, without one, as in caches, by its first bytes.
pub(crate) fn is_gguf_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let begins = || {
        let mut start = [0; 4];
        let read = open_regular(path).and_then(|(_, mut file)| file.read_exact(&mut start));
        read.is_ok() && start == *b"GGUF"
    };
    is_gguf(name) || Path::new(name).extension().is_none() && begins()
}

pub(crate) fn is_pickled(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("bin" | "pt" | "pth" | "ckpt")) || name.ends_with(".bin.index.json")
}

/// Reads the `tokenizer_config.json` of a folder; empty if it is missing or invalid.
pub(crate) fn tokenizer_config(folder: &Path) -> Map<String, Value> {
    let bytes = read_small_file(&folder.join("tokenizer_config.json"), MAX_CONFIG_BYTES);
    bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Returns the text of a token in it: a string, or an object with its settings.
pub(crate) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Reads a whole file of at most `max` bytes.
pub(crate) fn read_small_file(path: &Path, max: u64) -> Result<Vec<u8>, ModelProblem> {
    let read = || {
        let mut bytes = Vec::new();
        open_regular(path)?.1.take(max + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| ModelProblem::reading(path, &error))?;
    if bytes.len() as u64 > max {
        return Err(ModelProblem::checkpoint(format!(
            "`{}` has more than {max} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}
