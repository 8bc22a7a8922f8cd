//! Token ids of a text, with the byte at which each token ends.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedText {
    /// Token ids: `[tokens]`.
    pub ids: Vec<u32>,
    /// End of each token in the text, in bytes: `[tokens]`, ascending, each on a character boundary. Tokens that end
    /// inside a character (byte-level and byte-fallback tokens) have the end of the character, as have the tokens
    /// that complete it. Text that the normaliser drops belongs to the token after it.
    pub ends: Vec<u32>,
}

impl EncodedText {
    /// Returns the bytes of the text that belong to the tokens `token_start..token_end`, from the end of the token before on.
    /// Adjacent windows tile the text. Indices after the last token mean the end of the text, `text_len`.
    pub fn byte_range(
        &self,
        token_start: usize,
        token_end: usize,
        text_len: usize,
    ) -> Range<usize> {
        let end_of = |tokens: usize| match tokens {
            0 => 0,
            _ if tokens >= self.ends.len() => text_len,
            _ => (self.ends[tokens - 1] as usize).min(text_len),
        };
        // A range of no tokens has no bytes, also at the end of the text.
        let start = end_of(token_start);
        start..end_of(token_end).max(start)
    }

    /// Appends a token; its end is at least that of the token before.
    pub(super) fn push(&mut self, id: u32, end: u32) {
        self.ids.push(id);
        self.ends.push(end.max(self.ends.last().copied().unwrap_or(0)));
    }

    /// Appends the tokens of a part of the text. `end_of`: maps an end in the part to the whole text, monotonically.
    pub(super) fn extend(&mut self, mut part: Self, end_of: impl Fn(u32) -> u32) {
        let reached = self.ends.last().copied().unwrap_or(0);
        for end in &mut part.ends {
            *end = end_of(*end).max(reached);
        }
        if self.ids.is_empty() {
            *self = part;
        } else {
            self.ids.append(&mut part.ids);
            self.ends.append(&mut part.ends);
        }
    }
}

/// Returns the ends of `offsets`, in bytes of `text`, rounded up to the ends of characters and made ascending.
pub(super) fn character_ends(text: &str, offsets: &[(usize, usize)]) -> Vec<u32> {
    let completed = offsets.iter().scan(0, |reached, &(_, end)| {
        *reached = text.ceil_char_boundary(end).max(*reached);
        Some(*reached as u32)
    });
    completed.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::tokenize::SpecialTokensInText;
    use crate::tokenize::encoder::Encoder;
    use crate::tokenize::fixtures::{
        SHARED_TOKENIZERS, encoder_with, shared_file, shared_tokenizer,
    };

    /// Checks that windows of every length up to `longest` tile the text on character boundaries.
    fn assert_windows_tile(encoder: &Encoder, text: &str, longest: usize) {
        let encoded = encoder.encode(text, usize::MAX).unwrap();
        let tokens = encoded.ids.len();
        for window in 1..=longest {
            let ranges = (0..tokens)
                .step_by(window)
                .map(|start| encoded.byte_range(start, tokens.min(start + window), text.len()));
            // Slicing panics off a character boundary.
            let tiled: String = ranges.map(|range| &text[range]).collect();
            assert!(tokens == 0 || tiled == text, "{text:?} in windows of {window}: {tiled:?}");
        }
    }

    #[test]
    #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
    fn ids_match_the_test_vectors_and_windows_tile_them() {
        for name in SHARED_TOKENIZERS {
            let json = shared_tokenizer(name);
            let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
            let read = |kind| {
                String::from_utf8(shared_file(&format!("tokenizers/{name}/test-vectors.{kind}")))
            };
            let (texts, ids) = (read("inp").unwrap(), read("out").unwrap());
            assert_windows_tile(&encoder, &texts, 40);

            let texts: Vec<_> = texts.split("\n__ggml_vocab_test__\n").collect();
            let ids: Vec<Vec<u32>> = ids
                .lines()
                .map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect())
                .collect();
            assert!(ids.len() > 40 && texts.len() >= ids.len());
            for (text, ids) in texts.iter().zip(ids) {
                assert_eq!(encoder.encode(text, usize::MAX).unwrap().ids, ids, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn a_token_inside_a_character_ends_after_the_character() {
        let encoded = encoder_with(|_| ()).encode("h\u{e9}!", usize::MAX).unwrap();
        assert_eq!(encoded.ends, [1, 3, 3, 4]);
        assert_eq!(encoded.byte_range(0, 2, 4), 0..3);
        assert_eq!(encoded.byte_range(2, 4, 4), 3..4);
    }

    #[test]
    fn text_dropped_by_the_normaliser_belongs_to_the_next_token() {
        let encoder = encoder_with(|form| {
            let drop = json!({"type": "Replace", "pattern": {"Regex": "x+(?!y)"}, "content": ""});
            form["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": true, "strip_right": true}, drop]});
        });
        let text = "  axxb  ";
        let encoded = encoder.encode(text, usize::MAX).unwrap();
        assert_eq!((encoded.ids.len(), encoded.ends.as_slice()), (2, [3, 6].as_slice()));
        assert_eq!((encoded.byte_range(0, 1, 8), encoded.byte_range(1, 2, 8)), (0..3, 3..8));
    }

    #[test]
    fn positions_outside_the_text_mean_its_end() {
        let encoded = encoder_with(|_| ()).encode("abc", usize::MAX).unwrap();
        assert_eq!(encoded.byte_range(1, 99, 3), 1..3);
        assert_eq!(encoded.byte_range(7, 9, 3), 3..3);
        assert_eq!(encoded.byte_range(2, 1, 3), 2..2);
        assert_eq!(EncodedText::default().byte_range(0, 0, 3), 0..0);
    }

    proptest! {
        #[test]
        fn windows_tile_the_text_on_character_boundaries(text in "(\\PC|[ e\u{301}\u{1f999}\n])*", longest in 1usize..9) {
            assert_windows_tile(&encoder_with(|form| form["normalizer"] = json!({"type": "NFC"})), &text, longest);
        }
    }
}
