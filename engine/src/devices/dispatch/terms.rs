//! Inputs, outputs and state of the dispatcher.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use longsift_stages::contract::RowError;
use longsift_stages::shard_across_devices::ShardBy;
use serde_json::Value;

use crate::devices::ledger::{Ledger, Reservation};

/// Scheduling settings of the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Distributes whole windows, or the heads of each window.
    pub by: ShardBy,
    pub memory_wait: Duration,
    /// Maximum key heads of a window per piece.
    pub key_heads_at_once: Option<usize>,
    /// Minimum cost of a piece when windows are split by heads, `tokens² · key heads`: smaller ones mostly cost overhead.
    pub min_piece_cost: u64,
    pub unit: Unit,
}

/// Unit of work; a device takes several at a time. Names in the dispatcher say "key head" for every unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    KeyHead,
    /// Window of a group that runs through a whole model.
    Window,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyHead => "key head",
            Self::Window => "window",
        }
    }
}

pub struct DeviceProperties {
    pub name: String,
    pub ledger: Arc<Ledger>,
    pub workers: usize,
    pub resident_bytes: u64,
}

/// Bytes that a device needs for a window: `(device, tokens, key heads)`.
pub type WindowBytes = dyn Fn(usize, usize, usize) -> u64 + Send + Sync;

/// Range of heads of a window that a device measures, with the reserved memory.
#[derive(Debug)]
pub struct Piece {
    pub window: u64,
    pub tokens: usize,
    pub key_heads: Range<usize>,
    pub device: usize,
    pub(super) reservation: Reservation,
}

#[derive(Debug)]
pub enum Next {
    Load {
        device: usize,
        reservation: Reservation,
    },
    Start(Piece),
    GiveUp {
        window: u64,
        why: RowError,
    },
    /// Wait until something changes or this much time has passed.
    Wait(Option<Duration>),
    NoDeviceLeft(String),
}

/// State of a window after one of its pieces ended.
#[derive(Debug, PartialEq, Eq)]
pub enum PieceOutcome {
    Done,
    /// Other heads remain, or the window was given up or withdrawn earlier.
    Open,
    GivenUp(RowError),
}

/// Window with heads that are not measured yet.
pub(super) struct PendingWindow {
    pub(super) tokens: usize,
    pub(super) key_heads: usize,
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

/// Steps that cost neither time nor results.
const EXPECTED: [&str; 3] = ["device_ready", "more_in_flight", "memory_back"];

/// Step of a scheduler other than measuring: an event in `events.jsonl` and a count in the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `None` for all devices.
    pub device: Option<usize>,
    /// Name in events and in the summary.
    pub name: &'static str,
    pub facts: Value,
}

impl Step {
    pub fn is_warning(&self) -> bool {
        !EXPECTED.contains(&self.name)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name.replace('_', " "), self.facts)
    }
}
