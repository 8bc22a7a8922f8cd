//! Counters of a whole window: distances of trigrams, tokens in repeated passages, occurrences of ids.

use bytemuck::Pod;

use super::bits;

/// Tokens of a gram that counts as copied if it occurred far back.
pub(super) const COPIED_GRAM: usize = 8;
/// Consecutive 8-grams that form a repeated passage: 16 tokens.
const MIN_GRAMS: usize = 9;
/// Tokens of the shortest repeated passage.
const MIN_PASSAGE: usize = MIN_GRAMS + COPIED_GRAM - 1;
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

    /// Returns the maximum number of trigrams with the same distance. Distance 1 is ignored, because tokenizers with
    /// one token per space have it in indented code.
    #[inline(always)]
    pub(super) fn max_count(&self) -> u64 {
        u64::from(self.0.iter().skip(2).fold(0, |max, &trigrams| max.max(trigrams)))
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
        let [before, own] = bits::extended_back::<MIN_PASSAGE>(ends);
        self.tokens += u64::from((self.covered | before).count_ones());
        (self.grams, self.covered) = (grams, own);
    }

    #[inline(always)]
    pub(super) fn finish(self) -> u64 {
        self.tokens + u64::from(self.covered.count_ones())
    }
}

/// Minimum and maximum occurrences of an id whose spacing is counted.
const MIN_SPACED: usize = 2;
const MAX_SPACED: usize = 6;

/// A number of a window's tokens, as narrow as the window allows: the tables of a short window fit the first-level cache.
trait Index: Pod + PartialOrd + Into<u32> {
    fn new(value: usize) -> Self;
}

impl Index for u16 {
    #[inline(always)]
    fn new(value: usize) -> Self {
        value as Self
    }
}

impl Index for u32 {
    #[inline(always)]
    fn new(value: usize) -> Self {
        value as Self
    }
}

#[inline(always)]
fn get(index: impl Index) -> usize {
    index.into() as usize
}

/// Memory for counting the ids of a window.
#[derive(Debug, Default)]
pub(super) struct IdCounter {
    /// Occurrences of the id at its last position; 0 at the others.
    occurrences: Vec<u32>,
    /// Last positions of the ids with 2 occurrences, then of those with 3, up to 6.
    spaced: Vec<u32>,
}

/// Counts of the ids of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IdCounts {
    /// Tokens of frequent ids.
    pub(super) frequent: u64,
    /// Pairs of positions of the ids that occur 2 to 6 times.
    pub(super) pairs: u64,
    /// Pairs at a medium distance.
    pub(super) hits: u64,
}

impl IdCounter {
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of::<u32>() * (self.occurrences.capacity() + self.spaced.capacity())
    }

    /// Counts the ids of a window. `frequent`: minimum occurrences of a frequent id. `slots`, of at least two numbers per
    /// token, and `previous`, of one per token, are overwritten.
    #[inline(always)]
    pub(super) fn count(
        &mut self,
        ids: &[u32],
        frequent: usize,
        slots: &mut [u32],
        previous: &mut [u32],
    ) -> IdCounts {
        let tokens = ids.len();
        let spaced = (MIN_SPACED..=MAX_SPACED).map(|occurrences| tokens / occurrences).sum();
        if tokens < usize::from(u16::MAX) {
            resize(&mut self.occurrences, tokens.div_ceil(2));
            resize(&mut self.spaced, usize::div_ceil(spaced, 2));
            let occurrences: &mut [u16] = bytemuck::cast_slice_mut(&mut self.occurrences);
            let [slots, previous] = [slots, previous].map(bytemuck::cast_slice_mut);
            let positions = Positions { ids, slots, previous, occurrences };
            positions.count(frequent, bytemuck::cast_slice_mut(&mut self.spaced))
        } else {
            resize(&mut self.occurrences, tokens);
            resize(&mut self.spaced, spaced);
            let positions = Positions { ids, slots, previous, occurrences: &mut self.occurrences };
            positions.count(frequent, &mut self.spaced)
        }
    }
}

/// Makes room for `length` numbers, without spare capacity.
fn resize(numbers: &mut Vec<u32>, length: usize) {
    numbers.reserve_exact(length.saturating_sub(numbers.len()));
    numbers.resize(length, 0);
}

struct Positions<'a, I> {
    ids: &'a [u32],
    /// Open addressing: last position of the slot's id, counted from 1; 0 is an empty slot.
    slots: &'a mut [I],
    /// Previous position of the same id; the position itself at the first one.
    previous: &'a mut [I],
    occurrences: &'a mut [I],
}

impl<I: Index> Positions<'_, I> {
    #[inline(always)]
    fn count(mut self, frequent: usize, spaced: &mut [I]) -> IdCounts {
        self.link();
        let tokens = self.ids.len();
        let (nearest, beyond) = (tokens.div_ceil(32) as u32, tokens.div_ceil(8) as u32);
        let mut spaced = spaced;
        let lists: [&mut [I]; MAX_SPACED + 1 - MIN_SPACED] = std::array::from_fn(|list| {
            let (own, rest) =
                std::mem::take(&mut spaced).split_at_mut(tokens / (MIN_SPACED + list));
            spaced = rest;
            own
        });
        let mut lengths = [0; MAX_SPACED + 1 - MIN_SPACED];
        let mut counts = IdCounts::default();
        let [min, max, frequent] = [MIN_SPACED, MAX_SPACED, frequent].map(I::new);
        for (word, part) in self.occurrences[..tokens].chunks(bits::WORD).enumerate() {
            let mut occurrences = [I::new(0); bits::WORD];
            occurrences[..part.len()].copy_from_slice(part);
            let tokens = occurrences.map(|own| if own >= frequent { own.into() } else { 0 });
            counts.frequent += u64::from(tokens.iter().sum::<u32>());
            let is_spaced = occurrences.map(|own| u8::from((min..=max).contains(&own)));
            for bit in bits::ones(bits::pack(&is_spaced)) {
                let list = get(occurrences[bit]) - MIN_SPACED;
                lists[list][lengths[list]] = I::new(word * bits::WORD + bit);
                lengths[list] += 1;
            }
        }
        let [two, three, four, five, six] =
            std::array::from_fn(|list| &lists[list][..lengths[list]]);
        counts.hits = self.hits::<2>(two, nearest, beyond)
            + self.hits::<3>(three, nearest, beyond)
            + self.hits::<4>(four, nearest, beyond)
            + self.hits::<5>(five, nearest, beyond)
            + self.hits::<6>(six, nearest, beyond);
        let pairs = |(occurrences, ids): (usize, &usize)| occurrences * (occurrences - 1) / 2 * ids;
        counts.pairs = (MIN_SPACED..).zip(&lengths).map(pairs).sum::<usize>() as u64;
        counts
    }

    /// Links each position to the previous one of its id, and counts the occurrences of each id at its last position.
    #[inline(always)]
    fn link(&mut self) {
        let Self { ids, slots, previous, occurrences } = self;
        // A load of at most a quarter, or a half where the numbers are wide.
        let slots_per_token = if size_of::<I>() == size_of::<u16>() { 4 } else { 2 };
        let bits = (slots_per_token * ids.len()).next_power_of_two().ilog2().max(1);
        let slots = &mut slots[..1 << bits];
        slots.fill(I::new(0));
        let last_slot = slots.len() - 1;
        let previous = &mut previous[..ids.len()];
        let occurrences = &mut occurrences[..ids.len()];
        occurrences.fill(I::new(0));
        for (token, &id) in ids.iter().enumerate() {
            let mut slot = (id.wrapping_mul(MULTIPLIER) >> (u32::BITS - bits)) as usize & last_slot;
            // An empty slot leads to this token: a single comparison, which rarely fails, ends the search for both old and
            // new ids.
            let earlier = loop {
                let earlier = (slots[slot].into().wrapping_sub(1) as usize).min(token);
                if ids[earlier] == id {
                    break earlier;
                }
                slot = (slot + 1) & last_slot;
            };
            slots[slot] = I::new(token + 1);
            previous[token] = I::new(earlier);
            let own = get(occurrences[earlier]) + 1;
            occurrences[earlier] = I::new(0);
            occurrences[token] = I::new(own);
        }
    }

    /// Counts pairs of positions at a distance g with `nearest <= g < beyond`, of the ids whose last positions are
    /// `lasts`. `N`: their occurrences.
    #[inline(always)]
    fn hits<const N: usize>(&self, lasts: &[I], nearest: u32, beyond: u32) -> u64 {
        let mut hits = 0;
        for &last in lasts {
            let mut positions: [u32; N] = [last.into(); N];
            for index in 1..N {
                positions[index] = self.previous[positions[index - 1] as usize].into();
            }
            for (index, later) in positions.iter().enumerate() {
                for earlier in &positions[index + 1..] {
                    let beyond_nearest = (later - earlier).wrapping_sub(nearest);
                    hits += u64::from(beyond_nearest < beyond - nearest);
                }
            }
        }
        hits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Counts by a map from each id to its positions.
    fn expected(ids: &[u32], frequent: usize) -> IdCounts {
        let mut positions: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (position, id) in (0..).zip(ids) {
            positions.entry(*id).or_default().push(position);
        }
        let (tokens, mut counts) = (ids.len() as u64, IdCounts::default());
        for positions in positions.values() {
            let occurrences = positions.len();
            if occurrences >= frequent {
                counts.frequent += occurrences as u64;
            }
            if (2..=6).contains(&occurrences) {
                counts.pairs += (occurrences * (occurrences - 1) / 2) as u64;
                for (index, later) in positions.iter().enumerate() {
                    let is_hit = |distance: u64| 32 * distance >= tokens && 8 * distance < tokens;
                    let earlier = positions[..index].iter();
                    counts.hits +=
                        earlier.filter(|earlier| is_hit(later - *earlier)).count() as u64;
                }
            }
        }
        counts
    }

    #[test]
    fn narrow_and_wide_tables_give_the_same_counts() {
        let mut memory = IdCounter::default();
        for tokens in [0_usize, 1, 2, 63, 64, 65, 1024, 5000, 65_534, 65_535, 65_536, 70_000] {
            for spread in [1, 7, 1000, 1 << 20] {
                let id = |token: u32| token.wrapping_mul(2_654_435_761) % spread * (token % 3);
                let ids: Vec<u32> = (0..tokens as u32).map(id).collect();
                let frequent = (tokens / 128).max(2);
                let (mut slots, mut previous) = (vec![7; 4 * tokens + 2], vec![9; tokens]);
                let counts = memory.count(&ids, frequent, &mut slots, &mut previous);
                assert_eq!(counts, expected(&ids, frequent), "{tokens} tokens, {spread} ids");
            }
        }
    }
}
