//! Named scores: the terms that a formula stands for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::terms::{Combine, Standardise, Term};

/// A named score. What it stands for is printed with the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Formula {
    /// `standardised(dependency strength) + alpha · standardised(-far variance)`: Wu et al. 2025, equation 8.
    #[default]
    Longattn,
    /// `standardised(far recurrence)`. Give it a guard on `copy_share`: without one it prefers duplicated text.
    FarRecurrence,
    /// The weakest of four sides, as percentiles of the group: linked far, linked widely, still in order (near links fall
    /// where sentences change places), not copied. With first-layer attention in the pipeline, its dependency strength is
    /// a fifth. Chosen on documents that were not used to measure it.
    BalancedRecurrence,
    /// The weakest of five sides: the four of `balanced-recurrence`, and the mean gain of a whole model by the long context.
    /// For windows that a guard on `copy_share` has let pass: models gain most by copies.
    BalancedGain,
}

/// The weight of the uniformity term of `longattn`, as published.
pub const DEFAULT_ALPHA: f64 = 0.5;

/// How far the fifth side of `balanced-recurrence` may stand below the others before it decides.
const ATTENTION_OFFSET: f64 = 0.3;

impl Formula {
    /// As it is written in a pipeline.
    pub fn name(self) -> &'static str {
        match self {
            Self::Longattn => "longattn",
            Self::FarRecurrence => "far-recurrence",
            Self::BalancedRecurrence => "balanced-recurrence",
            Self::BalancedGain => "balanced-gain",
        }
    }

    /// What it stands for. `alpha` weighs the uniformity term of `longattn` and nothing else; `attention`: whether the
    /// pipeline measures the dependency strength.
    pub fn terms(self, alpha: f64, attention: bool) -> (Vec<Term>, Combine) {
        let term = |statistic: &str, weight: f64| Term {
            statistic: statistic.to_owned(),
            weight,
            offset: 0.0,
            standardise: None,
        };
        let side = |statistic: &str, weight: f64, offset: f64| Term {
            offset,
            standardise: Some(Standardise::Percentile),
            ..term(statistic, weight)
        };
        match self {
            Self::Longattn => {
                (vec![term("dependency_strength", 1.0), term("far_variance", -alpha)], Combine::Sum)
            }
            Self::FarRecurrence => (vec![term("far_recurrence", 1.0)], Combine::Sum),
            Self::BalancedRecurrence | Self::BalancedGain => {
                let mut sides = vec![
                    side("far_recurrence", 1.0, 0.0),
                    side("link_coverage", 1.0, 0.0),
                    side("near_recurrence", 1.0, 0.2),
                    side("copy_share", -1.0, 1.2),
                ];
                if self == Self::BalancedGain {
                    sides.push(side("long_gain", 1.0, 0.0));
                } else if attention {
                    sides.push(side("dependency_strength", 1.0, ATTENTION_OFFSET));
                }
                (sides, Combine::Least)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Measure, Orientation};
    use crate::first_layer_attention::FirstLayerAttention;
    use crate::measures::{LanguageModel, Recurrence};

    const ALL: [Formula; 4] = [
        Formula::Longattn,
        Formula::FarRecurrence,
        Formula::BalancedRecurrence,
        Formula::BalancedGain,
    ];

    #[test]
    fn every_formula_is_of_statistics_that_a_measure_writes() {
        let columns = [
            FirstLayerAttention::default().columns(),
            Recurrence::default().columns(),
            LanguageModel::default().columns(),
        ]
        .concat();
        for formula in ALL {
            for term in formula.terms(0.5, true).0 {
                let column = columns.iter().find(|column| column.name == *term.statistic).unwrap();
                let prefers_less =
                    column.orientation == Orientation::Lower || term.statistic == "copy_share";
                assert_eq!(term.weight < 0.0, prefers_less, "{}", term.statistic);
            }
        }
    }

    #[test]
    fn a_formula_has_the_name_that_it_is_written_with() {
        for formula in ALL {
            assert_eq!(serde_json::to_value(formula).unwrap(), formula.name());
        }
    }

    #[test]
    fn balanced_recurrence_has_a_fifth_side_where_attention_is_measured() {
        let sides = |attention| {
            let (terms, combine) = Formula::BalancedRecurrence.terms(0.5, attention);
            assert_eq!(combine, Combine::Least);
            let side = |term: &Term| (term.statistic.clone(), term.weight, term.offset);
            terms.iter().map(side).collect::<Vec<_>>()
        };
        let four = [
            ("far_recurrence".to_owned(), 1.0, 0.0),
            ("link_coverage".to_owned(), 1.0, 0.0),
            ("near_recurrence".to_owned(), 1.0, 0.2),
            ("copy_share".to_owned(), -1.0, 1.2),
        ];
        assert_eq!(sides(false), four);
        assert_eq!(sides(true)[..4], four);
        assert_eq!(sides(true)[4], ("dependency_strength".to_owned(), 1.0, 0.3));
    }

    #[test]
    fn balanced_gain_has_what_a_long_context_gains_as_its_fifth_side() {
        let (four, _) = Formula::BalancedRecurrence.terms(0.5, false);
        let (five, combine) = Formula::BalancedGain.terms(0.5, true);
        assert_eq!((&five[..4], combine), (&four[..], Combine::Least));
        let fifth = &five[4];
        assert_eq!((fifth.statistic.as_str(), fifth.weight, fifth.offset), ("long_gain", 1.0, 0.0));
        assert_eq!((five.len(), fifth.standardise), (5, Some(Standardise::Percentile)));
    }

    #[test]
    fn alpha_weighs_the_uniformity_of_longattn() {
        let (terms, combine) = Formula::Longattn.terms(0.25, true);
        assert_eq!((terms[0].weight, terms[1].weight, combine), (1.0, -0.25, Combine::Sum));
    }
}
