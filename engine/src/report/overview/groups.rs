//! Groups of a report: histograms with thresholds, and some samples as text.

use std::collections::BTreeMap;
use std::fmt;

use longsift_stages::filter::guards::Bounds;
use serde::Serialize;

use super::bins::{BinSums, ReportHistogram};
use super::choice::SelectionSettings;
use super::excerpts::{Excerpt, Texts, sample_excerpt};
use super::gather::{GroupCounts, OUTCOMES, SampleOutcome};
use super::picks::{Pick, PickKind};
use crate::base::error::Result;
use crate::base::text::{count, value_name};
use crate::report::amount::Amount;
use crate::run_directory::calibration::{CalibratedGroup, Calibration, GroupDrift};

/// Maximum number of groups shown separately.
const MAX_GROUPS: usize = 24;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct GroupReport {
    /// Value of the column; null for rows without one, without groups, and for all other groups combined.
    pub(crate) value: Option<String>,
    /// Whether it combines all groups that are not shown separately.
    pub(crate) others: bool,
    #[serde(skip)]
    is_only: bool,
    pub(crate) kept: Amount,
    pub(crate) not_selected: Amount,
    pub(crate) refused: Amount,
    /// Lowest kept score, or one per budget.
    pub(crate) thresholds: Vec<Option<f64>>,
    pub(crate) score: Option<ReportHistogram>,
    pub(crate) statistics: Vec<GroupStatistic>,
    pub(crate) samples: Vec<ShownSample>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct GroupStatistic {
    pub(crate) name: String,
    pub(crate) doc: String,
    pub(crate) unit: String,
    /// Bounds of guards on the statistic.
    pub(crate) bounds: Vec<Bounds>,
    pub(crate) histogram: Option<ReportHistogram>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShownSample {
    pub(crate) why: PickKind,
    pub(crate) id: String,
    pub(crate) window: Option<u32>,
    /// Token range in the document.
    pub(crate) tokens: (u64, u64),
    pub(crate) tokens_total: u64,
    pub(crate) score: Option<f64>,
    pub(crate) percentile: Option<f64>,
    pub(crate) reason: Option<String>,
    pub(crate) statistics: BTreeMap<String, Option<f64>>,
    pub(crate) text: Option<Excerpt>,
}

/// Returns the groups with the most samples, by value. With an earlier calibration, `drift` has the sample counts.
pub(super) fn shown<'c>(
    calibration: &'c Calibration,
    drift: &[GroupDrift],
) -> Vec<&'c CalibratedGroup> {
    let now: BTreeMap<&Option<String>, u64> =
        drift.iter().map(|group| (&group.value, group.samples)).collect();
    let samples = |group: &CalibratedGroup| {
        if drift.is_empty() { group.samples } else { now.get(&group.value).copied().unwrap_or(0) }
    };
    let mut groups: Vec<&CalibratedGroup> = calibration
        .groups
        .iter()
        .filter(|group| drift.is_empty() || now.contains_key(&group.value))
        .collect();
    groups.sort_by_key(|group| std::cmp::Reverse(samples(group)));
    groups.truncate(MAX_GROUPS);
    groups.sort_by(|one, other| one.value.cmp(&other.value));
    groups
}

/// Builds the groups: the shown ones, then all others combined if there are any.
pub(super) fn build(
    choice: &SelectionSettings,
    statistics: &[String],
    shown: &[&CalibratedGroup],
    gathered: Vec<GroupCounts>,
    texts: &Texts<'_>,
) -> Result<Vec<GroupReport>> {
    let mut groups = Vec::new();
    for (index, of) in gathered.into_iter().enumerate() {
        let known = shown.get(index).copied();
        if known.is_none() && of.outcomes.iter().all(|outcome| outcome.samples == 0) {
            continue;
        }
        let own = |(name, bins): (&String, &BinSums<OUTCOMES>)| {
            let column = choice.column(name);
            GroupStatistic {
                name: name.clone(),
                doc: column.map_or(String::new(), |column| column.doc.to_string()),
                unit: column.map_or(String::new(), |column| column.unit.to_string()),
                bounds: known.map_or(Vec::new(), |known| choice.bounds(known, name)),
                histogram: bins.histogram(),
            }
        };
        groups.push(GroupReport {
            value: known.and_then(|known| known.value.clone()),
            others: known.is_none(),
            is_only: shown.len() == 1,
            kept: of.outcomes[SampleOutcome::Kept as usize],
            not_selected: of.outcomes[SampleOutcome::Below as usize],
            refused: of.outcomes[SampleOutcome::Refused as usize],
            thresholds: known.map_or(Vec::new(), |known| {
                known.thresholds.iter().map(|threshold| threshold.score).collect()
            }),
            score: of.score.histogram(),
            statistics: statistics.iter().zip(&of.statistics).map(own).collect(),
            samples: samples(statistics, &of.picks.shown(), texts)?,
        });
    }
    Ok(groups)
}

fn samples(
    statistics: &[String],
    picks: &[(PickKind, Pick)],
    texts: &Texts<'_>,
) -> Result<Vec<ShownSample>> {
    let all: Vec<&Pick> = picks.iter().map(|(_, pick)| pick).collect();
    let mut excerpts = vec![None; all.len()];
    texts.read(&all, |_, index, content| {
        excerpts[index] = sample_excerpt(all[index], content);
    })?;
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    let shown = picks.iter().zip(excerpts).map(|((kind, pick), text)| {
        let tokens = match pick.window() {
            Some(_) => pick.location.tokens,
            None => (0, pick.tokens),
        };
        ShownSample {
            why: *kind,
            id: pick.id.clone(),
            window: pick.window(),
            tokens,
            tokens_total: pick.location.tokens_total,
            score: finite(pick.score),
            percentile: pick.percentile,
            reason: pick.reason.clone(),
            statistics: statistics
                .iter()
                .zip(&pick.statistics)
                .map(|(name, value)| (name.clone(), finite(*value)))
                .collect(),
            text,
        }
    });
    Ok(shown.collect())
}

/// Maximum number of characters of a group's value on a page: values are arbitrary data and appear at every chart.
const MAX_NAME_CHARACTERS: usize = 48;

/// Returns the name of a group. `is_only`: whether it has all samples.
pub(super) fn name(value: Option<&str>, others: bool, is_only: bool) -> String {
    let without_value = match (others, is_only) {
        (true, _) => "all other groups",
        (false, true) => "all",
        (false, false) => "(null)",
    };
    value.map_or_else(|| without_value.to_owned(), short)
}

/// Returns the value of a group or a label, cut to the width of a chart.
pub(super) fn short(value: &str) -> String {
    let mut letters = value.chars();
    let name = value_name(&letters.by_ref().take(MAX_NAME_CHARACTERS).collect::<String>());
    if letters.next().is_some() { name + "…" } else { name }
}

impl GroupReport {
    pub(super) fn all(&self) -> Amount {
        let mut all = self.kept;
        all.add(self.not_selected);
        all.add(self.refused);
        all
    }

    pub(super) fn name(&self) -> String {
        name(self.value.as_deref(), self.others, self.is_only)
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kept, all] = [self.kept.samples, self.all().samples].map(count);
        write!(f, "  {:<24} {kept:>14} of {all} kept", self.name())?;
        match self.thresholds.as_slice() {
            [Some(score)] => writeln!(f, ", score ≥ {score:.4}"),
            _ => writeln!(f),
        }
    }
}
