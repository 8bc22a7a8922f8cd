//! Counters of a whole window: distances of trigrams, tokens in repeated passages, occurrences of ids.

use super::bits;

/// Tokens of a gram that counts as a copy if it recurs from far.
pub(super) const COPIED_GRAM: usize = 8;
/// Consecutive 8-grams that form a repeated passage: 16 tokens.
const MIN_GRAMS: usize = 9;
/// Tokens of the shortest repeated passage.
const MIN_STRETCH: usize = MIN_GRAMS + COPIED_GRAM - 1;
/// Odd multiplier of an id: the top bits of the product select a slot.
const MULTIPLIER: u32 = 0x9e37_79b1;

/// Trigrams by distance.
#[derive(Debug, Default)]
pub(super) struct Periods(Vec<u32>);

impl Periods {
    #[inline(always)]
    pub(super) fn clear(&mut self, tokens: usize) {
        self.0.clear();
        self.0.reserve_exact(tokens);
        self.0.resize(tokens, 0);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of::<u32>() * self.0.capacity()
    }

    #[inline(always)]
    pub(super) fn add(&mut self, distance: u32) {
        self.0[distance as usize] += 1;
    }

    /// Maximum number of trigrams with the same distance. Distance 1 is ignored, because tokenizers with one token per
    /// space have it in indented code.
    #[inline(always)]
    pub(super) fn most(&self) -> u64 {
        u64::from(self.0.iter().skip(2).fold(0, |most, &trigrams| most.max(trigrams)))
    }
}

/// Tokens in repeated passages, counted word by word.
#[derive(Debug, Default)]
pub(super) struct RepeatedTokens {
    /// Tokens of all words except the last.
    tokens: u64,
    /// Bits of the last word: 8-grams that occur earlier, and tokens in repeated passages.
    grams: u64,
    covered: u64,
}

impl RepeatedTokens {
    /// Adds a word. `grams` has a bit for every 8-gram that ends there and occurs earlier in the window.
    #[inline(always)]
    pub(super) fn add(&mut self, grams: u64) {
        let ends = bits::nth_of_run::<MIN_GRAMS>(self.grams, grams);
        let [before, own] = bits::with_those_before::<MIN_STRETCH>(ends);
        self.tokens += u64::from((self.covered | before).count_ones());
        (self.grams, self.covered) = (grams, own);
    }

    #[inline(always)]
    pub(super) fn finish(self) -> u64 {
        self.tokens + u64::from(self.covered.count_ones())
    }
}

/// Occurrences of one id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdCount {
    id: u32,
    pub(super) occurrences: u32,
    last: u32,
}

/// Counts of the ids of a window.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Capacity for as many distinct ids as the window has tokens. The window's ids come first, by first occurrence.
    counts: Vec<IdCount>,
}

/// The ids of a window with their positions.
pub(super) struct CountedIds<'a> {
    /// Ordered by first occurrence.
    pub(super) counts: &'a [IdCount],
    /// Previous position of the same id, by position.
    previous: &'a [u32],
    /// A pair at distance g is a hit if `nearest <= g < beyond`.
    nearest: u32,
    beyond: u32,
}

impl Ids {
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of::<IdCount>() * self.counts.capacity()
    }

    /// Counts each id. `slots` and `previous` are overwritten; `previous` is as long as `ids`.
    #[inline(always)]
    pub(super) fn count<'a>(
        &'a mut self,
        ids: &[u32],
        slots: &mut Vec<u32>,
        previous: &'a mut [u32],
    ) -> CountedIds<'a> {
        let tokens = ids.len();
        if self.counts.len() < tokens {
            self.counts.reserve_exact(tokens - self.counts.len());
            self.counts.resize(tokens, IdCount::default());
        }
        let counts = &mut self.counts[..tokens];
        // Open addressing at a load of at most one half. A slot holds the number of an id counted from 1; 0 is an empty
        // slot.
        let bits = (2 * tokens).next_power_of_two().ilog2().max(1);
        bits::clear(slots, 1 << bits);
        let slots = &mut slots[..];
        let last_slot = slots.len() - 1;
        let mut different = 0;
        for ((token, &id), previous) in (0..).zip(ids).zip(&mut *previous) {
            // An empty slot leads to the next free number, which already holds this id: a single comparison, which
            // rarely fails, ends the search for both old and new ids.
            counts[different] = IdCount { id, ..IdCount::default() };
            let mut slot = (id.wrapping_mul(MULTIPLIER) >> (u32::BITS - bits)) as usize & last_slot;
            let number = loop {
                let number = (slots[slot].wrapping_sub(1) as usize).min(different);
                if counts[number].id == id {
                    break number;
                }
                slot = (slot + 1) & last_slot;
            };
            slots[slot] = number as u32 + 1;
            different += usize::from(number == different);
            let own = &mut counts[number];
            own.occurrences += 1;
            *previous = own.last;
            own.last = token;
        }
        CountedIds {
            counts: &counts[..different],
            previous,
            nearest: tokens.div_ceil(32) as u32,
            beyond: tokens.div_ceil(8) as u32,
        }
    }
}

impl CountedIds<'_> {
    /// Counts pairs of positions of an id at a medium distance. `N`: its occurrences.
    #[inline(always)]
    pub(super) fn hits<const N: usize>(&self, id: &IdCount) -> u64 {
        let mut places = [id.last; N];
        for place in 1..N {
            places[place] = self.previous[places[place - 1] as usize];
        }
        let mut hits = 0;
        for (place, later) in places.iter().enumerate() {
            for earlier in &places[place + 1..] {
                let beyond_nearest = (later - earlier).wrapping_sub(self.nearest);
                hits += u64::from(beyond_nearest < self.beyond - self.nearest);
            }
        }
        hits
    }
}
