//! Reproducible random numbers.

/// `SplitMix64` (Steele, Lea and Flood 2014), with its state.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends and is used by hand")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must be far below 2⁶⁴ for a negligible bias.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns a number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number in [-1, 1).
    pub fn centred(&mut self) -> f64 {
        2.0 * self.uniform() - 1.0
    }

    /// Returns incompressible bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.flatten().take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_equal_the_reference() {
        // Expected values of Vigna's `splitmix64.c`, seed 1234567.
        let mut random = Random(1_234_567);
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(known.map(|_| random.next()), known);
    }

    #[test]
    fn numbers_are_within_their_ranges() {
        let mut random = Random(7);
        let mut seen = [0; 6];
        (0..6000).for_each(|_| seen[random.below(6) as usize] += 1);
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        let centred: Vec<f64> = (0..6000).map(|_| random.centred()).collect();
        assert!(centred.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!((centred.iter().sum::<f64>() / 6000.0).abs() < 0.03);
    }

    #[test]
    fn bytes_equal_the_numbers_in_order() {
        let mut random = Random(1_234_567);
        let bytes = random.bytes(13);
        assert_eq!(bytes.len(), 13);
        assert_eq!(bytes[..8], 6_457_827_717_110_365_317_u64.to_le_bytes());
        assert_eq!(bytes[8..], 3_203_168_211_198_807_973_u64.to_le_bytes()[..5]);
    }
}
