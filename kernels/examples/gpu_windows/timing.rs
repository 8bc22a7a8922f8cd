//! A driver that times launches on the device's clock and records the lowest free memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use longsift_kernels::cuda::nvidia::{Nvidia, NvidiaMemory, PinnedMemory};
use longsift_kernels::cuda::{DeviceError, Driver, Launch, TensorMap, TensorMapRequest};

/// Launches and allocations since [`TimedDriver::start`].
pub(super) struct Timings {
    /// Name of each launched kernel and its time on the device's clock.
    pub(super) milliseconds: Vec<(String, f32)>,
    /// Fewest free bytes after an allocation.
    pub(super) lowest_free: Option<u64>,
}

pub(super) struct TimedDriver {
    driver: Nvidia,
    running: Mutex<Option<Running>>,
}

#[derive(Default)]
struct Running {
    launches: Vec<(String, sys::CUevent, sys::CUevent)>,
    lowest_free: Option<u64>,
}
// SAFETY: events are handles that any thread may use while their context lives.
unsafe impl Send for Running {}

pub(super) fn failed(error: DriverError) -> DeviceError {
    DeviceError::Other(format!("could not time a launch: {error:?}"))
}

/// Returns the calling thread's stream, `CU_STREAM_PER_THREAD`, on which the driver launches.
pub(super) fn stream() -> sys::CUstream {
    std::ptr::without_provenance_mut(2)
}

pub(super) fn record_event() -> Result<sys::CUevent, DeviceError> {
    let event =
        result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC).map_err(failed)?;
    // SAFETY: the event was created in the current context.
    unsafe { result::event::record(event, stream()) }.map_err(failed)?;
    Ok(event)
}

/// Returns the milliseconds between two events, which are destroyed.
pub(super) fn elapsed(start: sys::CUevent, end: sys::CUevent) -> Result<f32, DeviceError> {
    // SAFETY: both events were recorded in the current context; each is destroyed once, after its last use.
    unsafe {
        result::event::synchronize(end).map_err(failed)?;
        let milliseconds = result::event::elapsed(start, end).map_err(failed)?;
        result::event::destroy(start).map_err(failed)?;
        result::event::destroy(end).map_err(failed)?;
        Ok(milliseconds)
    }
}

impl TimedDriver {
    pub(super) fn new(driver: Nvidia) -> Self {
        Self { driver, running: Mutex::new(None) }
    }

    pub(super) fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.driver.memory()
    }

    /// Starts timing every launch and recording free memory after every allocation.
    pub(super) fn start(&self) -> Result<(), DeviceError> {
        self.driver.memory()?; // makes the context the current one of this thread
        *self.running() = Some(Running::default());
        Ok(())
    }

    /// Ends the timing that [`Self::start`] started.
    pub(super) fn finish(&self) -> Result<Timings, DeviceError> {
        let Running { launches, lowest_free } = self.running().take().unwrap_or_default();
        let mut milliseconds = Vec::new();
        for (kernel, start, end) in launches {
            milliseconds.push((kernel, elapsed(start, end)?));
        }
        Ok(Timings { milliseconds, lowest_free })
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for TimedDriver {
    type Memory = NvidiaMemory;
    type Staging = PinnedMemory;

    fn allocate(&self, bytes: u64) -> Result<NvidiaMemory, DeviceError> {
        let memory = self.driver.allocate(bytes)?;
        if let Some(running) = &mut *self.running() {
            let (free, _) = self.driver.memory()?;
            running.lowest_free = Some(running.lowest_free.unwrap_or(u64::MAX).min(free));
        }
        Ok(memory)
    }

    fn write(&self, memory: &NvidiaMemory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.driver.write(memory, offset, bytes)
    }

    fn stage(&self, bytes: usize) -> Result<PinnedMemory, DeviceError> {
        self.driver.stage(bytes)
    }

    unsafe fn send(
        &self,
        memory: &NvidiaMemory,
        offset: u64,
        staged: &[u8],
    ) -> Result<(), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.driver.send(memory, offset, staged) }
    }

    unsafe fn receive(
        &self,
        memory: &NvidiaMemory,
        offset: u64,
        staged: &mut [u8],
    ) -> Result<(), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.driver.receive(memory, offset, staged) }
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let timed = self.running().is_some();
        let start = timed.then(record_event).transpose()?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.driver.launch(launch)? };
        if let (Some(start), Some(running)) = (start, &mut *self.running()) {
            running.launches.push((launch.kernel.to_owned(), start, record_event()?));
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.driver.wait()
    }

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap, DeviceError> {
        self.driver.tensor_map(request)
    }
}
