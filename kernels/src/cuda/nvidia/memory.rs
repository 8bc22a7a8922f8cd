//! Memory of a GPU, and pinned host memory, which a GPU accesses without the CPU's help.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::super::driver::DeviceMemory;
use super::context::{Context, stream};

pub struct NvidiaMemory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl DeviceMemory for NvidiaMemory {
    fn address(&self) -> u64 {
        self.address
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl NvidiaMemory {
    /// Wraps memory that was just allocated.
    pub(super) fn new(context: &Arc<Context>, address: sys::CUdeviceptr, bytes: u64) -> Self {
        context.held.fetch_add(bytes, Ordering::Relaxed);
        Self { context: Arc::clone(context), address, bytes }
    }

    pub(super) fn address_of(&self, offset: u64, length: usize) -> sys::CUdeviceptr {
        let end = offset.checked_add(length as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "bytes {offset}+{length} of {}",
            self.bytes
        );
        self.address + offset
    }
}

impl Drop for NvidiaMemory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: this thread's launches, the only ones that may use the memory, are waited for; it is freed once.
            // Errors on drop cannot be reported; the next call returns them again.
            unsafe {
                let _ = result::stream::synchronize(stream());
                let _ = result::free_sync(self.address);
            }
            self.context.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

pub struct PinnedMemory {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}
// SAFETY: it is plain memory with one owner.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// Allocates zeros. The context must be the current one.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        // SAFETY: flags 0 request plain pinned memory, freed on drop.
        let start: *mut c_void = unsafe { result::malloc_host(bytes, 0) }?;
        let start: *mut u8 = start.cast();
        // SAFETY: the call returned this many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), start, bytes })
    }
}

impl AsMut<[u8]> for PinnedMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: this many bytes were allocated and initialised, and live as long as this value, which is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was allocated once; copies that use it were waited for.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}
