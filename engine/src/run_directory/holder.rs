//! Who holds a run directory, as others are told.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::{clock, machine};

/// Who holds a run directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) pid: u32,
    pub(super) host: String,
    pub(super) started: String,
}

impl Holder {
    /// This process, since now.
    pub(super) fn this_process() -> Self {
        Self { pid: std::process::id(), host: machine::host_name(), started: clock::now_utc() }
    }
}

/// The longest lock file.
const MAX_LOCK_BYTES: usize = 4096;

/// Whether a lock file says what those of run directories do, as far as it was written.
pub(super) fn is_of_holder(content: &[u8]) -> bool {
    let begins = content.first().is_none_or(|first| *first == b'{') || content == SHARDS;
    begins && content.len() < MAX_LOCK_BYTES
}

/// Another process holds the directory. The content of the lock file is information, the lock is the system's.
pub(super) fn held_file(root: &Path, file: &mut File) -> Diagnostic {
    let mut content = String::new();
    let read = file.take(4096).read_to_string(&mut content).ok();
    let holder = read.and_then(|_| serde_json::from_str::<Holder>(&content).ok());
    if holder.is_none() && content.as_bytes() == SHARDS {
        return in_use(root, "processes that work on shards of it");
    }
    held(root, holder)
}

/// Another process holds the directory; one that has just taken it has said nothing yet.
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

/// What the lock says while processes hold it together.
pub(super) const SHARDS: &[u8] = b"shards";
