//! Metrics of a run for Prometheus' textfile collector (`--metrics-textfile`): a job started by cron cannot be scraped.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::base::clock;
use crate::base::error::Result;
use crate::base::progress::ProgressSnapshot;
use crate::run_directory::summary::Summary;
use crate::storage::files;
use crate::storage::marked::{self, Mark};

/// Prefix of all metrics.
const PREFIX: &str = "longsift_";

/// Metric that is kept after a failed run: the time of the last success.
const LAST_SUCCESS: &str = "last_success_timestamp_seconds";

/// Prefix of the metrics of a running pipeline.
const RUNNING: &str = "running";

/// Writes the progress of a run of `pipeline` to the file at `path`, and keeps the metrics of the last run.
pub fn write_running(path: &Path, pipeline: &str, snapshot: ProgressSnapshot) -> Result<()> {
    let before = files::read_if_present(path)?.unwrap_or_default();
    let text = running(pipeline, snapshot, &String::from_utf8_lossy(&before));
    marked::write(path, Mark::METRICS, text.as_bytes())
}

fn running(pipeline: &str, snapshot: ProgressSnapshot, before: &str) -> String {
    let of_last = |line: &&str| {
        let line = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
        !line.strip_prefix(PREFIX).is_some_and(|name| name.starts_with(RUNNING))
    };
    let mut text = String::new();
    for line in before.lines().filter(of_last) {
        let _ = writeln!(text, "{line}");
    }
    let labels = vec![("pipeline", pipeline.to_owned()), ("phase", snapshot.phase.to_owned())];
    let mut page = MetricsPage { labels, text };
    page.metric(RUNNING, "1 while a run is under way, with its phase.", 1);
    page.labels.truncate(1);
    for (name, help, value) in [
        ("phase_share", "Completed share of the phase.", snapshot.share),
        ("windows", "Windows measured so far.", snapshot.windows as f64),
        ("tokens", "Tokens of the windows measured so far.", snapshot.tokens as f64),
    ] {
        page.metric(&format!("{RUNNING}_{name}"), help, value);
    }
    page.text
}

/// Writes the metrics of a finished run of `pipeline`. After a failure the time of the last success is kept.
pub fn write(path: &Path, pipeline: &str, summary: &Summary) -> Result<()> {
    let before = files::read_if_present(path)?.unwrap_or_default();
    let text = text(pipeline, summary, clock::seconds(), &String::from_utf8_lossy(&before));
    marked::write(path, Mark::METRICS, text.as_bytes())
}

fn text(pipeline: &str, summary: &Summary, now: u64, before: &str) -> String {
    let mut labels = vec![("pipeline", pipeline.to_owned())];
    if let Some(shard) = &summary.shard {
        labels.push(("shard", format!("{}/{}", shard.index, shard.count)));
    }
    let mut page = MetricsPage { labels, text: String::new() };
    page.metric(RUNNING, "1 while a run is under way, with its phase.", 0);
    page.metric("exit_code", "Exit code of the last run.", summary.exit_code);
    page.metric("finished_timestamp_seconds", "Time at which the last run ended.", now);
    let success = match summary.status.as_str() {
        "failed" | "stopped" => before.lines().find_map(|line| {
            line.strip_prefix(PREFIX)?.strip_prefix(LAST_SUCCESS)?.rsplit_once("} ")?.1.parse().ok()
        }),
        _ => Some(now),
    };
    if let Some(success) = success {
        page.metric(LAST_SUCCESS, "Time at which a run last succeeded.", success);
    }
    page.metric("duration_seconds", "Wall-clock time of the last run.", summary.seconds);
    page.outcomes(
        "rows",
        "Input rows of the last run by outcome.",
        &[("kept", summary.rows_kept), ("quarantined", summary.quarantined)],
        &summary.rows_dropped,
    );
    page.outcomes(
        "windows",
        "Windows of the last run by outcome.",
        &[("kept", summary.windows_kept)],
        &summary.windows_dropped,
    );
    page.metric("samples", "Kept samples in the output.", summary.samples_written());
    page.metric("windows_scored", "Windows measured by the last run.", summary.windows_scored);
    page.metric("tokens_scored", "Tokens of all scored windows.", summary.tokens_scored);
    if let Some(bytes) = summary.peak_memory_bytes {
        page.metric("peak_memory_bytes", "Largest resident memory of the last run.", bytes);
    }
    page.text
}

/// Metrics in the text format, all with the same labels.
struct MetricsPage {
    labels: Vec<(&'static str, String)>,
    text: String,
}

impl MetricsPage {
    fn metric(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.describe(name, help);
        self.value(name, &[], value);
    }

    fn describe(&mut self, name: &str, help: &str) {
        let _ = write!(self.text, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} gauge\n");
    }

    fn value(&mut self, name: &str, more: &[(&str, &str)], value: impl std::fmt::Display) {
        let own = self.labels.iter().map(|(name, value)| (*name, value.as_str()));
        let all: Vec<String> = own
            .chain(more.iter().copied())
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let _ = writeln!(self.text, "{PREFIX}{name}{{{}}} {value}", all.join(","));
    }

    fn outcomes(
        &mut self,
        name: &str,
        help: &str,
        outcomes: &[(&str, u64)],
        dropped: &BTreeMap<String, u64>,
    ) {
        self.describe(name, help);
        for (outcome, count) in outcomes {
            self.value(name, &[("fate", outcome)], count);
        }
        for (reason, count) in dropped {
            self.value(name, &[("fate", "dropped"), ("reason", reason)], count);
        }
    }
}

/// Escapes a label value: backslash, quote and line break.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(status: &str) -> Summary {
        let mut summary = Summary::new(status, "/run".to_owned());
        (summary.rows_in, summary.rows_kept, summary.quarantined) = (10, 6, 1);
        summary.rows_dropped.insert("not_selected".to_owned(), 3);
        summary.seconds = 1.5;
        summary
    }

    #[test]
    fn every_outcome_is_a_series() {
        let text = text("web \"a\\b\"", &summary("done"), 100, "");
        for line in [
            r#"longsift_exit_code{pipeline="web \"a\\b\""} 0"#,
            r#"longsift_rows{pipeline="web \"a\\b\"",fate="kept"} 6"#,
            r#"longsift_rows{pipeline="web \"a\\b\"",fate="dropped",reason="not_selected"} 3"#,
            r#"longsift_duration_seconds{pipeline="web \"a\\b\""} 1.5"#,
            r#"longsift_last_success_timestamp_seconds{pipeline="web \"a\\b\""} 100"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let all = types.len();
        types.dedup();
        assert_eq!(types.len(), all, "each metric is declared once");
    }

    #[test]
    fn metrics_of_a_running_pipeline_keep_those_of_the_last_run() {
        let last = text("web", &summary("done"), 100, "");
        let snapshot = ProgressSnapshot { phase: "score", share: 0.25, windows: 3, tokens: 96 };
        let first = running("web", snapshot, &last);
        let now = running("web", ProgressSnapshot { windows: 5, ..snapshot }, &first);
        for line in [
            r#"longsift_running{pipeline="web",phase="score"} 1"#,
            r#"longsift_running_phase_share{pipeline="web"} 0.25"#,
            r#"longsift_running_windows{pipeline="web"} 5"#,
            r#"longsift_rows{pipeline="web",fate="kept"} 6"#,
        ] {
            assert_eq!(now.lines().filter(|found| *found == line).count(), 1, "{line} in\n{now}");
        }
        assert_eq!(
            now.lines().count(),
            first.lines().count(),
            "metrics of a running pipeline are replaced"
        );
        let ended = text("web", &summary("done"), 200, &now);
        assert!(ended.contains("longsift_running{pipeline=\"web\"} 0\n"), "{ended}");
        assert!(!ended.contains("longsift_running_windows"), "{ended}");
    }

    #[test]
    fn a_failure_keeps_the_time_of_the_last_success() {
        let good = text("web", &summary("done"), 100, "");
        let mut failed = summary("failed");
        failed.exit_code = 4;
        let bad = text("web", &failed, 200, &good);
        let again = text("web", &failed, 300, &bad);
        assert!(again.contains("longsift_exit_code{pipeline=\"web\"} 4\n"));
        assert!(again.contains("longsift_finished_timestamp_seconds{pipeline=\"web\"} 300\n"));
        assert!(again.contains("longsift_last_success_timestamp_seconds{pipeline=\"web\"} 100\n"));
        assert!(!text("web", &failed, 1, "").contains(LAST_SUCCESS), "no run has succeeded");
    }
}
