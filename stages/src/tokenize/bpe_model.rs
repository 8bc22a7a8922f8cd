//! Parts of a byte-pair model that the `tokenizers` crate keeps private, read from its `tokenizer.json`.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// The model of a `tokenizer.json`, without the rest.
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
#[derive(Debug)]
pub(super) enum Merge {
    Tokens(String, String),
    Text(String),
}

impl<'de> Deserialize<'de> for Merge {
    /// Decides by the type of the value, since an untagged enum would first copy each of several hundred thousand
    /// merges.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMerge;

        impl<'de> Visitor<'de> for OfMerge {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
                Ok(Merge::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<Merge, A::Error> {
                let mut next =
                    |at| tokens.next_element()?.ok_or_else(|| Error::invalid_length(at, &self));
                let merge = Merge::Tokens(next(0)?, next(1)?);
                match tokens.next_element::<String>()? {
                    Some(_) => Err(Error::invalid_length(3, &self)),
                    None => Ok(merge),
                }
            }
        }

        deserializer.deserialize_any(OfMerge)
    }
}

impl BpeModel {
    /// Reads the model; `None` for a model of another type.
    pub(super) fn from_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(|Form { model }| model)
    }

    /// Returns whether tokens inside or at the end of a word are spelled with an affix.
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
