//! Settings of a score over any statistics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DocumentScore;
use super::presets::{DEFAULT_ALPHA, DEFAULT_SEED, Formula};
use super::terms::{Combine, Standardise, Term};
use crate::contract::{BrokenRule, Column, Location};
use crate::measures::statistics;

/// Combines the statistics of each window into one comparable score: terms `weight · standardised(statistic) + offset`,
/// combined. A `formula` names the terms, or `terms` lists them. It needs the statistics of the whole corpus, so it
/// runs after every window is measured, and takes seconds to run again when only its own settings change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Named score. Default `longattn`, unless `terms` are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formula: Option<Formula>,
    /// Weight of `far_variance` in `longattn`, 0 to 100. Default 0.5, as published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub alpha: Option<f64>,
    /// Seed of `formula: random`. Another seed draws other samples. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Terms of the score, instead of a `formula`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub terms: Option<Vec<Term>>,
    /// Combination of the `terms`: their `sum` (default), or `least`, their minimum, so that the weakest component
    /// decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combine: Option<Combine>,
    /// Scale of terms that do not set `standardise`: `z-score` (default) as in the `LongAttn` paper, `min-max`
    /// as in its published code, or `percentile`, which is robust against outliers.
    #[serde(default)]
    pub standardise: Standardise,
    /// Maximum relative standard error of a term's statistic (root mean square over windows). Beyond it the selection
    /// is refused, unless the term's weight is 0. Only statistics of sampled `rows` have an error. Default 0.1:
    /// `docs/performance.md` shows how a noisier term changes the ranking.
    #[serde(default = "default_max_relative_error")]
    #[schemars(range(min = 0.0, max = 100.0))]
    pub max_relative_error: f64,
    /// Column of the input whose values are the groups: standardisation, ranking, guards and the filter's fraction or
    /// budget apply within each. Nulls form a separate group. Default: one group, since every group keeps its
    /// share, even one that is mostly junk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// With `output.samples: documents`, the value of a document's statistics: the `mean` or the `max` over its
    /// windows. Default: each statistic's own rule, the mean for most. Not used with `samples: windows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_score: Option<DocumentScore>,
    /// `calibration.json` of an earlier run, relative to the pipeline file's folder. Its scales, guards and thresholds
    /// are used instead of those of this input, so that new files are filtered like the earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = ["s3", "gs", "az", "http", "https"]))]
    pub calibration: Option<Location>,
    /// Reaction if scores have drifted far from the `calibration` (population stability index above 0.25 in a group of
    /// at least 100 samples): `warn`, or `fail`, which ends the run with exit code 6 before anything is written.
    /// Default `warn`, since some drift is normal in a growing corpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_drift: Option<OnDrift>,
}

/// Reaction to scores that have drifted far from a calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// Warns.
    #[default]
    Warn,
    /// Ends the run with exit code 6.
    Fail,
}

fn default_max_relative_error() -> f64 {
    0.1
}

impl Score {
    /// Replaces missing settings by their defaults.
    pub fn fill_in_defaults(&mut self) {
        if self.terms.is_some() {
            self.combine.get_or_insert_default();
            return;
        }
        match self.formula.get_or_insert_default() {
            Formula::Longattn => drop(self.alpha.get_or_insert(DEFAULT_ALPHA)),
            Formula::Random => drop(self.seed.get_or_insert(DEFAULT_SEED)),
            _ => {}
        }
    }

    /// Returns the seed of a random score; `None` if statistics are scored.
    pub fn random_seed(&self) -> Option<u64> {
        let random = self.terms.is_none() && self.formula == Some(Formula::Random);
        random.then(|| self.seed.unwrap_or(DEFAULT_SEED))
    }

    /// Formats the score as a formula. `columns`: those of the pipeline's measures.
    pub fn in_words(&self, columns: &[Column]) -> String {
        if let Some(seed) = self.random_seed() {
            return format!("a random number per sample, seed {seed}");
        }
        let (terms, combine) = self.terms(columns);
        combine.formula(&terms)
    }

    /// Returns the terms of the score and how they are combined. `columns`: those of the pipeline's measures.
    pub fn terms(&self, columns: &[Column]) -> (Vec<Term>, Combine) {
        if let Some(terms) = &self.terms {
            return (terms.clone(), self.combine.unwrap_or_default());
        }
        let is_measured = |name: &str| columns.iter().any(|column| column.name == name);
        self.formula.unwrap_or_default().terms(self.alpha.unwrap_or(DEFAULT_ALPHA), is_measured)
    }

    /// Returns every constraint that the settings violate among themselves.
    pub fn broken_rules(&self) -> Vec<BrokenRule> {
        let (has_terms, scaled) =
            (self.terms.is_some(), self.standardise != Standardise::default());
        let (named, listed) = (self.terms(&[]).0, self.terms.as_deref().unwrap_or_default());
        let is_own = |formula: Formula| !has_terms && self.formula.unwrap_or_default() == formula;
        let mut broken = Vec::new();
        let mut rule = |is_broken: bool, setting: &str, message: &str, hint: &str| {
            broken.extend(is_broken.then(|| BrokenRule::new(setting, message, hint)));
        };
        rule(
            has_terms && self.formula.is_some(),
            "terms",
            &format!(
                "`terms` and `formula: {}` exclude each other",
                self.formula.unwrap_or_default().name()
            ),
            "remove one: a formula has its own terms",
        );
        rule(
            self.combine.is_some() && !has_terms,
            "combine",
            "`combine` has no effect without `terms`",
            "remove it: a formula defines how its terms are combined",
        );
        rule(
            self.alpha.is_some() && !is_own(Formula::Longattn),
            "alpha",
            "`alpha` has no effect without `formula: longattn`",
            "remove it, or set the `weight` of a term",
        );
        rule(
            self.seed.is_some() && !is_own(Formula::Random),
            "seed",
            "`seed` has no effect without `formula: random`",
            "remove it: other scores are not random",
        );
        rule(
            self.on_drift.is_some() && self.calibration.is_none(),
            "on_drift",
            "`on_drift` has no effect without a `calibration`",
            "remove it, or set `calibration`",
        );
        rule(
            scaled && self.random_seed().is_some(),
            "standardise",
            "`standardise` has no effect: a random score is not standardised",
            "remove it",
        );
        rule(
            scaled && !named.is_empty() && named.iter().all(|term| term.standardise.is_some()),
            "standardise",
            "`standardise` has no effect: every term has its own",
            "remove it, or list the terms without their own `standardise`",
        );
        rule(
            !listed.is_empty() && listed.iter().all(|term| term.weight == 0.0),
            "terms",
            "all weights are 0: every sample has the same score",
            "give at least one term a `weight` other than 0",
        );
        broken
    }

    /// Returns every term that does not name a single number of the pipeline's measures.
    pub fn unknown_statistics(&self, columns: &[Column]) -> Vec<BrokenRule> {
        let setting = |index: usize| match self.terms {
            Some(_) => format!("terms.{index}.statistic"),
            None => "formula".to_owned(),
        };
        let unknown = |(index, term): (usize, &Term)| {
            statistics::scalar(&setting(index), &term.statistic, columns).err()
        };
        self.terms(columns).0.iter().enumerate().filter_map(unknown).collect()
    }
}

/// Relative standard error of a statistic over windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RelativeError {
    /// Number of windows with an error and a value above 0.
    pub windows: u64,
    squares: f64,
}

impl RelativeError {
    /// Adds a window with the statistic `value` and its standard error `error`.
    pub fn add(&mut self, value: f64, error: f64) {
        if value > 0.0 {
            self.windows += 1;
            self.squares += (error / value).powi(2);
        }
    }

    pub fn append(&mut self, other: &Self) {
        self.windows += other.windows;
        self.squares += other.squares;
    }

    /// Returns the root mean square; 0 without windows.
    pub fn root_mean_square(&self) -> f64 {
        (self.squares / self.windows.max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Measure;
    use crate::first_layer_attention::FirstLayerAttention;
    use crate::measures::{Lexical, Recurrence};

    fn settings(text: &str) -> Score {
        serde_json::from_str(text).unwrap()
    }

    fn broken(text: &str) -> Vec<String> {
        let rules = settings(text).broken_rules();
        rules.into_iter().map(|rule| format!("{}: {}", rule.setting, rule.message)).collect()
    }

    #[test]
    fn the_default_is_longattn() {
        let (terms, combine) = settings("{}").terms(&[]);
        assert_eq!((terms, combine), Formula::Longattn.terms(0.5, |_| false));
        assert_eq!(settings("{}").max_relative_error.to_bits(), 0.1_f64.to_bits());
        assert_eq!(
            settings(r#"{"alpha": 2}"#).terms(&[]).0[1].weight.to_bits(),
            (-2.0_f64).to_bits()
        );
    }

    #[test]
    fn explicit_defaults_are_equivalent() {
        let terms = r#"{"terms": [{"statistic": "copy_share"}]}"#;
        let random = r#"{"formula": "random"}"#;
        for text in ["{}", terms, random, r#"{"formula": "far-recurrence"}"#, r#"{"alpha": 2}"#] {
            let mut filled = settings(text);
            filled.fill_in_defaults();
            assert_eq!(filled.terms(&[]), settings(text).terms(&[]), "{text}");
            assert_eq!(filled.broken_rules(), []);
        }
        let mut default = settings("{}");
        default.fill_in_defaults();
        assert_eq!((default.formula, default.alpha), (Some(Formula::Longattn), Some(0.5)));
        let mut default = settings(random);
        default.fill_in_defaults();
        assert_eq!((default.seed, default.alpha), (Some(1), None));
    }

    #[test]
    fn balanced_recurrence_includes_measured_statistics() {
        let balanced = settings(r#"{"formula": "balanced-recurrence"}"#);
        let (recurrence, attention) =
            (Recurrence::default().columns(), FirstLayerAttention::default().columns());
        let text = Lexical::default().columns();
        let no_text = Lexical { text: Some(false) }.columns();
        assert_eq!(balanced.terms(&recurrence).0.len(), 6);
        assert_eq!(balanced.terms(&[&recurrence[..], &no_text].concat()).0.len(), 6);
        assert_eq!(balanced.terms(&[&recurrence[..], &text].concat()).0.len(), 7);
        assert_eq!(balanced.terms(&[recurrence, attention, text].concat()).0.len(), 8);
    }

    #[test]
    fn all_contradictory_settings_are_named() {
        let terms = r#""terms": [{"statistic": "copy_share", "weight": 0}]"#;
        assert_eq!(
            broken(&format!(r#"{{"formula": "far-recurrence", "alpha": 1, {terms}}}"#)),
            [
                "terms: `terms` and `formula: far-recurrence` exclude each other",
                "alpha: `alpha` has no effect without `formula: longattn`",
                "terms: all weights are 0: every sample has the same score",
            ]
        );
        assert_eq!(
            broken(r#"{"combine": "least"}"#),
            ["combine: `combine` has no effect without `terms`"]
        );
        assert_eq!(
            broken(r#"{"formula": "balanced-recurrence", "alpha": 0.5}"#),
            ["alpha: `alpha` has no effect without `formula: longattn`"]
        );
        assert_eq!(
            broken(r#"{"formula": "balanced-recurrence", "standardise": "min-max"}"#),
            ["standardise: `standardise` has no effect: every term has its own"]
        );
        assert_eq!(
            broken(r#"{"formula": "random", "seed": 7, "standardise": "min-max"}"#),
            ["standardise: `standardise` has no effect: a random score is not standardised"]
        );
        for other in [r#"{"seed": 1}"#, r#"{"seed": 1, "formula": "far-recurrence"}"#] {
            assert_eq!(broken(other), ["seed: `seed` has no effect without `formula: random`"]);
        }
        for fine in [
            r#"{"formula": "random", "seed": 0}"#,
            r#"{"formula": "far-recurrence", "standardise": "percentile"}"#,
            "{}",
            r#"{"alpha": 0}"#,
            r#"{"formula": "longattn", "alpha": 0.5}"#,
            r#"{"terms": [{"statistic": "a", "weight": 0}, {"statistic": "b"}], "combine": "least"}"#,
        ] {
            assert_eq!(broken(fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn an_unknown_statistic_is_named_at_its_term() {
        let columns = Recurrence::default().columns();
        let unknown = |text: &str| {
            let rules = settings(text).unknown_statistics(&columns);
            rules.into_iter().map(|rule| (rule.setting, rule.hint)).collect::<Vec<_>>()
        };
        assert_eq!(unknown(r#"{"formula": "balanced-recurrence"}"#), []);
        let hint = "add `- stage: first-layer-attention`, which computes it".to_owned();
        assert_eq!(
            unknown("{}"),
            [("formula".to_owned(), hint.clone()), ("formula".to_owned(), hint)]
        );
        let terms =
            unknown(r#"{"terms": [{"statistic": "copy_share"}, {"statistic": "copy_shares"}]}"#);
        assert_eq!(terms.len(), 1);
        assert_eq!(terms[0].0, "terms.1.statistic");
    }

    #[test]
    fn relative_errors_are_root_mean_squares() {
        let (mut one, mut other) = (RelativeError::default(), RelativeError::default());
        assert_eq!(one.root_mean_square().to_bits(), 0.0_f64.to_bits());
        one.add(2.0, 0.6);
        one.add(0.0, 0.6);
        other.add(1.0, 0.4);
        one.append(&other);
        assert_eq!(one.windows, 2);
        assert!((one.root_mean_square() - 0.125_f64.sqrt()).abs() < 1e-12);
    }
}
