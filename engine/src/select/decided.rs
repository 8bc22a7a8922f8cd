//! Rules that decide whether a sample is kept: by bounds, by score, and among equal scores by input order.

use std::sync::Arc;

use longsift_stages::Filter;
use longsift_stages::filter::budgets;
use longsift_stages::filter::guards::{Bounds, Verdict};
use longsift_stages::score::terms::Scorer;

use super::criteria::Criteria;
use super::sample_state::{SampleState, is_not_sampled};
use super::score_percentiles::GroupPercentiles;
use crate::run_directory::calibration::Threshold;
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

/// Samples that one cutoff keeps. They are requested in rank order: by descending score, ties in input order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Quota {
    /// Samples with a higher score, and the first ones with exactly this score.
    Above { score: f64, ties: u64 },
    /// Samples until the next would exceed the amount.
    Amount {
        /// `None` after a sample that exceeded it: later ones are not kept even if they would fit.
        left: Option<u64>,
        /// Whether it is an amount of tokens, not of samples.
        of_tokens: bool,
    },
}

impl Quota {
    /// Samples with this score or a higher one.
    fn from_score(score: f64) -> Self {
        Self::Above { score, ties: u64::MAX }
    }

    /// Quotas of a group, by cutoff. `counted`: number of samples that a fraction refers to.
    pub(super) fn for_group(filter: &Filter, group: Option<&str>, counted: u64) -> Vec<Self> {
        let tokens = |amount| Self::Amount { left: Some(amount), of_tokens: true };
        if let Some(score) = filter.min_score {
            vec![Self::from_score(score)]
        } else if let Some(fraction) = filter.keep_fraction {
            vec![Self::Amount { left: Some(fraction.floor_of(counted)), of_tokens: false }]
        } else if let Some(budget) = &filter.keep_tokens {
            vec![tokens(budget.for_group(group))]
        } else if let Some(budgets) = &filter.budgets {
            budgets.iter().map(|budget| tokens(budget.keep_tokens)).collect()
        } else {
            vec![Self::from_score(f64::NEG_INFINITY)]
        }
    }

    /// Quota of a calibration, which keeps the same share of ties. `ties`: number of samples with the score of the threshold.
    pub(super) fn calibrated(threshold: &Threshold, ties: u64) -> Self {
        match threshold.score {
            None => Self::Amount { left: None, of_tokens: false },
            Some(score) if threshold.ties_kept >= threshold.ties => Self::from_score(score),
            Some(score) => {
                let share = u128::from(ties) * u128::from(threshold.ties_kept);
                Self::Above { score, ties: (share / u128::from(threshold.ties)) as u64 }
            }
        }
    }

    /// Whether the next sample in rank order is kept.
    pub(super) fn keeps(&mut self, score: f64, tokens: u64) -> bool {
        match self {
            Self::Above { score: lowest, .. } if score > *lowest => true,
            Self::Above { score: lowest, ties } => {
                let is_kept = score >= *lowest && *ties > 0;
                *ties -= u64::from(is_kept);
                is_kept
            }
            Self::Amount { left, of_tokens } => {
                let weight = if *of_tokens { tokens } else { 1 };
                *left = left.and_then(|left| left.checked_sub(weight));
                left.is_some()
            }
        }
    }
}
