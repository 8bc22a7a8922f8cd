//! `longsift status --watch`: progress, speed and remaining time of a run, until it ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answer;
use crate::base::error::Result;
use crate::base::text::{count, json_safe};
use crate::cli::{AnswerFormat, StatusArguments};
use crate::report::status::{self, Status};
use crate::run_directory::layout::RunDirectory;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    windows_per_second: f64,
    seconds_left: Option<f64>,
}

/// Prints one line per poll until no process works in the directory. Only completed work units count for the speed.
pub(super) fn watch(arguments: &StatusArguments) -> Result<u8> {
    let directory = RunDirectory::open(&arguments.run_dir)?;
    let mut first = None;
    answer::watch(arguments.seconds, arguments.count, || {
        let now = status::read(&directory)?;
        let (first, since) = first.get_or_insert_with(|| (now.clone(), Instant::now()));
        let pace = pace(first, &now, since.elapsed());
        let line = match arguments.format {
            AnswerFormat::Text => line(&now, pace),
            AnswerFormat::Json => json_safe(&json_of(&now, pace).to_string()),
        };
        Ok((line + "\n", now.state != "running"))
    })
}

fn pace(first: &Status, now: &Status, passed: Duration) -> Option<Pace> {
    let seconds = passed.as_secs_f64();
    let rows = now.counts.rows.checked_sub(first.counts.rows).filter(|rows| *rows > 0)?;
    let windows = now.counts.windows.saturating_sub(first.counts.windows);
    let left = now.rows.and_then(|all| all.checked_sub(now.counts.rows));
    Some(Pace {
        windows_per_second: windows as f64 / seconds,
        seconds_left: left.map(|left| left as f64 * seconds / rows as f64),
    })
}

fn line(now: &Status, pace: Option<Pace>) -> String {
    let of = |total: Option<u64>| total.map_or("?".to_owned(), count);
    let pace = pace.map_or_else(String::new, |pace| {
        let left = pace.seconds_left.map_or_else(String::new, |seconds| {
            let left = Duration::from_secs(seconds as u64);
            format!(", {} left", indicatif::HumanDuration(left))
        });
        format!(", {:.1} windows/s{left}", pace.windows_per_second)
    });
    format!(
        "{}: {} of {} units, {} of {} rows, {} windows{pace}",
        now.state,
        count(now.units_scored),
        of(now.units),
        count(now.counts.rows),
        of(now.rows),
        count(now.counts.windows)
    )
}

fn json_of(now: &Status, pace: Option<Pace>) -> Value {
    let mut json = serde_json::to_value(now).expect("plain data");
    json["windows_per_second"] = json!(pace.map(|pace| pace.windows_per_second));
    json["seconds_left"] = json!(pace.and_then(|pace| pace.seconds_left));
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::counts::Counts;

    fn status(units: u64, rows: u64, windows: u64) -> Status {
        Status {
            state: "running",
            error: None,
            holder: None,
            units_scored: units,
            units_open: 0,
            units: Some(40),
            rows: Some(1000),
            counts: Counts { rows, windows, ..Counts::default() },
            summary: None,
        }
    }

    #[test]
    fn pace_is_measured_between_two_polls() {
        let first = status(2, 100, 300);
        assert_eq!(pace(&first, &first, Duration::from_secs(5)), None, "no progress");
        let now = status(5, 250, 750);
        let found = pace(&first, &now, Duration::from_secs(10));
        assert_eq!(found, Some(Pace { windows_per_second: 45.0, seconds_left: Some(50.0) }));
        assert_eq!(
            line(&now, found),
            "running: 5 of 40 units, 250 of 1,000 rows, 750 windows, 45.0 windows/s, 50 seconds left"
        );
        assert_eq!(line(&first, None), "running: 2 of 40 units, 100 of 1,000 rows, 300 windows");
        assert_eq!(json_of(&now, found)["seconds_left"], 50.0);
    }
}
