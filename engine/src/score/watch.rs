//! Monitors devices during a run: steps of the scheduler, memory over time, memory leaks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::base::error::Result;
use crate::base::parallel::lock;
use crate::base::progress::Progress;
use crate::base::text::bytes;
use crate::devices::device::Device;
use crate::devices::dispatch::terms::Step;
use crate::devices::ledger::MemoryState;
use crate::devices::presence::{DeviceClaim, Presence};
use crate::devices::scheduler::Scheduler;
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
    pub fn new(directory: &'a RunDirectory, progress: &'a Progress, devices: &'a [Device]) -> Self {
        let notes = Notes {
            reported_others: vec![None; devices.len()],
            reported_leak: vec![false; devices.len()],
            presence: Presence::begin(),
            ..Notes::default()
        };
        Self { directory, progress, devices, notes: Mutex::new(notes) }
    }

    pub fn step(&self, step: Step) -> Result<()> {
        let device = step.device.map(|device| self.devices[device].compute.name());
        let count = {
            let mut notes = lock(&self.notes);
            let count = notes.steps.entry(step.name).or_default();
            *count += 1;
            *count
        };
        let on = device.unwrap_or("all devices");
        if step.is_warning() && count <= MAX_STEP_WARNINGS {
            let last =
                if count == MAX_STEP_WARNINGS { "; further ones are only counted" } else { "" };
            tracing::warn!("{on}: {step}{last}");
        } else {
            tracing::debug!("{on}: {step}");
        }
        let mut event = json!({ "device": device });
        if let (Value::Object(event), Value::Object(facts)) = (&mut event, step.facts) {
            event.extend(facts);
        }
        events::append_shared(self.directory, step.name, event)
    }

    pub fn poll<J: Send + Sync, R: Send>(&self, scheduler: &Scheduler<'_, J, R>) -> Result<()> {
        let due = |at: Option<Instant>, interval| at.is_none_or(|at| at.elapsed() >= interval);
        let (poll, write) = {
            let notes = lock(&self.notes);
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
        lock(&self.notes).result = result;
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
            timeline.push(json!({
                "device": device.compute.name(),
                "total_bytes": state.total,
                "free_bytes": state.free,
                "others_bytes": state.others,
                "held_bytes": state.held,
                "reserved_bytes": state.reserved,
                "in_flight": in_flight[index],
                "utilisation_percent": utilisation,
            }));
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
        let mut notes = lock(&self.notes);
        notes.sampled = Some(Instant::now());
        if let Some(presence) = &mut notes.presence {
            presence.publish(&claims);
        }
        if !write {
            return Ok(());
        }
        notes.written = notes.sampled;
        drop(notes);
        events::append_shared(self.directory, "device_memory", json!({ "devices": timeline }))
    }

    /// Warns if the memory of other programs has grown since the last warning.
    fn check_others(&self, index: usize, state: &MemoryState) -> Result<()> {
        let before = {
            let mut notes = lock(&self.notes);
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
        let is_reported = || std::mem::replace(&mut lock(&self.notes).reported_leak[index], true);
        if kept <= IDLE_SLACK || is_reported() {
            return Ok(());
        }
        let device = self.devices[index].compute.name();
        tracing::warn!("{device}: {} leaked by finished windows", bytes(kept));
        let facts = json!({ "device": device, "kept_bytes": kept });
        events::append_shared(self.directory, "memory_not_returned", facts)
    }
}

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
