//! Conversion of the tokenizer inside a GGUF file to the `tokenizer.json` of the original model. `gpt2`: merges of bytes
//! after steps that the file only names ([`Steps`]). `llama`: `SentencePiece` with scores, converted to merges as in
//! transformers' `generate_merges` (`convert_slow_tokenizer.py`).

use std::path::Path;

use hashbrown::HashMap;
use serde_json::{Map, Value, json};

use super::gguf_steps::{NAMES, Steps};
use crate::model::{GgufMetadata, tokenizer_metadata};

/// Token types (`gguf-py/gguf/constants.py`, `TokenType`).
const UNKNOWN: u8 = 2;
const CONTROL: u8 = 3;
const USER_DEFINED: u8 = 4;
const UNUSED: u8 = 5;

/// Reads the tokenizer of a file, in the format of `tokenizer.json`.
pub(super) fn tokenizer_json(path: &Path) -> Result<Vec<u8>, String> {
    let metadata = tokenizer_metadata(path)?;
    let tokens = GgufTokens::new(&metadata)?;
    let (normalizer, pre_tokenizer, model) = match metadata.text("tokenizer.ggml.model") {
        Some("gpt2") => byte_level(&metadata, &tokens)?,
        Some("llama") => sentence_piece(&metadata, &tokens)?,
        Some(kind) => {
            return Err(format!(
                "its tokenizer has the type `{kind}`; supported are `gpt2` and `llama`"
            ));
        }
        None => {
            return Err("the type of its tokenizer is missing (`tokenizer.ggml.model`)".to_owned());
        }
    };
    let form = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": tokens.added(strips_blanks(&metadata)),
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": null, "decoder": null, "model": model,
    });
    Ok(form.to_string().into_bytes())
}

/// Tokens of a file by id, with their types.
struct GgufTokens<'a> {
    texts: Vec<&'a str>,
    types: Vec<u8>,
}

impl<'a> GgufTokens<'a> {
    fn new(metadata: &'a GgufMetadata) -> Result<Self, String> {
        let texts = metadata.texts("tokenizer.ggml.tokens").unwrap_or_default();
        if texts.is_empty() {
            return Err("it has no tokens (`tokenizer.ggml.tokens`)".to_owned());
        }
        let types = match metadata.numbers("tokenizer.ggml.token_type") {
            Some(types) if types.len() == texts.len() => {
                types.into_iter().map(|number| number as u8).collect()
            }
            Some(types) => {
                return Err(format!(
                    "it has {} tokens, but {} token types",
                    texts.len(),
                    types.len()
                ));
            }
            None => vec![1; texts.len()],
        };
        let tokens = Self { texts, types };
        let mut ids = HashMap::new();
        for (id, text) in tokens.used() {
            if let Some(other) = ids.insert(text, id) {
                return Err(format!(
                    "its tokens {other} and {id} are both `{}`",
                    text.escape_debug()
                ));
            }
        }
        Ok(tokens)
    }

    /// Returns the tokens that can occur in a text, with their ids. The others pad the vocabulary.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let used = |(id, _): &(usize, &&str)| self.types[*id] != UNUSED;
        self.texts.iter().enumerate().filter(used).map(|(id, text)| (id, *text))
    }

    fn vocabulary(&self) -> Map<String, Value> {
        self.used().map(|(id, text)| (text.to_owned(), json!(id))).collect()
    }

    /// Returns the tokens that are matched verbatim. `strips`: whether a token includes the blanks after it.
    fn added(&self, strips: fn(&str) -> bool) -> Vec<Value> {
        let added = |id: &usize| [CONTROL, USER_DEFINED].contains(&self.types[*id]);
        let unknown = |id: &usize| self.types[*id] == UNKNOWN;
        let token = |id: usize| {
            let (content, special) = (self.texts[id], self.types[id] != USER_DEFINED);
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": strips(content),
                   "normalized": false, "special": special})
        };
        (0..self.texts.len()).filter(|id| added(id) || unknown(id)).map(token).collect()
    }
}

type TokenizerParts = (Value, Value, Value);

fn byte_level(metadata: &GgufMetadata, tokens: &GgufTokens<'_>) -> Result<TokenizerParts, String> {
    let Some(name) = metadata.text("tokenizer.ggml.pre") else {
        return Err("the pre-tokenizer is missing (`tokenizer.ggml.pre`)".to_owned());
    };
    let Some(steps) = Steps::from_name(name) else {
        return Err(format!("its pre-tokenizer is `{name}`; supported are: {NAMES}"));
    };
    if metadata.flag("tokenizer.ggml.add_space_prefix") == Some(true) {
        return Err("its tokenizer puts a space before texts, which is supported for `llama` only"
            .to_owned());
    }
    let merges = metadata.texts("tokenizer.ggml.merges");
    let merges = merges.ok_or("it has no merges (`tokenizer.ggml.merges`)")?;
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": steps.ignores_merges, "vocab": tokens.vocabulary(), "merges": merges,
    });
    let normalizer = if steps.composes { json!({"type": "NFC"}) } else { Value::Null };
    Ok((normalizer, steps.pre_tokenizer, model))
}

fn sentence_piece(
    metadata: &GgufMetadata,
    tokens: &GgufTokens<'_>,
) -> Result<TokenizerParts, String> {
    let scores = metadata.numbers("tokenizer.ggml.scores").unwrap_or_default();
    if scores.len() != tokens.texts.len() {
        return Err(format!("it has {} tokens, but {} scores", tokens.texts.len(), scores.len()));
    }
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizer = if metadata.flag("tokenizer.ggml.add_space_prefix") == Some(false) {
        spaces
    } else {
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        json!({"type": "Sequence", "normalizers": [prepend, spaces]})
    };
    let unknown = tokens.types.iter().position(|kind| *kind == UNKNOWN).map(|id| tokens.texts[id]);
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": tokens.vocabulary(), "merges": merges_by_score(tokens, &scores),
    });
    Ok((normalizer, Value::Null, model))
}

/// Returns every way to join two pieces to a third, by the third's descending score, then by ids.
fn merges_by_score<'a>(tokens: &GgufTokens<'a>, scores: &[f64]) -> Vec<[&'a str; 2]> {
    let ids: HashMap<&str, usize> = tokens.used().map(|(id, text)| (text, id)).collect();
    let mut merges = Vec::new();
    for (id, text) in tokens.used() {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                merges.push((-scores[id], id, *left_id, *right_id, [left, right]));
            }
        }
    }
    merges.sort_by(|one, other| {
        let ids = |merge: &(f64, usize, usize, usize, _)| (merge.1, merge.2, merge.3);
        one.0.total_cmp(&other.0).then_with(|| ids(one).cmp(&ids(other)))
    });
    merges.into_iter().map(|(.., parts)| parts).collect()
}

/// Returns which added tokens include the blanks after them: the file does not record it, and of the known models
/// only Phi-3's do.
fn strips_blanks(metadata: &GgufMetadata) -> fn(&str) -> bool {
    let text = |key| metadata.text(key).unwrap_or_default();
    if text("general.architecture") == "phi3" && text("tokenizer.ggml.model") == "llama" {
        |content| !["<unk>", "<s>", "<|endoftext|>"].contains(&content)
    } else {
        |_| false
    }
}
