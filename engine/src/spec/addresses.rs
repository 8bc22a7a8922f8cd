//! Which settings may be addresses (`hf://…`, `s3://…`) and which are paths of this machine.

use super::node::Node;
use super::rules::stage;
use super::source::Problems;
use crate::diagnostic::quoted;

const STORES: [&str; 5] = ["s3", "gs", "az", "http", "https"];
const HUB: [&str; 1] = ["hf"];

/// Stores that can be written to.
const WRITABLE: [&str; 3] = ["s3", "gs", "az"];

/// Settings, the schemes of their addresses, and what to do where others are written.
const SETTINGS: [(&str, &str, &[&str], &str); 7] = [
    ("input", "path", &STORES, "input is read from s3://, gs://, az://, http:// and https://"),
    ("input", "since", &WRITABLE, "run directories are in folders, s3://, gs:// or az://"),
    (
        "load-partial-model",
        "model",
        &HUB,
        "models are read from folders and from `hf://owner/name@commit`",
    ),
    ("load-partial-model", "cache_folder", &[], "the cache is mapped into memory: name a folder"),
    (
        "tokenize",
        "tokenizer",
        &HUB,
        "tokenizers are read from files and from `hf://owner/name@commit`",
    ),
    ("score", "calibration", &STORES, "copy that file to this machine"),
    ("output", "path", &WRITABLE, "output is written to folders, s3://, gs:// and az://"),
];

/// Notes addresses where there can be none.
pub(crate) fn check(root: &Node, problems: &mut Problems) {
    for (section, key, schemes, hint) in SETTINGS {
        let place = match section {
            "input" | "output" => root.get(section),
            _ => root.get("stages").and_then(|stages| stage(stages, section)),
        };
        let Some(node) = place.and_then(|place| place.get(key)) else { continue };
        let text = node.as_str().unwrap_or("");
        let Some((scheme, name)) = text.split_once("://") else { continue };
        let address = quoted(text);
        if !schemes.contains(&scheme) {
            let message = format!("`{key}` cannot be the address {address}");
            problems.error(node.span, message).hint(hint);
        } else if section == "output" && name.trim_matches('/').split_once('/').is_none() {
            let message = format!("`{key}` is a whole bucket, {address}");
            problems
                .error(node.span, message)
                .hint("name a folder in it: beside `<path>/data` there will be `<path>.run`");
        }
    }
}
