//! Edges of the kept samples: how many may be kept, and which samples with the score at the edge are among them.

use super::decided::Cutoff;
use super::radix::{Search, key};
use crate::run_directory::calibration::Threshold;

/// Amount kept of the samples of one cutoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    All,
    /// Samples with this score or a higher one.
    From(f64),
    /// In rank order, until the next would exceed this many samples.
    Samples(u64),
    /// In rank order, until the next would exceed this many tokens.
    Tokens(u64),
}

impl Amount {
    /// Weight of a sample with this many tokens.
    pub(super) fn weight(self, tokens: u64) -> u64 {
        if matches!(self, Self::Tokens(_)) { tokens } else { 1 }
    }

    /// Weight to search for: the first score that does not fit completely is the edge. `None` if no search is needed.
    pub(super) fn searched(self) -> Option<u64> {
        match self {
            Self::All | Self::From(_) => None,
            Self::Samples(most) | Self::Tokens(most) => most.checked_add(1),
        }
    }
}

/// Edge of the kept samples, updated while samples are visited in input order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) cutoff: Cutoff,
    /// Remaining amount for samples with the score at the edge; `None` if the cutoff decides on them.
    pub(super) ties: Option<(u64, Amount)>,
}

impl Edge {
    pub(super) fn from_cutoff(cutoff: Cutoff) -> Self {
        Self { cutoff, ties: None }
    }

    /// Returns the edge of a calibration. The amount for ties is set after they are counted.
    pub(super) fn calibrated(threshold: &Threshold) -> Self {
        match threshold.score {
            None => Self::from_cutoff(Cutoff::NONE),
            Some(score) if threshold.ties_kept >= threshold.ties => {
                Self::from_cutoff(Cutoff::from(score))
            }
            Some(score) => {
                let cutoff = Cutoff { key: key(score), last_tie: None };
                Self { cutoff, ties: Some((0, Amount::Samples(0))) }
            }
        }
    }

    /// Returns the edge that a search found.
    pub(super) fn from_search(search: &Search, amount: Amount) -> Self {
        let most = match amount {
            Amount::All => return Self::from_cutoff(Cutoff::ALL),
            Amount::From(score) => return Self::from_cutoff(Cutoff::from(score)),
            Amount::Samples(most) | Amount::Tokens(most) => most,
        };
        match search.found() {
            // All fit; and a budget of `u64::MAX` is never exceeded.
            None => Self::from_cutoff(Cutoff::ALL),
            Some(_) if most == u64::MAX => Self::from_cutoff(Cutoff::ALL),
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
            // Later samples are not kept, even if they would fit.
            self.ties = None;
            false
        }
    }
}
