//! File system faults, injected between the released binary and libc: see `preloaded/interposer.c`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Answer, Workspace};

#[derive(Clone, Debug, Default)]
pub struct Fault {
    /// `kill`, `torn`, `short`, or the name of an error: `EIO`; empty to observe only.
    pub action: &'static str,
    /// Number of the operation, from 1.
    pub at: usize,
    /// Whether every later matching operation fails as well.
    pub permanent: bool,
    /// Text that the line `kind path` of a counted operation contains.
    pub matching: String,
}

/// Result of a command under the interposer.
#[derive(Debug)]
pub struct Traced {
    pub answer: Answer,
    /// Operations, a line `kind path` each; names of temporary files without their numbers.
    pub operations: Vec<String>,
}

/// Returns the path of the interposer. Tests that need it are ignored unless the cfg `longsift_preload` is set.
pub fn interposer() -> &'static Path {
    Path::new(concat!(env!("OUT_DIR"), "/interposer.so"))
}

/// Removes the numbers that differ between processes from an operation.
fn without_numbers(operation: &str) -> String {
    let Some(start) = operation.find(".tmp-") else { return operation.to_owned() };
    let (before, name) = operation.split_at(start + ".tmp-".len());
    let name = name.splitn(3, '-').last().unwrap_or_default();
    format!("{before}{name}")
}

/// Pause of a command before the `at`-th operation whose line `kind path` contains a text.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub matching: &'static str,
    /// Number of the operation, from 1.
    pub at: usize,
}

/// Command that is paused, or will be.
#[derive(Debug)]
pub struct Paused {
    pub child: Child,
    /// File that exists while the command is paused.
    waiting: TempDir,
}

impl Paused {
    /// Starts a command under the interposer that pauses at an operation.
    pub fn start(mut command: Command, pause: &Pause) -> Self {
        let waiting = TempDir::new().unwrap();
        command
            .env("LONGSIFT_FAULT_ACTION", "pause")
            .env("LONGSIFT_FAULT_AT", pause.at.to_string())
            .env("LONGSIFT_FAULT_MATCH", pause.matching)
            .env("LONGSIFT_FAULT_PAUSED", waiting.path().join("waiting"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), waiting }
    }

    /// Waits until the command is paused.
    pub fn wait_for_pause(&mut self) {
        let waits = self.waiting.path().join("waiting");
        assert!(
            wait_until(&mut self.child, || waits.exists()),
            "the command ended before the operation"
        );
    }

    /// Sends the command a signal and waits for its delivery.
    pub fn signal(&mut self, signal: Signal) {
        let process = self.child.id();
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        wait_until(&mut self.child, || pending_signals(process) == 0);
    }

    /// Resumes the command and waits for its end.
    pub fn resume(self) -> Answer {
        fs::remove_file(self.waiting.path().join("waiting")).unwrap();
        Answer::from_output(self.child.wait_with_output().unwrap())
    }
}

/// Polls a condition while a process runs; returns whether it held before the process ended.
pub fn wait_until(child: &mut Child, moment: impl Fn() -> bool) -> bool {
    while !moment() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Returns the pending signals of a process, a bit each.
fn pending_signals(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| line.strip_prefix("ShdPnd:"));
    pending.map(|bits| u64::from_str_radix(bits.trim(), 16).unwrap()).sum()
}

impl Workspace {
    /// Starts a command that pauses at an operation.
    pub fn start_paused(&self, arguments: &[&str], pause: &Pause) -> Paused {
        Paused::start(self.interposed(arguments), pause)
    }

    /// Runs a command that is killed just before the `at`-th operation whose line `kind path` contains `matching`.
    pub fn run_until_killed(&self, arguments: &[&str], matching: &str, at: usize) {
        let fault = Fault { action: "kill", at, permanent: false, matching: matching.to_owned() };
        let answer = self.with_fault(arguments, Some(&fault)).answer;
        assert_eq!(answer.code, -1, "no operation {at} of `{matching}`:\n{}", answer.to_text());
    }

    /// Returns the command under the interposer.
    pub fn interposed(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command
            .env("LD_PRELOAD", interposer())
            .env("LONGSIFT_FAULT_ROOT", self.path("").canonicalize().unwrap());
        command
    }

    /// Runs a command with a fault, or only observes it.
    pub fn with_fault(&self, arguments: &[&str], fault: Option<&Fault>) -> Traced {
        fault.unwrap_or(&Fault::default()).run(self.interposed(arguments))
    }
}

impl Fault {
    /// Runs a command under the interposer with this fault; without an action it only observes.
    pub fn run(&self, mut command: Command) -> Traced {
        let log = tempfile::NamedTempFile::new().unwrap();
        command.env("LONGSIFT_FAULT_TRACE", log.path()).stdin(Stdio::null());
        if !self.action.is_empty() {
            command
                .env("LONGSIFT_FAULT_ACTION", self.action)
                .env("LONGSIFT_FAULT_AT", self.at.to_string())
                .env("LONGSIFT_FAULT_MATCH", &self.matching);
        }
        if self.permanent {
            command.env("LONGSIFT_FAULT_STAYS", "1");
        }
        let answer = Answer::from_output(command.output().unwrap());
        let operations = fs::read_to_string(log.path()).unwrap();
        Traced { answer, operations: operations.lines().map(without_numbers).collect() }
    }
}
