//! Decimal fractions, exactly as their author wrote them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number with the value of its decimal notation: `0.29` is 29/100, not the nearest binary fraction.
///
/// `⌊100 · 0.29⌋` is 29 here and 28 in floating point. Exact for up to 18 significant digits and counts below 2^63.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Decimal(pub f64);

impl Decimal {
    /// Returns `⌊self · count⌋`; 0 for a negative decimal.
    pub fn floor_of(self, count: u64) -> u64 {
        let (digits, scale) = self.parts();
        u64::try_from(digits * u128::from(count) / scale).unwrap_or(u64::MAX)
    }

    /// Returns `⌈self · count⌉`; 0 for a negative decimal.
    pub fn ceil_of(self, count: u64) -> u64 {
        let (digits, scale) = self.parts();
        u64::try_from((digits * u128::from(count)).div_ceil(scale)).unwrap_or(u64::MAX)
    }

    /// Returns the decimal as `digits / scale`. The shortest text that parses to this `f64` equals the original text,
    /// up to 15 significant digits.
    fn parts(self) -> (u128, u128) {
        let text = self.0.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let fraction = &fraction[..fraction.len().min(18)];
        let digits: u128 = format!("{whole}{fraction}").parse().unwrap_or(0);
        let scale = 10u128.pow(u32::try_from(fraction.len()).expect("at most 18 digits"));
        (digits, scale)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_have_their_decimal_value() {
        assert_eq!(Decimal(0.29).floor_of(100), 29);
        assert_eq!(Decimal(0.57).floor_of(100), 57);
        assert_eq!(Decimal(0.07).ceil_of(100), 7);
        assert_eq!(Decimal(1.0).floor_of(7), 7);
        assert_eq!(Decimal(0.5).floor_of(7), 3);
        assert_eq!(Decimal(0.5).ceil_of(7), 4);
        assert_eq!(Decimal(1e-7).floor_of(10_000_000), 1);
        assert_eq!(Decimal(-0.5).floor_of(10), 0);
    }
}
