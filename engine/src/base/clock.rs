//! The time of day, for logs and manifests. No score and no data file depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970, for names that no other process chooses.
pub fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}

/// Seconds since 1970.
pub fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Now, as `2026-11-20T22:48:04Z`.
pub fn now_utc() -> String {
    // A clock before 1970 was never set.
    humantime::format_rfc3339_seconds(SystemTime::now().max(UNIX_EPOCH)).to_string()
}
