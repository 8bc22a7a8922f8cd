//! Work that may end the process that does it, in a child of this one.

use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, waitpid,
};

/// How long a child may take: what it does takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did its work, which gave this.
    Answered(bool),
    /// A signal ended it.
    Killed,
    /// It did not end in time, left in another way, or could not be started.
    Unknown,
}

/// Statuses with which a child leaves.
const TRUE: i32 = 10;
const FALSE: i32 = 11;
const PANICKED: i32 = 12;

unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(status: i32) -> !;
}

/// Ends the child whatever its work does: a panic must not carry on in code of the parent.
struct Leaves;

impl Drop for Leaves {
    fn drop(&mut self) {
        _exit(PANICKED);
    }
}

/// Does `work` in a copy of this process and waits for what it gives; nothing else that it does is seen here.
///
/// # Safety
/// `work` allocates nothing, takes no lock and calls nothing that does: another thread may have held any lock when the
/// process was copied, and is not there to give it back.
pub(crate) unsafe fn in_child(work: impl FnOnce() -> bool) -> Outcome {
    let child = fork();
    if child == 0 {
        let leaves = Leaves;
        // A child that is ended by a signal leaves no core file behind.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        let status = if work() { TRUE } else { FALSE };
        std::mem::forget(leaves);
        _exit(status);
    }
    Pid::from_raw(child).filter(|_| child > 0).map_or(Outcome::Unknown, outcome)
}

fn outcome(child: Pid) -> Outcome {
    let start = Instant::now();
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                return match status.exit_status() {
                    Some(TRUE) => Outcome::Answered(true),
                    Some(FALSE) => Outcome::Answered(false),
                    Some(_) => Outcome::Unknown,
                    None => Outcome::Killed,
                };
            }
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => {
                let _ = kill_process(child, Signal::KILL);
                let _ = waitpid(Some(child), WaitOptions::empty());
                return Outcome::Unknown;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Outcome::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_or_is_ended_and_this_process_goes_on() {
        for answer in [true, false] {
            // SAFETY: the work does nothing.
            assert_eq!(unsafe { in_child(|| answer) }, Outcome::Answered(answer));
        }
        // SAFETY: an instruction that no processor has touches nothing.
        let killed = unsafe { in_child(|| std::arch::asm!("ud2", options(noreturn))) };
        assert_eq!(killed, Outcome::Killed);
    }

    #[test]
    fn a_child_that_does_not_end_is_ended() {
        // SAFETY: the work does nothing.
        let outcome = unsafe {
            in_child(|| {
                loop {
                    std::hint::spin_loop();
                }
            })
        };
        assert_eq!(outcome, Outcome::Unknown);
    }
}
