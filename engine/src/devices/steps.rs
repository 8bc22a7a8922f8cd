//! What a scheduler did besides measuring: each step is an event in `events.jsonl` and a count in the summary.

use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::NotEnough;

/// A step of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A device has the table and takes windows.
    Ready {
        /// Bytes of the table on it.
        resident_bytes: u64,
    },
    /// A device's memory did not suffice although it had been reckoned to.
    OutOfMemory {
        /// Tokens of the window.
        tokens: usize,
        /// Its key heads that were being measured.
        key_heads: usize,
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// A device measures fewer windows at a time, because memory does not suffice for more.
    FewerInFlight {
        /// How many.
        windows: usize,
    },
    /// A device may measure as many windows at a time as it was set to again.
    MoreInFlight {
        /// How many.
        windows: usize,
    },
    /// A window is measured in groups of heads, because memory does not suffice for all at once.
    HeadGroups {
        /// Tokens of the window.
        tokens: usize,
        /// Key heads at a time.
        key_heads: usize,
    },
    /// Nothing fits any device: waiting for memory to come back.
    MemoryWait(NotEnough),
    /// Memory came back.
    MemoryBack {
        /// After how long.
        waited: Duration,
    },
    /// A window was set aside.
    GivenUp {
        /// Tokens of the window.
        tokens: usize,
        /// Short, stable name of the reason.
        code: &'static str,
    },
    /// A device failed on a window.
    Failed {
        /// What it said.
        message: String,
    },
    /// A device is gone; what it was measuring goes to others.
    Retired {
        /// Why.
        reason: String,
    },
}

impl Step {
    /// Its name in events and in the summary.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready { .. } => "device_ready",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::FewerInFlight { .. } => "fewer_in_flight",
            Self::MoreInFlight { .. } => "more_in_flight",
            Self::HeadGroups { .. } => "head_groups",
            Self::MemoryWait(_) => "memory_wait",
            Self::MemoryBack { .. } => "memory_back",
            Self::GivenUp { .. } => "window_given_up",
            Self::Failed { .. } => "device_failed",
            Self::Retired { .. } => "device_retired",
        }
    }

    /// Whether people are told: what costs time or results.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::Ready { .. } | Self::MoreInFlight { .. } | Self::MemoryBack { .. })
    }

    /// Its facts, for an event.
    pub fn facts(&self) -> Value {
        match self {
            Self::Ready { resident_bytes } => json!({ "resident_bytes": resident_bytes }),
            Self::OutOfMemory { tokens, key_heads, wanted, free } => {
                json!({ "tokens": tokens, "key_heads": key_heads, "wanted_bytes": wanted, "free_bytes": free })
            }
            Self::FewerInFlight { windows } | Self::MoreInFlight { windows } => {
                json!({ "windows": windows })
            }
            Self::HeadGroups { tokens, key_heads } => {
                json!({ "tokens": tokens, "key_heads": key_heads })
            }
            Self::MemoryWait(numbers) => json!({
                "wanted_bytes": numbers.wanted, "reserved_bytes": numbers.reserved,
                "free_bytes": numbers.free, "headroom_bytes": numbers.headroom,
            }),
            Self::MemoryBack { waited } => json!({ "seconds": waited.as_secs_f64() }),
            Self::GivenUp { tokens, code } => json!({ "tokens": tokens, "code": code }),
            Self::Failed { message } => json!({ "message": message }),
            Self::Retired { reason } => json!({ "reason": reason }),
        }
    }
}
