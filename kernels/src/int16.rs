//! Rows of queries and keys as 16-bit integers, each row with the factor that converts them back.
//!
//! A row is scaled so that its length is [`LENGTH`], then rounded. A product of two such rows, and every partial sum,
//! stays below 2^31 (Cauchy and Schwarz), so sums of 32 bits are exact in any order: every processor has the same bits.
//!
//! Each number is off by at most half a unit, with a standard deviation of 0.29. A product is then off by
//! `0.29·√2·LENGTH`, while products of random rows have the standard deviation `LENGTH²/√d`: a logit is off by `0.41·√d
//! / 46,340` of the logits' standard deviation, 1.0e-4 for heads of 128. A row dominated by its largest number is
//! scaled less, by up to √2.

/// Length of a row of integers: its square is below 2^31.
const LENGTH: f64 = 46_340.0;
/// Largest integer of a row. The smallest is its negative, so that no sum of two products overflows 32 bits.
const LARGEST: f64 = 32_767.0;
/// Adding this to a number below 2^51 rounds it to an integer, ties to even, in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52
/// Separate sums of a row's squares, so that the compiler can use vectors.
const LANES: usize = 16;

/// Returns the number of words in a row of `head_dim` numbers: pairs, then the factor.
pub(crate) fn words(head_dim: usize) -> usize {
    head_dim.div_ceil(2) + 1
}

/// Writes a row as pairs of integers, the first in the low half, followed by the float32 factor of the integers. If a number of
/// the row is not finite, the factor is `NaN`. `words`: `[words(row.len())]`.
#[inline(always)]
pub(crate) fn round(row: &[f32], words: &mut [u32]) {
    let (factor, words) = words.split_last_mut().expect("the last word is the factor");
    let (length, largest) = length_and_largest(row);
    if !length.is_finite() || length == 0.0 {
        words.fill(0);
        *factor = if length == 0.0 { 0.0_f32 } else { f32::NAN }.to_bits();
        return;
    }
    // Leaves room for the length that rounding may add.
    let rounding = (row.len() as f64).sqrt() / 2.0;
    let scale = ((LENGTH - rounding) / length).min(LARGEST / largest);
    let integer = |value: f32| (f64::from(value) * scale + ROUND).to_bits() as u32 & 0xFFFF;
    let (pairs, odd) = row.as_chunks::<2>();
    for (word, [low, high]) in words.iter_mut().zip(pairs) {
        *word = integer(*low) | integer(*high) << 16;
    }
    if let [last] = odd {
        words[pairs.len()] = integer(*last);
    }
    *factor = ((1.0 / scale) as f32).to_bits();
}

/// Returns the Euclidean length of a row and its largest magnitude; the length is not finite if a number is not.
#[inline(always)]
fn length_and_largest(row: &[f32]) -> (f64, f64) {
    let (mut squares, mut largest) = ([0.0_f64; LANES], [0.0_f32; LANES]);
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            squares[lane] += f64::from(chunk[lane]) * f64::from(chunk[lane]);
            largest[lane] =
                if chunk[lane].abs() > largest[lane] { chunk[lane].abs() } else { largest[lane] };
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        squares[lane] += f64::from(*value) * f64::from(*value);
        largest[lane] = if value.abs() > largest[lane] { value.abs() } else { largest[lane] };
    }
    let largest = largest.into_iter().fold(0.0, f32::max);
    (squares.iter().sum::<f64>().sqrt(), f64::from(largest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the integers and the factor of a row.
    fn rounded(row: &[f32]) -> (Vec<i64>, f32) {
        let mut packed = vec![0xDEAD_BEEF; words(row.len())];
        round(row, &mut packed);
        let factor = f32::from_bits(packed.pop().expect("the factor"));
        let halves = packed.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]);
        (halves.map(|half| i64::from(half.cast_signed())).collect(), factor)
    }

    proptest! {
        #[test]
        fn rows_round_trip_within_half_a_unit_and_products_fit_32_bits(
            row in proptest::collection::vec(-1.0_f32..1.0, 1..300),
            power in -120_i32..114, outlier in proptest::option::of(0_usize..300),
        ) {
            let mut row: Vec<f32> = row.iter().map(|value| value * 2.0_f32.powi(power)).collect();
            if let Some(at) = outlier {
                let length = row.len();
                row[at % length] *= 1e4;
            }
            let (integers, factor) = rounded(&row);
            prop_assert!(integers.iter().all(|integer| integer.abs() <= 32_767));
            let square: i64 = integers.iter().map(|integer| integer * integer).sum();
            prop_assert!(square < 1 << 31, "{square}");
            for (integer, value) in integers.iter().zip(&row) {
                let error = (*integer as f64 * f64::from(factor) - f64::from(*value)).abs();
                prop_assert!(error <= 0.51 * f64::from(factor), "{value}: {integer} of {factor:e}");
            }
            let odd = row.len() % 2;
            prop_assert!(integers[row.len()..].iter().all(|padding| *padding == 0));
            prop_assert_eq!(integers.len(), row.len() + odd);
        }
    }

    #[test]
    fn zeros_stay_zero_and_nan_makes_the_factor_nan() {
        assert_eq!(rounded(&[0.0, -0.0, 0.0]), (vec![0; 4], 0.0));
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (integers, factor) = rounded(&[1.0, value]);
            assert!(integers == [0, 0] && factor.is_nan(), "{value}");
        }
        // One number is the whole row, so it is limited by the largest integer instead of the length.
        assert_eq!(rounded(&[0.0, -3e38]).0, [0, -32_767]);
    }
}
