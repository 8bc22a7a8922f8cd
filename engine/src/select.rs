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
mod histograms;
mod quota;
mod rank;
mod repeated_ids;
mod runs;
mod sample_state;
pub(crate) mod samples;
mod score_percentiles;
mod sort;
#[cfg(test)]
mod tests;
pub(crate) mod warnings;

use std::collections::{BTreeMap, HashMap};

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
use compared::AlternativeSelection;
use criteria::Criteria;
use decided::Rule;
use gather::{GatheredSamples, GroupsOfSamples};
use rank::{RankedGroup, Ranking};
use repeated_ids::RepeatedIds;
use samples::Sample;
use score_percentiles::ScorePercentiles;

#[derive(Debug)]
pub struct Selection {
    criteria: Criteria,
    /// By number of the group.
    rules: Vec<Rule>,
    percentiles: ScorePercentiles,
    /// Scores of `output.compare`.
    compared: Vec<AlternativeSelection>,
    /// Columns of score tables that [`Selection::unit_samples`] needs.
    columns: Vec<String>,
    groups_of_samples: GroupsOfSamples,
    /// Number of the first sample of every unit, then the number of all samples.
    units: Vec<u64>,
    /// Kept samples by unit.
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
    ///
    /// # Errors
    /// The windows changed during the selection, or a temporary file cannot be read.
    pub fn unit_samples(
        &self,
        plan: &Plan,
        unit: usize,
        windows: &BTreeMap<u64, Vec<ScoredWindow>>,
    ) -> Result<Vec<Sample>> {
        let numbers = self.units[unit]..self.units[unit + 1];
        let samples: Vec<&[ScoredWindow]> =
            windows.values().flat_map(|document| self.criteria.samples.split(document)).collect();
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
        decided.map(|((sample, group), number)| self.decided(sample, file, group, number)).collect()
    }

    fn decided(
        &self,
        windows: &[ScoredWindow],
        file: &str,
        group: u32,
        number: u64,
    ) -> Result<Sample> {
        let criteria = &self.criteria;
        let compared =
            self.compared.iter().map(|of| of.keeps(windows, file, group, number)).collect();
        let rule = &self.rules[group as usize];
        let mut used = criteria.values(windows, file);
        let (sample_state, tokens) = (rule.sample_state(criteria, &used), criteria.tokens(windows));
        let keep = rule.keeps(criteria, sample_state, tokens, number);
        used.truncate(criteria.statistics.len());
        let value = |statistic| criteria.value(statistic, windows);
        Ok(Sample {
            row: windows[0].input_row,
            window: criteria.window(windows),
            tokens,
            group: rule.group.clone(),
            used,
            statistics: criteria.written.iter().map(value).collect(),
            score: sample_state.score(),
            percentile: self
                .percentiles
                .percentile(&rule.percentiles, sample_state.passing_score())?,
            compared,
            reason: if keep { None } else { Some(criteria.reason(sample_state)) },
        })
    }

    /// Names of the statistics of terms and guards, in the order of a sample's values.
    pub fn used(&self) -> Vec<&str> {
        self.criteria.statistics.iter().map(|statistic| &*statistic.name).collect()
    }

    /// Number of statistics per sample in the output.
    pub fn statistics(&self) -> usize {
        self.criteria.written.len()
    }

    /// Columns of score tables that [`Selection::unit_samples`] needs.
    pub fn columns(&self) -> Vec<&str> {
        self.columns.iter().map(String::as_str).collect()
    }

    /// Whether another document has the same id.
    ///
    /// # Errors
    /// A temporary file cannot be read.
    pub fn is_repeated(&self, id: &str) -> Result<bool> {
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
    units::check_scores(directory, records, stop)?;
    let criteria = Criteria::from_plan(plan);
    let compared = compared::select(plan, directory, records, &criteria, stop)?;
    let columns = compared.last().map_or(&criteria.columns, |last| &last.criteria.columns).clone();
    let gathered = GatheredSamples::read(plan, directory, records, &criteria, stop)?;
    warnings::check_noise(plan.spec.score(), &criteria, &gathered.totals.errors)?;
    let mut warnings = warnings::sample_warnings(&gathered);
    warnings.extend(warnings::random_score_warnings(plan, &gathered));
    warnings.extend(warnings::absent_group_warning(plan.spec.filter(), &gathered));
    let ranking = Ranking::new(&criteria, &gathered, &plan.directory, stop)?;
    let mut drift = Vec::new();
    let (decided, kept, percentiles, calibration) =
        if let Some(path) = &plan.spec.score().calibration {
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
                Ok(((rule, totals), moved))
            })?;
            let (decided, moved): (Vec<_>, Vec<_>) = decided.into_iter().unzip();
            drift = moved;
            warnings.extend(warnings::drift_warning(&drift));
            let (kept, percentiles, _) = ranking.finish()?;
            (decided, kept, percentiles, saved)
        } else {
            let ranked = ranking.each_group(RankedGroup::by_own_statistics)?;
            let (kept, percentiles, histograms) = ranking.finish()?;
            let values = gathered.groups.keys().zip(&ranked);
            let groups = calibration::calibrate_groups(&criteria, values, &histograms);
            let decided = ranked
                .into_iter()
                .map(|ranked| (ranked.rule(&criteria, &histograms), ranked.samples.totals))
                .collect();
            (decided, kept, percentiles, calibration::build(&criteria, identity, groups))
        };
    let groups = gathered.groups.iter().zip(&decided).map(|((value, group), (_, totals))| {
        (value, gathered.group_totals[*group as usize].samples, totals)
    });
    let guards = guard_counts::count(&criteria, &groups);
    let empty = groups.filter(|(.., totals)| totals.kept + totals.kept_not_measured == 0);
    let empty = empty.map(|(value, ..)| quoted_group(value.as_deref())).collect();
    let rules = gathered.by_number(decided.into_iter().map(|(rule, _)| rule));
    warnings.extend(warnings::guard_warnings(plan, &guards));
    warnings.extend(warnings::empty_group_warning(&gathered, empty));
    let GatheredSamples { groups_of_samples, units, repeated_ids, totals, .. } = gathered;
    let skipped = criteria.skipped.iter().map(|of| of.measure.clone()).zip(totals.skipped);
    let not_measured = skipped.filter(|(_, windows)| *windows > 0).collect();
    Ok(Selection {
        criteria,
        rules,
        percentiles,
        compared,
        columns,
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
