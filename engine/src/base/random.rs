//! Hashes and random numbers, which are equal on every machine and in every version.
//!
//! The finaliser of `SplitMix64` (Steele, Lea and Flood, 2014) over FNV-1a, implemented here so that no library update can
//! change published numbers.

pub(crate) fn mix(mut z: u64) -> u64 {
    z ^= z >> 30;
    z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Computes FNV-1a over the seed as eight little-endian bytes, then for each part the byte 0x1F and its text.
pub(crate) fn key(seed: u64, parts: &[&str]) -> u64 {
    let parts = parts.iter().flat_map(|part| [0x1F].into_iter().chain(part.bytes()));
    seed.to_le_bytes().into_iter().chain(parts).fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

pub(crate) fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns the score of a sample with `formula: random`, in [0, 1). `sample`: the parts that identify it, such as the id of its
/// document and the index of its window.
pub(crate) fn random_score(seed: u64, sample: &[&str]) -> f64 {
    unit(mix(key(seed, &[&["random"], sample].concat())))
}

/// Stream of random numbers: `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
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

    #[test]
    fn hashes_have_known_values() {
        let start = key(1, &["document", "a"]);
        assert_eq!(start, 0xA255_212D_D49C_C52C);
        assert_eq!(mix(start), 0x0DD7_1D32_7E82_886A);
    }

    #[test]
    fn random_scores_have_known_values() {
        assert_eq!(random_score(1, &["a", "0"]).to_bits(), 0.518_477_379_214_840_3_f64.to_bits());
        assert_eq!(random_score(1, &["a"]).to_bits(), 0.861_500_186_574_210_3_f64.to_bits());
        assert_ne!(random_score(2, &["a"]).to_bits(), random_score(1, &["a"]).to_bits());
    }

    #[test]
    fn boundaries_between_parts_change_the_hash() {
        assert_ne!(key(1, &["ab", "c"]), key(1, &["a", "bc"]));
        assert_ne!(key(1, &["ab"]), key(256, &["ab"]));
    }

    #[test]
    fn every_number_is_below_one() {
        assert!(unit(u64::MAX) < 1.0 && unit(0).abs() < f64::EPSILON);
        assert!((unit(1 << 63) - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn numbers_match_known_values() {
        let mut rng = Rng::new(key(1, &["document", "a"]));
        assert_eq!([rng.next(), rng.next()], [0x1869_BB45_F723_E494, 0xC8B9_1EEE_5E17_9B38]);
        assert_eq!(Rng::new(7).permutation(8), [1, 5, 7, 0, 4, 6, 3, 2]);
        let mut rng = Rng::new(7);
        assert_eq!([(); 5].map(|()| rng.below(1000)), [389, 16, 900, 582, 452]);
    }
}
