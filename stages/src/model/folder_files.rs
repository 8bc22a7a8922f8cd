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

/// Reads the `tokenizer_config.json` of a folder; empty if it is missing.
pub(crate) fn tokenizer_config(folder: &Path) -> Result<Map<String, Value>, ModelProblem> {
    let path = folder.join("tokenizer_config.json");
    if fs::symlink_metadata(&path).is_err() {
        return Ok(Map::new());
    }
    json_object(&path, &read_small_file(&path, MAX_CONFIG_BYTES)?)
}

/// Parses a JSON object, in which `NaN` and `Infinity` become strings.
pub(super) fn json_object(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>, ModelProblem> {
    serde_json::from_slice(bytes).or_else(|error| {
        serde_json::from_slice(&with_quoted_numbers(bytes)).map_err(|_| {
            let what = format!("a JSON object: {error}");
            ModelProblem::invalid(&path.display().to_string(), "a JSON object", bytes, &what)
        })
    })
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

/// Replaces `NaN` and `Infinity`, which Python writes although JSON does not allow them, by strings. An unused key may
/// hold one; a key that requires a number is refused.
fn with_quoted_numbers(json: &[u8]) -> Vec<u8> {
    let (mut quoted, mut rest) = (Vec::with_capacity(json.len() + 64), json);
    while let [first, ..] = rest {
        let number = ["NaN", "Infinity", "-Infinity"]
            .into_iter()
            .find(|number| rest.starts_with(number.as_bytes()));
        let length = match (number, first) {
            (Some(number), _) => number.len(),
            (None, b'"') => string_length(rest),
            (None, _) => 1,
        };
        let (token, after) = rest.split_at(length);
        let quotes: &[u8] = if number.is_some() { b"\"" } else { b"" };
        quoted.extend([quotes, token, quotes].concat());
        rest = after;
    }
    quoted
}

/// Returns the length in bytes of the JSON string at the start of a text, including quotes.
fn string_length(text: &[u8]) -> usize {
    let mut is_escaped = true;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 1)
}
