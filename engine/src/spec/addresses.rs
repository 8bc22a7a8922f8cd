//! Which settings may be addresses (`hf://…`, `s3://…`) and which are paths of this machine.

use super::node::Node;
use super::rules::stage;
use super::source::Problems;
use crate::diagnostic::quoted;

const EVERYWHERE: [&str; 6] = ["s3", "gs", "az", "http", "https", "hf"];

/// Settings, the schemes of their addresses, and what to do where others are written.
const SETTINGS: [(&str, &str, &[&str], &str); 7] = [
    (
        "input",
        "path",
        &EVERYWHERE,
        "input is read from s3://, gs://, az://, http://, https:// and hf://datasets/",
    ),
    ("input", "since", &[], "copy that run directory to this machine"),
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
    ("score", "calibration", &[], "copy that file to this machine"),
    (
        "output",
        "path",
        &[],
        "write to a folder, and copy it when the run is done: `aws s3 sync`, `rclone copy`",
    ),
];

/// Notes addresses where there can be none.
pub(crate) fn check(root: &Node, problems: &mut Problems) {
    for (section, key, schemes, hint) in SETTINGS {
        let place = match section {
            "input" | "output" => root.get(section),
            _ => root.get("stages").and_then(|stages| stage(stages, section)),
        };
        let Some(node) = place.and_then(|place| place.get(key)) else { continue };
        let Some((scheme, _)) = node.as_str().and_then(|text| text.split_once("://")) else {
            continue;
        };
        if schemes.contains(&scheme) {
            continue;
        }
        let message =
            format!("`{key}` cannot be the address {}", quoted(node.as_str().unwrap_or("")));
        problems.error(node.span, message).hint(hint);
    }
}
