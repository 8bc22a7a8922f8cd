//! How it is decided of every sample whether it is kept: by bounds, by its score, and among equal scores by input order.

use longsift_stages::filter::budgets;
use longsift_stages::filter::guards::{Bounds, Verdict};
use longsift_stages::score::terms::Scorer;

use super::criteria::Criteria;
use super::radix::key;
use super::score_percentiles::OfGroup;
use super::standing::{Standing, is_not_sampled};

/// Decides of the samples of one group.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// None where no sample of the group passes its guards and has the statistics of the score.
    pub(super) scorer: Option<Scorer>,
    /// By guard.
    pub(super) bounds: Vec<Bounds>,
    /// One, or with `budgets` one for each of them.
    pub(super) cutoffs: Vec<Cutoff>,
    /// Where the percentiles of its scores are.
    pub(super) percentiles: OfGroup,
}

/// Which scores are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cutoff {
    /// The key of a score. Scores above it are kept.
    pub(super) key: u64,
    /// Samples with this very score are kept up to this one, by its number in input order.
    pub(super) last_tie: Option<u64>,
}

impl Cutoff {
    /// Every score is kept.
    pub(super) const ALL: Self = Self { key: 0, last_tie: None };
    /// No score is kept.
    pub(super) const NONE: Self = Self { key: u64::MAX, last_tie: None };

    /// Scores from this one up are kept.
    pub(super) fn from(score: f64) -> Self {
        Self { key: key(score), last_tie: Some(u64::MAX) }
    }

    pub(super) fn keeps(self, key: u64, number: u64) -> bool {
        key > self.key || (key == self.key && self.last_tie.is_some_and(|last| number <= last))
    }
}

impl Rule {
    /// What a sample with these values is. `values`: by statistic of the criteria.
    pub(super) fn standing(&self, criteria: &Criteria, values: &[f64]) -> Standing {
        standing(self.scorer.as_ref(), &self.bounds, criteria, values)
    }

    /// Whether a sample is kept. `group`: the value of the `within` column.
    pub(super) fn keeps(
        &self,
        criteria: &Criteria,
        group: Option<&str>,
        standing: Standing,
        tokens: u64,
        number: u64,
    ) -> bool {
        let score = match standing {
            Standing::NotMeasured => return criteria.filter.keeps_not_measured(),
            Standing::Ranked(score) => score,
            Standing::Missing(_) | Standing::Refused(..) => return false,
        };
        let cutoff = place(criteria, group, tokens).and_then(|place| self.cutoffs.get(place));
        !score.is_nan() && cutoff.is_some_and(|cutoff| cutoff.keeps(key(score), number))
    }
}

/// Whether a sample passes every guard: its values decide what its group is scaled by.
pub(super) fn passes(bounds: &[Bounds], criteria: &Criteria, values: &[f64]) -> bool {
    let mut guards = criteria.guards.iter().zip(bounds);
    guards.all(|((_, statistic), bounds)| bounds.judge(values[*statistic]) == Verdict::Passes)
}

/// What a sample with these values is, by a scorer and the bounds of the guards.
pub(super) fn standing(
    scorer: Option<&Scorer>,
    bounds: &[Bounds],
    criteria: &Criteria,
    values: &[f64],
) -> Standing {
    let refused = |spares: bool| {
        let guards = criteria.guards.iter().zip(bounds).enumerate();
        guards
            .filter(|(_, ((guard, _), _))| guard.before.is_some() == spares)
            .find(|(_, ((_, statistic), bounds))| {
                bounds.judge(values[*statistic]) == Verdict::Refused
            })
            .map(|(index, _)| index)
    };
    let score = || criteria.score(scorer, values);
    if let Some(guard) = refused(true) {
        return Standing::Refused(guard, score());
    }
    let is_missing = |value: &f64| !value.is_finite() && !is_not_sampled(*value);
    let mut missing = values.iter().enumerate().filter(|(_, value)| is_missing(value));
    if let Some((missing, _)) = missing.find(|(statistic, _)| criteria.requires(*statistic)) {
        return Standing::Missing(missing);
    }
    if values.iter().any(|value| is_not_sampled(*value)) {
        return refused(false)
            .map_or(Standing::NotMeasured, |guard| Standing::Refused(guard, score()));
    }
    refused(false).map_or(Standing::Ranked(score()), |guard| Standing::Refused(guard, score()))
}

/// Which cutoff decides of a sample with so many tokens; none where no budget is for it.
pub(super) fn place(criteria: &Criteria, group: Option<&str>, tokens: u64) -> Option<usize> {
    match &criteria.filter.budgets {
        Some(budgets) => budgets::deciding(budgets, group, tokens),
        None => Some(0),
    }
}
