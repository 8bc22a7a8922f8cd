//! This machine, as its operating system describes it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// The largest resident memory before [`take_peak_bytes`] last began anew.
static BEFORE: AtomicU64 = AtomicU64::new(0);

/// The largest resident memory of this process, where the system tells.
pub fn peak_memory_bytes() -> Option<u64> {
    Some(recent_peak_bytes()?.max(BEFORE.load(Ordering::Relaxed)))
}

/// The largest resident memory since this was last asked, where the system tells; where it cannot begin anew, of the whole
/// process.
pub(crate) fn take_peak_bytes() -> Option<u64> {
    let peak = recent_peak_bytes()?;
    BEFORE.fetch_max(peak, Ordering::Relaxed);
    // Linux: 5 sets the largest resident memory to what is resident now. Anywhere else it stays, and the figure says more.
    let _ = fs::write("/proc/self/clear_refs", "5");
    Some(peak)
}

/// The largest resident memory since the system began to count.
fn recent_peak_bytes() -> Option<u64> {
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

/// Memory that the control groups of this process may use, the smallest of them; `None` without a limit.
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
    // Version 1 writes the largest number where there is no limit.
    groups.lines().filter_map(limit).min().filter(|bytes: &u64| *bytes < 1 << 60)
}

/// Address space that `ulimit -v` leaves to this process; `None` without a limit.
pub(crate) fn address_space_bytes() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let pages: u64 = read_system("/proc/self/statm")?.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

/// A text that the operating system keeps about itself, where it does.
pub fn read_system(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Resident memory of the processes of a group together, where the system tells; what they share counts for each.
pub(crate) fn group_memory_bytes(group: u32) -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let names = processes.flatten().map(|entry| entry.file_name());
    let ids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let pages = ids.filter_map(|id| {
        let status = read_system(&format!("/proc/{id}/stat"))?;
        // The name may hold spaces and parentheses; what follows the last one does not.
        let (_, fields) = status.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let own = fields.get(2)?.parse::<u32>().ok()? == group;
        own.then(|| fields.get(21)?.parse::<u64>().ok()).flatten()
    });
    pages.sum::<u64>() * rustix::param::page_size() as u64
}
