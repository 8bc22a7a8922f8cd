//! Finds recurrence in a window: the distance of each trigram, and copied tokens.
//!
//! Two exact passes over the ids: hashes select candidates, then ids are compared. The first finds the last earlier
//! occurrence of every trigram. An 8-gram can only have an earlier occurrence if six consecutive trigrams have one, and
//! a later occurrence if the six have a later one, so the second pass looks at few 8-grams in text that does not
//! repeat. If all six have the same distance, the 8-gram has it as well, so no look-up is needed.

use super::bits::{self, WORD, clear};
use super::tallies::{COPIED_GRAM, IdCounter, Periods, RepeatedTokens};
use crate::simd_op::{SimdOp, run};
#[cfg(test)]
use crate::transpose::FourRows;
use crate::transpose::Transpose;

/// Tokens of a gram whose distance is looked up.
const TRIGRAM: usize = 3;
/// Trigrams in an 8-gram.
const TRIGRAMS: usize = COPIED_GRAM + 1 - TRIGRAM;

/// Odd multipliers of the hash function.
const MULTIPLIERS: [u32; TRIGRAM] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];

/// Slots per token of a window of `tokens` tokens. More slots cause fewer collisions, as long as the table fits the
/// second-level cache; that of a long window does not in any case.
const fn slots_per_token(tokens: usize) -> usize {
    match tokens {
        0..=16_384 => 8,
        16_385..=65_536 => 4,
        _ => 2,
    }
}

/// Results of the last scan, and memory that is reused for the next one.
///
/// About 50 to 86 bytes per token for windows up to 16,384 tokens, 34 to 54 up to 65,536, 26 to 38 for longer ones.
/// Counts over the whole window take 16 more.
#[derive(Debug, Default)]
pub struct RecurrenceScan {
    /// Distance from the end of a trigram to the end of its last earlier occurrence, 0 if it does not recur. Padded to
    /// whole words.
    distances: Vec<u32>,
    /// Hashes of the trigrams, at their last tokens. Padded to whole words.
    hashes: Vec<u32>,
    /// One bit per token: whether its distance is above 0.
    recurring: Vec<u64>,
    /// One bit per token: whether its distance is above 0 and equals that of the previous token.
    repeating: Vec<u64>,
    /// 1 if the trigram occurs again later. Padded to whole words.
    recurs_later: Vec<u8>,
    /// One bit per token: whether it is copied.
    copied: Vec<u64>,
    /// Open addressing: last start of the slot's trigram, counted from 1; 0 is an empty slot.
    pub(super) slots: Vec<u32>,
    /// Last end of an 8-gram by hash; 0 if none has occurred.
    heads: Vec<u32>,
    /// Previous end with the same hash, by end.
    pub(super) chains: Vec<u32>,
    tokens: usize,
    /// Trigrams by distance; for a whole window only.
    pub(super) periods: Periods,
    /// Tokens in repeated passages; for a whole window only.
    pub(super) repeated: u64,
    /// Counts of the ids; for a whole window only.
    pub(super) ids: IdCounter,
}

impl RecurrenceScan {
    /// Scans a window. A recurring 8-gram at `copy_distance` or more is a copy; copied tokens are known from
    /// `copies_from` on.
    pub fn window(&mut self, ids: &[u32], copy_distance: usize, copies_from: usize) {
        assert_length(ids);
        run(ScanPass::<false> { scan: self, ids, copy_distance, copies_from });
    }

    /// Like [`Self::window`], with the copies of all tokens and the input of [`super::WindowCounts`].
    pub(super) fn whole_window(&mut self, ids: &[u32], copy_distance: usize) {
        assert_length(ids);
        run(ScanPass::<true> { scan: self, ids, copy_distance, copies_from: 0 });
    }

    /// Like [`Self::whole_window`], without processor-specific instructions.
    #[cfg(test)]
    pub(super) fn whole_window_portable(&mut self, ids: &[u32], copy_distance: usize) {
        ScanPass::<true> { scan: self, ids, copy_distance, copies_from: 0 }.run(FourRows);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let words = [&self.distances, &self.hashes, &self.slots, &self.heads, &self.chains];
        let bits = [&self.recurring, &self.repeating, &self.copied];
        words.iter().map(|memory| 4 * memory.capacity()).sum::<usize>()
            + bits.iter().map(|memory| 8 * memory.capacity()).sum::<usize>()
            + self.recurs_later.capacity()
            + self.periods.bytes()
            + self.ids.bytes()
    }

    /// Returns the distance from the trigram that ends at each token to its last earlier occurrence, 0 if it does not
    /// recur, `[tokens]`.
    pub fn distances(&self) -> &[u32] {
        &self.distances[..self.tokens]
    }

    /// Returns [`Self::distances`] in words of 64, padded with 0.
    pub(super) fn distances_in_words(&self) -> &[[u32; WORD]] {
        self.distances.as_chunks().0
    }

    /// Returns one bit per token, in words of 64: whether its distance is above 0.
    pub(super) fn recurring(&self) -> &[u64] {
        &self.recurring
    }

    /// Returns one bit per token, in words of 64: whether its distance is above 0 and equals that of the previous
    /// token.
    pub(super) fn repeating(&self) -> &[u64] {
        &self.repeating
    }

    /// Returns one bit per token, in words of 64: whether it is in a copied 8-gram.
    pub fn copied(&self) -> &[u64] {
        &self.copied
    }

    /// Whether a token is in a copied 8-gram.
    pub fn is_copied(&self, token: usize) -> bool {
        bits::is_set(self.copied[token / WORD], token % WORD)
    }

    #[inline(always)]
    fn trigrams<const WHOLE: bool>(&mut self, ids: &[u32]) {
        let words = ids.len().div_ceil(WORD);
        clear(&mut self.distances, words * WORD);
        clear(&mut self.recurs_later, words * WORD);
        self.hashes.resize(words * WORD, 0);
        let bits = (slots_per_token(ids.len()) * ids.len()).next_power_of_two().ilog2().max(1);
        clear(&mut self.slots, 1 << bits);
        if WHOLE {
            self.periods.clear(ids.len());
        }
        let slots = &mut self.slots[..];
        let last_slot = slots.len() - 1;
        let mut begins = 0;
        let distances = self.distances.get_mut(TRIGRAM - 1..).unwrap_or_default();
        let hashes = self.hashes.get_mut(TRIGRAM - 1..).unwrap_or_default();
        let blocks = distances.chunks_mut(WORD).zip(hashes.chunks_mut(WORD));
        for (first, (distances, hashes)) in (0..).step_by(WORD).zip(blocks) {
            let grams = || ids[first..].array_windows::<TRIGRAM>();
            // Hashing a block at a time uses vectors.
            for (gram_hash, gram) in hashes.iter_mut().zip(grams()) {
                *gram_hash = hash(gram);
            }
            for ((gram_hash, gram), distance) in hashes.iter().zip(grams()).zip(distances) {
                begins += 1;
                let mut slot = (gram_hash >> (u32::BITS - bits)) as usize & last_slot;
                loop {
                    let earlier = slots[slot];
                    if earlier == 0 {
                        break;
                    }
                    let found = earlier as usize;
                    if same(&ids[found - 1..found - 1 + TRIGRAM], gram) {
                        *distance = begins - earlier;
                        if WHOLE {
                            self.periods.add(*distance);
                        }
                        self.recurs_later[found + TRIGRAM - 2] = 1;
                        break;
                    }
                    slot = (slot + 1) & last_slot;
                }
                slots[slot] = begins;
            }
        }
        self.runs();
    }

    /// Derives `recurring` and `repeating` from the distances.
    #[inline(always)]
    fn runs(&mut self) {
        self.recurring.clear();
        self.repeating.clear();
        let mut before = 0;
        for distances in self.distances.as_chunks::<WORD>().0 {
            let mut equal = [u8::from(distances[0] == before); WORD];
            for (equal, [before, own]) in equal[1..].iter_mut().zip(distances.array_windows()) {
                *equal = u8::from(before == own);
            }
            before = distances[WORD - 1];
            let recurring = bits::pack(&distances.map(|distance| u8::from(distance > 0)));
            self.recurring.push(recurring);
            self.repeating.push(bits::pack(&equal) & recurring);
        }
    }

    #[inline(always)]
    fn copies<const WHOLE: bool>(&mut self, ids: &[u32], copy_distance: usize, copies_from: usize) {
        clear(&mut self.copied, self.recurring.len());
        let bits = ids.len().next_power_of_two().ilog2().max(1);
        clear(&mut self.heads, 1 << bits);
        // These heads never lead to entries that the last window left in `chains`.
        self.chains.resize(ids.len(), 0);
        let (heads, chains) = (&mut self.heads[..], &mut self.chains[..]);
        let last_head = heads.len() - 1;
        let hashes = &self.hashes[..];
        // Three trigrams cover all tokens of an 8-gram.
        let head_of = |end: usize| {
            let trigrams: &[u32; TRIGRAMS] = ends_at(hashes, end);
            (hash(&[trigrams[5], trigrams[2], trigrams[0]]) >> (u32::BITS - bits)) as usize
                & last_head
        };
        let (mut before, mut repeating_before, mut later_before) = (0, 0, 0);
        let mut repeated = RepeatedTokens::default();
        let later = self.recurs_later.as_chunks().0.iter().map(bits::pack);
        let words = self.recurring.iter().zip(&self.repeating).zip(self.distances.as_chunks().0);
        for ((word, ((&recurring, &repeating), distances)), later) in words.enumerate().zip(later) {
            // Grams that may have an earlier occurrence, those whose distance is already known, and those that may have
            // a later occurrence.
            let candidates = bits::nth_of_run::<TRIGRAMS>(before, recurring)
                & bits::mask_from(copies_from, word);
            let known =
                candidates & bits::nth_of_run::<{ TRIGRAMS - 1 }>(repeating_before, repeating);
            let insert = bits::nth_of_run::<TRIGRAMS>(later_before, later);
            (before, repeating_before, later_before) = (recurring, repeating, later);
            let (mut copies, mut found) = (known, known);
            if known != 0 {
                copies &= bits::at_least(distances, copy_distance);
            }
            let look_up = candidates & !known;
            for bit in bits::ones(look_up | insert) {
                let end = word * WORD + bit;
                let head = &mut heads[head_of(end)];
                if bits::is_set(look_up, bit) {
                    let gram: &[u32; COPIED_GRAM] = ends_at(ids, end);
                    let mut earlier = *head as usize;
                    while earlier > 0 && !same(ends_at::<COPIED_GRAM>(ids, earlier), gram) {
                        earlier = chains[earlier] as usize;
                    }
                    let is_copy = earlier > 0 && end - earlier >= copy_distance;
                    copies |= u64::from(is_copy) << bit;
                    found |= u64::from(earlier > 0) << bit;
                }
                if bits::is_set(insert, bit) {
                    chains[end] = *head;
                    *head = end as u32;
                }
            }
            let [spread, own] = bits::extended_back::<COPIED_GRAM>(copies);
            self.copied[word] |= own;
            if let Some(before) = word.checked_sub(1) {
                self.copied[before] |= spread;
            }
            if WHOLE {
                repeated.add(found);
            }
        }
        self.repeated = repeated.finish();
    }
}

fn assert_length(ids: &[u32]) {
    assert!(u32::try_from(ids.len()).is_ok(), "windows have at most 2^24 tokens");
}

/// Scan of a window. `WHOLE`: whether for counts over the whole window.
struct ScanPass<'a, const WHOLE: bool> {
    scan: &'a mut RecurrenceScan,
    ids: &'a [u32],
    copy_distance: usize,
    copies_from: usize,
}

impl<const WHOLE: bool> SimdOp for ScanPass<'_, WHOLE> {
    type Result = ();

    #[inline(always)]
    fn run(self, _: impl Transpose) {
        let Self { scan, ids, copy_distance, copies_from } = self;
        scan.tokens = ids.len();
        scan.trigrams::<WHOLE>(ids);
        scan.copies::<WHOLE>(ids, copy_distance, copies_from);
    }
}

/// Returns the last `N` values up to index `end`.
#[inline(always)]
fn ends_at<const N: usize>(values: &[u32], end: usize) -> &[u32; N] {
    values[end + 1 - N..].first_chunk().expect("it ends in the window")
}

#[inline(always)]
fn same<const N: usize>(one: &[u32], other: &[u32; N]) -> bool {
    // Compares once at the end instead of for each id: branches on single ids would be mispredicted.
    one.iter().zip(other).map(|(one, other)| one ^ other).fold(0, |all, one| all | one) == 0
}

/// Computes a multilinear hash (Dietzfelbinger 1996); its top bits select a slot.
#[inline(always)]
fn hash(three: &[u32; TRIGRAM]) -> u32 {
    let product = |(value, multiplier): (&u32, &u32)| value.wrapping_mul(*multiplier);
    three.iter().zip(&MULTIPLIERS).map(product).fold(0, u32::wrapping_add)
}
