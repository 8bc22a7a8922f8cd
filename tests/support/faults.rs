//! Faults of the file system, put between the binary that ships and libc: see `tests/faults/interposer.c`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Answer, Workspace};

/// What happens to an operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault {
    /// `kill`, `torn`, `short`, or the name of an error: `EIO`.
    pub(crate) action: &'static str,
    /// The number of the operation, from 1.
    pub(crate) at: usize,
    /// Whether every later operation that counts fails, too.
    pub(crate) stays: bool,
    /// Which operations count: those whose line `kind path` contains this text.
    pub(crate) matching: String,
}

/// What a command did under the interposer.
#[derive(Debug)]
pub(crate) struct Traced {
    /// What it answered.
    pub(crate) answer: Answer,
    /// Its operations, a line `kind path` each; names of temporary files without their numbers.
    pub(crate) operations: Vec<String>,
}

/// The interposer, compiled once; none, with a printed reason, where there is no `LD_PRELOAD`.
fn interposer() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        if !cfg!(all(target_os = "linux", target_env = "gnu")) {
            eprintln!("skipped: faults are injected by LD_PRELOAD, which needs Linux and glibc");
            return None;
        }
        let source = super::repository().join("tests/faults/interposer.c");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder).unwrap();
        // Tests may be processes of their own: each puts a complete library into place.
        let own = folder.join(format!("interposer-{}.so", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or("cc".to_owned());
        let done = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&own, &source])
            .arg("-ldl")
            .status();
        assert!(done.is_ok_and(|status| status.success()), "`{compiler}` compiles {source:?}");
        let library = folder.join("interposer.so");
        fs::rename(own, &library).unwrap();
        Some(library)
    });
    library.as_deref()
}

/// Whether faults can be injected here.
pub(crate) fn available() -> bool {
    interposer().is_some()
}

/// The operation without the numbers that differ from process to process.
fn without_numbers(operation: &str) -> String {
    let Some(start) = operation.find(".tmp-") else { return operation.to_owned() };
    let (before, name) = operation.split_at(start + ".tmp-".len());
    let name = name.splitn(3, '-').last().unwrap_or_default();
    format!("{before}{name}")
}

/// Where a command waits: before the `at`-th operation whose line `kind path` contains a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    /// The text.
    pub(crate) matching: &'static str,
    /// The number of the operation, from 1.
    pub(crate) at: usize,
}

/// A command that waits, or is about to.
#[derive(Debug)]
pub(crate) struct Paused {
    /// The process.
    pub(crate) child: Child,
    /// The file that is there while it waits.
    waiting: TempDir,
}

impl Paused {
    /// Waits until the command waits.
    pub(crate) fn wait_for_pause(&mut self) {
        let begun = Instant::now();
        while !self.waiting.path().join("waiting").exists() {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "it ended without coming to the place"
            );
            assert!(begun.elapsed() < Duration::from_mins(2), "it never came to the place");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the command go on, to its end.
    pub(crate) fn go_on(self) -> Answer {
        fs::remove_file(self.waiting.path().join("waiting")).unwrap();
        Answer::of(self.child.wait_with_output().unwrap())
    }
}

impl Workspace {
    /// Starts a command that waits at a place.
    pub(crate) fn start_paused(&self, arguments: &[&str], pause: &Pause) -> Paused {
        let waiting = TempDir::new().unwrap();
        let mut command = self.interposed(arguments);
        command
            .env("LONGSIFT_FAULT_ACTION", "pause")
            .env("LONGSIFT_FAULT_AT", pause.at.to_string())
            .env("LONGSIFT_FAULT_MATCH", pause.matching)
            .env("LONGSIFT_FAULT_PAUSED", waiting.path().join("waiting"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Paused { child: command.spawn().unwrap(), waiting }
    }

    /// The command with the interposer before it.
    pub(crate) fn interposed(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command
            .env("LD_PRELOAD", interposer().expect("asked before"))
            .env("LONGSIFT_FAULT_ROOT", self.path("").canonicalize().unwrap());
        command
    }

    /// Runs a command with a fault, or only watches it.
    pub(crate) fn with_fault(&self, arguments: &[&str], fault: Option<&Fault>) -> Traced {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = self.interposed(arguments);
        command.env("LONGSIFT_FAULT_TRACE", log.path()).stdin(Stdio::null());
        if let Some(fault) = fault {
            command
                .env("LONGSIFT_FAULT_ACTION", fault.action)
                .env("LONGSIFT_FAULT_AT", fault.at.to_string())
                .env("LONGSIFT_FAULT_MATCH", &fault.matching);
            if fault.stays {
                command.env("LONGSIFT_FAULT_STAYS", "1");
            }
        }
        let answer = Answer::of(command.output().unwrap());
        let operations = fs::read_to_string(log.path()).unwrap();
        Traced { answer, operations: operations.lines().map(without_numbers).collect() }
    }
}
