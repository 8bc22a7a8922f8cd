//! What the tests share: a folder to work in, the command, and what it answered.

#[cfg(feature = "cloud")]
pub(crate) mod bucket;
pub(crate) mod damage;
pub(crate) mod disk;
pub(crate) mod faults;
pub(crate) mod models;
pub(crate) mod pipelines;
pub(crate) mod scenarios;
#[cfg(feature = "cloud")]
pub(crate) mod server;
pub(crate) mod tables;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

pub(crate) use models::Tiny;
pub(crate) use pipelines::Pipeline;

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The demo model: small, trained, with a tokenizer.
pub(crate) fn demo_model() -> PathBuf {
    repository().join("datasets/demo/model")
}

/// Something in the shared test data, which not every checkout has: `LONGSIFT_SHARED`, or `shared` beside the
/// repository. Says so where it is absent.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LONGSIFT_SHARED")
        .map_or_else(|| repository().join("../shared"), PathBuf::from);
    let found = folder.join(path);
    if found.exists() {
        return Some(found);
    }
    eprintln!("skipped: there is no `{}`; set LONGSIFT_SHARED", found.display());
    None
}

/// A folder with a library that answers like NVIDIA's management library, built from `fake_nvml.c`. Says so where there
/// is no C compiler.
pub(crate) fn fake_nvml() -> Option<PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || Some(library("fake_nvml.c", "libnvidia-ml.so.1")?.parent()?.to_owned());
    FOLDER.get_or_init(build).clone()
}

/// A library built from a C file of `tests/support`. Says so where there is no C compiler.
pub(crate) fn library(source: &str, name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
    fs::create_dir_all(&folder).unwrap();
    let source = repository().join("tests/support").join(source);
    let library = folder.join(name);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    match built {
        Ok(status) => assert!(status.success(), "`{}` does not compile", source.display()),
        Err(error) => {
            eprintln!("skipped: there is no C compiler `cc`: {error}");
            return None;
        }
    }
    Some(library)
}

/// A JSON file.
pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The numbers of a JSON array.
pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// What a command answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The exit code; -1 for one that was killed.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Answer {
    /// What a process that has ended answered.
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The answer, which must be a success.
    pub(crate) fn success(self) -> Self {
        self.expect(0)
    }

    /// The answer, which must have this exit code.
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// The last line of standard output: the summary of a run.
    pub(crate) fn summary(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap()).unwrap()
    }

    /// Every line of standard output, as JSON.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Exit code, standard output and standard error, for a snapshot.
    pub(crate) fn all(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

/// A folder of one test, with a table cache of its own.
pub(crate) struct Workspace {
    folder: TempDir,
}

impl Workspace {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::with_prefix("longsift-").unwrap() }
    }

    /// A copy of another one, with the same times of modification.
    pub(crate) fn copy_of(other: &Self) -> Self {
        let copy = Self::new();
        copy_folder(other.folder.path(), copy.folder.path());
        copy
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in it, and the folders above.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes `name` mean something outside of the folder.
    pub(crate) fn link(&self, name: &str, target: &Path) {
        std::os::unix::fs::symlink(target, self.path(name)).unwrap();
    }

    /// The command, in this folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longsift"));
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

    /// Runs the command to its end.
    pub(crate) fn longsift(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command(arguments).output().unwrap())
    }

    /// Starts the command; nobody listens to what it says.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Writes `pipeline.yaml` and runs it, which must succeed. The summary, with both accounting equations checked.
    pub(crate) fn run(&self, pipeline: &Pipeline) -> Value {
        self.run_with(pipeline, &[])
    }

    /// The same, with further arguments.
    pub(crate) fn run_with(&self, pipeline: &Pipeline, arguments: &[&str]) -> Value {
        self.write("pipeline.yaml", pipeline.to_string());
        let summary = self
            .longsift(&[&["run", "pipeline.yaml", "-q"], arguments].concat())
            .success()
            .summary();
        check_accounting(&summary);
        check_tables(&summary);
        summary
    }

    /// Replaces paths in this folder and in the repository, versions of time and machine, by words.
    pub(crate) fn filtered(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (path, name) in [
            (self.folder.path().canonicalize().unwrap(), "[folder]"),
            (self.folder.path().to_owned(), "[folder]"),
            (repository(), "[repository]"),
        ] {
            text = text.replace(path.to_str().unwrap(), name);
        }
        text
    }

    /// SHA-256 of every file below some of its folders, by path. A folder that does not exist has none.
    pub(crate) fn hashes(&self, folders: &[&str]) -> BTreeMap<String, String> {
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

    /// The bytes that a run is judged by: data, scores, dropped and quarantined rows of the output `out`.
    pub(crate) fn results(&self) -> BTreeMap<String, String> {
        self.hashes(&["out/data", "out.run/scores", "out.run/dropped", "out.run/quarantine"])
    }
}

/// Copies what is in a folder into another one, with its times of modification; links stay links.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        let status = fs::symlink_metadata(&from).unwrap();
        if status.is_dir() {
            copy_folder(&from, &to);
        } else if status.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from).unwrap(), &to).unwrap();
        } else {
            fs::copy(&from, &to).unwrap();
            let copy = fs::File::options().write(true).open(&to).unwrap();
            copy.set_modified(status.modified().unwrap()).unwrap();
        }
    }
}

/// Every file below a folder, sorted.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// A count of the summary.
pub(crate) fn count(summary: &Value, key: &str) -> u64 {
    summary[key].as_u64().unwrap_or_else(|| panic!("{key} in {summary}"))
}

/// What the tables of a run hold is what its summary says.
fn check_tables(summary: &Value) {
    let run = Path::new(summary["run_dir"].as_str().unwrap());
    let output = run.with_extension("");
    let rows = |folder: &Path| -> u64 {
        files_below(folder).iter().map(|file| tables::count_rows(file)).sum()
    };
    if summary["status"] != "done" {
        return;
    }
    assert_eq!(rows(&output.join("data")), count(summary, "kept"), "{summary}");
    let of = |key: &str| summary[key].as_u64().unwrap_or(0);
    assert!(of("rows_kept") <= of("kept") && of("kept") <= of("windows_kept"), "{summary}");
    let scored = of("windows_scored") + of("windows_reused");
    let too_short = summary["windows_dropped"]["too_short"].as_u64().unwrap_or(0);
    assert_eq!(scored + too_short, of("windows_total"), "{summary}");
}

/// Rows in = kept + dropped + quarantined; windows = kept + dropped.
pub(crate) fn check_accounting(summary: &Value) {
    let sum = |key: &str| -> u64 {
        summary[key].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    assert_eq!(
        count(summary, "rows_in"),
        count(summary, "rows_kept") + sum("rows_dropped") + count(summary, "quarantined"),
        "{summary}"
    );
    assert_eq!(
        count(summary, "windows_total"),
        count(summary, "windows_kept") + sum("windows_dropped"),
        "{summary}"
    );
}
