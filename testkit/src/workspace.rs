//! Folder of one test, commands in it, and their results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{copy_folder, files_below, hex};

/// Result of a command.
#[derive(Debug)]
pub struct Answer {
    /// Exit code; -1 after a signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    pub fn from_output(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns the answer; panics unless it is a success.
    pub fn success(self) -> Self {
        self.expect(0)
    }

    /// Returns the answer; panics unless it has this exit code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Parses the last line of standard output: the summary of a run.
    pub fn summary(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap()).unwrap()
    }

    /// Parses every line of standard output.
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns exit code, standard output and standard error, for a snapshot.
    pub fn to_text(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

/// Folder of one test with its own table cache, and the program that runs in it.
#[derive(Debug)]
pub struct Workspace {
    folder: TempDir,
    program: PathBuf,
}

/// Returns the folders of a finished run that hold its results: `out/data`, `out.run/scores` and so on.
pub fn result_folders(output: &str) -> [String; 5] {
    ["/data", ".run/scores", ".run/dropped", ".run/selection", ".run/quarantine"]
        .map(|folder| format!("{output}{folder}"))
}

impl Workspace {
    /// Creates an empty folder for a program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { folder: TempDir::with_prefix("longsift-").unwrap(), program: program.into() }
    }

    /// Copies another workspace with its modification times.
    pub fn copy_of(other: &Self) -> Self {
        let copy = Self::new(&other.program);
        copy_folder(other.folder.path(), copy.folder.path());
        copy
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file and creates its parent folders.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Links `name` to a path outside the folder.
    pub fn link(&self, name: &str, target: &Path) {
        std::os::unix::fs::symlink(target, self.path(name)).unwrap();
    }

    /// Returns the command, to run in this folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            // Memory use depends on the number of threads, which differs between machines.
            .env("RAYON_NUM_THREADS", "2")
            // Plans and logs explain why no GPU is used: the same on every machine.
            .env("CUDA_VISIBLE_DEVICES", "")
            .env_remove("RUST_BACKTRACE");
        command
    }

    /// Returns the command after a shell prefix: `ulimit -t 2 && exec`.
    pub fn command_after(&self, shell: &str, arguments: &[&str]) -> Command {
        let inner = self.command(arguments);
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{shell} \"$0\" \"$@\""))
            .arg(inner.get_program())
            .args(inner.get_args())
            .current_dir(inner.get_current_dir().unwrap());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Runs the command.
    pub fn longsift(&self, arguments: &[&str]) -> Answer {
        Answer::from_output(self.command(arguments).output().unwrap())
    }

    /// Starts the command and discards its output.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns SHA-256 of every file below some folders, by path. Missing folders are ignored.
    pub fn hashes(&self, folders: &[&str]) -> BTreeMap<String, String> {
        let mut hashes = BTreeMap::new();
        for folder in folders {
            for file in files_below(&self.path(folder)) {
                let name = file.strip_prefix(self.folder.path()).unwrap().display().to_string();
                let digest = Sha256::digest(fs::read(&file).unwrap());
                hashes.insert(name, hex(&digest));
            }
        }
        hashes
    }

    /// Returns SHA-256 of a run's results: data, scores, dropped and quarantined rows of the output `out`, and of
    /// trials (`--limit`) next to it.
    pub fn results(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let trials = names.filter(|name| name.starts_with("out.limit-"));
        let outputs = trials.chain(["out".to_owned()]);
        let folders: Vec<String> = outputs.flat_map(|out| result_folders(&out)).collect();
        self.hashes(&folders.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
