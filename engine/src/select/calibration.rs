//! Calibrations: the figures a corpus was scored and filtered with, computed here or saved by an earlier run.

use longsift_stages::contract::Location;
use std::collections::HashSet;

use longsift_stages::score::terms::{Scale, Scorer};

use super::criteria::Criteria;
use super::gather::Gathered;
use super::histograms::Histograms;
use super::rank::Ranked;
use super::warnings::{listed, name};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::Plan;
use crate::plan::identity::of_calibration;
use crate::run_directory::calibration::{self, CalibratedGroup, Calibration};
use crate::run_directory::facts::Identity;

/// What a calibration says of groups, with what was decided of each.
pub(super) fn groups<'r>(
    criteria: &Criteria,
    ranked: impl Iterator<Item = (&'r Option<String>, &'r Ranked)>,
    histograms: &Histograms,
) -> Vec<CalibratedGroup> {
    let names = || criteria.statistics.iter().map(|statistic| statistic.name.clone());
    let of_group = |(value, ranked): (&Option<String>, &Ranked)| CalibratedGroup {
        value: value.clone(),
        count: ranked.totals.scored,
        kept: ranked.totals.kept,
        figures: names().zip(ranked.figures.iter().copied()).collect(),
        histograms: names()
            .zip(ranked.scales(histograms))
            .filter_map(|(name, scale)| Some((name, scale.histogram?)))
            .collect(),
        guards: ranked.bounds.clone(),
        thresholds: ranked.totals.thresholds.clone(),
        score_deciles: ranked.deciles.clone(),
        score_parts: ranked.totals.parts.to_vec(),
    };
    ranked.map(of_group).collect()
}

/// A calibration of these groups.
pub(super) fn of_groups(identity: &Identity, groups: Vec<CalibratedGroup>) -> Calibration {
    Calibration { version: calibration::VERSION, identity: of_calibration(identity), groups }
}

/// What scores the samples of a group as its calibration says. None where it is not one for these criteria.
pub(super) fn scorer(criteria: &Criteria, known: &CalibratedGroup) -> Option<Scorer> {
    let scale = |name: &String| {
        let (figures, histogram) = (*known.figures.get(name)?, known.histograms.get(name).cloned());
        Some(Scale { figures, histogram })
    };
    let names = criteria.terms.iter().map(|term| &term.statistic);
    let scales: Vec<Scale> = names.map(scale).collect::<Option<_>>()?;
    let fits = known.guards.len() == criteria.guards.len()
        && known.thresholds.len() == criteria.filter.budgets.as_ref().map_or(1, Vec::len)
        && (known.score_deciles.is_empty() || known.score_deciles.len() == 9);
    let (terms, combine) = (&criteria.terms, criteria.combine);
    Scorer::new(terms, combine, criteria.standardise, &scales).filter(|_| fits)
}

/// Reads a saved calibration and checks that it was made for these scores: with the same windows, and the same settings of
/// every measure that the selection uses. What is known before anything is measured.
pub(super) fn fitting_calibration(
    plan: &Plan,
    criteria: &Criteria,
    path: &Location,
    identity: &Identity,
) -> Result<Calibration> {
    let place = || plan.spec.at("stages.score.calibration");
    let bytes = calibration::bytes(&plan.spec.resolve(path).to_path_buf())
        .map_err(|failure| failure.or_at(&place()))?;
    let calibration = calibration::parse(&path.to_string(), place(), &bytes)?;
    let mut now = of_calibration(identity);
    let uses = |name: &str| criteria.statistics.iter().any(|statistic| statistic.name == name);
    let used = |measure: &String| {
        let mut of_plan = plan.measures.columns.iter().filter(|of| of.measure == *measure);
        of_plan.any(|of| of.columns.iter().any(|column| uses(&column.name)))
    };
    now.measures.retain(|measure, _| used(measure));
    let different = now.differences(&calibration.identity);
    if !different.is_empty() {
        let mut problem = Diagnostic::error(
            Blame::Pipeline,
            format!("the calibration `{path}` was made with other settings"),
        )
        .at(place());
        for line in different {
            problem = problem.note(line);
        }
        return Err(problem.hint("use the settings it was made with, or calibrate anew").into());
    }
    let unfit = calibration.groups.iter().filter(|known| scorer(criteria, known).is_none());
    let unfit: Vec<String> = unfit.map(|known| name(known.value.as_deref())).collect();
    if !unfit.is_empty() {
        let message = format!(
            "the calibration `{path}` is missing figures, guards or thresholds of this pipeline for group {}",
            listed(unfit)
        );
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .at(place())
            .hint("give the filter the `guards` and `budgets` it was made with, or calibrate anew")
            .into());
    }
    Ok(calibration)
}

/// The same for the groups of a corpus, which it must know all of.
pub(super) fn saved_calibration(
    plan: &Plan,
    criteria: &Criteria,
    path: &Location,
    identity: &Identity,
    gathered: &Gathered,
) -> Result<Calibration> {
    let calibration = fitting_calibration(plan, criteria, path, identity)?;
    let known: HashSet<&Option<String>> =
        calibration.groups.iter().map(|group| &group.value).collect();
    let unknown: Vec<String> = gathered
        .groups
        .keys()
        .filter(|value| !known.contains(value))
        .map(|value| name(value.as_deref()))
        .collect();
    if !unknown.is_empty() {
        return Err(Diagnostic::error(Blame::Pipeline, format!("the calibration `{path}` has no figures for group {}", listed(unknown)))
            .at(plan.spec.at("stages.score.calibration"))
            .hint("calibrate anew over a corpus that has all groups, or leave these rows out of the input")
            .into());
    }
    Ok(calibration)
}
