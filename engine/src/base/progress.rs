//! Progress of a run: bars on a terminal, occasional log lines elsewhere; and the time per stage.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::counts::Counts;
use super::machine::take_peak_bytes;
use super::parallel::lock;
use super::text::count;

const LOG_INTERVAL: Duration = Duration::from_secs(15);

pub struct Progress {
    rows: MultiProgress,
    bar: ProgressBar,
    devices: Mutex<Vec<ProgressBar>>,
    on_terminal: bool,
    phase: Mutex<&'static str>,
    windows: AtomicU64,
    tokens: AtomicU64,
    /// Counts of the units that have a record.
    counts: Mutex<Counts>,
    started: Mutex<Instant>,
    logged: Mutex<Instant>,
    times: Mutex<Vec<(&'static str, Duration)>>,
    peaks: Mutex<Vec<(&'static str, u64)>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressSnapshot {
    /// Current phase: `plan` at first, then `table`, `score`, `select`, `write`.
    pub phase: &'static str,
    /// Finished share of the phase, 0 to 1.
    pub share: f64,
    pub windows: u64,
    pub tokens: u64,
}

impl Progress {
    /// Shows bars if `on_terminal`, otherwise writes log lines.
    pub fn new(on_terminal: bool) -> Self {
        let target =
            if on_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let now = Instant::now();
        let rows = MultiProgress::with_draw_target(target);
        let bar = ProgressBar::no_length().with_style(style()).with_prefix("plan");
        Self {
            bar: rows.add(bar),
            rows,
            devices: Mutex::new(Vec::new()),
            on_terminal,
            phase: Mutex::new("plan"),
            windows: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            counts: Mutex::new(Counts::default()),
            started: Mutex::new(now),
            logged: Mutex::new(now),
            times: Mutex::new(Vec::new()),
            peaks: Mutex::new(Vec::new()),
        }
    }

    pub fn phase(&self, name: &'static str, total: u64) {
        for row in lock(&self.devices).drain(..) {
            row.finish_and_clear();
        }
        self.bar.reset();
        self.bar.set_length(total.max(1));
        self.bar.set_prefix(name);
        self.note_peak();
        *lock(&self.phase) = name;
        *lock(&self.started) = Instant::now();
        tracing::debug!(phase = name, total, "phase begins");
    }

    fn note_peak(&self) {
        let Some(bytes) = take_peak_bytes() else { return };
        let phase = *lock(&self.phase);
        let mut peaks = lock(&self.peaks);
        let peak = entry(&mut peaks, phase);
        *peak = bytes.max(*peak);
    }

    /// Returns the peak memory of each phase so far in bytes, in order, beginning with `plan`.
    pub fn peaks(&self) -> Vec<(&'static str, u64)> {
        self.note_peak();
        lock(&self.peaks).clone()
    }

    /// Adds measured windows. Advances the bar by `tokens`.
    pub fn windows_done(&self, windows: u64, tokens: u64) {
        let windows = self.windows.fetch_add(windows, Ordering::Relaxed) + windows;
        let tokens_done = self.tokens.fetch_add(tokens, Ordering::Relaxed) + tokens;
        let seconds = lock(&self.started).elapsed().as_secs_f64().max(1e-3);
        let rates = format!(
            "{} windows, {:.1} windows/s, {} tokens/s",
            count(windows),
            windows as f64 / seconds,
            count((tokens_done as f64 / seconds) as u64)
        );
        // The total is an estimate: a phase that goes on is not shown as finished.
        let done = self.bar.position() + tokens;
        if self.bar.length().is_some_and(|total| total < done) {
            self.bar.set_length(done + done / 64 + 1);
        }
        self.bar.inc(tokens);
        self.bar.set_message(rates.clone());
        let mut logged = lock(&self.logged);
        if !self.on_terminal && logged.elapsed() >= LOG_INTERVAL {
            *logged = Instant::now();
            tracing::info!(windows, tokens = tokens_done, "scoring: {rates}");
        }
    }

    pub fn unit_done(&self, unit: &str, file: &str, counts: &Counts) {
        self.add_counts(counts);
        let (rows, windows, quarantined) = (counts.rows, counts.windows, counts.quarantined_rows());
        tracing::debug!(unit, file, rows, windows, quarantined, "unit scored");
    }

    pub fn unit_reused(&self, unit: &str, file: &str, counts: &Counts) {
        self.add_counts(counts);
        self.bar.inc(counts.tokens_scored);
        tracing::debug!(unit, file, windows = counts.windows, "unit reused");
    }

    pub fn add_counts(&self, counts: &Counts) {
        lock(&self.counts).add(counts);
    }

    pub fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    pub fn device(&self, index: usize, text: &str) {
        if !self.on_terminal {
            return;
        }
        let mut devices = lock(&self.devices);
        while devices.len() <= index {
            let style = ProgressStyle::with_template("       {msg}").expect("a constant template");
            devices.push(self.rows.add(ProgressBar::no_length().with_style(style)));
        }
        devices[index].set_message(text.to_owned());
    }

    /// Hides the bars while `print` runs.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.rows.suspend(print);
    }

    pub fn steps(&self, count: u64) {
        self.bar.inc(count);
    }

    pub fn reached(&self, steps: u64) {
        self.bar.set_position(steps);
    }

    pub fn took(&self, stage: &'static str, time: Duration) {
        *entry(&mut lock(&self.times), stage) += time;
    }

    pub fn timed<T>(&self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        self.took(stage, started.elapsed());
        result
    }

    pub fn snapshot(&self) -> ProgressSnapshot {
        let (position, length) = (self.bar.position(), self.bar.length());
        ProgressSnapshot {
            phase: *lock(&self.phase),
            share: length.map_or(0.0, |length| (position as f64 / length.max(1) as f64).min(1.0)),
            windows: self.windows.load(Ordering::Relaxed),
            tokens: self.tokens.load(Ordering::Relaxed),
        }
    }

    /// Returns the time by stage, in the order in which stages first ran.
    pub fn times(&self) -> Vec<(&'static str, Duration)> {
        lock(&self.times).clone()
    }

    pub fn finish(&self) {
        for row in lock(&self.devices).drain(..) {
            row.finish_and_clear();
        }
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{prefix:>6} {wide_bar} {percent:>3} %  {msg}  {eta} left")
        .expect("a constant template")
}

/// Returns the value of a name, appending it if it is missing.
fn entry<'l, T: Default>(list: &'l mut Vec<(&'static str, T)>, name: &'static str) -> &'l mut T {
    let index = list.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
        list.push((name, T::default()));
        list.len() - 1
    });
    &mut list[index].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_restarts_with_each_phase() {
        let progress = Progress::new(false);
        progress.phase("table", 256);
        progress.reached(64);
        assert_eq!((progress.bar.position(), progress.bar.length()), (64, Some(256)));
        progress.phase("write", 2);
        progress.steps(1);
        assert_eq!((progress.bar.position(), progress.bar.length()), (1, Some(2)));
        let snapshot = ProgressSnapshot { phase: "write", share: 0.5, windows: 0, tokens: 0 };
        assert_eq!(progress.snapshot(), snapshot);
    }
}
