//! Where what is kept ends: how much of it there may be, and which samples at the edge are among it.

use super::decided::Cutoff;
use super::radix::{Search, key};
use crate::run_directory::calibration::Threshold;

/// What is kept of the samples of one cutoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    All,
    /// Scores from this one up.
    From(f64),
    /// In rank order, until the next would exceed this many.
    Samples(u64),
    /// In rank order, until the next would exceed this many tokens.
    Tokens(u64),
}

impl Amount {
    /// What a sample with so many tokens takes of it.
    pub(super) fn weight(self, tokens: u64) -> u64 {
        if matches!(self, Self::Tokens(_)) { tokens } else { 1 }
    }

    /// The weight up to which scores are looked for: the first score that does not fit whole is the edge. None where none is
    /// looked for.
    pub(super) fn searched(self) -> Option<u64> {
        match self {
            Self::All | Self::From(_) => None,
            Self::Samples(most) | Self::Tokens(most) => most.checked_add(1),
        }
    }
}

/// Where what is kept ends, while the samples go by in input order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) cutoff: Cutoff,
    /// What is left for samples with the score at the edge; none where the cutoff decides of them.
    pub(super) ties: Option<(u64, Amount)>,
}

impl Edge {
    pub(super) fn of(cutoff: Cutoff) -> Self {
        Self { cutoff, ties: None }
    }

    /// Of a calibration. What is left for ties follows when they are counted.
    pub(super) fn calibrated(threshold: &Threshold) -> Self {
        match threshold.score {
            None => Self::of(Cutoff::NONE),
            Some(score) if threshold.ties_kept >= threshold.ties => Self::of(Cutoff::from(score)),
            Some(score) => {
                let cutoff = Cutoff { key: key(score), last_tie: None };
                Self { cutoff, ties: Some((0, Amount::Samples(0))) }
            }
        }
    }

    /// The edge that a search has found, if any.
    pub(super) fn at(search: &Search, amount: Amount) -> Self {
        let most = match amount {
            Amount::All => return Self::of(Cutoff::ALL),
            Amount::From(score) => return Self::of(Cutoff::from(score)),
            Amount::Samples(most) | Amount::Tokens(most) => most,
        };
        match search.found() {
            // All of them fit; a budget that no number exceeds is never exceeded.
            None => Self::of(Cutoff::ALL),
            Some(_) if most == u64::MAX => Self::of(Cutoff::ALL),
            Some(found) => {
                let cutoff = Cutoff { key: !found.key, last_tie: None };
                Self { cutoff, ties: Some((most - found.below, amount)) }
            }
        }
    }

    pub(super) fn keeps(&mut self, key: u64, tokens: u64, number: u64) -> bool {
        let Some((left, amount)) = &mut self.ties else {
            return self.cutoff.keeps(key, number);
        };
        if key != self.cutoff.key {
            return key > self.cutoff.key;
        }
        if let Some(rest) = left.checked_sub(amount.weight(tokens)) {
            *left = rest;
            self.cutoff.last_tie = Some(number);
            true
        } else {
            // Later ones are not kept, even where they would fit.
            self.ties = None;
            false
        }
    }
}
