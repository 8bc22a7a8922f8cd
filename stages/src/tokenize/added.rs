//! Finds the added tokens of a tokenizer (`<|endoftext|>`) in a text, as the `tokenizers` crate does: the crate's own
//! search is private and comes with a copy of the text and sixteen bytes of alignment for each of its bytes.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use regex_automata::meta::Regex;
use tokenizers::{AddedToken, Result};

/// Added tokens, searched for together.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// None where there are no tokens.
    search: Option<AhoCorasick>,
    tokens: Vec<(u32, AddedToken)>,
    /// A character that the crate calls part of a word.
    word: Regex,
    /// Whether special tokens are text like any other.
    special_as_text: bool,
}

impl AddedTokens {
    /// `tokens`: what to find, with the id and the properties of each.
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

    /// Consecutive parts that cover `text`: with an id the added tokens, with the blanks that belong to them, and
    /// without one what stands between.
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
                // Blanks that a token before has taken are gone.
                range.start = before.trim_end().len().max(covered);
            }
            if token.rstrip {
                range.end = text.len() - after.trim_start().len();
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
