//! Tokenizers for tests.

use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::SpecialTokensInText;
use super::encoder::Encoder;

/// Tokenizers of the shared folder.
pub(super) const SHARED_TOKENIZERS: [&str; 4] = ["gpt2", "qwen2.5", "phi-3-mini", "deepseek-coder"];

/// Returns the path of a file in the shared folder next to the repository.
fn shared_path(path: &str) -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    std::env::var_os("LONGSIFT_SHARED").map_or_else(default, PathBuf::from).join(path)
}

/// Reads a file of the shared folder. Tests that need one are ignored unless the cfg `longsift_shared` is set.
pub(crate) fn shared_file(path: &str) -> Vec<u8> {
    let path = shared_path(path);
    std::fs::read(&path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
}

/// Returns the concatenated beginnings of all texts of a shared corpus.
pub(super) fn shared_beginnings(corpus: &str, bytes_of_each: usize) -> String {
    let path = shared_path(&format!("corpora/{corpus}.parquet"));
    let file = std::fs::File::open(&path).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let schema = reader.metadata().file_metadata().schema();
    let column = schema.get_fields().iter().position(|field| field.name() == "text").unwrap();
    let mut texts = String::new();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let text = row.get_string(column).unwrap();
        texts.push_str(&text[..text.floor_char_boundary(bytes_of_each)]);
    }
    texts
}

/// Reads the `tokenizer.json` of a shared tokenizer.
pub(super) fn shared_tokenizer(name: &str) -> Vec<u8> {
    shared_file(&format!("tokenizers/{name}/tokenizer.json"))
}

/// Returns a tokenizer with one token per byte, one for `he`, and the special token `<s>`, modified by `change`.
pub(super) fn bytes_with(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut vocabulary: serde_json::Map<_, _> =
        alphabet.iter().enumerate().map(|(id, letter)| (letter.to_string(), json!(id))).collect();
    vocabulary.insert("he".into(), json!(256));
    let mut form = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": 257, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["h", "e"]]}
    });
    change(&mut form);
    serde_json::to_vec(&form).unwrap()
}

/// Returns the encoder of [`bytes_with`].
pub(super) fn encoder_with(change: impl FnOnce(&mut Value)) -> Encoder {
    Encoder::from_bytes(&bytes_with(change), SpecialTokensInText::Parse).unwrap()
}
