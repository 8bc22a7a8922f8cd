//! `longsift bench`: what this machine does, measured now, as a table, JSON and a chart.
//!
//! Kernels need nothing; tokenization, the table and whole runs are measured with a pipeline. Whole runs are child
//! processes of this program, so that their memory and their threads are their own.

mod chart;
mod kernels;
mod runs;
mod stages;

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::report::count;
use crate::spec::Overrides;

pub use chart::draw;

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The pipeline whose tokenizer, model and runs are measured; none for kernels alone.
    pub pipeline: Option<PathBuf>,
    /// What the command line changes in it.
    pub overrides: Overrides,
    /// Window lengths, in tokens.
    pub windows: Vec<usize>,
    /// Widths of a head.
    pub head_dims: Vec<usize>,
    /// Times each figure is measured; the median is reported.
    pub repeats: usize,
}

impl BenchOptions {
    /// A length or a width that cannot be measured.
    pub fn problem(&self) -> Option<Diagnostic> {
        let wrong = |name: &str, values: &[usize], most: usize| {
            let wrong = values.iter().find(|value| !(1..=most).contains(*value))?;
            let message =
                format!("`{name}` {wrong} is not a number between 1 and {}", count(most as u64));
            Some(Diagnostic::error(Blame::Pipeline, message))
        };
        wrong("--windows", &self.windows, 1 << 20)
            .or_else(|| wrong("--head-dims", &self.head_dims, 1024))
    }
}

/// One measured figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured: `kernel`, `tokenize`, `table`, `run by window`, ….
    pub group: &'static str,
    /// The line it belongs to: a kernel, a tokenizer, `1 thread`.
    pub series: String,
    /// Where on the line it is, and the unit of that: 8,192 tokens.
    pub at: f64,
    /// `tokens`, `threads`, `documents`, ….
    pub at_unit: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit: `pairs/s`, `MB/s`, `s`, `bytes`.
    pub unit: &'static str,
}

/// Everything that was measured, in order.
#[derive(Clone, Debug, Serialize)]
pub struct Bench {
    /// The processor's name, where the system tells.
    pub processor: Option<String>,
    /// Threads that the process may use.
    pub threads: usize,
    /// Version of longsift.
    pub longsift: &'static str,
    /// When, UTC.
    pub measured: String,
    /// Times each figure was measured.
    pub repeats: usize,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// Measures. `said` hears of every figure as soon as it is known.
///
/// # Errors
/// A pipeline that cannot be planned, or a run of it that fails.
pub fn bench(options: &BenchOptions, said: &dyn Fn(&Figure)) -> Result<Bench> {
    let mut figures = Figures { all: Vec::new(), said };
    kernels::measure(options, &mut figures);
    if let Some(pipeline) = &options.pipeline {
        stages::measure(pipeline, options, &mut figures)?;
        runs::measure(pipeline, options, &mut figures)?;
    }
    Ok(Bench {
        processor: processor(),
        threads: rayon::current_num_threads(),
        longsift: env!("CARGO_PKG_VERSION"),
        measured: crate::clock::now_utc(),
        repeats: options.repeats,
        figures: figures.all,
    })
}

/// The figures so far.
struct Figures<'a> {
    all: Vec<Figure>,
    said: &'a dyn Fn(&Figure),
}

impl Figures<'_> {
    fn add(&mut self, figure: Figure) {
        (self.said)(&figure);
        self.all.push(figure);
    }
}

/// The median of `repeats` measurements.
fn median(repeats: usize, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut values = (0..repeats.max(1)).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}

fn processor() -> Option<String> {
    let text = crate::files::read_system("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<18} {:<24} {:>12} {:<10} {:>12}",
            self.group,
            self.series,
            count(self.at as u64),
            self.at_unit,
            shown(self.value, self.unit)
        )
    }
}

/// A figure with three digits and its unit: `1.42 Gpairs/s`, `3.90 MB/s`, `27.8 MB`.
fn shown(value: f64, unit: &str) -> String {
    let (base, per) = unit.split_once('/').map_or((unit, ""), |(base, _)| (base, "/s"));
    if base == "s" {
        return format!("{value:.3} s");
    }
    let base = if base == "bytes" { "B" } else { base };
    let step = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (factor, prefix) =
        step.into_iter().find(|(factor, _)| value.abs() >= *factor).unwrap_or((1.0, ""));
    let value = value / factor;
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {prefix}{base}{per}")
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let _ = writeln!(
            text,
            "longsift {} on {processor}, {} threads, {}; medians of {}",
            self.longsift, self.threads, self.measured, self.repeats
        );
        for figure in &self.figures {
            let _ = writeln!(text, "{figure}");
        }
        f.write_str(&text)
    }
}

/// The folder beside which a pipeline's paths are relative.
fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "pipeline".to_owned(), |stem| stem.to_string_lossy().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_prefix() {
        assert_eq!(shown(1.423e9, "pairs/s"), "1.42 Gpairs/s");
        assert_eq!(shown(27_800_000.0, "bytes"), "27.8 MB");
        assert_eq!(shown(5_120_000.0, "bytes/s"), "5.12 MB/s");
        assert_eq!(shown(0.0123, "s"), "0.012 s");
        assert_eq!(shown(12.0, "tokens/s"), "12.0 tokens/s");
    }

    #[test]
    fn the_median_is_the_one_in_the_middle() {
        let mut values = [3.0, 1.0, 2.0].into_iter();
        assert!((median(3, || Ok(values.next().unwrap())).unwrap() - 2.0).abs() < 1e-12);
    }
}
