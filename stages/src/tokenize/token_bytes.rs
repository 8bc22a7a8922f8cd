//! Bytes of each token.

use hashbrown::HashMap;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::library::Library;
use super::long_parts::byte_character;

/// Bytes of each token of a vocabulary: joined, they restore an encoded text, with characters split over tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// End of the bytes of each id; they start at the end of the previous id.
    ends: Vec<u32>,
}

impl TokenBytes {
    /// Returns `None` if tokens do not determine their bytes: a vocabulary of words omits the spaces between them.
    pub(super) fn new(library: &Library) -> Option<Self> {
        let writes_bytes = writes_bytes(library.steps())?;
        let added = library.steps().get_added_tokens_decoder();
        let vocabulary = library.vocabulary().ok()?;
        let mut tokens: Vec<(u32, &str)> =
            vocabulary.iter().map(|(token, id)| (*id, token.as_str())).collect();
        tokens.sort_unstable();
        tokens.dedup_by_key(|(id, _)| *id);
        let byte_of_char = byte_of_char();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for (id, token) in tokens {
            // Ids without a token have no bytes.
            ends.resize(id as usize, end(&bytes)?);
            match (writes_bytes, added.get(&id)) {
                (_, Some(added)) => bytes.extend(added.content.as_bytes()),
                (true, None) => {
                    for character in token.chars() {
                        match byte_of_char.get(&character) {
                            Some(byte) => bytes.push(*byte),
                            None => bytes.extend(character.to_string().as_bytes()),
                        }
                    }
                }
                (false, None) => match byte_token(token) {
                    Some(byte) => bytes.push(byte),
                    None => bytes.extend(token.replace('▁', " ").as_bytes()),
                },
            }
            ends.push(end(&bytes)?);
        }
        Some(Self { bytes, ends })
    }

    /// Returns the bytes of a token; empty for an id without one.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }

    pub fn joined(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.bytes_of(*id)).copied().collect()
    }
}

/// Returns the end of the bytes so far. It fits in 32 bits, since vocabularies have at most 256 MiB.
fn end(bytes: &[u8]) -> Option<u32> {
    u32::try_from(bytes.len()).ok()
}

/// Returns whether tokens are written with a character for each byte, as in GPT-2, or with `▁` for a space and `<0xNN>` for
/// a byte, as `SentencePiece` writes them; `None` if in neither way.
fn writes_bytes(tokenizer: &Tokenizer) -> Option<bool> {
    let steps =
        json!(
            [tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer(), tokenizer.get_decoder(),]
        );
    let writes_bytes = mentions(&steps, &|text| text == "ByteLevel");
    let spaces = |text: &str| text == "Metaspace" || text == "ByteFallback" || text.contains('▁');
    (writes_bytes || mentions(&steps, &spaces)).then_some(writes_bytes)
}

/// Returns whether any text in a description of steps is `wanted`.
fn mentions(value: &Value, wanted: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => wanted(text),
        Value::Array(items) => items.iter().any(|item| mentions(item, wanted)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Parses a byte token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Returns a function that gives the bytes of a token written with a character per byte.
pub(super) fn byte_level_bytes() -> impl Fn(&str) -> Option<Vec<u8>> {
    let byte_of_char = byte_of_char();
    move |token| token.chars().map(|letter| byte_of_char.get(&letter).copied()).collect()
}

fn byte_of_char() -> HashMap<char, u8> {
    (0..=u8::MAX).map(|byte| (byte_character(byte), byte)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tokenize::Encoder;
    use crate::tokenize::fixtures::encoder_with;

    fn round_trip(encoder: &Encoder, text: &str) -> Vec<u8> {
        let ids = encoder.encode(text, usize::MAX).unwrap().ids;
        encoder.token_bytes().unwrap().joined(&ids)
    }

    #[test]
    fn byte_level_tokens_restore_the_text() {
        let encoder = encoder_with(|_| ());
        for text in ["hello there", "schön\n\t\u{0}", "漢字 😀\r\n", "a<s>b"] {
            assert_eq!(round_trip(&encoder, text), text.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn sentence_piece_tokens_are_spaces_and_bytes() {
        let encoder = encoder_with(|form| {
            form["pre_tokenizer"] = json!(null);
            form["normalizer"] =
                json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
            form["decoder"] = json!({"type": "ByteFallback"});
            form["model"] = json!({"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [],
                "vocab": {"<unk>": 0, "▁": 1, "a": 2, "<0x0A>": 3, "<0xC3>": 4, "<0xB6>": 5, "▁▁": 9}});
        });
        assert_eq!(round_trip(&encoder, "a a\nö"), "a a\nö".as_bytes());
        let bytes = encoder.token_bytes().unwrap();
        assert_eq!(bytes.bytes_of(9), b"  ");
        assert_eq!([bytes.bytes_of(8), bytes.bytes_of(1_000_000)], [b"", b""], "no token");
    }

    #[test]
    fn word_vocabularies_have_no_token_bytes() {
        let encoder = encoder_with(|form| {
            form["pre_tokenizer"] = json!({"type": "Whitespace"});
            form["decoder"] = json!(null);
            form["model"] =
                json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1}});
        });
        assert_eq!(encoder.token_bytes(), None);
    }
}
