//! What the dispatcher remembers of windows and devices.

use std::ops::Range;
use std::time::Duration;

use super::terms::Site;
use crate::devices::ledger::Reservation;

/// A window of which not all heads are measured yet.
pub(super) struct Window {
    pub(super) tokens: usize,
    pub(super) key_heads: usize,
    /// Heads that nobody measures yet.
    pub(super) todo: Vec<Range<usize>>,
    pub(super) done: usize,
    /// Heads at a time, lowered when a device ran out of memory.
    pub(super) most_heads: usize,
    pub(super) failures: u32,
    /// Since when even one head at a time runs out of memory.
    pub(super) short_since: Option<Duration>,
}

impl Window {
    /// Pairs of some of its heads.
    pub(super) fn cost(&self, heads: usize) -> u128 {
        (self.tokens as u128).pow(2) * heads as u128
    }

    /// Heads that nobody measures yet.
    pub(super) fn heads_to_do(&self) -> usize {
        self.todo.iter().map(ExactSizeIterator::len).sum()
    }
}

/// How far a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Empty,
    Loading,
    Ready,
    Retired(String),
}

/// A device and what it is doing.
pub(super) struct Device {
    pub(super) site: Site,
    pub(super) state: State,
    pub(super) table: Option<Reservation>,
    pub(super) in_flight: usize,
    /// Windows at a time, at most; lowered when memory runs out.
    pub(super) limit: usize,
    /// Pieces that ended well since the limit was lowered.
    pub(super) well: u32,
    /// Whether a place is left empty for want of memory.
    pub(super) short: bool,
    pub(super) failed_windows: Vec<u64>,
    pub(super) blocked_until: Duration,
    /// That nothing of the queue fitted: the dispatcher's count of changes then, and the bytes that were available.
    pub(super) refused: Option<(u64, u64)>,
}
