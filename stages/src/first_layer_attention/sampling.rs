//! Random sampling of rows, and the standard errors of sums over them.
//!
//! Rows are stratified by position, two per stratum: the far mass of a row depends on its position, and a pair inside
//! a stratum estimates the variance there (paired strata; Cochran, Sampling Techniques, chapter 5A). Keys are never
//! sampled: attention to single keys is heavy-tailed, the far mass of a row is not.

use longsift_kernels::RowSample;
use sha2::{Digest, Sha256};

/// Rows of one window, drawn without replacement.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledRows {
    /// Positions, ascending: two of each stratum, in the order of the strata.
    pub positions: Vec<usize>,
    /// Number of rows in each stratum: `[positions / 2]`.
    pub strata: Vec<usize>,
}

impl SampledRows {
    /// Draws `per_window` rows (rounded up to pairs) among those with far keys: positions `distance..tokens`. `None`
    /// if that is all of them or more. Depends on `seed` and the ids: a text has the same score everywhere.
    pub fn draw(ids: &[u32], distance: usize, per_window: usize, seed: u64) -> Option<Self> {
        let rows = ids.len().saturating_sub(distance);
        let strata = per_window.div_ceil(2);
        if 2 * strata >= rows {
            return None;
        }
        let mut random = Random::new(ids, seed);
        let edge = |index: usize| distance + index * rows / strata;
        let mut positions = Vec::with_capacity(2 * strata);
        let mut sizes = Vec::with_capacity(strata);
        for index in 0..strata {
            let (start, size) = (edge(index), edge(index + 1) - edge(index));
            let first = random.below(size);
            // Any other row of the stratum, with equal probability.
            let second = (first + 1 + random.below(size - 1)) % size;
            positions.extend([start + first.min(second), start + first.max(second)]);
            sizes.push(size);
        }
        Some(Self { positions, strata: sizes })
    }

    /// Returns the number of rows that each drawn row represents: `[positions]`. The weighted sum of any row
    /// statistic is an unbiased estimate of its sum over all rows.
    pub fn weights(&self) -> Vec<f64> {
        self.strata.iter().flat_map(|size| [*size as f64 / 2.0; 2]).collect()
    }

    /// Returns the sample in the form that kernels take.
    pub fn sample(&self) -> RowSample {
        RowSample { positions: self.positions.clone(), weights: self.weights() }
    }

    /// Returns the standard error of the weighted sum of a row statistic; its square is unbiased. `drawn`: values of the
    /// statistic for the drawn rows, `[positions]`.
    ///
    /// The sum is `Σ N (a + b)/2` over strata of `N` rows; its variance is `Σ N² (1 - 2/N) (a - b)²/4`, with the
    /// correction for drawing without replacement.
    pub fn standard_error(&self, drawn: &[f64]) -> f64 {
        let mut variance = 0.0;
        for (size, [a, b]) in self.strata.iter().zip(drawn.as_chunks::<2>().0) {
            let size = *size as f64;
            variance += size * (size - 2.0) * (a - b) * (a - b) / 4.0;
        }
        variance.sqrt()
    }
}

/// Random numbers that depend on the window's content only (`SplitMix64`; Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn new(ids: &[u32], seed: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(seed.to_le_bytes());
        for id in ids {
            hash.update(id.to_le_bytes());
        }
        let digest = hash.finalize();
        Self(u64::from_le_bytes(digest[..8].try_into().expect("a SHA-256 has 32 bytes")))
    }

    /// Returns a number from 0 to `count - 1`; the probability of each differs by at most `count / 2^64`.
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((u128::from(bits) * count as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn two_rows_of_every_stratum_are_drawn(
            tokens in 1_usize..3000, distance in 0_usize..3000, per_window in 2_usize..600, seed: u64,
        ) {
            let ids: Vec<u32> = (0..tokens as u32).collect();
            let rows = tokens.saturating_sub(distance);
            let Some(drawn) = SampledRows::draw(&ids, distance, per_window, seed) else {
                prop_assert!(per_window.next_multiple_of(2) >= rows);
                return Ok(());
            };
            prop_assert_eq!(drawn.positions.len(), per_window.next_multiple_of(2));
            prop_assert!(drawn.positions.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(drawn.strata.iter().sum::<usize>(), rows);
            let mut start = distance;
            for (size, pair) in drawn.strata.iter().zip(drawn.positions.chunks(2)) {
                prop_assert!(start <= pair[0] && pair[1] < start + size);
                start += size;
            }
            prop_assert_eq!(&drawn, &SampledRows::draw(&ids, distance, per_window, seed).unwrap());
            prop_assert!((drawn.weights().iter().sum::<f64>() - rows as f64).abs() < 1e-9);
        }
    }

    /// Row statistic that grows with the position and fluctuates.
    fn value(row: usize) -> f64 {
        row as f64 / 1000.0 + 0.2 * ((row * row) as f64).sin()
    }

    #[test]
    fn the_estimate_is_unbiased_and_so_is_its_variance() {
        let ids: Vec<u32> = (0..1000).map(|id| id * 7 % 411).collect();
        let exact: f64 = (250..1000).map(value).sum();
        let (mut errors, mut squares, mut stated) = (0.0, 0.0, 0.0);
        let draws = 20_000;
        for seed in 0..draws {
            let drawn = SampledRows::draw(&ids, 250, 64, seed).unwrap();
            let values: Vec<f64> = drawn.positions.iter().map(|row| value(*row)).collect();
            let estimate: f64 = drawn.weights().iter().zip(&values).map(|(w, x)| w * x).sum();
            let error = estimate - exact;
            errors += error;
            squares += error * error;
            stated += drawn.standard_error(&values).powi(2);
        }
        let draws = draws as f64;
        let deviation = (squares / draws).sqrt();
        // Five standard errors of the mean; the variance of a variance is about 2/draws of its square.
        assert!((errors / draws).abs() < 5.0 * deviation / draws.sqrt(), "bias {}", errors / draws);
        assert!((stated / squares - 1.0).abs() < 0.06, "estimated {stated}, observed {squares}");
    }

    #[test]
    fn other_texts_and_other_seeds_give_other_rows() {
        let (one, other): (Vec<u32>, Vec<u32>) = ((0..500).collect(), (1..501).collect());
        let draw = |ids: &[u32], seed| SampledRows::draw(ids, 100, 64, seed).unwrap().positions;
        assert_ne!(draw(&one, 1), draw(&other, 1));
        assert_ne!(draw(&one, 1), draw(&one, 2));
    }
}
