//! Accounts for a device's memory, which is read before each admission because other processes share the device.
//!
//! Available memory is `total − headroom − used by others − reserved here`. Memory used by others is what the device reports as
//! used minus what this process holds on it, so that reserved bytes that are already in use do not count twice.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::parallel::lock;
use crate::base::text::bytes;

/// Memory of a device at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Used by all processes, including this one.
    pub used: u64,
}

/// Source of a device's memory readings: NVML, a fixed limit, a simulation.
pub trait MemorySource: Send + Sync {
    /// Reads the memory. Fails if the device does not respond.
    fn read(&self) -> Result<Memory, String>;

    /// Bytes that this process holds: resident data, windows in progress and cached buffers.
    fn held(&self) -> u64 {
        0
    }

    /// Recent utilisation in per cent, if known.
    fn utilisation(&self) -> Option<u32> {
        None
    }

    /// Whether a reservation that does not fit is granted if it is the only one.
    fn allows_oversized(&self) -> bool {
        false
    }
}

pub struct Ledger {
    source: Arc<dyn MemorySource>,
    headroom: u64,
    reserved: Mutex<u64>,
    peak_reserved: AtomicU64,
}

/// Reading of a device's memory with the reservations, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub total: u64,
    pub free: u64,
    /// Used by other processes.
    pub others: u64,
    pub held: u64,
    pub reserved: u64,
    pub headroom: u64,
    pub available: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationRefusal {
    NotEnough(MemoryState),
    Unreadable(String),
}

impl MemoryState {
    /// Describes why a reservation of `wanted` bytes does not fit.
    pub fn shortage(&self, wanted: u64) -> String {
        let [wanted, reserved, free, headroom] =
            [wanted, self.reserved, self.free, self.headroom].map(bytes);
        format!("{wanted} wanted; {reserved} reserved, {free} free, {headroom} headroom")
    }
}

impl Ledger {
    pub fn new(source: Arc<dyn MemorySource>, headroom: u64) -> Arc<Self> {
        let (reserved, peak_reserved) = (Mutex::new(0), AtomicU64::new(0));
        Arc::new(Self { source, headroom, reserved, peak_reserved })
    }

    pub fn memory_state(&self) -> Result<MemoryState, String> {
        self.compute_state(*lock(&self.reserved))
    }

    fn compute_state(&self, reserved: u64) -> Result<MemoryState, String> {
        // Memory may be allocated or freed between the two readings: the smaller one never underestimates others.
        let before = self.source.held();
        let Memory { total, used } = self.source.read()?;
        let held = before.min(self.source.held());
        let others = used.saturating_sub(held);
        let taken = self.headroom.saturating_add(others).saturating_add(reserved);
        let available = total.saturating_sub(taken);
        let free = total.saturating_sub(used);
        let headroom = self.headroom;
        Ok(MemoryState { total, free, others, held, reserved, headroom, available })
    }

    /// Maximum that could be reserved in addition to `resident` bytes if no other process used the device.
    pub fn ceiling(&self, resident: u64) -> Result<u64, String> {
        if self.source.allows_oversized() {
            return Ok(u64::MAX);
        }
        let total = self.source.read()?.total;
        Ok(total.saturating_sub(self.headroom).saturating_sub(resident))
    }

    pub fn fits(&self, state: &MemoryState, bytes: u64) -> bool {
        bytes <= state.available || (state.reserved == 0 && self.source.allows_oversized())
    }

    /// Reserves bytes until the reservation is dropped.
    pub fn reserve(self: &Arc<Self>, wanted: u64) -> Result<Reservation, ReservationRefusal> {
        let mut reserved = lock(&self.reserved);
        let state = self.compute_state(*reserved).map_err(ReservationRefusal::Unreadable)?;
        if !self.fits(&state, wanted) {
            return Err(ReservationRefusal::NotEnough(state));
        }
        *reserved += wanted;
        self.peak_reserved.fetch_max(*reserved, Ordering::Relaxed);
        Ok(Reservation { ledger: Arc::clone(self), bytes: wanted })
    }

    pub fn peak_reserved(&self) -> u64 {
        self.peak_reserved.load(Ordering::Relaxed)
    }

    pub fn utilisation(&self) -> Option<u32> {
        self.source.utilisation()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("state", &self.memory_state()).finish_non_exhaustive()
    }
}

/// Reserved bytes of a device, released when dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *lock(&self.ledger.reserved) -= self.bytes;
    }
}

/// Memory with a fixed size that no other program uses: what `memory_limit_bytes` leaves for windows.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64);

impl MemorySource for Limit {
    fn read(&self) -> Result<Memory, String> {
        Ok(Memory { total: self.0, used: 0 })
    }

    fn allows_oversized(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Card {
        total: u64,
        others: Arc<AtomicU64>,
        held: Arc<AtomicU64>,
    }

    impl MemorySource for Card {
        fn read(&self) -> Result<Memory, String> {
            let used = self.others.load(Ordering::SeqCst) + self.held();
            Ok(Memory { total: self.total, used })
        }
        fn held(&self) -> u64 {
            self.held.load(Ordering::SeqCst)
        }
    }

    fn card(total: u64) -> (Arc<Ledger>, Arc<AtomicU64>, Arc<AtomicU64>) {
        let (others, held) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let card = Card { total, others: Arc::clone(&others), held: Arc::clone(&held) };
        (Ledger::new(Arc::new(card), total / 10), others, held)
    }

    #[test]
    fn reservation_is_released_on_drop() {
        let (ledger, _, _) = card(1000);
        let first = ledger.reserve(600).unwrap();
        let refused = ledger.reserve(301).unwrap_err();
        assert_eq!(refused, ReservationRefusal::NotEnough(ledger.memory_state().unwrap()));
        let second = ledger.reserve(300).unwrap();
        drop(first);
        assert_eq!(ledger.memory_state().unwrap().reserved, 300);
        drop(second);
        assert_eq!(ledger.memory_state().unwrap().available, 900);
        assert_eq!(ledger.peak_reserved(), 900);
    }

    #[test]
    fn memory_of_others_is_subtracted_and_own_memory_counts_once() {
        let (ledger, others, held) = card(1000);
        let _reserved = ledger.reserve(400).unwrap();
        held.store(400, Ordering::SeqCst);
        assert_eq!(
            ledger.memory_state().unwrap().available,
            500,
            "in use by now, not reserved twice"
        );
        others.store(450, Ordering::SeqCst);
        assert_eq!(ledger.memory_state().unwrap().available, 50);
        assert!(ledger.reserve(51).is_err());
        others.store(0, Ordering::SeqCst);
        assert!(ledger.reserve(500).is_ok());
    }

    #[test]
    fn refusal_has_four_numbers() {
        let state = MemoryState { reserved: 1, free: 5_000_000, ..MemoryState::default() };
        let numbers = "2.10 GB wanted; 1 B reserved, 5.00 MB free, 0 B headroom";
        assert_eq!(state.shortage(2_100_000_000), numbers);
    }

    #[test]
    fn the_processor_always_gets_one_window() {
        let ledger = Ledger::new(Arc::new(Limit(100)), 0);
        let only = ledger.reserve(1000).unwrap();
        assert!(ledger.reserve(1).is_err());
        drop(only);
        assert!(ledger.reserve(60).is_ok_and(|_one| ledger.reserve(40).is_ok()));
    }
}
