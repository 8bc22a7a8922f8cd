//! Closing table: the summary of a run for people.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use crate::base::text::{bytes, count, line_safe, quoted_value, seconds, value_name};
use crate::run_directory::calibration::{GroupDrift, moved_most};
use crate::run_directory::summary::{DeviceWork, LabelCounts, LabelShares, Summary};

const MAX_GROUPS: usize = 10;
const MAX_LABELS: usize = 50;

#[derive(Clone, Debug)]
pub struct LabelTable<'a> {
    pub column: &'a str,
    /// Names of the scores that the selection is compared with.
    pub compared: Vec<&'a str>,
    pub shares: &'a LabelShares,
}

pub fn closing_line(name: &str, value: &str) -> String {
    format!("  {name:<12} {}\n", line_safe(value))
}

pub fn closing_table(
    summary: &Summary,
    times: &[(&'static str, Duration)],
    labels: Option<&LabelTable<'_>>,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &closing_line(name, &value);
    let (verb, rows, windows) = match &summary.shard {
        Some(shard) => {
            let numbers =
                [shard.units, shard.units_scored, shard.units_reused, shard.units_by_others];
            let [all, new, reused, others] = numbers.map(count);
            let sum = format!(
                "{all} work units = {new} new + {reused} reused + {others} by other processes"
            );
            line("shard", format!("{}/{}: {sum}", shard.index, shard.count));
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
    let kernel = summary.kernel.as_ref().map(|kernel| format!(", kernel {kernel}"));
    let [new, reused] = [summary.windows_scored, summary.windows_reused].map(count);
    line("scored", format!("{new} new windows, {reused} reused{}", kernel.unwrap_or_default()));
    for (measure, windows) in &summary.windows_not_measured {
        line("skipped", format!("{} windows rejected by guards before {measure}", count(*windows)));
    }
    for (measure, windows) in &summary.windows_not_sampled {
        line("sampled", format!("{} windows are not in the sample of {measure}", count(*windows)));
    }
    let [all, scored] = [summary.tokens_total, summary.tokens_scored].map(count);
    line("tokens", format!("{all} read, {scored} scored"));
    if summary.shard.is_none() {
        let unranked = match summary.windows_kept_not_measured {
            0 => String::new(),
            windows => format!(", including {} windows that were not measured", count(windows)),
        };
        line("kept", format!("{} samples{unranked}", count(summary.kept)));
    }
    if !summary.checks.is_empty() {
        let (all, hold) = (&summary.checks, summary.checks.iter().filter(|check| check.holds));
        line("checks", format!("{} of {} passed", hold.count(), all.len()));
    }
    for drift in moved_most(&summary.drift, MAX_GROUPS) {
        line("drift", drifted(drift));
    }
    let less = summary.drift.len().saturating_sub(MAX_GROUPS);
    if less > 0 {
        line("", format!("{} more groups with less drift, see `summary.json`", count(less as u64)));
    }
    // The report shows the time before it is made.
    let shown = |of_report: bool| {
        let times = times.iter().filter(move |(stage, _)| (*stage == "report") == of_report);
        times.map(|(stage, time)| format!("{stage} {}", seconds(*time))).collect::<Vec<_>>()
    };
    let of_run = format!("{:.1} s ({})", summary.seconds, shown(false).join(", "));
    line("time", [vec![of_run], shown(true)].concat().join(", then "));
    if let Some(peak) = summary.peak_memory_bytes {
        let phases = summary.phases_by_memory();
        let each: Vec<String> =
            phases.iter().map(|(phase, max)| format!("{phase} {}", bytes(*max))).collect();
        let each = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
        line("memory", format!("peak {}{each}", bytes(peak)));
    }
    if let Some(table) = &summary.table {
        let read = if table.from_cache {
            "from the cache".to_owned()
        } else {
            format!("{} of the checkpoint read", bytes(table.checkpoint_bytes_read))
        };
        let [used, all] = [table.bytes_used, table.bytes].map(bytes);
        line("table", format!("{used} of {all} used, {} rows; {read}", count(table.rows_used)));
    }
    if let Some(devices) = &summary.devices {
        for device in &devices.list {
            line("device", device_line(device, summary.seconds));
        }
        // Every device becomes ready once.
        let steps = devices.steps.iter().filter(|(step, _)| *step != "device_ready");
        let steps: Vec<String> =
            steps.map(|(step, number)| format!("{} {step}", count(*number))).collect();
        if !steps.is_empty() {
            line("steps", steps.join(", "));
        }
    }
    if let Some(labels) = labels {
        let _ = write!(text, "{labels}");
    }
    text
}

fn device_line(device: &DeviceWork, seconds: f64) -> String {
    let mut text = format!(
        "{}: {} work items, {} tokens, {:.0} % busy, at most {} reserved",
        device.name,
        count(device.pieces),
        count(device.tokens),
        100.0 * device.busy_seconds / seconds.max(1e-3),
        bytes(device.most_reserved_bytes)
    );
    if let Some(reason) = &device.retired {
        let _ = write!(text, "; retired: {reason}");
    }
    text
}

fn drifted(drift: &GroupDrift) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let shifts: Vec<String> =
        drift.shifts.iter().map(|(statistic, shift)| format!("{statistic} {shift:+.2}")).collect();
    format!(
        "{}{} pass the guards and have a score: {} kept, {} when calibrated; stability index {}; shifts in standard deviations: {}",
        drift.value.as_ref().map_or(String::new(), |value| format!("{}: ", quoted_value(value))),
        count(drift.count),
        percent(drift.kept_fraction),
        percent(drift.calibrated_kept_fraction),
        drift.stability_index.map_or("unknown".to_owned(), |index| format!("{index:.3}")),
        shifts.join(", "),
    )
}

pub(super) fn equation(
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

/// Kept shares by label, compared with the share kept overall.
impl fmt::Display for LabelTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = |count: fn(&LabelCounts) -> u64| -> u64 {
            self.shares.iter().map(|(_, counts)| count(counts)).sum()
        };
        let percent = |kept: u64, all: u64| 100.0 * kept as f64 / all.max(1) as f64;
        let overall = percent(total(|counts| counts.kept), total(|counts| counts.samples));
        let name = |label: &Option<String>| {
            label.as_deref().map_or_else(|| "(null)".to_owned(), value_name)
        };
        let column = line_safe(self.column);
        let mut shares: Vec<_> = self.shares.iter().collect();
        let less = shares.len().saturating_sub(MAX_LABELS);
        if less > 0 {
            shares.sort_by_key(|(_, counts)| Reverse(counts.samples));
            shares.truncate(MAX_LABELS);
        }
        let names = shares.iter().map(|(label, _)| name(label).chars().count());
        let width = names.max().unwrap_or(0).max(column.chars().count());
        let compared = self.compared.iter().map(|name| format!("  {name:>7}"));
        let compared: String = compared.collect();
        writeln!(
            f,
            "\n  {column:<width$}  samples     kept   share  {:<29}{compared}",
            format!("compared with {overall:.1} % overall")
        )?;
        for (label, LabelCounts { samples, kept, compared }) in shares {
            let share = percent(*kept, *samples);
            // Without a sign of zero.
            let points = (10.0 * (share - overall)).round() / 10.0 + 0.0;
            let points = format!("{points:+.1} points");
            write!(
                f,
                "  {:<width$}  {:>7}  {:>7}  {share:>5.1} %  {points:<29}",
                name(label),
                count(*samples),
                count(*kept),
            )?;
            for (kept, name) in compared.iter().zip(&self.compared) {
                let share = format!("{:.1} %", percent(*kept, *samples));
                write!(f, "  {share:>width$}", width = name.len().max(7))?;
            }
            writeln!(f)?;
        }
        if less > 0 {
            writeln!(f, "  {} more labels with fewer samples", count(less as u64))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_thousands_separators() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
        assert_eq!(bytes(1_310_000_000), "1.31 GB");
    }

    #[test]
    fn labels_with_the_most_samples_are_listed() {
        let of = |label: u64| {
            (Some(format!("label {label}")), LabelCounts { samples: label, ..Default::default() })
        };
        let shares: LabelShares = (0..1060).map(of).collect();
        let table = LabelTable { column: "source", compared: Vec::new(), shares: &shares };
        let text = table.to_string();
        assert_eq!(text.matches("label ").count(), MAX_LABELS, "{text}");
        assert!(text.contains("label 1059") && !text.contains("label 1009 "), "{text}");
        assert!(text.ends_with("  1,010 more labels with fewer samples\n"), "{text}");
    }

    #[test]
    fn summary_with_a_lost_row_or_window_is_refused() {
        let mut summary = Summary::new("done", "/run".to_owned());
        (summary.rows_in, summary.rows_kept) = (2, 1);
        assert!(summary.check().unwrap_err().contains("2 rows were read"));
        summary.quarantined = 1;
        assert_eq!(summary.check(), Ok(()));
        summary.windows_total = 1;
        assert!(summary.check().unwrap_err().contains("1 windows were cut"));
    }
}
