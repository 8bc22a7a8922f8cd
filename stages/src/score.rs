//! Turns the raw statistics of all windows into one comparable number each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::Stage;

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
