//! Named scores and their terms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::terms::{Combine, Standardise, Term};

/// Named score. `longsift plan` prints its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Formula {
    /// `standardised(dependency strength) - alpha · standardised(far variance)`: Wu et al. 2025, equation 8.
    #[default]
    Longattn,
    /// `standardised(far recurrence)`. Use it with guards: without them it prefers duplicated text.
    FarRecurrence,
    /// Minimum of six components, each a percentile within its group, so that the weakest decides: text recurs far back
    /// (`far_recurrence`), in many parts of the window (`link_coverage`), with sentences in order (`near_recurrence`),
    /// rare words cluster (`midrange_share`), and the text is neither periodic (`periodic_share`) nor repeated
    /// (`repeated_share`). With `lexical` on text, `digit_share` is a seventh; with `first-layer-attention`,
    /// `dependency_strength` is added. A window without `midrange_share` (too few pairs) is scored without this
    /// component. `longsift plan` prints the components.
    BalancedRecurrence,
    /// Minimum of the components of `balanced-recurrence`, without attention, and of `long_gain` of a whole model. Use
    /// it with guards against copies, from which models gain most.
    BalancedGain,
    /// Random number from 0 to 1 that depends only on `seed`, the document's id and the window's index: a control for
    /// other selections. It needs no statistic.
    Random,
}

/// Seed of `random`.
pub const DEFAULT_SEED: u64 = 1;

/// Weight of `far_variance` in `longattn`, as published.
pub const DEFAULT_ALPHA: f64 = 0.5;

/// Offset of the attention component: it decides the score only if it is this far below the others.
const ATTENTION_OFFSET: f64 = 0.3;

impl Formula {
    /// Returns the name used in pipelines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Longattn => "longattn",
            Self::FarRecurrence => "far-recurrence",
            Self::BalancedRecurrence => "balanced-recurrence",
            Self::BalancedGain => "balanced-gain",
            Self::Random => "random",
        }
    }

    /// Returns the version of the terms, if the name has had others.
    pub fn version(self) -> Option<u32> {
        self.is_balanced().then_some(2)
    }

    /// Returns whether the score is the minimum of the recurrence components.
    pub fn is_balanced(self) -> bool {
        matches!(self, Self::BalancedRecurrence | Self::BalancedGain)
    }

    /// Returns the terms and how they are combined. `alpha` weights `far_variance` in `longattn` and nothing
    /// else; `is_measured`: whether the pipeline measures a statistic, for optional components.
    pub fn terms(self, alpha: f64, is_measured: impl Fn(&str) -> bool) -> (Vec<Term>, Combine) {
        let term = |statistic: &str, weight: f64| Term {
            statistic: statistic.to_owned(),
            weight,
            offset: 0.0,
            standardise: None,
            optional: false,
        };
        let component = |statistic: &str, weight: f64, offset: f64| Term {
            offset,
            standardise: Some(Standardise::Percentile),
            ..term(statistic, weight)
        };
        match self {
            Self::Longattn => {
                (vec![term("dependency_strength", 1.0), term("far_variance", -alpha)], Combine::Sum)
            }
            Self::FarRecurrence => (vec![term("far_recurrence", 1.0)], Combine::Sum),
            Self::Random => (Vec::new(), Combine::Sum),
            Self::BalancedRecurrence | Self::BalancedGain => {
                let mut components = vec![
                    component("far_recurrence", 1.0, 0.0),
                    component("link_coverage", 1.0, 0.0),
                    component("near_recurrence", 1.0, 0.3),
                    Term { optional: true, ..component("midrange_share", 1.0, 0.1) },
                    component("periodic_share", -1.0, 1.05),
                    component("repeated_share", -1.0, 1.1),
                ];
                if is_measured("digit_share") {
                    components.push(component("digit_share", -1.0, 1.2));
                }
                if self == Self::BalancedGain {
                    components.push(component("long_gain", 1.0, 0.0));
                } else if is_measured("dependency_strength") {
                    components.push(component("dependency_strength", 1.0, ATTENTION_OFFSET));
                }
                (components, Combine::Least)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Measure, Orientation};
    use crate::first_layer_attention::FirstLayerAttention;
    use crate::measures::{LanguageModel, Lexical, Recurrence};

    const ALL: [Formula; 5] = [
        Formula::Longattn,
        Formula::FarRecurrence,
        Formula::BalancedRecurrence,
        Formula::BalancedGain,
        Formula::Random,
    ];

    #[test]
    fn every_formula_uses_existing_statistics() {
        let columns = [
            FirstLayerAttention::default().columns(),
            Recurrence::default().columns(),
            LanguageModel::default().columns(),
            Lexical::default().columns(),
        ]
        .concat();
        for formula in ALL {
            for term in formula.terms(0.5, |_| true).0 {
                let column = columns.iter().find(|column| column.name == *term.statistic).unwrap();
                let prefers_less = column.orientation == Orientation::Lower;
                assert_eq!(term.weight < 0.0, prefers_less, "{}", term.statistic);
            }
        }
    }

    #[test]
    fn names_of_formulas_match_the_settings() {
        for formula in ALL {
            assert_eq!(serde_json::to_value(formula).unwrap(), formula.name());
        }
    }

    #[test]
    fn balanced_recurrence_uses_measured_statistics() {
        let components = |formula: Formula, measured: &[&str]| {
            let (terms, combine) = formula.terms(0.5, |name| measured.contains(&name));
            assert_eq!((combine, formula.version()), (Combine::Least, Some(2)));
            let is_percentile = |term: &Term| term.standardise == Some(Standardise::Percentile);
            assert!(terms.iter().all(is_percentile));
            let optional = terms.iter().filter(|term| term.optional);
            assert_eq!(
                optional.map(|term| &*term.statistic).collect::<Vec<_>>(),
                ["midrange_share"]
            );
            combine.formula(&terms)
        };
        let (recurrence, gain) = (Formula::BalancedRecurrence, Formula::BalancedGain);
        let six = "the least of far_recurrence, link_coverage, near_recurrence + 0.3, midrange_share + 0.1, \
                   1.05 - periodic_share, 1.1 - repeated_share";
        assert_eq!(components(recurrence, &[]), six);
        let seven = format!("{six}, 1.2 - digit_share");
        assert_eq!(components(recurrence, &["digit_share"]), seven);
        let all = ["digit_share", "dependency_strength"];
        assert_eq!(components(recurrence, &all), format!("{seven}, dependency_strength + 0.3"));
        assert_eq!(components(gain, &all), format!("{seven}, long_gain"));
        assert_eq!(components(gain, &[]), format!("{six}, long_gain"));
        assert_eq!((Formula::Longattn.version(), Formula::FarRecurrence.version()), (None, None));
    }

    #[test]
    fn alpha_weights_the_uniformity_of_longattn() {
        let (terms, combine) = Formula::Longattn.terms(0.25, |_| true);
        assert_eq!((terms[0].weight, terms[1].weight, combine), (1.0, -0.25, Combine::Sum));
    }
}
