//! Monitors devices during a run: steps of the scheduler, memory over time, memory leaks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::text::bytes;
use crate::devices::device::Device;
use crate::devices::ledger::MemoryState;
use crate::devices::presence::{DeviceClaim, Presence};
use crate::devices::scheduler::Scheduler;
use crate::devices::steps::Step;
use crate::run_directory::events;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::summary::{DeviceUse, DeviceWork};

/// Interval of memory samples for the progress display.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of memory samples in `events.jsonl`.
const TIMELINE_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum warnings per kind of step; later ones are only events and counts.
const MAX_STEP_WARNINGS: u64 = 5;
/// Growth of memory that causes a warning, as a fraction of the device's memory.
const MIN_REPORTED_GROWTH: f64 = 0.05;
/// Bytes that an idle device may hold in addition to the table: buffers kept for the next window.
const IDLE_SLACK: u64 = 64 << 20;

/// Monitor of the devices of a run.
pub struct Watch<'a> {
    directory: &'a RunDirectory,
    progress: &'a Progress,
    devices: &'a [Device],
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    steps: BTreeMap<&'static str, u64>,
    sampled: Option<Instant>,
    written: Option<Instant>,
    /// Last reported memory of other programs, by device.
    reported_others: Vec<Option<u64>>,
    reported_leak: Vec<bool>,
    presence: Option<Presence>,
    result: Vec<DeviceWork>,
}

impl<'a> Watch<'a> {
    /// Returns a monitor of `devices` that writes events to `directory`.
    pub fn new(directory: &'a RunDirectory, progress: &'a Progress, devices: &'a [Device]) -> Self {
        let notes = Notes {
            reported_others: vec![None; devices.len()],
            reported_leak: vec![false; devices.len()],
            presence: Presence::begin(),
            ..Notes::default()
        };
        Self { directory, progress, devices, notes: Mutex::new(notes) }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a step of the scheduler, writes an event and logs it.
    pub fn step(&self, device: Option<usize>, step: &Step) -> Result<()> {
        let name = step.name();
        let device = device.map(|device| self.devices[device].compute.name());
        let count = {
            let mut notes = self.notes();
            let count = notes.steps.entry(name).or_default();
            *count += 1;
            *count
        };
        let facts = step.facts();
        let on = device.unwrap_or("all devices");
        if step.is_warning() && count <= MAX_STEP_WARNINGS {
            let last =
                if count == MAX_STEP_WARNINGS { "; further ones are only counted" } else { "" };
            tracing::warn!("{on}: {}: {facts}{last}", name.replace('_', " "));
        } else {
            tracing::debug!("{on}: {}: {facts}", name.replace('_', " "));
        }
        let mut event = json!({ "device": device });
        if let (Value::Object(event), Value::Object(facts)) = (&mut event, facts) {
            event.extend(facts);
        }
        events::append_shared(self.directory, name, event)
    }

    /// Samples memory if due.
    pub fn poll<J: Send + Sync, R: Send>(&self, scheduler: &Scheduler<'_, J, R>) -> Result<()> {
        let due = |at: Option<Instant>, interval| at.is_none_or(|at| at.elapsed() >= interval);
        let (poll, write) = {
            let notes = self.notes();
            (due(notes.sampled, SAMPLE_INTERVAL), due(notes.written, TIMELINE_INTERVAL))
        };
        if poll { self.sample_memory(scheduler, write) } else { Ok(()) }
    }

    /// Samples memory a last time and records the work of each device.
    pub fn finish<J: Send + Sync, R: Send>(&self, scheduler: &Scheduler<'_, J, R>) -> Result<()> {
        let retired = scheduler.retired().into_iter();
        let result = self.devices.iter().zip(scheduler.work()).zip(retired);
        let result = result.map(|((device, work), retired)| DeviceWork {
            name: device.compute.name().to_owned(),
            uuid: device.uuid.clone(),
            pieces: work.pieces,
            tokens: work.tokens.round() as u64,
            busy_seconds: work.busy.as_secs_f64(),
            most_reserved_bytes: device.ledger.peak_reserved(),
            retired,
        });
        let result = result.collect();
        self.notes().result = result;
        self.sample_memory(scheduler, true)
    }

    pub fn into_use(self) -> DeviceUse {
        let notes = self.notes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let steps = notes.steps.into_iter().map(|(step, count)| (step.to_owned(), count));
        DeviceUse { list: notes.result, steps: steps.collect() }
    }

    fn sample_memory<J: Send + Sync, R: Send>(
        &self,
        scheduler: &Scheduler<'_, J, R>,
        write: bool,
    ) -> Result<()> {
        let in_flight = scheduler.in_flight();
        let mut timeline = Vec::new();
        let mut claims = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            // The scheduler handles devices that fail.
            let Ok(state) = device.ledger.memory_state() else { continue };
            let utilisation = device.ledger.utilisation();
            self.progress.device(index, &row(device, &state, in_flight[index], utilisation));
            timeline.push(sample(device, &state, in_flight[index], utilisation));
            claims.push(DeviceClaim {
                pid: std::process::id(),
                device: device.uuid.clone().unwrap_or_else(|| device.compute.name().to_owned()),
                reserved_bytes: state.reserved,
                in_flight: in_flight[index],
            });
            self.check_others(index, &state)?;
            if in_flight[index] == 0 {
                self.check_leak(index, &state)?;
            }
        }
        let mut notes = self.notes();
        notes.sampled = Some(Instant::now());
        if let Some(presence) = &mut notes.presence {
            presence.publish(&claims);
        }
        if write {
            notes.written = notes.sampled;
            drop(notes);
            return events::append_shared(
                self.directory,
                "device_memory",
                json!({ "devices": timeline }),
            );
        }
        Ok(())
    }

    /// Warns if the memory of other programs has grown since the last warning.
    fn check_others(&self, index: usize, state: &MemoryState) -> Result<()> {
        let before = {
            let mut notes = self.notes();
            let reported = &mut notes.reported_others[index];
            let before = *reported.get_or_insert(state.others);
            let grown = state.others.saturating_sub(before) as f64;
            if grown < MIN_REPORTED_GROWTH * state.total as f64 {
                // Memory that is released and then used again is reported again.
                *reported = Some(before.min(state.others));
                return Ok(());
            }
            *reported = Some(state.others);
            before
        };
        let device = self.devices[index].compute.name();
        tracing::warn!(
            "{device}: other programs use {} of its memory, previously {}",
            bytes(state.others),
            bytes(before)
        );
        let facts =
            json!({ "device": device, "others_bytes": state.others, "before_bytes": before });
        events::append_shared(self.directory, "others_grew", facts)
    }

    /// Warns once if an idle device holds memory of finished windows.
    fn check_leak(&self, index: usize, state: &MemoryState) -> Result<()> {
        let for_later = self.devices[index].compute.kept_bytes();
        let kept = state.held.saturating_sub(state.reserved).saturating_sub(for_later);
        if kept <= IDLE_SLACK || std::mem::replace(&mut self.notes().reported_leak[index], true) {
            return Ok(());
        }
        let device = self.devices[index].compute.name();
        tracing::warn!("{device}: {} leaked by finished windows", bytes(kept));
        let facts = json!({ "device": device, "kept_bytes": kept });
        events::append_shared(self.directory, "memory_not_returned", facts)
    }
}

fn sample(
    device: &Device,
    state: &MemoryState,
    in_flight: usize,
    utilisation: Option<u32>,
) -> Value {
    json!({
        "device": device.compute.name(),
        "total_bytes": state.total,
        "free_bytes": state.free,
        "others_bytes": state.others,
        "held_bytes": state.held,
        "reserved_bytes": state.reserved,
        "in_flight": in_flight,
        "utilisation_percent": utilisation,
    })
}

/// Formats the state of a device for the progress display.
fn row(device: &Device, state: &MemoryState, in_flight: usize, utilisation: Option<u32>) -> String {
    let busy = utilisation.map_or(String::new(), |percent| format!(", {percent} % busy"));
    format!(
        "{:<7} {in_flight} in flight, {} reserved, {} free of {}{busy}",
        device.compute.name(),
        bytes(state.reserved),
        bytes(state.free),
        bytes(state.total)
    )
}
