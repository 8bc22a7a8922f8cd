//! Benchmark options and results.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::text::count;
use crate::spec::Overrides;

/// Benchmark options.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchOptions {
    /// Pipeline to measure as well: its tokenization, its table, and whole runs into a temporary folder.
    pub pipeline: Option<PathBuf>,
    #[command(flatten)]
    pub overrides: Overrides,
    /// Window lengths in tokens. Whole runs skip lengths beyond the model's trained context.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [4096, 8192, 16_384, 32_768])]
    pub windows: Vec<usize>,
    /// Head widths.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [64, 128])]
    pub head_dims: Vec<usize>,
    /// Repetitions of each measurement; the median is shown. By default three, and fewer for long windows, so
    /// that kernels take less than a minute.
    #[arg(long, value_name = "N")]
    pub repeats: Option<usize>,
    /// Measure every kernel that this processor supports, not only those that a run would select. Takes many minutes.
    #[arg(long)]
    pub all_kernels: bool,
}

pub(super) const DEFAULT_REPEATS: usize = 3;

impl BenchOptions {
    /// Returns the number of repetitions of a measurement without a time budget.
    pub(super) fn repeats(&self) -> usize {
        self.repeats.unwrap_or(DEFAULT_REPEATS)
    }

    pub fn problem(&self) -> Option<Diagnostic> {
        let wrong = |name: &str, values: &[usize], max: usize| {
            let wrong = values.iter().find(|value| !(1..=max).contains(*value))?;
            let max = count(max as u64);
            let message = format!("`{name}`: expected a number between 1 and {max}, got {wrong}");
            Some(Diagnostic::error(Blame::Pipeline, message))
        };
        wrong("--windows", &self.windows, 1 << 20)
            .or_else(|| wrong("--head-dims", &self.head_dims, 1024))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Kind of measurement: `kernel`, `tokenize`, `table`, `run by window`, ….
    pub group: &'static str,
    /// Line of the chart: a kernel, a tokenizer, `1 thread`.
    pub series: String,
    /// Position on the x axis: 8,192 tokens.
    pub at: f64,
    pub at_unit: &'static str,
    pub value: f64,
    pub unit: &'static str,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, series, at, at_unit, value, unit } = self;
        let (at, value) = (count(*at as u64), shown(*value, unit));
        write!(f, "{group:<18} {series:<24} {at:>12} {at_unit:<10} {value:>12}")
    }
}

pub(super) struct Measurements<'a> {
    pub(super) options: &'a BenchOptions,
    pub(super) all: Vec<Measurement>,
    pub(super) on_result: &'a dyn Fn(&Measurement),
    pub(super) progress: &'a Progress,
    /// Skipped measurements, with reasons.
    pub(super) left_out: Vec<String>,
}

impl Measurements<'_> {
    pub(super) fn add(
        &mut self,
        group: &'static str,
        series: String,
        (at, at_unit): (f64, &'static str),
        value: f64,
        unit: &'static str,
    ) {
        let measurement = Measurement { group, series, at, at_unit, value, unit };
        (self.on_result)(&measurement);
        self.all.push(measurement);
    }
}

pub(super) fn median(repeats: usize, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut values = (0..repeats.max(1)).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}

/// Formats a value with three digits and its unit: `1.42 Gpairs/s`, `3.90 MB/s`, `27.8 MB`.
pub(super) fn shown(value: f64, unit: &str) -> String {
    let (base, per) = unit.split_once('/').map_or((unit, ""), |(base, _)| (base, "/s"));
    if base == "%" {
        return format!("{value:.1} %");
    }
    if base == "s" {
        return format!("{value:.3} s");
    }
    let base = if base == "bytes" { "B" } else { base };
    let step = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (factor, prefix) =
        step.into_iter().find(|(factor, _)| value.abs() >= *factor).unwrap_or((1.0, ""));
    let value = value / factor;
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {prefix}{base}{per}")
}

pub(super) fn scratch() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("longsift-bench-").tempdir().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("cannot create a temporary folder: {error}"))
            .hint("set TMPDIR to a folder that you may write to")
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_prefix() {
        assert_eq!(shown(1.423e9, "pairs/s"), "1.42 Gpairs/s");
        assert_eq!(shown(27_800_000.0, "bytes"), "27.8 MB");
        assert_eq!(shown(5_120_000.0, "bytes/s"), "5.12 MB/s");
        assert_eq!(shown(0.0123, "s"), "0.012 s");
        assert_eq!(shown(12.0, "tokens/s"), "12.0 tokens/s");
    }

    #[test]
    fn median_is_the_middle_value() {
        let mut values = [3.0, 1.0, 2.0].into_iter();
        assert!((median(3, || Ok(values.next().unwrap())).unwrap() - 2.0).abs() < 1e-12);
    }
}
