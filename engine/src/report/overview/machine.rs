//! Machine data of a report from the events of a run: memory and load of devices over time, and time by stage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base::error::Result;
use crate::report::page::chart::Polls;
use crate::run_directory::events;
use crate::run_directory::layout::RunDirectory;

/// Machine data from the events of the last run in a directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) devices: BTreeMap<String, Polls<DevicePoll>>,
    /// Number of other events, by name.
    pub(crate) steps: BTreeMap<String, u64>,
    /// Seconds by stage, in the order of their first use.
    pub(crate) seconds: Vec<(String, f64)>,
    /// Whether a run has started since the last poll: its data replaces the earlier run's.
    #[serde(skip)]
    run_started: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DevicePoll {
    /// Time, UTC.
    pub(crate) time: String,
    /// Bytes of the device, or of the machine's memory that a run may use.
    pub(crate) total_bytes: u64,
    pub(crate) others_bytes: u64,
    pub(crate) held_bytes: u64,
    /// Bytes reserved by windows in flight.
    pub(crate) reserved_bytes: u64,
    pub(crate) in_flight: u64,
    pub(crate) utilisation_percent: Option<u64>,
}

impl DevicePoll {
    /// Returns whether any memory was in use; processors report none.
    pub(super) fn has_memory(&self) -> bool {
        [self.others_bytes, self.held_bytes, self.reserved_bytes].iter().any(|bytes| *bytes > 0)
    }
}

/// Events of every run, which do not indicate a shortage.
const USUAL: [&str; 2] = ["unit_scored", "device_ready"];

impl Machine {
    /// Reads the events of the last run that measured anything, and of the last selection.
    pub(super) fn from_events(directory: &RunDirectory) -> Result<Self> {
        let mut machine = Self::default();
        events::read(directory, |event| machine.add(event))?;
        Ok(machine)
    }

    fn add(&mut self, event: &Map<String, Value>) {
        let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("event") {
            "run_started" => self.run_started = true,
            "selection_committed" => {
                let seconds = event.get("seconds").and_then(|of| Vec::deserialize(of).ok());
                self.seconds = seconds.unwrap_or_default();
            }
            "device_memory" => {
                if self.run_started {
                    *self = Self::default();
                }
                for of in event.get("devices").and_then(Value::as_array).into_iter().flatten() {
                    let name = of["device"].as_str().unwrap_or_default().to_owned();
                    let poll = DevicePoll::deserialize(of).unwrap_or_default();
                    let time = text("time").to_owned();
                    self.devices.entry(name).or_default().add(DevicePoll { time, ..poll });
                }
            }
            name if !name.is_empty() && !USUAL.contains(&name) => {
                *self.steps.entry(name.to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn polls_are_bounded_and_those_of_earlier_runs_are_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        crate::storage::files::create_folder(&directory.root).unwrap();
        let poll = |held: u64| json!({ "devices": [{ "device": "cpu", "held_bytes": held }] });
        events::append(&directory, "device_memory", poll(7)).unwrap();
        events::append(&directory, "run_started", json!({})).unwrap();
        for held in 0..1000 {
            events::append(&directory, "device_memory", poll(held)).unwrap();
        }
        events::append(&directory, "memory_wait", json!({})).unwrap();
        // A run that only selects polls no devices.
        events::append(&directory, "run_started", json!({})).unwrap();
        let facts = json!({ "kept": 1, "seconds": [["score", 0.5]] });
        events::append(&directory, "selection_committed", facts).unwrap();
        let machine = Machine::from_events(&directory).unwrap();
        let held: Vec<u64> =
            machine.devices["cpu"].kept.iter().map(|poll| poll.held_bytes).collect();
        assert!(held.len() < 240 && held.len() > 100, "{}", held.len());
        assert!(held.windows(2).all(|pair| pair[1] - pair[0] == held[1]), "{held:?}");
        assert_eq!(machine.steps, BTreeMap::from([("memory_wait".to_owned(), 1)]));
        assert_eq!(machine.seconds, [("score".to_owned(), 0.5)]);
    }
}
