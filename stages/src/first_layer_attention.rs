//! Measures, per window, how much the tokens of the first layer attend to far-away tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{Decimal, Stage};

/// Measures, per window and head, how much the tokens of the first layer attend to tokens at least `k` positions
/// before them: the dependency strength (mean far mass of a row), the variance of the far-masked attention matrix,
/// and a histogram of distances. One streaming pass, no S×S matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirstLayerAttention {
    /// The far distance `k` as a share of the window, above 0 and below 1. Default 0.25, which is
    /// `S - 3·⌊S/4⌋` for a window of S tokens, as published; any other fraction f is `⌈f·S⌉`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub min_distance_fraction: Option<Decimal>,
    /// The far distance `k` in tokens, instead of a share of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub min_distance_tokens: Option<u32>,
    /// Which keys a token's attention is spread over. `causal` (default) is the paper and the model.
    #[serde(default)]
    pub mask: Mask,
}

/// Which keys a token's attention is spread over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mask {
    /// The token itself and those before it.
    #[default]
    Causal,
    /// All tokens of the window, later ones too; the far region stays the same. What the published script computes
    /// on full windows.
    Unmasked,
}

impl FirstLayerAttention {
    /// The far distance `k` for a window of `tokens` tokens.
    pub fn distance(&self, tokens: u64) -> u64 {
        match (self.min_distance_tokens, self.min_distance_fraction) {
            (Some(distance), _) => u64::from(distance),
            (None, None) => tokens - 3 * (tokens / 4),
            (None, Some(fraction)) if fraction == Decimal(0.25) => tokens - 3 * (tokens / 4),
            (None, Some(fraction)) => fraction.ceil_of(tokens),
        }
    }
}

impl Stage for FirstLayerAttention {
    fn name(&self) -> &'static str {
        "first-layer-attention"
    }
    fn reads(&self) -> &'static [&'static str] {
        &["layer-zero table", "windows"]
    }
    fn writes(&self) -> &'static [&'static str] {
        &["statistics"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_distance_is_the_published_one_and_other_fractions_round_up() {
        let default = FirstLayerAttention::default();
        assert_eq!((default.distance(10), default.distance(96), default.distance(257)), (4, 24, 65));
        let third = FirstLayerAttention { min_distance_fraction: Some(Decimal(0.3)), ..default.clone() };
        assert_eq!((third.distance(10), third.distance(11)), (3, 4));
        let tokens = FirstLayerAttention { min_distance_tokens: Some(7), ..default };
        assert_eq!(tokens.distance(10), 7);
    }
}
