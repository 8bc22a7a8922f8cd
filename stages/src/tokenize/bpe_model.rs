//! The parts of a byte-pair model that the `tokenizers` crate keeps private, read from its `tokenizer.json`.

use std::collections::HashMap;

use serde::Deserialize;

/// A `tokenizer.json`, its model alone.
#[derive(Deserialize)]
struct Form {
    model: BpeModel,
}

/// The `model` of a `tokenizer.json` of type `BPE`.
#[derive(Debug, Deserialize)]
pub(super) struct BpeModel {
    /// Pairs of tokens in the order of their ranks.
    pub(super) merges: Vec<Merge>,
    pub(super) vocab: HashMap<String, u32>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// The two tokens of a merge: a list, or in older files a string with one blank between them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    Tokens(String, String),
    Text(String),
}

impl BpeModel {
    /// Reads the model; `None` for a model of another type.
    pub(super) fn from_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(|Form { model }| model)
    }

    /// Whether tokens inside or at the end of a word are spelled with an affix.
    pub(super) fn has_affixes(&self) -> bool {
        let affixes = [&self.continuing_subword_prefix, &self.end_of_word_suffix];
        affixes.into_iter().flatten().any(|affix| !affix.is_empty())
    }
}

impl Merge {
    pub(super) fn tokens(&self) -> Option<(&str, &str)> {
        match self {
            Self::Tokens(left, right) => Some((left, right)),
            Self::Text(text) => text.split_once(' '),
        }
    }
}
