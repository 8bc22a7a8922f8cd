//! Decides which heads of a window run on a device next, without threads or clocks.
//!
//! The longest window goes first, to the idle device with the most available memory. Near the end, when whole windows would not
//! keep all devices busy, windows are split by heads into pieces of at most an even share of the remaining work, so that all
//! devices finish together. If memory is short: fewer concurrent windows on a device, then groups of heads, then waiting with
//! back-off, then the window is given up.

pub(crate) mod shortage;
pub(crate) mod terms;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use longsift_stages::contract::RowError;
use longsift_stages::contract::compute::DeviceFailure;
use longsift_stages::shard_across_devices::ShardBy;
use serde_json::{Value, json};

use super::ledger::{MemoryState, Reservation, ReservationRefusal};
use terms::{
    DeviceProperties, DeviceState, DeviceStatus, Next, PendingWindow, Piece, PieceOutcome, Policy,
    Step, WindowBytes,
};

/// First and longest pause between two checks of insufficient memory.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Windows that must succeed before a device may run one more concurrently again.
const RECOVERY_WINDOWS: u32 = 32;
/// Failures other than of memory after which a window is given up, or a device retired.
const MAX_FAILURES: u32 = 3;

pub struct Dispatcher {
    devices: Vec<DeviceState>,
    window_bytes: Box<WindowBytes>,
    policy: Policy,
    windows: HashMap<u64, PendingWindow>,
    /// Windows with heads that are not running yet, the longest first.
    queue: BTreeSet<(Reverse<usize>, u64)>,
    /// Total cost of the queue: `tokens²` per head.
    left: u128,
    waiting_since: Option<Duration>,
    pause: Duration,
    steps: Vec<Step>,
    /// Number of changes, except of memory, that affect which windows fit on which device.
    changes: u64,
}

impl Dispatcher {
    /// Returns a dispatcher over devices that have not loaded the table.
    pub fn new(
        sites: Vec<DeviceProperties>,
        window_bytes: Box<WindowBytes>,
        policy: Policy,
    ) -> Self {
        let device = |site: DeviceProperties| DeviceState {
            limit: site.workers.max(1),
            site,
            state: DeviceStatus::Empty,
            table: None,
            in_flight: 0,
            successes: 0,
            memory_limited: false,
            failed_windows: Vec::new(),
            blocked_until: Duration::ZERO,
            refused: None,
        };
        Self {
            devices: sites.into_iter().map(device).collect(),
            window_bytes,
            policy,
            windows: HashMap::new(),
            queue: BTreeSet::new(),
            left: 0,
            waiting_since: None,
            pause: BACK_OFF.0,
            steps: Vec::new(),
            changes: 0,
        }
    }

    pub fn submit(&mut self, window: u64, tokens: usize, key_heads: usize) {
        self.changes += 1;
        let pending = PendingWindow {
            tokens,
            key_heads,
            queued_heads: std::iter::once(0..key_heads).collect(),
            done: 0,
            max_heads: self.policy.key_heads_at_once.unwrap_or(key_heads).max(1),
            failures: 0,
            waiting_since: None,
        };
        self.left += pending.cost(key_heads);
        self.windows.insert(window, pending);
        self.queue.insert((Reverse(tokens), window));
    }

    /// Removes the windows that have heads in the queue.
    pub fn withdraw(&mut self) {
        self.changes += 1;
        self.left = 0;
        for (_, window) in std::mem::take(&mut self.queue) {
            self.windows.remove(&window);
        }
    }

    pub fn in_flight(&self) -> impl Iterator<Item = usize> {
        self.devices.iter().map(|device| device.in_flight)
    }

    /// Reason for retiring a device; `None` if it is active.
    pub fn retired(&self, device: usize) -> Option<&str> {
        match &self.devices[device].state {
            DeviceStatus::Retired(reason) => Some(reason),
            _ => None,
        }
    }

    pub fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    fn note(&mut self, device: Option<usize>, name: &'static str, facts: Value) {
        self.steps.push(Step { device, name, facts });
    }

    /// Decides the next action. Call it until it returns [`Next::Wait`] or [`Next::NoDeviceLeft`]. `now`: time since any moment.
    pub fn next(&mut self, now: Duration) -> Next {
        if let Some(load) = self.load(now) {
            return load;
        }
        if self.queue.is_empty() {
            return Next::Wait(self.next_check(now));
        }
        if let Some(piece) = self.place(now) {
            self.pause = BACK_OFF.0;
            if let Some(since) = self.waiting_since.take() {
                let seconds = now.saturating_sub(since).as_secs_f64();
                self.note(None, "memory_back", json!({ "seconds": seconds }));
            }
            return Next::Start(piece);
        }
        if self.devices.iter().all(|device| matches!(device.state, DeviceStatus::Retired(_))) {
            return Next::NoDeviceLeft(self.retirement_reasons());
        }
        let busy =
            |device: &DeviceState| device.in_flight > 0 || device.state == DeviceStatus::Loading;
        if self.devices.iter().any(busy) {
            return Next::Wait(self.next_check(now));
        }
        self.wait_for_memory(now)
    }

    /// Time until the next check if nothing ends: memory of other programs may be released.
    fn next_check(&mut self, now: Duration) -> Option<Duration> {
        let waits = |device: &DeviceState| match device.state {
            DeviceStatus::Empty => true,
            DeviceStatus::Ready => !self.queue.is_empty() && device.in_flight < device.limit,
            DeviceStatus::Loading | DeviceStatus::Retired(_) => false,
        };
        let blocked = self.devices.iter().filter(|device| waits(device));
        let first = blocked.map(|device| device.blocked_until.saturating_sub(now)).min()?;
        let delay = first.max(self.pause);
        self.pause = (self.pause * 2).min(BACK_OFF.1);
        Some(delay)
    }

    fn retirement_reasons(&self) -> String {
        let reasons = self.devices.iter().filter_map(|device| match &device.state {
            DeviceStatus::Retired(reason) => Some(format!("{}: {reason}", device.site.name)),
            _ => None,
        });
        reasons.collect::<Vec<_>>().join("; ")
    }

    fn load(&mut self, now: Duration) -> Option<Next> {
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            if device.state != DeviceStatus::Empty || device.blocked_until > now {
                continue;
            }
            let wanted = device.site.resident_bytes;
            let refusal = match device.site.ledger.reserve(wanted) {
                Ok(reservation) => {
                    device.state = DeviceStatus::Loading;
                    return Some(Next::Load { device: index, reservation });
                }
                Err(refusal) => refusal,
            };
            match (refusal, device.site.ledger.ceiling(0)) {
                (ReservationRefusal::Unreadable(reason), _) | (_, Err(reason)) => {
                    self.retire(index, reason);
                }
                (ReservationRefusal::NotEnough(state), Ok(ceiling)) if wanted > ceiling => {
                    let numbers = state.shortage(wanted);
                    self.retire(index, format!("the table does not fit: {numbers}"));
                }
                (ReservationRefusal::NotEnough(_), Ok(_)) => {
                    device.blocked_until = now + self.pause;
                }
            }
        }
        None
    }

    pub fn loaded(
        &mut self,
        index: usize,
        reservation: Reservation,
        result: Result<(), DeviceFailure>,
        now: Duration,
    ) {
        self.changes += 1;
        let device = &mut self.devices[index];
        match result {
            Ok(()) => {
                let resident_bytes = reservation.bytes();
                device.state = DeviceStatus::Ready;
                device.table = Some(reservation);
                self.note(Some(index), "device_ready", json!({ "resident_bytes": resident_bytes }));
            }
            Err(DeviceFailure::OutOfMemory { wanted, free }) => {
                device.state = DeviceStatus::Empty;
                device.blocked_until = now + self.pause.max(BACK_OFF.0 * 4);
                self.note_out_of_memory(index, (0, 0), wanted, free);
            }
            Err(failure) => self.retire(index, failure.to_string()),
        }
    }

    /// Places the longest window, or as many of its heads as its share allows, on the best device with enough memory.
    ///
    /// While memory is short, this runs every few milliseconds under the lock that submitting and finishing threads need. A
    /// device on which nothing fitted is therefore skipped until its memory or the queue changes.
    fn place(&mut self, now: Duration) -> Option<Piece> {
        let candidates = self.candidates(now);
        if candidates.is_empty() {
            return None;
        }
        let min_piece_cost = u128::from(self.policy.min_piece_cost);
        let even = (self.left / self.live() as u128).max(min_piece_cost);
        for (index, state) in candidates {
            let current = (self.changes, state.available);
            if self.devices[index]
                .refused
                .is_some_and(|(changes, room)| changes == current.0 && current.1 <= room)
            {
                self.note_no_capacity(index);
                continue;
            }
            let (mut refused_tokens, mut taken_meanwhile) = (None, false);
            for &(Reverse(tokens), window) in &self.queue {
                if refused_tokens == Some(tokens) {
                    continue;
                }
                let wanted = self.share(window, even);
                let heads = self.fitting(index, &state, tokens, wanted);
                // Reduces the number of concurrent windows before the number of heads.
                if heads == 0 || (heads < wanted && self.devices[index].in_flight > 0) {
                    refused_tokens = Some(tokens);
                    continue;
                }
                let bytes = (self.window_bytes)(index, tokens, heads);
                if let Ok(reservation) = self.devices[index].site.ledger.reserve(bytes) {
                    return Some(self.start(index, window, heads, wanted, reservation));
                }
                taken_meanwhile = true;
            }
            self.devices[index].refused = (!taken_meanwhile).then_some(current);
            self.note_no_capacity(index);
        }
        None
    }

    /// Devices that can take another piece, sorted by running pieces, then by available memory.
    fn candidates(&mut self, now: Duration) -> Vec<(usize, MemoryState)> {
        let mut found = Vec::new();
        for index in 0..self.devices.len() {
            let device = &self.devices[index];
            if device.state != DeviceStatus::Ready
                || device.in_flight >= device.limit
                || device.blocked_until > now
            {
                continue;
            }
            match device.site.ledger.memory_state() {
                Ok(state) => found.push((index, state)),
                Err(reason) => self.retire(index, reason),
            }
        }
        found.sort_by_key(|(index, state)| {
            (self.devices[*index].in_flight, Reverse(state.available), *index)
        });
        found
    }

    /// Number of devices that are not retired, at least one.
    fn live(&self) -> usize {
        let live = |index: &usize| self.retired(*index).is_none();
        (0..self.devices.len()).filter(live).count().max(1)
    }

    /// Number of key heads of a window that one device should take.
    fn share(&self, window: u64, even: u128) -> usize {
        let window = &self.windows[&window];
        let next = window.queued_heads.last().map_or(0, ExactSizeIterator::len);
        let heads = match self.policy.by {
            ShardBy::Heads => window.key_heads.div_ceil(self.live()),
            ShardBy::Windows => usize::try_from(even / window.cost(1).max(1)).unwrap_or(usize::MAX),
        };
        heads.clamp(1, next.min(window.max_heads).max(1))
    }

    /// Largest number of key heads, up to `wanted`, that fit on a device.
    fn fitting(&self, index: usize, state: &MemoryState, tokens: usize, wanted: usize) -> usize {
        let ledger = &self.devices[index].site.ledger;
        let fits = |heads| ledger.fits(state, (self.window_bytes)(index, tokens, heads));
        (1..=wanted).rev().find(|heads| fits(*heads)).unwrap_or(0)
    }

    fn start(
        &mut self,
        index: usize,
        id: u64,
        heads: usize,
        wanted: usize,
        reservation: Reservation,
    ) -> Piece {
        self.changes += 1;
        let device = &mut self.devices[index];
        device.in_flight += 1;
        device.memory_limited &= device.in_flight == 1;
        let window = self.windows.get_mut(&id).expect("queued windows are known");
        let range = window.queued_heads.pop().expect("queued windows have heads to do");
        let key_heads = range.start..range.start + heads;
        if key_heads.end < range.end {
            window.queued_heads.push(key_heads.end..range.end);
        }
        if window.queued_heads.is_empty() {
            self.queue.remove(&(Reverse(window.tokens), id));
        }
        self.left -= window.cost(heads);
        let tokens = window.tokens;
        if heads < wanted {
            window.max_heads = heads;
            self.note_smaller_groups(index, tokens, heads);
        }
        Piece { window: id, tokens, key_heads, device: index, reservation }
    }

    /// Notes that nothing fits on a device that could take another piece.
    fn note_no_capacity(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if device.in_flight > 0 && !device.memory_limited {
            device.memory_limited = true;
            let windows = device.in_flight;
            self.note(Some(index), "fewer_in_flight", json!({ "windows": windows }));
        }
    }

    fn give_up(&mut self, id: u64, why: &RowError) {
        self.changes += 1;
        if let Some(window) = self.windows.remove(&id) {
            self.queue.remove(&(Reverse(window.tokens), id));
            let heads = window.queued_heads.iter().map(ExactSizeIterator::len).sum();
            self.left -= window.cost(heads);
            let facts = json!({ "tokens": window.tokens, "code": why.code });
            self.note(None, "window_given_up", facts);
        }
    }

    fn retire(&mut self, index: usize, reason: String) {
        if self.retired(index).is_some() {
            return;
        }
        self.changes += 1;
        self.note(Some(index), "device_retired", json!({ "reason": reason }));
        let device = &mut self.devices[index];
        device.table = None;
        device.state = DeviceStatus::Retired(reason);
    }

    /// Records the result of a piece and releases its memory.
    pub fn ended(
        &mut self,
        piece: Piece,
        result: Result<(), DeviceFailure>,
        now: Duration,
    ) -> PieceOutcome {
        let Piece { window: id, tokens, key_heads, device: index, reservation } = piece;
        drop(reservation);
        self.changes += 1;
        self.devices[index].in_flight -= 1;
        self.pause = BACK_OFF.0;
        let heads = key_heads.len();
        let why = match result {
            Ok(()) => return self.record_success(id, heads, index),
            Err(DeviceFailure::OutOfMemory { wanted, free }) => {
                self.note_out_of_memory(index, (tokens, heads), wanted, free);
                self.out_of_memory(id, heads, index, now)
            }
            Err(DeviceFailure::Lost(reason)) => {
                self.retire(index, reason);
                None
            }
            Err(DeviceFailure::Failed(message)) => self.failed(id, index, message),
        };
        let Some(window) = self.windows.get_mut(&id) else { return PieceOutcome::Open };
        if let Some(why) = why {
            self.give_up(id, &why);
            return PieceOutcome::GivenUp(why);
        }
        window.queued_heads.push(key_heads);
        self.left += window.cost(heads);
        self.queue.insert((Reverse(tokens), id));
        PieceOutcome::Open
    }

    fn record_success(&mut self, id: u64, heads: usize, index: usize) -> PieceOutcome {
        let device = &mut self.devices[index];
        device.failed_windows.clear();
        device.successes += 1;
        if device.limit < device.site.workers && device.successes >= RECOVERY_WINDOWS {
            (device.limit, device.successes) = (device.limit + 1, 0);
            let windows = device.limit;
            self.note(Some(index), "more_in_flight", json!({ "windows": windows }));
        }
        let Some(window) = self.windows.get_mut(&id) else { return PieceOutcome::Open };
        window.done += heads;
        window.waiting_since = None;
        if window.done < window.key_heads {
            return PieceOutcome::Open;
        }
        self.windows.remove(&id);
        PieceOutcome::Done
    }
}
