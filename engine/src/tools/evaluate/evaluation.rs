//! Result of an evaluation, as serialized.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::guards::GuardRejections;
use super::heads::HeadResults;
use super::labels::report::LabelResults;
use super::matrix::Matrix;
use super::report::Report;
use super::sample::OmittedCategories;
use super::selection::FilterEffect;
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

/// Estimated size of an evaluation.
#[derive(Clone, Debug, Serialize)]
pub struct DryRun {
    /// By window length in tokens.
    pub lengths: BTreeMap<u64, DryLength>,
}

/// Estimated size for one window length.
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
            writeln!(
                f,
                "windows of {} tokens: {} documents, at most {} windows, {} tokens",
                count(*tokens),
                count(of.documents),
                count(of.windows),
                count(of.tokens)
            )?;
            for (measure, seconds) in &of.seconds {
                writeln!(f, "  {measure}: about {seconds:.1} s")?;
            }
        }
        Ok(())
    }
}
