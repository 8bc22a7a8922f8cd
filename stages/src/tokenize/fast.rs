//! Fast path: parts from a hand-written scanner, tokens from a cache or from packed merges.
//!
//! It supports exact known shapes of normalizer, pre-tokenizer and model, and gives the ids of the `tokenizers`
//! crate, which encodes everything else.

use tokenizers::SplitDelimiterBehavior;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::bpe_model::BpeModel;
use super::classes::{CLASSES, Classes};
use super::joins::Joins;
use super::long_parts::LongParts;
use super::memo::PartToken;
use super::merges::Merges;
use super::part_cache::{self, Key, LONG_PART, MAX_IDS, MAX_SHORT, PartCache};
use super::parts::{Parts, Recipe};
use super::patterns::{
    BYTE_LEVEL_PATTERN, DEEPSEEK_CODER, DEEPSEEK_V3, O200K, PreTokenizerStep, PreTokenizerSteps,
    cl100k,
};
use super::scan::{Cl100k, DeepSeekCoder, DeepSeekV3, Gpt2, O200k, Scan, Scanner};
use super::token_bytes::byte_level_bytes;

/// Number of parts whose ends and keys are computed before the first look-up, so that reads of the cache overlap.
const BATCH: usize = 128;
/// Bytes that a scan reads at once.
const WORD: usize = 16;

/// Tokenizer of a supported shape.
#[derive(Debug)]
pub(super) struct FastPath {
    mode: SplitMode,
    merges: Merges,
    joins: Joins,
    pub(super) long_parts: LongParts,
    /// Whether a piece may be cut where no token joins its characters; false if a whole piece may be one token.
    cuts_pieces: bool,
}

/// Method of splitting a text.
#[derive(Clone, Copy, Debug)]
enum SplitMode {
    /// Into the pieces of a pre-tokenizer; tokens consist of bytes.
    Pieces(Scanner),
    /// At unjoined characters; tokens consist of characters.
    Unjoined,
}

impl FastPath {
    /// Builds the fast path of a tokenizer; an error is the reason why it is not supported.
    pub(super) fn new(
        model: Option<&BpeModel<'_>>,
        recipe: &Recipe,
        pre_tokenizer: &PreTokenizerSteps,
        long_parts: Option<LongParts>,
    ) -> Result<Self, &'static str> {
        let model = model.ok_or("its model does not merge pairs")?;
        let long_parts = long_parts.ok_or("its tokens depend on more than merges")?;
        let (mode, merges, joins) = match &recipe.parts {
            Parts::Pieces(_) => {
                let scanner = Scanner::new(pre_tokenizer).ok_or("its pre-tokenizer is unknown")?;
                (
                    SplitMode::Pieces(scanner),
                    Merges::for_bytes(model)?,
                    Joins::new(model, byte_level_bytes()),
                )
            }
            Parts::Unmerged(_) => {
                use super::patterns::NormalizerStep::Crate;
                use NormalizerWrapper::Replace;
                let replaces_blanks = match (
                    recipe.part.normalizer.0.as_slice(),
                    recipe.part.pre_tokenizer.0.as_slice(),
                ) {
                    ([Crate(Replace(replace))], []) => replace.content == "▁",
                    ([], [PreTokenizerStep::Crate(PreTokenizerWrapper::Metaspace(spaces))]) => {
                        spaces.get_replacement() == '▁'
                    }
                    _ => false,
                };
                if !replaces_blanks {
                    return Err("its normalizer does more than write blanks as `▁`");
                }
                let spelled = |token: &str| Some(token.replace('▁', " ").into_bytes());
                (SplitMode::Unjoined, Merges::for_characters(model)?, Joins::new(model, spelled))
            }
            Parts::Words => return Err("its pre-tokenizer is unknown"),
        };
        let cuts_pieces = !model.ignore_merges;
        Ok(Self { mode, merges, joins, long_parts, cuts_pieces })
    }

    /// Returns whether a text can take this path: blanks are encoded as `▁`, so a `▁` in the text would be ambiguous.
    pub(super) fn supports(&self, text: &str) -> bool {
        matches!(self.mode, SplitMode::Pieces(_)) || !text.contains('▁')
    }

    /// Appends the ids of the parts from byte `start`, a part boundary, to the first boundary at or after `stop`, and
    /// returns that boundary. Calls `joint` with the start of each part and the number of ids before it.
    pub(super) fn encode(
        &self,
        cache: &mut PartCache,
        text: &str,
        start: usize,
        stop: usize,
        ids: &mut Vec<u32>,
        joint: impl FnMut(usize, usize),
    ) -> usize {
        let work = EncodeCall { path: self, cache, text, classes: &CLASSES, joint };
        match self.mode {
            SplitMode::Pieces(Scanner::Gpt2) => work.pieces::<Gpt2>(start, stop, ids),
            SplitMode::Pieces(Scanner::Cl100k { digits: 1 }) => {
                work.pieces::<Cl100k<1>>(start, stop, ids)
            }
            SplitMode::Pieces(Scanner::Cl100k { .. }) => work.pieces::<Cl100k<3>>(start, stop, ids),
            SplitMode::Pieces(Scanner::O200k) => work.pieces::<O200k>(start, stop, ids),
            SplitMode::Pieces(Scanner::DeepSeekCoder) => {
                work.pieces::<DeepSeekCoder>(start, stop, ids)
            }
            SplitMode::Pieces(Scanner::DeepSeekV3) => work.pieces::<DeepSeekV3>(start, stop, ids),
            SplitMode::Unjoined => work.unjoined(start, stop, ids),
        }
    }

    /// Appends the ends of consecutive tokens from byte `start` of `text` on, each rounded up to the end of its last
    /// character.
    pub(super) fn add_ends(&self, text: &str, start: usize, ids: &[u32], ends: &mut Vec<u32>) {
        let mut end = start;
        ends.extend(ids.iter().map(|id| {
            end += self.merges.token_bytes(*id);
            text.ceil_char_boundary(end) as u32
        }));
    }

    /// Returns the end of the part that begins at byte `at`.
    pub(super) fn part_end(&self, text: &str, at: usize) -> usize {
        match self.mode {
            SplitMode::Pieces(_) => {
                unreachable!("only parts between unjoined characters have a first one")
            }
            SplitMode::Unjoined => self.joins.end(text.as_bytes(), at),
        }
    }

    /// Appends the ids of a part that is longer than one chunk.
    fn encode_chunks(&self, part: &str, ids: &mut Vec<u32>) {
        let encode = |range: std::ops::Range<usize>| {
            let (mut of_stretch, mut end) = (Vec::new(), 0);
            self.merges.encode(&part.as_bytes()[range], &mut of_stretch);
            let token = |id: u32| -> PartToken {
                end += self.merges.token_bytes(id) as u32;
                (id, end)
            };
            of_stretch.into_iter().map(token).collect()
        };
        ids.extend(self.long_parts.merge(part, encode).into_iter().map(|(id, _)| id));
    }
}

/// State of one call of [`FastPath::encode`].
struct EncodeCall<'a, J> {
    path: &'a FastPath,
    cache: &'a mut PartCache,
    text: &'a str,
    classes: &'a Classes,
    joint: J,
}

impl<J: FnMut(usize, usize)> EncodeCall<'_, J> {
    fn pieces<S: Scan>(mut self, start: usize, stop: usize, ids: &mut Vec<u32>) -> usize {
        let text = self.text.as_bytes();
        let (mut keys, mut starts, mut lines) = ([0; BATCH], [0; BATCH + 1], [0; BATCH]);
        let mut at = start;
        while at < stop {
            let mut batch = 0;
            while batch < BATCH && at < stop {
                starts[batch] = at;
                (at, keys[batch]) = self.next_piece::<S>(text, at);
                batch += 1;
            }
            starts[batch] = at;
            self.cache.load_lines(&keys[..batch], &mut lines);
            // Ids of the batch that `ids` lacks.
            let (mut known, mut count) = ([0; BATCH * MAX_IDS], 0);
            for ((piece, key), line) in starts[..=batch].windows(2).zip(keys).zip(lines) {
                (self.joint)(piece[0], ids.len() + count);
                if let Some(of_part) = self.cache.ids(key, line) {
                    known[count..count + MAX_IDS].copy_from_slice(of_part);
                    count += part_cache::count(of_part);
                    continue;
                }
                ids.extend_from_slice(&known[..count]);
                count = 0;
                let merges = &self.path.merges;
                let part = &text[piece[0]..piece[1]];
                if key == LONG_PART {
                    self.long_piece(piece[0]..piece[1], ids);
                } else {
                    self.cache.short(key, line, ids, |ids| merges.encode(part, ids));
                }
            }
            ids.extend_from_slice(&known[..count]);
        }
        at
    }

    /// Returns the end and the key of the piece at byte `at`.
    #[inline]
    fn next_piece<S: Scan>(&self, text: &[u8], at: usize) -> (usize, Key) {
        let Some(word) = text.get(at..at + WORD) else {
            let end = S::end(self.classes, text, at);
            return (end, part_cache::key(&text[at..end]));
        };
        let word: [u8; WORD] = word.try_into().expect("the range has sixteen bytes");
        // A word with at most one character before it, all in 15 bytes and ASCII, is found without a branch for each
        // byte.
        let letters = letters(word);
        let lead = usize::from(letters & 1 == 0);
        let length = lead + (!(letters >> lead)).trailing_zeros() as usize;
        let is_word = S::HAS_WORDS
            && length <= MAX_SHORT
            && word[length].is_ascii()
            && (lead == 0
                || letters & 2 != 0 && word[0].is_ascii() && S::leads(self.classes, word[0]));
        let end = if is_word { at + length } else { S::end(self.classes, text, at) };
        (end, part_cache::key_of_start(word, end - at))
    }

    fn long_piece(&mut self, piece: std::ops::Range<usize>, ids: &mut Vec<u32>) {
        let text = self.text.as_bytes();
        if !self.path.cuts_pieces || text[piece.clone()].is_ascii() {
            return self.long_part(piece, ids);
        }
        // Scripts without blanks: splitting pieces at unjoined characters gives shorter parts, which recur more
        // often.
        let mut at = piece.start;
        while at < piece.end {
            let end = self.path.joins.end(&text[..piece.end], at);
            self.part(at..end, ids);
            at = end;
        }
    }

    fn part(&mut self, part: std::ops::Range<usize>, ids: &mut Vec<u32>) {
        let bytes = &self.text.as_bytes()[part.clone()];
        if bytes.len() > MAX_SHORT {
            return self.long_part(part, ids);
        }
        let merges = &self.path.merges;
        let key = part_cache::key(bytes);
        let line = self.cache.line(key);
        self.cache.short(key, line, ids, |ids| merges.encode(bytes, ids));
    }

    fn long_part(&mut self, part: std::ops::Range<usize>, ids: &mut Vec<u32>) {
        let part = &self.text[part];
        if self.path.long_parts.is_long(part) {
            return self.path.encode_chunks(part, ids);
        }
        let merges = &self.path.merges;
        self.cache.long(part.as_bytes(), ids, |ids| merges.encode(part.as_bytes(), ids));
    }

    fn unjoined(mut self, start: usize, stop: usize, ids: &mut Vec<u32>) -> usize {
        let mut at = start;
        while at < stop {
            let end = self.path.joins.end(self.text.as_bytes(), at);
            (self.joint)(at, ids.len());
            self.part(at..end, ids);
            at = end;
        }
        at
    }
}

/// Returns a bit for each byte, the lowest for the first: whether it is an ASCII letter.
#[inline]
fn letters(word: [u8; WORD]) -> u32 {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGH: u64 = ONES * 0x80;
    // Addends that make `a`, and the byte after `z`, reach the highest bit.
    const TO_A: u64 = ONES * (0x80 - 0x61);
    const BEYOND_Z: u64 = ONES * (0x7F - 0x7A);
    // Gathers the lowest bits of eight bytes in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let half = |bytes: u64| {
        let lower = (bytes | (ONES * 0x20)) & !HIGH;
        // No sum reaches the next byte.
        let letters = (lower + TO_A) & !(lower + BEYOND_Z) & !bytes & HIGH;
        ((letters >> 7).wrapping_mul(GATHER) >> 56) as u32
    };
    let word = u128::from_le_bytes(word);
    half(word as u64) | half((word >> 64) as u64) << 8
}

impl Scanner {
    /// Returns the scanner of a pre-tokenizer that has exactly these patterns and writes pieces as bytes.
    pub(super) fn new(steps: &PreTokenizerSteps) -> Option<Self> {
        let has_prefix = matches!(steps.0.first(), Some(PreTokenizerStep::PrefixSpace));
        let steps = &steps.0[usize::from(has_prefix)..];
        let [steps @ .., PreTokenizerStep::Crate(PreTokenizerWrapper::ByteLevel(bytes))] = steps
        else {
            return None;
        };
        if bytes.use_regex || bytes.add_prefix_space {
            return None;
        }
        let patterns: Vec<&str> = steps
            .iter()
            .map(|step| match step {
                PreTokenizerStep::Pattern {
                    regex,
                    behavior: SplitDelimiterBehavior::Isolated,
                    invert: false,
                } => Some(regex.as_str()),
                PreTokenizerStep::Crate(PreTokenizerWrapper::Digits(digits))
                    if digits.individual_digits =>
                {
                    Some("digits")
                }
                _ => None,
            })
            .collect::<Option<_>>()?;
        match patterns.as_slice() {
            [pattern] if *pattern == BYTE_LEVEL_PATTERN => Some(Self::Gpt2),
            [pattern] if *pattern == cl100k("") => Some(Self::Cl100k { digits: 1 }),
            [pattern] if *pattern == cl100k("{1,3}") => Some(Self::Cl100k { digits: 3 }),
            [pattern] if *pattern == O200K => Some(Self::O200k),
            [steps @ .., "digits"] if *steps == DEEPSEEK_CODER => Some(Self::DeepSeekCoder),
            steps if *steps == DEEPSEEK_V3 => Some(Self::DeepSeekV3),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_found_at_every_position() {
        for byte in 0..=u8::MAX {
            for at in 0..WORD {
                let mut word = [b'!'; WORD];
                word[at] = byte;
                assert_eq!(letters(word), u32::from(byte.is_ascii_alphabetic()) << at, "{byte}");
                let others = !(1 << at) & 0xFFFF;
                let mut word = [b'z'; WORD];
                word[at] = byte;
                assert_eq!(letters(word) & others, others, "{byte}");
            }
        }
    }
}
