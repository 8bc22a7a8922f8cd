//! Search for the added tokens of a tokenizer (`<|endoftext|>`) in a text, as in the `tokenizers` crate. The crate's
//! own search is private, copies the text and stores sixteen bytes of alignment for each of its bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use regex_automata::meta::Regex;
use tokenizers::{AddedToken, NormalizedString, Normalizer, Result, Tokenizer};

use super::patterns::NormalizerSteps;

/// Checks that no two added tokens are equal after normalization: the crate would choose one of them at random.
pub(super) fn check_distinct(tokenizer: &Tokenizer, normalizer: &NormalizerSteps) -> Result<()> {
    let added = tokenizer.get_added_tokens_decoder();
    let normalized: BTreeMap<u32, AddedToken> =
        added.into_iter().filter(|(_, token)| token.normalized).collect();
    let mut texts = BTreeMap::<String, (u32, AddedToken)>::new();
    for (id, token) in normalized {
        let mut content = NormalizedString::from(token.content.as_str());
        normalizer.watched().normalize(&mut content)?;
        let text = content.get().to_owned();
        if text.is_empty() {
            return Err(format!(
                "the added token `{}` ({id}) is empty after normalization",
                token.content
            )
            .into());
        }
        if let Some((first, other)) = texts.get(&text) {
            return Err(format!(
                "the added tokens `{}` ({first}) and `{}` ({id}) are equal after normalization, and tokenizers chooses either at \
                 random; remove one, or write `\"normalized\": false`",
                other.content, token.content
            )
            .into());
        }
        texts.insert(text, (id, token));
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct AddedTokens {
    /// `None` without tokens.
    search: Option<AhoCorasick>,
    tokens: Vec<(u32, AddedToken)>,
    /// Character that the crate considers part of a word.
    word: Regex,
    /// Whether special tokens are treated as ordinary text.
    special_as_text: bool,
}

impl AddedTokens {
    /// `tokens`: texts to find, each with its id and properties.
    pub(super) fn new(
        tokens: impl IntoIterator<Item = (String, u32, AddedToken)>,
        special_as_text: bool,
    ) -> Result<Self> {
        let (contents, tokens): (Vec<_>, Vec<_>) =
            tokens.into_iter().map(|(content, id, token)| (content, (id, token))).unzip();
        let build =
            || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
        let search = if tokens.is_empty() { None } else { Some(build()?) };
        Ok(Self { search, tokens, word: Regex::new(r"^\w$")?, special_as_text })
    }

    /// Splits `text` into consecutive parts: added tokens, with an id and the blanks that belong to them, and the
    /// text between them, without one.
    pub(super) fn split(&self, text: &str) -> Vec<(Option<u32>, Range<usize>)> {
        let (mut parts, mut covered) = (Vec::new(), 0);
        for found in self.search.iter().flat_map(|search| search.find_iter(text)) {
            let (id, token) = &self.tokens[found.pattern().as_usize()];
            let (before, after) = (&text[..found.start()], &text[found.end()..]);
            if token.special && self.special_as_text
                || token.single_word
                    && (self.is_word(before.chars().next_back())
                        || self.is_word(after.chars().next()))
            {
                continue;
            }
            let mut range = found.range();
            if token.lstrip {
                // The preceding token may have taken some of the blanks.
                range.start = before.trim_end().len().max(covered);
            }
            if token.rstrip {
                range.end = text.len() - after.trim_start().len();
            }
            // The preceding token took all of its blanks.
            if range.is_empty() {
                continue;
            }
            if covered < range.start {
                parts.push((None, covered..range.start));
            }
            covered = range.end;
            parts.push((Some(*id), range));
        }
        if covered < text.len() {
            parts.push((None, covered..text.len()));
        }
        parts
    }

    fn is_word(&self, letter: Option<char>) -> bool {
        letter.is_some_and(|letter| self.word.is_match(letter.encode_utf8(&mut [0; 4]) as &str))
    }
}
