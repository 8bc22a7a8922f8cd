//! This machine, as its operating system describes it.

use std::fs;

/// The largest resident memory of this process, where the system tells.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = read_system("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Memory that this machine could give to a new process without swapping, where the system tells.
pub fn free_memory_bytes() -> Option<u64> {
    let text = read_system("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// A text that the operating system keeps about itself, where it does.
pub fn read_system(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
