//! Scores: one comparable number per window, computed from its statistics.

mod merge;
pub mod percentile;
pub mod presets;
pub mod settings;
mod summary;
pub mod terms;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use settings::Score;
pub use summary::{Deviations, SummaryStatistics, Sums};

/// Version in the identity of every selection, raised when the same statistics and settings select otherwise.
pub const SELECTION_VERSION: u32 = 2;

/// Rule that merges the windows of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DocumentScore {
    /// Mean of the windows' statistics; nulls are left out.
    #[default]
    Mean,
    /// Maximum of each statistic over the windows; nulls are left out.
    Max,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::terms::{Scale, Scorer, Standardise};
    use super::*;
    use crate::filter::Filter;

    /// Scores samples on the scales of other samples.
    fn scored_by(
        standardise: Standardise,
        scales: &[Scale],
        strength: &[f64],
        variance: &[f64],
    ) -> Vec<f64> {
        let (terms, combine) = presets::Formula::Longattn.terms(0.5, |_| false);
        let scorer = Scorer::new(&terms, combine, standardise, scales).unwrap();
        let score = |(&strength, &variance)| scorer.score(&[strength, variance]);
        strength.iter().zip(variance).map(score).collect()
    }

    fn scored(standardise: Standardise, strength: &[f64], variance: &[f64]) -> Vec<f64> {
        let scales = [strength, variance].map(|column| Scale::new(column, standardise));
        scored_by(standardise, &scales, strength, variance)
    }

    #[derive(Deserialize)]
    struct Expected {
        lds: Vec<f64>,
        #[serde(alias = "selected_in_rank_order")]
        selected: Option<Vec<String>>,
    }

    /// `bits`: whether rounding must match the reference as well, so that the same samples tie.
    fn check(
        standardise: Standardise,
        ids: &[String],
        strength: &[f64],
        variance: &[f64],
        expected: &Expected,
        bits: bool,
    ) {
        let got = scored(standardise, strength, variance);
        for (got, expected) in got.iter().zip(&expected.lds) {
            let close = (got - expected).abs() <= 1e-12 * expected.abs().max(1.0);
            assert!(
                if bits { got.to_bits() == expected.to_bits() } else { close },
                "{got} {expected}"
            );
        }
        assert_eq!(got.len(), expected.lds.len());
        let Some(selected) = &expected.selected else { panic!("the case has no selection") };
        let half: Filter = serde_json::from_str(r#"{"keep_fraction": 0.5}"#).unwrap();
        let kept = half.keep(&got, &vec![true; got.len()], &vec![1; got.len()], None);
        let kept: Vec<_> =
            ids.iter().zip(kept).filter_map(|(id, keep)| keep.then_some(id)).collect();
        let in_input_order: Vec<_> = ids.iter().filter(|id| selected.contains(id)).collect();
        assert_eq!(kept, in_input_order);
    }

    #[test]
    #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
    fn scores_and_selections_match_the_ranking_cases() {
        #[derive(Deserialize)]
        struct Cases {
            sets: Vec<Set>,
            edge_cases: Vec<Edge>,
        }
        #[derive(Deserialize)]
        struct Set {
            items: Vec<Item>,
            minmax: Expected,
            zscore: Expected,
        }
        #[derive(Deserialize)]
        struct Item {
            id: String,
            proportion: f64,
            variance: f64,
        }
        #[derive(Deserialize)]
        struct Edge {
            ids: Vec<String>,
            proportion: Vec<f64>,
            variance: Vec<f64>,
            minmax: Option<Expected>,
            zscore: Option<Expected>,
        }
        let text = crate::tokenize::fixtures::shared_file("conformance/ranking_cases.json");
        let cases: Cases = serde_json::from_slice(&text).unwrap();
        assert_eq!((cases.sets.len(), cases.edge_cases.len()), (3, 9));
        for set in &cases.sets {
            let ids: Vec<_> = set.items.iter().map(|item| item.id.clone()).collect();
            let strength: Vec<_> = set.items.iter().map(|item| item.proportion).collect();
            let variance: Vec<_> = set.items.iter().map(|item| item.variance).collect();
            check(Standardise::MinMax, &ids, &strength, &variance, &set.minmax, true);
            check(Standardise::ZScore, &ids, &strength, &variance, &set.zscore, false);
        }
        for Edge { ids, proportion, variance, minmax, zscore } in &cases.edge_cases {
            if let Some(expected) = minmax {
                check(Standardise::MinMax, ids, proportion, variance, expected, true);
            }
            if let Some(expected) = zscore {
                check(Standardise::ZScore, ids, proportion, variance, expected, false);
            }
        }
    }

    #[test]
    fn a_column_without_spread_has_no_effect() {
        assert_eq!(scored(Standardise::ZScore, &[0.3; 4], &[1e-6; 4]), [0.0; 4]);
        assert_eq!(scored(Standardise::MinMax, &[0.3; 4], &[1e-6; 4]), [0.25; 4]);
        let one_sided = scored(Standardise::ZScore, &[0.1, 0.3], &[1e-6; 2]);
        assert!(
            (one_sided[1] - 0.5_f64.sqrt()).abs() < 1e-12
                && (one_sided[0] + one_sided[1]).abs() < 1e-12
        );
    }

    #[test]
    fn one_and_zero_samples_are_defined() {
        assert_eq!(scored(Standardise::ZScore, &[0.3], &[1e-6]), [0.0]);
        assert_eq!(scored(Standardise::MinMax, &[0.3], &[1e-6]), [0.25]);
        assert!(scored(Standardise::ZScore, &[], &[]).is_empty());
        assert_eq!(Scale::new(&[], Standardise::ZScore).summary, SummaryStatistics::default());
    }

    #[test]
    fn tiny_spreads_have_z_scores() {
        let scores = scored(Standardise::ZScore, &[0.0, 1e-200], &[0.0; 2]);
        let usual = scored(Standardise::ZScore, &[0.0, 1.0], &[0.0; 2]);
        assert!(scores.iter().zip(usual).all(|(one, other)| (one - other).abs() < 1e-15));
    }

    #[test]
    fn summaries_round_trip_through_json() {
        let summary = Scale::new(&[1e-7, 3e-300, 5e-324], Standardise::ZScore).summary;
        let text = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<SummaryStatistics>(&text).unwrap(), summary);
    }

    #[test]
    fn a_calibration_scores_an_increment_on_the_old_scale() {
        let scales = [[0.1, 0.2, 0.3], [1e-6, 2e-6, 3e-6]]
            .map(|column| Scale::new(&column, Standardise::ZScore));
        let got = scored_by(Standardise::ZScore, &scales, &[0.5], &[2e-6]);
        assert!((got[0] - 3.0).abs() < 1e-9, "{got:?}: three deviations above the old mean");
    }

    proptest! {
        #[test]
        fn a_z_score_column_has_mean_zero_and_deviation_one(values in prop::collection::vec(0.0..1.0f64, 2..200)) {
            let flat = vec![0.0; values.len()];
            let summary = SummaryStatistics::from_values(values.iter().copied());
            prop_assume!(summary.standard_deviation > 1e-6);
            let after = SummaryStatistics::from_values(scored(Standardise::ZScore, &values, &flat).into_iter());
            prop_assert!(after.mean.abs() < 1e-9 && (after.standard_deviation - 1.0).abs() < 1e-9);
        }

        #[test]
        fn min_max_lies_between_minus_alpha_and_one(
            samples in prop::collection::vec((0.0..1.0f64, 0.0..1e-5f64), 1..100),
        ) {
            let (strength, variance): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
            prop_assert!(scored(Standardise::MinMax, &strength, &variance).iter().all(|s| (-0.5..=1.0).contains(s)));
        }

        #[test]
        fn equal_samples_score_the_same_bits(samples in prop::collection::vec((0u8..4, 0u8..4), 1..60)) {
            let strength: Vec<_> = samples.iter().map(|&(s, _)| f64::from(s) / 7.0).collect();
            let variance: Vec<_> = samples.iter().map(|&(_, v)| f64::from(v) / 3e7).collect();
            for standardise in [Standardise::ZScore, Standardise::MinMax] {
                let got = scored(standardise, &strength, &variance);
                for (i, a) in samples.iter().enumerate() {
                    for (j, b) in samples.iter().enumerate() {
                        prop_assert!(a != b || got[i].to_bits() == got[j].to_bits());
                    }
                }
            }
        }
    }
}
