//! Character classes of the regular expressions of pre-tokenizers.

use std::sync::LazyLock;

use hashbrown::HashMap;
use regex_syntax::hir::{Class, HirKind};

/// `\p{L}`
pub(super) const LETTER: u16 = 1;
/// `\p{N}`
pub(super) const NUMBER: u16 = 1 << 1;
/// `\s`
pub(super) const BLANK: u16 = 1 << 2;
/// `[\r\n]`
pub(super) const LINE_END: u16 = 1 << 3;
/// `\p{P}`
pub(super) const PUNCTUATION: u16 = 1 << 4;
/// `\p{S}`
pub(super) const SYMBOL: u16 = 1 << 5;
/// `\p{M}`
pub(super) const MARK: u16 = 1 << 6;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: letters at the front of a word, `o200k`.
pub(super) const UPPER: u16 = 1 << 7;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: letters at its end.
pub(super) const LOWER: u16 = 1 << 8;
/// `[一-龥ࠀ-一가-\u{d7ff}]`, `DeepSeek` LLM and Coder.
pub(super) const CODER_SCRIPTS: u16 = 1 << 9;
/// `[一-龥぀-ゟ゠-ヿ]`, `DeepSeek` V3.
pub(super) const V3_SCRIPTS: u16 = 1 << 10;
/// [`char::is_numeric`], used by the step `Digits`.
pub(super) const NUMERIC: u16 = 1 << 11;

/// End of the range that contains all numeric characters. Testing every character would take most of the time.
const END_OF_NUMERIC: char = '\u{20000}';

const PATTERNS: [(&str, u16); 11] = [
    (r"\p{L}", LETTER),
    (r"\p{N}", NUMBER),
    (r"\s", BLANK),
    (r"[\r\n]", LINE_END),
    (r"\p{P}", PUNCTUATION),
    (r"\p{S}", SYMBOL),
    (r"\p{M}", MARK),
    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
    (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
    ("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]", CODER_SCRIPTS),
    ("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]", V3_SCRIPTS),
];

/// Classes of every character, in deduplicated blocks of 256. About 150 KiB.
pub(super) struct Classes {
    block_of: Box<[u16]>,
    blocks: Box<[[u16; 256]]>,
    /// First block, for a direct look-up.
    ascii: [u16; 128],
}

/// The classes, computed at first use in some milliseconds.
pub(super) static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::new);

impl Classes {
    fn new() -> Self {
        let mut all = vec![0_u16; char::MAX as usize + 1];
        for (pattern, class) in PATTERNS {
            let parsed = regex_syntax::parse(pattern).expect("these patterns are valid");
            let HirKind::Class(Class::Unicode(ranges)) = parsed.kind() else {
                unreachable!("these patterns are classes")
            };
            for range in ranges.ranges() {
                for classes in &mut all[range.start() as usize..=range.end() as usize] {
                    *classes |= class;
                }
            }
        }
        for letter in ('\0'..END_OF_NUMERIC).filter(|letter| letter.is_numeric()) {
            all[letter as usize] |= NUMERIC;
        }
        let (mut blocks, mut numbers) = (Vec::new(), HashMap::new());
        let block_of = all.chunks_exact(256).map(|block| {
            let block: [u16; 256] = block.try_into().expect("chunks have 256 characters");
            *numbers.entry(block).or_insert_with(|| {
                blocks.push(block);
                blocks.len() as u16 - 1
            })
        });
        let block_of = block_of.collect();
        let ascii = std::array::from_fn(|code| all[code]);
        Self { block_of, blocks: blocks.into(), ascii }
    }

    /// Returns the classes of the character that begins at byte `at` of a UTF-8 text, and its length in bytes.
    #[inline]
    pub(super) fn class_at(&self, text: &[u8], at: usize) -> (u16, usize) {
        count_read();
        let first = text[at];
        if first < 0x80 {
            return (self.ascii[usize::from(first)], 1);
        }
        let (code, length) = decode(text, at);
        (self.blocks[usize::from(self.block_of[code >> 8])][code & 0xFF], length)
    }
}

/// Returns the code point at byte `at`, and its length in bytes.
#[inline]
pub(super) fn decode(text: &[u8], at: usize) -> (usize, usize) {
    let first = usize::from(text[at]);
    let bits = |behind: usize| usize::from(text[at + behind] & 0x3F);
    match first {
        0..0x80 => (first, 1),
        0x80..0xE0 => ((first & 0x1F) << 6 | bits(1), 2),
        0xE0..0xF0 => ((first & 0x0F) << 12 | bits(1) << 6 | bits(2), 3),
        _ => ((first & 0x07) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3), 4),
    }
}

/// Counts a read of a character or a block, in tests.
#[inline]
pub(super) fn count_read() {
    #[cfg(test)]
    READS.set(READS.get() + 1);
}

#[cfg(test)]
thread_local! {
    /// Number of characters and blocks that scanners of this thread have read.
    pub(super) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_decodes_to_itself() {
        for letter in '\0'..=char::MAX {
            let text = letter.to_string();
            assert_eq!(decode(text.as_bytes(), 0), (letter as usize, text.len()));
        }
    }

    #[test]
    fn no_numeric_character_is_left_out() {
        assert!(!(END_OF_NUMERIC..=char::MAX).any(char::is_numeric));
    }
}
