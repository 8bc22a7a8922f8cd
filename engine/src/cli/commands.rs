//! What each command does with its arguments.

use std::io::{IsTerminal, Write};
use std::path::Path;

use clap::{ColorChoice, CommandFactory};

use super::observe::Observers;
use super::{
    AnswerFormat, BenchArguments, Cli, Command, Engine, LogFormat, PipelineArguments,
    PlanArguments, RunArguments, logging, ray, terminal,
};
use crate::bench::BenchOptions;
use crate::device::catalogue;
use crate::diagnostic::{Blame, Diagnostic, json_safe, line_safe, quoted, render};
use crate::error::{BUG, DONE, Failure, Result};
use crate::execute;
use crate::lock::{self, Lock};
use crate::plan::absent::Absent;
use crate::plan::explain::{self, Done, Explanation};
use crate::plan::{Plan, PlanOptions};
use crate::progress::Progress;
use crate::report::{Summary, closing_table};
use crate::run::{self, Phase, RunOptions};
use crate::run_directory::RunDirectory;
use crate::spec::{Overrides, Spec, init};
use crate::stop::Stop;
use crate::{audit, bench, files, inspect, reference, status, tokens, tune};

/// Runs a command and prints what went wrong, once. Returns the exit code.
pub fn main(cli: &Cli) -> u8 {
    let bars = matches!(cli.command, Command::Run(_))
        && std::io::stderr().is_terminal()
        && !cli.quiet
        && cli.log_format == LogFormat::Text;
    logging::start(cli, bars);
    match command(cli, bars) {
        Ok(code) => code,
        Err(failure) => {
            report_failure(cli, &failure);
            failure.exit_code()
        }
    }
}

fn command(cli: &Cli, bars: bool) -> Result<u8> {
    match &cli.command {
        Command::Run(arguments) => run(cli, arguments, bars),
        Command::Validate(arguments) => validate(cli, arguments),
        Command::Plan { arguments, devices } => plan(cli, arguments, devices.as_deref()),
        Command::Devices(arguments) => super::devices::devices(arguments),
        Command::Tune { arguments, seconds } => tune(cli, arguments, *seconds),
        Command::Status { run_dir, format } => {
            let status = status::read(&RunDirectory::at(run_dir)?)?;
            Ok(answer(
                *format,
                || status.to_string(),
                || serde_json::to_value(&status).expect("plain data"),
            ))
        }
        Command::Verify { run_dir, format } => {
            let found = audit::verify(&RunDirectory::at(run_dir)?)?;
            answer(
                *format,
                || found.to_string(),
                || serde_json::to_value(&found).expect("plain data"),
            );
            Ok(found.exit_code())
        }
        Command::Diff { first, second, documents, format } => {
            let (first, second) = (RunDirectory::at(first)?, RunDirectory::at(second)?);
            let difference = audit::diff(&first, &second, *documents)?;
            answer(
                *format,
                || difference.to_string(),
                || serde_json::to_value(&difference).expect("plain data"),
            );
            Ok(difference.exit_code())
        }
        Command::Schema { name } => schema(name.as_deref()),
        Command::Stages { name } => stages(cli, name.as_deref()),
        Command::Init { path } => init_pipeline(path),
        Command::Inspect { model_dir, format } => {
            let page = inspect::inspect(model_dir)?;
            Ok(answer(
                *format,
                || page.to_string(),
                || serde_json::to_value(&page).expect("plain data"),
            ))
        }
        Command::Completions { shell } => {
            clap_complete::generate(
                *shell,
                &mut Cli::command(),
                "longsift",
                &mut std::io::stdout(),
            );
            Ok(DONE)
        }
        Command::Lock(arguments) => write_lock(cli, arguments),
        Command::Bench(arguments) => bench(cli, arguments),
        Command::Tokens { arguments, ids } => {
            let plan = planned(cli, arguments)?;
            let mut out = std::io::stdout().lock();
            tokens::print(&plan, *ids, &mut out)?;
            Ok(DONE)
        }
    }
}

fn run(cli: &Cli, arguments: &RunArguments, bars: bool) -> Result<u8> {
    let stop = Stop::on_signals().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("signals cannot be listened to: {error}"))
    })?;
    if arguments.stop_with_parent {
        Stop::with_parent().map_err(|error| {
            Diagnostic::error(
                Blame::Machine,
                format!("the end of the parent cannot be seen: {error}"),
            )
        })?;
    }
    check_phase(arguments)?;
    start_threads(&arguments.plan)?;
    let progress = Progress::new(bars);
    let locked = arguments.locked.then(|| arguments.plan.pipeline.pipeline.clone());
    let observers = Observers::of(arguments);
    let mut plan_options = plan_options(&arguments.plan);
    // To write a shard takes the selection from all units.
    let write_shard = plan_options.shard.take_if(|_| arguments.phase == Phase::Write);
    let options = RunOptions {
        fresh: arguments.fresh,
        locked,
        phase: arguments.phase,
        only_quarantined: arguments.only_quarantined,
        write_shard,
    };
    plan_options.fresh = arguments.fresh;
    plan_options.stop = stop.clone();
    if let Some(pipeline) = &options.locked
        && let Some(locked) = Lock::read(&lock::path_beside(pipeline))?
    {
        plan_options.pins = locked.hub_commits;
    }
    let plan = match planned_with(cli, &arguments.plan, plan_options) {
        Ok(plan) => plan,
        Err(failure) => {
            return Ok(failed(cli, arguments, &observers, &or_stopped(failure, &stop), None));
        }
    };
    if arguments.engine == Engine::Ray {
        return ray::drive(cli, arguments, &plan);
    }
    observers.started(&plan);
    let result = run::run(&plan, &options, &progress, &stop);
    progress.finish();
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(failure) => {
            return Ok(failed(
                cli,
                arguments,
                &observers,
                &or_stopped(failure, &stop),
                Some(&plan),
            ));
        }
    };
    report_warnings(cli, outcome.warnings.iter());
    let mut summary = outcome.summary;
    summary.run_id.clone_from(&arguments.run_id);
    if summary.status == "nothing_to_do" {
        summary.exit_code = arguments.nothing_to_do_exit;
        let why = if arguments.phase == Phase::Score {
            "the units of this shard have scores"
        } else if arguments.phase == Phase::Write {
            "the units of this shard are written"
        } else if plan.units.is_empty() {
            "the input has no rows"
        } else {
            "the output is complete and nothing has changed"
        };
        tracing::info!("nothing to do: {why}");
    } else if !cli.quiet {
        let column = plan.spec.pipeline.output.report_by.as_deref();
        let labels = column.zip(outcome.labels.as_ref());
        eprint(&terminal::text(&closing_table(&summary, &progress.times(), labels)));
    }
    observers.ended(Some(&plan), &summary);
    print_line(&json_safe(&summary.to_line()));
    Ok(summary.exit_code)
}

/// What a signal ended, if one has come: what may pass was not waited for any longer.
fn or_stopped(failure: Failure, stop: &Stop) -> Failure {
    match stop.check() {
        Err(stopped) if failure.exit_code() == crate::error::MACHINE => {
            tracing::warn!("{failure}");
            stopped
        }
        _ => failure,
    }
}

/// Flags that do not go together.
fn check_phase(arguments: &RunArguments) -> Result<()> {
    let sharded = arguments.plan.shard.is_some();
    let problem = |message: &str| Diagnostic::error(Blame::Pipeline, message);
    match arguments.phase {
        Phase::All | Phase::Select if sharded => {
            Err(problem("`--shard` is for scoring and writing; a selection needs all shards")
                .hint("add `--phase score`, and when all shards are done run `--phase select`")
                .into())
        }
        Phase::Score | Phase::Write | Phase::Select if arguments.fresh => {
            Err(problem("`--fresh` would remove what other processes have scored")
                .hint("remove the run directory before the first shard starts, or give the pipeline another `output.path`")
                .into())
        }
        Phase::Score if arguments.plan.scores_from.is_some() => {
            Err(problem("`--scores-from` takes the scores of another run, `--phase score` makes them")
                .hint("leave one of them out")
                .into())
        }
        _ if arguments.only_quarantined
            && (arguments.phase != Phase::All
                || arguments.fresh
                || arguments.plan.scores_from.is_some()) =>
        {
            Err(problem("`--only-quarantined` carries on a whole run of this directory")
                .hint("leave `--phase`, `--fresh` and `--scores-from` out")
                .into())
        }
        _ if arguments.locked && crate::is_run_directory(&arguments.plan.pipeline.pipeline) => {
            Err(problem("`--locked` compares with the lock beside a pipeline file, not with that of a run directory")
                .hint("name the pipeline file")
                .into())
        }
        _ => Ok(()),
    }
}

/// Says what went wrong, for people and in the summary; returns the exit code.
fn failed(
    cli: &Cli,
    arguments: &RunArguments,
    observers: &Observers,
    failure: &Failure,
    plan: Option<&Plan>,
) -> u8 {
    report_failure(cli, failure);
    let run_dir = plan.map_or(String::new(), |plan| plan.directory.absolute());
    let mut summary = Summary::new(failed_status(failure), run_dir);
    summary.run_id.clone_from(&arguments.run_id);
    summary.exit_code = failure.exit_code();
    summary.error = Some(failure.to_string());
    observers.ended(plan, &summary);
    print_line(&json_safe(&summary.to_line()));
    failure.exit_code()
}

fn failed_status(failure: &Failure) -> &'static str {
    match failure {
        Failure::Stopped { .. } => "stopped",
        Failure::Problems(_) => "failed",
    }
}

fn validate(cli: &Cli, arguments: &PipelineArguments) -> Result<u8> {
    let (spec, warnings) = Spec::read(&arguments.pipeline, &overrides(arguments))?;
    report_warnings(cli, warnings.iter());
    print_line(&format!(
        "{} is a valid pipeline: {}",
        quoted(&arguments.pipeline.display().to_string()),
        line_safe(&spec.pipeline.name)
    ));
    Ok(DONE)
}

fn plan(cli: &Cli, arguments: &PlanArguments, absent: Option<&str>) -> Result<u8> {
    let cards = absent.map(catalogue::cards).transpose()?;
    let mut options = plan_options(arguments);
    options.devices_absent = cards.is_some();
    let mut plan = planned_with(cli, arguments, options)?;
    plan.absent = cards.map(|cards| Absent::new(&plan, &cards));
    let plan = plan;
    let done = done(&plan)?;
    Ok(answer(
        arguments.format,
        || Explanation { plan: &plan, done }.to_string(),
        || explain::json(&plan, done),
    ))
}

/// Work that the run directory has done for a plan, if it says what with.
fn done(plan: &Plan) -> Result<Done> {
    let directory = match &plan.options.scores_from {
        Some(path) => RunDirectory::at(path)?,
        None => plan.directory.clone(),
    };
    let Some(before) = Lock::read(&directory.lock_file())? else { return Ok(Done::default()) };
    let Some(model) = before.model.filter(|model| model.identity == plan.model.identity()) else {
        return Ok(Done::default());
    };
    let settings = crate::plan::identity::score_settings(plan, &model.digest);
    let standing =
        execute::standing(plan, &directory, &crate::plan::identity::fingerprint(&settings))?;
    let records: Vec<_> = standing.iter().flatten().collect();
    let (units, windows) =
        (records.len(), records.iter().map(|record| record.counts.windows).sum());
    let finished = run::finished(plan, &standing)?.is_some();
    Ok(Done { units, windows, finished })
}

fn write_lock(cli: &Cli, arguments: &PlanArguments) -> Result<u8> {
    start_threads(arguments)?;
    let plan = planned(cli, arguments)?;
    let digest = match longsift_stages::model::known_digest(&plan.model, &plan.cache_folder) {
        Some(digest) => digest,
        None => plan.open_table()?.model_digest,
    };
    let path = lock::path_beside(&arguments.pipeline.pipeline);
    Lock::of(&plan, &digest)?.write(&path)?;
    print_line(&terminal::text(&format!("wrote `{}`", path.display())));
    Ok(DONE)
}

fn bench(cli: &Cli, arguments: &BenchArguments) -> Result<u8> {
    let options = BenchOptions {
        pipeline: arguments.pipeline.clone(),
        overrides: Overrides { set: arguments.set.clone(), param: arguments.param.clone() },
        windows: arguments.windows.clone(),
        head_dims: arguments.head_dims.clone(),
        repeats: arguments.repeats,
    };
    if let Some(problem) = options.problem() {
        return Err(problem.into());
    }
    let bench = bench::bench(&options, &|figure| {
        if !cli.quiet {
            eprint(&format!("{figure}\n"));
        }
    })?;
    if let Some(path) = &arguments.json {
        let json = serde_json::to_vec_pretty(&bench).expect("plain data");
        files::write_atomic(path, &json)?;
    }
    if let Some(path) = &arguments.chart {
        let svg = bench::draw(&bench).map_err(|why| {
            Diagnostic::error(Blame::Bug, format!("the chart cannot be drawn: {why}"))
        })?;
        files::write_atomic(path, svg.as_bytes())?;
    }
    print(&bench.to_string());
    Ok(DONE)
}

fn schema(name: Option<&str>) -> Result<u8> {
    let schemas = reference::schemas();
    let names: Vec<&str> = schemas.iter().map(|(name, _)| *name).collect();
    let Some(name) = name else {
        print_line(&names.join("\n"));
        return Ok(DONE);
    };
    match schemas.iter().find(|(known, _)| *known == name) {
        Some((_, schema)) => {
            print(&reference::schema_text(schema));
            Ok(DONE)
        }
        None => Err(Diagnostic::error(Blame::Pipeline, format!("there is no schema `{name}`"))
            .hint(format!("there are: {}", names.join(", ")))
            .into()),
    }
}

fn stages(cli: &Cli, name: Option<&str>) -> Result<u8> {
    let width = 100;
    match reference::stage_page(name, width, color(cli, std::io::stdout().is_terminal())) {
        Some(page) => {
            print(&page);
            Ok(DONE)
        }
        None => Err(Diagnostic::error(
            Blame::Pipeline,
            format!("there is no stage `{}`", name.unwrap_or_default()),
        )
        .hint(format!("there are: {}", longsift_stages::STAGE_NAMES.join(", ")))
        .into()),
    }
}

fn init_pipeline(path: &Path) -> Result<u8> {
    if files::size(path)?.is_some() {
        return Err(Diagnostic::error(Blame::Pipeline, format!("`{}` exists", path.display()))
            .hint("give another name: `longsift init NAME.yaml`")
            .into());
    }
    files::write_atomic(path, init::starter().as_bytes())?;
    print_line(&format!(
        "wrote `{}`; next: edit it, then `longsift plan {}`",
        path.display(),
        path.display()
    ));
    Ok(DONE)
}

fn tune(cli: &Cli, arguments: &PlanArguments, seconds: f64) -> Result<u8> {
    let stop = Stop::on_signals().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("signals cannot be listened to: {error}"))
    })?;
    start_threads(arguments)?;
    let plan = planned(cli, arguments)?;
    let tuned = tune::tune(&plan, seconds, &stop)?;
    Ok(answer(
        arguments.format,
        || tuned.to_string(),
        || serde_json::to_value(&tuned).expect("plain data"),
    ))
}

fn planned(cli: &Cli, arguments: &PlanArguments) -> Result<Plan> {
    planned_with(cli, arguments, plan_options(arguments))
}

fn planned_with(cli: &Cli, arguments: &PlanArguments, options: PlanOptions) -> Result<Plan> {
    let overrides = overrides(&arguments.pipeline);
    let plan = crate::plan(&arguments.pipeline.pipeline, &overrides, options)?;
    report_warnings(cli, plan.warnings.iter());
    Ok(plan)
}

fn overrides(arguments: &PipelineArguments) -> Overrides {
    Overrides { set: arguments.set.clone(), param: arguments.param.clone() }
}

fn plan_options(arguments: &PlanArguments) -> PlanOptions {
    PlanOptions {
        limit_rows: arguments.limit,
        threads: arguments.threads.map(usize::from),
        kernel: arguments.kernel.clone(),
        scores_from: arguments.scores_from.clone(),
        shard: arguments.shard,
        offline: arguments.offline,
        ..PlanOptions::default()
    }
}

fn start_threads(arguments: &PlanArguments) -> Result<()> {
    let Some(threads) = arguments.threads else { return Ok(()) };
    let started = rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads)).build_global();
    started.map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("{threads} threads cannot be started: {error}"))
            .into()
    })
}

pub(super) fn answer(
    format: AnswerFormat,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> serde_json::Value,
) -> u8 {
    match format {
        AnswerFormat::Text => print(&terminal::text(&text())),
        AnswerFormat::Json => {
            let json = serde_json::to_string_pretty(&json()).expect("plain data");
            print_line(&json_safe(&json));
        }
    }
    DONE
}

fn color(cli: &Cli, terminal: bool) -> bool {
    match cli.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => terminal,
    }
}

fn report_failure(cli: &Cli, failure: &Failure) {
    let Failure::Problems(problems) = failure else {
        tracing::warn!("{failure}");
        return;
    };
    report(cli, problems);
    if failure.exit_code() == BUG {
        eprint(
            "this is a bug of longsift; please report it with the pipeline file and the command\n",
        );
    }
}

fn report_warnings<'a>(cli: &Cli, warnings: impl Iterator<Item = &'a Diagnostic>) {
    let warnings: Vec<Diagnostic> = warnings.cloned().collect();
    report(cli, &warnings);
}

fn report(cli: &Cli, diagnostics: &[Diagnostic]) {
    if diagnostics.is_empty() {
        return;
    }
    match cli.log_format {
        LogFormat::Text => {
            eprint(&render(diagnostics, color(cli, std::io::stderr().is_terminal())));
        }
        LogFormat::Json => {
            for diagnostic in diagnostics {
                let text = render(std::slice::from_ref(diagnostic), false);
                if diagnostic.is_error() {
                    tracing::error!(message = diagnostic.message, diagnostic = text);
                } else {
                    tracing::warn!(message = diagnostic.message, diagnostic = text);
                }
            }
        }
    }
}

/// A reader of standard output that has gone away is no failure of ours.
pub(super) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
}

fn print_line(text: &str) {
    print(&format!("{text}\n"));
}

fn eprint(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
