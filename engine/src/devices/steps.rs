//! Steps of a scheduler other than measuring: each is an event in `events.jsonl` and a count in the summary.

use std::fmt;

use serde_json::Value;

/// Steps that cost neither time nor results.
const EXPECTED: [&str; 3] = ["device_ready", "more_in_flight", "memory_back"];

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
