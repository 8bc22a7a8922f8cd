//! How much of a device's memory may be used: read anew before each admission, because other processes share the card.
//!
//! What may be handed out is `total − headroom − what others use − what is reserved here`. What others use is what the
//! device says is used beyond what this process holds on it, so bytes that were reserved and are in use by now do not
//! count twice.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::text::bytes;

/// A device's memory at a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// Used by anyone, this process included.
    pub used: u64,
}

/// Where a device's memory is read from: NVML, a limit that was set, a simulation.
pub trait MemorySource: Send + Sync {
    /// The memory now.
    ///
    /// # Errors
    /// Why it cannot be read: the device is gone.
    fn read(&self) -> Result<Memory, String>;

    /// Bytes of it that this process holds now.
    fn held(&self) -> u64;

    /// Share of the last moments in which the device was at work, in per cent, where that is known.
    fn utilisation(&self) -> Option<u32> {
        None
    }
}

/// The account of one device's memory.
pub struct Ledger {
    source: Box<dyn MemorySource>,
    headroom: u64,
    /// Whether one reservation is granted even where it does not fit.
    one_always: bool,
    reserved: Mutex<u64>,
    most_reserved: AtomicU64,
}

/// A reading of a device's memory with what this account makes of it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryState {
    /// All of the memory.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Used by other processes.
    pub others: u64,
    /// Held by this process.
    pub held: u64,
    /// Handed out to windows and the table.
    pub reserved: u64,
    /// Never used.
    pub headroom: u64,
    /// What may be handed out still.
    pub available: u64,
}

/// Why bytes were not reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They do not fit.
    NotEnough(NotEnough),
    /// The memory cannot be read: the device is gone.
    Unreadable(String),
}

/// The four numbers of a reservation that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotEnough {
    /// Bytes that were asked for.
    pub wanted: u64,
    /// Bytes handed out already.
    pub reserved: u64,
    /// Bytes free on the device now.
    pub free: u64,
    /// Bytes that are never used.
    pub headroom: u64,
}

impl fmt::Display for NotEnough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, reserved, free, headroom } = *self;
        write!(
            f,
            "{} wanted; {} reserved, {} free, {} headroom",
            bytes(wanted),
            bytes(reserved),
            bytes(free),
            bytes(headroom)
        )
    }
}

impl Ledger {
    /// An account over `source` of which `headroom` bytes are never used.
    pub fn new(source: Box<dyn MemorySource>, headroom: u64) -> Arc<Self> {
        Self::open(source, headroom, false)
    }

    /// An account that grants one reservation even where it does not fit: for the processor, which has nowhere to turn.
    pub fn with_one_always(source: Box<dyn MemorySource>) -> Arc<Self> {
        Self::open(source, 0, true)
    }

    fn open(source: Box<dyn MemorySource>, headroom: u64, one_always: bool) -> Arc<Self> {
        let (reserved, most_reserved) = (Mutex::new(0), AtomicU64::new(0));
        Arc::new(Self { source, headroom, one_always, reserved, most_reserved })
    }

    /// Reads the memory now.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn memory_state(&self) -> Result<MemoryState, String> {
        self.reckon(*self.reserved.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reckon(&self, reserved: u64) -> Result<MemoryState, String> {
        // Memory may be taken or given back between the two readings: the smaller one never makes others look small.
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

    /// The most that could ever be handed out beside `resident` bytes, if no other process used the device.
    ///
    /// # Errors
    /// Why the memory cannot be read.
    pub fn ceiling(&self, resident: u64) -> Result<u64, String> {
        if self.one_always {
            return Ok(u64::MAX);
        }
        let total = self.source.read()?.total;
        Ok(total.saturating_sub(self.headroom).saturating_sub(resident))
    }

    /// Whether `bytes` could be reserved where `state` was read.
    pub fn fits(&self, state: &MemoryState, bytes: u64) -> bool {
        bytes <= state.available || (self.one_always && state.reserved == 0)
    }

    /// Reserves bytes if they fit now; they are given back when the reservation is dropped.
    ///
    /// # Errors
    /// Wanted, reserved, free and headroom; or why the memory cannot be read.
    pub fn reserve(self: &Arc<Self>, wanted: u64) -> Result<Reservation, Refusal> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.reckon(*reserved).map_err(Refusal::Unreadable)?;
        if !self.fits(&state, wanted) {
            let MemoryState { reserved, free, headroom, .. } = state;
            return Err(Refusal::NotEnough(NotEnough { wanted, reserved, free, headroom }));
        }
        *reserved += wanted;
        self.most_reserved.fetch_max(*reserved, Ordering::Relaxed);
        Ok(Reservation { ledger: Arc::clone(self), bytes: wanted })
    }

    /// The most that was reserved at a time so far.
    pub fn most_reserved(&self) -> u64 {
        self.most_reserved.load(Ordering::Relaxed)
    }

    /// Share of the last moments in which the device was at work, in per cent, where that is known.
    pub fn utilisation(&self) -> Option<u32> {
        self.source.utilisation()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("state", &self.memory_state()).finish_non_exhaustive()
    }
}

/// Bytes of a device that are spoken for. Dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Reservation {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        *self.ledger.reserved.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
    }
}

/// Memory whose size was set and of which nobody else uses any: what `memory_limit_bytes` leaves to windows.
#[derive(Clone, Copy, Debug)]
pub struct Limit(pub u64);

impl MemorySource for Limit {
    fn read(&self) -> Result<Memory, String> {
        Ok(Memory { total: self.0, used: 0 })
    }

    fn held(&self) -> u64 {
        0
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
        (Ledger::new(Box::new(card), total / 10), others, held)
    }

    #[test]
    fn a_reservation_is_given_back_when_it_is_dropped() {
        let (ledger, _, _) = card(1000);
        let first = ledger.reserve(600).unwrap();
        let refused = ledger.reserve(301).unwrap_err();
        let numbers = NotEnough { wanted: 301, reserved: 600, free: 1000, headroom: 100 };
        assert_eq!(refused, Refusal::NotEnough(numbers));
        let second = ledger.reserve(300).unwrap();
        drop(first);
        assert_eq!(ledger.memory_state().unwrap().reserved, 300);
        drop(second);
        assert_eq!(ledger.memory_state().unwrap().available, 900);
        assert_eq!(ledger.most_reserved(), 900);
    }

    #[test]
    fn what_others_take_is_seen_and_what_we_hold_counts_once() {
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
    fn the_refusal_has_four_numbers() {
        let numbers =
            NotEnough { wanted: 2_100_000_000, reserved: 1, free: 5_000_000, headroom: 0 };
        assert_eq!(numbers.to_string(), "2.10 GB wanted; 1 B reserved, 5.00 MB free, 0 B headroom");
    }

    #[test]
    fn the_processor_always_gets_one_window() {
        let ledger = Ledger::with_one_always(Box::new(Limit(100)));
        let only = ledger.reserve(1000).unwrap();
        assert!(ledger.reserve(1).is_err());
        drop(only);
        assert!(ledger.reserve(60).is_ok_and(|_one| ledger.reserve(40).is_ok()));
    }
}
