//! Handles insufficient memory and failing devices.

use std::cmp::Reverse;
use std::time::Duration;

use longsift_stages::contract::RowError;
use serde_json::json;

use super::terms::{DeviceStatus, Next, Unit};
use crate::devices::dispatch::{BACK_OFF, Dispatcher, MAX_FAILURES};
use crate::devices::ledger::MemoryState;

impl Dispatcher {
    /// Decides what to do if nothing is running and nothing fits.
    pub(super) fn wait_for_memory(&mut self, now: Duration) -> Next {
        let &(Reverse(tokens), window) =
            self.queue.first().expect("called only if the queue has windows");
        if self.devices.iter().all(|device| device.state != DeviceStatus::Ready) {
            let since = *self.waiting_since.get_or_insert(now);
            if now.saturating_sub(since) >= self.policy.memory_wait {
                let seconds = self.policy.memory_wait.as_secs();
                let message =
                    format!("no device had enough memory for the table for {seconds} seconds");
                return Next::NoDeviceLeft(message);
            }
            return Next::Wait(self.next_check(now));
        }
        let unit = self.policy.unit.name();
        let (wanted, memory, hopeless) = self.nearest(tokens);
        let began = self.waiting_since.is_none();
        let since = *self.waiting_since.get_or_insert(now);
        let expired = now.saturating_sub(since) >= self.policy.memory_wait;
        if hopeless || expired {
            self.waiting_since = None;
            let (code, problem) = if hopeless {
                let problem = "does not fit any device, even an unused one".to_owned();
                ("window_exceeds_device_memory", problem)
            } else {
                let seconds = self.policy.memory_wait.as_secs();
                ("device_memory_short", format!("did not fit any device for {seconds} seconds"))
            };
            let numbers = memory.shortage(wanted);
            let why =
                RowError::new(code, format!("one {unit} of {tokens} tokens {problem}: {numbers}"));
            self.give_up(window, &why);
            return Next::GiveUp { window, why };
        }
        if began {
            let facts = json!({
                "wanted_bytes": wanted, "reserved_bytes": memory.reserved,
                "free_bytes": memory.free, "headroom_bytes": memory.headroom,
            });
            self.note(None, "memory_wait", facts);
        }
        let left = (since + self.policy.memory_wait).saturating_sub(now);
        let delay = self.next_check(now).unwrap_or(BACK_OFF.0);
        Next::Wait(Some(delay.min(left)))
    }

    /// Returns the bytes that the ready device with the most available memory needs, its memory, and whether waiting cannot help.
    fn nearest(&self, tokens: usize) -> (u64, MemoryState, bool) {
        let mut best: Option<(u64, MemoryState)> = None;
        let mut hopeless = true;
        for (index, device) in self.devices.iter().enumerate() {
            if device.state != DeviceStatus::Ready {
                continue;
            }
            let wanted = (self.window_bytes)(index, tokens, 1);
            let ledger = &device.site.ledger;
            let ceiling = ledger.ceiling(device.site.resident_bytes).unwrap_or(0);
            hopeless &= wanted > ceiling;
            let Ok(state) = ledger.memory_state() else { continue };
            if best.is_none_or(|(_, most)| state.available > most.available) {
                best = Some((wanted, state));
            }
        }
        let (wanted, memory) = best.unwrap_or_default();
        (wanted, memory, hopeless)
    }

    /// Notes a failed allocation, for the tokens and the key heads of a piece.
    pub(super) fn note_out_of_memory(
        &mut self,
        index: usize,
        (tokens, heads): (usize, usize),
        wanted: u64,
        free: u64,
    ) {
        let facts = json!({
            "tokens": tokens, "key_heads": heads, "wanted_bytes": wanted, "free_bytes": free,
        });
        self.note(Some(index), "out_of_memory", facts);
    }

    pub(super) fn note_smaller_groups(&mut self, index: usize, tokens: usize, units: usize) {
        let (name, facts) = match self.policy.unit {
            Unit::KeyHead => ("head_groups", json!({ "tokens": tokens, "key_heads": units })),
            Unit::Window => ("window_groups", json!({ "tokens": tokens, "windows": units })),
        };
        self.note(Some(index), name, facts);
    }

    /// Handles a failed allocation that should have fitted: fewer concurrent windows, then fewer heads, then a pause.
    pub(super) fn out_of_memory(
        &mut self,
        id: u64,
        heads: usize,
        index: usize,
        now: Duration,
    ) -> Option<RowError> {
        let device = &mut self.devices[index];
        device.successes = 0;
        if device.in_flight > 0 {
            device.limit = device.in_flight;
            let windows = device.limit;
            self.note(Some(index), "fewer_in_flight", json!({ "windows": windows }));
            return None;
        }
        let window = self.windows.get_mut(&id)?;
        if heads > 1 {
            window.max_heads = heads / 2;
            let tokens = window.tokens;
            self.note_smaller_groups(index, tokens, heads / 2);
            return None;
        }
        let since = *window.waiting_since.get_or_insert(now);
        let waited = now.saturating_sub(since);
        if waited >= self.policy.memory_wait {
            let message = format!(
                "one {} of {} tokens ran out of memory on {}, repeatedly for {} seconds",
                self.policy.unit.name(),
                window.tokens,
                device.site.name,
                waited.as_secs()
            );
            return Some(RowError { code: "device_memory_short", message });
        }
        device.blocked_until = now + (waited / 2).clamp(BACK_OFF.0, BACK_OFF.1);
        None
    }

    pub(super) fn failed(&mut self, id: u64, index: usize, message: String) -> Option<RowError> {
        self.note(Some(index), "device_failed", json!({ "message": message }));
        let device = &mut self.devices[index];
        if !device.failed_windows.contains(&id) {
            device.failed_windows.push(id);
        }
        if device.failed_windows.len() >= MAX_FAILURES as usize {
            let reason =
                format!("{MAX_FAILURES} windows in a row failed on it, the last with: {message}");
            self.retire(index, reason);
        }
        let window = self.windows.get_mut(&id)?;
        window.failures += 1;
        (window.failures >= MAX_FAILURES).then_some(RowError { code: "device_failed", message })
    }
}
