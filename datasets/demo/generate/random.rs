//! A small generator of random numbers, so that the corpus depends on no other crate's.

/// `SplitMix64` (Steele, Lea, Flood 2014): 64 bits of state, the same sequence on every machine.
pub(crate) struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is above 0. The bias of the multiplication is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Whether an event of `percent` in a hundred happens.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of the items, each as likely as the next.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One of the items, the first ones more often: the smaller of two draws.
    pub(crate) fn pick_early<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let first = self.below(items.len());
        &items[first.min(self.below(items.len()))]
    }

    /// Puts the items into a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` of the items in random order; all of them when there are fewer.
    pub(crate) fn sample<T: Clone>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let mut items = items.to_vec();
        self.shuffle(&mut items);
        items.truncate(count);
        items
    }
}
