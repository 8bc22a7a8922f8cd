//! Parts of a byte-pair model that the `tokenizers` crate keeps private, read from its `tokenizer.json`.

use std::borrow::{Borrow, Cow};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use hashbrown::DefaultHashBuilder;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A `tokenizer.json` whose model merges pairs. Texts are borrowed from the file where it has no escapes.
#[derive(Deserialize)]
pub(super) struct BpeTokenizer<'a> {
    #[serde(borrow)]
    pub(super) model: BpeModel<'a>,
    /// Everything but the model.
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

/// The `model` of a `tokenizer.json` of type `BPE`.
#[derive(Debug, Deserialize)]
pub(super) struct BpeModel<'a> {
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    /// Pairs of tokens in the order of their ranks.
    #[serde(borrow)]
    pub(super) merges: Vec<BpeMerge<'a>>,
    #[serde(borrow)]
    pub(super) vocab: HashMap<Text<'a>, u32, DefaultHashBuilder>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    /// Has no effect if every byte has a token; parsed so that a value of another type is an error.
    #[serde(default, rename = "fuse_unk")]
    _fuse_unk: Option<bool>,
    #[serde(default)]
    pub(super) dropout: Option<f32>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// Text of a token.
#[derive(Debug, Deserialize, PartialEq, Eq, Hash)]
pub(super) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The two tokens of a merge: a list, or in older files a string with one blank between them.
#[derive(Debug)]
pub(super) enum BpeMerge<'a> {
    Tokens(Text<'a>, Text<'a>),
    Text(Text<'a>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        self
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for BpeMerge<'a> {
    /// Decides by the type of the value: an untagged enum would copy each of several hundred thousand merges.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;

        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = BpeMerge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<BpeMerge<'de>, E> {
                Ok(BpeMerge::Text(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BpeMerge<'de>, E> {
                Ok(BpeMerge::Text(Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut tokens: A,
            ) -> Result<BpeMerge<'de>, A::Error> {
                let mut next =
                    |at| tokens.next_element()?.ok_or_else(|| Error::invalid_length(at, &self));
                let merge = BpeMerge::Tokens(next(0)?, next(1)?);
                match tokens.next_element::<Text<'_>>()? {
                    Some(_) => Err(Error::invalid_length(3, &self)),
                    None => Ok(merge),
                }
            }
        }

        deserializer.deserialize_any(MergeVisitor)
    }
}

impl<'a> BpeTokenizer<'a> {
    /// Reads a tokenizer; `None` for a model of another type.
    pub(super) fn from_json(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }
}

impl BpeModel<'_> {
    /// Returns whether tokens inside or at the end of a word are spelled with an affix.
    pub(super) fn has_affixes(&self) -> bool {
        let affixes = [&self.continuing_subword_prefix, &self.end_of_word_suffix];
        affixes.into_iter().flatten().any(|affix| !affix.is_empty())
    }
}

impl BpeMerge<'_> {
    pub(super) fn tokens(&self) -> Option<(&str, &str)> {
        match self {
            Self::Tokens(left, right) => Some((left, right)),
            Self::Text(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        }
    }
}
