//! Creates the pipeline lock: the resolved settings, and the identity by content.

use std::path::Path;

use serde_json::Value;

use super::identity::{Digests, identity};
use crate::plan::Plan;
use crate::run_directory::pipeline_lock::{self, ModelIdentity, PipelineLock, Recorded};
use crate::storage::store::is_address;

pub fn lock(plan: &Plan, digests: &Digests) -> PipelineLock {
    let params = plan.spec.params.iter();
    let params = params.map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect();
    PipelineLock {
        version: pipeline_lock::VERSION,
        settings: plan.spec.resolved_json(),
        overrides: plan.spec.overrides.clone(),
        params,
        identity: identity(plan, digests),
        hub_commits: plan.pins.clone(),
        ..PipelineLock::default()
    }
}

/// Adds the command line options that are required to repeat the run.
#[must_use]
pub fn with_command(mut lock: PipelineLock, plan: &Plan) -> PipelineLock {
    lock.recorded = Some(Recorded {
        pipeline: absolute(Path::new(&plan.spec.name)),
        limit_rows: plan.options.limit_rows,
        scores_from: plan.other_scores().map(absolute),
    });
    lock
}

pub fn absolute(path: &Path) -> String {
    let path = if is_address(path) { None } else { std::path::absolute(path).ok() }
        .unwrap_or_else(|| path.to_owned());
    path.display().to_string()
}

/// Creates the lock of a run directory, which also has the identities of the models.
pub fn lock_with_models(plan: &Plan, digests: &Digests) -> PipelineLock {
    let model = plan.attention.as_ref().zip(digests.attention.as_ref());
    let model = model.map(|(attention, digests)| ModelIdentity {
        identity: attention.model.identity(),
        weights: digests.weights.clone(),
    });
    let whole = plan.whole_models.values().filter_map(|whole| {
        let weights = digests.whole_models.get(&whole.measure)?.weights.clone();
        let identity = whole.model.identity();
        Some((whole.measure.clone(), ModelIdentity { identity, weights }))
    });
    PipelineLock { model, whole_models: whole.collect(), ..lock(plan, digests) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_recorded_unchanged_and_paths_made_absolute() {
        let address = "s3://bucket/old.run";
        assert_eq!(absolute(Path::new(address)), address);
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute(Path::new("old.run")), here.join("old.run").display().to_string());
    }
}
