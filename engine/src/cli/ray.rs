//! `--engine ray`: plans on this machine, then starts the Python package, which distributes the shards to a Ray
//! cluster. The workers run this command for one shard each.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use longsift_stages::shard_across_devices::{DeviceKind, DeviceSettings};
use serde_json::{Value, json};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::cli::{Cli, LogFormat, PlanArguments, RunArguments};
use crate::plan::Plan;
use crate::run::Phase;
use crate::storage::files;

/// Replaces this process by the Python process that drives the cluster. Returns only on failure.
pub(super) fn drive(cli: &Cli, arguments: &RunArguments, plan: &Plan) -> Result<u8> {
    check(arguments)?;
    let python = python();
    let job = job(cli, arguments, plan)?;
    let error = Command::new(&python).args(["-m", "longsift.ray"]).arg(job.to_string()).exec();
    Err(Diagnostic::error(Blame::Machine, format!("cannot start `{}`: {error}", python.display()))
        .hint("`--engine ray` requires the Python package: run `pip install '.[ray]'` in a clone of the repository, then the `longsift` that it installs")
        .into())
}

fn check(arguments: &RunArguments) -> Result<()> {
    let RunArguments { plan, phase, fresh, only_quarantined, .. } = arguments;
    let flag = match phase {
        _ if *fresh => "--fresh",
        _ if *only_quarantined => "--only-quarantined",
        Phase::Score | Phase::Write | Phase::Select => "--phase",
        _ if plan.scores_from.is_some() => "--scores-from",
        _ if plan.shard.is_some() => "--shard",
        Phase::All => return Ok(()),
    };
    Err(Diagnostic::error(Blame::Pipeline, format!("`{flag}` conflicts with `--engine ray`"))
        .hint("leave one of the two out; to start again, remove the run directory")
        .into())
}

/// Returns the Python next to this executable, as in a virtual environment, or the one on the path.
fn python() -> PathBuf {
    let neighbour = std::env::current_exe().ok().map(|command| command.with_file_name("python3"));
    neighbour.filter(|python| python.exists()).unwrap_or_else(|| PathBuf::from("python3"))
}

/// Returns the job description for the driver. Paths are absolute because the workers see the same file system. The
/// pattern names every flag, so that adding a flag without deciding how a cluster handles it does not compile.
fn job(cli: &Cli, arguments: &RunArguments, plan: &Plan) -> Result<Value> {
    let Cli { command: _, log_format, quiet, verbose, color: _ } = cli;
    let RunArguments {
        plan:
            PlanArguments {
                pipeline,
                limit,
                threads,
                kernel,
                backend,
                scores_from: _,
                shard: _,
                offline,
            },
        phase: _,
        engine: _,
        address,
        shards,
        run_id,
        summary_file,
        metrics_textfile,
        stop_with_parent: _,
        fresh: _,
        locked,
        only_quarantined: _,
        remeasure,
        format: _,
        nothing_to_do_exit,
        devices_elsewhere: _,
        footers: _,
    } = arguments;
    let mut flags: Vec<String> = Vec::new();
    flags.extend(pipeline.overrides.set.iter().map(|set| format!("--set={set}")));
    flags.extend(pipeline.overrides.param.iter().map(|param| format!("--param={param}")));
    flags.extend(limit.map(|rows| format!("--limit={rows}")));
    flags.extend(run_id.as_ref().map(|name| format!("--run-id={name}")));
    flags.extend(remeasure.iter().map(|measure| format!("--remeasure={measure}")));
    flags.extend(backend.name().map(|_| {
        let value = backend.to_possible_value().expect("no value is hidden");
        format!("--backend={}", value.get_name())
    }));
    flags.extend(locked.then(|| "--locked".to_owned()));
    flags.extend(offline.then(|| "--offline".to_owned()));
    flags.extend(quiet.then(|| "--quiet".to_owned()));
    flags.extend((0..*verbose).map(|_| "--verbose".to_owned()));
    if *log_format == LogFormat::Json {
        flags.push("--log-format=json".to_owned());
    }
    if plan.whole_units > 0 {
        flags.push(format!("--footers={}", plan.write_footer_cache()?.display()));
    }
    let folder = files::canonical(Path::new("."))?;
    // The final metrics are those of the selection; shards would overwrite each other's.
    let metrics =
        metrics_textfile.as_ref().map(|path| format!("--metrics-textfile={}", path.display()));
    let summary = summary_file.as_ref().map(|path| format!("--summary-file={}", path.display()));
    let gpus = match plan.attention.as_ref().map(|attention| &attention.sharing.devices) {
        Some(DeviceSettings::Kind(DeviceKind::Auto)) => Value::Null,
        None | Some(DeviceSettings::Kind(DeviceKind::Cpu)) => json!(0),
        Some(DeviceSettings::Count(count)) => json!(count),
        Some(DeviceSettings::Names(names)) => {
            json!(names.iter().filter(|name| *name != "cpu").count())
        }
    };
    Ok(json!({
        "pipeline": files::canonical(&pipeline.pipeline)?,
        "flags": flags,
        "select_flags": metrics.into_iter().chain(summary).collect::<Vec<_>>(),
        "folder": folder,
        "nothing_to_do_exit": nothing_to_do_exit,
        "address": address,
        "shards": shards,
        "threads": threads,
        "units": plan.whole_units,
        "rows": plan.whole_rows,
        "gpus": gpus,
        "kernel": kernel,
        "processor_kernel": plan.attention.as_ref().map(|attention| attention.kernel().name()),
        "memory_bytes": plan.estimate.memory_bytes,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}
