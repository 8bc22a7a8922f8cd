//! Device memory that is reused from window to window.
//!
//! Allocating and freeing device memory stops the whole device for a millisecond or more, as long as a short window takes to
//! measure. So a window's memory returns to a list instead of the device, and the next window of that size or smaller reuses it.
//! The list has as many arenas as windows were ever measured at the same time.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DeviceError, DeviceMemory, Driver};

/// Bytes of an arena's staging memory: the maximum of one piece of computed queries or keys.
const STAGED_BYTES: usize = 8 << 20;
/// Every staged piece begins at a multiple of this.
const STAGED_ALIGNMENT: usize = 64;

/// Device memory for one window at a time, and staging memory on the host for copies.
pub(crate) struct Arena<D: Driver> {
    /// Declared first so that it is dropped first, which waits for copies from the staging memory.
    memory: CountedMemory<D::Memory>,
    staged: RefCell<StagingState<D::Staging>>,
}

struct StagingState<S> {
    memory: S,
    /// Bytes from the start that copies may still read.
    used: usize,
}

impl<D: Driver> Arena<D> {
    /// Address of the first byte on the device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.device.address()
    }

    /// Copies to the device; the bytes may be changed as soon as this returns.
    pub(crate) fn write(&self, driver: &D, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let staged = &mut *self.staged.borrow_mut();
        let mut to = offset;
        for piece in bytes.chunks(STAGED_BYTES) {
            if staged.used + piece.len() > STAGED_BYTES {
                driver.wait()?;
                staged.used = 0;
            }
            let staged_bytes = &mut staged.memory.as_mut()[staged.used..][..piece.len()];
            staged_bytes.copy_from_slice(piece);
            // SAFETY: these bytes are written again only after the wait above, or after that of `read`; they live until
            // the arena is dropped, which waits first.
            unsafe { driver.send(&self.memory.device, to, staged_bytes)? };
            staged.used = (staged.used + piece.len()).next_multiple_of(STAGED_ALIGNMENT);
            to += piece.len() as u64;
        }
        Ok(())
    }

    /// Waits for everything that this thread has launched, then copies from the device.
    pub(crate) fn read(
        &self,
        driver: &D,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let staged = &mut *self.staged.borrow_mut();
        let mut from = offset;
        for piece in bytes.chunks_mut(STAGED_BYTES) {
            // Copies to and from this memory happen in the order of this thread's calls.
            let staged_bytes = &mut staged.memory.as_mut()[..piece.len()];
            // SAFETY: the staged bytes are not accessed until the wait below returns, or the arena is dropped, which
            // waits.
            unsafe { driver.receive(&self.memory.device, from, staged_bytes)? };
            driver.wait()?;
            staged.used = 0;
            piece.copy_from_slice(staged_bytes);
            from += piece.len() as u64;
        }
        Ok(())
    }
}

pub(crate) struct Arenas<D: Driver> {
    spare: Mutex<Vec<Arena<D>>>,
    /// Bytes of all arenas, including those in use.
    bytes: Arc<AtomicU64>,
}

impl<D: Driver> Arenas<D> {
    pub(crate) fn new() -> Self {
        Self { spare: Mutex::new(Vec::new()), bytes: Arc::default() }
    }

    /// Returns the bytes of device memory in all arenas, including those in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Frees the arenas that no window uses.
    pub(crate) fn release_spare_memory(&self) {
        let spare = std::mem::take(&mut *self.spare());
        drop(spare);
    }

    /// Calls `work` with an arena of at least `bytes` bytes. The arena is kept only after success: after a failure, work may still
    /// be running in it, and freeing it waits for that.
    pub(crate) fn with_arena<T>(
        &self,
        driver: &D,
        bytes: u64,
        work: impl FnOnce(&Arena<D>) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let arena = self.lease(driver, bytes)?;
        let result = work(&arena)?;
        self.spare().push(arena);
        Ok(result)
    }

    fn lease(&self, driver: &D, bytes: u64) -> Result<Arena<D>, DeviceError> {
        let largest = {
            let mut spare = self.spare();
            spare.sort_by_key(|arena| arena.memory.device.bytes());
            if let Some(fitting) =
                spare.iter().position(|arena| arena.memory.device.bytes() >= bytes)
            {
                return Ok(spare.remove(fitting));
            }
            spare.pop()
        };
        // All are too small: free the largest one to allocate a larger one.
        let staged = largest.map(|arena| arena.staged.into_inner().memory);
        let memory = match driver.allocate(bytes) {
            Err(DeviceError::OutOfMemory { .. }) if !self.spare().is_empty() => {
                self.release_spare_memory();
                driver.allocate(bytes)
            }
            other => other,
        }?;
        let staged = staged.map_or_else(|| driver.stage(STAGED_BYTES), Ok)?;
        self.bytes.fetch_add(memory.bytes(), Ordering::Relaxed);
        let memory = CountedMemory { device: memory, total: Arc::clone(&self.bytes) };
        Ok(Arena { memory, staged: RefCell::new(StagingState { memory: staged, used: 0 }) })
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Arena<D>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Device memory that counts as long as it is allocated.
struct CountedMemory<M: DeviceMemory> {
    device: M,
    total: Arc<AtomicU64>,
}

impl<M: DeviceMemory> Drop for CountedMemory<M> {
    fn drop(&mut self) {
        self.total.fetch_sub(self.device.bytes(), Ordering::Relaxed);
    }
}
