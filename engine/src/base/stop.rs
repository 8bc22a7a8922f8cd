//! Stopping on a signal: the windows in flight are finished and kept, then the run ends.
//!
//! Signals, as `/proc`, are those of Linux, the only system that longsift runs on.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use super::diagnostic::{Blame, Diagnostic};
use super::error::{Failure, Result};
use super::machine;

/// What tells of signals in this process, once it listens to them.
static OF_PROCESS: OnceLock<Stop> = OnceLock::new();

fn no_handlers(error: &io::Error) -> Failure {
    Diagnostic::error(Blame::Machine, format!("cannot install signal handlers: {error}")).into()
}

/// Whether a signal asked the run to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Listens for SIGINT, SIGTERM and SIGHUP (the terminal was closed). The first asks the run to stop; a second one
    /// ends the process at once. SIGHUP stays ignored under `nohup`.
    pub fn on_signals() -> Result<Self> {
        Self::listening().map_err(|error| no_handlers(&error))
    }

    fn listening() -> io::Result<Self> {
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
        Ok(OF_PROCESS.get_or_init(|| stop).clone())
    }

    /// What tells of signals in this process; where it does not listen to them, there are none. For what waits far from
    /// the run that it belongs to.
    pub(crate) fn of_process() -> Self {
        OF_PROCESS.get().cloned().unwrap_or_default()
    }

    /// Lets a write beyond the limit of file sizes (`ulimit -f`) fail with a message, as on a full disk, instead of
    /// ending the process.
    pub fn not_on_file_size() -> Result<()> {
        signal_hook::flag::register(SIGXFSZ, Arc::default())
            .map(drop)
            .map_err(|error| no_handlers(&error))
    }

    /// Lets the system send SIGTERM to this process when the one that started it ends, however it ends.
    pub fn with_parent() -> io::Result<()> {
        Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?)
    }

    /// As if this signal had come.
    #[cfg(test)]
    pub fn after(signal: i32) -> Self {
        Self { signal: Arc::new(AtomicUsize::new(signal as usize)) }
    }

    /// Waits so long, looking ten times whether a signal has come. Whether none has.
    pub fn lets_pass(&self, time: Duration) -> bool {
        (0..10).all(|_| {
            let goes_on = self.check().is_ok();
            if goes_on {
                thread::sleep(time / 10);
            }
            goes_on
        })
    }

    /// Fails once a signal has come.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::Stopped { signal: signal as i32 }),
        }
    }
}

/// Whether this process was started with a signal ignored. No library says so without `unsafe`; the system's own page of
/// the process does.
fn is_ignored(signal: i32) -> bool {
    let mask = machine::read_system("/proc/self/status").and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
