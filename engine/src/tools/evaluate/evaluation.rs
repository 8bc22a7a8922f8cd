//! Result of an evaluation, as serialized, and the effect of the pipeline's filter on the whole windows.

use std::collections::BTreeMap;
use std::fmt;

use longsift_stages::Filter;
use longsift_stages::contract::Decimal;
use schemars::JsonSchema;
use serde::Serialize;

use super::estimates::agreement::quantiles;
use super::estimates::by_category;
use super::heads::HeadResults;
use super::labels::report::LabelResults;
use super::report::{Matrix, Report, ResultInput};
use super::sample::OmittedCategories;
use super::statistics::{GuardRejections, MeasuredWindows, OrientedStatistic};
use super::windows::WindowLength;
use crate::base::text::count;

/// Result of an evaluation: how well the statistics of a pipeline separate windows of its corpus.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Evaluation {
    /// Name of the pipeline.
    pub(crate) pipeline: String,
    pub(crate) seed: u64,
    pub(crate) documents_per_category: usize,
    /// Rows left out because another row of their category, or class, has the same id.
    pub(crate) equal_ids_left_out: u64,
    pub(crate) categories_left_out: OmittedCategories,
    /// Evaluation on labelled documents, with `--labels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<LabelResults>,
    /// Results for constructed windows by their length: `S2048` and so on.
    #[serde(flatten)]
    pub(crate) lengths: BTreeMap<WindowLength, LengthResults>,
}

/// Results for constructed windows of one length.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "OfLength")]
pub(crate) struct LengthResults {
    /// Tokens of a window.
    #[serde(rename = "S")]
    pub(crate) tokens: u64,
    pub(crate) seed: u64,
    /// Result for the pipeline's score in one sentence; null without a score.
    pub(crate) sentence: Option<String>,
    /// Documents by category.
    pub(crate) documents: BTreeMap<String, u64>,
    pub(crate) kinds: BTreeMap<&'static str, KindResults>,
    /// Descriptions of the statistics.
    pub(crate) statistics: BTreeMap<String, String>,
    /// By statistic and kind of window, the result of whole windows against it, with its outcome.
    pub(crate) matrix: Matrix,
    pub(crate) reports: BTreeMap<String, Report>,
    pub(crate) agreement: BTreeMap<String, BTreeMap<String, Option<f64>>>,
    /// Quantiles 5, 50 and 95 % over whole windows, by statistic.
    pub(crate) quantiles_of_whole: BTreeMap<String, [f64; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) selection: Option<FilterEffect>,
    /// Windows of each kind that each guard rejects.
    pub(crate) guards: Vec<GuardRejections>,
    /// Results for each head of whole models, by measure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) heads: Vec<HeadResults>,
    /// Notes about what could not be measured.
    pub(crate) notes: Vec<String>,
}

/// Constructed windows of one kind.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "KindOf")]
pub(crate) struct KindResults {
    pub(crate) windows: u64,
    /// SHA-256 of the ids of all windows in order, as little-endian 32-bit integers.
    pub(crate) sha256: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct DryRun {
    /// By window length in tokens.
    pub lengths: BTreeMap<u64, DryLength>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DryLength {
    /// Documents that are long enough.
    pub documents: u64,
    /// Maximum number of windows of all kinds.
    pub windows: u64,
    pub tokens: u64,
    /// Seconds by measure, estimated from a few windows.
    pub seconds: BTreeMap<String, f64>,
}

impl fmt::Display for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tokens, of) in &self.lengths {
            let numbers = [*tokens, of.documents, of.windows, of.tokens];
            let [each, documents, windows, tokens] = numbers.map(count);
            write!(f, "windows of {each} tokens: {documents} documents, ")?;
            writeln!(f, "at most {windows} windows, {tokens} tokens")?;
            for (measure, seconds) in &of.seconds {
                writeln!(f, "  {measure}: about {seconds:.1} s")?;
            }
        }
        Ok(())
    }
}

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
    let ResultInput { measured, passes_guards, .. } = of;
    let MeasuredWindows { tokens, origins, categories, .. } = measured;
    let amount = filter.keep_fraction.is_some() || filter.min_score.is_some();
    let fraction = Filter { keep_fraction: Some(Decimal(ASSUMED_FRACTION)), ..Filter::default() };
    let filter = if amount { filter } else { &fraction };
    let mut kept = vec![false; origins.len()];
    let mut whole = Vec::new();
    let by_category = by_category(origins, |window, origin| origin.is_whole().then_some(window));
    for (windows, name) in by_category.into_iter().zip(categories) {
        let scores: Vec<f64> =
            windows.iter().map(|window| score.values[*window].unwrap_or(f64::NAN)).collect();
        let passes = |window: &usize| passes_guards.is_none_or(|passes| passes[*window]);
        let passing: Vec<bool> = windows.iter().map(passes).collect();
        let group = (!name.is_empty()).then_some(name.as_str());
        let chosen = filter.keep(&scores, &passing, &vec![*tokens as u64; windows.len()], group);
        for (window, keep) in windows.iter().zip(chosen) {
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
        document_tokens: both(&|window| Some(measured.document(window).tokens as f64)),
        statistics: statistics
            .iter()
            .map(|of| (of.name.clone(), both(&|window| of.values[window])))
            .collect(),
    }
}
