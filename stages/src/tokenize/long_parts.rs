//! Merging of long parts that cannot be split further (a megabyte of one letter, of blanks, of joined emoji) in
//! overlapping chunks: the same tokens in linear time and constant memory.
//!
//! Byte-pair merging repeatedly joins the neighbours whose merge has the lowest rank, the leftmost of equals. Two
//! laws follow:
//!
//! 1. Any run of neighbouring tokens of a result is the result for its own text: the merges within the run were the next
//!    at every step, since none reached across its ends.
//! 2. Tokens are the result for their text if every two neighbours are the result for theirs: the first merge across a
//!    boundary would also be the first across it in the text of the two tokens around it.
//!
//! So if two overlapping chunks share a token at the same position, the result for both is: the tokens of the first
//! chunk before it, then those of the second chunk from it on. The two tokens around the seam are neighbours in the
//! first chunk.

use std::ops::Range;

use tokenizers::Model;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::bpe_model::BpeModel;
use super::library::Library;
use super::memo::PartToken;
use super::parts::{Parts, Recipe};
use super::patterns::PreTokenizerStep;
use super::problem::EncodeRefusal;

/// Bytes of a chunk. A part of at most two chunks is encoded whole.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a chunk that the next one encodes again.
const OVERLAP_BYTES: usize = 8 << 10;

/// Chunked merging of a tokenizer's long parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongParts {
    /// Whether the model merges bytes, each written as a character.
    is_byte_level: bool,
    /// [`CHUNK_BYTES`]; tests choose others.
    pub(super) chunk: usize,
    /// [`OVERLAP_BYTES`].
    pub(super) overlap: usize,
}

impl LongParts {
    /// Returns `None` if tokens depend on more than merges, or if some text has no tokens.
    pub(super) fn new(model: &BpeModel<'_>, recipe: &Recipe) -> Option<Self> {
        if model.has_affixes() {
            return None;
        }
        let is_byte_level = match &recipe.parts {
            Parts::Pieces(_) if merges_bytes(&recipe.part.pre_tokenizer) => true,
            Parts::Unmerged(pairs) if pairs.knows_every_character() => false,
            _ => return None,
        };
        let vocabulary = &model.vocab;
        let has = |byte: u8| {
            vocabulary.contains_key(byte_character(byte).encode_utf8(&mut [0; 4]) as &str)
        };
        // A token that skips the merges, by `ignore_merges`, is shorter than any chunk.
        let longest = vocabulary.keys().map(|token| token.len()).max()?;
        let mut ids: Vec<u32> = vocabulary.values().copied().collect();
        ids.sort_unstable();
        let (chunk, overlap) = (CHUNK_BYTES, OVERLAP_BYTES);
        let usable = longest < overlap
            && ids.windows(2).all(|pair| pair[0] != pair[1])
            && (!is_byte_level || (0..=u8::MAX).filter(|byte| may_be_text(*byte)).all(has));
        usable.then_some(Self { is_byte_level, chunk, overlap })
    }

    pub(super) fn is_long(&self, part: &str) -> bool {
        part.len() > 2 * self.chunk
    }

    /// Encodes a part. `encode`: tokens of a chunk, from its byte 0 on, for a model of characters.
    pub(super) fn encode(
        &self,
        library: &Library,
        part: &str,
        encode: impl Fn(Range<usize>) -> Result<Vec<PartToken>, EncodeRefusal>,
    ) -> Result<Vec<PartToken>, EncodeRefusal> {
        if !self.is_byte_level {
            return self.join_chunks(part.len(), |at| part.ceil_char_boundary(at), encode);
        }
        let encode_bytes = |range: Range<usize>| bytes_tokens(library, &part.as_bytes()[range]);
        let mut tokens = self.join_chunks(part.len(), |at| at, encode_bytes)?;
        for (_, end) in &mut tokens {
            *end = part.ceil_char_boundary(*end as usize) as u32;
        }
        Ok(tokens)
    }

    /// Merges a part chunk by chunk. `encode` returns the tokens of a chunk with their ends in bytes of the chunk.
    pub(super) fn merge(
        &self,
        part: &str,
        encode: impl Fn(Range<usize>) -> Vec<PartToken>,
    ) -> Vec<PartToken> {
        let boundary = |at| if self.is_byte_level { at } else { part.ceil_char_boundary(at) };
        let tokens = self.join_chunks(part.len(), boundary, |range| Ok(encode(range)));
        tokens.expect("chunks are encoded without errors")
    }

    /// Encodes chunk after chunk. `boundary`: first position at or after a byte at which a chunk may end.
    fn join_chunks(
        &self,
        length: usize,
        boundary: impl Fn(usize) -> usize,
        encode: impl Fn(Range<usize>) -> Result<Vec<PartToken>, EncodeRefusal>,
    ) -> Result<Vec<PartToken>, EncodeRefusal> {
        let (mut answer, mut bytes) = (Vec::new(), self.chunk);
        let mut chunk = Chunk::new(0, boundary(bytes.min(length)), &encode)?;
        while chunk.end < length {
            let next = match chunk.last_seam_before(chunk.end.saturating_sub(self.overlap)) {
                Some(start) => {
                    let end = boundary((start + bytes).min(length));
                    Some(Chunk::new(start, end, &encode)?)
                }
                None => None,
            };
            match next.and_then(|next| Some((chunk.shared_token(&next)?, next))) {
                Some(((before, from), next)) if next.end > chunk.end => {
                    answer.extend(chunk.tokens.drain(..before));
                    chunk = next;
                    chunk.drop_before(from);
                    bytes = self.chunk;
                }
                // No token in common: double the overlap.
                _ => {
                    bytes *= 2;
                    let end = boundary((chunk.start + bytes).min(length));
                    chunk = Chunk::new(chunk.start, end, &encode)?;
                }
            }
        }
        answer.extend(chunk.tokens);
        Ok(answer)
    }
}

/// Chunk of a part and its tokens, with their ends in bytes of the part.
struct Chunk {
    start: usize,
    end: usize,
    tokens: Vec<PartToken>,
}

impl Chunk {
    fn new(
        start: usize,
        end: usize,
        encode: impl Fn(Range<usize>) -> Result<Vec<PartToken>, EncodeRefusal>,
    ) -> Result<Self, EncodeRefusal> {
        let mut tokens = encode(start..end)?;
        for (_, token_end) in &mut tokens {
            *token_end += start as u32;
        }
        Ok(Self { start, end, tokens })
    }

    /// Returns the last boundary between two tokens before byte `max`; `None` at the chunk's start. Tokens that end
    /// inside a character have the end of the character, so a boundary exists only where ends differ.
    fn last_seam_before(&self, max: usize) -> Option<usize> {
        let before = self.tokens.partition_point(|(_, end)| *end as usize <= max);
        let seam = self.tokens[..before].last()?.1;
        // All tokens of the character at the seam are before it.
        (self.start < seam as usize).then_some(seam as usize)
    }

    /// Returns the first token that both chunks have, as an index into each.
    fn shared_token(&self, next: &Self) -> Option<(usize, usize)> {
        let own = self.tokens.partition_point(|(_, end)| *end as usize <= next.start);
        let (mut one, mut other) = (own, 0);
        while one < self.tokens.len() && other < next.tokens.len() {
            let starts = (self.token_start(one), next.token_start(other));
            if starts.0 == starts.1 && self.tokens[one] == next.tokens[other] {
                return Some((one, other));
            }
            if starts.0 <= starts.1 { one += 1 } else { other += 1 }
        }
        None
    }

    fn token_start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(self.start, |before| self.tokens[before].1 as usize)
    }

    fn drop_before(&mut self, from: usize) {
        self.start = self.token_start(from);
        self.tokens.drain(..from);
    }
}

/// Encodes bytes; returns the tokens with their ends in bytes.
fn bytes_tokens(library: &Library, bytes: &[u8]) -> Result<Vec<PartToken>, EncodeRefusal> {
    let written: String = bytes.iter().map(|byte| byte_character(*byte)).collect();
    let tokens = library.model()?.tokenize(&written)?;
    let mut end = 0;
    let token = |token: tokenizers::Token| {
        end += written[token.offsets.0..token.offsets.1].chars().count() as u32;
        (token.id, end)
    };
    Ok(tokens.into_iter().map(token).collect())
}

/// Returns whether the steps only write bytes as characters.
fn merges_bytes(steps: &[PreTokenizerStep]) -> bool {
    matches!(steps, [PreTokenizerStep::Crate(PreTokenizerWrapper::ByteLevel(bytes))]
        if !bytes.use_regex && !bytes.add_prefix_space)
}

/// Returns whether a byte occurs in UTF-8.
fn may_be_text(byte: u8) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..)
}

/// Returns the character that byte-level tokenizers write for a byte (`openai/gpt-2`, `src/encoder.py`).
pub(super) fn byte_character(byte: u8) -> char {
    let code = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
        0..=b' ' => 256 + u32::from(byte),
        0x7F..=0xA0 => 256 + 33 + u32::from(byte - 0x7F),
        0xAD => 256 + 67,
    };
    char::from_u32(code).expect("these codes are letters")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn every_byte_has_the_crates_character() {
        let characters: BTreeSet<char> = (0..=u8::MAX).map(byte_character).collect();
        assert_eq!(characters, ByteLevel::alphabet().into_iter().collect());
        assert_eq!([b'\n', b' ', 0x7F, 0xA0, 0xAD].map(byte_character), ['Ċ', 'Ġ', 'ġ', 'ł', 'Ń']);
    }

    /// Merges that depend on all preceding text: pairs from the left.
    fn pairs_of_two(range: &Range<usize>) -> Vec<PartToken> {
        let ends = (0..range.len()).step_by(2).map(|at| (at + 2).min(range.len()));
        ends.map(|end| (7, end as u32)).collect()
    }

    #[test]
    fn chunks_join_at_a_common_token() {
        let long = LongParts { is_byte_level: false, chunk: 10, overlap: 4 };
        for length in 1..100 {
            let tokens =
                long.join_chunks(length, |at| at, |range| Ok(pairs_of_two(&range))).unwrap();
            assert_eq!(tokens, pairs_of_two(&(0..length)), "{length}");
        }
    }

    #[test]
    fn chunks_without_a_common_token_are_encoded_as_a_whole() {
        let long = LongParts { is_byte_level: false, chunk: 10, overlap: 4 };
        // The ids encode the start of the chunk.
        let encode = |range: Range<usize>| {
            let id = range.start as u32;
            Ok((1..=range.len() as u32).map(|end| (id, end)).collect())
        };
        let tokens = long.join_chunks(95, |at| at, encode).unwrap();
        assert_eq!(tokens, (1..=95).map(|end| (0, end)).collect::<Vec<_>>());
    }
}
