//! The time of day, for logs and manifests. No score and no data file depends on it.

use std::time::SystemTime;

/// Now, as `2026-11-20T22:48:04Z`.
pub fn now_utc() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
