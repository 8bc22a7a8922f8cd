//! Stops a run on a signal: the run finishes windows that are being measured, keeps them, and ends.
//!
//! Signals and `/proc` are those of Linux, the only supported system.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use super::diagnostic::{Blame, Diagnostic};
use super::error::{Failure, Result};
use super::machine;

/// Process-wide stop flag, once handlers are installed.
static GLOBAL: OnceLock<Stop> = OnceLock::new();

fn no_handlers(error: &io::Error) -> Failure {
    Diagnostic::error(Blame::Machine, format!("cannot install signal handlers: {error}")).into()
}

/// Flag that a signal sets to stop the run.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Installs handlers for SIGINT, SIGTERM and SIGHUP (terminal closed). The first signal requests a stop, a second one ends
    /// the process at once. SIGHUP stays ignored under `nohup`.
    pub fn on_signals() -> Result<Self> {
        Self::install_handlers().map_err(|error| no_handlers(&error))
    }

    fn install_handlers() -> io::Result<Self> {
        let stop = Self::default();
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            let second = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&second),
            )?;
            signal_hook::flag::register(signal, second)?;
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.signal), signal as usize)?;
        }
        Ok(GLOBAL.get_or_init(|| stop).clone())
    }

    /// Returns the process-wide flag, or one that is never set if no handlers are installed. For waiting code that has no
    /// access to the run.
    pub(crate) fn global() -> Self {
        GLOBAL.get().cloned().unwrap_or_default()
    }

    /// Makes a write beyond the file size limit (`ulimit -f`) fail with a message, like a full disk, instead of ending the
    /// process.
    pub fn ignore_file_size_signal() -> Result<()> {
        signal_hook::flag::register(SIGXFSZ, Arc::default())
            .map(drop)
            .map_err(|error| no_handlers(&error))
    }

    /// Makes the system send SIGTERM to this process when its parent ends.
    pub fn terminate_with_parent() -> io::Result<()> {
        Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?)
    }

    /// Returns a flag that `signal` has set.
    #[cfg(test)]
    pub fn after(signal: i32) -> Self {
        Self { signal: Arc::new(AtomicUsize::new(signal as usize)) }
    }

    /// Sleeps for `time`, checking for a signal ten times. Returns whether none arrived.
    pub fn sleep_unless_stopped(&self, time: Duration) -> bool {
        (0..10).all(|_| {
            let is_running = self.check().is_ok();
            if is_running {
                thread::sleep(time / 10);
            }
            is_running
        })
    }

    pub fn check(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::Stopped { signal: signal as i32 }),
        }
    }
}

/// Whether this process was started with a signal ignored. Reads `/proc`, because the system call requires `unsafe`.
fn is_ignored(signal: i32) -> bool {
    let mask = machine::system_line("/proc/self/status", "SigIgn:");
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
