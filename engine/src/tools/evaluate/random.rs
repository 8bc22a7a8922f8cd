//! The random numbers of an evaluation: fixed to the bit, so that a sample and its windows are the same on every machine and
//! in every version.
//!
//! `SplitMix64` (Steele, Lea and Flood, 2014) seeded by FNV-1a: nobody's library can change them under a published figure.

/// The finaliser of `SplitMix64`.
pub(crate) fn mix(mut z: u64) -> u64 {
    z ^= z >> 30;
    z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// FNV-1a over the seed as eight bytes little-endian, then for each part the byte 0x1F and its text.
pub(crate) fn key(seed: u64, parts: &[&str]) -> u64 {
    let parts = parts.iter().flat_map(|part| [0x1F].into_iter().chain(part.bytes()));
    seed.to_le_bytes().into_iter().chain(parts).fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of a [`key`].
    pub(crate) fn new(key: u64) -> Self {
        Self { state: key }
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `n`: the high half of the product, whose bias is below n / 2^64.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// The numbers below `n` in a random order: sorted by (i-th draw, i).
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut drawn: Vec<(u64, usize)> = (0..n).map(|index| (self.next(), index)).collect();
        drawn.sort_unstable();
        drawn.into_iter().map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_known_answers() {
        let start = key(1, &["document", "a"]);
        assert_eq!(start, 0xA255_212D_D49C_C52C);
        assert_eq!(mix(start), 0x0DD7_1D32_7E82_886A);
        let mut rng = Rng::new(start);
        assert_eq!([rng.next(), rng.next()], [0x1869_BB45_F723_E494, 0xC8B9_1EEE_5E17_9B38]);
        assert_eq!(Rng::new(7).permutation(8), [1, 5, 7, 0, 4, 6, 3, 2]);
        let mut rng = Rng::new(7);
        assert_eq!([(); 5].map(|()| rng.below(1000)), [389, 16, 900, 582, 452]);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(key(1, &["ab", "c"]), key(1, &["a", "bc"]));
        assert_ne!(key(1, &["ab"]), key(256, &["ab"]));
    }
}
