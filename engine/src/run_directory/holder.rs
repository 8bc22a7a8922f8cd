//! Content of a lock file: the process that holds a run directory.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::{clock, machine};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    pub started: String,
}

impl Holder {
    pub(super) fn this_process() -> Self {
        Self { pid: std::process::id(), host: machine::host_name(), started: clock::now_utc() }
    }
}

const MAX_LOCK_BYTES: usize = 4096;

/// Whether `content` is that of a lock file. It may be incomplete: after a power cut, bytes that were not synced are zeros.
pub(super) fn is_lock_content(content: &[u8]) -> bool {
    let zeros = content.iter().rev().take_while(|byte| **byte == 0).count();
    let written = &content[..content.len() - zeros];
    (written.starts_with(b"{") || SHARDS.starts_with(written)) && content.len() < MAX_LOCK_BYTES
}

/// Error: another process holds the lock. The operating system keeps the lock; the content of the file only names the holder.
pub(super) fn held_file(root: &Path, file: &mut File) -> Diagnostic {
    let mut content = Vec::new();
    let read = file.take(4096).read_to_end(&mut content).is_ok();
    if read && content == SHARDS {
        return in_use(root, "processes that work on its shards");
    }
    held(root, serde_json::from_slice(&content).ok().filter(|_| read))
}

/// Error: another process holds the directory. `holder` is `None` if that process has not written its lock file yet.
pub(super) fn held(root: &Path, holder: Option<Holder>) -> Diagnostic {
    let who = holder.map_or_else(
        || "another process".to_owned(),
        |holder| format!("process {} on {}, started {}", holder.pid, holder.host, holder.started),
    );
    in_use(root, &who)
}

fn in_use(root: &Path, who: &str) -> Diagnostic {
    Diagnostic::error(
        Blame::Machine,
        format!("the run directory `{}` is in use by {who}", root.display()),
    )
    .hint("wait for that run to end, or give this one another `output.path`")
}

/// Content of the lock file while several processes share the lock.
pub(super) const SHARDS: &[u8] = b"shards";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_lock_is_recognised() {
        for content in ["", "shards", "sha\0\0\0", "\0\0\0", "{", "{\"pid\": 1\0\0"] {
            assert!(is_lock_content(content.as_bytes()), "{content:?}");
        }
        for content in ["notes", "shards of glass", "\0a", "[1]"] {
            assert!(!is_lock_content(content.as_bytes()), "{content:?}");
        }
    }
}
