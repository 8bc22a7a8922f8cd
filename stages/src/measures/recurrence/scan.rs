//! What recurs in a window: to which distance each trigram, and which tokens are copied.
//!
//! Two passes over the ids, both exact: hashes choose where to look, ids are compared. The first finds the last earlier
//! occurrence of every trigram. An 8-gram can have an earlier occurrence only where six trigrams in a row have one, and
//! can only be found again where six in a row are, so the second pass hashes few 8-grams in text that does not repeat.

use super::bits::{self, WORD};

/// Tokens of a gram that is looked up for the distance.
const TRIGRAM: usize = 3;
/// Tokens of a gram whose far recurrence is a copy: it has six trigrams, as [`bits::sixth_of_run`] counts.
const COPIED_GRAM: usize = 8;

/// Odd multipliers of a gram's ids.
const MULTIPLIERS: [u32; COPIED_GRAM] = [
    0x9e37_79b1,
    0x85eb_ca77,
    0xc2b2_ae3d,
    0x27d4_eb2f,
    0x1656_67b1,
    0xe220_a839,
    0x6e78_9e6b,
    0x06c4_5d19,
];

/// Up to this many tokens, slots are many enough that a quarter of them is used at most, beyond it a half: the table of
/// a longer window is in no cache anyway.
const TOKENS_OF_WIDE_TABLE: usize = 1 << 16;

/// Memory that is used again for the next window, and what was found in the last one.
///
/// About 30 to 50 bytes a token of windows up to 65,536 tokens, 22 to 34 of longer ones.
#[derive(Debug, Default)]
pub struct Scan {
    /// From the end of a trigram back to that of its last earlier occurrence; 0 where there is none. In whole words.
    distances: Vec<u32>,
    /// A bit per token: whether that distance is above 0.
    recurring: Vec<u64>,
    /// 1 where a later trigram is the same. In whole words.
    recurs_later: Vec<u8>,
    /// A bit per token: whether it is copied.
    copied: Vec<u64>,
    /// Open addressing: where the trigram of the slot began last, counted from 1; 0 is an empty slot.
    slots: Vec<u32>,
    /// By hash, the last position at which an 8-gram of it ended; 0 where none did.
    heads: Vec<u32>,
    /// By that position, the one before.
    chains: Vec<u32>,
    tokens: usize,
}

impl Scan {
    /// Finds what recurs in a window. `copy_distance`: from which distance on a recurring 8-gram is a copy. Copies are known
    /// of the tokens from `copies_from` on.
    pub fn window(&mut self, ids: &[u32], copy_distance: usize, copies_from: usize) {
        assert!(u32::try_from(ids.len()).is_ok(), "windows have at most 2^24 tokens");
        self.tokens = ids.len();
        self.trigrams(ids);
        self.copies(ids, copy_distance, copies_from);
    }

    /// `[tokens]`: how far back the last earlier occurrence of the trigram that ends here ends; 0 where there is none.
    pub fn distances(&self) -> &[u32] {
        &self.distances[..self.tokens]
    }

    /// A bit per token, in words of 64: whether its distance is above 0.
    pub(super) fn recurring(&self) -> &[u64] {
        &self.recurring
    }

    /// A bit per token, in words of 64: whether it lies in an 8-gram whose last earlier occurrence is far enough back.
    pub fn copied(&self) -> &[u64] {
        &self.copied
    }

    fn trigrams(&mut self, ids: &[u32]) {
        let words = ids.len().div_ceil(WORD);
        clear(&mut self.distances, words * WORD);
        clear(&mut self.recurs_later, words * WORD);
        let room = if ids.len() <= TOKENS_OF_WIDE_TABLE { 4 } else { 2 };
        let bits = (room * ids.len()).next_power_of_two().ilog2().max(1);
        clear(&mut self.slots, 1 << bits);
        let slots = &mut self.slots[..];
        let last_slot = slots.len() - 1;
        let mut begins = 0;
        // The hashes of a block are computed at once, which takes a vector of them as long as one.
        let mut homes = [0; WORD];
        let distances = self.distances.get_mut(TRIGRAM - 1..).unwrap_or_default();
        for (first, distances) in (0..).step_by(WORD).zip(distances.chunks_mut(WORD)) {
            let grams = || ids[first..].array_windows::<TRIGRAM>();
            for (home, gram) in homes.iter_mut().zip(grams()) {
                *home = hash(gram) >> (u32::BITS - bits);
            }
            for ((home, gram), distance) in homes.iter().zip(grams()).zip(distances) {
                begins += 1;
                let mut slot = *home as usize & last_slot;
                loop {
                    let earlier = slots[slot];
                    if earlier == 0 {
                        break;
                    }
                    let found = earlier as usize;
                    if same(&ids[found - 1..found - 1 + TRIGRAM], gram) {
                        *distance = begins - earlier;
                        self.recurs_later[found + TRIGRAM - 2] = 1;
                        break;
                    }
                    slot = (slot + 1) & last_slot;
                }
                slots[slot] = begins;
            }
        }
        self.recurring.clear();
        let recurs =
            |distances: &[u32; WORD]| bits::of(&distances.map(|distance| u8::from(distance > 0)));
        self.recurring.extend(self.distances.as_chunks().0.iter().map(recurs));
    }

    fn copies(&mut self, ids: &[u32], copy_distance: usize, copies_from: usize) {
        clear(&mut self.copied, self.recurring.len());
        let bits = ids.len().next_power_of_two().ilog2().max(1);
        clear(&mut self.heads, 1 << bits);
        // What the chains of the last window hold is never reached from these heads.
        self.chains.resize(ids.len(), 0);
        let (mut before, mut later_before, mut filled) = (0, 0, 0);
        let later = self.recurs_later.as_chunks().0.iter().map(bits::of);
        for ((word, &recurring), later) in self.recurring.iter().enumerate().zip(later) {
            // Bits of the grams that may have an earlier occurrence, and of those that may have a later one.
            let look_up = bits::sixth_of_run(before, recurring);
            let insert = bits::sixth_of_run(later_before, later);
            (before, later_before) = (recurring, later);
            for bit in bits::ones(look_up | insert) {
                let end = word * WORD + bit;
                let gram: &[u32; COPIED_GRAM] = gram(ids, end);
                let head = (hash(gram) >> (u32::BITS - bits)) as usize;
                if bits::is_set(look_up, bit) && end >= copies_from {
                    let mut earlier = self.heads[head] as usize;
                    while earlier > 0 && !same(self::gram::<COPIED_GRAM>(ids, earlier), gram) {
                        earlier = self.chains[earlier] as usize;
                    }
                    if earlier > 0 && end - earlier >= copy_distance {
                        let first = filled.max(end + 1 - COPIED_GRAM);
                        (first..=end).for_each(|token| bits::set(&mut self.copied, token));
                        filled = end + 1;
                    }
                }
                if bits::is_set(insert, bit) {
                    self.chains[end] = self.heads[head];
                    self.heads[head] = end as u32;
                }
            }
        }
    }
}

/// The ids of the gram that ends at `end`.
fn gram<const N: usize>(ids: &[u32], end: usize) -> &[u32; N] {
    ids[end + 1 - N..].first_chunk().expect("it ends in the window")
}

fn same<const N: usize>(one: &[u32], other: &[u32; N]) -> bool {
    // One comparison at the end instead of one for each id: which id differs cannot be predicted.
    one.iter().zip(other).map(|(one, other)| one ^ other).fold(0, |all, one| all | one) == 0
}

/// Multilinear hashing of ids (Dietzfelbinger 1996): the top bits choose a place.
fn hash<const N: usize>(gram: &[u32; N]) -> u32 {
    let product = |(id, multiplier): (&u32, &u32)| id.wrapping_mul(*multiplier);
    gram.iter().zip(&MULTIPLIERS).map(product).fold(0, u32::wrapping_add)
}

/// Zeros, `length` of them.
fn clear<T: Copy + Default>(values: &mut Vec<T>, length: usize) {
    values.clear();
    values.resize(length, T::default());
}
