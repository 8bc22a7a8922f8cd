//! `longsift bench`: what this machine does, measured now, as a table, JSON and a chart.
//!
//! Kernels need nothing; tokenization, the table and whole runs are measured with a pipeline. Whole runs are child
//! processes of this program, so that their memory and their threads are their own.

pub(crate) mod chart;
pub(crate) mod figures;
pub(crate) mod kernels;
pub(crate) mod runs;
pub(crate) mod stages;

use std::fmt::{self, Write};

use serde::Serialize;

use crate::base::error::Result;
use crate::base::progress::Progress;
use figures::{BenchOptions, Figure, Figures};

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
    /// Times each figure was measured, at most: long windows of kernels are measured fewer times.
    pub repeats: usize,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Windows of kernels that were not measured because they take too long, and how long.
    pub left_out: Vec<String>,
}

/// Measures. `said` hears of every figure as soon as it is known, while no bar is on the terminal.
///
/// # Errors
/// A pipeline that cannot be planned, or a run of it that fails.
pub fn bench(options: &BenchOptions, progress: &Progress, said: &dyn Fn(&Figure)) -> Result<Bench> {
    let said = |figure: &Figure| progress.beside(|| said(figure));
    let mut figures = Figures { all: Vec::new(), said: &said, progress, left_out: Vec::new() };
    kernels::measure(options, &mut figures);
    if let Some(pipeline) = &options.pipeline {
        stages::measure(pipeline, options, &mut figures)?;
        runs::measure(pipeline, options, &mut figures)?;
    }
    progress.finish();
    Ok(Bench {
        processor: processor(),
        threads: rayon::current_num_threads(),
        longsift: env!("CARGO_PKG_VERSION"),
        measured: crate::base::clock::now_utc(),
        repeats: options.repeats(),
        figures: figures.all,
        left_out: figures.left_out,
    })
}

fn processor() -> Option<String> {
    let text = crate::base::machine::read_system("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let _ = writeln!(
            text,
            "longsift {} on {processor}, {} threads, {}; medians of up to {}",
            self.longsift, self.threads, self.measured, self.repeats
        );
        for figure in &self.figures {
            let _ = writeln!(text, "{figure}");
        }
        for case in &self.left_out {
            let _ = writeln!(text, "left out: {case}");
        }
        f.write_str(&text)
    }
}
