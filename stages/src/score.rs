//! Turns the raw statistics of all windows into one comparable number each.

mod figures;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::Stage;

use figures::compensated_sum;
pub use figures::{ColumnFigures, GroupFigures};

/// Turns the raw statistics of all windows into one comparable number each:
/// `standardised(dependency strength) + alpha · standardised(-far variance)`. It needs the figures of the whole corpus,
/// so it runs after every window is measured, and again in seconds when only its own settings change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The formula. `longattn` (default, the only one so far): Wu et al. 2025, equation 8.
    #[serde(default)]
    pub formula: Formula,
    /// Weight of the uniformity term, 0 to 100. Default 0.5, as published.
    #[serde(default = "default_alpha")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub alpha: f64,
    /// How the two statistics are made comparable. `z-score` (default) is the paper, `min-max` the published code.
    #[serde(default)]
    pub standardise: Standardise,
    /// The largest relative standard error of the far variance, a root mean square over windows, at which the uniformity
    /// term is used; only sampled rows have one. Default 0.1: what a noisier term does to a ranking is in
    /// `docs/benchmarks.md`. Beyond it the selection is refused unless `alpha` is 0 or this is raised.
    #[serde(default = "default_max_variance_error")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub max_variance_error: f64,
    /// A column of the input: statistics, ranking and the filter's fraction or budget are taken inside each of its
    /// values. A null is a group of its own. Default: one group. Scores of different domains rarely compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// How the windows of a document become one score when `output.samples` is `documents`: the `mean` (default) or
    /// the `max` of their raw statistics. Not used with `samples: windows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_score: Option<DocumentScore>,
    /// A `calibration.json` of an earlier run, relative to the pipeline file's folder: its means, deviations and
    /// thresholds are used instead of this corpus's own, so that an increment is filtered like the corpus before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
}

fn default_alpha() -> f64 {
    0.5
}

fn default_max_variance_error() -> f64 {
    0.1
}

/// The formula of the score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Formula {
    /// `standardised(dependency strength) + alpha · standardised(-far variance)`.
    #[default]
    Longattn,
}

/// How a statistic is made comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Standardise {
    /// `(x - mean) / sample standard deviation`; 0 where all values are equal.
    #[default]
    ZScore,
    /// `(x - min) / (max - min)`; 0.5 where all values are equal.
    MinMax,
}

/// How the windows of a document become one score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DocumentScore {
    /// The mean of the windows' raw statistics.
    #[default]
    Mean,
    /// The maximum of each of the windows' raw statistics, taken separately.
    Max,
}

impl Stage for Score {
    fn name(&self) -> &'static str {
        "score"
    }
    fn reads(&self) -> &'static [&'static str] {
        &["statistics"]
    }
    fn writes(&self) -> &'static [&'static str] {
        &["score"]
    }
}

impl Score {
    /// The figures of one group's raw statistics, with no threshold yet.
    ///
    /// `dependency_strength`, `far_variance`: `[samples]`. A sample with a value that is not finite is left out (it is
    /// never kept either). Sums are compensated and run in input order: the same input gives the same bits.
    pub fn figures(&self, dependency_strength: &[f64], far_variance: &[f64]) -> GroupFigures {
        let samples = || {
            dependency_strength
                .iter()
                .zip(far_variance)
                .filter(|&(&strength, &variance)| comparable(strength, variance))
        };
        GroupFigures {
            count: samples().count() as u64,
            dependency_strength: ColumnFigures::of(samples().map(|(&strength, _)| strength)),
            far_variance: ColumnFigures::of(samples().map(|(_, &variance)| variance)),
            threshold: None,
        }
    }

    /// The score of every sample: `standardised(dependency strength) - alpha · standardised(far variance)`.
    ///
    /// With the z-score this is `z(strength) + alpha · z(-variance)`, equation 8 of Wu et al. 2025, bit for bit. With
    /// min-max it is what the published code ranks by, `alpha` lower than with `standardised(-variance)`.
    ///
    /// `dependency_strength`, `far_variance`: `[samples]`. Returns `[samples]`, `NaN` where a statistic is not finite.
    pub fn scores(
        &self,
        figures: &GroupFigures,
        dependency_strength: &[f64],
        far_variance: &[f64],
    ) -> Vec<f64> {
        let score = |(&strength, &variance): (&f64, &f64)| {
            if !comparable(strength, variance) {
                return f64::NAN;
            }
            self.standardise.apply(&figures.dependency_strength, strength)
                - self.alpha * self.standardise.apply(&figures.far_variance, variance)
        };
        dependency_strength.iter().zip(far_variance).map(score).collect()
    }
}

impl Standardise {
    /// The standardised value of `value` in a column with these figures. A column without spread carries no
    /// information: every value is 0 (z-score) or 0.5 (min-max), also a value of another corpus.
    fn apply(self, column: &ColumnFigures, value: f64) -> f64 {
        let flat = column.max <= column.min;
        match self {
            // The deviation of a column with a spread below 1e-154 underflows to 0 as well.
            Self::ZScore if flat || column.standard_deviation <= 0.0 => 0.0,
            Self::ZScore => (value - column.mean) / column.standard_deviation,
            Self::MinMax if flat => 0.5,
            Self::MinMax => (value - column.min) / (column.max - column.min),
        }
    }
}

impl DocumentScore {
    /// One raw statistic of a document from those of its windows, in window order; `NaN` without windows.
    pub fn of(self, windows: &[f64]) -> f64 {
        match self {
            Self::Mean => compensated_sum(windows.iter().copied()) / windows.len() as f64,
            Self::Max => windows
                .iter()
                .copied()
                .reduce(|a, b| if a >= b || a.is_nan() { a } else { b })
                .unwrap_or(f64::NAN),
        }
    }
}

/// Whether a sample can be ranked at all.
fn comparable(strength: f64, variance: f64) -> bool {
    strength.is_finite() && variance.is_finite()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::filter::Filter;

    fn score(standardise: Standardise) -> Score {
        Score {
            formula: Formula::Longattn,
            max_variance_error: 0.1,
            alpha: 0.5,
            standardise,
            within: None,
            document_score: None,
            calibration: None,
        }
    }

    fn scored(standardise: Standardise, strength: &[f64], variance: &[f64]) -> Vec<f64> {
        let score = score(standardise);
        score.scores(&score.figures(strength, variance), strength, variance)
    }

    #[derive(Deserialize)]
    struct Expected {
        lds: Vec<f64>,
        #[serde(alias = "selected_in_rank_order")]
        selected: Option<Vec<String>>,
    }

    /// `bits`: also the rounding must be the reference's, so that ties are the same ties.
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
        let kept = half.keep(&got, &vec![1; got.len()], None);
        let kept: Vec<_> =
            ids.iter().zip(kept.keep).filter_map(|(id, keep)| keep.then_some(id)).collect();
        let in_input_order: Vec<_> = ids.iter().filter(|id| selected.contains(id)).collect();
        assert_eq!(kept, in_input_order);
    }

    #[test]
    fn scores_and_selections_are_those_of_the_ranking_cases() {
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
        let Some(text) = crate::tokenize::fixtures::shared_file("conformance/ranking_cases.json")
        else {
            return;
        };
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
    fn a_column_without_spread_says_nothing() {
        assert_eq!(scored(Standardise::ZScore, &[0.3; 4], &[1e-6; 4]), [0.0; 4]);
        assert_eq!(scored(Standardise::MinMax, &[0.3; 4], &[1e-6; 4]), [0.25; 4]);
        let one_sided = scored(Standardise::ZScore, &[0.1, 0.3], &[1e-6; 2]);
        assert!(
            (one_sided[1] - 0.5_f64.sqrt()).abs() < 1e-12
                && (one_sided[0] + one_sided[1]).abs() < 1e-12
        );
    }

    #[test]
    fn one_sample_and_none_are_defined() {
        assert_eq!(scored(Standardise::ZScore, &[0.3], &[1e-6]), [0.0]);
        assert_eq!(scored(Standardise::MinMax, &[0.3], &[1e-6]), [0.25]);
        assert!(scored(Standardise::ZScore, &[], &[]).is_empty());
        assert_eq!(
            score(Standardise::ZScore).figures(&[], &[]).dependency_strength,
            ColumnFigures::default()
        );
    }

    #[test]
    fn a_spread_whose_square_underflows_gives_no_infinity() {
        assert_eq!(scored(Standardise::ZScore, &[0.0, 1e-200], &[0.0; 2]), [0.0; 2]);
    }

    #[test]
    fn a_value_that_is_not_finite_spoils_only_its_own_sample() {
        let got = scored(
            Standardise::ZScore,
            &[0.1, f64::NAN, 0.3, 0.2],
            &[1e-6, 1e-6, 2e-6, f64::INFINITY],
        );
        assert!(got[1].is_nan() && got[3].is_nan());
        assert_eq!(
            [got[0], got[2]].as_slice(),
            scored(Standardise::ZScore, &[0.1, 0.3], &[1e-6, 2e-6])
        );
    }

    #[test]
    fn figures_survive_json_exactly() {
        let mut figures =
            score(Standardise::ZScore).figures(&[0.1, 0.7, 1.0 / 3.0], &[1e-7, 3e-300, 5e-324]);
        figures.threshold = Some(0.1 + 0.2);
        let text = serde_json::to_string(&figures).unwrap();
        assert_eq!(serde_json::from_str::<GroupFigures>(&text).unwrap(), figures);
    }

    #[test]
    fn a_calibration_scores_an_increment_by_the_old_figures() {
        let score = score(Standardise::ZScore);
        let figures = score.figures(&[0.1, 0.2, 0.3], &[1e-6, 2e-6, 3e-6]);
        let got = score.scores(&figures, &[0.5], &[2e-6]);
        assert!((got[0] - 3.0).abs() < 1e-9, "{got:?}: three deviations above the old mean");
    }

    #[test]
    fn a_document_is_the_mean_or_the_max_of_its_windows() {
        assert!((DocumentScore::Mean.of(&[0.1, 0.2, 0.6]) - 0.3).abs() < 1e-15);
        assert!((DocumentScore::Max.of(&[0.1, 0.6, 0.2]) - 0.6).abs() < 1e-15);
        assert!(
            DocumentScore::Max.of(&[0.1, f64::NAN]).is_nan()
                && DocumentScore::Mean.of(&[]).is_nan()
        );
    }

    proptest! {
        #[test]
        fn a_z_score_column_has_mean_zero_and_deviation_one(values in prop::collection::vec(0.0..1.0f64, 2..200)) {
            let flat = vec![0.0; values.len()];
            let figures = ColumnFigures::of(values.iter().copied());
            prop_assume!(figures.standard_deviation > 1e-6);
            let after = ColumnFigures::of(scored(Standardise::ZScore, &values, &flat).into_iter());
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
