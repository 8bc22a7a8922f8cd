//! CPU time of a thread, which other programs on the machine disturb less than wall-clock time.

use std::time::{Duration, Instant};

/// A stopwatch of this thread's CPU time, or of wall-clock time if the system does not report it.
#[derive(Clone, Copy)]
pub struct Clock {
    wall: Instant,
    processor: Option<Duration>,
}

impl Clock {
    pub fn start() -> Self {
        Self { wall: Instant::now(), processor: thread_time() }
    }

    /// Returns the seconds since the start. Call it on the thread that started the clock.
    pub fn seconds(&self) -> f64 {
        match (self.processor, thread_time()) {
            (Some(start), Some(now)) => now.saturating_sub(start).as_secs_f64(),
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn thread_time() -> Option<Duration> {
    /// `struct timespec` on systems whose `long` has 64 bits.
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library's function, which the standard library links, writes one `timespec`.
    let failed = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    let nanoseconds = u32::try_from(time.nanoseconds).ok()?;
    (!failed).then(|| Duration::new(time.seconds.cast_unsigned(), nanoseconds))
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn thread_time() -> Option<Duration> {
    None
}
