//! Keeps the best samples.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{Decimal, Stage};

/// Keeps the best samples, by exactly one of `keep_fraction`, `keep_tokens` and `min_score`. The ranking is stable:
/// equal scores keep their input order. What is kept comes out in input order. With `score.calibration` the stored
/// threshold decides instead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// The share of samples that is kept, 0 to 1, rounded down to whole samples, inside each group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub keep_fraction: Option<Decimal>,
    /// A budget of tokens of the output: samples are kept in rank order until the next would exceed it. One number for
    /// every group, or a map from group to number (groups not named keep nothing).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_tokens: Option<KeepTokens>,
    /// The lowest score that is kept. Any finite number: z-scores are around 0, min-max scores between -alpha and 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f64>,
}

/// A budget of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KeepTokens {
    /// The same budget for every group.
    Same(u64),
    /// A budget per value of the `within` column.
    PerGroup(BTreeMap<String, u64>),
}

impl Stage for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }
    fn reads(&self) -> &'static [&'static str] {
        &["score"]
    }
    fn writes(&self) -> &'static [&'static str] {
        &["samples"]
    }
}

/// What a filter kept of one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// One entry per sample, in input order.
    pub keep: Vec<bool>,
    /// The lowest score that passes: `min_score` itself where it decides, else the score of the last sample kept, and
    /// nothing where none was.
    pub threshold: Option<f64>,
}

impl Filter {
    /// Which samples of one group are kept, by whichever of the three settings is there (all samples without one).
    ///
    /// `scores`, `tokens` (what a sample takes of a token budget): `[samples]`, in input order. `group` is the value of
    /// the `within` column, `None` for a null and without one. `NaN` is never kept and does not count towards the
    /// fraction. Cost: one sort.
    pub fn keep(&self, scores: &[f64], tokens: &[u64], group: Option<&str>) -> Kept {
        if let Some(min_score) = self.min_score {
            return Kept { keep: keep_above(scores, min_score), threshold: Some(min_score) };
        }
        let ranking = ranked(scores);
        let kept = if let Some(fraction) = self.keep_fraction {
            usize::try_from(fraction.floor_of(ranking.len() as u64))
                .map_or(ranking.len(), |n| n.min(ranking.len()))
        } else if let Some(budget) = &self.keep_tokens {
            within_budget(ranking.iter().map(|&sample| tokens[sample]), budget.of(group))
        } else {
            ranking.len()
        };
        let mut keep = vec![false; scores.len()];
        for &sample in &ranking[..kept] {
            keep[sample] = true;
        }
        Kept { keep, threshold: ranking[..kept].last().map(|&sample| scores[sample]) }
    }
}

impl KeepTokens {
    /// The budget of a group. A map gives nothing to a group it does not name, the null group among them.
    pub fn of(&self, group: Option<&str>) -> u64 {
        match self {
            Self::Same(tokens) => *tokens,
            Self::PerGroup(budgets) => {
                group.and_then(|group| budgets.get(group)).copied().unwrap_or(0)
            }
        }
    }
}

/// For each sample, whether its score is at least `threshold`: how a calibration filters. `NaN` never passes.
pub fn keep_above(scores: &[f64], threshold: f64) -> Vec<bool> {
    scores.iter().map(|&score| score >= threshold).collect()
}

/// The samples by descending score, ties by input order, without `NaN`.
fn ranked(scores: &[f64]) -> Vec<usize> {
    let mut ranking: Vec<usize> =
        (0..scores.len()).filter(|&sample| !scores[sample].is_nan()).collect();
    // Adding 0 makes -0 and 0 the tie that they are.
    ranking.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
    ranking
}

/// How many of `tokens` fit before the first that would exceed `budget`.
fn within_budget(tokens: impl Iterator<Item = u64>, budget: u64) -> usize {
    let running = tokens.scan(0u64, |spent, tokens| {
        *spent = spent.saturating_add(tokens);
        Some(*spent)
    });
    running.take_while(|&spent| spent <= budget).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fraction(fraction: f64) -> Filter {
        Filter { keep_fraction: Some(Decimal(fraction)), ..Filter::default() }
    }

    fn budget(tokens: u64) -> Filter {
        Filter { keep_tokens: Some(KeepTokens::Same(tokens)), ..Filter::default() }
    }

    fn kept(filter: &Filter, scores: &[f64]) -> Vec<usize> {
        let keep = filter.keep(scores, &vec![10; scores.len()], None).keep;
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
        let got = filter.keep(&[5.0, 4.0, 3.0, 2.0], &[10, 10, 10, 1], None);
        assert_eq!(
            got.keep,
            [true, true, false, false],
            "the last would fit, but it ranks behind one that does not"
        );
        assert_eq!(got.threshold, Some(4.0));
        assert_eq!(
            budget(20).keep(&[5.0, 4.0], &[10, 10], None).keep,
            [true, true],
            "a full budget is not exceeded"
        );
        assert_eq!(budget(u64::MAX).keep(&[5.0, 4.0], &[u64::MAX, 1], None).keep, [true, true]);
    }

    #[test]
    fn a_map_gives_each_group_its_own_budget() {
        let filter: Filter =
            serde_json::from_str(r#"{"keep_tokens": {"books": 10, "code": 0}}"#).unwrap();
        let keep = |group| filter.keep(&[1.0, 2.0], &[10, 10], group).keep;
        assert_eq!(keep(Some("books")), [false, true]);
        assert_eq!(keep(Some("code")), [false, false]);
        assert_eq!(keep(Some("papers")), [false, false]);
        assert_eq!(keep(None), [false, false]);
    }

    #[test]
    fn a_score_equal_to_the_minimum_is_kept() {
        let filter = Filter { min_score: Some(0.5), ..Filter::default() };
        let got = filter.keep(&[0.5, 0.499, f64::NAN, 7.0], &[1; 4], None);
        assert_eq!(got, Kept { keep: vec![true, false, false, true], threshold: Some(0.5) });
    }

    #[test]
    fn nan_is_never_kept_and_never_counted() {
        let scores = [f64::NAN, 1.0, -f64::NAN, 2.0];
        assert_eq!(kept(&fraction(1.0), &scores), [1, 3]);
        assert_eq!(kept(&fraction(0.5), &scores), [3]);
        assert_eq!(kept(&budget(1000), &scores), [1, 3]);
        assert_eq!(kept(&Filter::default(), &scores), [1, 3]);
        assert_eq!(keep_above(&scores, f64::NEG_INFINITY), [false, true, false, true]);
    }

    #[test]
    fn a_group_that_kept_nothing_has_no_threshold() {
        let got = fraction(0.5).keep(&[1.0], &[1], None);
        assert_eq!(got, Kept { keep: vec![false], threshold: None });
        assert_eq!(fraction(0.5).keep(&[], &[], None), Kept::default());
    }

    proptest! {
        #[test]
        fn a_larger_fraction_keeps_all_that_a_smaller_one_keeps(
            scores in prop::collection::vec((0u8..20).prop_map(f64::from), 0..60), small in 0u32..=100, large in 0u32..=100,
        ) {
            let keep = |percent: u32| {
                fraction(f64::from(percent) / 100.0).keep(&scores, &vec![1; scores.len()], None).keep
            };
            let (small, large) = (keep(small.min(large)), keep(small.max(large)));
            prop_assert!(small.iter().zip(large).all(|(&small, large)| !small || large));
        }

        #[test]
        fn nothing_dropped_outranks_anything_kept(
            scores in prop::collection::vec((0u8..9).prop_map(f64::from), 0..60), percent in 0u32..=100,
        ) {
            let got = fraction(f64::from(percent) / 100.0).keep(&scores, &vec![1; scores.len()], None);
            prop_assert_eq!(got.keep.iter().filter(|&&keep| keep).count(), scores.len() * percent as usize / 100);
            for (i, &a) in scores.iter().enumerate().filter(|&(i, _)| got.keep[i]) {
                for (j, &b) in scores.iter().enumerate().filter(|&(j, _)| !got.keep[j]) {
                    prop_assert!(a > b || (a - b).abs() < 0.5 && i < j, "{i}:{a} kept, {j}:{b} dropped");
                }
            }
            if let Some(threshold) = got.threshold {
                let above = keep_above(&scores, threshold);
                prop_assert!(got.keep.iter().zip(above).all(|(&keep, above)| !keep || above));
            }
        }

        #[test]
        fn a_budget_is_never_exceeded_and_never_left_with_room_for_the_next(
            samples in prop::collection::vec((0u8..9, 0u64..50), 0..40), tokens in 0u64..500,
        ) {
            let (scores, sizes): (Vec<f64>, Vec<u64>) = samples.iter().map(|&(s, n)| (f64::from(s), n)).unzip();
            let got = budget(tokens).keep(&scores, &sizes, None).keep;
            let spent: u64 = sizes.iter().zip(&got).filter(|&(_, &keep)| keep).map(|(&size, _)| size).sum();
            prop_assert!(spent <= tokens);
            if let Some(next) = ranked(&scores).into_iter().find(|&sample| !got[sample]) {
                prop_assert!(spent + sizes[next] > tokens);
            }
        }
    }
}
