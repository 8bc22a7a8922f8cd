//! Work that may end its process, run in a child process.

use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, setrlimit, waitpid};

/// Limit of a child's processor time, whose work takes microseconds.
const MAX_SECONDS: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildOutcome {
    /// Result of the work.
    Answered(bool),
    /// The child ended before it could answer.
    Killed,
    NotStarted,
}

unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn _exit(status: i32) -> !;
}

/// Ends the child if its work panics: unwinding would continue through the caller's code, in the child.
struct ExitGuard;

impl Drop for ExitGuard {
    fn drop(&mut self) {
        _exit(0);
    }
}

/// Runs `work` in a copy of this process and waits for its result; it has no other effect on this process.
///
/// # Safety
/// `work` allocates nothing, acquires no lock and calls nothing that does: another thread may have held any lock when the
/// process was copied, and does not exist in the copy to release it.
pub(crate) unsafe fn in_child(work: impl FnOnce() -> bool) -> ChildOutcome {
    let Ok((answers, pipe)) = pipe_with(PipeFlags::CLOEXEC) else {
        return ChildOutcome::NotStarted;
    };
    let child = fork();
    if child == 0 {
        let _guard = ExitGuard;
        // A child that is ended by a signal must not leave a core file, and one that hangs must end.
        for (resource, limit) in [(Resource::Core, 0), (Resource::Cpu, MAX_SECONDS)] {
            let _ = setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) });
        }
        let answer = [u8::from(work())];
        let _ = retry_on_intr(|| write(&pipe, &answer));
        _exit(0);
    }
    drop(pipe);
    let Some(child) = Pid::from_raw(child).filter(|_| child > 0) else {
        return ChildOutcome::NotStarted;
    };
    // The answer, not the child's status: the system reaps children itself if SIGCHLD is ignored.
    let mut answer = [0];
    let outcome = match retry_on_intr(|| read(&answers, &mut answer)) {
        Ok(1) => ChildOutcome::Answered(answer == [1]),
        _ => ChildOutcome::Killed,
    };
    // Fails if the system has already reaped the child.
    while waitpid(Some(child), WaitOptions::empty()).err() == Some(Errno::INTR) {}
    outcome
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

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
        assert_eq!(outcome, ChildOutcome::Killed);
    }
}
