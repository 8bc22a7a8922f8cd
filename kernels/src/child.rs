//! Work that may end its process, run in a child process.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, waitpid,
};

/// Time limit of a child, whose work takes microseconds.
const CHILD_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildOutcome {
    /// Result of the work.
    Answered(bool),
    /// A signal ended the child before it could answer.
    Killed,
    /// The child did not end in time, panicked, or could not be started.
    Unknown,
}

/// Bytes that a child writes into its pipe. If the system reaps children itself (SIGCHLD ignored), their status is lost.
const TRUE: u8 = 10;
const FALSE: u8 = 11;
const PANICKED: u8 = 12;

unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(status: i32) -> !;
}

/// Answers and ends the child, even if its work panics: unwinding would continue through the caller's code, in the child.
struct ExitGuard {
    pipe: OwnedFd,
    answer: u8,
}

impl ExitGuard {
    fn leave(&self) -> ! {
        let _ = retry_on_intr(|| write(&self.pipe, &[self.answer]));
        _exit(0);
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Runs `work` in a copy of this process and waits for its result; it has no other effect on this process.
///
/// # Safety
/// `work` allocates nothing, acquires no lock and calls nothing that does: another thread may have held any lock when the
/// process was copied, and does not exist in the copy to release it.
pub(crate) unsafe fn in_child(work: impl FnOnce() -> bool) -> ChildOutcome {
    let Ok((answers, pipe)) = pipe_with(PipeFlags::CLOEXEC) else { return ChildOutcome::Unknown };
    let child = fork();
    if child == 0 {
        let mut guard = ExitGuard { pipe, answer: PANICKED };
        // A child that is ended by a signal must not leave a core file.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        guard.answer = if work() { TRUE } else { FALSE };
        guard.leave();
    }
    drop(pipe);
    let Some(child) = Pid::from_raw(child).filter(|_| child > 0) else {
        return ChildOutcome::Unknown;
    };
    let mut waiting = [PollFd::new(&answers, PollFlags::IN)];
    let ready = retry_on_intr(|| poll(&mut waiting, Some(&CHILD_TIMEOUT)));
    let outcome = if ready == Ok(1) { outcome(&answers) } else { ChildOutcome::Unknown };
    if ready != Ok(1) {
        // The child's end of the pipe is open, so it still runs and its PID has not been reused.
        let _ = kill_process(child, Signal::KILL);
    }
    // Fails if the system has already reaped the child.
    while waitpid(Some(child), WaitOptions::empty()).err() == Some(Errno::INTR) {}
    outcome
}

/// Reads the answer of a child; a closed pipe without an answer means that the child ended.
fn outcome(answers: &OwnedFd) -> ChildOutcome {
    let mut answer = [0];
    match retry_on_intr(|| read(answers, &mut answer)) {
        Ok(0) => ChildOutcome::Killed,
        Ok(_) if answer[0] == PANICKED => ChildOutcome::Unknown,
        Ok(_) => ChildOutcome::Answered(answer[0] == TRUE),
        Err(_) => ChildOutcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_or_dies_without_effect_on_this_process() {
        for answer in [true, false] {
            // SAFETY: the work does nothing.
            assert_eq!(unsafe { in_child(|| answer) }, ChildOutcome::Answered(answer));
        }
        // SAFETY: an instruction that no processor has touches nothing.
        let killed = unsafe { in_child(|| std::arch::asm!("ud2", options(noreturn))) };
        assert_eq!(killed, ChildOutcome::Killed);
    }

    /// A parent may have ignored SIGCHLD; the child's status is then lost.
    #[test]
    fn a_child_answers_if_sigchld_is_ignored() {
        unsafe extern "C" {
            safe fn signal(number: i32, action: usize) -> usize;
        }
        const CHILD: i32 = Signal::CHILD.as_raw();
        const IGNORE: usize = 1;
        // SAFETY: the copy and its copy only make system calls.
        let outcome = unsafe {
            in_child(|| {
                signal(CHILD, IGNORE);
                [true, false]
                    .iter()
                    .all(|&answer| in_child(|| answer) == ChildOutcome::Answered(answer))
                    && in_child(|| std::arch::asm!("ud2", options(noreturn)))
                        == ChildOutcome::Killed
            })
        };
        assert_eq!(outcome, ChildOutcome::Answered(true));
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        // SAFETY: the work does nothing.
        let outcome = unsafe {
            in_child(|| {
                loop {
                    std::hint::spin_loop();
                }
            })
        };
        assert_eq!(outcome, ChildOutcome::Unknown);
    }
}
