//! Minimum distance at which a pair of tokens counts as far.

use serde::Serialize;

use super::Decimal;

/// Minimum distance, in tokens, at which a pair counts as far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FarDistance {
    /// `S - 3·⌊S/4⌋` in a window of S tokens: the quarter as defined by the script published with `LongAttn`.
    PublishedQuarter,
    /// `⌈f·S⌉`, with `f` taken as the written decimal.
    Fraction(Decimal),
    Tokens(u32),
}

impl FarDistance {
    /// Returns the distance that a measure's settings name: `min_distance_tokens`, or else `min_distance_fraction`.
    pub(crate) fn from_settings(tokens: Option<u32>, fraction: Option<Decimal>) -> Self {
        match (tokens, fraction) {
            (Some(tokens), _) => Self::Tokens(tokens),
            (None, None | Some(Decimal(0.25))) => Self::PublishedQuarter,
            (None, Some(fraction)) => Self::Fraction(fraction),
        }
    }

    /// Returns the far distance `k` in a window of `tokens` tokens.
    pub fn in_window(self, tokens: u64) -> u64 {
        match self {
            Self::PublishedQuarter => tokens - 3 * (tokens / 4),
            Self::Fraction(fraction) => fraction.ceil_of(tokens),
            Self::Tokens(distance) => u64::from(distance),
        }
    }

    /// Returns the smallest window, of at least two tokens, that contains a far pair; more than 2^32 if none does.
    pub fn min_tokens(self) -> u64 {
        let (mut shortest, mut longest) = (2, (1 << 32) + 1);
        while shortest < longest {
            let tokens = u64::midpoint(shortest, longest);
            if self.in_window(tokens) < tokens {
                longest = tokens;
            } else {
                shortest = tokens + 1;
            }
        }
        shortest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_fraction_rounds_up_as_the_decimal_written() {
        let third = FarDistance::Fraction(Decimal(0.3));
        assert_eq!((third.in_window(10), third.in_window(11)), (3, 4));
        assert_eq!(FarDistance::Fraction(Decimal(0.125)).in_window(257), 33);
        assert_eq!(FarDistance::Tokens(7).in_window(10), 7);
        let quarter = FarDistance::PublishedQuarter;
        assert_eq!(
            (quarter.in_window(10), quarter.in_window(96), quarter.in_window(257)),
            (4, 24, 65)
        );
    }

    #[test]
    fn the_shortest_window_is_the_first_with_a_far_token() {
        assert_eq!(FarDistance::PublishedQuarter.min_tokens(), 4);
        assert_eq!(FarDistance::Fraction(Decimal(0.125)).min_tokens(), 2);
        assert_eq!(FarDistance::Fraction(Decimal(0.9)).min_tokens(), 10);
        assert_eq!(FarDistance::Tokens(1).min_tokens(), 2);
        assert_eq!(FarDistance::Tokens(4096).min_tokens(), 4097);
        assert!(FarDistance::Fraction(Decimal(1.0)).min_tokens() > 1 << 32);
    }

    proptest! {
        #[test]
        fn windows_above_a_minimum_have_far_tokens(millionths in 1_u32..1_000_000, tokens in 2_u64..3_000_000) {
            let distance = FarDistance::Fraction(Decimal(f64::from(millionths) / 1e6));
            prop_assert_eq!(distance.in_window(tokens) < tokens, tokens >= distance.min_tokens());
        }
    }
}
