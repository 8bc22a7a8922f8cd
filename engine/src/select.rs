//! The select phase: ranks the samples of all units by score, decides which are kept, and builds the calibration.
//!
//! Reads the selection's columns of the score tables once, units in parallel, and sorts the statistics of the samples into
//! temporary files by group; each group is then decided in a fixed number of passes and a sort. Memory does not depend on the
//! number of samples: some tens of megabytes, 16 bytes per unit, and the calibration of each group except for histograms, which
//! are in a file.

pub(crate) mod calibration;
mod compared;
mod criteria;
mod decided;
pub(crate) mod drift;
mod gather;
mod guard_counts;
mod mapped_words;
mod rank;
mod repeated_ids;
mod runs;
mod sample_state;
mod score_percentiles;
mod sort;
#[cfg(test)]
mod tests;
pub(crate) mod warnings;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::base::text::quoted_group;
use crate::plan::Plan;
use crate::plan::calibrated_groups::CalibratedGroups;
use crate::run_directory::calibration::{CalibratedGroup, Calibration, GroupDrift};
use crate::run_directory::facts::Identity;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::ScoredWindow;
use crate::run_directory::summary::GuardUse;
use crate::run_directory::units::{self, UnitRecord};
use calibration::{fitting_calibration, saved_calibration};
use criteria::Criteria;
use decided::Decisions;
use gather::{GatheredSamples, GroupsOfSamples};
use mapped_words::MappedWords;
use rank::{RankedGroup, Ranking};
use repeated_ids::RepeatedIds;

/// Window or document that can be kept.
#[derive(Clone, Debug)]
pub struct Sample {
    pub row: u64,
    /// Index of the window; `None` for a document.
    pub window: Option<u32>,
    pub tokens: u64,
    /// Value of the `within` column.
    pub group: Option<Arc<str>>,
    /// Statistics of terms and guards; `NaN` if missing.
    pub used: Vec<f64>,
    /// Statistics in the output, in the order of its columns; `NaN` if missing.
    pub statistics: Vec<f64>,
    pub score: f64,
    /// Percentile rank of the score among samples of the group that pass every guard; `None` for other samples.
    pub percentile: Option<f64>,
    /// Whether each of `output.compare` keeps the sample.
    pub compared: Vec<bool>,
    /// Reason for not keeping it; `None` if it is kept.
    pub reason: Option<Arc<str>>,
}

impl Sample {
    pub fn keep(&self) -> bool {
        self.reason.is_none()
    }
}

pub struct Selection {
    decisions: Decisions,
    /// Percentiles of the groups.
    file: MappedWords,
    /// Scores of `output.compare`.
    compared: Vec<Decisions>,
    groups_of_samples: GroupsOfSamples,
    /// Number of the first sample of every unit, then the number of all samples.
    units: Vec<u64>,
    kept: Vec<u64>,
    repeated_ids: RepeatedIds,
    /// Windows that guards skip for a measure, by measure.
    pub not_measured: BTreeMap<String, u64>,
    /// Statistics and thresholds of the groups.
    pub calibration: Calibration,
    /// Drift of each group from a saved calibration; empty without one.
    pub drift: Vec<GroupDrift>,
    pub guards: Vec<GuardUse>,
    pub warnings: Vec<Diagnostic>,
}

impl Selection {
    pub fn kept(&self, unit: usize) -> u64 {
        self.kept[unit]
    }

    pub fn samples(&self, unit: usize) -> u64 {
        self.units[unit + 1] - self.units[unit]
    }

    /// Returns the samples of a unit in input order, given its measured windows by row.
    pub fn unit_samples(
        &self,
        plan: &Plan,
        unit: usize,
        windows: &BTreeMap<u64, Vec<ScoredWindow>>,
    ) -> Result<Vec<Sample>> {
        let numbers = self.units[unit]..self.units[unit + 1];
        let samples: Vec<&[ScoredWindow]> = windows
            .values()
            .flat_map(|document| self.decisions.criteria.samples.split(document))
            .collect();
        if samples.len() as u64 != numbers.end - numbers.start {
            let message = format!(
                "the scores of unit {} of `{}` changed during the selection: expected {} samples, got {}",
                plan.units[unit].name(),
                plan.units[unit].file_path,
                numbers.end - numbers.start,
                samples.len()
            );
            let hint = "make sure that no other program writes to the run directory, and run again";
            return Err(Diagnostic::error(Blame::Machine, message).hint(hint).into());
        }
        let groups = self.groups_of_samples.read_range(numbers.clone())?;
        let decided = samples.into_iter().zip(groups).zip(numbers);
        let file = &plan.units[unit].file_path;
        let decided =
            decided.map(|((sample, group), number)| self.decided(sample, file, group, number));
        Ok(decided.collect())
    }

    fn decided(&self, windows: &[ScoredWindow], file: &str, group: u32, number: u64) -> Sample {
        let criteria = &self.decisions.criteria;
        let compared = self.compared.iter();
        let compared = compared.map(|of| of.decide(windows, file, group, number).keep).collect();
        let decision = self.decisions.decide(windows, file, group, number);
        let (rule, sample_state, mut used) =
            (decision.rule, decision.sample_state, decision.values);
        used.truncate(criteria.statistics.len());
        let value = |statistic| criteria.value(statistic, windows);
        Sample {
            row: windows[0].input_row,
            window: criteria.window(windows),
            tokens: criteria.tokens(windows),
            group: rule.group.clone(),
            used,
            statistics: criteria.written.iter().map(value).collect(),
            score: sample_state.score(),
            percentile: rule.percentiles.percentile(&self.file, sample_state.passing_score()),
            compared,
            reason: if decision.keep { None } else { Some(criteria.reason(sample_state)) },
        }
    }

    /// Names of the statistics of terms and guards, in the order of a sample's values.
    pub fn used(&self) -> Vec<&str> {
        self.decisions.criteria.statistics.iter().map(|statistic| &*statistic.name).collect()
    }

    pub fn statistics(&self) -> usize {
        self.decisions.criteria.written.len()
    }

    /// Columns of score tables that [`Selection::unit_samples`] needs.
    pub fn columns(&self) -> Vec<&str> {
        // Every alternative reads the columns of the selections before it.
        let last = self.compared.last().unwrap_or(&self.decisions);
        last.criteria.columns.iter().map(String::as_str).collect()
    }

    pub fn is_repeated(&self, id: &str) -> bool {
        self.repeated_ids.contains(id)
    }

    pub fn has_repeated_ids(&self) -> bool {
        self.repeated_ids.count > 0
    }
}

/// Refuses a calibration that does not fit the scores of this plan, before anything is measured. Compares the measures in
/// `identity` and all other settings. Returns its groups, if there are groups: those of the corpus are known once its documents
/// are read.
pub fn check_calibration(plan: &Plan, identity: &Identity) -> Result<Option<CalibratedGroups>> {
    let Some(path) = &plan.spec.score().calibration else { return Ok(None) };
    let calibration = fitting_calibration(plan, &Criteria::from_plan(plan), path, identity)?;
    let has_groups = plan.spec.score().within.is_some();
    Ok(has_groups.then(|| calibration.groups.into_iter().map(|group| group.value).collect()))
}

/// Scores and ranks the samples of all units, whose score tables are in `directory`.
pub fn select(
    plan: &Plan,
    directory: &RunDirectory,
    records: &[UnitRecord],
    identity: &Identity,
    stop: &Stop,
) -> Result<Selection> {
    units::check_tables(directory, records, stop)?;
    let criteria = Criteria::from_plan(plan);
    let compared = compared::select(plan, directory, records, &criteria, stop)?;
    let gathered = GatheredSamples::read(plan, directory, records, &criteria, stop)?;
    warnings::check_noise(plan.spec.score(), &criteria, &gathered.totals.errors)?;
    let mut warnings = warnings::sample_warnings(&gathered);
    warnings.extend(warnings::random_score_warnings(plan, &gathered));
    warnings.extend(warnings::absent_group_warning(plan.spec.filter(), &gathered));
    let ranking = Ranking::new(&criteria, &gathered, &plan.directory, stop)?;
    let mut drift = Vec::new();
    let (decided, kept, file, calibration) = if let Some(path) = &plan.spec.score().calibration {
        let saved = saved_calibration(plan, &criteria, path, identity, &gathered)?;
        let known: HashMap<&Option<String>, &CalibratedGroup> =
            saved.groups.iter().map(|group| (&group.value, group)).collect();
        let decided = ranking.each_group(|group| {
            let known = known[group.value];
            let scorer = known.scorer(&criteria.terms, criteria.combine, criteria.standardise);
            let (bounds, deciles) = (known.guards.clone(), &known.score_deciles);
            let (rule, totals, sums) =
                group.by_calibration(scorer, bounds, &known.thresholds, deciles)?;
            let names = criteria.statistics.iter().map(|statistic| &*statistic.name);
            let means = names.zip(&sums).filter(|(_, sums)| sums.count > 0);
            let means = means.map(|(name, sums)| (name, sums.mean()));
            let moved = drift::compare_group(known, means, &totals);
            let passed = sums.iter().map(|sums| sums.count).max().unwrap_or_default();
            let unscored = (rule.scorer.is_none() && passed > 0).then_some((group.value, passed));
            Ok(((rule, totals), (moved, unscored)))
        })?;
        let (decided, compared): (Vec<_>, Vec<_>) = decided.into_iter().unzip();
        let (moved, unscored): (Vec<_>, Vec<_>) = compared.into_iter().unzip();
        drift = moved;
        warnings.extend(warnings::unscored_groups_warning(plan, unscored.into_iter().flatten()));
        warnings.extend(warnings::drift_warning(&drift));
        let (kept, file) = ranking.finish()?;
        (decided, kept, file, saved)
    } else {
        let ranked = ranking.each_group(RankedGroup::by_own_statistics)?;
        let (kept, file) = ranking.finish()?;
        let values = gathered.groups.keys().zip(&ranked);
        let groups = calibration::calibrate_groups(&criteria, values, &file);
        let decided = ranked
            .into_iter()
            .map(|ranked| (ranked.rule(&criteria, &file), ranked.samples.totals))
            .collect();
        (decided, kept, file, calibration::build(&criteria, identity, groups))
    };
    let groups = gathered.groups.iter().zip(&decided).map(|((value, group), (_, totals))| {
        (value, gathered.group_totals[*group as usize].samples, totals)
    });
    let guards = guard_counts::count(&criteria, &groups);
    let amounts = groups
        .map(|(value, _, totals)| (value, totals.kept + totals.kept_not_measured, totals.counted));
    let unfilled = match plan.spec.score().calibration {
        None => warnings::unfilled_fraction_warning(plan, amounts.clone()),
        Some(_) => None,
    };
    let empty = amounts.filter(|(_, kept, _)| *kept == 0);
    let empty = empty.map(|(value, ..)| quoted_group(value.as_deref())).collect();
    let rules = gathered.by_number(decided.into_iter().map(|(rule, _)| rule));
    warnings.extend(warnings::guard_warnings(plan, &guards));
    warnings.extend(unfilled);
    warnings.extend(warnings::empty_group_warning(&gathered, empty, records));
    let GatheredSamples { groups_of_samples, units, repeated_ids, totals, .. } = gathered;
    let skipped = criteria.skipped.iter().map(|of| of.measure.clone()).zip(totals.skipped);
    let not_measured = skipped.filter(|(_, windows)| *windows > 0).collect();
    Ok(Selection {
        decisions: Decisions { criteria, rules },
        file,
        compared,
        groups_of_samples,
        units,
        kept,
        repeated_ids,
        not_measured,
        calibration,
        drift,
        guards,
        warnings,
    })
}
