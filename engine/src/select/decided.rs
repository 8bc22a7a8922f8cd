//! Rules that decide whether a sample is kept: by bounds, by score, and among equal scores by input order.

use std::sync::Arc;

use longsift_stages::filter::budgets;
use longsift_stages::filter::guards::{Bounds, Verdict};
use longsift_stages::score::terms::Scorer;

use super::criteria::Criteria;
use super::sample_state::{SampleState, is_not_sampled};
use super::score_percentiles::GroupPercentiles;
use crate::run_directory::scores::ScoredWindow;

#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// Value of the `within` column.
    pub(super) group: Option<Arc<str>>,
    /// `None` if no sample of the group passes its guards and has the statistics of the score.
    pub(super) scorer: Option<Scorer>,
    pub(super) bounds: Vec<Bounds>,
    /// One, or one for each of `budgets`; `None` if it keeps nothing.
    pub(super) cutoffs: Vec<Option<Cutoff>>,
    /// Location of the percentiles of the group's scores.
    pub(super) percentiles: GroupPercentiles,
}

/// Criteria with the rule of every group.
pub(super) struct Decisions {
    pub(super) criteria: Criteria,
    /// By number of the group.
    pub(super) rules: Vec<Rule>,
}

pub(super) struct Decision<'a> {
    pub(super) rule: &'a Rule,
    pub(super) values: Vec<f64>,
    pub(super) sample_state: SampleState,
    pub(super) keep: bool,
}

impl Decisions {
    /// Decides on a sample, given its windows, its file, its group and its number.
    pub(super) fn decide(
        &self,
        windows: &[ScoredWindow],
        file: &str,
        group: u32,
        number: u64,
    ) -> Decision<'_> {
        let (criteria, rule) = (&self.criteria, &self.rules[group as usize]);
        let values = criteria.values(windows, file);
        let sample_state = rule.sample_state(criteria, &values);
        let keep = rule.keeps(criteria, sample_state, criteria.tokens(windows), number);
        Decision { rule, values, sample_state, keep }
    }
}

/// Lowest sample in rank order that is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cutoff {
    pub(super) score: f64,
    /// Number of the sample: those with the same score are kept up to this one.
    pub(super) last_tie: u64,
}

impl Cutoff {
    fn keeps(self, score: f64, number: u64) -> bool {
        score > self.score || (score >= self.score && number <= self.last_tie)
    }
}

impl Rule {
    /// State of a sample with these values, by statistic of the criteria.
    pub(super) fn sample_state(&self, criteria: &Criteria, values: &[f64]) -> SampleState {
        sample_state(self.scorer.as_ref(), &self.bounds, criteria, values)
    }

    pub(super) fn keeps(
        &self,
        criteria: &Criteria,
        sample_state: SampleState,
        tokens: u64,
        number: u64,
    ) -> bool {
        let score = match sample_state {
            SampleState::NotMeasured => return criteria.filter.keeps_not_measured(),
            SampleState::Ranked(score) => score,
            SampleState::Missing(_) | SampleState::Rejected(..) => return false,
        };
        let cutoff = cutoff_index(criteria, self.group.as_deref(), tokens)
            .and_then(|index| *self.cutoffs.get(index)?);
        cutoff.is_some_and(|cutoff| cutoff.keeps(score, number))
    }
}

/// Whether a sample passes every guard, so that its values contribute to the scale of its group.
pub(super) fn passes(bounds: &[Bounds], criteria: &Criteria, values: &[f64]) -> bool {
    let mut guards = criteria.guards.iter().zip(bounds);
    guards.all(|((_, statistic), bounds)| bounds.judge(values[*statistic]) == Verdict::Passes)
}

/// State of a sample with these values, by a scorer and the bounds of the guards.
pub(super) fn sample_state(
    scorer: Option<&Scorer>,
    bounds: &[Bounds],
    criteria: &Criteria,
    values: &[f64],
) -> SampleState {
    let rejected = |before_measure: bool| {
        let guards = criteria.guards.iter().zip(bounds).enumerate();
        guards
            .filter(|(_, ((guard, _), _))| guard.before.is_some() == before_measure)
            .find(|(_, ((_, statistic), bounds))| {
                bounds.judge(values[*statistic]) == Verdict::Refused
            })
            .map(|(index, _)| index)
    };
    let score = || criteria.score(scorer, values);
    if let Some(guard) = rejected(true) {
        return SampleState::Rejected(guard, score());
    }
    let is_missing = |value: &f64| !value.is_finite() && !is_not_sampled(*value);
    let mut missing = values.iter().enumerate().filter(|(_, value)| is_missing(value));
    if let Some((missing, _)) = missing.find(|(statistic, _)| criteria.requires(*statistic)) {
        return SampleState::Missing(missing);
    }
    match rejected(false) {
        Some(guard) => SampleState::Rejected(guard, score()),
        None if values.iter().any(|value| is_not_sampled(*value)) => SampleState::NotMeasured,
        None => SampleState::Ranked(score()),
    }
}

/// Index of the cutoff for a sample with this many tokens; `None` if no budget covers it.
pub(super) fn cutoff_index(criteria: &Criteria, group: Option<&str>, tokens: u64) -> Option<usize> {
    match &criteria.filter.budgets {
        Some(budgets) => budgets::matching(budgets, group, tokens),
        None => Some(0),
    }
}
