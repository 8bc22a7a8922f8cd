//! What the dispatcher is asked and answers.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use longsift_stages::contract::RowError;
use longsift_stages::shard_across_devices::ShardBy;

use crate::devices::ledger::{Ledger, Reservation};

/// The rules that a pipeline sets.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Whole windows, or the heads of each window across devices.
    pub by: ShardBy,
    /// The longest wait for memory to come back.
    pub memory_wait: Duration,
    /// Key heads of a window that are measured at once, at most.
    pub key_heads_at_once: Option<usize>,
    /// No window is shared out by heads into pieces of fewer pairs than this, `tokens² · key heads`: below it a device
    /// spends its time on starting pieces.
    pub smallest_piece: u64,
}

/// A device as the dispatcher sees it.
pub struct Site {
    /// `cuda:0`.
    pub name: String,
    /// Its memory.
    pub ledger: Arc<Ledger>,
    /// Windows it measures at a time, at most.
    pub workers: usize,
    /// Bytes that stay on it.
    pub resident_bytes: u64,
}

/// Bytes that a device needs for a window: `(device, tokens, key heads)`.
pub type WindowBytes = dyn Fn(usize, usize, usize) -> u64 + Send + Sync;

/// Some heads of a window on their way to a device, with the memory for them.
#[derive(Debug)]
pub struct Piece {
    /// Which window, by the number it was submitted under.
    pub window: u64,
    /// Its tokens.
    pub tokens: usize,
    /// Which of its key heads.
    pub key_heads: Range<usize>,
    /// Where.
    pub device: usize,
    pub(super) reservation: Reservation,
}

/// What to do next.
#[derive(Debug)]
pub enum Next {
    /// Bring the table to a device.
    Load {
        /// Which.
        device: usize,
        /// The memory for it.
        reservation: Reservation,
    },
    /// Measure.
    Start(Piece),
    /// Set a window aside.
    GiveUp {
        /// Which.
        window: u64,
        /// Why.
        why: RowError,
    },
    /// Nothing, until something changes or this much time has passed.
    Wait(Option<Duration>),
    /// Nothing, ever: no device is left.
    Dead(String),
}

/// What became of a window when one of its pieces ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// All its heads are measured.
    Done,
    /// Other heads are still to come.
    Open,
    /// It is set aside.
    GivenUp(RowError),
    /// It was set aside or withdrawn before.
    Gone,
}
