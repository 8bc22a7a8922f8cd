//! The engine of longsift: a pipeline file in, the best windows of a corpus out.
//!
//! Data moves one way, **spec → plan → execute → commit**; each arrow is a function, each noun a file:
//!
//! ```text
//! Spec::read        spec.rs      a pipeline as its author wrote it, with positions; every mistake at once
//! Plan::new         plan.rs      proven runnable: columns typed, first layer understood, work units cut
//! run::run          run.rs       what happens in a run directory, in order:
//!   execute::score  execute.rs     work units: read → tokenise → windows → statistics → scores/part-*.parquet
//!   select::select  select.rs      all windows: standardise, rank, keep → calibration.json
//!   Writer::stage   output.rs      second read of the input, kept rows only, byte-exact slices of the text
//!   commit::commit  commit.rs      all files of the selection move into place together, or not at all
//! ```
//!
//! To follow a run, start at [`plan()`] and [`run::run`]. The stages' settings and arithmetic are in `longsift-stages`, the
//! kernels in `longsift-kernels`.

pub mod accounting;
pub mod audit;
pub mod bench;
pub mod cli;
pub mod clock;
pub mod commit;
pub mod dataset;
pub mod device;
pub mod diagnostic;
pub mod dropped;
pub mod error;
pub mod events;
pub mod execute;
pub mod files;
#[cfg(feature = "cloud")]
mod http;
pub mod hub;
pub mod inspect;
pub mod lineage;
pub mod lock;
pub mod manifest;
pub mod metrics;
#[cfg(feature = "cloud")]
mod object_stores;
pub mod output;
pub mod parallel;
pub mod plan;
mod problems;
pub mod progress;
pub mod quarantine;
pub mod reference;
pub mod remote_model;
pub mod report;
pub mod run;
pub mod run_directory;
pub mod schedule;
pub mod scores;
pub mod select;
pub mod spec;
pub mod status;
pub mod stop;
mod tables;
pub mod tokens;
pub mod tune;
pub mod units;

use std::path::{Path, PathBuf};

use diagnostic::{Blame, Diagnostic};
use error::Result;
use lock::Lock;
use manifest::Manifest;
use plan::{Plan, PlanOptions};
use run_directory::RunDirectory;
use spec::{Overrides, Spec};

/// Reads a pipeline and proves it runnable; [`run::run`] does the rest. `pipeline` is a pipeline file, or a run directory,
/// which recorded one.
///
/// # Errors
/// Everything that is wrong with the pipeline, its input or its model, before any work.
pub fn plan(pipeline: &Path, overrides: &Overrides, mut options: PlanOptions) -> Result<Plan> {
    if !is_run_directory(pipeline) {
        let (spec, warnings) = Spec::read(pipeline, overrides)?;
        return Plan::new(spec, options, warnings);
    }
    let directory = RunDirectory::at(pipeline)?;
    let lock = match Manifest::read(&directory)? {
        Some(manifest) => Some(manifest.lock),
        None => Lock::read(&directory.lock_file())?,
    };
    let Some(lock) = lock else {
        let message = format!("`{}` has no run to repeat", pipeline.display());
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .hint("name the pipeline file: nothing was run here yet")
            .into());
    };
    if let Some(recorded) = &lock.recorded {
        options.limit_rows = options.limit_rows.or(recorded.limit_rows);
        let scores_from = recorded.scores_from.as_ref().map(PathBuf::from);
        options.scores_from = options.scores_from.or(scores_from);
    }
    // Another kernel would give other bits.
    let kernel = lock.score_settings.get("kernel").and_then(|name| name.as_str());
    options.kernel = options.kernel.or(kernel.map(str::to_owned));
    let (spec, warnings) = Spec::recorded(&lock, overrides)?;
    Plan::new(spec, options, warnings)
}

/// Whether what the command line names is a run directory, and no pipeline file.
fn is_run_directory(pipeline: &Path) -> bool {
    pipeline.extension().is_some_and(|extension| extension == "run")
        && files::is_folder(pipeline).unwrap_or(false)
}
