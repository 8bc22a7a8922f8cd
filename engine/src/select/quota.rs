//! Amounts to keep of a group, consumed in rank order.

use longsift_stages::filter::Filter;

use crate::run_directory::calibration::Threshold;

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
