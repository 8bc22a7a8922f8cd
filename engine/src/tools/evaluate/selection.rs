//! Effect of the pipeline's filter on the whole windows: the mix before and after.

use std::collections::BTreeMap;

use longsift_stages::Filter;
use longsift_stages::contract::Decimal;
use schemars::JsonSchema;
use serde::Serialize;

use super::estimates::agreement::quantiles;
use super::report::ResultInput;
use super::statistics::{MeasuredWindows, OrientedStatistic};

/// Kept fraction if the filter's budget is in tokens, which does not apply to a sample.
const ASSUMED_FRACTION: f64 = 0.2;

/// Effect of the filter on the whole windows.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Selection")]
pub(crate) struct FilterEffect {
    /// Number of whole windows.
    pub(crate) windows: u64,
    /// Number of whole windows that the filter keeps.
    pub(crate) kept: u64,
    /// Assumed kept fraction of each category, if the filter's budget is in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) assumed_keep_fraction: Option<f64>,
    /// Share of each category before and after the filter.
    pub(crate) categories: BTreeMap<String, [f64; 2]>,
    /// Quantiles 5, 50 and 95 % of the document length in tokens before and after the filter.
    pub(crate) document_tokens: [Option<[f64; 3]>; 2],
    /// Quantiles 5, 50 and 95 % of every statistic before and after the filter.
    pub(crate) statistics: BTreeMap<String, [Option<[f64; 3]>; 2]>,
}

/// Applies the filter to the whole windows, ranked by `score`.
pub(crate) fn consequences(
    filter: &Filter,
    of: &ResultInput<'_>,
    score: &OrientedStatistic,
    statistics: &[OrientedStatistic],
) -> FilterEffect {
    let ResultInput { measured, document_tokens, passes_guards, .. } = of;
    let MeasuredWindows { tokens, origins, categories, .. } = measured;
    let amount = filter.keep_fraction.is_some() || filter.min_score.is_some();
    let fraction = Filter { keep_fraction: Some(Decimal(ASSUMED_FRACTION)), ..Filter::default() };
    let filter = if amount { filter } else { &fraction };
    let mut kept = vec![false; origins.len()];
    let mut whole = Vec::new();
    for (category, name) in categories.iter().enumerate() {
        let windows: Vec<usize> = (0..origins.len())
            .filter(|window| origins[*window].category == category && origins[*window].is_whole())
            .collect();
        let scores: Vec<f64> =
            windows.iter().map(|window| score.values[*window].unwrap_or(f64::NAN)).collect();
        let passing: Vec<bool> = windows
            .iter()
            .map(|window| passes_guards.is_none_or(|passes| passes[*window]))
            .collect();
        let group = (!name.is_empty()).then_some(name.as_str());
        let chosen = filter.keep(&scores, &passing, &vec![*tokens as u64; windows.len()], group);
        for (window, keep) in windows.iter().zip(chosen.keep) {
            kept[*window] = keep;
        }
        whole.extend(windows);
    }
    let after: Vec<usize> = whole.iter().copied().filter(|window| kept[*window]).collect();
    let both = |of: &dyn Fn(usize) -> Option<f64>| {
        [&whole, &after].map(|windows| quantiles(windows.iter().filter_map(|window| of(*window))))
    };
    let share = |windows: &[usize], category: usize| {
        let of = windows.iter().filter(|window| origins[**window].category == category).count();
        of as f64 / windows.len().max(1) as f64
    };
    FilterEffect {
        windows: whole.len() as u64,
        kept: after.len() as u64,
        assumed_keep_fraction: (!amount).then_some(ASSUMED_FRACTION),
        categories: categories
            .iter()
            .enumerate()
            .map(|(index, name)| (name.clone(), [share(&whole, index), share(&after, index)]))
            .collect(),
        document_tokens: both(&|window| Some(document_tokens[window] as f64)),
        statistics: statistics
            .iter()
            .map(|of| (of.name.clone(), both(&|window| of.values[window])))
            .collect(),
    }
}
