//! `calibration.json`: the statistics that a corpus was scored and filtered with.

use std::collections::BTreeMap;
use std::path::Path;

use longsift_stages::filter::budgets::Budget;
use longsift_stages::filter::guards::Bounds;
use longsift_stages::score::SummaryStatistics;
use longsift_stages::score::percentile::Histogram;
use longsift_stages::score::terms::{Combine, Scale, Scorer, Standardise, Term};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::facts::Identity;
use super::layout::RunDirectory;
use super::pipeline_lock::stated_version;
use super::units::Part;
use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation};
use crate::base::error::Result;
use crate::base::text::sha256_hex;
use crate::storage::files;

/// Statistics of a group, in `calibration.json`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedGroup {
    /// Value of the `within` column; null for rows without one, and for the only group of a run without `within`.
    pub value: Option<String>,
    /// Samples that pass every guard and have a score. Summaries, deciles and parts are over these samples.
    pub count: u64,
    /// Samples that `keep_fraction` refers to, including those that a guard rejects.
    pub samples: u64,
    /// Kept samples.
    pub kept: u64,
    /// Totals of each statistic that is used, over the passing samples that have it. A statistic that no sample has is left
    /// out.
    #[serde(rename = "figures")]
    pub summaries: BTreeMap<String, SummaryStatistics>,
    /// Histograms by statistic, if a term uses percentiles.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, Histogram>,
    /// Bounds of each guard, in the order of the filter, with quantiles resolved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Bounds>,
    /// Thresholds: one, or one for each of `budgets`.
    pub thresholds: Vec<Threshold>,
    /// The nine scores that cut the group into ten parts of about equal size; empty for a group without scores.
    pub score_deciles: Vec<f64>,
    /// Passing samples in each of the ten parts. Equal scores make their sizes differ.
    pub score_parts: Vec<u64>,
}

impl CalibratedGroup {
    /// Builds the scorer of the group; `None` if no sample of the group had a score.
    pub fn scorer(
        &self,
        terms: &[Term],
        combine: Combine,
        standardise: Standardise,
    ) -> Option<Scorer> {
        let scale = |term: &Term| {
            let (summary, histogram) =
                (self.summaries.get(&term.statistic), self.histograms.get(&term.statistic));
            term.scale(standardise, summary.copied(), histogram.cloned())
        };
        let scales: Vec<Scale> = terms.iter().map(scale).collect::<Option<_>>()?;
        Scorer::new(terms, combine, standardise, &scales)
    }
}

/// Lowest kept score of a group.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// The lowest score that was kept, or `min_score` if it decided; null if nothing was kept.
    pub score: Option<f64>,
    /// Samples with exactly this score that passed all guards.
    pub ties: u64,
    /// Number of these samples that were kept, the first in input order. An increment keeps the same share of such samples,
    /// rounded down; for the same data these are the same samples.
    pub ties_kept: u64,
}

/// Content of `calibration.json`: everything needed to score and filter an increment like the original corpus.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Version of this file's format.
    pub version: u32,
    /// Facts that statistics, scores and the kind of sample depend on. Those of an increment must be equal.
    pub identity: Identity,
    /// The filter's budgets; empty without budgets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Budget>,
    /// With `samples: documents`: rule that merges the values of a document's windows, by statistic.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub merge: BTreeMap<String, String>,
    /// One entry per group, ordered by value.
    pub groups: Vec<CalibratedGroup>,
}

/// Drift of the scores of one group from the calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupDrift {
    /// Value of the `within` column.
    pub value: Option<String>,
    /// Samples that pass every guard and have a score in this run.
    pub count: u64,
    /// Samples that `keep_fraction` would refer to.
    #[serde(default)]
    pub samples: u64,
    /// Kept share of the samples that pass, in this run.
    pub kept_fraction: f64,
    /// Kept share of the samples that pass, when the calibration was made.
    pub calibrated_kept_fraction: f64,
    /// Shift of the mean by statistic, in standard deviations of the calibration.
    pub shifts: BTreeMap<String, f64>,
    /// Population stability index: Σ (now - then) · ln(now / then), over the shares of samples in the ten ranges between the
    /// calibration's score deciles. 0 means no change, 0.1 some, 0.25 much. Null if the calibration has no scores.
    pub stability_index: Option<f64>,
}

/// Returns at most `at_most` groups, those with the largest stability index first; ties stay in order.
pub fn moved_most(drift: &[GroupDrift], at_most: usize) -> Vec<&GroupDrift> {
    let mut groups: Vec<&GroupDrift> = drift.iter().collect();
    let index = |group: &GroupDrift| group.stability_index.unwrap_or(0.0);
    groups.sort_by(|one, other| index(other).total_cmp(&index(one)));
    groups.truncate(at_most);
    groups
}

/// Maximum size of a calibration, which is read into memory as a whole. Suffices for some hundred thousand groups, or for ten
/// thousand with four histograms of 3,000 bins each.
const MAX_BYTES: u64 = 1 << 30;

pub const VERSION: u32 = 4;

/// Parses the calibration at `path`, which the pipeline names at `location`.
///
/// # Errors
/// The bytes are not a calibration, or another version of longsift wrote them.
pub fn parse(path: &str, location: DiagnosticLocation, bytes: &[u8]) -> Result<Calibration> {
    if let Some(version) = stated_version(bytes).filter(|version| *version != VERSION) {
        let message = format!("the calibration `{path}` has format {version}, expected {VERSION}");
        let hint = "another version of longsift wrote it; calibrate again: run the pipeline of that corpus with this version";
        return Err(Diagnostic::error(Blame::Pipeline, message).at(location).hint(hint).into());
    }
    serde_json::from_slice(bytes).map_err(|error| {
        Diagnostic::error(Blame::Pipeline, format!("`{path}` is not a calibration: {error}"))
            .at(location)
            .hint("give the `calibration.json` of a finished run directory")
            .into()
    })
}

pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    Ok(files::read_limited(path, MAX_BYTES)?)
}

/// Checks the bytes of a calibration in a run directory against the digest in its manifest. A copy elsewhere has no record.
///
/// # Errors
/// The file was changed after the run.
pub fn check_unchanged(path: &Path, bytes: &[u8]) -> Result<()> {
    #[derive(Deserialize)]
    struct RecordedIdentity {
        calibration: Option<Part>,
    }
    let Some(directory) = path.parent().filter(|folder| RunDirectory::exists_at(folder)) else {
        return Ok(());
    };
    let directory = RunDirectory::open(directory)?;
    let recorded: Option<RecordedIdentity> = directory.read_json(&directory.manifest())?;
    let Some(part) = recorded.and_then(|recorded| recorded.calibration) else { return Ok(()) };
    let found = sha256_hex(bytes);
    if found == part.sha256 || path.file_name() != Some(part.path.as_ref()) {
        return Ok(());
    }
    let message = format!(
        "the calibration `{}` was changed after its run: expected SHA-256 {}, got {found}",
        path.display(),
        part.sha256
    );
    let hint = format!(
        "remove it and run `longsift run {}`, which writes it again; to use your own calibration, copy it to another folder",
        directory.root.display()
    );
    Err(Diagnostic::error(Blame::Data, message).hint(hint).into())
}
