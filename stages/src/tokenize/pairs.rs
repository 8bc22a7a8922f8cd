//! Boundaries that byte-pair merges cannot cross, in a tokenizer that merges whole texts (`SentencePiece` models): no merge
//! produces a token that contains the two characters around the boundary side by side, so the merges on each side are
//! independent of the other side.

use hashbrown::HashSet;

use super::bpe_model::{BpeModel, Text};

/// Pairs of characters that a merge may join.
#[derive(Debug)]
pub(super) struct MergedPairs {
    pairs: HashSet<(char, char)>,
    /// Characters before which a boundary is possible; `None` for any, if every character has tokens.
    known: Option<HashSet<char>>,
    /// Characters that the tokenizer replaces before it merges.
    replaced: Vec<(char, char)>,
}

impl MergedPairs {
    /// Collects the pairs of a model; `None` if joins depend on more than merges. `replaced`: before merging, one to one.
    pub(super) fn new(model: &BpeModel<'_>, replaced: Vec<(char, char)>) -> Option<Self> {
        if model.ignore_merges || model.has_affixes() {
            return None;
        }
        // A token that does not stand for its own characters must not take part in a merge.
        let byte_tokens: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
        let stands_for_more = |part: &str| {
            model.unk_token.as_deref() == Some(part)
                || model.byte_fallback && byte_tokens.iter().any(|token| token == part)
        };
        let mut pairs = HashSet::new();
        for merge in &model.merges {
            let (left, right) = merge.tokens()?;
            if (left.starts_with('<') || right.starts_with('<'))
                && (stands_for_more(left) || stands_for_more(right))
            {
                return None;
            }
            let letters: Vec<char> = left.chars().chain(right.chars()).collect();
            pairs.extend(letters.windows(2).map(|pair| (pair[0], pair[1])));
        }
        // Unknown characters may be one token together; such a token ends where a known character follows.
        let every_byte = model.byte_fallback
            && byte_tokens.iter().all(|token| model.vocab.contains_key(token.as_str()));
        // Without a token for them, unknown characters are dropped, and their neighbours are merged.
        if !every_byte && model.unk_token.is_none() {
            return None;
        }
        let known = || {
            let single = |token: &Text<'_>| {
                let mut letters = token.chars();
                letters.next().filter(|_| letters.next().is_none())
            };
            model.vocab.keys().filter_map(single).collect()
        };
        Some(Self { pairs, known: (!every_byte).then(known), replaced })
    }

    /// Returns whether every character has tokens, at least those of its bytes.
    pub(super) fn knows_every_character(&self) -> bool {
        self.known.is_none()
    }

    /// Returns whether the text on each side of the boundary between these two characters may be encoded separately.
    pub(super) fn may_part(&self, left: char, right: char) -> bool {
        let replaced = |letter| {
            self.replaced
                .iter()
                .fold(letter, |now, (from, to)| if now == *from { *to } else { now })
        };
        let (left, right) = (replaced(left), replaced(right));
        !self.pairs.contains(&(left, right))
            && self.known.as_ref().is_none_or(|known| known.contains(&right))
    }
}
