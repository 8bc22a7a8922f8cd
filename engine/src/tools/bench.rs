//! `longsift bench`: measures this machine and reports a table, JSON and a chart.
//!
//! Kernels are measured without a pipeline; tokenization, the table and whole runs with one. Whole runs are child
//! processes, so that their memory and threads are separate.

pub(crate) mod chart;
pub(crate) mod kernels;
pub(crate) mod measurements;
mod pipeline;

use std::fmt;

use serde::Serialize;

use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::devices::survey::processor;
use crate::plan::options::PlanOptions;
use measurements::{BenchOptions, Measurement, Measurements};

#[derive(Clone, Debug, Serialize)]
pub struct Bench {
    pub processor: Option<String>,
    pub threads: usize,
    pub longsift: &'static str,
    pub measured: String,
    /// Maximum repetitions of each measurement; kernels repeat long windows less often.
    pub repeats: usize,
    #[serde(rename = "figures")]
    pub measurements: Vec<Measurement>,
    /// Kernel windows that would have taken too long, with estimates.
    pub left_out: Vec<String>,
}

/// Runs the benchmarks. Calls `on_result` for each result as soon as it is known, with progress bars suspended.
pub fn bench(
    options: &BenchOptions,
    progress: &Progress,
    on_result: &dyn Fn(&Measurement),
) -> Result<Bench> {
    let on_result = |measurement: &Measurement| progress.suspend(|| on_result(measurement));
    let (all, left_out) = (Vec::new(), Vec::new());
    let mut measurements = Measurements { options, all, on_result: &on_result, progress, left_out };
    // Planned first, so that mistakes in the pipeline are reported before kernels are measured for minutes.
    let planned = options.pipeline.as_deref().map(|pipeline| -> Result<_> {
        let plan = crate::plan(pipeline, &options.overrides, PlanOptions::default())?;
        Ok((pipeline, plan))
    });
    let planned = planned.transpose()?;
    kernels::measure(&mut measurements);
    if let Some((path, plan)) = planned {
        pipeline::measure_stages(&plan, &mut measurements)?;
        pipeline::measure_runs(plan, path, &mut measurements)?;
    }
    progress.finish();
    Ok(Bench {
        processor: processor(),
        threads: rayon::current_num_threads(),
        longsift: env!("CARGO_PKG_VERSION"),
        measured: crate::base::clock::now_utc(),
        repeats: options.repeats(),
        measurements: measurements.all,
        left_out: measurements.left_out,
    })
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        writeln!(
            f,
            "longsift {} on {processor}, {} threads, {}; medians of up to {}",
            self.longsift, self.threads, self.measured, self.repeats
        )?;
        self.measurements.iter().try_for_each(|measurement| writeln!(f, "{measurement}"))?;
        self.left_out.iter().try_for_each(|case| writeln!(f, "skipped: {case}"))
    }
}
