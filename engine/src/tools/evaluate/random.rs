//! Random numbers of an evaluation: reproducible to the bit on every machine and in every version.
//!
//! `SplitMix64` (Steele, Lea and Flood, 2014), seeded by the hashes of `base/random.rs`.

use crate::base::random::mix;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// Creates the stream of a [`key`].
    pub(crate) fn new(key: u64) -> Self {
        Self { state: key }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Returns a number below `n`: the high half of the product, with a bias below n / 2^64.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Returns the numbers below `n` in a random order: sorted by (i-th draw, i).
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut drawn: Vec<(u64, usize)> = (0..n).map(|index| (self.next(), index)).collect();
        drawn.sort_unstable();
        drawn.into_iter().map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::key;

    #[test]
    fn numbers_match_known_values() {
        let mut rng = Rng::new(key(1, &["document", "a"]));
        assert_eq!([rng.next(), rng.next()], [0x1869_BB45_F723_E494, 0xC8B9_1EEE_5E17_9B38]);
        assert_eq!(Rng::new(7).permutation(8), [1, 5, 7, 0, 4, 6, 3, 2]);
        let mut rng = Rng::new(7);
        assert_eq!([(); 5].map(|()| rng.below(1000)), [389, 16, 900, 582, 452]);
    }
}
