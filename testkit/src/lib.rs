//! Test kit of longsift. It does not depend on the engine: tests pass the path of the program.
//!
//! * [`workspace`]: folder of one test, and commands in it;
//! * [`faults`]: file operations that fail, tear, pause or kill the process; a clock that the test moves;
//! * [`disk`]: disk that loses its power;
//! * [`server`], [`bucket`]: web servers and object stores with faults at any request;
//! * [`tables`], [`damage`]: Parquet files, well-formed and malformed;
//! * [`models`], [`pipelines`]: tiny checkpoints and pipeline files;
//! * [`random`]: the shared random number generator.
#![allow(clippy::unwrap_used, reason = "tests panic if their setup fails")]
#![allow(
    clippy::return_self_not_must_use,
    reason = "a test may ignore an answer after checking it"
)]
#![allow(clippy::new_without_default, reason = "no test uses a default server or model")]

pub mod bucket;
pub mod damage;
pub mod disk;
pub mod faults;
pub mod models;
pub mod pipelines;
pub mod random;
pub mod server;
pub mod tables;
pub mod workspace;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

pub use models::Tiny;
pub use pipelines::Pipeline;
pub use random::Random;
pub use workspace::{Answer, Workspace, result_folders};

/// Returns the folder of a library that simulates NVIDIA's management library: `preloaded/fake_nvml.c`.
pub fn fake_nvml() -> &'static Path {
    Path::new(concat!(env!("OUT_DIR"), "/nvml"))
}

/// Returns a library that blocks and counts network connections: `preloaded/no_network.c`.
pub fn no_network() -> &'static Path {
    Path::new(concat!(env!("OUT_DIR"), "/no_network.so"))
}

/// Copies a folder's content with modification times; links stay links.
pub fn copy_folder(from: &Path, to: &Path) {
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

/// Returns every file below a folder, sorted; empty if the folder does not exist.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
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

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}
