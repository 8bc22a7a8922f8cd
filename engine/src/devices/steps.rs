//! Steps of a scheduler other than measuring: each is an event in `events.jsonl` and a count in the summary.

use std::time::Duration;

use serde_json::{Value, json};

use super::dispatch::terms::Unit;
use super::ledger::NotEnough;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A device has loaded the table and accepts windows.
    Ready {
        /// Bytes of the table on it.
        resident_bytes: u64,
    },
    /// An allocation failed although the memory should have sufficed.
    OutOfMemory {
        tokens: usize,
        /// Key heads, or windows of a whole model, that were being measured.
        key_heads: usize,
        /// Bytes requested.
        wanted: u64,
        free: u64,
    },
    /// Fewer windows run concurrently on a device, because of memory.
    FewerInFlight {
        windows: usize,
    },
    /// The limit of concurrent windows on a device is raised again.
    MoreInFlight {
        windows: usize,
    },
    /// Fewer units are measured together, because of memory: heads of a window, or windows of a whole model.
    SmallerGroups {
        unit: Unit,
        tokens: usize,
        units: usize,
    },
    /// Nothing fits on any device: waiting for memory to be released.
    MemoryWait(NotEnough),
    MemoryReleased {
        waited: Duration,
    },
    GivenUp {
        tokens: usize,
        /// Short, stable name of the reason.
        code: &'static str,
    },
    /// A device failed on a window.
    Failed {
        message: String,
    },
    /// A device was retired; its pieces move to other devices.
    Retired {
        reason: String,
    },
}

impl Step {
    /// Name in events and in the summary.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready { .. } => "device_ready",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::FewerInFlight { .. } => "fewer_in_flight",
            Self::MoreInFlight { .. } => "more_in_flight",
            Self::SmallerGroups { unit: Unit::KeyHead, .. } => "head_groups",
            Self::SmallerGroups { unit: Unit::Window, .. } => "window_groups",
            Self::MemoryWait(_) => "memory_wait",
            Self::MemoryReleased { .. } => "memory_back",
            Self::GivenUp { .. } => "window_given_up",
            Self::Failed { .. } => "device_failed",
            Self::Retired { .. } => "device_retired",
        }
    }

    /// Whether the step costs time or results and is logged as a warning.
    pub fn is_warning(&self) -> bool {
        !matches!(
            self,
            Self::Ready { .. } | Self::MoreInFlight { .. } | Self::MemoryReleased { .. }
        )
    }

    pub fn facts(&self) -> Value {
        match self {
            Self::Ready { resident_bytes } => json!({ "resident_bytes": resident_bytes }),
            Self::OutOfMemory { tokens, key_heads, wanted, free } => {
                json!({ "tokens": tokens, "key_heads": key_heads, "wanted_bytes": wanted, "free_bytes": free })
            }
            Self::FewerInFlight { windows } | Self::MoreInFlight { windows } => {
                json!({ "windows": windows })
            }
            Self::SmallerGroups { unit: Unit::KeyHead, tokens, units } => {
                json!({ "tokens": tokens, "key_heads": units })
            }
            Self::SmallerGroups { unit: Unit::Window, tokens, units } => {
                json!({ "tokens": tokens, "windows": units })
            }
            Self::MemoryWait(numbers) => json!({
                "wanted_bytes": numbers.wanted, "reserved_bytes": numbers.reserved,
                "free_bytes": numbers.free, "headroom_bytes": numbers.headroom,
            }),
            Self::MemoryReleased { waited } => json!({ "seconds": waited.as_secs_f64() }),
            Self::GivenUp { tokens, code } => json!({ "tokens": tokens, "code": code }),
            Self::Failed { message } => json!({ "message": message }),
            Self::Retired { reason } => json!({ "reason": reason }),
        }
    }
}
