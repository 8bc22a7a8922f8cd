//! `--engine ray`: the plan is made here, the Python package hands its shards to a Ray cluster, whose workers run this
//! command again, a shard each.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use longsift_stages::shard_across_devices::{DeviceKind, Devices};
use serde_json::{Value, json};

use super::{Cli, LogFormat, RunArguments};
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files;
use crate::plan::Plan;
use crate::run::Phase;

/// Becomes the Python process that drives the cluster. Returns only if that cannot be.
pub(super) fn drive(cli: &Cli, arguments: &RunArguments, plan: &Plan) -> Result<u8> {
    check(arguments)?;
    let python = python();
    let job = job(cli, arguments, plan)?;
    let error = Command::new(&python).args(["-m", "longsift.ray"]).arg(job.to_string()).exec();
    Err(Diagnostic::error(Blame::Machine, format!("`{}` cannot be started: {error}", python.display()))
        .hint("Ray is driven from Python: `pip install 'longsift[ray]'`, and run the `longsift` that came with it")
        .into())
}

/// Flags that a cluster cannot honour.
fn check(arguments: &RunArguments) -> Result<()> {
    let flag = match arguments {
        RunArguments { fresh: true, .. } => "--fresh",
        RunArguments { phase: Phase::Score | Phase::Write | Phase::Select, .. } => "--phase",
        RunArguments { plan, .. } if plan.scores_from.is_some() => "--scores-from",
        RunArguments { plan, .. } if plan.shard.is_some() => "--shard",
        _ => return Ok(()),
    };
    Err(Diagnostic::error(Blame::Pipeline, format!("`{flag}` does not go with `--engine ray`"))
        .hint("run it without `--engine ray`, or leave the flag out; to start anew, remove the run directory")
        .into())
}

/// The Python beside this command, as in a virtual environment, else the one on the path.
fn python() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|command| command.with_file_name("python3"));
    beside.filter(|python| python.exists()).unwrap_or_else(|| PathBuf::from("python3"))
}

/// What the driver has to know. Paths are absolute: the workers see the same ones.
fn job(cli: &Cli, arguments: &RunArguments, plan: &Plan) -> Result<Value> {
    let given = &arguments.plan;
    let mut flags: Vec<String> = Vec::new();
    flags.extend(given.pipeline.set.iter().map(|set| format!("--set={set}")));
    flags.extend(given.pipeline.param.iter().map(|param| format!("--param={param}")));
    flags.extend(given.limit.map(|rows| format!("--limit={rows}")));
    flags.extend(given.kernel.as_ref().map(|kernel| format!("--kernel={kernel}")));
    flags.extend(arguments.locked.then(|| "--locked".to_owned()));
    flags.extend(cli.quiet.then(|| "--quiet".to_owned()));
    if cli.log_format == LogFormat::Json {
        flags.push("--log-format=json".to_owned());
    }
    let folder = files::canonical(std::path::Path::new("."))?;
    let gpus = match &plan.spec.shard_across_devices().devices {
        Devices::Kind(DeviceKind::Auto) => Value::Null,
        Devices::Kind(DeviceKind::Cpu) => json!(0),
        Devices::Count(count) => json!(count),
        Devices::Names(names) => json!(names.iter().filter(|name| *name != "cpu").count()),
    };
    Ok(json!({
        "pipeline": files::canonical(&given.pipeline.pipeline)?,
        "flags": flags,
        "folder": folder,
        "nothing_to_do_exit": arguments.nothing_to_do_exit,
        "address": arguments.address,
        "shards": arguments.shards,
        "threads": given.threads,
        "units": plan.whole.units,
        "rows": plan.whole.rows,
        "gpus": gpus,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}
