//! Other amounts of a selection: exact counts of what minimum scores keep.
//!
//! A minimum score is the only amount whose result can be counted without ranking the samples of each group. Counts at
//! the bounds of bins are exact. An amount does not change the scale of scores, so the scores of the run stay valid; guards
//! and weights change it.

use serde::Serialize;

use super::bins::BinSums;
use super::choice::SelectionSettings;
use crate::report::amount::Amount;

/// Number of bins in which scores are counted.
const BINS: i64 = 256;
/// Shares of all samples, in percent, near which minimum scores are listed.
const SHARES: [u64; 11] = [1, 2, 5, 10, 20, 30, 40, 50, 60, 80, 100];

/// Samples that can be kept, by score.
#[derive(Clone, Debug)]
pub(super) struct Scores {
    /// Samples and tokens.
    passing: BinSums<2>,
    /// Samples that are kept without a score.
    unscored: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct OtherAmount {
    pub(crate) min_score: f64,
    #[serde(flatten)]
    pub(crate) kept: Amount,
}

impl Scores {
    pub(super) fn new() -> Self {
        Self { passing: BinSums::new(BINS), unscored: Amount::default() }
    }

    pub(super) fn add(&mut self, score: f64, amount: Amount) {
        if score.is_finite() {
            self.passing.add(score, [amount.samples, amount.tokens]);
        } else {
            self.unscored.add(amount);
        }
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.passing.append(&other.passing);
        self.unscored.add(other.unscored);
    }

    /// Returns minimum scores that keep about equal steps of `all` samples, the highest first.
    pub(super) fn amounts(&self, all: u64) -> Vec<OtherAmount> {
        let mut kept = self.unscored;
        let sums = self.passing.descending().map(|(min_score, [samples, tokens])| {
            kept.add(Amount { samples, tokens });
            OtherAmount { min_score, kept }
        });
        let sums: Vec<OtherAmount> = sums.collect();
        let nearest = |percent: u64| {
            let wanted = all * percent / 100;
            sums.iter().min_by_key(|of| of.kept.samples.abs_diff(wanted)).copied()
        };
        let mut amounts: Vec<OtherAmount> = SHARES.into_iter().filter_map(nearest).collect();
        amounts.dedup();
        amounts.retain(|of| of.kept.samples > self.unscored.samples);
        amounts
    }
}

/// Returns whether a minimum score can replace the amount: not with thresholds of a calibration, budgets or random scores.
pub(super) fn is_exact(choice: &SelectionSettings) -> bool {
    let is_calibrated = choice.score.calibration.is_some();
    !is_calibrated && choice.filter.budgets.is_none() && !choice.terms.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(sample: u32) -> f64 {
        (f64::from(sample) * 0.1).sin()
    }

    fn scores(samples: std::ops::Range<u32>) -> Scores {
        let mut scores = Scores::new();
        for sample in samples {
            let score = if sample.is_multiple_of(10) { f64::NAN } else { score(sample) };
            scores.add(score, Amount { samples: 1, tokens: u64::from(sample) });
        }
        scores
    }

    #[test]
    fn every_amount_is_exact_and_independent_of_parts() {
        let whole = scores(0..5000).amounts(5000);
        let mut parts = scores(1700..5000);
        parts.append(&scores(0..1700));
        assert_eq!(parts.amounts(5000), whole);
        assert!(whole.len() > 7, "{whole:?}");
        for OtherAmount { min_score, kept } in whole {
            let is_kept = |sample: &u32| sample.is_multiple_of(10) || score(*sample) >= min_score;
            let expected: Vec<u64> = (0..5000).filter(is_kept).map(u64::from).collect();
            let (samples, tokens) = (expected.len() as u64, expected.iter().sum());
            assert_eq!(kept, Amount { samples, tokens }, "{min_score}");
        }
        assert_eq!(Scores::new().amounts(0), []);
    }
}
