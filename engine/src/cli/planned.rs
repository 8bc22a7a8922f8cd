//! Planning with the arguments of a command.

use super::answer::report;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::cli::{Cli, PipelineArguments, PlanArguments};
use crate::plan::Plan;
use crate::plan::options::PlanOptions;
use crate::run_directory::layout::RunDirectory;
use crate::storage::hub::Network;

pub(super) fn make_plan(cli: &Cli, arguments: &PlanArguments) -> Result<Plan> {
    make_plan_with(cli, arguments, plan_options(arguments))
}

pub(super) fn make_plan_with(
    cli: &Cli,
    arguments: &PlanArguments,
    options: PlanOptions,
) -> Result<Plan> {
    let PipelineArguments { pipeline, overrides } = &arguments.pipeline;
    if let Some(threads) = arguments.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads));
        pool.build_global().map_err(|error| {
            Diagnostic::error(Blame::Machine, format!("cannot start {threads} threads: {error}"))
                .hint("lower `--threads`, or raise the limit of threads (`ulimit -u`, `pids.max` of the control group)")
        })?;
    }
    let plan = crate::plan(pipeline, overrides, options)?;
    report(cli, &plan.warnings);
    Ok(plan)
}

pub(super) fn plan_options(arguments: &PlanArguments) -> PlanOptions {
    PlanOptions {
        limit_rows: arguments.limit,
        threads: arguments.threads.map(usize::from),
        kernel: arguments.kernel.clone(),
        backend: arguments.backend.name(),
        scores_from: arguments.scores_from.clone(),
        shard: arguments.shard,
        network: if arguments.offline { Network::Offline } else { Network::Full },
        ..PlanOptions::default()
    }
}

/// Returns the run directory that is named instead of a pipeline file.
pub(super) fn named_run(arguments: &PlanArguments) -> Result<Option<RunDirectory>> {
    let path = &arguments.pipeline.pipeline;
    RunDirectory::exists_at(path).then(|| RunDirectory::open(path)).transpose()
}

/// Refuses `--scores-from` and `--shard` for commands on which they have no effect, each with its reason.
pub(super) fn refuse_without_effect(
    arguments: &PlanArguments,
    on: &str,
    [of_scores, of_shard]: [&str; 2],
) -> Result<()> {
    let given = [
        (arguments.scores_from.is_some(), "--scores-from", of_scores),
        (arguments.shard.is_some(), "--shard", of_shard),
    ];
    let refused = given.into_iter().filter(|(given, ..)| *given).map(|(_, option, why)| {
        let message = format!("`{option}` has no effect on {on}: {why}");
        Diagnostic::error(Blame::Pipeline, message).hint(format!("leave `{option}` out"))
    });
    let refused: Vec<Diagnostic> = refused.collect();
    if refused.is_empty() { Ok(()) } else { Err(refused.into()) }
}
