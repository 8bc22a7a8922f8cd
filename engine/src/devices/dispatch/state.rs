//! State of windows and devices in the dispatcher.

use std::ops::Range;
use std::time::Duration;

use super::terms::DeviceProperties;
use crate::devices::ledger::Reservation;

/// Window with heads that are not measured yet.
pub(super) struct PendingWindow {
    pub(super) tokens: usize,
    pub(super) key_heads: usize,
    /// Heads that are not running yet.
    pub(super) queued_heads: Vec<Range<usize>>,
    pub(super) done: usize,
    /// Maximum heads per piece, lowered when a device runs out of memory.
    pub(super) max_heads: usize,
    pub(super) failures: u32,
    /// Time of the first failed allocation for a single head.
    pub(super) waiting_since: Option<Duration>,
}

impl PendingWindow {
    /// Cost of some of its heads, in pairs of tokens.
    pub(super) fn cost(&self, heads: usize) -> u128 {
        (self.tokens as u128).pow(2) * heads as u128
    }

    /// Number of heads that are not running yet.
    pub(super) fn heads_to_do(&self) -> usize {
        self.queued_heads.iter().map(ExactSizeIterator::len).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceStatus {
    Empty,
    Loading,
    Ready,
    Retired(String),
}

pub(super) struct DeviceState {
    pub(super) site: DeviceProperties,
    pub(super) state: DeviceStatus,
    pub(super) table: Option<Reservation>,
    pub(super) in_flight: usize,
    /// Maximum concurrent windows, lowered when memory runs out.
    pub(super) limit: usize,
    /// Pieces that succeeded since the limit was lowered.
    pub(super) successes: u32,
    /// Whether fewer windows run than the limit allows because of memory.
    pub(super) memory_limited: bool,
    pub(super) failed_windows: Vec<u64>,
    pub(super) blocked_until: Duration,
    /// Set if nothing in the queue fitted: the count of changes and the available bytes at that time.
    pub(super) refused: Option<(u64, u64)>,
}
