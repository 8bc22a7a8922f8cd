//! Creates a plan from a pipeline file or a run directory.

use std::path::{Path, PathBuf};

use longsift_stages::model::BackendName;

use super::options::PlanOptions;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::{FINISH_COMMIT, Manifest};
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::spec::{Overrides, Spec};
use crate::storage::files;

/// Plans the pipeline of a file, or the recorded one of a run directory.
pub fn plan(pipeline: &Path, overrides: &Overrides, mut options: PlanOptions) -> Result<Plan> {
    if !RunDirectory::exists_at(pipeline) {
        let (spec, warnings) = Spec::read(pipeline, overrides)?;
        return Plan::new(spec, options, warnings);
    }
    let directory = RunDirectory::open(pipeline)?;
    let lock = match Manifest::read(&directory) {
        Ok(Some(manifest)) => {
            // The interrupted selection may have other settings, which are not yet recorded.
            if files::size(&directory.intent())?.is_some() && !options.fresh {
                let message = format!("a commit in `{}` was interrupted", directory.root.display());
                return Err(Diagnostic::error(Blame::Pipeline, message).hint(FINISH_COMMIT).into());
            }
            Some(manifest.lock)
        }
        Err(damaged) if !options.fresh => return Err(damaged),
        // A fresh start needs no manifest.
        Ok(None) | Err(_) => PipelineLock::read(&directory.lock_file())?,
    };
    let Some(lock) = lock else {
        let message = format!("`{}` contains no recorded run", pipeline.display());
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .hint("use the pipeline file: nothing has run here yet")
            .into());
    };
    let recorded = lock.recorded()?;
    options.limit_rows = options.limit_rows.or(recorded.limit_rows);
    options.scores_from = options.scores_from.or(recorded.scores_from.as_ref().map(PathBuf::from));
    // Another kernel or backend would compute other bits.
    let fact = |name| lock.identity.find_in_measures(name)?.as_str();
    let of_whole = fact("model_kernel");
    options.backend = options.backend.or(of_whole.map(BackendName::recorded));
    let own = of_whole.filter(|name| BackendName::recorded(name) == BackendName::Own);
    options.kernel = options.kernel.or(fact("kernel").or(own).map(str::to_owned));
    let (spec, warnings) = Spec::recorded(&recorded.pipeline, &lock.settings, overrides)?;
    // A copy of a run directory continues in the copy; the original is not touched.
    let output = &spec.pipeline.output.path;
    if lock.settings["output"]["path"].as_str() == Some(&*output.to_string()) {
        let of_pipeline = RunDirectory::for_output(&spec.resolve(output).to_path_buf());
        if of_pipeline.with_row_limit(recorded.limit_rows).absolute() != directory.absolute() {
            options.directory = directory.change_row_limit(recorded.limit_rows, options.limit_rows);
        }
    }
    Plan::new(spec, options, warnings)
}
