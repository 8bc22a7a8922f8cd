//! Guards: bounds on statistics, applied before the ranking.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{BrokenRule, Decimal};

/// Bounds on one statistic. A sample outside them is rejected regardless of its score and counted as
/// `guard_<statistic>`; one without the statistic as `no_<statistic>`. Rejected samples still count in the denominator
/// of `keep_fraction`. Scores are standardised over the samples that pass every guard; rejected samples get a score on
/// the same scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Name of the statistic: any single number that a measure of the pipeline computes.
    pub statistic: String,
    /// Lowest value that passes. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Highest value that passes. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Lower bound as a quantile of each group, 0 to 1: `0.2` rejects at most the fifth with the lowest values.
    /// The bound is the smallest value that a fifth of the samples do not exceed; a sample with this value passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_quantile: Option<Decimal>,
    /// Upper bound as a quantile of each group, 0 to 1: `0.8` rejects at most the fifth with the highest values.
    /// The bound is the smallest value that four fifths of the samples do not exceed; a sample with this value passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_quantile: Option<Decimal>,
    /// Weight of a sample in quantiles: `samples` (default) counts each once, `tokens` by its length, so that a fifth
    /// is a fifth of the text.
    #[serde(default)]
    pub weigh: Weigh,
    /// Measure that skips the windows which `min` or `max` rejects: the guard is applied first, to save time. These
    /// windows are counted as not measured. Not available with quantiles, which are known only after all windows are
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Weight of a sample in quantiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Weigh {
    /// Every sample counts once.
    #[default]
    Samples,
    /// A sample counts as many times as it has tokens.
    Tokens,
}

/// Bounds of a guard in one group, inclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Lowest value that passes; null if unbounded.
    pub low: Option<f64>,
    /// Highest value that passes; null if unbounded.
    pub high: Option<f64>,
}

/// Result of a guard for one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passes,
    /// `guard_<statistic>`: the value is out of bounds.
    Refused,
    /// `no_<statistic>`: the value is missing or not finite.
    Missing,
}

impl Guard {
    /// Returns the bounds within a group, given the values at the guard's quantiles, if it has any.
    pub fn bounds(&self, low_quantile: Option<f64>, high_quantile: Option<f64>) -> Bounds {
        let stricter = |one: Option<f64>, other: Option<f64>, choose: fn(f64, f64) -> f64| {
            one.into_iter().chain(other).reduce(choose)
        };
        Bounds {
            low: stricter(self.min, low_quantile, f64::max),
            high: stricter(self.max, high_quantile, f64::min),
        }
    }

    /// Computes the bounds of a group from the values and tokens of its samples. Values that are not finite are left out.
    pub fn bounds_of(&self, values: &[f64], tokens: &[u64]) -> Bounds {
        let samples = values.iter().zip(tokens).filter(|(value, _)| value.is_finite());
        let mut samples: Vec<_> =
            samples.map(|(value, tokens)| (*value, self.weight(*tokens))).collect();
        samples.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let at = |quantile: Option<Decimal>| quantile.and_then(|q| quantile_of(&samples, q));
        self.bounds(at(self.min_quantile), at(self.max_quantile))
    }

    /// Describes the bounds: `at least 0.1 and at most 0.4`.
    pub fn in_words(&self) -> String {
        let bounds = [
            self.min.map(|value| format!("at least {value}")),
            self.max.map(|value| format!("at most {value}")),
            self.min_quantile.map(|quantile| format!("at least the quantile {}", quantile.0)),
            self.max_quantile.map(|quantile| format!("at most the quantile {}", quantile.0)),
        ];
        bounds.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// Returns the weight of a sample of `tokens` tokens in the guard's quantiles.
    pub fn weight(&self, tokens: u64) -> u64 {
        if self.weigh == Weigh::Tokens { tokens } else { 1 }
    }

    /// Returns every constraint that the guard at `setting` (`guards.0`) violates.
    pub fn broken_rules(&self, setting: &str) -> Vec<BrokenRule> {
        let mut broken = Vec::new();
        let mut rule = |key: &str, message: String, hint: &str| {
            broken.push(BrokenRule::new(format!("{setting}.{key}"), message, hint));
        };
        let Self { statistic, min, max, min_quantile, max_quantile, weigh, before } = self;
        let quantiles = min_quantile.is_some() || max_quantile.is_some();
        if min.is_none() && max.is_none() && !quantiles {
            let message = format!("the guard on `{statistic}` has no bounds");
            rule("statistic", message, "add `min`, `max`, `min_quantile` or `max_quantile`");
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            rule(
                "min",
                format!("`min` {min} exceeds `max` {max}: nothing passes"),
                "swap them, or remove one",
            );
        }
        if let (Some(min), Some(max)) = (min_quantile, max_quantile)
            && min > max
        {
            let message =
                format!("`min_quantile` {min} exceeds `max_quantile` {max}: nothing passes");
            rule("min_quantile", message, "swap them, or remove one");
        }
        for (key, quantile) in [("min_quantile", min_quantile), ("max_quantile", max_quantile)] {
            if let Some(quantile) = quantile
                && !(0.0..=1.0).contains(&quantile.0)
            {
                let message = format!("expected a number from 0 to 1 for `{key}`, got {quantile}");
                rule(key, message, "a quantile is a share of the group: 0.2 for a fifth");
            }
        }
        if *weigh == Weigh::Tokens && !quantiles {
            let message = "`weigh: tokens` has no effect without a quantile".to_owned();
            rule(
                "weigh",
                message,
                "remove it, or give the bound as `min_quantile` or `max_quantile`",
            );
        }
        if let Some(measure) = before
            && quantiles
        {
            let message =
                format!("a quantile cannot be applied before `{measure}`: it needs all windows");
            rule("before", message, "give the bound as `min` or `max`, or remove `before`");
        }
        broken
    }
}

impl Bounds {
    /// Compares a value with the bounds; `NaN` means that it is missing.
    pub fn judge(&self, value: f64) -> Verdict {
        let inside =
            self.low.is_none_or(|low| value >= low) && self.high.is_none_or(|high| value <= high);
        match (value.is_finite(), inside) {
            (false, _) => Verdict::Missing,
            (true, true) => Verdict::Passes,
            (true, false) => Verdict::Refused,
        }
    }
}

/// Returns the minimum cumulative weight at the quantile: the first of the ascending values at which the running
/// weight reaches it is the quantile. `total`: weight of all values, below 2^63.
pub fn quantile_weight(quantile: Decimal, total: u64) -> u64 {
    quantile.ceil_of(total).max(1)
}

/// Returns the smallest value v with weight(x ≤ v) ≥ q · weight(all). `samples`: ascending values with weights.
fn quantile_of(samples: &[(f64, u64)], quantile: Decimal) -> Option<f64> {
    let wanted = quantile_weight(quantile, samples.iter().map(|(_, weight)| weight).sum());
    let reached = samples.iter().scan(0, |sum, (value, weight)| {
        *sum += weight;
        Some((*sum, *value))
    });
    reached.filter(|(sum, _)| *sum >= wanted).map(|(_, value)| value).next()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guard(text: &str) -> Guard {
        let mut guard = serde_json::json!({ "statistic": "copy_share" });
        let more: serde_json::Map<_, _> = serde_json::from_str(text).unwrap();
        guard.as_object_mut().unwrap().extend(more);
        serde_json::from_value(guard).unwrap()
    }

    fn bounds(text: &str, values: &[f64], tokens: &[u64]) -> (Option<f64>, Option<f64>) {
        let Bounds { low, high } = guard(text).bounds_of(values, tokens);
        (low, high)
    }

    #[test]
    fn bounds_are_inclusive() {
        let bounds = guard(r#"{"min": 0.1, "max": 0.4}"#).bounds_of(&[], &[]);
        let verdicts = [0.09, 0.1, 0.4, 0.41].map(|value| bounds.judge(value));
        assert_eq!(
            verdicts,
            [Verdict::Refused, Verdict::Passes, Verdict::Passes, Verdict::Refused]
        );
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(bounds.judge(value), Verdict::Missing);
        }
    }

    #[test]
    fn a_quantile_is_the_smallest_value_with_enough_weight() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let quantiles = |text| bounds(text, &values, &[1; 10]);
        assert_eq!(
            quantiles(r#"{"min_quantile": 0.2, "max_quantile": 0.8}"#),
            (Some(2.0), Some(8.0))
        );
        assert_eq!(quantiles(r#"{"min_quantile": 0.21}"#), (Some(3.0), None));
        assert_eq!(quantiles(r#"{"min_quantile": 0, "max_quantile": 1}"#), (Some(1.0), Some(10.0)));
        assert_eq!(
            bounds(
                r#"{"max_quantile": 0.29}"#,
                &(0..100).map(f64::from).collect::<Vec<_>>(),
                &[1; 100]
            )
            .1,
            Some(28.0)
        );
    }

    #[test]
    fn a_quantile_may_count_tokens() {
        let (values, tokens) = ([1.0, 2.0, 3.0], [10, 70, 20]);
        assert_eq!(bounds(r#"{"max_quantile": 0.5}"#, &values, &tokens).1, Some(2.0));
        assert_eq!(
            bounds(r#"{"max_quantile": 0.1, "weigh": "tokens"}"#, &values, &tokens).1,
            Some(1.0)
        );
        assert_eq!(
            bounds(r#"{"max_quantile": 0.11, "weigh": "tokens"}"#, &values, &tokens).1,
            Some(2.0)
        );
        assert_eq!(
            bounds(r#"{"max_quantile": 0.81, "weigh": "tokens"}"#, &values, &tokens).1,
            Some(3.0)
        );
    }

    #[test]
    fn samples_without_the_statistic_do_not_count_in_quantiles() {
        let values = [f64::NAN, 5.0, f64::INFINITY, 7.0, f64::NEG_INFINITY];
        assert_eq!(
            bounds(r#"{"min_quantile": 0.5, "max_quantile": 0.6}"#, &values, &[1; 5]),
            (Some(5.0), Some(7.0))
        );
        assert_eq!(bounds(r#"{"min_quantile": 0.5}"#, &[f64::NAN], &[1]), (None, None));
    }

    #[test]
    fn the_stricter_of_a_bound_and_a_quantile_decides() {
        let values = [1.0, 2.0, 3.0, 4.0];
        let text = r#"{"min": 1.5, "min_quantile": 0.5, "max": 2.5, "max_quantile": 0.75}"#;
        assert_eq!(bounds(text, &values, &[1; 4]), (Some(2.0), Some(2.5)));
    }

    #[test]
    fn meaningless_bounds_are_reported() {
        let broken = |text: &str| {
            let rules = guard(text).broken_rules("guards.2");
            rules
                .into_iter()
                .map(|rule| format!("{}: {}", rule.setting, rule.message))
                .collect::<Vec<_>>()
        };
        assert_eq!(broken(r#"{"max": 0.4, "before": "first-layer-attention"}"#), [""; 0]);
        assert_eq!(broken("{}"), ["guards.2.statistic: the guard on `copy_share` has no bounds"]);
        assert_eq!(
            broken(r#"{"max": 1, "weigh": "tokens"}"#),
            ["guards.2.weigh: `weigh: tokens` has no effect without a quantile"]
        );
        assert_eq!(
            broken(r#"{"min": 2, "max": 1}"#),
            ["guards.2.min: `min` 2 exceeds `max` 1: nothing passes"]
        );
        assert_eq!(
            broken(r#"{"min_quantile": 1.5, "max_quantile": -0.5, "before": "x"}"#),
            [
                "guards.2.min_quantile: `min_quantile` 1.5 exceeds `max_quantile` -0.5: nothing passes",
                "guards.2.min_quantile: expected a number from 0 to 1 for `min_quantile`, got 1.5",
                "guards.2.max_quantile: expected a number from 0 to 1 for `max_quantile`, got -0.5",
                "guards.2.before: a quantile cannot be applied before `x`: it needs all windows",
            ]
        );
    }

    proptest! {
        #[test]
        fn a_quantile_reaches_the_weight_first(
            samples in prop::collection::vec((0_u8..9, 1_u64..50), 1..40), percent in 0_u32..=100, tokens: bool,
        ) {
            let (values, sizes): (Vec<f64>, Vec<u64>) = samples.iter().map(|&(x, n)| (f64::from(x), n)).unzip();
            let quantile = Decimal(f64::from(percent) / 100.0);
            let weigh = if tokens { Weigh::Tokens } else { Weigh::Samples };
            let guard = Guard { min_quantile: Some(quantile), weigh, ..guard("{}") };
            let low = guard.bounds_of(&values, &sizes).low.unwrap();
            let weight = |inside: &dyn Fn(f64) -> bool| -> u64 {
                let inside = values.iter().zip(&sizes).filter(|(value, _)| inside(**value));
                inside.map(|(_, size)| if tokens { *size } else { 1 }).sum()
            };
            let all = weight(&|_| true);
            prop_assert!(100 * weight(&|value| value <= low) >= u64::from(percent) * all);
            let below = weight(&|value| value < low);
            prop_assert!(below == 0 || 100 * below < u64::from(percent) * all);
        }
    }
}
