//! What is measured, and how a figure reads.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::text::count;
use crate::spec::Overrides;

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
    /// Times each figure is measured; the median is reported. Without it at most [`MOST_REPEATS`] times, and kernels only
    /// as often as a minute allows.
    pub repeats: Option<usize>,
    /// Whether kernels that no run of this machine would choose are measured too.
    pub all_kernels: bool,
}

/// Times a figure is measured where nobody says how often.
pub(super) const MOST_REPEATS: usize = 3;

impl BenchOptions {
    /// Times a figure is measured that takes as long as it takes.
    pub(super) fn repeats(&self) -> usize {
        self.repeats.unwrap_or(MOST_REPEATS)
    }

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
    /// Its unit: `pairs/s`, `bytes/s`, `s`, `bytes`, `%`.
    pub unit: &'static str,
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

/// The figures so far.
pub(super) struct Figures<'a> {
    pub(super) all: Vec<Figure>,
    pub(super) said: &'a dyn Fn(&Figure),
    pub(super) progress: &'a Progress,
    /// What was not measured, and why.
    pub(super) left_out: Vec<String>,
}

impl Figures<'_> {
    pub(super) fn add(&mut self, figure: Figure) {
        (self.said)(&figure);
        self.all.push(figure);
    }
}

/// The median of `repeats` measurements.
pub(super) fn median(repeats: usize, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut values = (0..repeats.max(1)).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    Ok(values[values.len() / 2])
}

/// A figure with three digits and its unit: `1.42 Gpairs/s`, `3.90 MB/s`, `27.8 MB`.
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
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {prefix}{base}{per}")
}

/// The folder beside which a pipeline's paths are relative.
pub(super) fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "pipeline".to_owned(), |stem| stem.to_string_lossy().into())
}

/// A folder that is removed when it goes out of scope.
pub(super) fn scratch() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("longsift-bench-").tempdir().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("no temporary folder can be made: {error}"))
            .hint("set TMPDIR to a folder that you may write to")
            .into()
    })
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
