//! A folder of one test, the command in it, and what it answered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{copy_folder, files_below, hex};

/// What a command answered.
#[derive(Debug)]
pub struct Answer {
    /// The exit code; -1 for one that was killed.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Answer {
    /// What a process that has ended answered.
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The answer, which must be a success.
    pub fn success(self) -> Self {
        self.expect(0)
    }

    /// The answer, which must have this exit code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The last line of standard output: the summary of a run.
    pub fn summary(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap()).unwrap()
    }

    /// Every line of standard output, as JSON.
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Exit code, standard output and standard error, for a snapshot.
    pub fn all(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

/// A folder of one test, with a table cache of its own, and the program that works in it.
#[derive(Debug)]
pub struct Workspace {
    folder: TempDir,
    program: PathBuf,
}

/// The folders of a finished run whose bytes are its results: `out/data`, `out.run/scores` and so on.
pub fn result_folders(output: &str) -> [String; 5] {
    ["/data", ".run/scores", ".run/dropped", ".run/selection", ".run/quarantine"]
        .map(|folder| format!("{output}{folder}"))
}

impl Workspace {
    /// An empty folder for a program.
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Self { folder: TempDir::with_prefix("longsift-").unwrap(), program: program.into() }
    }

    /// A copy of another one, with the same times of modification.
    pub fn copy_of(other: &Self) -> Self {
        let copy = Self::of(&other.program);
        copy_folder(other.folder.path(), copy.folder.path());
        copy
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it, and the folders above.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes `name` mean something outside of the folder.
    pub fn link(&self, name: &str, target: &Path) {
        std::os::unix::fs::symlink(target, self.path(name)).unwrap();
    }

    /// The command, in this folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            // Memory figures depend on the number of threads, which differs from machine to machine.
            .env("RAYON_NUM_THREADS", "2")
            // Plans and logs say why there is no GPU: the same on every machine.
            .env("CUDA_VISIBLE_DEVICES", "")
            .env_remove("RUST_BACKTRACE");
        command
    }

    /// The command behind a beginning of a line of the shell: `ulimit -t 2 && exec`.
    pub fn behind(&self, shell: &str, arguments: &[&str]) -> Command {
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

    /// Runs the command to its end.
    pub fn longsift(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command(arguments).output().unwrap())
    }

    /// Starts the command; nobody listens to what it says.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// SHA-256 of every file below some of its folders, by path. A folder that does not exist has none.
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

    /// The bytes that a run is judged by: data, scores, dropped and quarantined rows of the output `out`, and of trials
    /// (`--limit`) beside it.
    pub fn results(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let trials = names.filter(|name| name.starts_with("out.limit-"));
        let outputs = trials.chain(["out".to_owned()]);
        let folders: Vec<String> = outputs.flat_map(|out| result_folders(&out)).collect();
        self.hashes(&folders.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
