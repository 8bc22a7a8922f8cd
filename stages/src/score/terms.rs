//! Terms of a score: which statistics, on which scale, and how they are combined.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::percentile::{Histogram, HistogramBuilder, share_of_range};
use super::summary::SummaryStatistics;
use crate::contract::is_default;

/// One term of a score: `weight · standardised(statistic) + offset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Name of the statistic: any single number that a measure of the pipeline computes.
    pub statistic: String,
    /// Factor of the standardised statistic, from minus to plus one million; negative if lower is better. Default 1.
    #[serde(default = "default_weight")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub weight: f64,
    /// Constant added to the term, from minus to plus one million. Default 0. With `combine: least`, a component with a
    /// larger offset must be lower before it decides; with `sum`, offsets do not change the ranking.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub offset: f64,
    /// Scale of the statistic. Default: `standardise` of the score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standardise: Option<Standardise>,
    /// Whether a sample without the statistic is scored by the other terms. True for some terms of presets only.
    #[serde(skip)]
    pub optional: bool,
}

impl fmt::Display for Term {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&sum_of(std::slice::from_ref(self)))
    }
}

impl Term {
    /// Returns the scale of the term in a group. A statistic without values has no summary: an optional term is then omitted,
    /// any other has no scale. `standardise`: default for a term without one.
    pub fn scale(
        &self,
        standardise: Standardise,
        summary: Option<SummaryStatistics>,
        histogram: Option<Histogram>,
    ) -> Option<Scale> {
        if let Some(summary) = summary {
            return Some(Scale { summary, histogram });
        }
        let standardise = self.standardise.unwrap_or(standardise);
        self.optional.then(|| Scale::new(&[], standardise))
    }
}

fn default_weight() -> f64 {
    1.0
}

/// Combination of the terms of a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Sum: a strong component makes up for a weak one.
    #[default]
    Sum,
    /// Minimum: the weakest component decides.
    Least,
}

impl Combine {
    /// Formats the score: `dependency_strength - 0.5 · far_variance`, `the least of a, 1.2 - b`.
    pub fn formula(self, terms: &[Term]) -> String {
        match self {
            Self::Least => {
                let components: Vec<String> = terms.iter().map(Term::to_string).collect();
                format!("the least of {}", components.join(", "))
            }
            Self::Sum => sum_of(terms),
        }
    }
}

fn sum_of(terms: &[Term]) -> String {
    let mut text = String::new();
    let mut add = |negative: bool, addend: &str| {
        text += match (text.is_empty(), negative) {
            (true, false) => "",
            (true, true) => "-",
            (false, false) => " + ",
            (false, true) => " - ",
        };
        text += addend;
    };
    for Term { statistic, weight, offset, standardise: _, optional: _ } in terms {
        // `1.2 - copy_share` reads better than `-copy_share + 1.2`.
        let first = *weight < 0.0 && *offset > 0.0;
        if first {
            add(false, &offset.to_string());
        }
        let factor = weight.abs().to_string();
        let weighted =
            if factor == "1" { statistic.clone() } else { format!("{factor} · {statistic}") };
        add(*weight < 0.0, &weighted);
        if !first && *offset != 0.0 {
            add(*offset < 0.0, &offset.abs().to_string());
        }
    }
    text
}

/// Scale of a statistic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Standardise {
    /// `(x - mean) / sample standard deviation`; 0 if all values are equal.
    #[default]
    ZScore,
    /// `(x - min) / (max - min)`; 0.5 if all values are equal.
    MinMax,
    /// Share of the group's values below it, by 4,096 bins between minimum and maximum; 0.5 if all values are equal.
    Percentile,
}

/// Summary and histogram of a statistic in one group, the basis of its scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Mean, deviation, minimum and maximum of the samples that have the statistic.
    pub summary: SummaryStatistics,
    /// Their histogram, if a term uses percentiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
}

impl Scale {
    /// Returns the scale of the finite `values`. The same values in the same order give the same bits.
    pub fn new(values: &[f64], standardise: Standardise) -> Self {
        let finite = values.iter().copied().filter(|value| value.is_finite());
        let summary = SummaryStatistics::from_values(finite.clone());
        let histogram = (standardise == Standardise::Percentile).then(|| {
            let mut counting = HistogramBuilder::between(summary.min, summary.max);
            finite.for_each(|value| counting.add(value));
            counting.finish()
        });
        Self { summary, histogram }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct ScaledTerm {
    weight: f64,
    offset: f64,
    optional: bool,
    standardise: Standardise,
    scale: Scale,
}

impl ScaledTerm {
    fn standardised(&self, value: f64) -> f64 {
        let SummaryStatistics { mean, standard_deviation, min, max } = self.scale.summary;
        match (self.standardise, &self.scale.histogram) {
            // Subnormal spreads may have a standard deviation of 0 as well.
            (Standardise::ZScore, _) if max <= min || standard_deviation <= 0.0 => 0.0,
            (Standardise::ZScore, _) => {
                let deviation = value - mean;
                if deviation.is_finite() {
                    deviation / standard_deviation
                } else {
                    (value / 2.0 - mean / 2.0) / standard_deviation * 2.0
                }
            }
            (Standardise::MinMax, _) if max <= min => 0.5,
            (Standardise::MinMax, _) => share_of_range(min, max, value),
            (Standardise::Percentile, histogram) => {
                histogram.as_ref().map_or(f64::NAN, |histogram| histogram.percentile(value))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scorer {
    terms: Vec<ScaledTerm>,
    combine: Combine,
}

impl Scorer {
    /// `scales`: one for each term. `standardise`: default for terms without one. `None` if a term uses percentiles
    /// and its scale lacks them, or if the numbers of terms and scales differ.
    pub fn new(
        terms: &[Term],
        combine: Combine,
        standardise: Standardise,
        scales: &[Scale],
    ) -> Option<Self> {
        let scaled = |(term, scale): (&Term, &Scale)| {
            let Term { weight, offset, optional, .. } = *term;
            let (standardise, scale) = (term.standardise.unwrap_or(standardise), scale.clone());
            let lacks = standardise == Standardise::Percentile && scale.histogram.is_none();
            (!lacks).then_some(ScaledTerm { weight, offset, optional, standardise, scale })
        };
        let scored = terms.iter().zip(scales).map(scaled).collect::<Option<Vec<_>>>()?;
        (scored.len() == terms.len().max(scales.len())).then_some(Self { terms: scored, combine })
    }

    /// Returns the score of a sample, `NaN` if the statistic of a required term is not finite. A sum adds the terms in order, an
    /// offset of 0 adds nothing: `z(x) - alpha · z(y)` has the same bits as the written formula.
    pub fn score(&self, values: &[f64]) -> f64 {
        let mut terms = self.terms.iter().zip(values);
        if !terms.all(|(term, value)| term.optional || value.is_finite()) {
            return f64::NAN;
        }
        let terms = self.terms(values).filter(|term| !term.is_nan());
        let score = match self.combine {
            Combine::Sum => terms.reduce(|sum, term| sum + term),
            Combine::Least => terms.reduce(|least, term| if term < least { term } else { least }),
        };
        score.unwrap_or(f64::NAN)
    }

    /// Returns each term, `weight · standardised(statistic) + offset`, `NaN` if the statistic is not finite.
    pub fn terms(&self, values: &[f64]) -> impl Iterator<Item = f64> {
        let term = |(term, value): (&ScaledTerm, &f64)| {
            if !value.is_finite() {
                return f64::NAN;
            }
            let weighted = term.weight * term.standardised(*value);
            if term.offset == 0.0 { weighted } else { weighted + term.offset }
        };
        self.terms.iter().zip(values).map(term)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::score::presets::Formula;

    fn term(statistic: &str, weight: f64) -> Term {
        Term {
            statistic: statistic.into(),
            weight,
            offset: 0.0,
            standardise: None,
            optional: false,
        }
    }

    /// Scores samples given by columns.
    fn scores(
        terms: &[Term],
        combine: Combine,
        standardise: Standardise,
        columns: &[&[f64]],
    ) -> Vec<f64> {
        let scale = |(term, column): (&Term, &&[f64])| {
            Scale::new(column, term.standardise.unwrap_or(standardise))
        };
        let scales: Vec<Scale> = terms.iter().zip(columns).map(scale).collect();
        let scorer = Scorer::new(terms, combine, standardise, &scales).unwrap();
        let values = |sample| columns.iter().map(|column| column[sample]).collect::<Vec<_>>();
        (0..columns[0].len()).map(|sample| scorer.score(&values(sample))).collect()
    }

    #[test]
    fn values_far_apart_are_standardised() {
        let (near, far) = ([-1.5, 0.25, 1.5, 1.0], [-1.5e308, 0.25e308, 1.5e308, 1e308]);
        for standardise in [Standardise::ZScore, Standardise::MinMax, Standardise::Percentile] {
            let terms = [term("a", 1.0)];
            let [near, far] = [&near, &far]
                .map(|column| scores(&terms, Combine::Sum, standardise, &[&column[..]]));
            for (near, far) in near.iter().zip(&far) {
                assert!((near - far).abs() < 1e-12, "{standardise:?}: {near} {far}");
            }
        }
    }

    fn bits(scores: &[f64]) -> Vec<u64> {
        scores.iter().map(|score| score.to_bits()).collect()
    }

    /// Any finite number, often an edge case.
    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![
            -2.0_f64..2.0,
            prop::sample::select(vec![0.0, -0.0, 1.0, 1e-300, 5e-324, 1e300, 0.1]),
        ]
    }

    /// Equation 8 of Wu et al. 2025, written out.
    fn longattn(min_max: bool, alpha: f64, strength: &[f64], variance: &[f64]) -> Vec<f64> {
        let standardised = |values: &[f64]| -> Vec<f64> {
            let SummaryStatistics { mean, standard_deviation, min, max } =
                SummaryStatistics::from_values(values.iter().copied());
            let standardised = |value: &f64| match min_max {
                true if max <= min => 0.5,
                true => (value - min) / (max - min),
                false if max <= min || standard_deviation <= 0.0 => 0.0,
                false => (value - mean) / standard_deviation,
            };
            values.iter().map(standardised).collect()
        };
        let terms = standardised(strength).into_iter().zip(standardised(variance));
        terms.map(|(strength, variance)| strength - alpha * variance).collect()
    }

    proptest! {
        #[test]
        fn longattn_has_the_bits_of_the_written_formula(
            samples in prop::collection::vec((number(), number()), 0..40),
            alpha in prop_oneof![Just(0.5), Just(0.0), 0.0_f64..100.0],
            min_max: bool,
        ) {
            let (strength, variance): (Vec<f64>, Vec<f64>) = samples.into_iter().unzip();
            let standardise = if min_max { Standardise::MinMax } else { Standardise::ZScore };
            let expected = longattn(min_max, alpha, &strength, &variance);
            let terms = [term("dependency_strength", 1.0), term("far_variance", -alpha)];
            let got = scores(&terms, Combine::Sum, standardise, &[&strength, &variance]);
            prop_assert_eq!(bits(&got), bits(&expected));
        }
    }

    #[test]
    fn the_minimum_decides() {
        let near = Term { offset: 0.2, ..term("near", 1.0) };
        let copied = Term { offset: 1.2, ..term("copied", -1.0) };
        let terms = [term("far", 1.0), near, copied];
        let columns: [&[f64]; 3] =
            [&[1.0, 2.0, 3.0, 4.0, 5.0], &[9.0, 8.0, 7.0, 6.0, 5.0], &[0.0, 0.0, 0.0, 0.0, 1.0]];
        let got = scores(&terms, Combine::Least, Standardise::Percentile, &columns);
        let expected = [0.1, 0.3, 0.5, 0.5, 0.1 + 0.2];
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-12, "{got} {expected}");
        }
    }

    #[test]
    fn each_term_can_have_its_own_scale() {
        let percentile = Term { standardise: Some(Standardise::Percentile), ..term("a", 1.0) };
        let column: &[f64] = &[0.0, 1.0, 2.0, 3.0];
        let got = scores(
            &[percentile, term("b", 2.0)],
            Combine::Sum,
            Standardise::MinMax,
            &[column, column],
        );
        assert_eq!(bits(&got), bits(&[0.125, 0.375 + 2.0 / 3.0, 0.625 + 4.0 / 3.0, 0.875 + 2.0]));
    }

    #[test]
    fn a_value_that_is_not_finite_affects_only_its_sample() {
        let (one, other) = ([1.0, f64::NAN, 3.0, 5.0], [2.0, 4.0, f64::INFINITY, 6.0]);
        let terms = [term("one", 1.0), term("other", 1.0)];
        for standardise in [Standardise::ZScore, Standardise::MinMax, Standardise::Percentile] {
            let got = scores(&terms, Combine::Sum, standardise, &[&one, &other]);
            assert_eq!(
                got.iter().map(|score| score.is_nan()).collect::<Vec<_>>(),
                [false, true, true, false]
            );
            assert_eq!(Scale::new(&one, standardise), Scale::new(&[1.0, 3.0, 5.0], standardise));
        }
    }

    #[test]
    fn optional_terms_are_omitted_without_their_statistic() {
        let optional = Term { optional: true, ..term("b", 1.0) };
        let columns: [&[f64]; 2] = [&[0.0, 1.0, 2.0, f64::NAN], &[f64::NAN, 1.0, 0.0, 1.0]];
        let score = |combine| {
            let terms = [term("a", 1.0), optional.clone()];
            scores(&terms, combine, Standardise::MinMax, &columns)
        };
        assert_eq!(bits(&score(Combine::Least)[..3]), bits(&[0.0, 0.5, 0.0]));
        assert_eq!(bits(&score(Combine::Sum)[..3]), bits(&[0.0, 1.5, 1.0]));
        assert!(score(Combine::Least)[3].is_nan(), "the other term is not optional");
    }

    #[test]
    fn groups_of_equal_or_no_values_have_no_spread() {
        for (standardise, flat) in
            [(Standardise::ZScore, 0.0), (Standardise::MinMax, 0.5), (Standardise::Percentile, 0.5)]
        {
            let got = scores(&[term("x", 1.0)], Combine::Sum, standardise, &[&[7.0, 7.0]]);
            assert_eq!(bits(&got), bits(&[flat, flat]));
            let empty = Scale::new(&[f64::NAN], standardise);
            let scorer =
                Scorer::new(&[term("x", 1.0)], Combine::Sum, standardise, &[empty]).unwrap();
            assert_eq!(scorer.score(&[3.0]).to_bits(), flat.to_bits());
        }
    }

    #[test]
    fn percentile_terms_need_a_histogram() {
        let scale = Scale::new(&[1.0, 2.0], Standardise::ZScore);
        let scorer = |standardise, scales: &[Scale]| {
            Scorer::new(&[term("x", 1.0)], Combine::Sum, standardise, scales)
        };
        assert!(scorer(Standardise::MinMax, std::slice::from_ref(&scale)).is_some());
        assert_eq!(scorer(Standardise::Percentile, std::slice::from_ref(&scale)), None);
        assert_eq!(scorer(Standardise::ZScore, &[]), None);
        assert_eq!(scorer(Standardise::ZScore, &[scale.clone(), scale]), None);
    }

    #[test]
    fn a_scale_round_trips() {
        let scale = Scale::new(&[0.1, 0.7, 0.1 + 0.2], Standardise::Percentile);
        let text = serde_json::to_string(&scale).unwrap();
        assert_eq!(serde_json::from_str::<Scale>(&text).unwrap(), scale);
    }

    #[test]
    fn a_score_is_formatted_as_a_formula() {
        let formula = |formula: Formula| {
            let (terms, combine) = formula.terms(0.5, |_| true);
            combine.formula(&terms)
        };
        assert_eq!(formula(Formula::Longattn), "dependency_strength - 0.5 · far_variance");
        assert_eq!(formula(Formula::FarRecurrence), "far_recurrence");
        assert_eq!(
            formula(Formula::BalancedRecurrence),
            "the least of far_recurrence, link_coverage, near_recurrence + 0.3, midrange_share + 0.1, \
             1.05 - periodic_share, 1.1 - repeated_share, 1.2 - digit_share, dependency_strength + 0.3"
        );
        let below = Term { offset: -2.0, ..term("x", -3.0) };
        assert_eq!(Combine::Sum.formula(&[below, term("y", 0.0)]), "-3 · x - 2 + 0 · y");
    }

    #[test]
    fn only_the_statistic_of_a_term_is_required() {
        let read: Term = serde_json::from_str(r#"{"statistic": "far_recurrence"}"#).unwrap();
        assert_eq!(read, term("far_recurrence", 1.0));
        assert!(serde_json::from_str::<Term>(r#"{"statistic": "x", "wieght": 2}"#).is_err());
        assert!(serde_json::from_str::<Term>(r#"{"statistic": "x", "optional": true}"#).is_err());
    }
}
