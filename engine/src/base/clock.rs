//! Wall-clock time, for logs and manifests. No score and no data file depends on it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}

pub fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the current time as `2026-11-20T22:48:04Z`.
pub fn now_utc() -> String {
    // A clock before 1970 was never set, and RFC 3339 ends with the year 9999.
    let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(SystemTime::now().clamp(UNIX_EPOCH, last)).to_string()
}
