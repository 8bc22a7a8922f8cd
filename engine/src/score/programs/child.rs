//! A child process with limits on time and memory. Never blocks this process: pipes are non-blocking, and the child is killed
//! together with its process group.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::stream::{Answers, Question, Questions};
use crate::base::error::{Failure, Result};
use crate::base::{machine, secrets, text};
use crate::plan::programs::Program;

/// Interval of checks of time, memory and the stop signal while a program runs.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time for a program to exit after its last answer.
const END_SECONDS: u64 = 10;
/// Maximum wait for output that an ended program left in the pipe.
const PIPE_DRAIN_TIME: Duration = Duration::from_millis(200);
/// Maximum bytes quoted of the end of its standard error.
const STDERR_BYTES: usize = 2048;
/// Maximum bytes kept of its standard error: more than are quoted, to find a secret that begins before the quoted bytes.
const KEPT_STDERR_BYTES: usize = 1 << 16;

pub(super) struct Child {
    process: std::process::Child,
    /// Whether the process was waited for: its PID may have been reused.
    is_reaped: bool,
    /// `None` after the last question, or if the program closed it.
    stdin: Option<ChildStdin>,
    /// `None` once it is closed.
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    questions: Questions,
    answers: Answers,
    is_done: bool,
    stderr_end: Vec<u8>,
    time: Duration,
    memory_limit_bytes: Option<u64>,
}

pub(super) enum Failed {
    /// The program exited, or was killed because of its time or memory: another process may succeed. Quotes its stderr.
    Ended(String),
    /// The program wrote something other than an answer; holds a description.
    Wrong(String),
    Interrupted(Failure),
}

impl Child {
    pub(super) fn start(program: &Program) -> io::Result<Self> {
        let settings = &program.settings;
        // The full path is needed: Python detects its virtual environment by it.
        let mut process = Command::new(&program.executable)
            .args(&settings.command[1..])
            .current_dir(&program.folder)
            .env_clear()
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal signal stops only the run, which then kills each program with all of its children.
            .process_group(0)
            .spawn()?;
        let (stdin, stdout, stderr) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let child = Self {
            process,
            is_reaped: false,
            stdin,
            stdout,
            stderr,
            questions: Questions::new(program),
            answers: Answers::new(program),
            is_done: false,
            stderr_end: Vec::new(),
            time: Duration::from_secs(u64::from(settings.timeout_seconds)),
            memory_limit_bytes: settings.memory_limit_bytes,
        };
        for fd in child.pipes().into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(child)
    }

    /// Sends a batch and waits for its answer. Polls `interrupted`, and stops if it returns an error.
    pub(super) fn query(
        &mut self,
        questions: &[Question<'_>],
        interrupted: &dyn Fn() -> Result<()>,
    ) -> std::result::Result<RecordBatch, Failed> {
        let question = self.questions.batch(questions);
        self.exchange_until(&question, self.time, interrupted, |child| {
            child.answers.next().map_err(Failed::Wrong)
        })
    }

    /// Closes standard input and waits for the exit. Fails if output follows the last answer; a bad exit status is only logged.
    pub(super) fn end(
        mut self,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> std::result::Result<(), Failed> {
        self.is_done = true;
        let end = self.questions.end();
        let time = Duration::from_secs(END_SECONDS);
        let closes = |child: &mut Self| {
            child.stdin = None;
            Ok(None::<()>)
        };
        let how = match self.exchange_until(&end, time, interrupted, closes) {
            Ok(()) => return Ok(()),
            Err(Failed::Ended(how)) => how,
            Err(other) => return Err(other),
        };
        if self.answers.has_more() {
            let message = "it wrote output after its last answer";
            return Err(Failed::Wrong(message.to_owned()));
        }
        if !self.process.try_wait().ok().flatten().is_some_and(|status| status.success()) {
            tracing::warn!("a program failed after its last answer: it {how}");
        }
        Ok(())
    }

    /// Writes `bytes` and reads output until everything is written and `done` returns a value.
    fn exchange_until<T>(
        &mut self,
        mut bytes: &[u8],
        time: Duration,
        interrupted: &dyn Fn() -> Result<()>,
        mut done: impl FnMut(&mut Self) -> std::result::Result<Option<T>, Failed>,
    ) -> std::result::Result<T, Failed> {
        let deadline = Instant::now() + time;
        let mut ended = None;
        loop {
            if (bytes.is_empty() || self.stdin.is_none())
                && let Some(done) = done(self)?
            {
                return Ok(done);
            }
            interrupted().map_err(Failed::Interrupted)?;
            let (now, over, closed) = (Instant::now(), self.has_ended(), self.stdout.is_none());
            if over && closed {
                return Err(self.ended(None));
            }
            let (closes, does) = if self.is_done {
                ("but did not exit", "exit")
            } else {
                ("before it answered", "answer")
            };
            // Children of the program may hold its pipes open indefinitely.
            if (over || closed) && now >= *ended.get_or_insert(now + PIPE_DRAIN_TIME) {
                return Err(self.ended((!over).then(|| format!("closed stdout {closes}"))));
            }
            if now >= deadline {
                return Err(self.ended(Some(format!("did not {does} within {} s", time.as_secs()))));
            }
            if let Some(limit) = self.memory_limit_bytes {
                let used = machine::group_memory_bytes(self.process.id());
                if used > limit {
                    let (used, limit) = (text::bytes(used), text::bytes(limit));
                    let how = format!(
                        "used {used} of memory, more than the {limit} of `memory_limit_bytes`"
                    );
                    return Err(self.ended(Some(how)));
                }
            }
            self.exchange(&mut bytes, POLL_INTERVAL.min(deadline - now));
        }
    }

    /// Waits until a pipe is ready, at most `time`, then writes and reads without blocking.
    fn exchange(&mut self, bytes: &mut &[u8], time: Duration) {
        let [may_write, has_output, has_errors] = self.ready(!bytes.is_empty(), time);
        if may_write && let Some(stdin) = &mut self.stdin {
            match stdin.write(bytes) {
                Ok(written) => *bytes = &bytes[written..],
                Err(error) if is_transient(&error) => {}
                // The program closed its standard input; the caller checks whether it has exited.
                Err(_) => self.stdin = None,
            }
        }
        if has_output {
            self.answers.push(read_some(&mut self.stdout, &mut [0; 1 << 14]));
        }
        if has_errors {
            self.read_stderr();
        }
    }

    fn pipes(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let stdout = self.stdout.as_ref().map(AsFd::as_fd);
        [self.stdin.as_ref().map(AsFd::as_fd), stdout, self.stderr.as_ref().map(AsFd::as_fd)]
    }

    /// Waits at most `time`; returns whether stdin (only with `has_bytes`), stdout and stderr are ready.
    fn ready(&self, has_bytes: bool, time: Duration) -> [bool; 3] {
        let [stdin, stdout, stderr] = self.pipes();
        let pipes = [
            (stdin.filter(|_| has_bytes), PollFlags::OUT),
            (stdout, PollFlags::IN),
            (stderr, PollFlags::IN),
        ];
        let mut fds: Vec<PollFd<'_>> = pipes
            .iter()
            .filter_map(|(fd, flags)| Some(PollFd::from_borrowed_fd((*fd)?, *flags)))
            .collect();
        let time = Timespec::try_from(time).expect("a tenth of a second");
        let polled = poll(&mut fds, Some(&time));
        let mut ready = fds.iter().map(|fd| polled.is_ok() && !fd.revents().is_empty());
        pipes.map(|(fd, _)| fd.is_some() && ready.next().unwrap_or(false))
    }

    fn read_stderr(&mut self) {
        self.stderr_end.extend_from_slice(read_some(&mut self.stderr, &mut [0; 1 << 14]));
        let over = self.stderr_end.len().saturating_sub(KEPT_STDERR_BYTES);
        self.stderr_end.drain(..over);
    }

    /// Whether the process has exited. It stays a zombie, so that its process group id is not reused.
    fn has_ended(&self) -> bool {
        let Some(pid) = pid(&self.process) else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)) | Err(_))
    }

    /// Kills the process and its group; returns how it exited by itself, or `why` it was killed.
    fn ended(&mut self, why: Option<String>) -> Failed {
        let status = self.kill();
        // Earlier output may still be in the pipe.
        for _ in 0..STDERR_BYTES {
            let [.., has_errors] = self.ready(false, Duration::ZERO);
            if !has_errors {
                break;
            }
            self.read_stderr();
        }
        let before = if self.is_done { "" } else { " before it answered" };
        let by_itself = || status.map_or("ended".to_owned(), in_words) + before;
        let how = why.unwrap_or_else(by_itself);
        Failed::Ended(match stderr_in_words(&self.stderr_end) {
            Some(text_end) => format!("{how}; the end of its stderr: {text_end}"),
            None => format!("{how}; its stderr is empty"),
        })
    }

    fn kill(&mut self) -> Option<ExitStatus> {
        if let Some(pid) = pid(&self.process).filter(|_| !self.is_reaped) {
            // The group may be empty.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.is_reaped = true;
        self.process.wait().ok()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads what a pipe holds without blocking; drops the pipe at its end.
fn read_some<'b>(pipe: &mut Option<impl Read>, buffer: &'b mut [u8]) -> &'b [u8] {
    match pipe.as_mut().map(|pipe| pipe.read(buffer)) {
        Some(Ok(length @ 1..)) => &buffer[..length],
        Some(Err(error)) if is_transient(&error) => &[],
        _ => {
            *pipe = None;
            &[]
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn pid(process: &std::process::Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process.id()).ok()?)
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Formats the last lines of standard error on one line; `None` if it is empty.
fn stderr_in_words(bytes: &[u8]) -> Option<String> {
    let text_end = secrets::without_credentials(&String::from_utf8_lossy(bytes));
    let start = text_end.ceil_char_boundary(text_end.len().saturating_sub(STDERR_BYTES));
    let lines: Vec<&str> =
        text_end[start..].lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(STDERR_LINES)..].join(" / ");
    (!last.is_empty()).then(|| text::line_safe(&last))
}

const STDERR_LINES: usize = 6;
