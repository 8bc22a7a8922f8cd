//! Stopping on a signal: the windows in flight are finished and kept, then the run ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{Failure, Result};

/// What tells of signals in this process, once it listens to them.
static OF_PROCESS: OnceLock<Stop> = OnceLock::new();

/// Whether a signal asked the run to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Listens for SIGINT and SIGTERM. The first asks the run to stop; a second one ends the process at once.
    pub fn on_signals() -> std::io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM] {
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

    /// Whether a signal has come to this process: for what waits far from the run that it belongs to.
    pub fn has_come() -> bool {
        OF_PROCESS.get().is_some_and(|stop| stop.check().is_err())
    }

    /// Lets the system send SIGTERM to this process when the one that started it ends, however it ends.
    pub fn with_parent() -> std::io::Result<()> {
        Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?)
    }

    /// Fails once a signal has come.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::Stopped { signal: signal as i32 }),
        }
    }
}
