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
    /// A budget of scored tokens: samples are kept in rank order until the next one would exceed it. One number for
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
