//! Failures of commands and their exit codes.
//!
//! Schedulers decide whether to retry by the exit code: only that of `Blame::Machine` is worth a retry.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGABRT;

use super::diagnostic::{Blame, Diagnostic, DiagnosticLocation};

/// Done, or nothing to do.
pub const DONE: u8 = 0;
pub const BUG: u8 = 1;
/// `longsift diff`: the runs differ.
pub const DIFFERENT: u8 = 5;

/// All exit codes with their meaning, and whether a retry can help. `docs/troubleshooting.md` has the same table.
pub const EXIT_CODES: [(&str, &str, &str); 8] = [
    ("0", "done, or nothing to do", ""),
    ("1", "a bug of longsift", "no"),
    (
        "2",
        "the command line or the pipeline file; settings, model and columns that do not fit together; `--locked` differs",
        "no",
    ),
    ("3", "the data: an unreadable input or checkpoint, too many bad rows", "no"),
    ("4", "the machine: I/O, space, memory, device, or another run holds the lock", "yes"),
    ("5", "`longsift diff` only: the runs differ", "no"),
    (
        "6",
        "a check of the pipeline (`checks`, `on_drift: fail`) failed: nothing was written, scores are kept; or a test of `longsift test` failed",
        "no",
    ),
    ("129, 130, 143", "stopped by a signal (terminal closed, Ctrl-C, SIGTERM)", "yes: it resumes"),
];

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// All problems, in the order in which they were found.
    #[error("{}", .0.iter().map(|problem| &*problem.message).collect::<Vec<_>>().join("; "))]
    Problems(Vec<Diagnostic>),
    /// A signal stopped the run. Finished work is kept; the same command resumes.
    #[error("stopped by signal {signal}; run the same command to resume")]
    Stopped { signal: i32 },
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Returns the exit code of the command: the smallest of several, because a retry helps least with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Stopped { signal } => u8::try_from(128 + signal).unwrap_or(BUG),
            Self::Problems(problems) => {
                problems.iter().map(|problem| problem.blame.exit_code()).min().unwrap_or(BUG)
            }
        }
    }

    #[must_use]
    pub fn map(self, change: impl Fn(Diagnostic) -> Diagnostic) -> Self {
        match self {
            Self::Problems(problems) => Self::Problems(problems.into_iter().map(change).collect()),
            stopped @ Self::Stopped { .. } => stopped,
        }
    }

    /// Sets the location of problems without one.
    #[must_use]
    pub fn or_at(self, location: &DiagnosticLocation) -> Self {
        self.map(|problem| problem.or_at(location.clone()))
    }
}

impl<D: Into<Diagnostic>> From<D> for Failure {
    fn from(problem: D) -> Self {
        Self::Problems(vec![problem.into()])
    }
}

impl<D: Into<Diagnostic>> From<Vec<D>> for Failure {
    fn from(problems: Vec<D>) -> Self {
        Self::Problems(problems.into_iter().map(Into::into).collect())
    }
}

/// Ends the process with `Blame::Machine` if memory or threads run out.
///
/// If an allocation fails, the standard library reports its size and aborts. If a thread cannot be started, libraries and
/// thread scopes panic, and threads that wait for the missing one would wait forever. Files are left as if the process had been
/// killed. An abort after any other panic remains a bug.
pub fn exit_when_machine_runs_out() {
    let out_of_memory = Arc::new(AtomicBool::new(true));
    let code = i32::from(Blame::Machine.exit_code());
    // Without the handler, an abort ends the process as usual.
    let _ =
        signal_hook::flag::register_conditional_shutdown(SIGABRT, code, Arc::clone(&out_of_memory));
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        exit_if_out_of_resources(panic.payload_as_str().unwrap_or_default());
        out_of_memory.store(false, Ordering::Relaxed);
        report(panic);
    }));
}

pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// Ends the process if `why`, the message of a library's panic, means that threads or memory ran out. Such a panic is not an
/// error of the data, so no row should be quarantined.
#[expect(clippy::exit, clippy::print_stderr, reason = "no caller is left to return to")]
pub fn exit_if_out_of_resources(why: &str) {
    // Messages of the C library for EAGAIN, and of zstd for a context without memory.
    let (error, hint) = if why.contains("Resource temporarily unavailable") {
        (
            "no more threads can be started",
            "raise the limit of threads (`ulimit -u`, `pids.max` of the control group) or of memory (`ulimit -v`), or lower \
             `--threads`",
        )
    } else if why.contains("null pointer when creating") {
        (
            "no more memory can be allocated",
            "raise `ulimit -v`, or lower `memory_limit_bytes` and `--threads`",
        )
    } else {
        return;
    };
    eprintln!("error: {error}\n\nhint: {hint}");
    std::process::exit(Blame::Machine.exit_code().into());
}
