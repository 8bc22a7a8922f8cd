//! Search for the added tokens of a tokenizer (`<|endoftext|>`) in a text, as in the `tokenizers` crate. The crate's
//! own search is private, copies the text and stores sixteen bytes of alignment for each of its bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use regex_automata::meta::Regex;
use tokenizers::{AddedToken, NormalizedString, Normalizer, Result, Tokenizer};

use super::patterns::TokenizerSteps;

/// Added token: the text to find, its id and its properties.
pub(super) type Added = (String, u32, AddedToken);

/// Returns the added tokens by id, with normalized texts where the crate searches normalized text. Fails if two of these are
/// equal, so that the crate would choose one at random, or if one is empty.
pub(super) fn added_tokens(tokenizer: &Tokenizer, steps: &TokenizerSteps) -> Result<Vec<Added>> {
    let mut normalized = HashMap::<String, u32>::new();
    let added: BTreeMap<u32, AddedToken> =
        tokenizer.get_added_tokens_decoder().into_iter().collect();
    let mut tokens = Vec::new();
    for (id, token) in &added {
        let mut text = NormalizedString::from(token.content.as_str());
        if token.normalized {
            steps.watched_normalizer().normalize(&mut text)?;
            let content = &token.content;
            if text.get().is_empty() {
                let message =
                    format!("the added token `{content}` ({id}) is empty after normalization");
                return Err(message.into());
            }
            if let Some(first) = normalized.insert(text.get().to_owned(), *id) {
                return Err(format!(
                    "the added tokens `{}` ({first}) and `{content}` ({id}) are equal after normalization, and tokenizers chooses \
                     either at random; remove one, or write `\"normalized\": false`",
                    added[&first].content
                )
                .into());
            }
        }
        tokens.push((text.get().to_owned(), *id, token.clone()));
    }
    Ok(tokens)
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
    pub(super) fn new(tokens: Vec<Added>, special_as_text: bool) -> Result<Self> {
        let (contents, tokens): (Vec<_>, Vec<_>) =
            tokens.into_iter().map(|(content, id, token)| (content, (id, token))).unzip();
        let build =
            || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
        let search = if tokens.is_empty() { None } else { Some(build()?) };
        Ok(Self { search, tokens, word: Regex::new(r"^\w$")?, special_as_text })
    }

    /// Splits `text` into added tokens, with an id and the blanks that belong to them, and the text between them.
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
