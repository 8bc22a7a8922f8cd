//! `longsift run`.

use std::io::IsTerminal;
use std::sync::Arc;

use super::answer::{eprint, print_line, report, report_failure, terminal_text};
use super::observe::Observers;
use super::planned::{make_plan_with, plan_options};
use super::ray;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::progress::Progress;
use crate::base::secrets::shown;
use crate::base::stop::Stop;
use crate::base::text::{count, json_safe, shell_word};
use crate::cli::logging::RESULT;
use crate::cli::{AnswerFormat, Cli, Engine, LogFormat, RunArguments};
use crate::plan::Plan;
use crate::report::closing::{LabelTable, closing_line, closing_table};
use crate::run::{Phase, RunOptions, finish_commit};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::pipeline_lock::{self, PipelineLock};
use crate::run_directory::summary::Summary;

pub(super) fn run(cli: &Cli, arguments: &RunArguments, bars: bool) -> Result<u8> {
    // First, so that an earlier summary is never taken for the summary of this run, however it ends.
    let mut observers = Observers::from_arguments(arguments)?;
    let stop = Stop::on_signals()?;
    let (plan, options) = match prepare(cli, arguments, &stop) {
        Ok(prepared) => prepared,
        Err(failure) => {
            let summary = Summary::default();
            return Ok(failed(cli, arguments, &mut observers, &stop, failure, None, summary));
        }
    };
    let progress = Arc::new(Progress::new(bars));
    if arguments.engine == Engine::Ray {
        return ray::drive(cli, arguments, &plan);
    }
    observers.started(&plan, &progress);
    let result = crate::run::run(&plan, &options, &progress, &stop);
    progress.finish();
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(failure) => {
            let mut summary = Summary::new("failed", plan.directory.absolute());
            summary.windows_scored = progress.snapshot().windows;
            summary.set_counts(progress.counts());
            let plan = Some(&plan);
            return Ok(failed(cli, arguments, &mut observers, &stop, failure, plan, summary));
        }
    };
    let mut summary = outcome.summary;
    if let Some(refused) = outcome.refused {
        return Ok(failed(cli, arguments, &mut observers, &stop, refused, Some(&plan), summary));
    }
    report(cli, &outcome.warnings);
    if let Some(replaced) = outcome.replaced {
        let [kept, replaced] = [summary.kept, replaced].map(count);
        tracing::info!(target: RESULT, "the selection of {kept} samples replaces one of {replaced}");
    }
    summary.run_id.clone_from(&arguments.run_id);
    let mut closing = String::new();
    if summary.status == "nothing_to_do" {
        summary.exit_code = arguments.nothing_to_do_exit;
        let why = match arguments.phase {
            Phase::Score => "all units of this shard are scored",
            Phase::Write => "all units of this shard are written",
            _ if plan.units.is_empty() && plan.spec.pipeline.input.since.is_some() => {
                "the input has no new rows"
            }
            _ if plan.units.is_empty() => "the input has no rows",
            _ => "the output is complete and nothing has changed",
        };
        tracing::info!(target: RESULT, "nothing to do: {why}");
    } else {
        let output = &plan.spec.pipeline.output;
        let compared = output.compare.iter().map(|formula| formula.name()).collect();
        let column = output.report_by.as_deref().zip(outcome.labels.as_ref());
        let labels = column.map(|(column, shares)| LabelTable { column, compared, shares });
        closing.push_str(&closing_table(&summary, &progress.times(), labels.as_ref()));
    }
    if summary.shard.is_none() {
        closing.push_str(&output_paths(&plan));
    }
    match cli.log_format {
        _ if cli.quiet => {}
        LogFormat::Text => eprint(&terminal_text(&closing)),
        LogFormat::Json => tracing::info!(target: RESULT, closing, "the run has ended"),
    }
    let observed = observers.ended(Some(&plan), &summary);
    print_summary(arguments, &summary)?;
    observed?;
    Ok(summary.exit_code)
}

/// Prints the summary for programs if it was requested or standard output is not a terminal.
fn print_summary(arguments: &RunArguments, summary: &Summary) -> Result<()> {
    let is_json = match arguments.format {
        Some(format) => format == AnswerFormat::Json,
        None => !std::io::stdout().is_terminal(),
    };
    if is_json { print_line(&json_safe(&summary.to_line())).map(drop) } else { Ok(()) }
}

/// Returns the last lines of the closing table: the paths of the output and of the report.
fn output_paths(plan: &Plan) -> String {
    let (directory, root) = (&plan.directory, plan.directory.root.display().to_string());
    let report = if plan.spec.pipeline.output.report {
        directory.report_page().display().to_string()
    } else {
        format!("longsift report {}", shell_word(&shown(&root)))
    };
    closing_line("data", &shown(&directory.data().display().to_string()))
        + &closing_line("report", &shown(&report))
}

/// Plans the run, including everything that can fail before the plan exists.
fn prepare(cli: &Cli, arguments: &RunArguments, stop: &Stop) -> Result<(Plan, RunOptions)> {
    if arguments.stop_with_parent {
        Stop::terminate_with_parent().map_err(|error| {
            Diagnostic::error(Blame::Machine, format!("cannot watch the parent process: {error}"))
        })?;
    }
    check_phase(arguments)?;
    let locked = arguments.locked.then(|| arguments.plan.pipeline.pipeline.clone());
    let mut plan_options = plan_options(&arguments.plan);
    // Writing a shard requires the selection from all units.
    let write_shard = plan_options.shard.take_if(|_| arguments.phase == Phase::Write);
    let options = RunOptions {
        locked,
        phase: arguments.phase,
        only_quarantined: arguments.only_quarantined,
        remeasure: arguments.remeasure.clone(),
        write_shard,
    };
    plan_options.fresh = arguments.fresh;
    plan_options.footers.clone_from(&arguments.footers);
    // The machine that distributes the shards does not measure, so it needs no devices.
    plan_options.devices_absent = arguments.engine == Engine::Ray || arguments.devices_elsewhere;
    plan_options.stop = stop.clone();
    if let Some(pipeline) = &options.locked
        && let Some(locked) = PipelineLock::read(&pipeline_lock::path_next_to(pipeline))?
    {
        plan_options.pins = locked.hub_commits;
    }
    let pipeline = &arguments.plan.pipeline.pipeline;
    if RunDirectory::exists_at(pipeline) {
        finish_commit(&RunDirectory::open(pipeline)?)?;
    }
    let plan = make_plan_with(cli, &arguments.plan, plan_options)?;
    Ok((plan, options))
}

fn check_phase(arguments: &RunArguments) -> Result<()> {
    let sharded = arguments.plan.shard.is_some();
    let (message, hint) = match arguments.phase {
        Phase::All | Phase::Select if sharded => (
            "`--shard` requires `--phase score` or `--phase write`: a selection needs all shards",
            "add `--phase score`, and when all shards are done run `--phase select`",
        ),
        Phase::Score | Phase::Write | Phase::Select if arguments.fresh => (
            "`--fresh` would remove the scores of other processes",
            "remove the run directory before the first shard starts, or give the pipeline another `output.path`",
        ),
        Phase::Score if arguments.plan.scores_from.is_some() => (
            "`--scores-from` uses the scores of another run and conflicts with `--phase score`",
            "leave one of them out",
        ),
        _ if arguments.only_quarantined
            && (arguments.phase != Phase::All
                || arguments.fresh
                || arguments.plan.scores_from.is_some()) =>
        {
            (
                "`--only-quarantined` conflicts with `--phase`, `--fresh` and `--scores-from`",
                "leave the other options out",
            )
        }
        _ if !arguments.remeasure.is_empty() && arguments.plan.scores_from.is_some() => (
            "`--remeasure` conflicts with `--scores-from`, which measures nothing",
            "leave one of them out, or use `--remeasure` in the run that has the scores",
        ),
        _ if arguments.locked && RunDirectory::exists_at(&arguments.plan.pipeline.pipeline) => (
            "`--locked` requires a pipeline file with a lock next to it, got a run directory",
            "name the pipeline file",
        ),
        _ => return Ok(()),
    };
    Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into())
}

/// Reports a failure of a run to people, in the summary and to the observers. Returns the exit code.
fn failed(
    cli: &Cli,
    arguments: &RunArguments,
    observers: &mut Observers<'_>,
    stop: &Stop,
    failure: Failure,
    plan: Option<&Plan>,
    mut summary: Summary,
) -> u8 {
    let failure = match stop.check() {
        // The signal ended the retries of a temporary failure.
        Err(stopped) if failure.exit_code() == Blame::Machine.exit_code() => {
            tracing::warn!("{failure}");
            stopped
        }
        _ => failure,
    };
    report_failure(cli, &failure);
    let is_stopped = matches!(failure, Failure::Stopped { .. });
    if is_stopped { "stopped" } else { "failed" }.clone_into(&mut summary.status);
    summary.run_id.clone_from(&arguments.run_id);
    summary.exit_code = failure.exit_code();
    summary.error = Some(failure.to_string());
    let observed = observers.ended(plan, &summary);
    // The exit code is that of the first failure.
    for lost in [observed, print_summary(arguments, &summary)] {
        if let Err(lost) = lost {
            report_failure(cli, &lost);
        }
    }
    failure.exit_code()
}
