//! Wall-clock time, for logs and manifests. No score and no data file depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns nanoseconds since 1970, for unique names.
pub fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}

/// Returns seconds since 1970.
pub fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the current time as `2026-11-20T22:48:04Z`.
pub fn now_utc() -> String {
    // A clock before 1970 was never set.
    humantime::format_rfc3339_seconds(SystemTime::now().max(UNIX_EPOCH)).to_string()
}
