//! Which settings may be addresses (`hf://…`, `s3://…`) and which are paths of this machine.

use super::node::Node;
use super::rules::stage;
use super::source::Problems;
use crate::diagnostic::quoted;

const EVERYWHERE: [&str; 6] = ["s3", "gs", "az", "http", "https", "hf"];

/// Where single files are.
const STORED: [&str; 5] = ["s3", "gs", "az", "http", "https"];

/// Stores that can be written to.
const WRITABLE: [&str; 3] = ["s3", "gs", "az"];

/// Settings, the schemes of their addresses, and what to do where others are written.
const SETTINGS: [(&str, &str, &[&str], &str); 7] = [
    (
        "input",
        "path",
        &EVERYWHERE,
        "input is read from s3://, gs://, az://, http://, https:// and hf://datasets/",
    ),
    ("input", "since", &WRITABLE, "run directories are in folders, s3://, gs:// or az://"),
    (
        "load-partial-model",
        "model",
        &EVERYWHERE,
        "models are read from folders, `hf://owner/name@commit`, s3://, gs://, az://, http:// and https://",
    ),
    ("load-partial-model", "cache_folder", &[], "the cache is mapped into memory: name a folder"),
    (
        "tokenize",
        "tokenizer",
        &EVERYWHERE,
        "tokenizers are read from files, `hf://owner/name@commit`, s3://, gs://, az://, http:// and https://",
    ),
    ("score", "calibration", &STORED, "copy that file to this machine"),
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
