//! Pairs of neighbouring characters that some token joins. A part may be cut between any other two, because no merge
//! reaches across (proof in [`super::pairs`]).

use super::ascii_block::BLOCK;
use super::bpe_model::BpeModel;
use super::classes::{Classes, decode};
use super::scan::Scan;

/// Bits of the set of pairs, as a power of two: 512 KiB. A hash collision loses a cut, but never changes a token.
const PAIR_BITS: u32 = 22;

#[derive(Debug)]
pub(super) struct Joins {
    /// Pairs of ASCII characters: `left << 7 | right`.
    ascii: Box<[bool]>,
    /// Bitmap of hashes of the other pairs.
    pairs: Box<[u64]>,
    /// Last byte of one and first byte of the next character, joined by a token with a part of either: `last << 8 | first`.
    partial: Box<[bool]>,
}

impl Joins {
    /// `spelled`: bytes of a token's text; `None` for a token that no text produces.
    pub(super) fn new(model: &BpeModel<'_>, spelled: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        let mut joins = Self {
            ascii: vec![false; 1 << 14].into(),
            pairs: vec![0; 1 << (PAIR_BITS - 6)].into(),
            partial: vec![false; 1 << 16].into(),
        };
        let mut merged = String::new();
        for merge in &model.merges {
            let Some((left, right)) = merge.tokens() else { continue };
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            if let Some(token) = spelled(&merged) {
                joins.add(&token);
            }
        }
        joins
    }

    fn add(&mut self, token: &[u8]) {
        let is_start = |at: usize| token[at] & 0xC0 != 0x80;
        for at in (1..token.len()).filter(|at| is_start(*at)) {
            let before = (0..at).rev().find(|at| is_start(*at));
            let whole = |start: usize, end: usize| {
                let text =
                    token.get(start..end).and_then(|bytes| std::str::from_utf8(bytes).ok())?;
                (text.chars().count() == 1).then(|| decode(token, start).0)
            };
            let length = match token[at] {
                0..0x80 => 1,
                0x80..0xE0 => 2,
                0xE0..0xF0 => 3,
                _ => 4,
            };
            match (before.and_then(|before| whole(before, at)), whole(at, at + length)) {
                (Some(left), Some(right)) if left | right < 0x80 => {
                    self.ascii[left << 7 | right] = true;
                }
                (Some(left), Some(right)) => {
                    let bit = pair_bit(left, right);
                    self.pairs[bit >> 6] |= 1 << (bit & 63);
                }
                _ => self.partial[usize::from(token[at - 1]) << 8 | usize::from(token[at])] = true,
            }
        }
    }
}

impl Scan for Joins {
    #[inline]
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64 {
        let ascii = bytes[..length].iter().position(|byte| !byte.is_ascii()).unwrap_or(length);
        let mut starts = 1;
        for (at, pair) in bytes[..ascii].windows(2).enumerate() {
            let joined = self.ascii[usize::from(pair[0]) << 7 | usize::from(pair[1])];
            starts |= u64::from(!joined) << (at + 1);
        }
        starts
    }

    /// Returns the first position after byte `at` at which `text` may be cut, or its end.
    #[inline]
    fn end(&self, _: &Classes, text: &[u8], at: usize) -> usize {
        let (mut left, length) = decode(text, at);
        let mut end = at + length;
        while end < text.len() {
            let (right, length) = decode(text, end);
            let joined = if left | right < 0x80 {
                self.ascii[left << 7 | right]
            } else {
                let bit = pair_bit(left, right);
                self.pairs[bit >> 6] >> (bit & 63) & 1 != 0
                    || self.partial[usize::from(text[end - 1]) << 8 | usize::from(text[end])]
            };
            if !joined {
                break;
            }
            (left, end) = (right, end + length);
        }
        end
    }
}

#[inline]
fn pair_bit(left: usize, right: usize) -> usize {
    let pair = (left as u64) << 21 | right as u64;
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - PAIR_BITS)) as usize
}
