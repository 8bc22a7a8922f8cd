//! Times of launches on the device's own clock, and the least free memory meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys;

use super::super::driver::Failure;
use super::context::{failure, stream};

/// What was launched while a GPU was timed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timed {
    /// Each launch: the kernel's name and what it took on the device's own clock.
    pub milliseconds: Vec<(String, f32)>,
    /// The fewest bytes that were free after an allocation.
    pub lowest_free: Option<u64>,
}

/// What is being timed, if anything is.
#[derive(Default)]
pub(super) struct Timing(Mutex<Option<Running>>);

#[derive(Default)]
struct Running {
    launches: Vec<(String, sys::CUevent, sys::CUevent)>,
    lowest_free: Option<u64>,
}
// SAFETY: events are handles that any thread may use while their context lives.
unsafe impl Send for Running {}

impl Timing {
    pub(super) fn start(&self) {
        *self.running() = Some(Running::default());
    }

    /// What was launched since the start; the device's context must be the current one.
    pub(super) fn finish(&self) -> Result<Timed, Failure> {
        let Running { launches, lowest_free } = self.running().take().unwrap_or_default();
        let mut milliseconds = Vec::new();
        for (kernel, start, end) in launches {
            let failed = |error| failure("time a launch", error);
            // SAFETY: both events were recorded in this context; each is destroyed once, after its last use.
            unsafe {
                result::event::synchronize(end).map_err(failed)?;
                milliseconds.push((kernel, result::event::elapsed(start, end).map_err(failed)?));
                result::event::destroy(start).map_err(failed)?;
                result::event::destroy(end).map_err(failed)?;
            }
        }
        Ok(Timed { milliseconds, lowest_free })
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how much memory is free now.
    pub(super) fn note_free(&self) {
        if let Some(running) = &mut *self.running() {
            let free = result::mem_get_info().map_or(u64::MAX, |(free, _)| free as u64);
            running.lowest_free = Some(running.lowest_free.unwrap_or(u64::MAX).min(free));
        }
    }

    /// Notes that a launch began at `start` and has just been asked for.
    pub(super) fn note_launch(
        &self,
        kernel: &str,
        start: Option<sys::CUevent>,
    ) -> Result<(), Failure> {
        let (Some(start), Some(end)) = (start, self.event()?) else { return Ok(()) };
        if let Some(running) = &mut *self.running() {
            running.launches.push((kernel.to_owned(), start, end));
        }
        Ok(())
    }

    /// Records an event where launches are timed.
    pub(super) fn event(&self) -> Result<Option<sys::CUevent>, Failure> {
        if self.running().is_none() {
            return Ok(None);
        }
        let failed = |error| failure("time a launch", error);
        let event =
            result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC).map_err(failed)?;
        // SAFETY: the event was created in the current context.
        unsafe { result::event::record(event, stream()) }.map_err(failed)?;
        Ok(Some(event))
    }
}
