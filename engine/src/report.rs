//! What a run says at its end: the JSON summary for programs, the closing table for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diagnostic::line_safe;
use crate::select::GroupDrift;

/// The summary of a run: the last line of standard output, and `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// `done`, `scored` (a shard), `nothing_to_do`, `failed` or `stopped`.
    pub status: String,
    /// The run directory, absolute.
    pub run_dir: String,
    /// The name given by `--run-id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Rows read.
    pub rows_in: u64,
    /// Rows with at least one sample in the output.
    pub rows_kept: u64,
    /// Rows that are not in the output, by reason.
    pub rows_dropped: BTreeMap<String, u64>,
    /// Rows that could not be scored.
    pub quarantined: u64,
    /// Files of the input that could not be opened and are left out; how many rows they have is not known.
    #[serde(default)]
    pub files_quarantined: u64,
    /// Windows cut.
    pub windows_total: u64,
    /// Windows measured by this run.
    pub windows_scored: u64,
    /// Windows measured by an earlier run.
    pub windows_reused: u64,
    /// Windows in the output (of kept documents, with `samples: documents`).
    pub windows_kept: u64,
    /// Windows that are not in the output, by reason.
    pub windows_dropped: BTreeMap<String, u64>,
    /// Rows of the output.
    pub kept: u64,
    /// Tokens of all documents.
    pub tokens_total: u64,
    /// Tokens of all scored windows, BOS included.
    pub tokens_scored: u64,
    /// The kernel that measures windows; null where the run ended before one was chosen.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Wall-clock seconds of this run.
    pub seconds: f64,
    /// The largest resident memory of this run in bytes, the mapped table included; null where the system does not
    /// tell.
    pub peak_memory_bytes: Option<u64>,
    /// The layer-zero table; null where this run measured nothing and opened none.
    #[serde(default)]
    pub table: Option<TableUse>,
    /// What a process did with its shard; only after `--phase score`. Nothing is selected then: `kept` and
    /// `windows_kept` are 0, and `rows_in` is the shard's rows, `rows_scored` + dropped + quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardSummary>,
    /// What measured windows; null where this run measured none.
    #[serde(default)]
    pub devices: Option<DeviceUse>,
    /// With a saved calibration: how far the scores of each group have moved from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<GroupDrift>,
    /// The exit code.
    pub exit_code: u8,
    /// What went wrong, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Summary {
    /// A summary of a run that has done nothing yet.
    pub fn new(status: &str, run_dir: String) -> Self {
        Self {
            status: status.to_owned(),
            run_dir,
            run_id: None,
            rows_in: 0,
            rows_kept: 0,
            rows_dropped: BTreeMap::new(),
            quarantined: 0,
            files_quarantined: 0,
            windows_total: 0,
            windows_scored: 0,
            windows_reused: 0,
            windows_kept: 0,
            windows_dropped: BTreeMap::new(),
            kept: 0,
            tokens_total: 0,
            tokens_scored: 0,
            kernel: None,
            seconds: 0.0,
            peak_memory_bytes: None,
            table: None,
            shard: None,
            devices: None,
            drift: Vec::new(),
            exit_code: 0,
            error: None,
        }
    }

    /// Both accounting equations; a violation is a bug.
    pub fn check(&self) -> Result<(), String> {
        let rows = self.rows_kept + self.rows_dropped.values().sum::<u64>() + self.quarantined;
        if rows != self.rows_in {
            return Err(format!(
                "{} rows came in, but {} were kept, {} dropped and {} quarantined",
                self.rows_in,
                self.rows_kept,
                self.rows_dropped.values().sum::<u64>(),
                self.quarantined
            ));
        }
        let windows = self.windows_kept + self.windows_dropped.values().sum::<u64>();
        if windows != self.windows_total {
            return Err(format!(
                "{} windows were cut, but {} were kept and {} dropped",
                self.windows_total,
                self.windows_kept,
                self.windows_dropped.values().sum::<u64>()
            ));
        }
        Ok(())
    }

    /// One line of JSON.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a summary is plain data")
    }
}

/// The layer-zero table, as far as a run used it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableUse {
    /// Whether it was in the cache.
    pub from_cache: bool,
    /// Bytes of weights read to build it: 0 from the cache, else what `longsift plan` promised.
    pub checkpoint_bytes_read: u64,
    /// Its bytes: every row of the vocabulary.
    pub bytes: u64,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Rows whose ids occurred in a window that this run measured.
    pub rows_used: u64,
    /// What those rows take. The table is mapped, so this much of it is in memory.
    pub bytes_used: u64,
}

/// What a process did with the work units of its shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardSummary {
    /// Which shard, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
    /// Its work units.
    pub units: u64,
    /// Units scored and committed by this process.
    pub units_scored: u64,
    /// Units that had scores before.
    pub units_reused: u64,
    /// Units that another process committed first.
    pub units_by_others: u64,
    /// Rows with at least one measured window.
    pub rows_scored: u64,
    /// Units whose kept rows this process wrote (`--phase write`).
    #[serde(default)]
    pub units_written: u64,
}

/// What the devices of a run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceUse {
    /// Each device.
    pub list: Vec<DeviceWork>,
    /// How often the scheduler had to do something besides measuring, by kind: `out_of_memory`, `fewer_in_flight`,
    /// `head_groups`, `memory_wait`, `window_given_up`, `device_failed`, `device_retired`, … Each is an event, too.
    pub steps: BTreeMap<String, u64>,
}

/// What one device of a run did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceWork {
    /// `cpu`, `cuda:0`.
    pub name: String,
    /// The GPU's own name, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Windows, and pieces of windows, that it measured.
    pub pieces: u64,
    /// Tokens of those windows; of a piece, in proportion to its heads.
    pub tokens: u64,
    /// Seconds in which it was at work.
    pub busy_seconds: f64,
    /// The most bytes that were reserved on it at a time.
    pub most_reserved_bytes: u64,
    /// Why it was given up, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<String>,
}

/// The share that was kept per label.
pub type LabelShares = Vec<(Option<String>, u64, u64)>;

/// The closing table.
pub fn closing_table(
    summary: &Summary,
    times: &[(&'static str, Duration)],
    labels: Option<(&str, &LabelShares)>,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<12} {}", line_safe(&value));
    };
    let (verb, rows, windows) = match &summary.shard {
        Some(shard) => {
            let done = format!(
                "{shard}: {} work units = {} scored now + {} before + {} by other processes",
                count(shard.units),
                count(shard.units_scored),
                count(shard.units_reused),
                count(shard.units_by_others),
                shard = format_args!("{}/{}", shard.index, shard.count),
            );
            line("shard", done);
            let windows = summary.windows_scored + summary.windows_reused;
            ("scored", shard.rows_scored, windows)
        }
        None => ("kept", summary.rows_kept, summary.windows_kept),
    };
    let quarantined = summary.quarantined;
    line("rows", equation(summary.rows_in, verb, rows, &summary.rows_dropped, quarantined));
    if summary.files_quarantined > 0 {
        let files = count(summary.files_quarantined);
        line("bad files", format!("{files} could not be opened, see quarantine/files.parquet"));
    }
    line("windows", equation(summary.windows_total, verb, windows, &summary.windows_dropped, 0));
    line(
        "scored",
        format!(
            "{} windows now, {} before{}",
            count(summary.windows_scored),
            count(summary.windows_reused),
            summary.kernel.as_ref().map_or(String::new(), |kernel| format!(", kernel {kernel}"))
        ),
    );
    line(
        "tokens",
        format!("{} read, {} scored", count(summary.tokens_total), count(summary.tokens_scored)),
    );
    if summary.shard.is_none() {
        line("kept", format!("{} samples", count(summary.kept)));
    }
    for drift in &summary.drift {
        line("drift", drifted(drift));
    }
    let spent: Vec<String> =
        times.iter().map(|(stage, time)| format!("{stage} {}", seconds(*time))).collect();
    line("time", format!("{:.1} s ({})", summary.seconds, spent.join(", ")));
    if let Some(peak) = summary.peak_memory_bytes {
        line("memory", format!("{} at most", bytes(peak)));
    }
    if let Some(table) = &summary.table {
        let read = if table.from_cache {
            "from the cache".to_owned()
        } else {
            format!("{} of the checkpoint read", bytes(table.checkpoint_bytes_read))
        };
        let used = format!(
            "{} of {} used, {} rows; {read}",
            bytes(table.bytes_used),
            bytes(table.bytes),
            count(table.rows_used)
        );
        line("table", used);
    }
    if let Some(devices) = &summary.devices {
        for device in &devices.list {
            line("device", device_line(device, summary.seconds));
        }
        let steps: Vec<String> = devices
            .steps
            .iter()
            .map(|(step, number)| format!("{} {step}", count(*number)))
            .collect();
        if !steps.is_empty() {
            line("steps", steps.join(", "));
        }
    }
    if let Some((column, shares)) = labels {
        text += &label_table(column, shares);
    }
    text
}

fn device_line(device: &DeviceWork, seconds: f64) -> String {
    let mut text = format!(
        "{}: {} pieces, {} tokens, at work {:.0} % of the time, {} reserved at most",
        device.name,
        count(device.pieces),
        count(device.tokens),
        100.0 * device.busy_seconds / seconds.max(1e-3),
        bytes(device.most_reserved_bytes)
    );
    if let Some(reason) = &device.retired {
        let _ = write!(text, "; given up: {reason}");
    }
    text
}

fn drifted(drift: &GroupDrift) -> String {
    let percent = |share: Option<f64>| {
        share.map_or("?".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    format!(
        "{}{} scores, stability index {}; {} kept, {} when calibrated; strength {:+.2} and variance {:+.2} deviations",
        drift.value.as_ref().map_or(String::new(), |value| format!("`{value}`: ")),
        count(drift.count),
        drift.stability_index.map_or("unknown".to_owned(), |index| format!("{index:.3}")),
        percent(Some(drift.kept_fraction)),
        percent(drift.calibrated_kept_fraction),
        drift.dependency_strength_shift,
        drift.far_variance_shift,
    )
}

fn equation(
    total: u64,
    verb: &str,
    rest: u64,
    dropped: &BTreeMap<String, u64>,
    quarantined: u64,
) -> String {
    let mut text = format!("{} = {} {verb}", count(total), count(rest));
    for (reason, number) in dropped {
        let _ = write!(text, " + {} {reason}", count(*number));
    }
    if quarantined > 0 {
        let _ = write!(text, " + {} quarantined", count(quarantined));
    }
    text
}

/// Kept shares per label against the share kept overall.
fn label_table(column: &str, shares: &LabelShares) -> String {
    let (all, kept) =
        shares.iter().fold((0, 0), |(all, kept), share| (all + share.1, kept + share.2));
    let percent = |kept: u64, all: u64| 100.0 * kept as f64 / all.max(1) as f64;
    let name =
        |label: &Option<String>| label.as_deref().map_or_else(|| "(null)".to_owned(), line_safe);
    let column = line_safe(column);
    let width = shares
        .iter()
        .map(|share| name(&share.0).chars().count())
        .max()
        .unwrap_or(0)
        .max(column.chars().count());
    let mut text = format!(
        "\n  {column:<width$}  samples     kept   share  against {:.1} % overall\n",
        percent(kept, all)
    );
    for (label, all_of_label, kept_of_label) in shares {
        let share = percent(*kept_of_label, *all_of_label);
        let _ = writeln!(
            text,
            "  {:<width$}  {:>7}  {:>7}  {share:>5.1} %  {:+.1} points",
            name(label),
            count(*all_of_label),
            count(*kept_of_label),
            share - percent(kept, all)
        );
    }
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A number with thousands separators: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes with a decimal unit: `1.3 GB`.
pub fn bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

/// The largest resident memory of this process, where the system tells.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = crate::files::read_system("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Memory that this machine could give to a new process without swapping, where the system tells.
pub fn free_memory_bytes() -> Option<u64> {
    let text = crate::files::read_system("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
        assert_eq!(bytes(1_310_000_000), "1.31 GB");
    }

    #[test]
    fn a_summary_that_lost_a_row_or_a_window_is_refused() {
        let mut summary = Summary::new("done", "/run".to_owned());
        (summary.rows_in, summary.rows_kept) = (2, 1);
        assert!(summary.check().unwrap_err().contains("2 rows came in"));
        summary.quarantined = 1;
        assert_eq!(summary.check(), Ok(()));
        summary.windows_total = 1;
        assert!(summary.check().unwrap_err().contains("1 windows were cut"));
    }
}
