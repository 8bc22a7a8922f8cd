//! Selection of the best samples.

pub mod budgets;
pub mod guards;
pub mod settings;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use settings::{Filter, NotMeasured};

/// Token budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KeepTokens {
    /// One budget for every group.
    Same(u64),
    /// Budget by value of the `within` column.
    PerGroup(BTreeMap<String, u64>),
}

impl KeepTokens {
    /// Returns the budget of a group; 0 if a map does not name the group, or for the null group.
    pub fn for_group(&self, group: Option<&str>) -> u64 {
        match self {
            Self::Same(tokens) => *tokens,
            Self::PerGroup(budgets) => {
                group.and_then(|group| budgets.get(group)).copied().unwrap_or(0)
            }
        }
    }
}

/// Returns the indices of the samples by descending score, ties in input order, without `NaN`.
fn ranked(scores: &[f64]) -> Vec<usize> {
    let mut ranking: Vec<usize> =
        (0..scores.len()).filter(|&sample| !scores[sample].is_nan()).collect();
    // Adding 0 makes -0 equal to 0, so that they tie.
    ranking.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
    ranking
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::Decimal;

    fn fraction(fraction: f64) -> Filter {
        Filter { keep_fraction: Some(Decimal(fraction)), ..Filter::default() }
    }

    fn budget(tokens: u64) -> Filter {
        Filter { keep_tokens: Some(KeepTokens::Same(tokens)), ..Filter::default() }
    }

    /// Returns the selection if all samples pass the guards.
    fn keep(filter: &Filter, scores: &[f64], tokens: &[u64], group: Option<&str>) -> Vec<bool> {
        filter.keep(scores, &vec![true; scores.len()], tokens, group)
    }

    fn kept(filter: &Filter, scores: &[f64]) -> Vec<usize> {
        let keep = keep(filter, scores, &vec![10; scores.len()], None);
        (0..keep.len()).filter(|&sample| keep[sample]).collect()
    }

    #[test]
    fn a_fraction_is_rounded_down_as_the_decimal_written() {
        let scores: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(kept(&fraction(0.29), &scores).len(), 29);
        assert_eq!(kept(&fraction(0.5), &[3.0, 1.0, 2.0]), [0]);
        assert_eq!(kept(&fraction(0.0), &scores).len(), 0);
        assert_eq!(kept(&fraction(1.0), &scores).len(), 100);
    }

    #[test]
    fn ties_are_kept_in_input_order() {
        assert_eq!(kept(&fraction(0.5), &[1.0, 2.0, 1.0, 1.0, 1.0, 1.0]), [0, 1, 2]);
        assert_eq!(kept(&fraction(0.5), &[-0.0, 0.0]), [0], "minus zero is zero");
    }

    #[test]
    fn a_budget_stops_at_the_first_sample_that_would_exceed_it() {
        let filter = budget(25);
        let got = keep(&filter, &[5.0, 4.0, 3.0, 2.0], &[10, 10, 10, 1], None);
        assert_eq!(
            got,
            [true, true, false, false],
            "the last would fit, but it ranks after one that does not"
        );
        assert_eq!(
            keep(&budget(20), &[5.0, 4.0], &[10, 10], None),
            [true, true],
            "a full budget is not exceeded"
        );
        assert_eq!(keep(&budget(u64::MAX), &[5.0, 4.0], &[u64::MAX, 1], None), [true, true]);
    }

    #[test]
    fn a_map_gives_each_group_its_own_budget() {
        let filter: Filter =
            serde_json::from_str(r#"{"keep_tokens": {"books": 10, "code": 0}}"#).unwrap();
        let keep = |group| keep(&filter, &[1.0, 2.0], &[10, 10], group);
        assert_eq!(keep(Some("books")), [false, true]);
        assert_eq!(keep(Some("code")), [false, false]);
        assert_eq!(keep(Some("papers")), [false, false]);
        assert_eq!(keep(None), [false, false]);
    }

    #[test]
    fn a_score_equal_to_the_minimum_is_kept() {
        let filter = Filter { min_score: Some(0.5), ..Filter::default() };
        let got = keep(&filter, &[0.5, 0.499, f64::NAN, 7.0], &[1; 4], None);
        assert_eq!(got, [true, false, false, true]);
    }

    #[test]
    fn nan_is_never_kept_and_never_counted() {
        let scores = [f64::NAN, 1.0, -f64::NAN, 2.0];
        assert_eq!(kept(&fraction(1.0), &scores), [1, 3]);
        assert_eq!(kept(&fraction(0.5), &scores), [3]);
        assert_eq!(kept(&budget(1000), &scores), [1, 3]);
        assert_eq!(kept(&Filter::default(), &scores), [1, 3]);
    }

    proptest! {
        #[test]
        fn larger_fractions_contain_smaller_ones(
            scores in prop::collection::vec((0u8..20).prop_map(f64::from), 0..60), small in 0u32..=100, large in 0u32..=100,
        ) {
            let keep = |percent: u32| {
                keep(&fraction(f64::from(percent) / 100.0), &scores, &vec![1; scores.len()], None)
            };
            let (small, large) = (keep(small.min(large)), keep(small.max(large)));
            prop_assert!(small.iter().zip(large).all(|(&small, large)| !small || large));
        }

        #[test]
        fn nothing_dropped_outranks_anything_kept(
            scores in prop::collection::vec((0u8..9).prop_map(f64::from), 0..60), percent in 0u32..=100,
        ) {
            let got = keep(&fraction(f64::from(percent) / 100.0), &scores, &vec![1; scores.len()], None);
            prop_assert_eq!(got.iter().filter(|&&keep| keep).count(), scores.len() * percent as usize / 100);
            for (i, &a) in scores.iter().enumerate().filter(|&(i, _)| got[i]) {
                for (j, &b) in scores.iter().enumerate().filter(|&(j, _)| !got[j]) {
                    prop_assert!(a > b || (a - b).abs() < 0.5 && i < j, "{i}:{a} kept, {j}:{b} dropped");
                }
            }
        }

        #[test]
        fn a_budget_is_used_up_to_the_next_sample(
            samples in prop::collection::vec((0u8..9, 0u64..50), 0..40), tokens in 0u64..500,
        ) {
            let (scores, sizes): (Vec<f64>, Vec<u64>) = samples.iter().map(|&(s, n)| (f64::from(s), n)).unzip();
            let got = keep(&budget(tokens), &scores, &sizes, None);
            let spent: u64 = sizes.iter().zip(&got).filter(|&(_, &keep)| keep).map(|(&size, _)| size).sum();
            prop_assert!(spent <= tokens);
            if let Some(next) = ranked(&scores).into_iter().find(|&sample| !got[sample]) {
                prop_assert!(spent + sizes[next] > tokens);
            }
        }
    }
}
