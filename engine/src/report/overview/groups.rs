//! What a report says of a group: histograms with thresholds, and some of its samples as text.

use std::collections::BTreeMap;
use std::fmt;

use longsift_stages::filter::guards::Bounds;
use serde::Serialize;

use super::bins::Histogram;
use super::choice::Choice;
use super::excerpts::{self, Excerpt};
use super::gather::{Fate, OfGroup};
use super::picks::{Kind, Pick};
use crate::base::error::Result;
use crate::base::text::{count, value_name};
use crate::plan::Plan;
use crate::report::amount::Amount;
use crate::run_directory::calibration::{CalibratedGroup, Calibration, GroupDrift};

/// Groups that are shown on their own.
const MOST: usize = 24;

/// A group of a report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Group {
    /// The value of the column; null for rows without one, for the one group of a run without groups, and for all others
    /// together.
    pub(crate) value: Option<String>,
    /// Whether it is all that are not shown on their own.
    pub(crate) others: bool,
    pub(crate) kept: Amount,
    pub(crate) not_selected: Amount,
    pub(crate) refused: Amount,
    /// The lowest score that was kept: one, or by budget.
    pub(crate) thresholds: Vec<Option<f64>>,
    pub(crate) score: Option<Histogram>,
    pub(crate) statistics: Vec<Statistic>,
    pub(crate) samples: Vec<Shown>,
}

/// A statistic of a group.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Statistic {
    pub(crate) name: String,
    pub(crate) doc: String,
    pub(crate) unit: String,
    /// The bounds of guards on it.
    pub(crate) bounds: Vec<Bounds>,
    pub(crate) histogram: Option<Histogram>,
}

/// A sample that is shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) why: Kind,
    pub(crate) id: String,
    pub(crate) window: Option<u32>,
    /// Its first token in the document and the one behind its last.
    pub(crate) tokens: (u64, u64),
    pub(crate) tokens_total: u64,
    pub(crate) score: Option<f64>,
    pub(crate) percentile: Option<f64>,
    pub(crate) reason: Option<String>,
    pub(crate) statistics: BTreeMap<String, Option<f64>>,
    pub(crate) text: Option<Excerpt>,
}

/// Where the texts of samples come from.
pub(super) struct Texts<'a> {
    pub(super) plan: Option<&'a Plan>,
    /// The position in the plan of a unit of the manifest.
    pub(super) unit: &'a dyn Fn(usize) -> Option<usize>,
}

/// The groups that are shown on their own: those with the most samples, by value. `drift` counts the samples where the
/// calibration is an earlier run's.
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
    groups.truncate(MOST);
    groups.sort_by(|one, other| one.value.cmp(&other.value));
    groups
}

/// The groups: those that are shown, then all others where there are any.
pub(super) fn of(
    choice: &Choice,
    statistics: &[String],
    shown: &[&CalibratedGroup],
    gathered: Vec<OfGroup>,
    texts: &Texts<'_>,
) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for (place, of) in gathered.into_iter().enumerate() {
        let known = shown.get(place).copied();
        if known.is_none() && of.fates.iter().all(|fate| fate.samples == 0) {
            continue;
        }
        let own = |(name, bins): (&String, &super::bins::Bins<{ super::gather::FATES }>)| {
            let column = choice.column(name);
            let text = |of: &std::borrow::Cow<'static, str>| of.to_string();
            Statistic {
                name: name.clone(),
                doc: column.map_or(String::new(), |column| text(&column.doc)),
                unit: column.map_or(String::new(), |column| text(&column.unit)),
                bounds: known.map_or(Vec::new(), |known| choice.bounds(known, name)),
                histogram: bins.histogram(),
            }
        };
        groups.push(Group {
            value: known.and_then(|known| known.value.clone()),
            others: known.is_none(),
            kept: of.fates[Fate::Kept as usize],
            not_selected: of.fates[Fate::Below as usize],
            refused: of.fates[Fate::Refused as usize],
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

fn samples(statistics: &[String], picks: &[(Kind, Pick)], texts: &Texts<'_>) -> Result<Vec<Shown>> {
    let all: Vec<&Pick> = picks.iter().map(|(_, pick)| pick).collect();
    let excerpts = match texts.plan {
        Some(plan) => excerpts::of_picks(plan, &all, texts.unit)?,
        None => vec![None; all.len()],
    };
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    let shown = picks.iter().zip(excerpts).map(|((kind, pick), text)| {
        let tokens = match pick.window() {
            Some(_) => pick.place.tokens,
            None => (0, pick.tokens),
        };
        Shown {
            why: *kind,
            id: pick.id.clone(),
            window: pick.window(),
            tokens,
            tokens_total: pick.place.tokens_total,
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

/// Characters of a group's value that a page shows: it may be anybody's, and stands at every picture.
const LONGEST_NAME: usize = 48;

/// What the group of a value is called.
pub(super) fn name(value: Option<&str>) -> String {
    value.map_or_else(|| "without a group".to_owned(), short)
}

/// The value of a group or a label, cut where it is longer than a drawing is wide.
pub(super) fn short(value: &str) -> String {
    let mut letters = value.chars();
    let name = value_name(&letters.by_ref().take(LONGEST_NAME).collect::<String>());
    if letters.next().is_some() { name + "…" } else { name }
}

impl Group {
    pub(super) fn samples_in_all(&self) -> u64 {
        self.kept.samples + self.not_selected.samples + self.refused.samples
    }

    pub(super) fn tokens_in_all(&self) -> u64 {
        self.kept.tokens + self.not_selected.tokens + self.refused.tokens
    }

    /// What it is called.
    pub(super) fn name(&self) -> String {
        if self.others { "all other groups".to_owned() } else { name(self.value.as_deref()) }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {:<24} {:>14} of {} kept",
            self.name(),
            count(self.kept.samples),
            count(self.samples_in_all())
        )?;
        match self.thresholds.as_slice() {
            [Some(score)] => writeln!(f, ", from the score {score:.4} up"),
            _ => writeln!(f),
        }
    }
}
