//! Calibrations: the statistics that a corpus was scored and filtered with, computed by this run or saved by an earlier one.

use std::collections::{BTreeMap, HashSet};

use longsift_stages::contract::{Location, Merge};
use longsift_stages::filter::budgets::{self, Budget};
use longsift_stages::filter::guards::{Bounds, Guard};
use longsift_stages::score::SummaryStatistics;
use longsift_stages::score::percentile::Histogram;
use longsift_stages::score::terms::Standardise;

use super::criteria::{Criteria, SelectionStatistic};
use super::gather::GatheredSamples;
use super::mapped_words::MappedWords;
use super::rank::GroupDecision;
use super::warnings::listed;
use crate::base::error::{Failure, Result};
use crate::base::text::{counted, quoted_group};
use crate::plan::Plan;
use crate::plan::calibrated_groups;
use crate::plan::identity::{calibration_bytes, calibration_identity};
use crate::run_directory::calibration::{self, CalibratedGroup, Calibration, Threshold};
use crate::run_directory::facts::Identity;
use crate::spec::pipeline::Samples;

const SETTING: &str = "stages.score.calibration";

pub(super) fn calibrate_groups<'r>(
    criteria: &Criteria,
    ranked: impl Iterator<Item = (&'r Option<String>, &'r GroupDecision)>,
    file: &MappedWords,
) -> Vec<CalibratedGroup> {
    let names = || criteria.statistics.iter().map(|statistic| statistic.name.clone());
    let of_group = |(value, ranked): (&Option<String>, &GroupDecision)| CalibratedGroup {
        value: value.clone(),
        count: ranked.samples.totals.scored,
        samples: ranked.samples.totals.counted,
        kept: ranked.samples.totals.kept,
        summaries: names()
            .zip(&ranked.summaries)
            .filter_map(|(name, summary)| Some((name, (*summary)?)))
            .collect(),
        histograms: names()
            .zip(&ranked.summaries)
            .zip(ranked.scales(criteria, file).into_iter().flatten())
            .filter_map(|((name, summary), scale)| {
                summary.as_ref().and(scale.histogram).map(|histogram| (name, histogram))
            })
            .collect(),
        guards: ranked.bounds.clone(),
        thresholds: ranked.samples.totals.thresholds.clone(),
        score_deciles: ranked.samples.deciles.clone(),
        score_parts: ranked.samples.totals.parts.to_vec(),
    };
    ranked.map(of_group).collect()
}

pub(super) fn build(
    criteria: &Criteria,
    identity: &Identity,
    groups: Vec<CalibratedGroup>,
) -> Calibration {
    Calibration {
        version: calibration::VERSION,
        identity: calibration_identity(identity),
        budgets: criteria.filter.budgets.clone().unwrap_or_default(),
        merge: merges(criteria),
        groups,
    }
}

/// Describes how a document's value is computed from those of its windows, by statistic; empty if samples are windows.
fn merges(criteria: &Criteria) -> BTreeMap<String, String> {
    if criteria.samples == Samples::Windows {
        return BTreeMap::new();
    }
    let name = |merge: &Merge| match merge {
        Merge::Mean => "mean".to_owned(),
        Merge::Max => "max".to_owned(),
        Merge::Sum => "sum".to_owned(),
        Merge::First => "first".to_owned(),
        Merge::Never => "never".to_owned(),
        Merge::Ratio { numerator, denominator, exponential: false } => {
            format!("{numerator} / {denominator}")
        }
        Merge::Ratio { numerator, denominator, exponential: true } => {
            format!("exp({numerator} / {denominator})")
        }
    };
    criteria.statistics.iter().map(|of| (of.name.clone(), name(&of.merge))).collect()
}

/// Reorders the thresholds of a calibration to the order of the filter's budgets. The budgets must have the same groups and
/// lengths as those of the calibration, in any order and with any amounts. Returns the differences.
fn match_budgets(criteria: &Criteria, calibration: &mut Calibration) -> Vec<String> {
    let now = criteria.filter.budgets.as_deref().unwrap_or_default();
    let then = std::mem::take(&mut calibration.budgets);
    let index_of = |of: &Budget, all: &[Budget]| all.iter().position(|own| own.has_same_scope(of));
    let lacks = |budgets: &[Budget], others: &[Budget], whose: &str| {
        let lacking = budgets.iter().filter(|budget| index_of(budget, others).is_none());
        lacking.map(|budget| format!("{whose} has no budget for {budget}")).collect::<Vec<_>>()
    };
    let mut problems = lacks(now, &then, "it");
    problems.extend(lacks(&then, now, "the filter"));
    let order: Vec<usize> = now.iter().filter_map(|budget| index_of(budget, &then)).collect();
    if problems.is_empty()
        && let Some((one, other)) = budgets::changed_precedence(now, &order)
    {
        let (one, other) = (&now[one], &now[other]);
        problems.push(format!(
            "its budget for {other} precedes the one for {one}, and a sample can match both"
        ));
    }
    if problems.is_empty() && !now.is_empty() {
        calibration.budgets = order.iter().map(|index| then[*index].clone()).collect();
        for group in &mut calibration.groups {
            group.thresholds = order.iter().map(|index| group.thresholds[*index]).collect();
        }
    }
    problems
}

/// Describes what a calibration lacks for these criteria; `None` if it fits.
fn missing(criteria: &Criteria, known: &CalibratedGroup) -> Option<String> {
    // A group without scores may lack any statistic, and no quantiles exist without scores.
    let has_scores = known.count > 0;
    let lacking = |(index, statistic): (usize, &SelectionStatistic)| {
        let name = &statistic.name;
        if !known.summaries.contains_key(name) {
            // Samples can have scores without the statistic of an optional term.
            return criteria.requires(index).then(|| format!("statistics of `{name}`"));
        }
        let takes = criteria.standardise_of(index) == Some(Standardise::Percentile);
        (takes && !known.histograms.contains_key(name))
            .then(|| format!("the histogram of `{name}`, whose percentiles a term uses"))
    };
    let (guards, has) = (criteria.guards.len(), known.guards.len());
    let lacks_quantile = |((guard, _), bounds): &(&(Guard, usize), &Bounds)| {
        guard.min_quantile.is_some() && bounds.low.is_none()
            || guard.max_quantile.is_some() && bounds.high.is_none()
    };
    let mut guards_with_bounds = criteria.guards.iter().zip(&known.guards);
    let without = guards_with_bounds.find(|guard| has_scores && lacks_quantile(guard));
    let deciles = known.score_deciles.len();
    let mut statistics = criteria.statistics.iter().enumerate().filter(|_| has_scores);
    let problems = [
        statistics.find_map(lacking),
        (guards != has)
            .then(|| format!("the bounds of {} (it has {has})", counted(guards as u64, "guard"))),
        without.map(|((guard, _), _)| {
            format!("the quantile bound of the guard on `{}`", guard.statistic)
        }),
        (deciles != 0 && deciles != 9)
            .then(|| format!("nine deciles of scores (it has {deciles})")),
    ];
    problems.into_iter().flatten().next()
}

/// Maximum samples in a calibration: integers that a float represents exactly.
const MAX_SAMPLES: u64 = 1 << 53;

/// Describes why a calibration of a group is impossible, if it is. `cutoffs`: the required number of thresholds.
pub(super) fn contradiction(
    criteria: &Criteria,
    known: &CalibratedGroup,
    cutoffs: usize,
) -> Option<String> {
    let CalibratedGroup {
        count,
        samples,
        kept,
        summaries,
        histograms,
        thresholds,
        score_parts,
        guards: _,
        value: _,
        score_deciles: deciles,
    } = known;
    let parts = score_parts.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
    let (ranges, cuts) = (score_parts.len(), thresholds.len());
    let wrong_ties = |of: &&Threshold| of.ties_kept > of.ties || of.ties > *count;
    // A lower bound above the upper one accepts no value, so no sample could have a score.
    let mut crossed =
        known.guards.iter().filter(|_| *count > 0).filter_map(|of| of.low.zip(of.high));
    let problems = [
        (ranges != 10 || *count > MAX_SAMPLES || parts != *count).then(|| {
            format!("expected 10 `score_parts` with a sum of {count}, got {ranges} with a sum of {parts}")
        }),
        (count > samples)
            .then(|| format!("{count} samples have a score, but there are only {samples}")),
        (kept > count).then(|| format!("{kept} samples are kept, but only {count} have a score")),
        (cuts != cutoffs)
            .then(|| format!("expected {cutoffs} thresholds, one for each budget, got {cuts}")),
        thresholds.iter().find(wrong_ties).map(|Threshold { ties, ties_kept, .. }| {
            format!("{ties_kept} of {ties} samples with the score of a threshold are kept, but {count} have a score")
        }),
        find_contradiction(summaries),
        (!deciles.is_sorted() || deciles.iter().any(|decile| decile.is_nan()))
            .then(|| "its `score_deciles` do not ascend".to_owned()),
        (deciles.is_empty() != (*count == 0)).then(|| {
            format!("it has {} deciles, but {count} samples have a score", deciles.len())
        }),
        (*kept > 0 && thresholds.iter().all(|of| of.score.is_none()))
            .then(|| format!("{kept} samples are kept, but it has no threshold")),
        crossed.find(|(low, high)| low > high).map(|(low, high)| {
            format!("the lower bound of a guard, {low:e}, is above its upper bound, {high:e}")
        }),
        histograms.iter().find_map(|(name, histogram)| {
            histogram_contradiction(criteria, known, name, histogram)
        }),
    ];
    problems.into_iter().flatten().next()
}

fn histogram_contradiction(
    criteria: &Criteria,
    CalibratedGroup { count, summaries, .. }: &CalibratedGroup,
    name: &str,
    histogram: &Histogram,
) -> Option<String> {
    let ((low, high), values) = (histogram.range(), histogram.values());
    let of = format!("the histogram of `{name}`");
    let between = summaries.get(name).map(|of| (of.min, of.max));
    if between.is_some_and(|between| between != (low, high)) {
        return Some(format!(
            "{of} lies between {low:e} and {high:e}, but its minimum and maximum differ"
        ));
    }
    // Samples without a score may have the statistic, and samples with one may lack that of an optional term.
    let index = criteria.statistics.iter().position(|statistic| statistic.name == *name);
    let min = if index.is_some_and(|index| criteria.requires(index)) { *count } else { 0 };
    let values = values.filter(|values| !(min..=MAX_SAMPLES).contains(values))?;
    Some(format!("the bins of {of} hold {values} samples, but {count} have a score"))
}

/// Describes a statistic whose mean, standard deviation, minimum and maximum contradict each other, allowing for rounding.
fn find_contradiction(summaries: &BTreeMap<String, SummaryStatistics>) -> Option<String> {
    summaries.iter().find_map(|(name, of)| {
        let (spread, size) = (of.max - of.min, of.max.abs().max(of.min.abs()));
        let slack = f64::MIN_POSITIVE + 1e-9 * size;
        let is_between = of.mean >= of.min - slack && of.mean <= of.max + slack;
        let is_spread = (0.0..=spread + slack).contains(&of.standard_deviation)
            && (of.standard_deviation > 0.0 || spread <= slack);
        let values =
            format!("{:e}, {:e}, {:e} and {:e}", of.mean, of.standard_deviation, of.min, of.max);
        (!is_between || !is_spread).then(|| {
            format!("no values of `{name}` have this mean, standard deviation, minimum and maximum: {values}")
        })
    })
}

/// Reads a saved calibration and checks that it fits these criteria.
fn read(
    plan: &Plan,
    criteria: &Criteria,
    path: &Location,
    identity: &Identity,
) -> Result<Calibration> {
    let location = plan.spec.locate(SETTING);
    let bytes =
        calibration_bytes(plan, path, identity).map_err(|failure| failure.or_at(&location))?;
    let mut calibration = calibration::parse(&path.to_string(), location, &bytes)?;
    let mut seen = HashSet::new();
    if let Some(twice) = calibration.groups.iter().find(|group| !seen.insert(&group.value)) {
        let group = quoted_group(twice.value.as_deref());
        return Err(damaged(plan, format!("the calibration `{path}` has group {group} twice")));
    }
    let cutoffs = calibration.budgets.len().max(1);
    if let Some((group, what)) = calibration.groups.iter().find_map(|group| {
        Some((quoted_group(group.value.as_deref()), contradiction(criteria, group, cutoffs)?))
    }) {
        let message = format!("the calibration `{path}` is inconsistent in group {group}: {what}");
        return Err(damaged(plan, message));
    }
    let merge = merges(criteria);
    let changed = merge.iter().filter_map(|(name, now)| {
        let then = calibration.merge.get(name)?;
        (now != then)
            .then(|| format!("`{name}` of a document is now the {now} of its windows; in the calibration it is the {then}"))
    });
    let mut other: Vec<String> = changed.collect();
    other.extend(match_budgets(criteria, &mut calibration));
    if !other.is_empty() {
        return Err(made_with_other_settings(plan, path, other));
    }
    let unfit = |known: &CalibratedGroup| Some((missing(criteria, known)?, known.value.clone()));
    let unfit: Vec<(String, Option<String>)> =
        calibration.groups.iter().filter_map(unfit).collect();
    if let Some((what, _)) = unfit.first() {
        let groups = unfit.iter().map(|(_, value)| quoted_group(value.as_deref())).collect();
        let message =
            format!("the calibration `{path}` does not have {what} (group {})", listed(groups));
        let hint = "calibrate again: run a corpus with these terms, guards and budgets, and use the `calibration.json` of its run \
                    directory";
        return Err(plan.spec.error(SETTING, message).hint(hint).into());
    }
    Ok(calibration)
}

fn made_with_other_settings(plan: &Plan, path: &Location, differences: Vec<String>) -> Failure {
    let message = format!("the calibration `{path}` was made with other settings");
    let hint = "use the settings of the calibration, or calibrate again";
    plan.spec.error(SETTING, message).hint(hint).notes(differences).into()
}

fn damaged(plan: &Plan, message: String) -> Failure {
    let hint = "use an unmodified `calibration.json` of a finished run directory";
    plan.spec.error(SETTING, message).hint(hint).into()
}

/// Like [`read`], and checks that the calibration was made with the same windows and the same settings of every measure that
/// the selection uses and `identity` has. Needs no measured windows.
pub(super) fn fitting_calibration(
    plan: &Plan,
    criteria: &Criteria,
    path: &Location,
    identity: &Identity,
) -> Result<Calibration> {
    let calibration = read(plan, criteria, path, identity)?;
    let mut now = calibration_identity(identity);
    let uses = |name: &str| criteria.statistics.iter().any(|statistic| statistic.name == name);
    let used = |measure: &String| {
        let mut of_plan = plan.measures.columns.iter().filter(|of| of.measure == *measure);
        of_plan.any(|of| of.columns.iter().any(|column| uses(&column.name)))
    };
    now.measures.retain(|measure, _| used(measure));
    let mut then = calibration.identity.clone();
    then.measures.retain(|measure, _| now.measures.contains_key(measure));
    let different = now.differences(&then);
    if !different.is_empty() {
        return Err(made_with_other_settings(plan, path, different));
    }
    Ok(calibration)
}

/// Like [`fitting_calibration`], and checks that the calibration has all groups of the corpus.
pub(super) fn saved_calibration(
    plan: &Plan,
    criteria: &Criteria,
    path: &Location,
    identity: &Identity,
    gathered: &GatheredSamples,
) -> Result<Calibration> {
    let calibration = fitting_calibration(plan, criteria, path, identity)?;
    let known: HashSet<_> = calibration.groups.iter().map(|group| &group.value).collect();
    let unknown: Vec<String> = gathered
        .groups
        .keys()
        .filter(|value| !known.contains(value))
        .map(|value| quoted_group(value.as_deref()))
        .collect();
    if !unknown.is_empty() {
        return Err(calibrated_groups::missing(&plan.spec, &listed(unknown)).into());
    }
    Ok(calibration)
}
