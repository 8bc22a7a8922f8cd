//! Properties of this machine, as reported by its operating system.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// Peak memory before [`take_peak_bytes`] last reset it.
static BEFORE: AtomicU64 = AtomicU64::new(0);

pub fn peak_memory_bytes() -> Option<u64> {
    Some(recent_peak_bytes()?.max(BEFORE.load(Ordering::Relaxed)))
}

/// Returns the peak memory since the last call, if known; of the whole process if the system cannot reset it.
pub(crate) fn take_peak_bytes() -> Option<u64> {
    let peak = recent_peak_bytes()?;
    BEFORE.fetch_max(peak, Ordering::Relaxed);
    // On Linux, writing 5 resets the peak to the current resident memory. Without a reset, later values are too high.
    let _ = fs::write("/proc/self/clear_refs", "5");
    Some(peak)
}

fn recent_peak_bytes() -> Option<u64> {
    system_bytes("/proc/self/status", "VmHWM:")
}

/// Returns the memory that a new process could use without swapping, if known.
pub fn free_memory_bytes() -> Option<u64> {
    system_bytes("/proc/meminfo", "MemAvailable:")
}

/// Returns the smallest memory limit of this process's control groups; `None` without a limit.
pub(crate) fn control_group_bytes() -> Option<u64> {
    let groups = read_system("/proc/self/cgroup")?;
    let limit = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, own) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let folders = Path::new(own.trim_start_matches('/')).ancestors();
        let paths = folders.map(|folder| Path::new(root).join(folder).join(file));
        paths.filter_map(|path| read_system(path.to_str()?)?.trim().parse::<u64>().ok()).min()
    };
    // Version 1 of control groups reports a huge number instead of no limit.
    groups.lines().filter_map(limit).min().filter(|bytes: &u64| *bytes < 1 << 60)
}

/// Returns the address space that `ulimit -v` leaves for this process, in bytes; `None` without a limit.
pub(crate) fn address_space_bytes() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let pages: u64 = read_system("/proc/self/statm")?.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

/// Reads a file that the operating system provides, if it exists.
pub fn read_system(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the rest of the first line of such a file that begins with `key`.
pub(crate) fn system_line(path: &str, key: &str) -> Option<String> {
    let text = read_system(path)?;
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
}

/// Returns the size in such a line, in bytes.
pub(crate) fn system_bytes(path: &str, key: &str) -> Option<u64> {
    let kibibytes: u64 = system_line(path, key)?.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the total resident memory of a process group in bytes, 0 if unknown. Shared memory counts for each process.
pub(crate) fn group_memory_bytes(group: u32) -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let names = processes.flatten().map(|entry| entry.file_name());
    let ids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let pages = ids.filter_map(|id| {
        let status = read_system(&format!("/proc/{id}/stat"))?;
        // The name may contain spaces and parentheses; the fields after the last parenthesis do not.
        let (_, fields) = status.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let own = fields.get(2)?.parse::<u32>().ok()? == group;
        own.then(|| fields.get(21)?.parse::<u64>().ok()).flatten()
    });
    pages.sum::<u64>() * rustix::param::page_size() as u64
}
